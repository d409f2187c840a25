"""`Requirement`: one thing that a client insists on; the functions make the usual ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from olivelike.graphs.inspect.inspect import TensorInfo
    from olivelike.measure.clients.client_folder import ClientFolder

Problem = str | None
"""Why a folder does not meet a requirement; `None` if it does."""


@dataclass(frozen=True)
class Requirement:
    """What must be so, how to tell, and what to do if it is not."""

    what: str
    problem: Callable[[ClientFolder], Problem]
    remedy: str
    only_advised: bool = False
    """The client works without it, but worse; the remedy says what is lost."""
    where: str | None = None
    """A component: where the folder has none, it is not asked for."""


def has_file(path: str, remedy: str) -> Requirement:
    """A file that must exist."""
    return Requirement(f"{path} exists", lambda folder: None if folder.has(path) else "it is missing", remedy)


def loads(component: str, remedy: str = "run the workflow with this component") -> Requirement:
    """A network whose model file and data files are there and whole."""

    def problem(folder: ClientFolder) -> Problem:
        folder.model(component)
        return None

    return Requirement(f"{component}/model.onnx and its data are there", problem, remedy)


def takes(
    component: str,
    name: str,
    dtypes: Sequence[str],
    remedy: str,
    *,
    shape: tuple[int | None, ...] | None = None,
    where: str | None = None,
) -> Requirement:
    """An input of one of these types that accepts a shape; `None` in it stands for any size."""

    def problem(folder: ClientFolder) -> Problem:
        return _misfit(folder.input(component, name), dtypes, shape)

    wanted = [f"is {' or '.join(dtypes)}"] if dtypes else []
    wanted += [f"accepts {_spelled(shape)}"] if shape is not None else []
    return Requirement(f"{component}: input {name} {' and '.join(wanted)}", problem, remedy, where=where)


def gives(
    component: str,
    position: int,
    dtypes: Sequence[str],
    remedy: str,
    *,
    shape: tuple[int | None, ...] | None = None,
    where: str | None = None,
) -> Requirement:
    """An output, by position, of one of these types that may have a shape."""

    def problem(folder: ClientFolder) -> Problem:
        return _misfit(folder.output(component, position), dtypes, shape)

    place = {0: "first", 1: "second", -1: "last"}[position]
    wanted = [f"is {' or '.join(dtypes)}"] if dtypes else []
    wanted += [f"has shape {_spelled(shape)}"] if shape is not None else []
    return Requirement(f"{component}: the {place} output {' and '.join(wanted)}", problem, remedy, where=where)


def feeds(
    component: str,
    wanted: Sequence[str],
    remedy: str,
    *,
    in_order: bool = False,
    more: Collection[str] = (),
    where: str | None = None,
) -> Requirement:
    """Inputs that must be there, and no other than `more`; `in_order` if the client goes by position."""

    def problem(folder: ClientFolder) -> Problem:
        names = [value.name for value in folder.model(component).inputs]
        right = names[: len(wanted)] == list(wanted) if in_order else set(wanted) <= set(names)
        return None if right and set(names) <= {*wanted, *more} else f"they are {', '.join(names)}"

    order = ", in this order" if in_order else ""
    return Requirement(f"{component}: the inputs are {', '.join(wanted)}{order}", problem, remedy, where=where)


def setting(path: str, key: str, value: object, remedy: str) -> Requirement:
    """A number or text in a config that the client takes for given; a config without it is right."""

    def problem(folder: ClientFolder) -> Problem:
        found = folder.json(path).get(key, value) if folder.has(path) else value
        return None if found == value else f"it is {found!r}"

    return Requirement(f"{path}: {key} is {value!r}", problem, remedy)


def clip_vocabulary(remedy: str) -> Requirement:
    """The vocabulary of CLIP, whose first and last id clients have in their code."""

    def problem(folder: ClientFolder) -> Problem:
        vocabulary = folder.json("tokenizer/vocab.json")
        ids = [vocabulary.get(token) for token in ("<|startoftext|>", "<|endoftext|>")]
        return None if ids == [49406, 49407] else f"start and end are {ids[0]} and {ids[1]}"

    return Requirement(
        "tokenizer/vocab.json is that of CLIP: a text starts with 49406, ends with 49407", problem, remedy
    )


def data_file(components: Sequence[str], name: str, loss: str, remedy: str) -> Requirement:
    """A name of data files; `loss` is what another one costs."""

    def problem(folder: ClientFolder) -> Problem:
        for component in components:
            for file in folder.model(component).data_files:
                if file.location != name:
                    return f"that of {component} is {file.location}; {loss}"
        return None

    return Requirement(f"data files are called {name}", problem, remedy, only_advised=True)


def _misfit(value: TensorInfo, dtypes: Sequence[str], shape: tuple[int | None, ...] | None) -> Problem:
    if dtypes and value.dtype not in dtypes:
        return f"it is {value.dtype}"
    if shape is None or value.shape is None:
        return None
    fits = len(value.shape) == len(shape) and all(
        wanted is None or not isinstance(size, int) or size == wanted
        for size, wanted in zip(value.shape, shape, strict=True)
    )
    return None if fits else f"its shape is {_spelled(value.shape)}"


def _spelled(shape: Sequence[object]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
