"""The identity of a weight file, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from olivelike._untrusted import Json
from olivelike.families import DENOISERS
from olivelike.families.networks import STORED
from olivelike.families.networks.unet import COMPONENT
from olivelike.model.components import Prediction
from olivelike.model.few_steps import FewSteps
from olivelike.model.guides import GUIDES

Kind: TypeAlias = str
"""One of `_KINDS`; of a network alone it is the name of its component."""
Naming = Literal["original", "diffusers"]

PLACES: dict[Kind, str] = {
    "checkpoint": "name it as `source:`",
    "vae": "name it as `vae:` beside a `source:`",
    "text_encoder": "name it beside its transformer, as --part text_encoder=FILE or in `source:`",
    "lora": "name it under `loras:`",
    "embedding": "name it under `embeddings:`",
    **{kind.name: kind.place for kind in GUIDES.values()},
}
"""Place in a workflow of a file of each kind."""
_KINDS: dict[Kind, str] = {
    "checkpoint": "a checkpoint",
    **{name: "a UNet alone" if name == COMPONENT else f"a {name} alone" for name in DENOISERS},
    "vae": "a VAE",
    "text_encoder": "a text encoder",
    "lora": "a LoRA",
    "embedding": "an embedding (textual inversion)",
    **{kind.name: kind.one for kind in GUIDES.values()},
    "unknown": "of no kind that is known",
}


@dataclass(frozen=True)
class Part:
    """A component's tensors within a file of original (LDM) names."""

    folder: str
    """As in a pipeline folder: `unet`, `vae`, `text_encoder`, `text_encoder_2`."""
    converter: str
    """Way in which its names are stored, by the name of a `Stored`."""
    prefix: str
    """Beginning of the names of its tensors."""

    @property
    def beginnings(self) -> tuple[str, ...]:
        """Beginnings by which its tensors are told from others in the file."""
        return (self.prefix,) if self.prefix else STORED[self.converter].roots or ("",)


@dataclass(frozen=True)
class Precision:
    """How a file stores its values."""

    dominant: str
    """Dtype of most values, as safetensors names it."""
    elements: Mapping[str, int]
    """Number of values by dtype, of all tensors."""

    @property
    def mixed(self) -> bool:
        """Tell whether more than one floating dtype occurs."""
        return sum(name.startswith(("F", "BF")) for name in self.elements) > 1


_UNREAD = Precision("", {})


@dataclass(frozen=True)
class Identity:
    """Kind and family of a file, judged by names, shapes and metadata of its tensors, never by the file's name."""

    kind: Kind
    family: str | None = None
    network: str = ""
    """In words: `Stable Diffusion XL`, `FLUX`, …"""
    supported: bool = True
    """False for a network that is known by name and can't be opened."""
    naming: Naming | None = None
    inpainting: bool = False
    prediction: Prediction | None = None
    """Prediction of its UNet, as the file says it; `None` if it does not say."""
    expected_prediction: Prediction | None = None
    """`prediction`, else what the family's networks predict; `None` without a UNet."""
    zero_snr: bool = False
    """The file says that it was trained with zero terminal signal-to-noise ratio."""
    parts: tuple[Part, ...] = ()
    """The components, for original names."""
    precision: Precision = _UNREAD
    few_steps: FewSteps | None = None
    """Kind of few-step model that it is, by structure or metadata."""
    edm: bool = False
    """It was trained as EDM, and holds mean and deviation of its latents, as Playground 2.5."""
    reasons: tuple[str, ...] = ()
    """Evidence for each finding, for a person."""

    def part(self, folder: str) -> Part | None:
        """Return the part that goes into a folder of the pipeline; `None` if the file lacks it."""
        return next((part for part in self.parts if part.folder == folder), None)

    @property
    def description(self) -> str:
        """The file in a few words: `a LoRA for Stable Diffusion XL`."""
        words = _KINDS[self.kind] + (" for inpainting" if self.inpainting else "")
        return f"{words} of {self.network}" if self.network else words

    @property
    def misplaced(self) -> str:
        """Begin to say that the file is not what was asked for: what it is, why that does not do, where it belongs."""
        why = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        place = f"{PLACES[self.kind]}; " if self.kind in PLACES and self.supported else ""
        return f"this is {self.description}{why}; {place}"

    def to_json(self) -> Json:
        """Return the findings as JSON values."""
        return {**asdict(self), "parts": [part.folder for part in self.parts], "reasons": list(self.reasons)}
