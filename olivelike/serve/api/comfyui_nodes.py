"""ComfyUI's nodes that are read here, as its `/object_info` tells them, and the values of a graph, checked by that.

Names, inputs and outputs are those of ComfyUI's `nodes.py` and `comfy_extras`; `ETN_…` are of comfyui-tooling-nodes,
`Swarm…` of SwarmUI.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from olivelike._text import did_you_mean
from olivelike._untrusted import Json, JsonView
from olivelike.serve.api.a1111_samplers import SCHEDULE_NAMES

Listed = Mapping[str, Sequence[str]]
"""Names that there are now, by the word for them in `NODES`."""
MOST_NODES: Final = 500
_MOST_TEXT: Final = 20_000
_FILES: Final = ("image", "mask", "image_base64")
"""Inputs that may be a whole picture in base64."""
SAMPLER_NAMES: Final = {
    "euler": "Euler", "euler_ancestral": "Euler a", "heun": "Heun", "dpm_2": "DPM2", "dpm_2_ancestral": "DPM2 a",
    "lms": "LMS", "dpmpp_sde": "DPM++ SDE", "dpmpp_sde_gpu": "DPM++ SDE", "dpmpp_2m": "DPM++ 2M",
    "dpmpp_2m_sde": "DPM++ 2M SDE", "dpmpp_2m_sde_gpu": "DPM++ 2M SDE", "dpmpp_2m_sde_heun": "DPM++ 2M SDE Heun",
    "dpmpp_3m_sde": "DPM++ 3M SDE", "dpmpp_3m_sde_gpu": "DPM++ 3M SDE", "dpmpp_2s_ancestral": "DPM++ 2S a",
    "ddim": "DDIM", "uni_pc": "UniPC", "lcm": "LCM", "deis": "DEIS", "ddpm": "DDPM",
}  # fmt: skip
"""A1111's names of ComfyUI's samplers."""
SCHEDULER_NAMES: Final = {**{name: name for name in SCHEDULE_NAMES if name != "automatic"}, "ddim_uniform": "ddim"}
"""A1111's names of ComfyUI's schedulers."""


class GraphError(Exception):
    """A graph that is not drawn here, said as ComfyUI says it: of one node, or of the whole."""

    def __init__(self, kind: str, message: str, details: str = "", *, node: str = "", class_type: str = "") -> None:
        super().__init__(f"{message}: {details}" if details else message)
        self.kind, self.message, self.details, self.node, self.class_type = kind, message, details, node, class_type

    def answer(self) -> Json:
        """Return the body of the refusal."""
        error = {"type": self.kind, "message": self.message, "details": self.details, "extra_info": {}}
        if not self.node:
            return {"error": error, "node_errors": {}}
        whole = f"node {self.node} ({self.class_type}): {self}"
        return {
            "error": {**error, "type": "prompt_outputs_failed_validation", "message": whole},
            "node_errors": {self.node: {"errors": [error], "dependent_outputs": [], "class_type": self.class_type}},
        }


@dataclass(frozen=True)
class NodeClass:
    """Inputs and outputs of a kind of node; an input is written as ComfyUI does, a list of names by its word."""

    gives: tuple[str, ...]
    required: Mapping[str, Sequence[Any]]
    optional: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    is_output: bool = False


def _int(default: int, least: int = 0, most: int = 1 << 14) -> Sequence[Any]:
    return ("INT", {"default": default, "min": least, "max": most})


def _float(default: float, least: float = 0, most: float = 1000) -> Sequence[Any]:
    return ("FLOAT", {"default": default, "min": least, "max": most})


def _text(default: str = "") -> Sequence[Any]:
    return ("STRING", {"default": default, "multiline": True})


def _one_of(*names: str) -> Sequence[Any]:
    return (names, {})


def _listed(word: str) -> Sequence[Any]:
    return (word, {"listed": True})


_SEED: Final = _int(0, 0, (1 << 64) - 1)
_LINK: Final[Mapping[str, Sequence[Any]]] = {
    kind: (kind,)
    for kind in (
        "MODEL", "CLIP", "VAE", "CONDITIONING", "LATENT", "IMAGE", "MASK", "NOISE", "GUIDER", "SAMPLER", "SIGMAS",
        "UPSCALE_MODEL",
    )
}  # fmt: skip
_METHOD: Final = _one_of("nearest-exact", "bilinear", "area", "bicubic", "lanczos", "bislerp")
_SIDES: Final = {"width": _int(512, 16), "height": _int(512, 16)}
_SIDES_OR_NONE: Final = {"width": _int(512), "height": _int(512)}
_CROP: Final = {"crop": _one_of("disabled", "center")}
_TILES: Final = {
    "tile_size": _int(512), "overlap": _int(64), "temporal_size": _int(64), "temporal_overlap": _int(8),
}  # fmt: skip
_CHANNEL: Final = _one_of("alpha", "red", "green", "blue")
_BATCH: Final = {"batch_size": _int(1, 1, 4096)}
_STEPS: Final = {
    "steps": _int(20, 1, 10_000), "cfg": _float(8.0, 0, 100), "sampler_name": _listed("samplers"),
    "scheduler": _listed("schedulers"),
}  # fmt: skip
_DRAWN: Final = {
    "positive": _LINK["CONDITIONING"], "negative": _LINK["CONDITIONING"], "latent_image": _LINK["LATENT"],
}  # fmt: skip
_END: Final = {
    "start_at_step": _int(0, 0, 10_000), "end_at_step": _int(10_000, 0, 10_000),
    "return_with_leftover_noise": _one_of("disable", "enable"),
}  # fmt: skip
_FROM_STEP: Final = {
    "model": _LINK["MODEL"], "add_noise": _one_of("enable", "disable"), "noise_seed": _SEED, **_STEPS, **_DRAWN, **_END,
}  # fmt: skip
_ENCODED: Final = {"pixels": _LINK["IMAGE"], "vae": _LINK["VAE"]}
_DECODED: Final = {"samples": _LINK["LATENT"], "vae": _LINK["VAE"]}
_SHIFTED: Final = NodeClass(("MODEL",), {"model": _LINK["MODEL"], "shift": _float(3.0, 0, 100)})
_EMPTY: Final = NodeClass(("LATENT",), {**_SIDES, **_BATCH})
_SENT: Final = {"images": _LINK["IMAGE"]}

NODES: Final[Mapping[str, NodeClass]] = {
    "CheckpointLoaderSimple": NodeClass(("MODEL", "CLIP", "VAE"), {"ckpt_name": _listed("models")}),
    "UNETLoader": NodeClass(
        ("MODEL",),
        {
            "unet_name": _listed("models"),
            "weight_dtype": _one_of("default", "fp8_e4m3fn", "fp8_e4m3fn_fast", "fp8_e5m2"),
        },
    ),
    "CLIPLoader": NodeClass(("CLIP",), {"clip_name": _listed("models"), "type": _text("stable_diffusion")}),
    "DualCLIPLoader": NodeClass(
        ("CLIP",), {"clip_name1": _listed("models"), "clip_name2": _listed("models"), "type": _text("sdxl")}
    ),
    "TripleCLIPLoader": NodeClass(
        ("CLIP",), {f"clip_name{number}": _listed("models") for number in (1, 2, 3)}
    ),
    "VAELoader": NodeClass(("VAE",), {"vae_name": _listed("models")}),
    "LoraLoader": NodeClass(
        ("MODEL", "CLIP"),
        {
            "model": _LINK["MODEL"], "clip": _LINK["CLIP"], "lora_name": _listed("loras"),
            "strength_model": _float(1.0, -100, 100), "strength_clip": _float(1.0, -100, 100),
        },
    ),
    "LoraLoaderModelOnly": NodeClass(
        ("MODEL",),
        {"model": _LINK["MODEL"], "lora_name": _listed("loras"), "strength_model": _float(1.0, -100, 100)},
    ),
    "ModelSamplingSD3": _SHIFTED,
    "ModelSamplingAuraFlow": _SHIFTED,
    "CLIPSetLastLayer": NodeClass(("CLIP",), {"clip": _LINK["CLIP"], "stop_at_clip_layer": _int(-1, -24, -1)}),
    "CLIPTextEncode": NodeClass(("CONDITIONING",), {"text": _text(), "clip": _LINK["CLIP"]}),
    "CLIPTextEncodeSDXL": NodeClass(
        ("CONDITIONING",),
        {
            "clip": _LINK["CLIP"], **_SIDES, "crop_w": _int(0), "crop_h": _int(0), "target_width": _int(1024),
            "target_height": _int(1024), "text_g": _text(), "text_l": _text(),
        },
    ),
    "SwarmClipTextEncodeAdvanced": NodeClass(
        ("CONDITIONING",),
        {"clip": _LINK["CLIP"], "steps": _int(20), "prompt": _text(), **_SIDES, "target_width": _int(512),
         "target_height": _int(512)},
        {"guidance": _float(-1, -1, 100)},
    ),
    "ConditioningZeroOut": NodeClass(("CONDITIONING",), {"conditioning": _LINK["CONDITIONING"]}),
    "FluxGuidance": NodeClass(
        ("CONDITIONING",), {"conditioning": _LINK["CONDITIONING"], "guidance": _float(3.5, 0, 100)}
    ),
    "EmptyLatentImage": _EMPTY,
    "EmptySD3LatentImage": _EMPTY,
    "EmptyFlux2LatentImage": _EMPTY,
    "RepeatLatentBatch": NodeClass(("LATENT",), {"samples": _LINK["LATENT"], "amount": _int(1, 1, 64)}),
    "LatentUpscale": NodeClass(
        ("LATENT",), {"samples": _LINK["LATENT"], "upscale_method": _METHOD, **_SIDES_OR_NONE, **_CROP}
    ),
    "LatentUpscaleBy": NodeClass(
        ("LATENT",), {"samples": _LINK["LATENT"], "upscale_method": _METHOD, "scale_by": _float(1.5, 0.01, 8)}
    ),
    "VAEEncode": NodeClass(("LATENT",), _ENCODED),
    "VAEEncodeTiled": NodeClass(("LATENT",), _ENCODED, _TILES),
    "VAEEncodeForInpaint": NodeClass(
        ("LATENT",), {**_ENCODED, "mask": _LINK["MASK"], "grow_mask_by": _int(6, 0, 64)}
    ),
    "SetLatentNoiseMask": NodeClass(("LATENT",), {"samples": _LINK["LATENT"], "mask": _LINK["MASK"]}),
    "KSampler": NodeClass(
        ("LATENT",), {"model": _LINK["MODEL"], "seed": _SEED, **_STEPS, **_DRAWN, "denoise": _float(1.0, 0, 1)}
    ),
    "KSamplerAdvanced": NodeClass(("LATENT",), _FROM_STEP),
    "SwarmKSampler": NodeClass(
        ("LATENT",),
        {**_FROM_STEP, "var_seed": _SEED, "var_seed_strength": _float(0.0, 0, 1)},
        {
            "sigma_max": _float(-1, -1), "sigma_min": _float(-1, -1), "rho": _float(7.0, 0, 100), "previews": _text(),
            "tile_sample": ("BOOLEAN", {"default": False}), "tile_size": _int(1024),
        },
    ),
    "SamplerCustomAdvanced": NodeClass(
        ("LATENT", "LATENT"),
        {
            "noise": _LINK["NOISE"], "guider": _LINK["GUIDER"], "sampler": _LINK["SAMPLER"],
            "sigmas": _LINK["SIGMAS"], "latent_image": _LINK["LATENT"],
        },
    ),
    "RandomNoise": NodeClass(("NOISE",), {"noise_seed": _SEED}),
    "BasicGuider": NodeClass(("GUIDER",), {"model": _LINK["MODEL"], "conditioning": _LINK["CONDITIONING"]}),
    "CFGGuider": NodeClass(
        ("GUIDER",),
        {
            "model": _LINK["MODEL"], "positive": _LINK["CONDITIONING"], "negative": _LINK["CONDITIONING"],
            "cfg": _STEPS["cfg"],
        },
    ),
    "KSamplerSelect": NodeClass(("SAMPLER",), {"sampler_name": _listed("samplers")}),
    "BasicScheduler": NodeClass(
        ("SIGMAS",), {"model": _LINK["MODEL"], "scheduler": _listed("schedulers"), "steps": _int(20, 1, 10_000),
                      "denoise": _float(1.0, 0, 1)}
    ),
    "SplitSigmas": NodeClass(("SIGMAS", "SIGMAS"), {"sigmas": _LINK["SIGMAS"], "step": _int(0, 0, 10_000)}),
    "VAEDecode": NodeClass(("IMAGE",), _DECODED),
    "VAEDecodeTiled": NodeClass(("IMAGE",), _DECODED, _TILES),
    "LoadImage": NodeClass(("IMAGE", "MASK"), {"image": _text()}),
    "LoadImageMask": NodeClass(("MASK",), {"image": _text(), "channel": _CHANNEL}),
    "ETN_LoadImageBase64": NodeClass(("IMAGE", "MASK"), {"image": _text()}),
    "ETN_LoadMaskBase64": NodeClass(("MASK",), {"mask": _text()}),
    "ETN_LoadImageCache": NodeClass(("IMAGE", "MASK"), {"id": _text()}),
    "SwarmLoadImageB64": NodeClass(("IMAGE", "MASK"), {"image_base64": _text()}),
    "ImageScale": NodeClass(
        ("IMAGE",), {"image": _LINK["IMAGE"], "upscale_method": _METHOD, **_SIDES_OR_NONE, **_CROP}
    ),
    "ImageToMask": NodeClass(("MASK",), {"image": _LINK["IMAGE"], "channel": _one_of("red", "green", "blue")}),
    "InvertMask": NodeClass(("MASK",), {"mask": _LINK["MASK"]}),
    "UpscaleModelLoader": NodeClass(("UPSCALE_MODEL",), {"model_name": _listed("upscalers")}),
    "ImageUpscaleWithModel": NodeClass(("IMAGE",), {"upscale_model": _LINK["UPSCALE_MODEL"], "image": _LINK["IMAGE"]}),
    "SaveImage": NodeClass((), {**_SENT, "filename_prefix": _text("ComfyUI")}, is_output=True),
    "PreviewImage": NodeClass((), _SENT, is_output=True),
    "SaveImageWebsocket": NodeClass((), _SENT, is_output=True),
    "ETN_SendImageWebSocket": NodeClass((), {**_SENT, "format": _one_of("PNG", "JPEG")}, is_output=True),
    "ETN_SaveImageCache": NodeClass((), {**_SENT, "format": _one_of("PNG", "JPEG", "WEBP")}, is_output=True),
    "SwarmSaveImageWS": NodeClass((), _SENT, {"bit_depth": _text("8bit")}, is_output=True),
}  # fmt: skip
"""Kinds of nodes by their names. Inputs are in ComfyUI's order: programs give them by their places."""


def object_info(listed: Listed, only: str | None = None) -> Json:
    """Return what ComfyUI tells of its kinds of nodes, or of one; nothing of one that is not here."""

    def written(spec: Sequence[Any]) -> list[Any]:
        if len(spec) > 1 and spec[1].get("listed"):
            return [list(listed[spec[0]]), {}]
        return [list(spec[0]) if isinstance(spec[0], tuple) else spec[0], *spec[1:]]

    def told(name: str, kind: NodeClass) -> Json:
        inputs = {
            group: {key: written(spec) for key, spec in specs.items()}
            for group, specs in (("required", kind.required), ("optional", kind.optional))
        }
        return {
            "input": inputs, "input_order": {group: list(specs) for group, specs in inputs.items()},
            "output": list(kind.gives), "output_is_list": [False] * len(kind.gives), "output_name": list(kind.gives),
            "name": name, "display_name": name, "description": "", "python_module": "nodes", "category": "olivelike",
            "output_node": kind.is_output,
        }  # fmt: skip

    return {name: told(name, kind) for name, kind in NODES.items() if only in (None, name)}


@dataclass(frozen=True)
class Node:
    """A node of a graph whose kind is known, with what it is asked for."""

    graph: JsonView
    listed: Listed
    id: str
    kind: str
    inputs: JsonView

    @classmethod
    def of(cls, graph: JsonView, listed: Listed, name: str) -> Node:
        """Return a node. Raises `GraphError` if it is none, or of a kind that is not drawn here."""
        one = graph.get(name)
        if not isinstance(one, dict) or not isinstance(one.get("class_type"), str):
            raise GraphError("invalid_prompt", f"node {name[:40]!r} has no class_type", node=name[:40])
        kind, inputs = one["class_type"][:100], one.get("inputs", {})
        if kind not in NODES:
            raise GraphError(
                "missing_node_type", f"node {kind!r} is not here, /object_info has those that are",
                f"Node ID '#{name[:40]}'", node=name[:40], class_type=kind,
            )  # fmt: skip
        found = cls(graph, listed, name, kind, inputs if isinstance(inputs, dict) else {})
        missing = [key for key in NODES[kind].required if key not in found.inputs]
        if missing:
            raise found.error("required_input_missing", "Required input is missing", ", ".join(missing))
        return found

    def error(self, kind: str, message: str, details: str = "") -> GraphError:
        """Return a refusal that names this node."""
        return GraphError(kind, message, details, node=self.id[:40], class_type=self.kind)

    def refused(self, why: str) -> GraphError:
        """Return the refusal of what this node does, or how it is joined to others."""
        return self.error("not_drawn_here", why)

    def follow(self, name: str) -> tuple[Node, int]:
        """Return the node that an input comes from, and which of its outputs. Raises `GraphError` if none fits."""
        wanted = (NODES[self.kind].required.get(name) or NODES[self.kind].optional[name])[0]
        link = self.inputs[name]
        is_link = isinstance(link, list) and len(link) == 2 and isinstance(link[1], int)
        if not is_link or isinstance(link[1], bool) or str(link[0]) not in self.graph:
            raise self.error("bad_linked_input", "Bad linked input, must be a length-2 list of [node_id, slot]", name)
        found = Node.of(self.graph, self.listed, str(link[0]))
        gives = NODES[found.kind].gives
        if not 0 <= link[1] < len(gives) or gives[link[1]] != wanted:
            raise self.error("return_type_mismatch", "Return type mismatch between linked nodes", f"{name}, {wanted}")
        return found, link[1]

    def value(self, name: str) -> Any:
        """Return an input's value; an optional one's default. Raises `GraphError` if it is none that may be there."""
        specs = NODES[self.kind]
        spec = specs.required.get(name) or specs.optional[name]
        value = self.inputs.get(name, spec[1].get("default"))
        kind, bounds = spec[0], spec[1]
        if bounds.get("listed") or isinstance(kind, tuple):
            return self._named(name, value, self.listed[kind] if bounds.get("listed") else kind)
        if kind == "STRING":
            if not isinstance(value, str) or (len(value) > _MOST_TEXT and name not in _FILES):
                raise self.error("invalid_input_type", "Failed to convert an input value to a STRING value", name)
            return value
        if kind == "BOOLEAN":
            return bool(value)
        return self._number(name, value, kind, bounds)

    def _number(self, name: str, value: object, kind: str, bounds: JsonView) -> float:
        try:
            number = int(value) if kind == "INT" else float(value)  # type: ignore[call-overload, arg-type]
        except (TypeError, ValueError, OverflowError):
            raise self.error(
                "invalid_input_type",
                f"Failed to convert an input value to a {kind} value",
                f"{name}, {str(value)[:60]}",
            ) from None
        if not bounds["min"] <= number <= bounds["max"] or not math.isfinite(number):
            bigger = number > bounds["max"]
            raise self.error(
                "value_bigger_than_max" if bigger else "value_smaller_than_min",
                f"Value {number} {'bigger than max of' if bigger else 'smaller than min of'} "
                f"{bounds['max' if bigger else 'min']}",
                name,
            )
        return number

    def _named(self, name: str, value: object, names: Sequence[str]) -> str:
        plain = value.replace("\\", "/").removesuffix(".safetensors") if isinstance(value, str) else ""
        for one in (value, plain):
            if isinstance(one, str) and one in names:
                return one
        near = did_you_mean(plain[:200], names, "values") if names else "there are none"
        raise self.error("value_not_in_list", "Value not in list", f"{name}: {str(value)[:100]!r} not in list; {near}")
