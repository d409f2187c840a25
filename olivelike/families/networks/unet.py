"""Diffusers' `UNet2DConditionModel`, the denoiser of Stable Diffusion 1.x, 2.x and XL."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError
from olivelike.families import FAMILIES, family_of_text_width
from olivelike.families.network import (
    DENOISER_PREFIXES,
    Input,
    Interface,
    Network,
    Shapes,
    Stored,
    Tensors,
    Told,
    diffusers_converter,
    first_shape,
    head_count,
    layer_number,
    renamed,
    shown,
)  # fmt: skip
from olivelike.model.few_steps import FewSteps
from olivelike.model.guides import GUIDES, IMAGE_STRENGTH, IMAGE_TOKENS

if TYPE_CHECKING:
    import torch

    from olivelike._untrusted import Json
    from olivelike.model.architecture import Architecture, Config

_TIME_IDS = 6
"""Length of SDXL's `time_ids`: original size, crop's corner, target size."""
COMPONENT: Final = "unet"
IMAGE_PROMPT: Final = "image_prompt"
"""In the config of a UNet: it has an IP-Adapter. Libraries do not know it."""
_REFINER_TIME_IDS = 5
"""Length of the refiner's: original size, crop's corner, aesthetic score."""


def unet_interface(config: Config) -> Interface:
    """Return what the UNet takes and gives."""
    # Wide enough that the innermost of the levels is wider than 1, and neither square nor a common size.
    side = 2 ** (len(config["block_out_channels"]) - 1)
    channels, context = config["in_channels"], config["cross_attention_dim"]
    dims = tuple(f"unet_sample_{dim}" for dim in ("batch", "height", "width"))
    return Interface(
        inputs=(
            Input("sample", "float32", (dims[0], None, dims[1], dims[2]), (2, channels, side * 4, side * 6)),
            Input("timestep", "float32", ("unet_time_batch",), (1,)),
            Input(
                "encoder_hidden_states",
                "float32",
                ("unet_hidden_batch", "unet_hidden_sequence", None),
                (2, 77, context),
            ),
            *_added_conditions(config),
            *_guidance(config),
            *_image_prompt(config),
        ),
        outputs=("out_sample",),
        sized_like={"out_sample": "sample"},
    )


def _added_conditions(config: Config) -> tuple[Input, ...]:
    """Return what SDXL adds to the time embedding: the pooled text, and sizes of the picture."""
    if config.get("addition_embed_type") != "text_time":
        return ()
    whole, each = config["projection_class_embeddings_input_dim"], config["addition_time_embed_dim"]
    # The refiner has one text encoder, so its prompt's vectors are as wide as the pooled one; the base has two.
    refines = whole - _REFINER_TIME_IDS * each == config["cross_attention_dim"]
    count = _REFINER_TIME_IDS if refines else _TIME_IDS
    return (
        Input("text_embeds", "float32", ("unet_text_embeds_batch", None), (2, whole - count * each)),
        Input("time_ids", "float32", ("unet_time_ids_batch", None), (2, count)),
    )


def _guidance(config: Config) -> tuple[Input, ...]:
    """Return what a UNet takes that was distilled with its guidance, as LCM's are: an embedding of the scale."""
    width = config.get("time_cond_proj_dim")
    return () if width is None else (Input("timestep_cond", "float32", ("unet_guidance_batch", None), (2, width)),)


def with_image_prompt(architecture: Architecture) -> Architecture:
    """Return the architecture of a UNet that attends to a picture's tokens too, as an IP-Adapter makes it."""
    return replace(architecture, config={**architecture.config, IMAGE_PROMPT: True})


def _image_prompt(config: Config) -> tuple[Input, ...]:
    if not config.get(IMAGE_PROMPT):
        return ()
    tokens = ("unet_image_batch", "unet_image_sequence", None)
    return (
        Input(IMAGE_TOKENS, "float32", tokens, (2, 4, config["cross_attention_dim"])),
        Input(IMAGE_STRENGTH, "float32", (None,), (1,)),
    )


def _forward_unet(
    self: Any,
    sample: torch.Tensor,
    timestep: torch.Tensor,
    encoder_hidden_states: torch.Tensor,
    timestep_cond: torch.Tensor | None = None,
) -> Any:
    return self.network(sample, timestep, encoder_hidden_states, timestep_cond=timestep_cond, return_dict=False)[0]


def _forward_unet_xl(
    self: Any,
    sample: torch.Tensor,
    timestep: torch.Tensor,
    encoder_hidden_states: torch.Tensor,
    text_embeds: torch.Tensor,
    time_ids: torch.Tensor,
    timestep_cond: torch.Tensor | None = None,
) -> Any:
    added = {"text_embeds": text_embeds, "time_ids": time_ids}
    return self.network(
        sample, timestep, encoder_hidden_states, timestep_cond=timestep_cond, added_cond_kwargs=added, return_dict=False
    )[0]


def _with_image_prompt(forward: Any) -> Any:
    """Return a UNet's `forward` that takes tokens of a picture, and their strength, behind its other inputs."""

    def run(self: Any, sample: torch.Tensor, timestep: torch.Tensor, states: torch.Tensor, *more: Any) -> Any:
        *others, tokens, strength = more
        for processor in self.network.attn_processors.values():
            if hasattr(processor, "to_k_ip"):
                processor.scale = [strength]
        return forward(self, sample, timestep, (states, [tokens]), *others)

    return run


def take_residuals(network: Any, given: Mapping[str, torch.Tensor]) -> None:
    """Have a UNet's next call add what guides give, as diffusers' pipelines have it.

    Args:
        network: Diffusers' UNet; it calls nothing else until the next time.
        given: By the names of `GuideKind.input`, in that order; features are added in place.
    """
    sums: dict[str, list[Any]] = {}
    for kind in GUIDES.values():
        values = [value for name, value in given.items() if kind.gives and kind.is_given(name)]
        if values:
            before = sums.get(kind.enters, [0] * len(values))
            sums[kind.enters] = [one + other for one, other in zip(values, before, strict=True)]
    more: dict[str, Any] = {}
    if features := sums.get("down"):
        more["down_intrablock_additional_residuals"] = features
    if residuals := sums.get("up"):
        *down, middle = residuals
        more |= {"down_block_additional_residuals": tuple(down), "mid_block_additional_residual": middle}
    network.forward = partial(type(network).forward, network, **more)


def _attending_to_images(network: Any) -> Any:
    """Return a UNet whose cross-attentions have the weights of an IP-Adapter, as diffusers loads one."""
    from diffusers.models.attention_processor import IPAdapterAttnProcessor2_0

    processors = dict(network.attn_processors)
    for name in processors:
        if name.endswith("attn2.processor"):
            keys = network.get_submodule(name.removesuffix(".processor")).to_k
            processors[name] = IPAdapterAttnProcessor2_0(keys.out_features, keys.in_features)
    network.set_attn_processor(processors)
    return network


def _attends_to_images(network: Any) -> bool:
    return any(name.endswith("_ip.0.weight") for name, _ in network.named_parameters())


def _forward(network: Any) -> Any:
    forward = _forward_unet_xl if takes_pooled_text(network) else _forward_unet
    return _with_image_prompt(forward) if _attends_to_images(network) else forward


def takes_pooled_text(network: Any) -> bool:
    """Tell whether a network has SDXL's additions to the time embedding."""
    return getattr(network.config, "addition_embed_type", None) == "text_time"


def _prepare(network: Any, config: Config) -> Any:
    return _attending_to_images(network) if config.get(IMAGE_PROMPT) else network


def _uneven(interface: Interface) -> Interface:
    sample, *others = interface.inputs
    pictures, channels, height, width = sample.example
    uneven = replace(sample, example=(pictures, channels, height + 1, width + 3))
    return replace(interface, inputs=(uneven, *others))


_OPTIONS: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "class_embed_type": ((None,), "it takes a class, a noise level or a picture's embedding beside the text"),
    "num_class_embeds": ((None,), "it takes the number of a class beside the text"),
    "encoder_hid_dim": ((None,), "it takes text or pictures of another width than it attends to"),
    "encoder_hid_dim_type": ((None,), "it takes text or pictures of another width than it attends to"),
    "addition_embed_type": ((None, "text_time"), "it takes more text or a picture, of which no client knows"),
    "dual_cross_attention": ((None, False), "it attends to two texts"),
}
"""Option of a UNet → values that are supported, and what any other means."""

COUNTS: Final = frozenset({"layers_per_block", "transformer_layers_per_block", "reverse_transformer_layers_per_block"})
SIZES: Final = frozenset(
    {
        "in_channels", "out_channels", "block_out_channels", "cross_attention_dim", "attention_head_dim",
        "num_attention_heads", "norm_num_groups", "addition_time_embed_dim", "projection_class_embeddings_input_dim",
        "time_embedding_dim",
    }
)  # fmt: skip
_TEXT_TIME: Final = ("addition_time_embed_dim", "projection_class_embeddings_input_dim")
_NUMBERS: Final = 5
"""Numbers that such a UNet takes with the pooled text, at least."""


def check_unet(component: str, class_name: str, config: Config) -> None:
    """Raise `SourceError` for an option that adds an input or takes one away."""
    for option, (supported, meaning) in _OPTIONS.items():
        value = config.get(option)
        if value not in supported:
            raise SourceError(f"{component}: {class_name} with `{option}: {shown(value)}` is not supported: {meaning}")
    width = config.get("cross_attention_dim", 1)
    if width is None or isinstance(width, list | tuple):
        meaning = "it attends to no text" if width is None else "it attends to texts of several widths"
        raise SourceError(
            f"{component}: {class_name} with `cross_attention_dim: {shown(width)}` is not supported: {meaning}"
        )
    if config.get("addition_embed_type") == "text_time":
        each, whole = (config.get(option) for option in _TEXT_TIME)
        if not isinstance(each, int) or not isinstance(whole, int) or whole <= _NUMBERS * each:
            raise SourceError(
                f"{component}: {class_name} with `addition_embed_type: text_time` needs {' and '.join(_TEXT_TIME)}, "
                f"the second more than {_NUMBERS} times the first, and has {shown(each)} and {shown(whole)}; get its "
                "config.json again"
            )


_STORED_NAMES: Final = {
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "time_embedding.cond_proj": "time_embed.cond_proj",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_in": "input_blocks.0.0",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
_STORED_RESNET: Final = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_OWN_BLOCK: Final = re.compile(r"(down|up)_blocks\.(\d+)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)\.(.+)")
_OWN_MIDDLE: Final = re.compile(r"mid_block\.(resnets|attentions)\.(\d+)\.(.+)")
_MARK: Final = "input_blocks.0.0.weight"
_BLOCK: Final = re.compile(r"^(input_blocks|middle_block|output_blocks)\.(\d+)\.")
_DEPTH: Final = re.compile(r"^(input_blocks|output_blocks)\.(\d+)\.1\.transformer_blocks\.(\d+)\.")
_MIDDLE_DEPTH: Final = re.compile(r"^middle_block\.1\.transformer_blocks\.(\d+)\.")


class LdmNames:
    """Names of a UNet's parameters or layers in the LDM code, which numbers blocks by how many there are.

    https://github.com/CompVis/stable-diffusion (`openaimodel.py`).
    """

    def __init__(self, names: Collection[str]) -> None:
        """Take diffusers' names of all of them."""
        blocks = [found.groups() for name in names if (found := _OWN_BLOCK.fullmatch(name))]
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

    def __call__(self, name: str) -> str | None:
        """Return the name in the LDM code; `None` if it has none."""
        if middle := _OWN_MIDDLE.fullmatch(name):
            kind, index, rest = middle.groups()
            if kind == "attentions":
                return f"middle_block.{2 * int(index) + 1}.{rest}"
            return f"middle_block.{2 * int(index)}.{renamed(rest, _STORED_RESNET) or rest}"
        if (found := _OWN_BLOCK.fullmatch(name)) is None:
            return renamed(name, _STORED_NAMES)
        way, block, kind, index, rest = found.groups()
        place = way, int(block)
        home, first = {"down": "input_blocks", "up": "output_blocks"}[way], self._first[place]
        match kind:
            case "resnets":
                return f"{home}.{first + int(index)}.0.{renamed(rest, _STORED_RESNET) or rest}"
            case "attentions":
                return f"{home}.{first + int(index)}.1.{rest}"
            case "downsamplers":
                return f"{home}.{first + self._sizes[place]}.0.op{rest.removeprefix('conv')}"
        slot = 2 if place in self._attend else 1
        return f"{home}.{first + self._sizes[place] - 1}.{slot}.{rest}"


def _to_diffusers(config: Config, tensors: Tensors) -> Tensors:
    converted = diffusers_converter("convert_ldm_unet_checkpoint")(tensors, dict(config))
    # LCM's input, which diffusers' converter does not know.
    if (guidance := tensors.get(f"{STORED.expected}time_embed.cond_proj.weight")) is not None:
        converted["time_embedding.cond_proj.weight"] = guidance
    return converted


_BY_CHANNELS: Final = {
    5: "Stable Diffusion 2 with depth (5 input channels)",
    7: "Stable Diffusion x4 upscaler (7 input channels)",
    8: "InstructPix2Pix (8 input channels)",
}


def _other_by_channels(channels: int) -> str | None:
    """Return the name of a UNet that takes this many input channels; `None` for 4 and 9, which are supported."""
    return None if channels in (4, 9) else _BY_CHANNELS.get(channels, f"a UNet with {channels} input channels")


def _tell(shapes: Shapes, of_texts: str | None) -> Told:
    first = shapes[_MARK]
    channels = first[1] if len(first) == 4 else 0
    other = _other_by_channels(channels)
    if other is None and "label_emb.weight" in shapes:
        other = "a UNet with classes of its own (label_emb.weight)"
    if other is not None:
        return Told(None, f"the UNet's first convolution is {first}", other)
    family, reason = _family(shapes, of_texts)
    masked = channels == 9
    guided = "time_embed.cond_proj.weight" in shapes
    return Told(
        family,
        reason,
        reason if family is None else "",
        masked,
        FewSteps("lcm", reason="its UNet takes the guidance as an input") if guided else None,
        (f"input channels: {channels}" + (", the masked picture among them" if masked else ""),),
    )


def _family(shapes: Shapes, of_texts: str | None) -> tuple[str | None, str]:
    """Return a UNet's family and why; by width of the text, else by structure, as in networks of other sizes."""
    keys = (s for name, s in shapes.items() if name.endswith(".attn2.to_k.weight") and len(s) == 2)
    width = next((shape[-1] for shape in keys), None)
    if width is None:
        return None, "a UNet without cross-attention"
    labelled = "label_emb.0.0.weight" in shapes
    known = f"the UNet takes text of width {width}"
    families = {name: family for name, family in FAMILIES.items() if family.denoiser == COMPONENT}
    fitting = {name: words for name, family in families.items() if (words := family.matches(shapes))}
    likes = {name for name, family in families.items() if bool(family.size_inputs(1, 1)) == labelled}
    family = family_of_text_width(width)
    if family in likes:
        return family, known
    if labelled and any(name.startswith("input_blocks.1.1.") for name in shapes):
        return None, "Stable Diffusion 2 unCLIP (a UNet that takes picture embeddings)"
    if of_texts in likes:
        return of_texts, "names of its text encoder"
    family, words = next(iter(fitting.items()))
    return family, f"{known}{', ' if labelled else ' '}{words}"


def _config(published: Config, shapes: Shapes, head_width: int | None) -> Config:
    levels = _read_levels(shapes)
    widths = levels.widths
    found: Json = {
        "block_out_channels": widths,
        "cross_attention_dim": first_shape(shapes, r"\.attn2\.to_k\.weight$")[-1],
        "down_block_types": [f"{'CrossAttn' if any(d) else ''}DownBlock2D" for d in levels.down],
        "in_channels": shapes[_MARK][1],
        "layers_per_block": levels.layers,
        "out_channels": shapes["out.2.weight"][0],
        "up_block_types": [f"{'CrossAttn' if any(d) else ''}UpBlock2D" for d in levels.up],
    }
    if (guidance := shapes.get("time_embed.cond_proj.weight")) is not None:
        found["time_cond_proj_dim"] = guidance[-1]
    linear = len(first_shape(shapes, r"\.proj_in\.weight$")) == 2
    if linear or "use_linear_projection" in published:
        found["use_linear_projection"] = linear
    if "projection_class_embeddings_input_dim" in published:
        found["projection_class_embeddings_input_dim"] = shapes["label_emb.0.0.weight"][1]
    if head_width is not None:
        attends = [any(level) for level in levels.down]
        found["attention_head_dim"] = [
            head_count(width, head_width) if attention else max(1, width // head_width)
            for width, attention in zip(widths, attends, strict=True)
        ]
    depths = _depths(published.get("transformer_layers_per_block", 1), levels)
    return {**found, **depths, **_middle(levels)}


def _middle(levels: _UnetLevels) -> Config:
    if levels.middle is None:
        return {"mid_block_type": None}
    return {} if levels.middle else {"mid_block_type": "UNetMidBlock2D"}


def _depths(published: int | list[int], levels: _UnetLevels) -> Config:
    """Return how many transformer blocks each level has, spelled as the published config does where that fits."""
    found = {depth for level in (*levels.down, *levels.up, [levels.middle or 0]) for depth in level if depth}
    if len(found) == 1 and not isinstance(published, list):
        (depth,) = found
        return {} if depth == published else {"transformer_layers_per_block": depth}
    usual = published if isinstance(published, list) else [published] * len(levels.down)
    depths: list[int | list[int]] = [
        _level_depth(level) if any(level) else (usual[i] if i < len(usual) else 1)
        for i, level in enumerate(levels.down)
    ]
    if levels.middle and not any(levels.down[-1]):
        depths[-1] = levels.middle
    if levels.middle and depths[-1] != levels.middle:
        raise ValueError(f"middle block of depth {levels.middle} behind a level of depth {depths[-1]}")
    mirrored = [_level_depth(level) if any(level) else depths[-1 - i] for i, level in enumerate(levels.up)]
    if mirrored == depths[::-1]:
        return {"transformer_layers_per_block": depths}
    return {"transformer_layers_per_block": depths, "reverse_transformer_layers_per_block": mirrored}


def _level_depth(depths: list[int]) -> int | list[int]:
    return depths[0] if len(set(depths)) == 1 else depths


@dataclass(frozen=True)
class _UnetLevels:
    """Structure of a UNet, from the outermost level inwards, and back."""

    widths: list[int]
    """Channels of each level."""
    layers: int
    """Residual blocks of each level on the way in; one more on the way out."""
    down: list[list[int]]
    """For each level, for each of its layers, the number of transformer blocks; 0 without attention."""
    middle: int | None
    """Widths of the middle; `None` if there is none."""
    up: list[list[int]]
    """Widths on the way out, innermost level first."""


def _read_levels(shapes: Shapes) -> _UnetLevels:
    """Read the structure off the stored names.

    Raises `KeyError` if a block is missing, and `ValueError` if levels have different numbers of layers.
    """
    counts = {"input_blocks": 0, "middle_block": 0, "output_blocks": 0}
    depths: dict[tuple[str, int], int] = {}
    for name in shapes:
        block = _BLOCK.match(name)
        if block:
            counts[block[1]] = max(counts[block[1]], layer_number(block[2]) + 1)
        depth = _DEPTH.match(name)
        if depth:
            key = depth[1], layer_number(depth[2])
            depths[key] = max(depths.get(key, 0), layer_number(depth[3]) + 1)

    widths: list[int] = [0]
    down: list[list[int]] = [[]]
    for i in range(1, counts["input_blocks"]):
        if f"input_blocks.{i}.0.op.weight" in shapes:
            widths.append(0)
            down.append([])
            continue
        widths[-1] = shapes[f"input_blocks.{i}.0.out_layers.3.weight"][0]
        down[-1].append(depths.get(("input_blocks", i), 0))
    lengths = {len(level) for level in down}
    if len(lengths) != 1:
        raise ValueError(f"levels of {sorted(lengths)} layers")
    (layers,) = lengths

    out = [depths.get(("output_blocks", i), 0) for i in range(counts["output_blocks"])]
    if len(out) != len(down) * (layers + 1):
        raise ValueError(f"{len(out)} output blocks for {len(down)} levels of {layers} layers")
    up = [out[start : start + layers + 1] for start in range(0, len(out), layers + 1)]
    middle = None
    if counts["middle_block"]:
        found = [layer_number(match[1]) for match in map(_MIDDLE_DEPTH.match, shapes) if match]
        middle = 1 + max(found) if found else 0
    return _UnetLevels(widths, layers, down, middle, up)


STORED: Final = Stored(
    name="unet",
    to_library=_to_diffusers,
    prefixes=DENOISER_PREFIXES,
    expected="model.diffusion_model.",
    marks=(_MARK,),
    whole=("out.2.weight",),
    roots=("input_blocks.", "middle_block.", "output_blocks.", "time_embed.", "label_emb.", "out."),
    config=_config,
    tell=_tell,
    original=LdmNames,
)

_BY_LEVEL: Final = (
    "layers_per_block", "attention_head_dim", "transformer_layers_per_block", "reverse_transformer_layers_per_block",
)  # fmt: skip
"""Keys that may have one value for all levels, or say something of levels that do not use it."""


def _one_form(form: Json, config: Config) -> Json:
    """Say what those keys mean, level by level, however they are written."""
    count = len(config["block_out_channels"])

    def spread(value: Any) -> list[Any]:
        return list(value) if isinstance(value, list) else [value] * count

    layers, depths = spread(config["layers_per_block"]), spread(config["transformer_layers_per_block"])
    back = config["reverse_transformer_layers_per_block"] or depths[::-1]
    down = [_block_depths(kind, depths[i], layers[i]) for i, kind in enumerate(config["down_block_types"])]
    up = [_block_depths(kind, back[i], layers[::-1][i] + 1) for i, kind in enumerate(config["up_block_types"])]
    middle = _block_depths(config["mid_block_type"] or "", depths[-1], 1)
    others = {name: value for name, value in form.items() if name not in _BY_LEVEL}
    return others | {"layers": layers, "heads": spread(config["attention_head_dim"]), "depths": [down, middle, up]}


def _block_depths(kind: str, depth: Any, layers: int) -> list[int]:
    """Return how many transformers stand behind each layer of a block; none where it does not attend."""
    if "CrossAttn" not in kind:
        return []
    return list(depth)[:layers] if isinstance(depth, list) else [depth] * layers


NETWORKS: Final = (
    Network(
        "UNet2DConditionModel",
        (COMPONENT,),
        unet_interface,
        _forward,
        check_unet,
        _uneven,
        _prepare,
        counts=COUNTS,
        sizes=SIZES,
        inert=frozenset({"sample_size", "dropout"}),
        one_form=_one_form,
        stored=(STORED,),
    ),
)
