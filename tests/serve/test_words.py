"""Words of the trade: each field is called the same wherever people read it, and a list has each thing once."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from olivelike.families import FAMILIES
from olivelike.runtime.pictures.picture_record import PictureRecord, label_of
from olivelike.runtime.pipeline.request import LABELS, Request
from olivelike.runtime.schedulers.scheduler_names import (
    SAMPLERS,
    find_for,
    find_scheduler,
    sampler_entries,
    scheduler_names,
)
from olivelike.serve.drawing.plots import heads
from olivelike.serve.form import form
from olivelike.serve.orders import Axis, Order

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "olivelike" / "data" / "serve" / "index.html").read_text(encoding="utf-8")
STATIC = (ROOT / "olivelike" / "extras" / "deploy" / "web" / "index.html").read_text(encoding="utf-8")
FLOW = "FlowMatchEulerDiscreteScheduler"


def labels_in(document: str) -> dict[str, str]:
    """Return the words of labels by the fields that they are for."""
    around = [
        (words, name)
        for words, inputs in re.findall(
            r"<label[^>]*>\s*([^<]+?)\s*((?:<(?:input|select|output)\b[^>]*>\s*)+)", document
        )
        for name in re.findall(r'\b(?:id|for)="(\w+)"', inputs)
    ]
    named = re.findall(r'<label for="(\w+)">([^<]+)</label>', document)
    return {name: words for words, name in around} | dict(named)


@pytest.mark.parametrize("word", ["Sampler", "Schedule type", "CFG scale", "Denoising strength", "Hires fix",
    "Batch count", "Batch size", "Clip skip", "ControlNet", "IP-Adapter", "VAE tiling", "img2img", "Inpaint",
    "Preprocessor", "Control weight", "Mask blur", "Inpaint area", "Variation seed", "Negative prompt",
    "X/Y/Z plot", "LoRA", "Seed",
])  # fmt: skip
def test_a_word_that_people_search_the_page_for_is_there(word: str) -> None:
    told = " ".join((PAGE, *(one["label"] for part in ("fields", "control") for one in form()[part])))
    assert word.casefold() in told.casefold()


def test_the_document_has_the_labels_of_a_request() -> None:
    found = labels_in(PAGE)
    own = {name: words for name, words in LABELS.items() if f'data-field="{name}"' in PAGE and name != "scheduler"}
    assert {name: found[name] for name in own} == own
    assert found["sampler"] == LABELS["scheduler"]
    static = labels_in(STATIC)
    own = {name: words for name, words in LABELS.items() if f'data-field="{name}"' in STATIC and name != "scheduler"}
    assert len(own) == 5
    assert {name: static[name] for name in own} == own
    assert static["sampler"] == LABELS["scheduler"]


def test_records_plots_and_form_have_them_too() -> None:
    shared = {one.name: label_of(one) for one in fields(PictureRecord) if one.name in LABELS and label_of(one)}
    assert shared == {name: LABELS[name] for name in shared}
    assert {"steps", "guidance_scale", "scheduler", "seed", "strength"} <= shared.keys()
    plot = Order(prompt="a", x=Axis(field="guidance_scale", values=(3,)), y=Axis(field="seed", values=(7,)))
    assert (heads(plot).across, heads(plot).down) == (["CFG scale 3"], ["Seed 7"])


def test_doors_begin_with_the_same_steps_and_cfg_scale() -> None:
    usual = {one.name: one.default for one in fields(Request) if one.name in ("steps", "guidance_scale")}
    for name in ("steps", "guidance_scale"):
        for document in (STATIC, PAGE):
            assert re.search(rf'id="{name}"[^>]* value="{usual[name]:g}"', document)
    # A static page is made of such a family alone.
    assert all(dict(family.usual) == usual for family in FAMILIES.values() if family.denoiser == "unet")


def test_a_sampler_is_listed_once_and_all_its_names_lead_to_it() -> None:
    entries = sampler_entries()
    assert [one.name for one in entries][: len(SAMPLERS)] == list(SAMPLERS)
    made = [
        find_scheduler(one.name, None if kind == one.schedules[0] else kind)
        for one in entries
        for kind in one.schedules
    ]
    assert len(set(made)) == len(made)
    assert all(find_scheduler(alias) == find_scheduler(one.name) for one in entries for alias in one.aliases)
    bare = {name for name in scheduler_names() if not find_scheduler(name).options}
    of_parallel = {name for name in bare if "Parallel" in name}
    listed = {name for one in entries for name in (one.name, *one.aliases)}
    of_samplers = {class_name for class_name, _ in SAMPLERS.values()}
    assert {find_scheduler(name).class_name for name in bare - of_parallel - listed} <= of_samplers


def test_a_folder_of_flow_matching_has_the_samplers_that_it_is_drawn_with() -> None:
    (one,) = sampler_entries(FLOW)
    assert one.name == "Euler"
    for kind in one.schedules[1:]:
        assert find_for(f"Euler {kind}", FLOW).class_name == FLOW
    assert FLOW in one.aliases


def test_a_model_says_its_samplers_and_what_its_own_is_called(client) -> None:
    found = client.get("/api/options").json()["samplers"]
    assert (found["own"], found["class"]) == ("PLMS", "PNDMScheduler")
    assert next(one for one in found["list"] if one["name"] == "DPM++ 2M")["automatic"] == "Karras"
