"""What the page computes in JavaScript, held against what it stands for: torch, tokenizers, diffusers, our prompts."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from olivelike.engine.output.assets import normalise_assets
from olivelike.engine.output.fallback_assets import scheduler_with_defaults
from olivelike.errors import UsageError
from olivelike.extras.deploy.web_files import schedule
from olivelike.extras.deploy.web_page import PAGE_FILES
from olivelike.runtime.pipeline.safety import read_preprocessing
from olivelike.runtime.prompts.clip_text import chunk_prompt, open_tokenizer, weighted
from olivelike.runtime.prompts.syntax import parse_prompt
from tests.fixtures.their_schedulers import their_scheduler

DATA = Path(__file__).parents[3] / "olivelike" / "data"

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed (`node`)")

Compute = Callable[..., Any]


@pytest.fixture(scope="module")
def compute(tmp_path_factory: pytest.TempPathFactory) -> Compute:
    """Return a function that runs JavaScript beside the page's modules: its `answer`, given `data`."""
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(PAGE_FILES, folder, dirs_exist_ok=True)
    (folder / "package.json").write_text('{"type": "module"}')

    def run(script: str, data: Any) -> Any:
        (folder / "data.json").write_text(json.dumps(data))
        (folder / "run.js").write_text(
            'import { readFileSync, writeFileSync } from "node:fs";\n'
            'const data = JSON.parse(readFileSync("data.json", "utf8"));\n'
            f'{script}\nwriteFileSync("answer.json", JSON.stringify(answer));\n'
        )
        done = subprocess.run(["node", "run.js"], cwd=folder, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads((folder / "answer.json").read_text())

    return run


def test_noise_is_that_of_torch(compute: Compute) -> None:
    counts, seeds = (
        [16, 17, 31, 256, 4 * 13 * 9, 4 * 64 * 64],
        [0, 1, 5489, 2**31, 2**32 - 1, 804822466654819, 2**64 - 1],
    )
    asked = [(count, str(seed)) for count in counts for seed in seeds]
    script = 'import { noise } from "./noise.js";\nconst answer = data.map((asked) => [...noise(...asked)]);'
    for (count, seed), drawn in zip(asked, compute(script, asked), strict=True):
        expected = torch.randn(count, generator=torch.Generator().manual_seed(int(seed))).numpy()
        assert np.abs(np.array(drawn) - expected).max() < 1e-6


def _texts() -> list[str]:
    """Return texts of all kinds, and random ones of letters that are easily taken wrongly."""
    usual = [
        "", "a red circle", "A  RED\tCircle,\n(big)", "it's we're I'LL don't 's''s", "100% of 3.14 and 2024!",
        "e\u0301 \u00e9 \u0130stanbul \u03a3\u03a3\u03a3 stra\u00dfe",
        "\u4e2d\u6587 \U0001f600\U0001f3fd\ufeff \u0085x\u2003y",
        "<|startoftext|>a<|endoftext|> <|EndOfText|>", "aaaa!!!!''''---___", "\x00\x1f\x7f",
    ]  # fmt: skip
    letters = "aAbBeé\u0301 '\u0130\u03a3!,.<|>_-\ufeff\u0085\u00a0\u200b\u4e2d\U0001f600 0189\u0660\u00bdstrvmld\n"
    chosen = random.Random(4)
    return usual + ["".join(chosen.choices(letters, k=chosen.randrange(40))) for _ in range(300)]


def _assets(added: dict[str, Any] | None = None) -> dict[str, bytes]:
    folder = DATA / "demo"
    files = {f"tokenizer/{path.name}": path for path in (folder / "tokenizer").iterdir()}
    files["scheduler/scheduler_config.json"] = folder / "scheduler" / "scheduler_config.json"
    return normalise_assets(json.loads((folder / "model_index.json").read_bytes()), files, added)


@pytest.mark.parametrize("tokens", [[], ["<style>", "<style>_1", "Blå-ÉT", "!!"]], ids=["own", "embeddings"])
def test_ids_are_those_of_the_tokenizer(compute: Compute, tmp_path: Path, tokens: list[str]) -> None:
    added = {"tokenizer": {"tokens": tokens, "first": 622}} if tokens else None
    for name, data in _assets(added).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    ours = open_tokenizer(tmp_path / "tokenizer")
    texts = [*_texts(), *(f"a {token}{token.upper()} b,{token.lower()}" for token in tokens)]
    script = (
        'import { makeTokenizer } from "./tokenizer.js";\n'
        "const made = makeTokenizer(data.whole, data.config);\n"
        "const { start, end, pad, length, comma } = made;\n"
        "const answer = [data.texts.map((text) => made.encode(text)), [start, end, pad, length, comma ?? null]];"
    )
    whole, config = (
        json.loads((tmp_path / "tokenizer" / name).read_bytes()) for name in ("tokenizer.json", "tokenizer_config.json")
    )
    encoded, facts = compute(script, {"whole": whole, "config": config, "texts": texts})
    assert facts == [ours.start, ours.end, ours.pad, ours.length, ours.comma]
    for text, ids in zip(texts, encoded, strict=True):
        assert ids == [list(token) for token in ours.ids(text)], repr(text)


def test_prompts_become_the_rows_and_weights_of_generate(compute: Compute, tmp_path: Path) -> None:
    for name, data in _assets().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    ours = open_tokenizer(tmp_path / "tokenizer")
    long = ", ".join(["a red circle on a blue background"] * 9)
    prompts = [
        "", "plain", "(a) [b] ((c)) (d:1.5) [e (f:0.5)]", "a BREAK b", "BREAK", "(a BREAK b:1.3)", r"\(a\) \[b\] \\ \x",
        "((a", "a))", "a:b (c:d)", "(red:1.2)circle(blue:-0.5)", "a\n b  BREAK  c", "( : 1.2 )", long,
        f"({long}:1.1)", f"{'x ' * 70}, y y y y y y y y y y",
    ]  # fmt: skip
    chosen = random.Random(5)
    letters = ["a", "red ", "(", ")", "]", ":1.5)", ":", " ", "BREAK", "\\", ", ", "[ "]
    prompts += ["".join(chosen.choices(letters, k=chosen.randrange(30))) for _ in range(300)]
    whole, config = (
        json.loads((tmp_path / "tokenizer" / name).read_bytes()) for name in ("tokenizer.json", "tokenizer_config.json")
    )
    script = (
        'import { makeTokenizer } from "./tokenizer.js";\n'
        'import { chunk, parsePrompt } from "./prompt.js";\n'
        "const made = makeTokenizer(data.whole, data.config);\n"
        "const read = (prompt) => {\n"
        "  try { return chunk(made, parsePrompt(prompt)); } catch (error) { return error.message; }\n};\n"
        "const answer = data.prompts.map(read);"
    )
    answers = compute(script, {"whole": whole, "config": config, "prompts": prompts})
    refused = 0
    for prompt, rows in zip(prompts, answers, strict=True):
        if isinstance(rows, str):
            assert "does not know" in rows, prompt
            refused += 1
            continue
        expected = chunk_prompt(ours, parse_prompt(prompt))
        assert [row["ids"] for row in rows] == [list(ids) for ids in expected.ids], prompt
        assert np.allclose([row["weights"] for row in rows], expected.weights, rtol=1e-12), prompt
    assert refused < len(prompts) / 3


def test_what_the_page_does_not_know_in_prompts_is_refused(compute: Compute) -> None:
    prompts = [
        "a AND b", "<lora:style:0.5>", "[cat:dog:0.5]", "[cat|dog]", "{red|blue} circle", "a __colour__ circle",
        "x" * 20_001, "(a:99999)",
    ]  # fmt: skip
    script = (
        'import { parsePrompt } from "./prompt.js";\n'
        "const answer = data.map((prompt) => {\n"
        "  try { return parsePrompt(prompt), null; } catch (error) { return error.message; }\n});"
    )
    assert all(compute(script, prompts))
    for prompt in prompts[-2:]:
        with pytest.raises(UsageError):
            parse_prompt(prompt)


def test_weighted_states_are_those_of_generate(compute: Compute) -> None:
    states = np.random.default_rng(3).standard_normal((1, 77, 8), np.float32) + np.float32(0.3)
    weights = [1.0, 1.5, 0.2, *[1.0] * 74]
    script = (
        'import { weigh } from "./prompt.js";\n'
        "const states = Float32Array.from(data.states);\nweigh(states, data.weights);\nconst answer = [...states];"
    )
    found = compute(script, {"states": states.flatten().tolist(), "weights": weights})
    expected = weighted(states, [weights]).flatten()
    assert np.abs(np.array(found) - expected).max() < 1e-5


CONFIGS = {
    "sd15": {"_class_name": "DDIMScheduler", "steps_offset": 1, "set_alpha_to_one": False},
    "v": {"_class_name": "DDIMScheduler", "prediction_type": "v_prediction", "timestep_spacing": "trailing"},
    "zero snr": {
        "_class_name": "DDIMScheduler", "prediction_type": "v_prediction", "rescale_betas_zero_snr": True,
        "timestep_spacing": "trailing",
    },
    "linear": {"_class_name": "DDIMScheduler", "beta_schedule": "linear", "timestep_spacing": "linspace"},
    "sample": {"_class_name": "DDIMScheduler", "prediction_type": "sample", "beta_schedule": "squaredcos_cap_v2"},
    "clipped": {"_class_name": "DDIMScheduler", "clip_sample": True, "clip_sample_range": 0.7},
    "trained": {"_class_name": "DDIMScheduler", "trained_betas": [0.001 + 0.00001 * i for i in range(1000)]},
    "pndm": {"_class_name": "PNDMScheduler", "skip_prk_steps": True, "steps_offset": 1},
    "pndm v": {
        "_class_name": "PNDMScheduler", "skip_prk_steps": True, "prediction_type": "v_prediction",
        "timestep_spacing": "trailing",
    },
    "sdxl": {"_class_name": "EulerDiscreteScheduler", "timestep_spacing": "leading", "steps_offset": 1},
    "turbo": {"_class_name": "EulerDiscreteScheduler", "timestep_spacing": "trailing"},
    "euler": {"_class_name": "EulerDiscreteScheduler", "timestep_spacing": "linspace"},
    "euler v": {"_class_name": "EulerDiscreteScheduler", "prediction_type": "v_prediction"},
}  # fmt: skip
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "num_train_timesteps": 1000}
UNKNOWN = {
    "prk": {"_class_name": "PNDMScheduler", "steps_offset": 1, "set_alpha_to_one": False, "skip_prk_steps": False},
    "ancestral": {"_class_name": "EulerAncestralDiscreteScheduler", "steps_offset": 1, "timestep_spacing": "leading"},
    "karras": {"_class_name": "EulerDiscreteScheduler", "use_karras_sigmas": True, "timestep_spacing": "leading"},
}
STEPS = (1, 2, 7, 30)
LOOP = """
import { makeSchedule, schedulerName } from "./schedule.js";
const answer = data.asked.map(({ schedule, steps }) => {
  const made = makeSchedule(schedule, steps);
  let latents = Float32Array.from(data.latents).map((value) => value * made.noiseFactor);
  made.timesteps.forEach((_, number) => {
    latents = made.step(made.scale(latents, number).map((value) => Math.sin(value) / 2), latents, number);
  });
  return { name: schedulerName(schedule), timesteps: made.timesteps, latents: [...latents] };
});
"""


def test_steps_are_those_of_diffusers(compute: Compute) -> None:
    start = torch.randn(64, generator=torch.Generator().manual_seed(0))
    asked, expected = [], []
    for given in (*CONFIGS.values(), *UNKNOWN.values()):
        own = str(given["_class_name"])
        # What the page does not know it draws with DDIM.
        name = None if given in CONFIGS.values() else "DDIMScheduler"
        config = scheduler_with_defaults(own, {**BETAS, **given})
        made = json.loads(schedule({"scheduler/scheduler_config.json": json.dumps(config).encode()}))
        for steps in STEPS:
            asked.append({"schedule": made, "steps": steps})
            expected.append((name or own, *_loop(name, config, steps, start)))
    answers = compute(LOOP, {"asked": asked, "latents": start.tolist()})
    for one, answer, (name, moments, latents) in zip(asked, answers, expected, strict=True):
        what = (one["schedule"]["config"], one["steps"])
        assert answer["name"] == name, what
        assert answer["timesteps"] == pytest.approx(moments, abs=1e-3), what
        assert np.abs(np.array(answer["latents"]) - latents).max() < 1e-4 * max(1, np.abs(latents).max()), what


def _loop(name: str | None, config: dict[str, Any], steps: int, latents: torch.Tensor) -> tuple[list[float], Any]:
    scheduler = their_scheduler(name, config)
    scheduler.set_timesteps(steps)
    moments, latents = scheduler.timesteps.tolist(), latents * scheduler.init_noise_sigma
    for moment in scheduler.timesteps:
        prediction = torch.sin(scheduler.scale_model_input(latents, moment)) / 2
        latents = scheduler.step(prediction, moment, latents).prev_sample
    return moments, latents.numpy()


def test_the_safety_checker_sees_what_it_sees_in_generate(compute: Compute, tmp_path: Path) -> None:
    configs = [
        {"size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}},
        {"size": 20, "crop_size": 32, "rescale_factor": 0.01},
        {"size": {"height": 31, "width": 18}, "crop_size": {"height": 9, "width": 17}, "do_normalize": False},
        {"do_resize": False, "crop_size": 16, "do_rescale": False},
    ]
    chosen = np.random.default_rng(1)
    asked, expected = [], []
    for config in configs:
        config |= {"resample": 3, "image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28]}
        path = tmp_path / "preprocessor_config.json"
        path.write_text(json.dumps(config))
        for width, height in ((64, 64), (64, 128), (128, 64), (24, 24)):
            pixels = chosen.integers(0, 256, (height, width, 3), np.uint8)
            if width == height:
                pixels = (pixels > 127).astype(np.uint8) * 255  # beyond both ends once filtered
            expected.append(read_preprocessing(path).pixels(Image.fromarray(pixels)))
            alpha = np.full((height, width, 1), 255, np.uint8)
            asked.append([config, np.concatenate([pixels, alpha], 2).flatten().tolist(), width, height])
    script = (
        'import { makePreprocessing } from "./safety.js";\n'
        "const answer = data.map(([config, pixels, width, height]) => {\n"
        "  const seen = makePreprocessing(config)(Uint8ClampedArray.from(pixels), width, height);\n"
        "  return [seen.dims, [...seen.data]];\n});"
    )
    for (dims, values), pixels, (config, *_) in zip(compute(script, asked), expected, asked, strict=True):
        assert dims == list(pixels.shape)
        keeps = not isinstance(config.get("size"), dict) or "shortest_edge" in config["size"]
        difference = np.abs(np.array(values).reshape(dims) - pixels).max()
        # Where a picture's shape changes Pillow may go down before across, and round in between.
        assert difference < (1e-4 if keeps else 1.01 / 255 / 0.26)
