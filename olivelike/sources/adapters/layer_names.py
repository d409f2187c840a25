"""Network and layer of a name in a LoRA file: any prefix before any spelling.

Trainers put a prefix of their own before names of layers that others gave, so two tables that know nothing of each
other tell them. Names are compared with their dots as underscores, as kohya writes them.

Layers are spelled as in diffusers and transformers, now or before PEFT (`attn1.processor.to_q`), or as in the original
code (`input_blocks.4.1.proj_in`, `resblocks.0.mlp.c_fc`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from olivelike.families import FAMILIES, TEXT_ENCODERS
from olivelike.families.networks import stored_as

_WRAPPER = r"(?:base_model_model|lora|lycoris|module|model|pipe|text_encoders|transformer(?!_blocks))_"
"""Words that programs put before or behind a network's name, and that say nothing."""


@dataclass(frozen=True)
class _Words:
    """Words of all families for their networks."""

    networks: Mapping[str, tuple[str, ...]]
    """Spelling of a network's name → components that it stands for, in the order of families."""
    roots: Mapping[str, tuple[str, ...]]
    """Component → what its layers begin with."""
    prefix: re.Pattern[str]


@cache
def _words() -> _Words:
    networks: defaultdict[str, dict[str, None]] = defaultdict(dict)
    roots: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for family in FAMILIES.values():
        for name, words in family.lora_names.items():
            for word in words:
                networks[word][name] = None
        for name, layers in family.lora_layers.items():
            roots[name] |= dict.fromkeys(layers)
    named = "|".join(sorted(networks, key=len, reverse=True))
    prefix = re.compile(
        rf"(?:{_WRAPPER})*(?:(?!transformer_blocks)(?P<network>{named})_(?:(?:{_WRAPPER})|(?:clip_l|clip_g)_)*)?"
    )
    first, second = ({name: tuple(values) for name, values in table.items()} for table in (networks, roots))
    return _Words(first, second, prefix)


@dataclass(frozen=True, slots=True)
class LayerName:
    """A name without what is put before it."""

    component: str | None
    """`None` if it belongs to no network that is known."""
    path: str
    """The layer, as stored."""
    bare: bool
    """Whether no prefix says which network it is in."""


def parse_layer(module: str) -> LayerName:
    """Tell network and layer of a name such as `lora_unet_mid_block_attentions_0_proj_in`."""
    flat, words = flat_name(module), _words()
    found = words.prefix.match(flat)
    assert found is not None, "an empty prefix always matches"
    path, rest = module[found.end() :], flat[found.end() :]
    named = words.networks.get(found["network"] or "", ())
    own = (name for name in named or words.roots if _begins(rest, words.roots.get(name, ())))
    return LayerName(next(own, named[0] if named else None), path, bare=not named)


def layer_roots(component: str | None) -> tuple[str, ...]:
    """Return what names of a component's layers begin with; nothing for none."""
    return _words().roots.get(component or "", ())


def flat_name(name: str) -> str:
    """Return a name as kohya writes it."""
    return name.replace(".", "_")


def _begins(flat: str, roots: tuple[str, ...]) -> bool:
    return any(flat == root or flat.startswith(f"{root}_") for root in roots)


_TEXT_LEVEL = "text_model."
_OLD_TEXT = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "out_proj": "to_out"}
_ATTENTION = re.compile(r"(.+\.attn\d)\.(to_[qkv]|to_out)(\.0)?")
FUSED = ("attn.in_proj", "attn_in_proj")
"""How layers end that the original code has for three at once."""


def spelled_layers(component: str, parameters: Collection[str]) -> dict[str, str]:
    """Return flat name → parameter for each way to spell a network's layers.

    A name that could stand for two parameters is left out.
    """
    layers = [name.removesuffix(".weight") for name in parameters if name.endswith(".weight")]
    is_text = component in TEXT_ENCODERS
    spell = _text_spellings if is_text else _attention_spellings
    own = {layer: layer.removeprefix(_TEXT_LEVEL) if is_text else layer for layer in layers}
    originals = [stored.original([*own.values()]) for stored in stored_as(component)]
    found: dict[str, str] = {}
    ambiguous: set[str] = set()
    for layer, name in own.items():
        names = {*spell(name)}
        for stored in filter(None, (original(name) for original in originals)):
            # What programs put before open_clip's names is no part of them here.
            names.update(_attention_spellings(stored.removeprefix("transformer.")))
        for flat in map(flat_name, names):
            ambiguous |= {flat} & found.keys()
            found[flat] = f"{layer}.weight"
    return {flat: parameter for flat, parameter in found.items() if flat not in ambiguous}


def _attention_spellings(layer: str) -> Iterator[str]:
    """Give a layer's name, and those from before PEFT."""
    yield layer
    if attention := _ATTENTION.fullmatch(layer):
        owner, projection, number = attention.groups()
        for old in {projection, projection + (number or "")}:
            yield f"{owner}.{old}"
            yield f"{owner}.processor.{old}"


def _text_spellings(layer: str) -> Iterator[str]:
    """Give the names of a text encoder's layer, with and without the level that transformers 5 has dropped in part."""
    names = [layer]
    owner, _, leaf = layer.rpartition(".")
    if owner.endswith("self_attn") and leaf in _OLD_TEXT:
        names.append(f"{owner}.{_OLD_TEXT[leaf]}")
    for name in names:
        yield name
        yield _TEXT_LEVEL + name
