"""Asking diffusers and transformers what a stored checkpoint means to them; run it in a worker.

Names are mapped by the libraries' own loading code, fed with tensors of the stored names and shapes that take
no memory (one element, stride 0) and whose value says which they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from olivelike.errors import SourceError
from olivelike.model import Architecture, Weights
from olivelike.model.supported import check_network, refused_config
from olivelike.sources.names.adaptation import Adaptation, StoredView, bind
from olivelike.sources.names.original_names import convert_names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from olivelike.model.architecture import Config
    from olivelike.sources.checkpoint import Checkpoint
    from olivelike.sources.names.loading_result import Loading, Shape

_LISTED = 10


def read_network(checkpoint: Checkpoint, file_digests: Mapping[Path, str]) -> tuple[Architecture, Weights]:
    """Return architecture and weights of a component that its source stores for torch.

    Args:
        checkpoint: the component.
        file_digests: SHA-256 of each of `checkpoint.files`, or what stands for it in the table of weights.

    Raises:
        SourceError: as `adapt`.
    """
    found = adapt(
        checkpoint.component,
        checkpoint.library,
        checkpoint.class_name,
        checkpoint.config,
        checkpoint.shapes,
        original=checkpoint.original,
    )
    assert found.architecture is not None
    return found.architecture, bind(found, checkpoint, file_digests)


def adapt(
    component: str,
    library: str,
    class_name: str,
    config: Config,
    shapes: Mapping[str, Shape],
    original: str | None = None,
) -> Adaptation:
    """Return architecture and name table of a stored component.

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

    Raises:
        SourceError: if the class is unknown, not supported or refuses the config, a parameter has no stored tensor, or
            shapes differ.
    """
    network_class = _find_class(component, library, class_name)
    check_network(component, class_name, config)
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
    _check(component, class_name, loading, original)
    architecture = Architecture(component, loader, class_name, loading.config)
    names = {name: views[found] for name, found in sorted(loading.names.items())}
    unused = tuple(sorted(shapes.keys() - {view.name for view in names.values()}))
    return Adaptation(architecture, names, unused)


def _find_class(component: str, library: str, class_name: str) -> Any:
    """Return the class that the index names, looked up as diffusers does."""
    import diffusers.pipelines
    import transformers

    homes = {"diffusers": diffusers, "transformers": transformers}
    try:
        return getattr(homes.get(library) or getattr(diffusers.pipelines, library), class_name)
    except AttributeError as error:
        home = f"the installed {library}" if library in homes else f"diffusers.pipelines.{library}"
        raise SourceError(
            f"{component}: {home} has no class {class_name}; a newer version of it may, "
            f"or drop {component} from `components:`",
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
            f"{component}: {config} not match the weights in {len(rows)} tensors: {_first(rows)}; {remedy}",
        )
    if loading.missing:
        raise SourceError(
            f"{component}: {len(loading.missing)} parameters of {class_name} are not in the weight files: "
            f"{_first(sorted(loading.missing))}; the files are incomplete or of another network",
        )


def _first(rows: list[str]) -> str:
    rest = len(rows) - _LISTED
    return "; ".join(rows[:_LISTED]) + (f"; and {rest} more" if rest > 0 else "")
