"""A picture as a prompt: an IP-Adapter's image encoder makes tokens of it, which the UNet attends to beside the text.

As diffusers' pipelines with `load_ip_adapter`; several pictures are more tokens. https://arxiv.org/abs/2308.06721
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from olivelike.errors import UsageError
from olivelike.model.families import IMAGE_ENCODER, IMAGE_TOKENS, NO_IMAGE_TOKENS
from olivelike.runtime.pipeline.controls import MOST_STRENGTH, leaders
from olivelike.runtime.pipeline.safety import Preprocessing
from olivelike.runtime.pipeline.vae import upright

if TYPE_CHECKING:
    import torch

    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.pipeline.request import Request
    from olivelike.runtime.sessions.session import Network

_SIDE: Final = 224
_BICUBIC: Final = 3
_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_DEVIATION: Final = (0.26862954, 0.26130258, 0.27577711)
"""Of CLIP's training, defaults of `CLIPImageProcessor`."""
_MOST: Final = 16
"""Pictures of a request."""


def check_image_prompt(request: Request, folder: PipelineFolder) -> None:
    """Check the pictures that are a prompt.

    Raises `UsageError` for what can't be had, and `SourceError` if the folder's UNet takes no such tokens.
    """
    if not abs(request.ip_adapter_scale) <= MOST_STRENGTH:
        raise UsageError(
            f"ip_adapter_scale {request.ip_adapter_scale:g} is no number from {-MOST_STRENGTH} to {MOST_STRENGTH}"
        )
    if not request.ip_adapter_images:
        if request.ip_adapter_scale != 1:
            raise UsageError("ip_adapter_scale is given without a picture that it is about; give one, or drop it")
        return
    if len(request.ip_adapter_images) > _MOST:
        raise UsageError(f"{len(request.ip_adapter_images)} pictures are a prompt; take at most {_MOST}")
    if not folder.has(IMAGE_ENCODER):
        raise UsageError(
            f"{folder.path} has no IP-Adapter, which a picture as a prompt needs; name one as `ip_adapter:` in its "
            "workflow and run it again"
        )
    folder.led_denoiser(leaders(request, folder))
    if request.cache_interval > 1:
        raise UsageError(
            "cache_interval leaves out layers in which the UNet attends to a picture; take cache_interval 1 with "
            "ip_adapter_images"
        )


@dataclass(frozen=True, eq=False)
class ImagePrompt:
    """Tokens of pictures, and of none, each of shape (1, tokens, width)."""

    tokens: torch.Tensor
    negative: torch.Tensor
    """For negative prompts."""


def encode_image_prompt(request: Request, folder: PipelineFolder, network: Network) -> ImagePrompt:
    """Return the tokens of a request's pictures; `network` is the image encoder."""
    import torch

    side = folder.config(IMAGE_ENCODER).get("image_size", _SIDE)
    preprocessing = Preprocessing(side, (side, side), _BICUBIC, 1 / 255, (_MEAN, _DEVIATION))
    pixels = [torch.from_numpy(preprocessing.pixels(upright(image))) for image in request.ip_adapter_images]
    names = [name for name in (IMAGE_TOKENS, NO_IMAGE_TOKENS) if name in network.session.outputs]
    found = [_encode(network, one, names) for one in pixels]
    tokens = torch.cat([one[0] for one in found], dim=1)
    # Where no output says it, no picture is one of zeros, behind the preprocessing.
    nothing = found[0][1] if len(names) > 1 else _encode(network, torch.zeros_like(pixels[0]), names)[0]
    return ImagePrompt(tokens, nothing.repeat(1, len(pixels), 1))


def _encode(network: Network, pixels: torch.Tensor, names: Sequence[str]) -> list[torch.Tensor]:
    outputs: dict[str, tuple[int, ...]] = {}
    for name in names:
        _, tokens, width = network.output(name).dims
        outputs[name] = (1, int(tokens), int(width))
    call = network.prepare({"pixel_values": tuple(pixels.shape)}, outputs)
    call.inputs["pixel_values"].copy_(pixels)
    call.run()
    return [call.outputs[name].clone() for name in names]  # The buffers are used again.
