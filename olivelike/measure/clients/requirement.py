"""`Requirement`: one thing that a client insists on; the functions make the usual ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from olivelike.graphs.inspect.inspection import TensorInfo
    from olivelike.measure.clients.client_folder import ClientFolder

Problem = str | None
"""Why a folder does not meet a requirement; `None` if it does."""
Shape = tuple[int | None, ...]
"""`None` stands for any size."""


@dataclass(frozen=True)
class Requirement:
    """Demand of a client, the check of it, and the remedy if it is not met."""

    what: str
    problem: Callable[[ClientFolder], Problem]
    remedy: str = ""
    """By default the workflow is to be run with the client's layout."""
    only_advised: bool = False
    """The client works without it, but worse; the remedy says what is lost."""
    where: str | None = None
    """A component: where the folder has none, it is not asked for."""
    families: frozenset[str] | None = None
    """Families whose pipelines it is asked of; `None` for all."""

    def concerns(self, folder: ClientFolder) -> bool:
        """Tell whether it is asked of a folder."""
        in_family = self.families is None or folder.family.name in self.families
        return in_family and (self.where is None or folder.has(self.where))


def unless(right: bool, reason: str) -> Problem:
    """Return a reason unless all is right."""
    return None if right else reason


def has_file(path: str, remedy: str = "") -> Requirement:
    """A file that must exist."""
    return Requirement(f"{path} exists", lambda folder: unless(folder.has(path), "it is missing"), remedy)


def loads(component: str, remedy: str = "run the workflow with this component") -> Requirement:
    """A network whose model file and data files are there and whole."""

    def problem(folder: ClientFolder) -> Problem:
        folder.model(component)
        return None

    return Requirement(f"{component}/model.onnx and its data are there", problem, remedy)


def takes(component: str, name: str, *dtypes: str, shape: Shape | None = None, remedy: str = "") -> Requirement:
    """An input of one of these types that accepts a shape."""
    what = f"{component}: input {name} {_wanted(dtypes, shape, 'accepts')}"
    return Requirement(what, lambda folder: _misfit(folder.input(component, name), dtypes, shape), remedy)


def gives(component: str, position: int, *dtypes: str, shape: Shape | None = None, remedy: str = "") -> Requirement:
    """An output, by position, of one of these types that may have a shape."""
    place = {0: "first", 1: "second", -1: "last"}[position]
    what = f"{component}: the {place} output {_wanted(dtypes, shape, 'has shape')}"
    return Requirement(what, lambda folder: _misfit(folder.output(component, position), dtypes, shape), remedy)


def feeds(
    component: str, *wanted: str, in_order: bool = False, more: Collection[str] = (), remedy: str = ""
) -> Requirement:
    """Inputs that must be there, and no other than `more`; `in_order` if the client goes by position."""

    def problem(folder: ClientFolder) -> Problem:
        names = [value.name for value in folder.model(component).inputs]
        right = names[: len(wanted)] == list(wanted) if in_order else set(wanted) <= set(names)
        return unless(right and set(names) <= {*wanted, *more}, f"they are {', '.join(names)}")

    order = ", in this order" if in_order else ""
    return Requirement(f"{component}: the inputs are {', '.join(wanted)}{order}", problem, remedy)


def first_output(component: str, name: str) -> Requirement:
    """The name of the output that a client takes for granted."""
    return Requirement(
        f"{component}: {name} is the first output",
        lambda folder: unless((found := folder.output(component).name) == name, f"the first is {found}"),
    )


def setting(path: str, key: str, value: object, remedy: str) -> Requirement:
    """A number or text in a config that the client takes for given; a config without it is right."""

    def problem(folder: ClientFolder) -> Problem:
        found = folder.json(path).get(key, value) if folder.has(path) else value
        return unless(found == value, f"it is {found!r}")

    return Requirement(f"{path}: {key} is {value!r}", problem, remedy)


def clip_vocabulary(remedy: str) -> Requirement:
    """The vocabulary of CLIP, whose first and last id clients have in their code."""

    def problem(folder: ClientFolder) -> Problem:
        vocabulary = folder.json("tokenizer/vocab.json")
        start, end = (vocabulary.get(token) for token in ("<|startoftext|>", "<|endoftext|>"))
        return unless((start, end) == (49406, 49407), f"start and end are {start} and {end}")

    return Requirement(
        "tokenizer/vocab.json is that of CLIP: a text starts with 49406, ends with 49407", problem, remedy
    )


def data_file(components: Sequence[str], name: str, loss: str) -> Requirement:
    """A name of data files; `loss` is what another one costs."""

    def problem(folder: ClientFolder) -> Problem:
        for component in components:
            for file in folder.model(component).data_files:
                if file.location != name:
                    return f"that of {component} is {file.location}; {loss}"
        return None

    return Requirement(f"data files are called {name}", problem, only_advised=True)


def _wanted(dtypes: Sequence[str], shape: Shape | None, verb: str) -> str:
    kinds = [f"is {' or '.join(dtypes)}"] if dtypes else []
    return " and ".join([*kinds, *([f"{verb} {_spelled(shape)}"] if shape is not None else [])])


def _misfit(value: TensorInfo, dtypes: Sequence[str], shape: Shape | None) -> Problem:
    if dtypes and value.dtype not in dtypes:
        return f"it is {value.dtype}"
    if shape is None or value.shape is None:
        return None
    fits = len(value.shape) == len(shape) and all(
        wanted is None or not isinstance(size, int) or size == wanted
        for size, wanted in zip(value.shape, shape, strict=True)
    )
    return unless(fits, f"its shape is {_spelled(value.shape)}")


def _spelled(shape: Sequence[object]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
