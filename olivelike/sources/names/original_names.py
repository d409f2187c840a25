"""Names of the original (LDM) code, mapped by diffusers' own converters without a tensor; run it in a worker.

The converters get tensors of the meta device, which have no bytes. Each stands for a stored tensor by its storage,
which views share; so a slice of q, k and v or a transpose is recognised by its offset and strides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from olivelike.errors import SourceError
from olivelike.sources.names.adaptation import StoredView
from olivelike.sources.names.loading_result import quiet

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from olivelike.model.architecture import Config
    from olivelike.sources.names.loading_result import Shape

# What a converter expects names to begin with, and what files have instead.
_PREFIXES = {
    "unet": ("model.diffusion_model.", ("model.diffusion_model.", "diffusion_model.")),
    "vae": ("first_stage_model.", ("first_stage_model.", "vae.")),
    "clip": (
        "cond_stage_model.transformer.",
        ("cond_stage_model.transformer.", "conditioner.embedders.0.transformer."),
    ),
    # Without a prefix the converter does not drop SD 2's layer 23, which a network of another size may have.
    "open_clip": (
        "",
        ("cond_stage_model.model.", "conditioner.embedders.0.model.", "conditioner.embedders.1.model."),
    ),
}


def convert_names(
    component: str, original: str, config: Config, shapes: Mapping[str, Shape]
) -> dict[str, StoredView]:
    """Return where each name of diffusers or transformers lies in the stored tensors.

    Args:
        component: for messages.
        original: the converter: `unet`, `vae`, `clip` or `open_clip`.
        config: the network's `config.json`.
        shapes: stored name → shape, of one network.

    Raises:
        SourceError: if the converter fails on the names, or makes what is no view of one stored tensor.
    """
    import torch
    from diffusers.utils import logging

    canonical, known = _PREFIXES[original]
    prefix = next((prefix for prefix in known if all(name.startswith(prefix) for name in shapes)), "")
    probes = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    storages = {probe.untyped_storage()._cdata: name for name, probe in probes.items()}  # noqa: SLF001
    renamed = {canonical + name.removeprefix(prefix): probe for name, probe in probes.items()}
    with quiet(logging), _views_for_copies():
        try:
            converted = _convert(original, config, renamed)
        except (KeyError, IndexError, AttributeError, RuntimeError) as error:
            raise SourceError(
                f"{component}: diffusers can't convert the stored names ({error!r}); the file is incomplete or "
                "of another network",
            ) from error
    views: dict[str, StoredView] = {}
    for name, tensor in converted.items():
        if tensor is None:
            continue
        stored = storages.get(tensor.untyped_storage()._cdata)  # noqa: SLF001
        view = _view(stored, tensor) if stored is not None else None
        if view is None:
            raise SourceError(
                f"{component}: diffusers computes {name} from the stored tensors; convert the file to a diffusers "
                "folder first",
            )
        views[name] = view
    return views


def _convert(
    original: str, config: Config, tensors: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor | None]:
    from types import SimpleNamespace

    from diffusers.loaders import single_file_utils as converters

    converted: dict[str, torch.Tensor | None]
    match original:
        case "unet":
            converted = converters.convert_ldm_unet_checkpoint(tensors, dict(config))
        case "vae":
            converted = converters.convert_ldm_vae_checkpoint(tensors, dict(config))
        case "clip":
            converted = converters.convert_ldm_clip_checkpoint(tensors)
        case "open_clip":
            network = SimpleNamespace(config=SimpleNamespace(hidden_size=config["hidden_size"]))
            converted = converters.convert_open_clip_checkpoint(network, tensors, prefix="")
        case _:
            raise ValueError(f"no converter {original!r}")
    return converted


def _views_for_copies() -> Any:
    """Return a mode in which a copy of a tensor is the tensor itself."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class ViewsForCopies(TorchDispatchMode):  # type: ignore[misc]  # torch is not type-checked here
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            if function is torch.ops.aten.clone.default:
                return torch.ops.aten.alias.default(args[0])
            return function(*args, **(kwargs or {}))

    return ViewsForCopies()


def _view(stored: str, tensor: torch.Tensor) -> StoredView | None:
    """Return a tensor as a part in one piece of the stored one; `None` if it is none."""
    shape, start = tuple(tensor.shape), tensor.storage_offset()
    if tensor.is_contiguous():
        return StoredView(stored, shape, start)
    if len(shape) == 2 and tensor.T.is_contiguous():
        return StoredView(stored, shape, start, transposed=True)
    return None
