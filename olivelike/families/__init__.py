"""Families of pipelines: a file for each states all that is particular to it, and this one finds the right file.

Everything else asks the value `Family` and knows no family by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

from olivelike.errors import SourceError
from olivelike.families import flux, flux2, qwen_image, refiner, sd1, sd2, sd3, sdxl, z_image
from olivelike.families.family import Blocks, Family, HalfPolicy
from olivelike.model.components import INDEX_FILE, PREVIEW, SAFETY_CHECKER, VAES
from olivelike.model.guides import GUIDE_COMPONENTS

if TYPE_CHECKING:
    from olivelike._untrusted import JsonView
    from olivelike.model.architecture import Architecture

FAMILIES: Final[Mapping[str, Family]] = {
    module.FAMILY.name: module.FAMILY for module in (sd1, sd2, sdxl, refiner, sd3, flux, flux2, z_image, qwen_image)
}
"""Name → family; where two could be meant, the earlier one is."""

TEXT_ENCODERS: Final = tuple(dict.fromkeys(text.component for one in FAMILIES.values() for text in one.texts))
DENOISERS: Final = tuple(dict.fromkeys(family.denoiser for family in FAMILIES.values()))
"""Components that are called at each step; a pipeline has one of them."""
COMPONENTS: Final = (
    *TEXT_ENCODERS, *DENOISERS, *GUIDE_COMPONENTS, *VAES, SAFETY_CHECKER, PREVIEW,
)  # fmt: skip
"""All networks, by the names of their folders, in the order of workflows."""
TEXT_TO_PICTURE: Final = (*TEXT_ENCODERS, *DENOISERS, "vae_decoder")
"""Networks that a picture takes, if there is no other picture to begin with."""
LORA_COMPONENTS: Final = (*TEXT_ENCODERS, *DENOISERS)
"""Networks that LoRAs change."""
COMPUTED: Final = {"int8": DENOISERS, "fp8": DENOISERS}
"""Components that a quantising pass is for, by precision, if not for all: the others take little time."""
TOKENIZER_OF: Final = {text.component: text.tokenizer for one in FAMILIES.values() for text in one.texts}
"""Text encoder → its tokenizer."""
TOKENIZERS: Final = tuple(TOKENIZER_OF.values())
"""Components that are no networks: their vocabulary can be an ONNX model, too."""


def family_of_index(index: JsonView) -> Family | None:
    """Return the first family whose denoiser an index names by its class; `None` if it is of none that is known."""
    named = ((family, index.get(family.denoiser)) for family in FAMILIES.values())
    return next((one for one, entry in named if isinstance(entry, list) and entry[-1] == one.denoiser_class), None)


def denoiser_among(names: Collection[str]) -> str | None:
    """Return the denoiser among names of components; `None` if there is none."""
    return next((name for name in DENOISERS if name in names), None)


def missing_networks(names: Collection[str]) -> list[str]:
    """Return what every picture takes and is not among these components: a denoiser, the VAE's decoder."""
    missing = [] if denoiser_among(names) else [DENOISERS[0]]
    return missing if "vae_decoder" in names else [*missing, "vae_decoder"]


def denoisers_with(joints: str) -> tuple[str, ...]:
    """Return the denoisers with joints for a kind of guides, or for a pass that lets steps run a part of them."""
    having = (family.denoiser for family in FAMILIES.values() if joints in family.caches | family.guides)
    return tuple(dict.fromkeys(having))


def family_of_text_width(width: int) -> str | None:
    """Return the family whose denoiser attends to prompt vectors of this width; `None` if it is of none."""
    return next((name for name, family in FAMILIES.items() if family.text_key and family.text_width == width), None)


def family_of_folder(index: JsonView, components: Collection[str], denoiser: JsonView) -> Family:
    """Return the family of a pipeline's folder: the first that takes it for its own, of those that its class names.

    Folders of other exporters may lack each of these; what tells nothing is of Stable Diffusion 1.x. Raises
    `SourceError` if the index names a pipeline of another denoiser than there is.

    Args:
        index: Content of `model_index.json`; may be empty.
        components: Names of the networks that are there.
        denoiser: Config of the denoiser; may be empty.
    """
    # Pipelines of ONNX models are named after those of torch.
    name = str(index.get("_class_name")).removeprefix("Onnx").removeprefix("ORT")
    named = [family for family in FAMILIES.values() if name in family.pipelines]
    owners = (family for family in (*named, *FAMILIES.values()) if family.owns(index, components, denoiser))
    found = next(owners, FAMILIES["sd1"])
    entry = index.get(found.denoiser)
    told = str(denoiser.get("_class_name", entry[-1] if isinstance(entry, list) and entry else None))
    if named and found.denoiser_class != told and told in {family.denoiser_class for family in FAMILIES.values()}:
        raise SourceError(
            f"{INDEX_FILE} names {name}, whose {found.denoiser} is a {found.denoiser_class}, and here it is a {told}; "
            "get all parts from the same pipeline"
        )
    return replace(found, **varied) if (varied := found.variant(index, denoiser)) else found


def blocks_for(quantising: str) -> Blocks:
    """Return the blocks in the networks of all families that a quantising pass treats apart."""
    each = [family.blocks[quantising] for family in FAMILIES.values() if quantising in family.blocks]

    def named(kind: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(block for blocks in each for block in getattr(blocks, kind)))

    return Blocks(**{one.name: named(one.name) for one in fields(Blocks)})


def half_policy(architecture: Architecture) -> HalfPolicy:
    """Return the default for one network: what of it stays in float32 by what its family says."""
    named = architecture.class_name
    streams = next((one.streams[named] for one in FAMILIES.values() if named in one.streams), ())
    return next(filter(None, (one.half(architecture) for one in FAMILIES.values())), HalfPolicy(streams=streams))
