"""Results of a library's loading code for stored names and shapes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from olivelike.model.architecture import Config

Shape = tuple[int, ...]

# Above what a library fills missing parameters with, and exact in float32 with 2²⁰ tensors on top.
_FIRST = 1 << 22


@dataclass(frozen=True)
class Loading:
    """Parameters by what became of them."""

    config: Config
    """Defaults filled in, stray keys left out."""
    names: Mapping[str, str]
    """Found: parameter → stored name."""
    missing: frozenset[str]
    mismatched: Mapping[str, tuple[Shape, Shape]]
    """Parameter → its own shape and that of the stored tensor."""


def make_probes(shapes: Mapping[str, Shape]) -> dict[str, torch.Tensor]:
    """Return a tensor for each stored one: its shape, its position as value, one element of memory."""
    import torch

    return {name: torch.tensor(float(_FIRST + i)).expand(shape) for i, (name, shape) in enumerate(shapes.items())}


def identify(tensor: torch.Tensor, stored: list[str]) -> str | None:
    """Return the stored name that a probe stands for; `None` if `tensor` is no probe."""
    if tensor.is_meta or tensor.numel() == 0 or any(tensor.stride()):
        return None
    position = int(tensor.reshape(-1)[0]) - _FIRST
    return stored[position] if 0 <= position < len(stored) else None


@contextlib.contextmanager
def quiet(logging: Any) -> Iterator[None]:
    """Silence a library's remarks about keys that it ignores; what matters is raised as an error."""
    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
