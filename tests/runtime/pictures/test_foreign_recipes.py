"""Recipes that other programs write: read, or refused, and never taken for prompts."""

from __future__ import annotations

import json

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from olivelike.errors import SourceError
from olivelike.runtime.pictures import UsedFile, read_picture, read_picture_record
from olivelike.runtime.pictures.picture_record import a1111_text
from olivelike.runtime.pictures.recipe_text import parse_a1111
from olivelike.runtime.pictures.recipes import read_recipe_text

SETTINGS = "Steps: 4, Sampler: Euler a, CFG scale: 7, Seed: 5, Size: 64x96"
HEAD = "a red circle\nNegative prompt: blur"


def facts(record):
    return (
        record.prompt, record.negative_prompt, record.steps, record.sampler, record.guidance_scale, record.seed,
        record.width, record.height,
    )  # fmt: skip


READ = ("a red circle", "blur", 4, "Euler a", 7.0, 5, 64, 96)


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD}\n{SETTINGS}",
        f"{HEAD}\r\n{SETTINGS}\r\n",
        f"{HEAD}\r{SETTINGS}",
        f"{HEAD}\n\n{SETTINGS}\n\n",
        f"{HEAD}\n{SETTINGS}\nTemplate: a {{red|blue}} circle\non: a, table: b\nNegative Template: blur",
        f"{HEAD}\n{SETTINGS}\nsome words of the uploader",
        f"{HEAD}\n{SETTINGS.replace(',', ';')}",
        f"{HEAD}\n{SETTINGS.replace(',', ' |')}",
        f"{HEAD}\n" + SETTINGS.replace(", ", ",\n"),
        f"{HEAD}\n" + SETTINGS.replace(", ", "\n"),
        f"{HEAD}\n{SETTINGS.replace('CFG scale', 'CFG Scale').replace('Steps', 'steps')}",
        f"{HEAD.replace('prompt:', 'Prompt:')}\n{SETTINGS}",
        f"{HEAD.replace(chr(10), ' ')}\n{SETTINGS}",
        f"{HEAD} {SETTINGS}".replace("\n", " "),
        f"{HEAD}\nSeed: 5, Steps: 4, Sampler: Euler a, CFG scale: 7.0, Size: 64 x 96",
    ],
)
def test_settings_are_found_however_they_are_laid_out(text):
    assert facts(parse_a1111(text)) == READ


CIVITAI = '[{"type":"lora","weight":0.8,"modelName":"a, b: c"},{"type":"checkpoint","modelVersionId":7}]'


def test_values_with_commas_quotes_and_json_are_whole():
    record = parse_a1111(
        f"{HEAD}\n{SETTINGS}, Schedule type: Karras, ENSD: 31337, Hires upscale: 2, Hires upscaler: R-ESRGAN 4x+, "
        'Denoising strength: 0.5, Lora hashes: "ink: 0123456789ab, b c: ba9876543210", TI hashes: "easy: 00ff", '
        f'ADetailer prompt: "a, \\"b\\": c\\nd", Civitai resources: {CIVITAI}, Civitai metadata: {{}}, Eta: 0.5, '
        "RNG: NV, Version: f2.0.1v1.10.1"
    )
    assert facts(record) == READ
    assert (record.scheduler, record.version, record.eta) == ("Euler a Karras", "f2.0.1v1.10.1", 0.0)
    assert record.loras == (UsedFile("ink", "0123456789ab"), UsedFile("b c", "ba9876543210"))
    assert record.strength is None  # It is that of the second pass.
    assert record.other == {
        "ENSD": "31337", "Hires upscale": "2", "Hires upscaler": "R-ESRGAN 4x+", "Denoising strength": "0.5",
        "TI hashes": "easy: 00ff", "ADetailer prompt": 'a, "b": c\nd',
        "Civitai resources": CIVITAI,
        "Civitai metadata": "{}", "Eta": "0.5", "RNG": "NV",
    }  # fmt: skip


@pytest.mark.parametrize("upscaler", ["Latent", "Lanczos", "Nearest"])
def test_hires_fix_without_a_network_is_read_and_written(upscaler):
    told = f"Denoising strength: 0.4, Hires upscale: 2, Hires steps: 9, Hires upscaler: {upscaler}"
    record = parse_a1111(f"{HEAD}\n{SETTINGS}, {told}")
    assert (record.hires, record.hires_strength, record.hires_steps) == (2, 0.4, 9)
    assert record.upscaler == (None if upscaler == "Latent" else UsedFile(upscaler))
    assert told in a1111_text(record)


def test_halves_of_characters_stay_as_they_are_written():
    assert parse_a1111(f'a\n{SETTINGS}, Note: "\\ud800", More: "\\u00e9"').other == {"Note": '"\\ud800"', "More": "é"}


def test_eta_is_taken_where_it_is_the_same_thing():
    ddim = SETTINGS.replace("Euler a", "DDIM")
    assert parse_a1111(f"a\n{ddim}, Eta: 0.5").eta == 0.5
    assert parse_a1111(f"a\n{ddim}, Eta DDIM: 0.25").eta == 0.25


def test_what_stands_behind_the_settings_is_kept_by_name():
    record = parse_a1111(f"{HEAD}\n{SETTINGS}, Operations\nTemplate: a\nb: c\nNegative Template: d")
    assert record.other == {"further text": "Operations", "Template": "a\nb: c", "Negative Template": "d"}


def test_values_that_are_no_numbers_stay_text():
    record = parse_a1111("a\nSteps: 4, Seed: -1, Size: wide, CFG scale: lots, Clip skip: 2")
    assert (record.steps, record.seed, record.width, record.guidance_scale) == (4, None, None, None)
    assert record.other == {"Seed": "-1", "Size": "wide", "CFG scale": "lots"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no line of settings"),
        ("a cat", "no line of settings"),
        ("a cat\nNegative prompt: dog", "no line of settings"),
        ("ratio: 1, mood: 2", "no line of settings"),
        ("a cat\nNegative prompt: dog\nSettings are 20 steps; seed 5", "no line of settings"),
        ("a cat\nSteps: 20, Seed: 5", "no line of settings"),
        ("a cat\nSteps = 20, Seed = 5, Size = 64x64", "no line of settings"),
        (f"{HEAD}\n{SETTINGS}\nNegative prompt: more\n{SETTINGS}", "settings on lines 3 and 5"),
        (f"{HEAD}\nSampler: Euler a,\n{SETTINGS}", r"line 3 looks like settings \(Sampler: Euler a,\)"),
        (f"{HEAD}\nSize: 64x64, Model: demo\n{SETTINGS}", "line 3 looks like settings"),
        (f"a\n{SETTINGS}, Seed: 6", "it says Seed twice: 5 and 6"),
        (f"a\n{SETTINGS}, Note: {'x' * 70_000}", "its settings have 70,"),
        ("Steps: 4\n" * 200, "200 lines in it begin with Steps"),
        ("a" * 2_000_000, "it has 2,000,000 characters"),
    ],
)
def test_a_text_that_is_no_recipe_is_refused_and_says_why(text, why):
    with pytest.raises(SourceError, match=rf"can't be read as a recipe: .*{why}"):
        parse_a1111(text, "cat.png")


SWARM = {
    "sui_image_params": {
        "prompt": "a red circle", "negativeprompt": "blur", "model": "sub/demo", "seed": 804822466654819, "steps": 4,
        "cfgscale": 7.0, "width": 64, "height": 96, "sampler": "euler_ancestral", "scheduler": "normal",
        "loras": "sub/ink,wet", "loraweights": "0.8,1", "automaticvae": True, "clipstopatlayer": "-2",
        "refinerupscale": 2, "swarm_version": "0.9.3.1",
    },
    "sui_extra_data": {"date": "2024-11-13"},
}  # fmt: skip
FOOOCUS = {
    "adm_guidance": "(1.5, 0.8, 0.3)", "base_model": "juggernaut", "base_model_hash": "aeb7e9e689", "cfg": 7.0,
    "full_negative_prompt": ["blur"], "full_prompt": ["a red circle", "in style"], "guidance_scale": 4.0,
    "loras": [["ink", 0.5, "abc"]], "metadata_scheme": "fooocus", "negative_prompt": "", "performance": "Speed",
    "prompt": "circle", "resolution": "(64, 96)", "sampler": "dpmpp_2m_sde", "scheduler": "karras", "seed": "5",
    "steps": 30, "styles": "['Fooocus V2']", "vae": "Default (model)", "version": "Fooocus v2.5.5",
}  # fmt: skip
INVOKE = {
    "positive_prompt": "a red circle", "negative_prompt": "blur", "width": 64, "height": 96, "seed": 5,
    "rand_device": "cpu", "cfg_scale": 7.5, "steps": 20, "scheduler": "dpmpp_2m_k", "clip_skip": 1,
    "model": {"key": "x", "hash": "blake3:1", "name": "demo", "base": "sd-1"}, "seamless_x": False,
    "loras": [{"model": {"name": "ink"}, "weight": 0.75}], "generation_mode": "txt2img", "app_version": "5.4.2",
    "hrf_enabled": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("value", "program", "scheduler", "loras", "other"),
    [
        (SWARM, "SwarmUI", "euler_ancestral Normal", (("ink", 0.8), ("wet", 1.0)), {"refinerupscale": "2"}),
        (
            FOOOCUS, "Fooocus", "dpmpp_2m_sde Karras", (("ink", 0.5),),
            {"adm_guidance": "(1.5, 0.8, 0.3)", "cfg": "7.0", "performance": "Speed", "styles": "['Fooocus V2']"},
        ),
        (INVOKE, "InvokeAI", "dpmpp_2m Karras", (("ink", 0.75),), {"hrf_enabled": "true"}),
    ],
)  # fmt: skip
def test_flat_recipes_in_json_are_read(value, program, scheduler, loras, other):
    name, record = read_recipe_text(json.dumps(value, indent=1))
    assert (name, record.version.split()[0], record.scheduler, record.other) == (program, program, scheduler, other)
    assert tuple((lora.name, lora.weight) for lora in record.loras) == loras
    assert record.prompt.startswith("a red circle")
    assert (record.negative_prompt, record.width, record.height) == ("blur", 64, 96)
    assert record.seed == (804822466654819 if program == "SwarmUI" else 5)


def test_further_programs_are_read():
    easy = {
        "prompt": "a red circle", "negative_prompt": "blur", "seed": 5, "use_stable_diffusion_model": "demo",
        "num_inference_steps": 4, "guidance_scale": 7.0, "sampler_name": "euler_a", "width": 64, "height": 96,
    }  # fmt: skip
    draw_things = {
        "c": "a red circle", "uc": "blur", "seed": 5, "steps": 4, "scale": 7, "sampler": "Euler a", "size": "64x96",
        "model": "demo.ckpt", "seed_mode": "Scale Alike",
    }  # fmt: skip
    old = {
        "model_weights": "demo", "app_version": "2.3.5", "model": "stable diffusion",
        "image": {"prompt": [{"prompt": "a red circle [blur]", "weight": 1.0}], "steps": 4, "cfg_scale": 7,
                  "seed": 5, "width": 64, "height": 96, "sampler": "k_euler_a"},
    }  # fmt: skip
    civitai = {"resource-stack": {"class_type": "x"}, "extraMetadata": json.dumps(
        {"prompt": "a red circle", "negativePrompt": "blur", "steps": 4, "cfgScale": 7, "seed": 5, "width": 64,
         "height": 96, "sampler": "Euler a", "resources": [{"modelVersionId": 1}]})}  # fmt: skip
    for value, program, sampler in (
        (easy, "Easy Diffusion", "euler_a"), (draw_things, "Draw Things", "Euler a"), (old, "InvokeAI", "k_euler_a"),
        (civitai, "Civitai", "Euler a"),
    ):  # fmt: skip
        name, record = read_recipe_text(json.dumps(value))
        assert name == program
        found = list(facts(record))
        assert found[0].strip() == "a red circle"
        assert found[1:] == ["blur", 4, sampler, 7.0, 5, 64, 96]


GRAPH = {"3": {"class_type": "KSampler", "inputs": {"seed": 5, "steps": 20}}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (json.dumps(GRAPH), "this is a ComfyUI graph"),
        (json.dumps({"nodes": [], "links": []}), "this is a ComfyUI graph"),
        (json.dumps({"prompt": GRAPH}), "this is a ComfyUI graph"),
        (json.dumps({"a": 1}), "JSON of a program that is not known"),
        ('{"sui_image_params": {', "its JSON is damaged"),
        (json.dumps({"sui_image_params": {"seed": 1}}), "a recipe of SwarmUI without a prompt"),
        (json.dumps({"sui_image_params": {"prompt": "a", "loras": "b", "loraweights": "x"}}), "SwarmUI, and damaged"),
        (json.dumps({**INVOKE, "positive_prompt": "a (red)++ dot"}), r"weigh words in a way of their own \(\)\+\+\)"),
    ],
)
def test_other_json_is_refused_by_the_program_s_name(text, why):
    with pytest.raises(SourceError, match=why):
        read_recipe_text(text, "a.png")


def png(path, **texts):
    chunks = PngInfo()
    for key, value in texts.items():
        chunks.add_itxt(key.replace("_", "-") if key == "sd_metadata" else key, value)
    Image.new("RGB", (8, 8)).save(path, "PNG", pnginfo=chunks)
    return path


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ({"prompt": json.dumps(GRAPH)}, "this is a ComfyUI graph"),
        ({"workflow": json.dumps({"nodes": []})}, "this is a ComfyUI graph"),
        ({"Software": "NovelAI", "Comment": "{}", "Description": "{{a cat}}"}, "this is a recipe of NovelAI"),
        ({"Dream": '"a cat" -s 50 -S 5'}, "early InvokeAI"),
        ({"parameters": "a cat\nNegative prompt: dog"}, "no line of settings"),
    ],
)
def test_a_picture_whose_recipe_is_not_read_says_so_and_has_no_record(tmp_path, texts, why):
    path = png(tmp_path / "a.png", **texts)
    found = read_picture(path)
    assert (found.record, found.program) == (None, None)
    assert why in found.unread
    with pytest.raises(SourceError, match=why):
        read_picture_record(path)


def test_texts_are_found_where_programs_keep_them(tmp_path, image):
    assert read_picture(png(tmp_path / "a.png", parameters=json.dumps(SWARM))).program == "SwarmUI"
    assert read_picture(png(tmp_path / "b.png", invokeai_metadata=json.dumps(INVOKE))).program == "InvokeAI"
    easy = {"prompt": "a", "negative_prompt": "b", "seed": "5", "use_stable_diffusion_model": "x", "width": "8"}
    assert read_picture(png(tmp_path / "c.png", **easy)).program == "Easy Diffusion"
    graph = json.dumps(GRAPH)
    assert read_picture(png(tmp_path / "d.png", prompt=graph, parameters=f"a\n{SETTINGS}")).record.seed == 5
    exif = Image.Exif()
    exif[0x010F], exif[0x0110] = f"workflow:{json.dumps({'nodes': []})}", f"prompt:{graph}"
    image.save(tmp_path / "e.webp", exif=exif)
    assert "ComfyUI graph" in read_picture(tmp_path / "e.webp").unread
    exif = Image.Exif()
    exif[0x010F], exif[0x0110] = "Canon", "EOS"
    image.save(tmp_path / "f.jpg", exif=exif)
    assert (read_picture(tmp_path / "f.jpg").record, read_picture(tmp_path / "f.jpg").unread) == (None, None)
    told = json.dumps({"c": "a", "uc": "b", "seed": 5}).replace('"', "&quot;")
    xmp = f'<exif:UserComment><rdf:Alt><rdf:li xml:lang="x-default">{told}</rdf:li></rdf:Alt></exif:UserComment>'
    image.save(tmp_path / "g.webp", xmp=xmp.encode())
    assert read_picture(tmp_path / "g.webp").record.seed == 5
