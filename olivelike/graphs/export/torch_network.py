"""Networks as torch modules whose `forward` has a component's interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from olivelike._light_diffusers import light_diffusers
from olivelike.errors import PassError
from olivelike.families.network import stored_values
from olivelike.families.networks import network_of
from olivelike.families.networks.unet import IMAGE_PROMPT
from olivelike.families.supported import REFUSALS, refused_config

if TYPE_CHECKING:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from olivelike.model import Architecture

PREFIX = "network."
"""Beginning of a wrapped module's parameter names; the rest is the library's own name."""


def build_network(architecture: Architecture) -> torch.nn.Module:
    """Build the library's network with its parameters on the meta device and its buffers real.

    Raises `PassError` when the library has no such class, or refuses the config.
    """
    from accelerate import init_empty_weights

    network_class = find_class(architecture)
    try:
        with init_empty_weights(include_buffers=False):
            network = _instantiate(network_class, architecture)
    except REFUSALS as error:
        raise PassError(refused_config(architecture.component, architecture.class_name, error)) from error
    return network.eval()


def find_class(architecture: Architecture) -> type[torch.nn.Module]:
    """Return the torch class that the architecture names."""
    with light_diffusers():
        import diffusers
        import transformers
        from diffusers.pipelines.stable_diffusion import safety_checker

        homes: tuple[Any, ...] = (diffusers, safety_checker, transformers)
        for home in homes:
            found: type[torch.nn.Module] | None = getattr(home, architecture.class_name, None)
            if found is not None:
                return found
    raise PassError(
        f"{architecture.component}: neither diffusers nor transformers has a class "
        f"{architecture.class_name!r}; a newer version may"
    )


def _instantiate(network_class: Any, architecture: Architecture) -> Any:
    config = dict(architecture.config)
    config.pop(IMAGE_PROMPT, None)
    known = network_of(architecture.component, architecture.class_name)
    if architecture.library == "diffusers":
        network = network_class.from_config(config)
    else:
        network = network_class(network_class.config_class.from_dict(config))
    if known is not None:
        network = known.prepare(network, architecture.config)
    if (projection := config.get("image_projection")) is not None:
        from olivelike.sources.names.image_projection import build_projection

        network.image_projection = build_projection(projection)
    return network


def replace_stored_by_fakes(network: torch.nn.Module, mode: FakeTensorMode) -> None:
    """Put fake CPU tensors in place of all that files store: they trace like real ones and take no memory."""
    import torch

    stored = {id(value) for value in stored_values(network).values()}
    fakes: dict[int, torch.Tensor] = {}
    with mode:
        for module in network.modules():
            for held in (module._parameters, module._buffers):  # noqa: SLF001  (setattr would check devices)
                for name, value in held.items():
                    if value is None or id(value) not in stored:
                        continue
                    if id(value) not in fakes:
                        empty = torch.empty(value.shape, dtype=value.dtype, device="cpu")
                        is_parameter = isinstance(value, torch.nn.Parameter)
                        fakes[id(value)] = torch.nn.Parameter(empty, requires_grad=False) if is_parameter else empty
                    held[name] = fakes[id(value)]


def wrap(component: str, network: torch.nn.Module) -> torch.nn.Module:
    """Return a module that takes and returns a component's inputs and outputs, as tensors in order."""
    import torch

    known = network_of(component, type(network).__name__)
    assert known is not None, "its interface was asked for before"
    wrapper: torch.nn.Module = type("Wrapper", (torch.nn.Module,), {"forward": known.forward(network)})()
    wrapper.network = network
    return wrapper.eval()
