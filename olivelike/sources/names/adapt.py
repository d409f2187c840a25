"""Asking diffusers and transformers what a stored checkpoint means to them; run it in a worker.

Names are mapped by the libraries' own loading code, fed with tensors of the stored names and shapes that take
no memory (one element, stride 0) and whose value says which they are.

Names of the original (LDM) code are mapped by diffusers' own converters. They get tensors of the meta device, which
have no bytes. Each stands for a stored tensor by its storage, which views share; so a slice of q, k and v or a
transpose is recognised by its offset and strides.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from olivelike._light_diffusers import light_diffusers
from olivelike.errors import SourceError
from olivelike.families.networks import STORED
from olivelike.families.supported import check_network, refused_config
from olivelike.model import Architecture, Weights
from olivelike.model.components import own_marks
from olivelike.model.guides import IMAGE_ENCODER, IMAGE_PROJECTION, first_of_kind
from olivelike.sources.names.adaptation import Adaptation, StoredView, bind
from olivelike.sources.names.loading_result import Loading, Shape, quiet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch

    from olivelike.model.architecture import Config
    from olivelike.sources.checkpoint import Checkpoint

_LISTED = 10


def read_network(checkpoint: Checkpoint, file_digests: Mapping[Path, str]) -> tuple[Architecture, Weights]:
    """Return architecture and weights of a component that its source stores for torch.

    Raises `SourceError` as `adapt`.

    Args:
        checkpoint: the component.
        file_digests: SHA-256 of each of `checkpoint.files`, or what stands for it in the table of weights.
    """
    found = adapt(
        checkpoint.component,
        checkpoint.library,
        checkpoint.class_name,
        checkpoint.config,
        checkpoint.shapes,
        original=checkpoint.original,
    )
    return found.network, bind(found, checkpoint, file_digests)


def adapt(
    component: str,
    library: str,
    class_name: str,
    config: Config,
    shapes: Mapping[str, Shape],
    original: str | None = None,
) -> Adaptation:
    """Return architecture and name table of a stored component.

    Raises `SourceError` if the class is unknown, not supported or refuses the config, a parameter has no stored tensor,
    or shapes differ.

    Args:
        component: name within the pipeline, such as `vae_decoder`.
        library: as in `model_index.json`.
        class_name: as in `model_index.json`.
        config: the raw `config.json`.
        shapes: stored name → shape.
        original: the converter of `Checkpoint.original`, for stored names of the original (LDM) code.

    Returns:
        An `Adaptation` whose architecture has library `diffusers` or `transformers`, the one that loads the
        class: the safety checker, kept in diffusers, is a transformers model.
    """
    network_class = _find_class(component, library, class_name)
    check_network(component, class_name, config)
    projection = config.get("image_projection") if component == IMAGE_ENCODER else None
    if projection is not None:
        return _with_projection(adapt(component, library, class_name, *_apart(config, shapes)), projection, shapes)
    views = (
        {name: StoredView(name, shape) for name, shape in shapes.items()}
        if original is None
        else convert_names(component, original, config, shapes)
    )
    loader, load = _loader(component, class_name, network_class)

    def refuse(error: Exception) -> SourceError:
        told = refused_config(component, class_name, error, from_one_file=original is not None)
        return SourceError(told)

    loading: Loading = load(network_class, config, {name: view.shape for name, view in views.items()}, refuse)
    if original is not None and (absent := STORED[original].absent):
        loading = replace(loading, missing=frozenset(n for n in loading.missing if not n.startswith(absent)))
    _check(component, class_name, loading, original)
    settings = {**loading.config, **own_marks(config)}
    architecture = Architecture(first_of_kind(component), loader, class_name, settings)
    names = {name: views[found] for name, found in sorted(loading.names.items())}
    unused = tuple(sorted(shapes.keys() - {view.name for view in names.values()}))
    return Adaptation(architecture, names, unused)


def _apart(config: Config, shapes: Mapping[str, Shape]) -> tuple[Config, dict[str, Shape]]:
    """Return config and tensors of an image encoder without those of an IP-Adapter's projection."""
    own = {name: value for name, value in config.items() if name != "image_projection"}
    return own, {name: shape for name, shape in shapes.items() if not name.startswith(IMAGE_PROJECTION)}


def _with_projection(encoder: Adaptation, projection: Config, shapes: Mapping[str, Shape]) -> Adaptation:
    """Return what an image encoder and a projection behind it are together."""
    from olivelike.sources.names.image_projection import find_projection

    added = find_projection(projection, shapes)
    config = {**encoder.network.config, "image_projection": projection}
    names = {**encoder.names, **added}
    unused = tuple(sorted(shapes.keys() - {view.name for view in names.values()}))
    return Adaptation(replace(encoder.network, config=config), names, unused)


def _find_class(component: str, library: str, class_name: str) -> Any:
    """Return the class that the index names, looked up as diffusers does."""
    try:
        with light_diffusers():
            import diffusers.pipelines
            import transformers

            homes = {"diffusers": diffusers, "transformers": transformers}
            return getattr(homes.get(library) or getattr(diffusers.pipelines, library), class_name)
    except AttributeError as error:
        home = f"the installed {library}" if library in homes else f"diffusers.pipelines.{library}"
        raise SourceError(
            f"{component}: {home} has no class {class_name}; a newer version of it may, "
            f"or drop {component} from `components:`"
        ) from error


def _loader(component: str, class_name: str, network_class: Any) -> tuple[str, Any]:
    """Return the library that loads a class, and how it does."""
    import diffusers
    import transformers

    from olivelike.sources.names.loading import load_diffusers, load_transformers

    if isinstance(network_class, type):
        if issubclass(network_class, diffusers.ModelMixin):
            return "diffusers", load_diffusers
        if issubclass(network_class, transformers.PreTrainedModel):
            return "transformers", load_transformers
    raise SourceError(f"{component}: {class_name} is no network; drop {component} from `components:`")


def _check(component: str, class_name: str, loading: Loading, original: str | None) -> None:
    if loading.mismatched:
        rows = [
            f"{name}: {class_name} has {list(expected)}, the file {list(found)}"
            for name, (expected, found) in sorted(loading.mismatched.items())
        ]
        config, remedy = "config.json does", "get both files from the same source"
        if original is not None:
            config, remedy = "the family's config does", "the file is damaged or of another network"
        raise SourceError(
            f"{component}: {config} not match the weights in {len(rows)} tensors: {_first(rows)}; {remedy}"
        )
    if loading.missing:
        raise SourceError(
            f"{component}: {len(loading.missing)} parameters of {class_name} are not in the weight files: "
            f"{_first(sorted(loading.missing))}; the files are incomplete or of another network"
        )


def _first(rows: list[str]) -> str:
    rest = len(rows) - _LISTED
    return "; ".join(rows[:_LISTED]) + (f"; and {rest} more" if rest > 0 else "")


def convert_names(component: str, original: str, config: Config, shapes: Mapping[str, Shape]) -> dict[str, StoredView]:
    """Return where each name of diffusers or transformers lies in the stored tensors.

    Raises `SourceError` if the converter fails on the names, or makes what is no view of one stored tensor.

    Args:
        component: for messages.
        original: way in which they are stored, of `STORED`.
        config: the network's `config.json`.
        shapes: stored name → shape, of one network.
    """
    import torch
    from diffusers.utils import logging

    way = STORED[original]
    prefix = way.prefix_of(shapes)
    probes = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    renamed = {way.expected + name.removeprefix(prefix): probe for name, probe in probes.items()}
    views_for_copies, joined = _views_for_copies()
    with quiet(logging), views_for_copies:
        try:
            converted = way.to_library(config, renamed)
        except (KeyError, IndexError, AttributeError, RuntimeError, ValueError) as error:
            raise SourceError(
                f"{component}: diffusers can't convert the stored names ({error!r}); the file is incomplete or "
                "of another network"
            ) from error
    storages = {_storage(probe): name for name, probe in probes.items()}
    views: dict[str, StoredView] = {}
    for name, tensor in converted.items():
        if tensor is None:
            continue
        view = _view(storages, tensor) or _swapped(storages, joined.get(_storage(tensor), ()), tuple(tensor.shape))
        if view is None:
            raise SourceError(
                f"{component}: diffusers computes {name} from the stored tensors; convert the file to a diffusers "
                "folder first"
            )
        views[name] = view
    return views


def _views_for_copies() -> tuple[Any, dict[int, Sequence[torch.Tensor]]]:
    """Return a mode in which a copy of a tensor is the tensor itself, and what is joined in it by the result."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class ViewsForCopies(TorchDispatchMode):  # type: ignore[misc]  # torch is not type-checked here
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            if function is torch.ops.aten.clone.default:
                return torch.ops.aten.alias.default(args[0])
            if function is not torch.ops.aten.cat.default:
                return function(*args, **(kwargs or {}))
            pieces = list(args[0])
            if len(pieces) == 1:
                return torch.ops.aten.alias.default(pieces[0])
            result = function(*args, **(kwargs or {}))
            joined[_storage(result)] = pieces
            kept.append(result)  # Its storage's number is no other one's then.
            return result

    joined: dict[int, Sequence[torch.Tensor]] = {}
    kept: list[torch.Tensor] = []
    return ViewsForCopies(), joined


def _storage(tensor: torch.Tensor) -> int:
    number: int = tensor.untyped_storage()._cdata  # noqa: SLF001
    return number


def _swapped(storages: Mapping[int, str], pieces: Sequence[torch.Tensor], shape: tuple[int, ...]) -> StoredView | None:
    """Return two pieces, rows of a stored tensor that follow each other, as one view that begins with the second."""
    views = [_view(storages, piece) for piece in pieces]
    match views:
        case [StoredView(transposed=False) as last, StoredView(transposed=False) as first]:
            follow = first.name == last.name and first.start + math.prod(first.shape) == last.start
            rows = first.shape[0] + last.shape[0] if first.shape else 0
            if follow and shape == (rows, *first.shape[1:]):
                return StoredView(first.name, shape, first.start, rolled=first.shape[0])
    return None


def _view(storages: Mapping[int, str], tensor: torch.Tensor) -> StoredView | None:
    """Return a tensor as a part in one piece of a stored one; `None` if it is none."""
    stored = storages.get(_storage(tensor))
    if stored is None:
        return None
    shape, start = tuple(tensor.shape), tensor.storage_offset()
    if tensor.is_contiguous():
        return StoredView(stored, shape, start)
    if len(shape) == 2 and tensor.T.is_contiguous():
        return StoredView(stored, shape, start, transposed=True)
    return None
