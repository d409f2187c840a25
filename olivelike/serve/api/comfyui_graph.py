"""ComfyUI's graphs, read backwards from where pictures come out: one order for all that is between, or a refusal.

What is understood are the graphs of a prompt, of a picture and of a mask, with LoRAs, a second pass that is larger, and
an upscaler at the end. A node that none of these has is refused by its name and id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from olivelike._untrusted import Json, JsonView
from olivelike.runtime.pipeline.request import hires_fields
from olivelike.serve.api.comfyui_nodes import (
    MOST_NODES,
    NODES,
    SAMPLER_NAMES,
    SCHEDULER_NAMES,
    GraphError,
    Listed,
    Node,
)

_EMPTY: Final = ("EmptyLatentImage", "EmptySD3LatentImage", "EmptyFlux2LatentImage")
_LOADERS: Final = {"CheckpointLoaderSimple": "ckpt_name", "UNETLoader": "unet_name"}
_TEXT_LOADERS: Final = ("CLIPLoader", "DualCLIPLoader", "TripleCLIPLoader")
_TEXTS: Final = {"CLIPTextEncode": "text", "CLIPTextEncodeSDXL": "text_g", "SwarmClipTextEncodeAdvanced": "prompt"}
"""Nodes of a text → the input that says it."""
_SHIFTS: Final = ("ModelSamplingSD3", "ModelSamplingAuraFlow")
_IMAGES: Final = {
    "LoadImage": ("file", "image"), "ETN_LoadImageBase64": ("base64", "image"), "ETN_LoadImageCache": ("cache", "id"),
    "SwarmLoadImageB64": ("base64", "image_base64"),
}  # fmt: skip
"""Nodes of a picture that is sent → how, and the input that says which."""
_DEPTH: Final = 100
_LONGEST_ID: Final = 300
_LEAST_DENOISE: Final = 1e-4


@dataclass(frozen=True)
class Scaling:
    """A size that a picture is brought to; a side of 0 follows from the other."""

    width: int
    height: int
    crop: bool
    nearest: bool

    def of(self, width: int, height: int) -> tuple[int, int]:
        """Return what a picture of a size is brought to."""
        return self.width or round(width * self.height / height), self.height or round(height * self.width / width)


@dataclass(frozen=True)
class SentPicture:
    """A picture that a graph starts from, by where it is sent."""

    how: Literal["file", "base64", "cache"]
    name: str
    """Its name, or itself in base64."""
    scalings: tuple[Scaling, ...] = ()


@dataclass(frozen=True)
class SentMask:
    """A mask that a graph has: of a picture, where it is opaque no more, or how bright a colour is."""

    picture: SentPicture
    channel: str
    """`alpha` is white where the picture is transparent."""
    inverted: bool = False
    grown: int = 0
    """Pixels that it grows by, all around taken together."""
    emptied: bool = False
    """Whether the picture is grey where it is white before it has grown."""


@dataclass(frozen=True)
class Drawing:
    """What a graph draws."""

    fields: Json
    """Of an order, without pictures, model and sampler as it calls them."""
    model: str
    sampler: tuple[str, str]
    """A1111's name, and the schedule type's."""
    loader: str
    """Nodes by their ids, for what is told while it is drawn."""
    sampling: Node
    decoder: str
    outputs: tuple[Node, ...]
    init: SentPicture | None = None
    mask: SentMask | None = None
    shift: tuple[Node, float] | None = None
    """The shift that flow matching is to have, which a folder has of its own."""
    scaling: Scaling | None = None
    """Of finished pictures."""
    shows_previews: bool = False
    """Whether its sampler sends small pictures of steps of itself."""

    def outline(self) -> Drawing:
        """Return what is told of it once it is an order, without the graph: that may hold pictures of many MB."""
        sampling, *outputs = (replace(node, graph={}, inputs={}) for node in (self.sampling, *self.outputs))
        return replace(self, fields={}, sampling=sampling, outputs=tuple(outputs), init=None, mask=None, shift=None)


def read_graph(graph: object, listed: Listed) -> Drawing:
    """Read a graph. Raises `GraphError` for one that is not drawn here, with the node that is not."""
    if not isinstance(graph, dict) or not graph:
        raise GraphError("no_prompt", "No prompt provided", "No prompt provided")
    if len(graph) > MOST_NODES:
        raise GraphError("invalid_prompt", f"the graph has more than the {MOST_NODES} nodes that are read here")
    if max(map(len, graph)) > _LONGEST_ID:
        raise GraphError("invalid_prompt", f"a node's id has more than the {_LONGEST_ID} characters that are read here")
    nodes = [Node.of(graph, listed, str(name)) for name in graph]
    _require_no_loop(graph)
    outputs = tuple(node for node in nodes if NODES[node.kind].is_output)
    if not outputs:
        raise GraphError("prompt_no_outputs", "Prompt has no outputs")
    first, *others = outputs
    for other in others:
        if other.inputs["images"] != first.inputs["images"]:
            raise other.refused(f"it has other pictures than node {first.id}; a graph draws one set of pictures here")
    drawing = _finished(first)
    swarms = drawing.sampling.kind == "SwarmKSampler" and drawing.sampling.value("previews") != "none"
    return replace(drawing, outputs=outputs, shows_previews=swarms)


def _require_no_loop(graph: JsonView) -> None:
    """Raise `GraphError` for a graph in which a node comes from itself, or one that is deeper than any is read."""
    done: set[str] = set()

    def sources(name: str) -> Iterator[str]:
        inputs = graph[name].get("inputs")
        for value in (inputs if isinstance(inputs, dict) else {}).values():
            if isinstance(value, list) and value and str(value[0]) in graph:
                yield str(value[0])

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path or len(path) > _DEPTH:
            raise GraphError("dependency_cycle", "the graph has a loop, or is too deep", f"Node ID '#{name[:40]}'")
        if name not in done:
            for source in sources(name):
                visit(source, (*path, name))
            done.add(name)

    for name in graph:
        visit(str(name), ())


def _finished(output: Node) -> Drawing:
    """Read what comes to an output: drawn pictures, perhaps enlarged, perhaps brought to a size."""
    node, _ = output.follow("images")
    scaling, upscaler = None, None
    if node.kind == "ImageScale":
        scaling, node = _scaling(node), node.follow("image")[0]
    if node.kind == "ImageUpscaleWithModel":
        upscaler, enlarging, node = _upscaler(node), node, node.follow("image")[0]
    if node.kind not in ("VAEDecode", "VAEDecodeTiled"):
        raise node.refused("no picture is drawn for it: pictures come from VAEDecode here")
    drawing = replace(_sampled(node), decoder=node.id, scaling=scaling)
    if upscaler is None:
        return drawing
    if "hires" in drawing.fields:
        raise enlarging.refused("it enlarges what a second pass has enlarged already; leave one of the two out")
    return replace(drawing, fields={**drawing.fields, "upscaler": upscaler})


def _upscaler(node: Node) -> str:
    return str(node.follow("upscale_model")[0].value("model_name"))


def _scaling(node: Node) -> Scaling:
    method = node.value("upscale_method")
    return Scaling(node.value("width"), node.value("height"), node.value("crop") == "center", method == "nearest-exact")


@dataclass(frozen=True)
class _Sampling:
    """Settings of one sampler."""

    node: Node
    model: Node
    """The node that the model comes from, and which of its outputs does not matter."""
    positive: Node
    negative: Node | None
    latents: Node
    seed: int
    steps: int
    guidance: float
    sampler: tuple[str, str]
    strength: float
    """Share of the steps that are run."""
    more: Json = field(default_factory=dict)


def _sampled(decoder: Node) -> Drawing:
    _require_vae(decoder)
    node, _ = decoder.follow("samples")
    sampling = _sampling_of(node)
    drawing = _conditions(sampling)
    latents, amount = sampling.latents, 1
    if latents.kind == "RepeatLatentBatch":
        amount, latents = int(latents.value("amount")), latents.follow("samples")[0]
    if latents.kind in _EMPTY:
        if sampling.strength < 1:
            raise node.refused(f"it draws {sampling.strength:g} of the steps on nothing (node {latents.id})")
        return _from_nothing(drawing, latents, amount)
    mask = None
    if latents.kind == "SetLatentNoiseMask":
        mask, latents = _mask(latents.follow("mask")), latents.follow("samples")[0]
    if latents.kind in ("LatentUpscale", "LatentUpscaleBy") or _pixels_drawn(latents):
        if mask is not None or amount > 1:
            raise latents.refused("a second pass has no mask and no batch of its own here")
        return _second_pass(drawing, sampling, latents)
    if latents.kind == "VAEEncodeForInpaint":
        mask = replace(_mask(latents.follow("mask")), grown=int(latents.value("grow_mask_by")), emptied=True)
    elif latents.kind not in ("VAEEncode", "VAEEncodeTiled"):
        raise latents.refused("no drawing starts from it here")
    _require_vae(latents)
    init = _picture(latents.follow("pixels")[0])
    strength = {} if mask is not None and sampling.strength == 1 else {"strength": sampling.strength}
    return replace(_with_fields(drawing, **strength, num_images=amount), init=init, mask=mask)


def _from_nothing(drawing: Drawing, latents: Node, amount: int = 1) -> Drawing:
    size = {side: int(latents.value(side)) for side in ("width", "height")}
    return _with_fields(drawing, **size, num_images=amount * int(latents.value("batch_size")))


def _with_fields(drawing: Drawing, **fields: Any) -> Drawing:
    return replace(drawing, fields={**drawing.fields, **fields})


def _require_vae(node: Node) -> None:
    """Follow the VAE, which is the folder's own: names that are not here are refused on the way."""
    vae, _ = node.follow("vae")
    vae.value(_LOADERS.get(vae.kind, "vae_name"))


def _pixels_drawn(latents: Node) -> bool:
    """Tell latents that are encoded from what was drawn, not from what was sent."""
    if latents.kind not in ("VAEEncode", "VAEEncodeTiled"):
        return False
    node, _ = latents.follow("pixels")
    while node.kind in ("ImageScale", "ImageUpscaleWithModel"):
        node, _ = node.follow("image")
    return node.kind in ("VAEDecode", "VAEDecodeTiled")


def _second_pass(drawing: Drawing, second: _Sampling, latents: Node) -> Drawing:
    """Join two samplers, the second one larger, to one order: Hires fix."""
    upscaler = None
    if latents.kind.startswith("LatentUpscale"):
        enlarging, (below, _) = latents, latents.follow("samples")
    else:
        node, _ = latents.follow("pixels")
        if node.kind != "ImageScale":
            raise latents.refused("its size is not known: put an ImageScale before it")
        enlarging, (node, _) = node, node.follow("image")
        if node.kind != "ImageUpscaleWithModel":
            raise enlarging.refused(
                "a second pass is enlarged by LatentUpscale, or by ImageUpscaleWithModel before this"
            )
        upscaler, (decoder, _) = _upscaler(node), node.follow("image")
        below, _ = decoder.follow("samples")
    first = _sampling_of(below)
    for name, mine, theirs in (
        ("sampler and scheduler", second.sampler, first.sampler), ("cfg", second.guidance, first.guidance),
        ("model", second.model.id, first.model.id), ("positive", second.positive.id, first.positive.id),
        ("negative", second.negative and second.negative.id, first.negative and first.negative.id),
    ):  # fmt: skip
        if mine != theirs:
            raise second.node.refused(f"its {name} are to be those of the first pass (node {below.id})")
    if second.strength >= 1:
        raise second.node.refused("a second pass draws a share of the steps: denoise below 1")
    if first.latents.kind not in _EMPTY or first.strength < 1:
        raise first.node.refused("a second pass enlarges what is drawn from a prompt alone")
    whole = _from_nothing(_conditions(first), first.latents)
    width = whole.fields["width"]
    times = float(enlarging.value("scale_by")) if enlarging.kind == "LatentUpscaleBy" else 0.0
    if not times:
        across, down = (int(enlarging.value(side)) for side in ("width", "height"))
        times = (across or down * width / int(whole.fields["height"])) / width
    more = {} if upscaler is None else {"upscaler": upscaler}
    runs = round(second.steps * second.strength)
    found = _with_fields(whole, **hires_fields(times, second.strength, hires_steps=runs), **more)
    return replace(found, sampling=second.node, loader=drawing.loader)


def _sampling_of(node: Node) -> _Sampling:
    match node.kind:
        case "KSampler":
            denoise = float(node.value("denoise"))
            if denoise < _LEAST_DENOISE:
                raise node.refused(f"denoise {denoise:g} draws nothing")
            # There so many steps are run; they are a share of more.
            steps = round(int(node.value("steps")) / denoise)
            return replace(_plain(node), seed=int(node.value("seed")), steps=steps, strength=denoise)
        case "KSamplerAdvanced" | "SwarmKSampler":
            return _from_step(node)
        case "SamplerCustomAdvanced":
            return _custom(node)
    raise node.refused("no sampler that is read here")


def _plain(node: Node) -> _Sampling:
    return _Sampling(
        node, node.follow("model")[0], node.follow("positive")[0], node.follow("negative")[0],
        node.follow("latent_image")[0], 0, int(node.value("steps")), float(node.value("cfg")),
        _sampler(node.value("sampler_name"), node.value("scheduler")), 1.0,
    )  # fmt: skip


def _sampler(sampler: str, scheduler: str) -> tuple[str, str]:
    return SAMPLER_NAMES[sampler], SCHEDULER_NAMES[scheduler]


def _from_step(node: Node) -> _Sampling:
    found = _plain(node)
    begin, end = int(node.value("start_at_step")), int(node.value("end_at_step"))
    whole = node.value("add_noise") == "enable" and node.value("return_with_leftover_noise") == "disable"
    if not whole or end < found.steps or begin >= found.steps:
        raise node.refused("a part of the steps, or drawing without its own noise, is not done here")
    more: Json = {}
    if node.kind == "SwarmKSampler":
        if node.value("tile_sample") or max(float(node.value("sigma_min")), float(node.value("sigma_max"))) >= 0:
            raise node.refused("tile_sample, sigma_min and sigma_max are not done here")
        if share := float(node.value("var_seed_strength")):
            more = {"variation_strength": share, "variation_seed": int(node.value("var_seed"))}
    strength = (found.steps - begin) / found.steps
    return replace(found, seed=int(node.value("noise_seed")), strength=strength, more=more)


def _custom(node: Node) -> _Sampling:
    guider, sigmas = node.follow("guider")[0], node.follow("sigmas")[0]
    begin = 0
    if sigmas.kind == "SplitSigmas":
        if node.follow("sigmas")[1] != 1:
            raise sigmas.refused("the first part of the steps alone is not drawn here")
        begin, sigmas = int(sigmas.value("step")), sigmas.follow("sigmas")[0]
    if sigmas.kind != "BasicScheduler":
        raise sigmas.refused("sigmas come from BasicScheduler here")
    denoise, steps = float(sigmas.value("denoise")), int(sigmas.value("steps"))
    if denoise < _LEAST_DENOISE or begin >= steps or (begin and denoise < 1):
        raise sigmas.refused("it leaves no step, or a share of a share")
    guided = guider.kind == "CFGGuider"
    return _Sampling(
        node, guider.follow("model")[0], guider.follow("positive" if guided else "conditioning")[0],
        guider.follow("negative")[0] if guided else None, node.follow("latent_image")[0],
        int(node.follow("noise")[0].value("noise_seed")), round(steps / denoise),
        float(guider.value("cfg")) if guided else 1.0,
        _sampler(node.follow("sampler")[0].value("sampler_name"), sigmas.value("scheduler")),
        denoise if denoise < 1 else (steps - begin) / steps,
    )  # fmt: skip


def _conditions(sampling: _Sampling) -> Drawing:
    """Read model, LoRAs and texts."""
    positive, guidance = sampling.positive, sampling.guidance
    if positive.kind == "FluxGuidance":
        if guidance != 1:
            raise positive.refused(f"cfg {guidance:g} (node {sampling.node.id}) and FluxGuidance lead both; take cfg 1")
        guidance, positive = float(positive.value("guidance")), positive.follow("conditioning")[0]
    prompt, clip = _text(positive)
    negative = None
    if sampling.negative is not None:
        other = sampling.negative
        other = other.follow("conditioning")[0] if other.kind == "FluxGuidance" else other
        if other.kind != "ConditioningZeroOut":
            negative, _ = _text(other)
    loader, shift, weights = _model(sampling.model)
    clip_layer, text_weights = _text_encoder(clip)
    loras = [
        {"name": node.value("lora_name"), "weight": weight, "text_weight": text_weights.get(node.id, 0.0)}
        for node, weight in reversed(weights)
    ]
    unmerged = text_weights.keys() - {node.id for node, _ in weights}
    if unmerged:
        raise clip.refused(f"the LoRA of node {min(unmerged)} is for the texts alone; join it to the model too")
    fields = {
        "prompt": prompt, "negative_prompt": negative, "seed": sampling.seed, "steps": sampling.steps,
        "guidance_scale": guidance, "clip_layer": clip_layer, "loras": loras or None, **sampling.more,
    }  # fmt: skip
    model = str(loader.value(_LOADERS[loader.kind]))
    return Drawing(fields, model, sampling.sampler, loader.id, sampling.node, "", (), shift=shift)


def _text(node: Node) -> tuple[str, Node]:
    if node.kind not in _TEXTS:
        raise node.refused("texts come from CLIPTextEncode here")
    if node.kind == "CLIPTextEncodeSDXL" and node.value("text_g") != node.value("text_l"):
        raise node.refused("both encoders get one text here: text_g and text_l are to be the same")
    if node.kind == "SwarmClipTextEncodeAdvanced" and node.value("guidance") >= 0:
        raise node.refused("its guidance is read of FluxGuidance alone")
    return str(node.value(_TEXTS[node.kind])), node.follow("clip")[0]


def _model(node: Node) -> tuple[Node, tuple[Node, float] | None, list[tuple[Node, float]]]:
    """Return the loader, the shift of flow matching, and LoRAs, the last one first."""
    shift, loras = None, []
    while node.kind not in _LOADERS:
        if node.kind in _SHIFTS:
            shift = node, float(node.value("shift"))
        elif node.kind.startswith("LoraLoader"):
            loras.append((node, float(node.value("strength_model"))))
        else:
            raise node.refused("no model that is drawn with here")
        node, _ = node.follow("model")
    return node, shift, loras


def _text_encoder(node: Node) -> tuple[int | None, dict[str, float]]:
    """Return the layer of CLIP, from its end, that leads, if one is named, and what LoRAs weigh, by their nodes."""
    clip_layer, weights = None, dict[str, float]()
    while node.kind != "CheckpointLoaderSimple" and node.kind not in _TEXT_LOADERS:
        if node.kind == "CLIPSetLastLayer":
            clip_layer = max(clip_layer or 1, -int(node.value("stop_at_clip_layer")))
        elif node.kind == "LoraLoader":
            weights[node.id] = float(node.value("strength_clip"))
        else:
            raise node.refused("no text encoder that is drawn with here")
        node, _ = node.follow("clip")
    for name in NODES[node.kind].required:
        node.value(name)
    return clip_layer, weights


def _picture(node: Node) -> SentPicture:
    scalings: list[Scaling] = []
    while node.kind == "ImageScale":
        scalings.append(_scaling(node))
        node, _ = node.follow("image")
    if node.kind not in _IMAGES:
        raise node.refused("no picture to start from comes from it here")
    how, name = _IMAGES[node.kind]
    return SentPicture(how, str(node.value(name)), tuple(reversed(scalings)))  # type: ignore[arg-type]


def _mask(found: tuple[Node, int]) -> SentMask:
    node, _ = found
    inverted = False
    while node.kind == "InvertMask":
        inverted, node = not inverted, node.follow("mask")[0]
    match node.kind:
        case "LoadImageMask":
            return SentMask(SentPicture("file", str(node.value("image"))), str(node.value("channel")), inverted)
        case "ETN_LoadMaskBase64":
            return SentMask(SentPicture("base64", str(node.value("mask"))), "red", inverted)
        case "ImageToMask":
            return SentMask(_picture(node.follow("image")[0]), str(node.value("channel")), inverted)
        case "LoadImage" | "ETN_LoadImageBase64" | "SwarmLoadImageB64":
            return SentMask(_picture(node), "alpha", inverted)
    raise node.refused("no mask comes from it here")
