"""What a stored name of a LoRA file means: module, role, spelling, component, adapter.

| spelling | example |
| --- | --- |
| `kohya` | `lora_unet_mid_block_attentions_0_proj_in.lora_down.weight`, LyCORIS's `hada_*` and `lokr_*` |
| `diffusers_old` | `unet.….attn1.processor.to_q_lora.down.weight` |
| `diffusers_mid` | `unet.….to_q.lora.down.weight`, `text_encoder.….q_proj.lora_linear_layer.down.weight` |
| `peft` | `unet.….to_q.lora_A.weight` |
| `peft_native` | `base_model.model.….to_q.lora_A.weight` |
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from olivelike.model.components import LORA_COMPONENTS

_KOHYA = {
    "lora_unet_": "unet",
    "lora_te_": "text_encoder",
    "lora_te1_": "text_encoder",
    "lora_te2_": "text_encoder_2",
}
NATIVE_PREFIX = "base_model.model."
_UNET_ROOTS = frozenset(
    {"down_blocks", "mid_block", "up_blocks", "conv_in", "conv_out", "time_embedding", "add_embedding"},
)
_TEXT_ROOTS = frozenset({"text_model", "encoder", "text_projection"})

_ADAPTER = r"(?:\.(?P<adapter>(?!weight$)[^.]+))?"
_PATTERNS = tuple(
    (re.compile(pattern), spelling)
    for pattern, spelling in (
        (rf"(?P<module>.+)\.lora_(?P<role>A|B){_ADAPTER}\.weight", "peft"),
        (rf"(?P<module>.+)\.lora_(?P<role>magnitude)_vector{_ADAPTER}(?:\.weight)?", "peft"),
        (r"(?P<module>.+)\.lora_(?P<role>down|up|mid)\.weight", "diffusers_mid"),
        (r"(?P<module>.+)_lora\.(?P<role>down|up)\.weight", "diffusers_old"),
        (r"(?P<module>.+)\.(?:lora|lora_linear_layer)\.(?P<role>down|up)\.weight", "diffusers_mid"),
        (rf"(?P<module>.+)\.(?P<role>hada_(?:w[12]_[ab]|t[12])|lokr_(?:w[12](?:_[ab])?|t2)){_ADAPTER}", "peft"),
        (r"(?P<module>.+?)(?:_lora|\.lora)?\.(?P<role>alpha|dora_scale)", ""),
    )
)  # fmt: skip
_ROLES = {"A": "down", "B": "up"}


@dataclass(frozen=True, slots=True)
class Key:
    """One stored name, taken apart."""

    stored: str
    module: str
    role: str
    spelling: str
    """Empty where the name alone does not tell: `alpha` and `dora_scale` of a dotted name."""
    component: str | None
    """`None` if the name belongs to no network that is known."""
    path: str
    adapter: str | None


def parse_key(stored: str) -> Key | None:
    """Take a stored name apart; `None` if it is no part of a LoRA."""
    for pattern, spelling in _PATTERNS:
        found = pattern.fullmatch(stored)
        if found is None:
            continue
        module, role = found["module"], _ROLES.get(found["role"], found["role"])
        component, path, prefix_spelling = _place(module)
        adapter = found.groupdict().get("adapter")
        return Key(stored, module, role, prefix_spelling or spelling, component, path, adapter)
    return None


def _place(module: str) -> tuple[str | None, str, str]:
    """Return component, path within it, and the spelling if the prefix tells it."""
    for prefix, component in _KOHYA.items():
        if module.startswith(prefix):
            return component, module.removeprefix(prefix), "kohya"
    spelling = "peft_native" if module.startswith(NATIVE_PREFIX) else ""
    path = module.removeprefix(NATIVE_PREFIX)
    root, _, rest = path.partition(".")
    if root in LORA_COMPONENTS and rest:
        return root, rest, spelling
    if root in _UNET_ROOTS:
        return "unet", path, spelling
    if root in _TEXT_ROOTS:
        return "text_encoder", path, spelling
    return None, path, spelling
