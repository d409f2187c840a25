"""The value that states a family's facts, for every room that draws, converts or tells files apart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from olivelike.model.architecture import Architecture
    from olivelike.model.families import Prediction

Owns = Callable[[Mapping[str, Any], Collection[str], Mapping[str, Any]], bool]


@dataclass(frozen=True)
class TextPart:
    """A text encoder of a family, and what the denoiser takes of it."""

    component: str
    tokenizer: str
    """Folder of its tokenizer."""
    width: int
    """Numbers of each of its vectors in the published network."""
    kind: Literal["clip"] = "clip"
    """How texts become tokens: CLIP's have emphasis, chunks of `length` and a token at either end."""
    length: int = 77
    """Tokens of a chunk, with those at its ends."""
    back: int = 0
    """How many layers before the last one the states lie that the denoiser was trained on."""
    normed: bool = True
    """Whether states of an earlier layer pass the norm behind the last one."""


@dataclass(frozen=True)
class Latents:
    """What a VAE makes of pictures."""

    channels: int
    factor: int
    """Pixels per latent, along one side."""
    scaling: float
    """Factor of latents behind the VAE's encoder."""
    preview: tuple[tuple[float, float, float], ...]
    """Channel → red, green and blue: a linear fit to what the decoder makes, from -1 to 1.

    https://discuss.huggingface.co/t/decoding-latents-to-rgb-without-upscaling/23204
    """
    shift: float = 0.0
    """Number that is taken from latents before they are scaled."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of pictures, in pixels."""

    default: int
    """Height and width that the denoiser was trained on."""
    unit: int
    """Common divisor of the sides that the published denoiser takes."""


@dataclass(frozen=True)
class HalfPolicy:
    """What of a network stays in float32, and why; `reason` goes into the run record."""

    whole: bool = False
    """The whole graph stays in float32."""
    operators: tuple[str, ...] = ()
    """Operator types that stay in float32."""
    reason: str = ""


PictureNumbers = Callable[[int, int], tuple[tuple[float, ...], tuple[float, ...]]]
"""Width and height → `time_ids` for prompts, and for negative prompts."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """The facts of one family."""

    name: str
    title: str
    pipelines: tuple[str, ...]
    """Classes of diffusers: from text, and for inpainting."""
    owns: Owns
    """Tells from index, components and denoiser's config whether a pipeline's folder is of this family."""
    denoiser: str
    """Component that is called at each step."""
    texts: tuple[TextPart, ...]
    """In the order in which their vectors are joined."""
    latents: Latents
    sizes: Sizes
    widths: tuple[int, ...]
    """Channels of each level of the published denoiser."""
    prediction: Prediction = "epsilon"
    """Meaning of the denoiser's output, unless a file says otherwise."""
    guidance: float = 7.5
    """Default of `guidance_scale`."""
    half: Callable[[Architecture], HalfPolicy | None] = lambda architecture: None  # noqa: ARG005
    """Default for one of its networks; `None` if all of it can be in half precision."""
    pooled: bool = False
    """Whether the denoiser also takes a text as one vector, `text_embeds`."""
    picture_numbers: PictureNumbers | None = None
    """Numbers of a picture that the denoiser takes beside the text."""
    begins_at_once: bool = False
    """Whether diffusers' pipeline tells the scheduler that it begins at its first timestep."""
    zeros_for_no_text: bool = False
    """Whether `force_zeros_for_empty_prompt` of an index is followed."""
    guides: frozenset[str] = frozenset()
    """Kinds of guides whose inputs its denoiser has joints for."""
    caches: frozenset[str] = frozenset()
    """Passes that let steps between whole ones run a part of its denoiser."""

    @property
    def text_width(self) -> int:
        """Width of the prompt's vectors that the denoiser attends to: those of all text encoders, joined."""
        return sum(text.width for text in self.texts)

    @property
    def networks(self) -> tuple[str, ...]:
        """Components that each pipeline of the family has."""
        return (*(text.component for text in self.texts), self.denoiser, "vae_decoder", "vae_encoder")

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of the networks in a pipeline of torch, but for a safety checker."""
        return (self.denoiser, "vae", *(text.component for text in self.texts))
