"""What the page computes in JavaScript, held against what it stands for: torch, tokenizers, diffusers, our prompts."""

from __future__ import annotations

import io
import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from olivelike.engine.output.assets import normalise_assets
from olivelike.engine.output.fallback_assets import scheduler_with_defaults
from olivelike.engine.output.scheduler_model import scheduler_model
from olivelike.errors import UsageError
from olivelike.extras.deploy.web_page import PAGE_FILES
from olivelike.runtime.pictures.ai_mark import MADE, said_source_type, xmp_packet
from olivelike.runtime.pictures.picture_reading import read_picture_data
from olivelike.runtime.pictures.picture_record import PictureRecord, a1111_text
from olivelike.runtime.pipeline.noise import Noise
from olivelike.runtime.pipeline.safety import read_preprocessing
from olivelike.runtime.prompts.clip_text import chunk_prompt, open_tokenizer, weighted
from olivelike.runtime.prompts.syntax import parse_prompt
from olivelike.runtime.schedulers.class_settings import scheduler_settings
from olivelike.runtime.schedulers.schedule import Schedule, make_schedule, steps_taken
from olivelike.runtime.schedulers.scheduler_names import scheduler_names

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
    script = (
        'import { makeNoise } from "./noise.js";\n'
        "const twice = (draw, count) => [[...draw(count)], [...draw(count)]];\n"
        "const answer = data.map(([count, seed]) => twice(makeNoise(seed), count));"
    )
    for (count, seed), drawn in zip(asked, compute(script, asked), strict=True):
        generator = torch.Generator().manual_seed(int(seed))
        for numbers in drawn:
            expected = torch.randn(count, generator=generator).numpy()
            assert np.abs(np.array(numbers) - expected).max() < 1e-6


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


def test_a_saved_picture_has_the_recipe_that_the_server_writes(compute: Compute, tmp_path: Path) -> None:
    for prompt, negative, sampler, schedule, model in (
        ('a "red" circle, (blue:1.2)\nwell', "green, dull", "Euler a", None, "demo"),
        ("öl auf 画布", "", "DPM++ 2M", "Karras", "a model: old, good"),
    ):
        name = f"{sampler} {schedule}" if schedule else sampler
        recipe = {
            "prompt": prompt, "negative_prompt": negative, "steps": 8, "guidance_scale": 7.5, "seed": str(2**63 + 1),
            "width": 64, "height": 32, "scheduler": name, "sampler": sampler, "schedule": schedule, "model": model,
            "version": "olivelike 0.2.0",
        }  # fmt: skip
        plain = io.BytesIO()
        Image.new("RGB", (64, 32), "red").save(plain, "PNG")
        script = (
            'import { withRecipe } from "./recipe_file.js";\n'
            "const parts = withRecipe(Uint8Array.from(data.png), data.recipe);\n"
            "const answer = parts.flatMap((part) => [...part]);"
        )
        data = bytes(
            compute(script, {"png": list(plain.getvalue()), "recipe": recipe | {"xmp": xmp_packet(MADE).decode()}})
        )
        found = read_picture_data(data, "saved.png")
        values = recipe | {"seed": 2**63 + 1, "negative_prompt": negative or None}
        assert found.record == PictureRecord(**values)
        assert found.own
        assert found.parameters == a1111_text(PictureRecord(**values))
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            assert said_source_type(image.info["XML:com.adobe.xmp"]) == MADE


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
    "prk": {"_class_name": "PNDMScheduler", "steps_offset": 1, "set_alpha_to_one": False, "skip_prk_steps": False},
    "karras": {"_class_name": "EulerDiscreteScheduler", "use_karras_sigmas": True, "timestep_spacing": "leading"},
    "threshold": {"_class_name": "DDIMScheduler", "thresholding": True, "sample_max_value": 1.5},
}  # fmt: skip
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "num_train_timesteps": 1000}
STEPS = (1, 2, 7, 30)
LOOP = """
import { makeSchedule } from "./schedule.js";
import { makeNoise } from "./noise.js";
const special = { Infinity: Infinity };
const answer = await Promise.all(data.asked.map(async ({ table, name, steps, seed }) => {
  const found = Object.fromEntries(Object.entries(table).map(([output, { dims, values }]) =>
    [output, { dims, data: Float32Array.from(values, (value) => special[value] ?? value) }]));
  const made = await makeSchedule(async (inputs) => {
    const asked = [inputs.scheduler[1][0], Number(inputs.steps[1][0]), inputs.strength[1][0]];
    if (asked.join() !== [name, steps, 1].join()) throw new Error(`asked for ${asked}`);
    return found;
  }, name, steps);
  const draw = makeNoise(seed);
  let state = [Float64Array.from(data.latents).map((value) => value * made.initial)];
  made.timesteps.forEach((_, call) => {
    const output = made.scaled(state[0], call).map((value) => Math.sin(value) / 2);
    ({ state } = made.advance(state, output, made.draws(call) ? draw(state[0].length) : null, call));
  });
  return [...state[0]];
}));
"""


def _answers(compute: Compute, cases: list[tuple[str, int, Schedule]]) -> Iterator[tuple[Any, Any]]:
    """Yield what the page makes of tables, and what the runtime does."""
    start = Noise(0).draw((64,))
    asked = [
        {"table": _table(schedule), "name": name, "steps": steps, "seed": 5} for name, steps, schedule in cases
    ]  # fmt: skip
    found = compute(LOOP, {"asked": asked, "latents": start.tolist()})
    for answer, (_, _, schedule) in zip(found, cases, strict=True):
        yield answer, _loop(schedule, start, Noise(5))


def _table(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as `scheduler/model.onnx` gives it."""
    columns = ("timesteps", "scale", "picture", "following", "draws")
    outputs = {name: getattr(schedule, name)[schedule.begin :] for name in columns}
    outputs |= {"initial": np.array([schedule.first]), "threshold": np.array(schedule.threshold or (0, 0))}
    outputs["clip"] = np.array([np.inf if schedule.most is None else schedule.most])
    return {name: {"dims": one.shape, "values": _numbers(one)} for name, one in outputs.items()}


def _numbers(values: Any) -> list[Any]:
    return ["Infinity" if value == np.inf else value for value in values.astype(np.float32).flatten().tolist()]


def _difference(answer: Any, latents: Any) -> float:
    return float(np.abs(np.array(answer) - latents).max() / max(1, np.abs(latents).max()))


def test_steps_are_those_of_generate(compute: Compute) -> None:
    cases: list[tuple[str, int, Schedule]] = []
    for given in CONFIGS.values():
        config = scheduler_with_defaults(str(given["_class_name"]), {**BETAS, **given})
        own = scheduler_settings(None, config)
        cases += [("", steps, make_schedule(own, steps)) for steps in STEPS if steps >= steps_taken(own)[0]]
    for place, (answer, latents) in enumerate(_answers(compute, cases)):
        assert _difference(answer, latents) < 1e-5, cases[place]


def test_all_samplers_of_the_model_give_the_latents_of_generate(compute: Compute) -> None:
    config = json.loads((DATA / "demo" / "scheduler" / "scheduler_config.json").read_bytes())
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    model = onnxruntime.InferenceSession(scheduler_model(config), options, ["CPUExecutionProvider"])
    names = json.loads(model.get_modelmeta().custom_metadata_map["olivelike.schedulers"])
    assert set(names) == {"", *scheduler_names()}
    cases: list[tuple[str, int, Schedule]] = []
    for name in names:
        given = {"scheduler": np.array([name], object), "steps": np.array([7]), "strength": np.ones(1)}
        outputs = dict(zip([one.name for one in model.get_outputs()], model.run(None, given), strict=True))
        columns = [outputs[one].astype(float) for one in ("timesteps", "scale", "picture", "following", "mixed")]
        first, clip = float(outputs["initial"][0]), float(outputs["clip"][0])
        schedule = Schedule(name, *columns, outputs["draws"], None, first, 1, most=clip if clip < np.inf else None)
        assert not outputs["threshold"].any()
        cases.append((name, 7, schedule))
    brownian = set()
    for (name, _, _), (answer, latents) in zip(cases, _answers(compute, cases), strict=True):
        assert _difference(answer, latents) < 1e-6, name
        theirs = make_schedule(scheduler_settings(name or None, config), 7)
        if theirs.spans is not None:
            brownian.add(name)
        else:
            assert _difference(answer, _loop(theirs, Noise(0).draw((64,)), Noise(5))) < 1e-5, name
    assert {"DPM++ SDE", "DPM++ SDE Karras", "DPMSolverSDE"} <= brownian


def _loop(schedule: Schedule, latents: Any, noise: Noise) -> Any:
    latents, kept = latents.astype(np.float64) * schedule.first, schedule.kept
    for call in schedule.calls:
        output = np.sin(schedule.scaled(latents, call)) / 2
        drawn = noise.draw(latents.shape) if schedule.draws[call] else 0.0
        # Dynamic thresholding is of a picture each.
        after, kept, _ = schedule.advance(call, latents[None], kept, output[None], drawn)
        latents = after[0]
    return latents


def test_a_refused_number_of_steps_is_told_by_the_node_that_refuses(compute: Compute) -> None:
    script = (
        'import { makeSchedule } from "./schedule.js";\n'
        "const told = (steps, message) => makeSchedule(async () => {\n"
        "  throw new Error(`outer ${message}`, { cause: new Error(message) });\n"
        "}, '', steps).catch((error) => error.message);\n"
        "const answer = await Promise.all(data.map((asked) => told(...asked)));"
    )
    inner = "Non-zero status code returned while running Gather node. Name:'{}' Status Message: indices element"
    outer = "Non-zero status code returned while running If node. Name:'table' Status Message: "
    why = "steps must be 1 to 1000, as many as the network was trained on"
    asked = [
        (1.5, ""), (0, inner.format(why)), (10**6, outer + inner.format(f"table/else/{why}")),
        (1, inner.format("table/Gather_1")),
    ]  # fmt: skip
    sentence = f"S{why[1:]}."
    expected = ["Steps are a whole number.", sentence, sentence, f"outer {asked[-1][1]}"]
    assert compute(script, asked) == expected


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
