"""What a size far beyond a UNet's own will take, told before it is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from olivelike.cli.display.text import size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from olivelike.runtime import Request
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder

_LARGE: Final = 4
"""Times the UNet's own area: 1024x1024 for SD 1.5, up to which people enlarge pictures and wait."""
_EXACT: Final = 1000
"""From here on three digits would be written with an exponent."""
_FLOAT: Final = 4
_DECODER_CHANNELS: Final = (128, 256)
"""Of a VAE without a config."""


def size_notes(requests: Iterable[Request], folder: PipelineFolder) -> Iterator[str]:
    """Return a line for each size of more than four times the area that the UNet was trained on.

    The UNet's convolutions take time by the area and its self-attention by the square of it, so that the ratio of the
    areas is the least, and its square the most. The VAE decoder holds two tensors at full size before its last
    convolutions, in float32.
    """
    import psutil

    own, free = folder.default_size, psutil.virtual_memory().available
    for wanted, pictures in dict.fromkeys(
        (_known(request), _decoded_at_once(request)) for request in requests
    ):
        times = wanted[0] * wanted[1] / (own[0] * own[1])
        if times > _LARGE:
            channels = sum((list(folder.vae.get("block_out_channels") or _DECODER_CHANNELS) * 2)[:2])
            memory = pictures * wanted[0] * wanted[1] * channels * _FLOAT
            yield (
                f"{wanted[0]}x{wanted[1]} is {_told(times)} times the area that this UNet was trained on "
                f"({own[0]}x{own[1]}): a step takes at least {_told(times)} times as long, and up to "
                f"{_told(times * times)} times (convolutions grow with the area, self-attention with its square), the "
                f"VAE decoder at least {size(memory)} of memory ({size(free)} are free), and what is shown "
                "often repeats"
            )


def _told(times: float) -> str:
    return f"{times:.3g}" if times < _EXACT else f"{times:,.0f}"


def _known(request: Request) -> tuple[int, int]:
    assert request.size is not None
    return request.size


def _decoded_at_once(request: Request) -> int:
    return 1 if request.decode_singly else min(request.batch_size, len(request.jobs))
