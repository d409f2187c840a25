"""Network and layer of a name in a LoRA file: any prefix before any spelling.

Trainers put a prefix of their own before names of layers that others gave, so two tables that know nothing of each
other tell them. Names are compared with their dots as underscores, as kohya writes them.

Layers are spelled as in diffusers and transformers, now or before PEFT (`attn1.processor.to_q`), or as in the original
code (`input_blocks.4.1.proj_in`, `resblocks.0.mlp.c_fc`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from olivelike.families import DENOISERS, FAMILIES

_NETWORKS = {word: name for one in FAMILIES.values() for name, words in one.lora_names.items() for word in words}
"""Spelling of a network's name → component."""
_ROOTS = {name: roots for one in [*FAMILIES.values()][::-1] for name, roots in one.lora_layers.items()}
"""Component → what its layers begin with, for names that say no network."""

_WRAPPER = r"(?:base_model_model|lora|lycoris|module|model|pipe|text_encoders|transformer(?!_blocks))_"
"""Words that programs put before or behind a network's name, and that say nothing."""
_NAMED = "|".join(sorted(_NETWORKS, key=len, reverse=True))
_PREFIX = re.compile(rf"(?:{_WRAPPER})*(?:(?P<network>{_NAMED})_(?:(?:{_WRAPPER})|(?:clip_l|clip_g)_)*)?")


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
    flat = flat_name(module)
    found = _PREFIX.match(flat)
    assert found is not None, "an empty prefix always matches"
    path, rest = module[found.end() :], flat[found.end() :]
    if found["network"] is not None:
        return LayerName(_NETWORKS[found["network"]], path, bare=False)
    component = next((name for name, roots in _ROOTS.items() if _begins(rest, roots)), None)
    return LayerName(component, path, bare=True)


def flat_name(name: str) -> str:
    """Return a name as kohya writes it."""
    return name.replace(".", "_")


def _begins(flat: str, roots: tuple[str, ...]) -> bool:
    return any(flat == root or flat.startswith(f"{root}_") for root in roots)


_TEXT_LEVEL = "text_model."
_LDM_OUTER = {
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "time_embedding.cond_proj": "time_embed.cond_proj",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_in": "input_blocks.0.0",
    "conv_out": "out.2",
}
_LDM_RESNET = {
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_OPEN_CLIP = {"mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj", "self_attn.out_proj": "attn.out_proj"}
_OLD_TEXT = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "out_proj": "to_out"}
_BLOCK = re.compile(r"(down|up)_blocks\.(\d+)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)\.(.+)")
_MIDDLE = re.compile(r"mid_block\.(resnets|attentions)\.(\d+)\.(.+)")
_ATTENTION = re.compile(r"(.+\.attn\d)\.(to_[qkv]|to_out)(\.0)?")
_TEXT_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.+)")
FUSED = ("attn.in_proj", "attn_in_proj")
"""How layers end that the original code has for three at once."""


def spelled_layers(component: str, parameters: Collection[str]) -> dict[str, str]:
    """Return flat name → parameter for each way to spell a network's layers.

    A name that could stand for two parameters is left out.
    """
    layers = [name.removesuffix(".weight") for name in parameters if name.endswith(".weight")]
    spell: Callable[[str], Iterator[str]] = _UNetSpelling(layers) if component in DENOISERS else _text_spellings
    found: dict[str, str] = {}
    ambiguous: set[str] = set()
    for layer in layers:
        for flat in {flat_name(name) for name in spell(layer)}:
            ambiguous |= {flat} & found.keys()
            found[flat] = f"{layer}.weight"
    return {flat: parameter for flat, parameter in found.items() if flat not in ambiguous}


class _UNetSpelling:
    """The names of a UNet's layer; the original code numbers blocks by how many there are, so all layers count."""

    def __init__(self, layers: Collection[str]) -> None:
        blocks = [found.groups() for name in layers if (found := _BLOCK.fullmatch(name))]
        self._attend = {(way, int(block)) for way, block, kind, _, _ in blocks if kind == "attentions"}
        sizes: Counter[tuple[str, int]] = Counter()
        for way, block, kind, index, _ in blocks:
            # A downsampler is a block of its own in the original code, an upsampler part of the last one.
            slots = int(index) + 1 if kind == "resnets" else 0
            sizes[way, int(block)] = max(sizes[way, int(block)], slots)
        downs = {(way, int(block)) for way, block, kind, _, _ in blocks if kind == "downsamplers"}
        self._sizes = sizes
        self._first = {
            (way, block): (way == "down") + sum(sizes[way, n] + ((way, n) in downs) for n in range(block))
            for way, block in sizes
        }

    def __call__(self, layer: str) -> Iterator[str]:
        original = self._original(layer)
        for name in (layer,) if original is None else (layer, original):
            yield name
            attention = _ATTENTION.fullmatch(name)
            if attention is not None:
                owner, projection, number = attention.groups()
                for old in {projection, projection + (number or "")}:
                    yield f"{owner}.{old}"
                    yield f"{owner}.processor.{old}"

    def _original(self, layer: str) -> str | None:
        """Return a layer's name in the LDM code; `None` if it has none."""
        if layer in _LDM_OUTER:
            return _LDM_OUTER[layer]
        if middle := _MIDDLE.fullmatch(layer):
            kind, index, rest = middle.groups()
            number = 2 * int(index) + (kind == "attentions")
            return f"middle_block.{number}.{_LDM_RESNET.get(rest, rest)}"
        if (found := _BLOCK.fullmatch(layer)) is None:
            return None
        way, block, kind, index, rest = found.groups()
        place = way, int(block)
        home, first = {"down": "input_blocks", "up": "output_blocks"}[way], self._first[place]
        match kind:
            case "resnets":
                return f"{home}.{first + int(index)}.0.{_LDM_RESNET.get(rest, rest)}"
            case "attentions":
                return f"{home}.{first + int(index)}.1.{rest}"
            case "downsamplers":
                return f"{home}.{first + self._sizes[place]}.0.op"
        slot = 2 if place in self._attend else 1
        return f"{home}.{first + self._sizes[place] - 1}.{slot}.conv"


def _text_spellings(layer: str) -> Iterator[str]:
    """Give the names of a text encoder's layer, with and without the level that transformers 5 has dropped in part."""
    own = layer.removeprefix(_TEXT_LEVEL)
    names = [own]
    owner, _, leaf = own.rpartition(".")
    if owner.endswith("self_attn") and leaf in _OLD_TEXT:
        names.append(f"{owner}.{_OLD_TEXT[leaf]}")
    for name in names:
        yield name
        yield _TEXT_LEVEL + name
    if found := _TEXT_LAYER.fullmatch(own):
        number, rest = found.groups()
        yield f"resblocks.{number}.{_OPEN_CLIP.get(rest, rest)}"
