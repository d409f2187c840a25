"""Which layer of a network each module of a LoRA file changes.

Names other than the network's own are diffusers' business: a stand-in pair of one-element factors goes through its
converters for each module, one at a time. Its converters know plain LoRA alone, drop or refuse what else a file holds,
and judge all keys by the first or by a sample; one stand-in pair at a time is free of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING

from olivelike.errors import SourceError
from olivelike.sources.names.loading_result import quiet

if TYPE_CHECKING:
    from olivelike.model.architecture import Config
    from olivelike.sources.adapters.lora_file import LoraFile, LoraModule

_STAND_INS = {
    "kohya": (".lora_down.weight", ".lora_up.weight"),
    "diffusers_old": ("_lora.down.weight", "_lora.up.weight"),
    "diffusers_mid": (".lora.down.weight", ".lora.up.weight"),
    "peft": (".lora_A.weight", ".lora_B.weight"),
    "peft_native": (".lora_A.weight", ".lora_B.weight"),
}
_TEXT_STAND_INS = (".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight")
_TEXT_LEVEL = "text_model."
_LISTED = 5


def match_modules(
    component: str, config: Config, base: Mapping[str, tuple[int, ...]], lora: LoraFile
) -> dict[str, LoraModule]:
    """Return the modules of a component by the parameter that each changes.

    Args:
        component: `unet`, `text_encoder` or `text_encoder_2`.
        config: its config.
        base: parameter → shape.
        lora: the file.

    Raises:
        SourceError: if a module has no layer in the network, or two have the same.
    """
    flat = _flat_names(base)
    matched: dict[str, LoraModule] = {}
    unmatched: list[str] = []
    for module in lora.modules.values():
        if module.component != component:
            continue
        parameter = _find(module, config, base, flat)
        if parameter is None:
            unmatched.append(module.name)
        elif parameter in matched:
            raise SourceError(
                f"{lora.path}: {matched[parameter].name} and {module.name} both change {parameter} of "
                f"{component}; get another version of the file"
            )
        else:
            matched[parameter] = module
    if unmatched:
        rest = f", and {len(unmatched) - _LISTED} more" if len(unmatched) > _LISTED else ""
        raise SourceError(
            f"{lora.path}: {len(unmatched)} modules have no layer in {component}: "
            f"{', '.join(unmatched[:_LISTED])}{rest}; the LoRA is for another network"
        )
    return matched


def _find(
    module: LoraModule, config: Config, base: Mapping[str, tuple[int, ...]], flat: Mapping[str, str]
) -> str | None:
    # What is spelled as a layer of this network is that layer, and no library is imported to say so; kohya's own
    # definition is a path with its dots as underscores.
    if f"{module.path}.weight" in base:
        return f"{module.path}.weight"
    if module.spelling == "kohya":
        for spelled in (module.path, module.path.removeprefix("text_model_"), f"text_model_{module.path}"):
            if spelled in flat:
                return flat[spelled]
    name = library_name(module, config.get("layers_per_block"))
    if name is not None:
        # transformers 5 has dropped this level in one class of text encoder and kept it in the other.
        for spelled in (name, name.removeprefix(_TEXT_LEVEL), _TEXT_LEVEL + name):
            if f"{spelled}.weight" in base:
                return f"{spelled}.weight"
    return None


def library_name(module: LoraModule, layers_per_block: int | Iterable[int] | None) -> str | None:
    """Return the layer that diffusers' converters make of a module; `None` if they refuse it or make nothing."""
    import torch
    from diffusers.loaders import StableDiffusionXLLoraLoaderMixin
    from diffusers.utils import logging
    from diffusers.utils.state_dict_utils import (
        StateDictType,
        convert_state_dict_to_diffusers,
        convert_state_dict_to_peft,
        convert_unet_state_dict_to_peft,
    )

    one = torch.zeros(1)
    is_text = module.component != "unet"
    down, up = _STAND_INS[module.spelling]
    with quiet(logging):
        if module.spelling == "kohya":
            pair = {f"{module.name}{down}": one, f"{module.name}{up}": one}
            unet_config = SimpleNamespace(layers_per_block=layers_per_block) if layers_per_block else None
            try:
                pair, _ = StableDiffusionXLLoraLoaderMixin.lora_state_dict(pair, unet_config=unet_config)
            except (ValueError, IndexError, KeyError, TypeError):
                return None
            pair = {key.removeprefix(f"{module.component}."): value for key, value in pair.items()}
        else:
            if is_text and module.spelling == "diffusers_mid":
                down, up = _TEXT_STAND_INS
            pair = {f"{module.path}{down}": one, f"{module.path}{up}": one}
        if is_text:
            # Named types: the library would infer them from keys that a single module need not have.
            pair = convert_state_dict_to_diffusers(pair, original_type=StateDictType.DIFFUSERS_OLD)
        else:
            pair = convert_unet_state_dict_to_peft(pair)
        pair = convert_state_dict_to_peft(pair, original_type=StateDictType.DIFFUSERS)
    names = {key.removesuffix(".lora_A.weight") for key in pair if key.endswith(".lora_A.weight")}
    return names.pop() if names else None


def _flat_names(base: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Return kohya's name → parameter, for the names that stand for one parameter only."""
    flat: dict[str, str] = {}
    ambiguous: set[str] = set()
    for parameter in base:
        if parameter.endswith(".weight"):
            name = parameter.removesuffix(".weight").replace(".", "_")
            ambiguous |= {name} & flat.keys()
            flat[name] = parameter
    return {name: parameter for name, parameter in flat.items() if name not in ambiguous}
