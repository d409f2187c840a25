"""Recipes of other programs, by what they write into pictures: read, or refused by the program's name.

Where programs keep them: A1111 and its kin `parameters` of a PNG and `UserComment` of EXIF; SwarmUI the same, as JSON
with `sui_image_params` (its `docs/Image Metadata Format.md`); Fooocus the same, with `metadata_scheme` (its
`modules/meta_parser.py`); InvokeAI `invokeai_metadata`, before that `sd-metadata` and `Dream`; ComfyUI `prompt` and
`workflow`, in WebP EXIF's `Make` and `Model`; NovelAI `Comment` beside `Software`; Easy Diffusion a text for each
setting, or JSON in `UserComment`; Draw Things JSON as `UserComment` in XMP; Civitai's generator a ComfyUI graph with
`extraMetadata`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from olivelike._untrusted import Json, JsonView, parse_json
from olivelike.errors import SourceError
from olivelike.runtime.pictures.picture_record import COMMENT, PARAMETERS, PictureRecord, UsedFile
from olivelike.runtime.pictures.recipe_text import parse_a1111, record_of_settings
from olivelike.runtime.pipeline.request import read_number

_MOST: Final = 1 << 20
"""Characters of a text that is read."""
_WHY_COMFYUI: Final = (
    "this is a ComfyUI graph: which of its texts is the prompt depends on its nodes, and they may be anyone's"
)
_HINT: Final = "take prompt, seed and the like from it by hand"


@dataclass(frozen=True)
class _Form:
    program: str
    fits: Callable[[JsonView], bool]
    names: Mapping[str, str]
    """Its names → A1111's; `prompt` and `negative` are the two texts."""
    version: str | None = None
    """Its name for the program's version."""
    flat: Callable[[Json], Json] = dict
    """Makes one level of names of what it wrote."""
    own_syntax: re.Pattern[str] | None = None
    """Syntax of its prompts that weighs words, and is read otherwise here."""


def read_recipe(texts: Mapping[str, str], where: str) -> tuple[str, PictureRecord] | None:
    """Return which program made a picture, and its recipe; `None` if none of its texts is one.

    Raises `SourceError`, with the reason, if there is a recipe that can't be read.

    Args:
        texts: those in the picture by their names, `UserComment` being that of EXIF.
        where: for messages.
    """
    text = texts.get(PARAMETERS) or texts.get(COMMENT)
    for name in ("invokeai_metadata", "sd-metadata"):
        text = text or texts.get(name)
    if text is not None and text.strip():
        return read_recipe_text(text, where)
    if texts.get("Software") == "NovelAI" or "NovelAI" in texts.get("Title", ""):
        raise _refused(where, "this is a recipe of NovelAI, whose networks and weights, {more} and [less], are its own")
    if "Dream" in texts:
        raise _refused(where, "this is a command line of early InvokeAI")
    easy = {name: value for name, value in texts.items() if name in _EASY or name in _EASIER}
    if len(easy) > 3:
        return _read(_EASY_DIFFUSION, easy, where)
    for name in ("prompt", "workflow", "Make", "Model"):
        if _is_graph(texts.get(name, "").removeprefix(f"{name}:").removeprefix("workflow:").removeprefix("prompt:")):
            raise _refused(where, _WHY_COMFYUI)
    return None


def read_recipe_text(text: str, where: str = "the text") -> tuple[str, PictureRecord]:
    """Return which program wrote a text, and its recipe. Raises as `read_recipe`."""
    if not text.lstrip("\ufeff \t\r\n").startswith("{"):
        return "A1111", parse_a1111(text, where)
    if len(text) > _MOST:
        raise _refused(where, f"its JSON has {len(text):,} characters, and at most {_MOST:,} are read")
    try:
        value = parse_json(text.strip("\ufeff \t\r\n"))
    except ValueError as error:
        raise _refused(where, f"its JSON is damaged: {error}") from error
    for form in _FORMS:
        if form.fits(value):
            return _read(form, value, where)
    if _is_comfyui(value):
        raise _refused(where, _WHY_COMFYUI)
    raise _refused(where, "this is JSON of a program that is not known here")


def _refused(where: str, why: str) -> SourceError:
    return SourceError(f"{where}: can't be read as a recipe: {why}; {_HINT}")


def _is_graph(text: str) -> bool:
    if not text.lstrip().startswith("{"):
        return False
    try:
        return _is_comfyui(parse_json(text[:_MOST]))
    except ValueError:
        return '"class_type"' in text or '"nodes"' in text


def _is_comfyui(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    nodes = isinstance(value.get("nodes"), list) or any(name in value for name in ("prompt", "workflow"))
    return nodes or any(isinstance(node, dict) and "class_type" in node for node in value.values())


def _read(form: _Form, value: JsonView, where: str) -> tuple[str, PictureRecord]:
    """Return a form's program and its recipe, all that has no name of A1111's among the other settings."""
    texts = {"prompt": "", "negative": ""}
    settings: dict[str, str] = {}
    try:
        flat = form.flat(dict(value))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise _refused(where, f"this is a recipe of {form.program}, and damaged") from error
    loras, version = flat.pop("_loras", ()), flat.pop(form.version or "", None)
    for name, one in flat.items():
        known = form.names.get(name, name)
        if one is None or one in ("", [], {}):
            continue
        if known in texts:
            texts[known] = one if isinstance(one, str) else _text(one)
        else:
            settings[known] = _text(one)
    if "prompt" not in (form.names.get(name, name) for name in flat):
        raise _refused(where, f"this is a recipe of {form.program} without a prompt")
    if form.own_syntax is not None and (found := form.own_syntax.search(f"{texts['prompt']}\n{texts['negative']}")):
        raise _refused(
            where, f"this is a recipe of {form.program}, whose prompts weigh words in a way of their own ({found[0]})"
        )
    width, height = settings.pop("width", None), settings.pop("height", None)
    if width and height:
        settings["Size"] = f"{width}x{height}"
    record = record_of_settings(PictureRecord(texts["prompt"], texts["negative"] or None), settings)
    made_by = " ".join(dict.fromkeys((form.program, *_text(version or "").split())))
    return form.program, replace(record, version=made_by, loras=(*record.loras, *loras))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    return f"{value}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _lora(name: Any, weight: Any) -> UsedFile:
    stem = str(name).replace("\\", "/").rpartition("/")[2].removesuffix(".safetensors")
    return UsedFile(stem, None, read_number(str(weight)))


def _swarm(value: Json) -> Json:
    """SwarmUI: numbers may be texts, lists texts with commas; `clipstopatlayer` counts from the end."""
    flat = dict(value["sui_image_params"])
    names, weights = (
        one.split(",") if isinstance(one, str) else list(one or ())
        for one in (flat.pop("loras", ()), flat.pop("loraweights", ()))
    )
    flat["_loras"] = tuple(
        _lora(name, weights[place] if place < len(weights) else 1) for place, name in enumerate(names) if name
    )
    if "clipstopatlayer" in flat:
        flat["clipstopatlayer"] = abs(int(flat["clipstopatlayer"]))
    if flat.get("automaticvae"):
        del flat["automaticvae"]
    flat.pop("aspectratio", None)  # The sides say it.
    return flat


def _fooocus(value: Json) -> Json:
    """Fooocus: what was drawn is `full_prompt`, with its styles; `resolution` is a pair as text."""
    flat = dict(value)
    for full, plain in (("full_prompt", "prompt"), ("full_negative_prompt", "negative_prompt")):
        lines = flat.pop(full, None)
        if lines:
            flat[plain] = lines if isinstance(lines, str) else "\n".join(map(str, lines))
    numbers = re.findall(r"\d+", str(flat.pop("resolution", "")))
    if len(numbers) == 2:
        flat["width"], flat["height"] = numbers
    flat["_loras"] = tuple(_lora(one[0], one[1]) for one in flat.pop("loras", None) or ())
    for name in [name for name in flat if name.startswith("lora_combined_")]:
        *enabled, lora, weight = str(flat.pop(name)).split(" : ")
        if enabled != ["False"] and lora != "None":
            flat["_loras"] += (_lora(lora, weight),)
    for name in ("vae", "refiner_model"):
        if flat.get(name) in ("None", "Default (model)"):
            del flat[name]
    flat.pop("metadata_scheme", None)
    return flat


def _invoke(value: Json) -> Json:
    """InvokeAI since 3: models are objects with a name, and `clip_skip` counts what is left out, from 0."""
    flat = dict(value)
    model = flat.pop("model", None) or {}
    flat["model"] = model.get("name") or model.get("model_name") if isinstance(model, dict) else model
    loras = [one.get("model") or one.get("lora") or {} for one in flat.get("loras") or ()]
    flat["_loras"] = tuple(
        _lora(lora.get("name") or lora.get("model_name"), one.get("weight", 1))
        for lora, one in zip(loras, flat.pop("loras", None) or (), strict=True)
    )
    if flat.get("clip_skip"):
        flat["clip_skip"] = int(flat["clip_skip"]) + 1
    scheduler = flat.get("scheduler")
    if isinstance(scheduler, str) and scheduler.endswith("_k"):
        flat |= {"scheduler": scheduler.removesuffix("_k"), "Schedule type": "Karras"}
    for name in ("rand_device", "generation_mode", "seamless_x", "seamless_y"):
        if flat.get(name) in ("cpu", "txt2img", "sdxl_txt2img", False):
            del flat[name]
    return flat


def _old_invoke(value: Json) -> Json:
    """InvokeAI before 3: the negative prompt stands in the prompt, in brackets at its end."""
    image = dict(value["image"])
    prompt = image.pop("prompt")
    prompt = prompt[0]["prompt"] if isinstance(prompt, list) else prompt
    if (found := re.search(r"\[([^\[\]]*)\]\s*$", prompt)) is not None:
        image["negative_prompt"], prompt = found[1], prompt[: found.start()]
    image["positive_prompt"] = prompt
    return image | {name: value[name] for name in ("model_weights", "app_version") if name in value}


def _civitai(value: Json) -> Json:
    """Civitai's generator: a graph, and beside it what was asked for, as JSON in JSON."""
    flat = parse_json(value["extraMetadata"])
    if not isinstance(flat, dict):
        raise TypeError("no object")
    return flat


_K_NAMES: Final = {"sampler": "Sampler", "sampler_name": "Sampler", "scheduler": "Scheduler"}
_SIDES: Final = {"width": "width", "height": "height", "steps": "Steps", "seed": "Seed"}
_EASY: Final = {
    "prompt": "prompt", "negative_prompt": "negative", "seed": "Seed", "use_stable_diffusion_model": "Model",
    "sampler_name": "Sampler", "num_inference_steps": "Steps", "guidance_scale": "CFG scale", "use_vae_model": "VAE",
    "width": "width", "height": "height", "prompt_strength": "Denoising strength",
}  # fmt: skip
_EASIER: Final = {
    "Prompt": "prompt", "Negative Prompt": "negative", "Seed": "Seed", "Stable Diffusion model": "Model",
    "Sampler": "Sampler", "Steps": "Steps", "Guidance Scale": "CFG scale", "VAE model": "VAE", "Width": "width",
    "Height": "height", "Prompt Strength": "Denoising strength",
}  # fmt: skip
_WORDS_BY_SIGNS: Final = re.compile(r"[\w)\"'][+-]{1,9}(?=[\s,.)]|$)|\.swap\(|\)\.(?:and|blend)\(")
"""Weights of compel, which InvokeAI and Easy Diffusion read prompts with."""
_EASY_DIFFUSION: Final = _Form(
    "Easy Diffusion",
    lambda value: "use_stable_diffusion_model" in value or "Stable Diffusion model" in value,
    {**_EASY, **_EASIER},
    own_syntax=_WORDS_BY_SIGNS,
)
_FORMS: Final = (
    _Form(
        "SwarmUI",
        lambda value: isinstance(value.get("sui_image_params"), dict),
        {
            **_SIDES, **_K_NAMES, "negativeprompt": "negative", "cfgscale": "CFG scale", "model": "Model",
            "clipstopatlayer": "Clip skip", "variationseed": "Variation seed", "vae": "VAE",
            "variationseedstrength": "Variation seed strength",
        },
        "swarm_version",
        _swarm,
    ),
    _Form(
        "Fooocus",
        lambda value: "metadata_scheme" in value or ("base_model" in value and "performance" in value),
        {
            **_SIDES, **_K_NAMES, "negative_prompt": "negative", "guidance_scale": "CFG scale", "base_model": "Model",
            "base_model_hash": "Model hash", "clip_skip": "Clip skip", "vae": "VAE",
        },
        "version",
        _fooocus,
    ),
    _Form(
        "InvokeAI",
        lambda value: "positive_prompt" in value or ("app_version" in value and "image" not in value),
        {
            **_SIDES, "positive_prompt": "prompt", "negative_prompt": "negative", "cfg_scale": "CFG scale",
            "scheduler": "Sampler", "model": "Model", "clip_skip": "Clip skip", "strength": "Denoising strength",
            "cfg_rescale_multiplier": "CFG Rescale", "vae": "VAE",
        },
        "app_version",
        _invoke,
        _WORDS_BY_SIGNS,
    ),
    _Form(
        "InvokeAI",
        lambda value: isinstance(value.get("image"), dict) and "prompt" in value["image"],
        {
            **_SIDES, "positive_prompt": "prompt", "negative_prompt": "negative", "cfg_scale": "CFG scale",
            "sampler": "Sampler", "model_weights": "Model", "strength": "Denoising strength",
        },
        "app_version",
        _old_invoke,
        _WORDS_BY_SIGNS,
    ),
    _Form(
        "Draw Things",
        lambda value: isinstance(value.get("c"), str) and "uc" in value,
        {
            **_SIDES, **_K_NAMES, "c": "prompt", "uc": "negative", "scale": "CFG scale", "size": "Size",
            "model": "Model", "strength": "Denoising strength",
        },
    ),
    _EASY_DIFFUSION,
    _Form(
        "Civitai",
        lambda value: isinstance(value.get("extraMetadata"), str),
        {
            **_SIDES, **_K_NAMES, "negativePrompt": "negative", "cfgScale": "CFG scale", "clipSkip": "Clip skip",
            "denoise": "Denoising strength",
        },
        None,
        _civitai,
    ),
)  # fmt: skip
