"""Each field of a request can be said wherever requests are, and is told of wherever pictures are; or it is excused."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from olivelike.cli.app import Commands
from olivelike.cli.commands.info import picture_lines
from olivelike.errors import UsageError
from olivelike.runtime.jobs.prompt_lines import read_options
from olivelike.runtime.pictures.picture_record import PictureRecord, UsedFile, label_of
from olivelike.runtime.pipeline.request import Control, Request, asked_fields, axes
from olivelike.serve.form import form
from olivelike.serve.orders import Order

NAMES = [one.name for one in fields(Request)]
PICTURES = {"init_image", "mask", "controls", "ip_adapter_images", "references"}

OPTIONS = {
    "seeds": "lines have a seed", "variation_seeds": "lines have one",
    "hires_strength": "--hires X:STRENGTH", "prompt_weights": "--plain-prompts",
    "ip_adapter_images": "--ip-adapter", "ip_adapter_scale": "--ip-adapter FILE:X",
    "references": "--reference", "clip_layer": "--clip-skip", "init_image": "--init-image",
}  # fmt: skip
LINES = {
    "prompts": "--prompt", "seeds": "the line's seed", "variation_seeds": "the line's variation seed",
    "hires_strength": "--hires X:STRENGTH", **dict.fromkeys(PICTURES, "a picture is the command's"),
}  # fmt: skip
ORDERS = {
    "prompts": "prompt", "seeds": "the cells of a plot have a seed", "variation_seeds": "likewise",
    "size": "width and height",
}  # fmt: skip
RECORDS = {
    "prompts": "prompt", "num_images": "each picture has its own record", "batch_size": "changes no picture",
    "seeds": "seed", "variation_seeds": "variation_seed", "size": "width and height",
    "retry_unsafe": "the seed is that of what was drawn in the end", "guidance_calls": "changes no picture",
    "decode_singly": "changes no picture",
}  # fmt: skip

PAGE = {
    "prompts": "the page's first field", "seeds": "one seed for all", "variation_seeds": "likewise",
    "guidance_calls": "the operator knows the memory",
    **dict.fromkeys(PICTURES, "chosen or painted, not typed"),
}  # fmt: skip
PLOTS = {
    "prompts": "prompt_sr", "negative_prompt": "prompt_sr", "num_images": "each cell has as many",
    "batch_size": "changes no picture", "guidance_calls": "changes no picture", "decode_singly": "changes no picture",
    "tiled_vae": "changes no picture but by rounding", "retry_unsafe": "decides which pictures are left",
    "seeds": "seed", "variation_seeds": "seed",
    **dict.fromkeys(("prompt_weights", "fit", "inpaint_area", "control_guess"), "has two values: draw it twice"),
    "mask_mode": "has two values, too",
    **dict.fromkeys(PICTURES, "a file"),
}  # fmt: skip

DOCS = Path(__file__).parents[2] / "docs" / "request-options.md"
TABLES = {
    "prompts": "what is written behind the folder",
    **{name: OPTIONS[name] for name in OPTIONS if name not in ("prompt_weights", "clip_layer")},
    **dict.fromkeys(PICTURES, "an option of the command alone"),
}  # fmt: skip


def of_the_command():
    return {one.name for one in Commands(name="olivelike").get_command(None, "generate").params}


@pytest.mark.parametrize(
    ("surface", "has", "excused"),
    [
        ("generate", of_the_command, OPTIONS),
        ("lines of prompts", lambda: {name for name, _ in asked_fields()}, LINES),
        ("orders", lambda: set(Order.model_fields), ORDERS),
        ("records", lambda: set(PictureRecord.__dataclass_fields__), RECORDS),
        ("the page's form", lambda: {one["name"] for one in form()["fields"]}, PAGE),
        ("plots", lambda: set(axes()), PLOTS),
        ("the docs", lambda: {name for name in NAMES if f"| `{name}` |" in DOCS.read_text(encoding="utf-8")}, TABLES),
    ],
)
def test_a_field_is_on_a_surface_or_excused(surface, has, excused):
    lacking = [name for name in NAMES if name not in has()]
    assert sorted(lacking) == sorted(excused), f"{surface}: add the field, or the reason why it is not there"


TEXTS = {
    "guidance_interval": "0.2:0.6", "size": "64x96", "hires": "1.5:0.6", "upscaler": "up.onnx",
    "inpaint_area": "masked", "mask_mode": "not masked", "masked_content": "latent noise", "guidance_calls": "two",
    "negative_prompt": "blue", "scheduler": "Euler",
}  # fmt: skip
VALUES = {
    "guidance_interval": (0.2, 0.6), "size": (64, 96), "hires": 1.5, "upscaler": Path("up.onnx"),
    "prompt_weights": False,
}  # fmt: skip


@pytest.mark.parametrize(("name", "asked"), list(asked_fields()), ids=lambda one: one if isinstance(one, str) else "")
def test_a_line_says_a_field_by_each_of_its_names(name, asked):
    text = TEXTS.get(name, "" if asked.is_flag else "3")
    expected = VALUES.get(name, True if asked.is_flag else TEXTS.get(name, 3))
    for word in (asked.name, *asked.aliases):
        assert read_options(f"--{word} '{text}'" if text else f"--{word} --eta 0", "a:1")[name] == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--tiled-vae false", None),
        ("--plain-prompts false", None),
        ("--fit perhaps", "a:1: 'perhaps' belongs to no option"),
        ("--inpaint-area none", "a:1: --inpaint-area: 'none' is none of whole, masked"),
        ("--guidance-interval 3", "a:1: --guidance-interval: guidance interval '3' is none"),
        ("--mask-blur soft", "a:1: --mask-blur 'soft' is no number"),
        ("--retry-unsafe", "a:1: --retry-unsafe has no value"),
        ("--negative-prompt", "a:1: --negative-prompt has no value"),
    ],
)
def test_a_line_that_is_wrong_is_told_by_its_place(line, message):
    if message is None:
        assert list(read_options(line, "a:1").values()) == ["plain" in line]
        return
    with pytest.raises(UsageError, match=message):
        read_options(line, "a:1")


def test_a_text_may_be_empty():
    assert read_options("--negative_prompt '' --steps 3", "a:1") == {"negative_prompt": "", "steps": 3}


USED = UsedFile("some.png", "0123abcd")
TOLD = {
    "negative_prompt": ("blue", "blue"), "scheduler": ("Euler", "Euler"), "sampler": ("Heun", "Heun"),
    "width": (640, "640x512"), "init_image": (USED, "some.png (0123abcd)"), "mask": (USED, "some.png (0123abcd)"),
    "prompt_weights": (False, "brackets in the prompt are text"), "model": ("painter", "painter"),
    "loras": ((UsedFile("style", "12", 0.8),), "style at 0.8 (12)"), "provider": ("Some", "Some"),
    "version": ("olivelike 9", "olivelike 9"), "guidance_interval": ((0.2, 0.6), "0.2 to 0.6 of the steps"),
    "fit": (True, "to the shape of the size"), "upscaler": (USED, "some.png (0123abcd)"),
    "inpaint_area": ("masked", "only masked, with 32 pixels around it"),
    "mask_mode": ("not masked", "Inpaint not masked"),
    "masked_content": ("fill", "fill"), "tiled_vae": (True, "VAE tiling    on"),
    "controls": ((Control(USED, "edges", 0.7, 0.1, 1.0, "canny"),), "edges, strength 0.7, from 0.1 to 1 of the"),
    "control_guess": (True, "the prompt alone"), "ip_adapter_images": ((USED,), "some.png (0123abcd)"),
    "references": ((USED,), "some.png (0123abcd)"),
    "hires": (1.5, "upscale by 1.5"), "other": ({"Tiling": "True"}, "Tiling"),
}  # fmt: skip
"""A value of each field that is no number, and what `info` says of it."""
WITHIN = {
    "height": "width", "hires_strength": "hires", "inpaint_padding": "inpaint_area", "model_hash": "model",
    "schedule": "sampler, as A1111 writes it: the scheduler's name has it",
}  # fmt: skip
"""Fields that are told of together with another one."""


def said(record):
    picture = SimpleNamespace(
        path="a.png", format="PNG", width=1, height=1, source_type=None, record=record, unread=None, parameters=None,
        own=True,
    )  # fmt: skip
    return "\n".join(picture_lines(picture))


@pytest.mark.parametrize("name", [one.name for one in fields(PictureRecord) if one.name not in WITHIN])
def test_info_tells_all_that_makes_a_picture_again(name):
    plain = PictureRecord("a circle", height=512)
    if name == "prompt":
        assert "a circle" in said(plain)
        return
    value, text = TOLD.get(name, (77, "77"))
    found = said(replace(plain, **{name: value}))
    assert text in found
    assert text not in said(plain)


def test_only_what_has_no_label_is_within_another():
    without = {one.name for one in fields(PictureRecord) if label_of(one) is None}
    assert without == WITHIN.keys() | {"sampler", "other"}
    assert all(one.default is not MISSING or one.name in ("prompt", "other") for one in fields(PictureRecord))
