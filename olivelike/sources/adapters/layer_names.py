"""Network and layer of a name in a LoRA file: any prefix before any spelling.

Trainers put a prefix of their own before names of layers that others gave, so two tables that know nothing of each
other tell them. Names are compared with their dots as underscores, as kohya writes them.

Layers are spelled as in diffusers and transformers, now or before PEFT (`attn1.processor.to_q`), or as in the original
code (`input_blocks.4.1.proj_in`, `resblocks.0.mlp.c_fc`), which may hold several in one
(`double_blocks.0.img_attn.qkv`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from olivelike.families import FAMILIES, TEXT_ENCODERS
from olivelike.families.network import Held, Rows
from olivelike.families.networks import NETWORKS, network_of, stored_as

Shape = tuple[int, ...]
_TRANSFORMER = "transformer"
_WRAPPER = r"(?:(?:base_model_model|lora|lycoris|module|model|pipe|text_encoders)_)"
"""Words that programs put before or behind a network's name, and that say nothing."""
_BEHIND = rf"(?:{_WRAPPER}|(?:clip_l|clip_g|{_TRANSFORMER}(?!_blocks))_)"


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
        if network := network_of(family.denoiser, family.denoiser_class):
            known = (name for one in network.held for name in (one.name, *(rows.layer for rows in one.rows)))
            roots[family.denoiser] |= {name.split(".")[0]: None for name in known}
    named = "|".join(sorted(networks, key=len, reverse=True))
    prefix = re.compile(rf"{_WRAPPER}*(?:(?!{_TRANSFORMER}_blocks)(?P<network>{named})_{_BEHIND}*)?")
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
    own = next((name for name in named or words.roots if _begins(rest, words.roots.get(name, ()))), None)
    if own is None and found["network"] == _TRANSFORMER:  # It says nothing before the layers of another network.
        named = ()
        own = next((name for name, roots in words.roots.items() if _begins(rest, roots)), None)
    return LayerName(own or (named[0] if named else None), path, bare=not named)


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


@dataclass(frozen=True, slots=True)
class Place:
    """Rows of a parameter."""

    parameter: str
    first: int
    count: int


def spelled_layers(component: str, parameters: Mapping[str, Shape]) -> dict[str, tuple[Place, ...]]:
    """Return flat name → places of its rows in parameters, in order, for each way to spell a network's layers.

    A name that could stand for two layers is left out. `parameters` have their shapes.
    """
    layers = [name.removesuffix(".weight") for name, shape in parameters.items() if name.endswith(".weight") and shape]
    is_text = component in TEXT_ENCODERS
    spell = _text_spellings if is_text else _attention_spellings
    own = {layer: layer.removeprefix(_TEXT_LEVEL) if is_text else layer for layer in layers}
    originals = [stored.original([*own.values()]) for stored in stored_as(component)]
    found: dict[str, tuple[Place, ...]] = {}
    ambiguous: set[str] = set()
    for layer, name in own.items():
        names = {*spell(name)}
        for stored in filter(None, (original(name) for original in originals)):
            # What programs put before open_clip's names is no part of them here.
            names.update(_attention_spellings(stored.removeprefix("transformer.")))
        parameter = f"{layer}.weight"
        for flat in map(flat_name, names):
            ambiguous |= {flat} & found.keys()
            found[flat] = (Place(parameter, 0, parameters[parameter][0]),)
    for name, places in held_layers(component, parameters):
        flat = flat_name(name)
        ambiguous |= {flat} if found.get(flat, places) != places else set()
        found[flat] = places
    return {flat: places for flat, places in found.items() if flat not in ambiguous}


def families_with(layers: Collection[str]) -> list[str]:
    """Return the families whose denoisers are known by tables of names, and have layers of all these flat names."""
    patterns = _families()
    return [name for name, pattern in patterns.items() if all(map(pattern.fullmatch, layers))] if layers else []


@cache
def _families() -> Mapping[str, re.Pattern[str]]:
    """Return family → pattern of its denoiser's flat layers."""
    found = {}
    for family in FAMILIES.values():
        network = network_of(family.denoiser, family.denoiser_class)
        if network is not None and network.held:
            names = {name for one in network.held for name in (one.name, *(rows.layer for rows in one.rows))}
            found[family.name] = re.compile("|".join(_pattern(flat_name(name)).pattern for name in sorted(names)))
    return found


def held_layers(component: str, parameters: Mapping[str, Shape]) -> Iterator[tuple[str, tuple[Place, ...]]]:
    """Give name and places of each layer that the table of the network's class has, if it has all of them."""
    layers = {name.removesuffix(".weight") for name, shape in parameters.items() if _is_layer(name, shape)}
    for network in NETWORKS:
        if component not in network.components or not network.held:
            continue
        known = [_pattern(rows.layer) for one in network.held for rows in one.rows]
        if not all(any(pattern.fullmatch(layer) for pattern in known) for layer in layers):
            continue
        for one in network.held:
            first = _pattern(one.rows[0].layer)
            for numbers in (match.groups() for match in map(first.fullmatch, layers) if match):
                if places := _places(one, numbers, parameters):
                    yield _numbered(one.name, numbers), places


def _places(one: Held, numbers: tuple[str, ...], parameters: Mapping[str, Shape]) -> tuple[Place, ...]:
    """Return the places of a layer's rows; none if the network has not all of them."""
    found = []
    for rows in one.rows:
        parameter = f"{_numbered(rows.layer, numbers)}.weight"
        place = _place(rows, parameter, parameters.get(parameter, ()))
        if place is None:
            return ()
        found.append(place)
    return tuple(found)


def _place(rows: Rows, parameter: str, shape: Shape) -> Place | None:
    if len(shape) < 2:
        return None
    count, columns = shape[0], shape[1]
    first, end = rows.first * columns, count if rows.end is None else rows.end * columns
    fits = first < end <= count and (rows.of is None or rows.of * columns == count)
    return Place(parameter, first, end - first) if fits else None


def _is_layer(name: str, shape: Shape) -> bool:
    return name.endswith(".weight") and len(shape) > 1


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(r"\#", r"(\d{1,3})"))


def _numbered(name: str, numbers: tuple[str, ...]) -> str:
    for number in numbers:
        name = name.replace("#", number, 1)
    return name


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
