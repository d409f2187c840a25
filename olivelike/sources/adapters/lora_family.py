"""For which family of networks a LoRA was made, by its names and shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike.errors import SourceError
from olivelike.model.families import FAMILIES, FamilyName, family_of_text_width

if TYPE_CHECKING:
    from collections.abc import Iterable

    from olivelike.sources.adapters.lora_file import LoraFile, LoraModule

_SGM = ("input_blocks_", "middle_block_", "output_blocks_")
_SECOND_WIDTH = FAMILIES["sdxl"].text_encoders["text_encoder_2"]
_PROMPT_READERS = ("attn2_to_k", "attn2_to_v", "attn2.to_k", "attn2.to_v",
                   "attn2.processor.to_k", "attn2.processor.to_v")  # fmt: skip
_TEXT_INPUTS = ("_q_proj", ".q_proj", "_k_proj", ".k_proj", "_v_proj", ".v_proj", "self_attn.to_q",
                "self_attn.to_k", "self_attn.to_v", "_fc1", ".fc1")  # fmt: skip


def cross_attention_dim_of(modules: Iterable[LoraModule]) -> int | None:
    """Return the width of the prompt's vectors that the UNet's modules read; `None` if none reads them."""
    readers = [m for m in modules if m.component == "unet" and m.path.endswith(_PROMPT_READERS)]
    return readers[0].columns if readers else None


def family_of(modules: Iterable[LoraModule]) -> FamilyName | None:
    """Return `sd1`, `sd2`, `sdxl` or `sdxl_refiner`; `None` if names and shapes don't tell."""
    known = list(modules)
    width = cross_attention_dim_of(known)
    if width is not None:
        return family_of_text_width(width)
    names = [module.name for module in known]
    if any(name.startswith("lora_te1_") for name in names) or any(
        m.component == "text_encoder_2" for m in known
    ):
        return "sdxl"
    # Trainers name the UNet's blocks so for XL alone; for 1.x and 2.x they use diffusers' names.
    if any(m.component == "unet" and m.path.startswith(_SGM) for m in known):
        return "sdxl"
    texts = {m.columns for m in known if m.component == "text_encoder" and m.path.endswith(_TEXT_INPUTS)}
    if FAMILIES["sd2"].text_width in texts:
        return "sd2"
    # 768 is the width of 1.x's encoder and of XL's first one; only this prefix tells them apart.
    if FAMILIES["sd1"].text_width in texts and any(name.startswith("lora_te_") for name in names):
        return "sd1"
    return None


def is_second_encoder(modules: Iterable[LoraModule], base_class: str | None) -> bool:
    """Tell whether modules that name no network are of XL's second text encoder: a projection, or width 1280."""
    if base_class is not None and base_class.endswith("TextModelWithProjection"):
        return True
    return any(
        m.path.startswith("text_projection") or (m.path.endswith(_TEXT_INPUTS) and m.columns == _SECOND_WIDTH)
        for m in modules
    )


def check_family(lora: LoraFile, cross_attention_dim: int, where: str) -> None:
    """Check from headers alone that a LoRA was made for a UNet of this width.

    Args:
        lora: the file.
        cross_attention_dim: width of the prompt's vectors in the UNet's config: 768, 1024, 2048, …
        where: the source in words, for the message.

    Raises:
        SourceError: if it was made for another family.
    """
    made_for = lora.cross_attention_dim
    if made_for is None and lora.family is not None and family_of_text_width(cross_attention_dim):
        made_for = FAMILIES[lora.family].text_width
    if made_for is None or made_for == cross_attention_dim:
        return
    raise SourceError(
        f"{lora.path}: this LoRA is for {_title(made_for)}, and {where} is {_title(cross_attention_dim)}; "
        "use a LoRA and a source of one family",
    )


def _title(width: int) -> str:
    family = family_of_text_width(width)
    prompt = f"prompt vectors of width {width}"
    return f"{FAMILIES[family].title} ({prompt})" if family else f"a network with {prompt}"
