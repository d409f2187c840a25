"""Damaged workflows, overrides, picture records and prompts: each is read, or refused with an error of ours."""

from __future__ import annotations

import io
import json
import re
import struct
import warnings
import zlib
from dataclasses import asdict

import pytest
from hostile import NUMBERS, QUICK, SLOW, TEXTS, damage_bytes, damage_json, damage_text, feed
from PIL import Image

from olivelike._untrusted import terminal_text
from olivelike.cli.commands.info import picture_json, picture_lines
from olivelike.runtime.jobs.job_notes import recorded_fields
from olivelike.runtime.pictures import PictureRecord, UsedFile, read_picture
from olivelike.runtime.pictures.ai_mark import MADE, xmp_packet
from olivelike.runtime.pictures.left_out import left_out
from olivelike.runtime.pictures.picture_record import (
    EXIF_IFD,
    IMAGE_DESCRIPTION,
    UNICODE,
    USER_COMMENT,
    a1111_text,
    record_from_json,
)
from olivelike.runtime.pictures.recipe_text import parse_a1111
from olivelike.runtime.pictures.recipes import read_recipe_text
from olivelike.runtime.prompts.syntax import BREAK, parse_prompt
from olivelike.workflow import load_workflow
from olivelike.workflow.extends import apply_overrides
from olivelike.workflow.findings import Document, Findings
from olivelike.workflow.yaml_tree import parse_yaml, plain

RUNS = pytest.mark.parametrize("runs", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)])

WORKFLOW = """\
name: mine
source: {hub: owner/model, revision: main}
vae: vae.safetensors
loras: [style.safetensors:0.8, {file: more.safetensors, weight: 1.5}]
embeddings: [cat.pt]
target: {provider: cpu, device_id: 0, precision: fp16, options: {a: 1}}
components: &chains
  unet: [merge_lora, convert, {fuse: {packed_qkv: true}}, float16]
  vae_decoder:
    - convert
    - float16: {keep_io: false}
sweep:
  - name: half
    components:
      unet: [convert, float16]
  - name: full
    components: {<<: *chains}
output: models/mine
"""
OTHER = """\
outputs:
  - {path: models/mine, until: convert}
  - path: models/other
    layout: optimum
"""
SEVERAL = f"{WORKFLOW.partition('sweep')[0]}{OTHER}"
TOKENS = (
    "[", "]", "{", "}", ",", ": ", ":", "- ", "\n", "  ", "? ", "|\n", ">\n", "&x ", "*x", "*chains", "<<: *chains",
    "!!int ",
    "!!str ", "!!float ", "! ", "#", "'", '"', '"\\U00110000"', '"\\x00"', "%YAML 1.2\n", "---\n", "...\n",
    "~", "1e999",
    "0x" + "f" * 60, "9" * 99, ".inf", "-0", "true", "convert", "fuse", "float16", "unet", "source", "extends: .\n",
)  # fmt: skip
KEYS = ("source", "vae", "loras", "target", "components", "sweep", "outputs", "output", "extends", "name")
RECORD = PictureRecord(
    'a (red:1.2) "circle", 東京 🎉\non a: background', "blurry", 20, "DPM++ 2M Karras", "DPM++ 2M", "Karras",
    guidance_scale=7.5, guidance_rescale=0.25, eta=0.5, seed=42, width=64, height=96, strength=0.75,
    init_image=UsedFile("start.png", "ab" * 32), mask=UsedFile("mask.png"), clip_layer=2, prompt_weights=False,
    model="demo", model_hash="0123456789", loras=(UsedFile("ink, wet", "0123456789ab", 0.8),),
    provider="CPUExecutionProvider", version="olivelike 0.1.0", other={"RNG": "CPU"},
)  # fmt: skip
PROMPT_TOKENS = (
    "(", ")", "[", "]", ":", "\\", "BREAK", " BREAK ", "1.3", ":1.3)", ":-1e9)", ":99999999999)", ":.)", ":+.5)",
    ",", " ",
    "\n", "(a:1" + "0" * 400 + ")", "red", "<lora:x:1>", "AND", "__c__", "{a|b}", "\\(", "\\\\",
)  # fmt: skip
A1111_TOKENS = (
    "Steps: 20", "Sampler: Euler a", "CFG scale: ", "Seed: -1", "Size: 512x512", "Size: 0x9999999", 'Model: "a, b"',
    "Negative prompt:", "Clip skip: 0", 'Lora hashes: "a: b, c"', "Version: v1.5.0", "Schedule type: Karras", "inf",
    "nan",
    "1e999", '"', "\\", "\\u0000", ", ", ": ", "\n", "Eta: 1" + "0" * 400, "Emphasis: None", "Denoising strength: x",
)  # fmt: skip


def tree(rng, depth=0):
    """Return YAML in flow style, of any values."""
    if depth < 4 and rng.random() < 0.5:
        inner = [tree(rng, depth + 1) for _ in range(rng.randrange(4))]
        if rng.random() < 0.5:
            return "[" + ", ".join(inner) + "]"
        keys = (rng.choice(("a", "unet", "convert", "path", "hub", "provider", "1", "~", "'x'")) for _ in inner)
        return "{" + ", ".join(f"{key}: {value}" for key, value in zip(keys, inner, strict=True)) + "}"
    return rng.choice((*TOKENS, *map(str, NUMBERS), "convert", "cpu", "a.safetensors", "x y"))


@RUNS
def test_damaged_workflow_files_are_loaded_or_refused(tmp_path, monkeypatch, runs):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.yaml"

    def make(rng):
        if rng.random() < 0.2:
            lines = rng.choice((WORKFLOW, SEVERAL)).split("\n")
            key = rng.choice(KEYS)
            text = "\n".join(line for line in lines if not line.startswith(f"{key}:")) + f"{key}: {tree(rng)}\n"
        else:
            text = damage_text(rng, rng.choice((WORKFLOW, SEVERAL)), TOKENS)
        text = text.replace("plugins", "plug")
        data = text.encode("utf-8", "replace")
        return damage_bytes(rng, data) if rng.random() < 0.1 else data

    def read(data):
        path.write_bytes(data)
        load_workflow(str(path))

    feed(read, make, runs).check(0.02)


@RUNS
def test_overrides_of_any_form_are_applied_or_refused(tmp_path, runs):
    names = ("components", "unet", "0", "1", "fuse", "target", "device_id", "source", "hub", "outputs", "path", "loras",
             "x", "", "9" * 5000, "-1", *TEXTS)  # fmt: skip

    def make(rng):
        keys = ".".join(rng.choice(names) for _ in range(rng.choice((1, 1, 2, 3, 5, 30))))
        return f"{keys}{rng.choice(('=', '=', '=', '', '=='))}{tree(rng)}"

    def read(text):
        findings = Findings()
        root = parse_yaml(SEVERAL, Document("a.yaml", tuple(SEVERAL.split("\n")), tmp_path), findings)
        apply_overrides(root, [text], tmp_path, findings)
        findings.raise_if_any()
        json.dumps(plain(root))

    feed(read, make, runs).check(0.05)


def png(rng, texts, pixels):
    """Return a PNG with text chunks, one of them damaged now and then, with its checksum right."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0))]
    for name, text in texts.items():
        form = rng.randrange(3)
        if form == 0:
            chunks.append((b"tEXt", name + b"\0" + text))
        elif form == 1:
            chunks.append((b"zTXt", name + b"\0\0" + zlib.compress(text)))
        else:
            chunks.append((b"iTXt", name + b"\0\1\0\0\0" + zlib.compress(text)))
    chunks += [(b"IDAT", zlib.compress(pixels)), (b"IEND", b"")]
    if rng.random() < 0.3:
        place = rng.randrange(len(chunks))
        name, data = chunks[place]
        match rng.randrange(4):
            case 0:
                chunks[place] = name, damage_bytes(rng, data)
            case 1:
                chunks.insert(rng.randrange(len(chunks)), chunks[place])
            case 2:
                del chunks[place]
            case _:
                sizes = struct.pack(">II", rng.choice((0, 1, 8, 9, 2**31 - 1)), rng.choice((0, 8, 65535, 2**31 - 1)))
                chunks[0] = b"IHDR", sizes + chunks[0][1][8:]
    out = b"\x89PNG\r\n\x1a\n"
    for name, data in chunks:
        out += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return out


XMP_TOKENS = ("DigitalSourceType", "DigitalSourceType='", "<!ENTITY a '&b;'>", "&a;", "http://cv.iptc.org/newscodes/")


@RUNS
def test_damaged_pictures_and_records_are_read_or_refused(tmp_path, runs):
    path = tmp_path / "a.png"
    pixels = bytes((1 + 8 * 3) * 8)
    record = {"format": "olivelike/picture/1", **asdict(RECORD)}
    image = Image.new("RGB", (8, 8))

    def make(rng):
        own = damage_json(rng, record)
        text = damage_text(rng, a1111_text(RECORD), A1111_TOKENS).encode("utf-8", "replace")
        match rng.randrange(4):
            case 0 | 1:
                texts = {b"parameters": text.replace(b"\0", b""), b"olivelike": own}
                data = png(rng, {name: texts[name] for name in texts if rng.random() < 0.8}, pixels)
            case 2:
                exif = Image.Exif()
                exif.get_ifd(EXIF_IFD)[USER_COMMENT] = UNICODE + text.decode("utf-8", "replace").encode("utf-16-be")
                exif[IMAGE_DESCRIPTION] = rng.choice((own.decode("utf-8", "replace"), rng.choice(TEXTS), 7, (1, 2)))
                xmp = damage_text(rng, xmp_packet(MADE).decode(), XMP_TOKENS).encode("utf-8", "replace")
                buffer = io.BytesIO()
                try:
                    with warnings.catch_warnings(action="ignore"):
                        image.save(buffer, rng.choice(("JPEG", "WEBP")), exif=exif, xmp=xmp)
                except (ValueError, OSError, TypeError, struct.error, UnicodeEncodeError):
                    return own
                data = buffer.getvalue()
            case _:
                return own
        return damage_bytes(rng, data) if rng.random() < 0.25 else data

    def read(data):
        if data[:1] not in b"\x89\xffR":
            found = record_from_json(data.decode("utf-8", "replace"), "a.png")
        else:
            path.write_bytes(data)
            picture = read_picture(path)
            json.dumps(picture_json(picture), allow_nan=False)
            list(picture_lines(picture))
            found = picture.record
        if found is not None:
            found.to_json()
            a1111_text(found).encode()

    feed(read, make, runs).check(0.2)


@RUNS
def test_prompts_of_any_form_have_finite_weights_or_are_refused(runs):
    def make(rng):
        if rng.random() < 0.5:
            return "".join(rng.choice((*PROMPT_TOKENS, *TEXTS)) for _ in range(rng.choice((1, 4, 12, 200))))
        return damage_text(rng, "a ((red:1.2) circle), [small] BREAK (on (a (table)))", PROMPT_TOKENS)

    def read(text):
        for weights in (True, False):
            for part in parse_prompt(text, prompt_weights=weights):
                assert part is BREAK or abs(part.weight) <= 10_000

    feed(read, make, runs).check(0.5)


@RUNS
def test_texts_of_a1111_of_any_form_are_refused_or_become_records_that_can_be_written(runs):
    def make(rng):
        if rng.random() < 0.4:
            tokens = (*A1111_TOKENS, *A1111_TOKENS, *TEXTS)
            return "".join(rng.choice(tokens) for _ in range(rng.choice((1, 5, 20, 100))))
        return damage_text(rng, a1111_text(RECORD), A1111_TOKENS)

    def read(text):
        found = parse_a1111(text)
        again = record_from_json(found.to_json(), "a.png")
        assert record_from_json(again.to_json(), "a.png") == again
        if "\\ud" not in found.to_json():  # Halves of surrogate pairs become question marks.
            assert again == found
        a1111_text(found).encode()
        assert "\x1b" not in terminal_text(found.prompt)

    feed(read, make, runs).check(0.3)


SETTINGS_OF_OTHERS = (
    "Steps: 20, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 7, Seed: 804822466654819, Size: 512x768, "
    'Model hash: 6ce0161689, Model: "v1, pruned", VAE: x.pt, Clip skip: 2, ENSD: 31337, Eta: 0.5, Denoising strength: '
    '0.5, Hires upscale: 2, Hires upscaler: R-ESRGAN 4x+, Lora hashes: "ink: aabbccddeeff", TI hashes: "a: 00ff", '
    'Civitai resources: [{"type":"lora","weight":0.8}], Version: v1.10.1'
)
PROMPTS_OF_OTHERS = "zebra (red:1.2)\nzebra two\nNegative prompt: zebra three"
OTHERS = {
    "swarm": {"sui_image_params": {
        "prompt": "zebra", "negativeprompt": "", "model": "a/b", "seed": 2**63, "steps": 20, "cfgscale": 7.0,
        "width": 64, "height": 64, "sampler": "euler", "loras": ["a", "b"], "loraweights": ["1", "0.5"],
        "clipstopatlayer": "-2"}, "sui_extra_data": {}},
    "fooocus": {
        "full_prompt": ["zebra", "x"], "prompt": "zebra", "negative_prompt": "", "metadata_scheme": "fooocus",
        "resolution": "(64, 64)", "loras": [["a", 0.5, "ff"]], "lora_combined_1": "True : a : 0.5", "sampler": "lcm",
        "steps": 8, "seed": "5", "guidance_scale": 4.0, "base_model": "b", "performance": "Speed"},
    "invoke": {
        "positive_prompt": "zebra", "negative_prompt": "b", "seed": 5, "cfg_scale": 7.5, "steps": 20, "clip_skip": 0,
        "scheduler": "dpmpp_2m_k", "model": {"name": "demo"}, "loras": [{"model": {"name": "a"}, "weight": 0.7}],
        "width": 64, "height": 64, "app_version": "5.4"},
    "old invoke": {"model_weights": "a", "image": {
        "prompt": [{"prompt": "zebra [b]", "weight": 1}], "steps": 5, "seed": 5, "sampler": "k_lms"}},
    "draw things": {"c": "zebra", "uc": "b", "seed": 5, "steps": 4, "size": "64x64", "scale": 7, "sampler": "LCM"},
    "easy": {
        "prompt": "zebra", "negative_prompt": "", "seed": 5, "use_stable_diffusion_model": "a", "width": 64,
        "height": 64, "num_inference_steps": 20, "guidance_scale": 7.5, "sampler_name": "euler_a"},
    "civitai": {
        "extraMetadata": '{"prompt": "zebra", "steps": 20, "cfgScale": 7, "seed": 5}', "x": {"class_type": "a"}},
    "comfyui": {"3": {"class_type": "KSampler", "inputs": {"seed": 5, "text": "zebra"}}},
    "workflow": {"nodes": [{"id": 1, "widgets_values": ["zebra"]}], "links": []},
}  # fmt: skip
SETTING = re.compile(r"^\s*(CFG scale|Sampler|Seed): ", re.MULTILINE)
LAYOUTS = (", ", ",\n", "; ", " | ", "\n", ",", ",\r\n")
TAILS = ("\nTemplate: quagga {a|b}\nNegative Template: quagga", "\nquagga", "\r\n", ", quagga", "\nquagga: a, b: c", "")
OTHERS_TOKENS = (
    *A1111_TOKENS, "Template: ", "\r", "\r\n", "; ", " | ", "Steps: ", "\nSteps: 20, Seed: 1, Size: 8x8", "[", "{", "]",
    'a: [{"b": "', "Civitai resources: [", "x: [1,", 'y: "', "Negative Prompt: ", "Hires steps: 5", "Scheduler: karras",
)  # fmt: skip


@RUNS
def test_recipes_of_other_programs_are_read_or_refused_and_settings_are_no_prompts(tmp_path, runs):
    path = tmp_path / "a.png"
    pixels = bytes((1 + 8 * 3) * 8)
    names = (b"parameters", b"prompt", b"workflow", b"invokeai_metadata", b"sd-metadata", b"Dream", b"Comment")

    def make(rng):
        if rng.random() < 0.35:
            data = damage_json(rng, OTHERS[rng.choice(tuple(OTHERS))])
            if rng.random() < 0.3:
                texts = {rng.choice(names): data.replace(b"\0", b""), b"Software": b"NovelAI"[: rng.randrange(8)]}
                return png(rng, texts, pixels)
            return data.decode("utf-8", "replace")
        layout = rng.choice(LAYOUTS)
        settings = SETTINGS_OF_OTHERS if layout == ", " else SETTINGS_OF_OTHERS.replace(", ", layout)
        between = rng.choice(("\n", "\n", "\n\n", "\r\n", " "))
        text = PROMPTS_OF_OTHERS + between + settings + rng.choice(TAILS)
        if rng.random() < 0.3:
            return damage_text(rng, text, OTHERS_TOKENS)
        if rng.random() < 0.1:
            return "".join(rng.choice((*OTHERS_TOKENS, *TEXTS)) for _ in range(rng.choice((1, 5, 20, 2000))))
        return text

    def read(sample):
        if isinstance(sample, bytes):
            path.write_bytes(sample)
            picture = read_picture(path)
            json.dumps(picture_json(picture), allow_nan=False)
            list(picture_lines(picture))
            found = picture.record
        else:
            _, found = read_recipe_text(sample, "a.png")
            # What stands behind the settings has one word, what stands before them another.
            if 0 <= sample.find("Steps: 20") < sample.find("quagga"):
                assert "quagga" not in f"{found.prompt}{found.negative_prompt}"
            if "{" not in sample[:1]:
                assert not SETTING.search(f"{found.prompt}\n{found.negative_prompt}")
        if found is not None:
            assert record_from_json(found.to_json(), "a.png").prompt is not None
            assert len(left_out(found) or "") < 10_000
            recorded_fields(found, ())
            a1111_text(found).encode()

    feed(read, make, runs).check(0.3)
