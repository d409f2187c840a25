"""A family that is no Stable Diffusion is drawn with by its facts alone: no file of the loop knows it.

Its denoiser takes latents of 16 channels in packed form, the share of the picture in place of the timestep, texts of
two kinds, positions, and the guidance. A loop that is written out here says what has to come out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from olivelike.families import FAMILIES
from olivelike.families.denoiser_forms import FORMS, DenoiserForm, GuidanceInput
from olivelike.families.family import Family, Latents, Published, Sizes, TextPart
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.pipeline import pipeline_folder
from olivelike.runtime.pipeline.pipeline_folder import open_folder
from olivelike.runtime.pipeline.vae import encode_picture
from olivelike.runtime.prompts import text_kinds
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.session import Network
from olivelike.runtime.sessions.session_settings import SessionSettings
from olivelike.testing.checkpoint_configs import write_tokenizer
from tests.fixtures.their_schedulers import their_scheduler

WIDTH, CHANNELS, LENGTH = 8, 16, 12
SCALING, SHIFT = 0.3611, 0.1159
SCHEDULER = {"_class_name": "EulerDiscreteScheduler", "num_train_timesteps": 1000, "beta_schedule": "scaled_linear"}
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def pack(latents):
    rows, channels, height, width = latents.shape
    parts = latents.reshape(rows, channels, height // 2, 2, width // 2, 2).transpose(0, 2, 4, 1, 3, 5)
    return parts.reshape(rows, height // 2 * (width // 2), channels * 4)


def unpack(tokens, height, width):
    parts = tokens.reshape(len(tokens), height // 2, width // 2, -1, 2, 2).transpose(0, 3, 1, 4, 2, 5)
    return parts.reshape(len(tokens), -1, height, width)


def positions(height, width, inputs):
    assert "encoder_hidden_states" in inputs
    rows, columns = np.meshgrid(np.arange(height // 2), np.arange(width // 2), indexing="ij")
    return {"img_ids": np.stack([rows.flatten(), columns.flatten()], axis=1).astype(np.float32)}


def encode(texts, config):
    first, second = texts["text_encoder"], texts["text_encoder_2"]
    return {
        "encoder_hidden_states": np.concatenate([first.hidden, second.hidden], axis=1),
        "pooled_projections": first.pooled,
    }


TOY = Family(
    name="toy",
    title="Toy transformer",
    pipelines=("ToyPipeline",),
    owns=lambda index, components, denoiser: index.get("_class_name") == "ToyPipeline",
    denoiser="transformer",
    denoiser_class="ToyTransformer2DModel",
    texts=(
        TextPart("text_encoder", "tokenizer", WIDTH),
        TextPart("text_encoder_2", "tokenizer_2", WIDTH, kind="words", length=LENGTH),
    ),
    latents=Latents(channels=CHANNELS, factor=8, scaling=SCALING, shift=SHIFT),
    sizes=Sizes(default=64, unit=16),
    widths=(),
    published=Published({}, {}, "EulerDiscreteScheduler", "toy.json"),
    matches=lambda *_: False,
    sample="hidden_states",
    timestep="1 - sigma",
)
FORM = DenoiserForm(
    encode=encode,
    grid_inputs=positions,
    guidance_input=lambda config: (
        GuidanceInput("guidance", lambda scale: np.array([scale], np.float32)) if config["guidance_embeds"] else None
    ),
    pack=pack,
    output=lambda raw, height, width: -unpack(raw, height, width),
)


@dataclass(frozen=True)
class Words:
    ids: tuple[int, ...]
    chunks: int = 1

    @property
    def tokens(self):
        return len(self.ids)


class WordReader:
    """A kind of text without chunks, emphasis or a start: ids are padded, and a mask says which are words."""

    room = LENGTH
    words = ()

    def read(self, text, *, prompt_weights=True):
        return Words(tuple(len(word) for word in text.split()[:LENGTH]))

    def encode(self, texts, chunks, encoder):
        rows = [[*text.ids, *[0] * (LENGTH - text.tokens)] for text in texts]
        mask = [[1] * text.tokens + [0] * (LENGTH - text.tokens) for text in texts]
        return encoder(np.array(rows), np.array(mask))


def write_graph(path, inputs, outputs, text, **weights):
    """Write a model whose nodes are lines of `output = Operator(input, …)`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nodes = []
    for line in text.strip().splitlines():
        output, call = (part.strip() for part in line.split("="))
        operator, arguments = call.rstrip(")").split("(")
        nodes.append(helper.make_node(operator, [one.strip() for one in arguments.split(",")], [output]))
    graph = helper.make_graph(
        nodes,
        "toy",
        [helper.make_tensor_value_info(name, *spec) for name, spec in inputs.items()],
        [helper.make_tensor_value_info(name, *spec) for name, spec in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def text_encoder(path, *, masked, pooled):
    inputs = {"input_ids": (INT if masked else TensorProto.INT32, ["b", "s"])}
    outputs = {"last_hidden_state": (FLOAT, ["b", "s", WIDTH])}
    lines = "ids = Cast_(input_ids)\ncolumn = Unsqueeze(ids, last)\nangles = Mul(column, rates)\n"
    if masked:
        inputs["attention_mask"] = (INT, ["b", "s"])
        lines += "raw = Sin(angles)\nshown = Cast_(attention_mask)\nkept = Unsqueeze(shown, last)\n"
        lines += "last_hidden_state = Mul(raw, kept)\n"
    else:
        lines += "last_hidden_state = Sin(angles)\n"
    if pooled:
        outputs["text_embeds"] = (FLOAT, ["b", WIDTH])
        lines += "text_embeds = Mean_(last_hidden_state, first)\n"
    rates = np.linspace(0.01, 0.3, WIDTH, dtype=np.float32)
    write_graph(path, inputs, outputs, lines, rates=rates, last=np.array([2]), first=np.array([1]))
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "Cast_":
            node.op_type = "Cast"
            node.attribute.append(helper.make_attribute("to", FLOAT))
        elif node.op_type == "Mean_":
            node.op_type = "ReduceMean"
            node.attribute.append(helper.make_attribute("keepdims", 0))
    onnx.save(model, path)


def denoiser(path, *, guided):
    rng = np.random.default_rng(0)

    def weight(*shape):
        return rng.normal(0, 0.3 / np.sqrt(shape[0]), shape).astype(np.float32)

    inputs = {
        "hidden_states": (FLOAT, ["rows", "tokens", CHANNELS * 4]),
        "timestep": (FLOAT, ["rows"]),
        "encoder_hidden_states": (FLOAT, ["text_rows", "text_tokens", WIDTH]),
        "pooled_projections": (FLOAT, ["pooled_rows", WIDTH]),
        "img_ids": (FLOAT, ["positions", 2]),
    }
    lines = """
        mixed = MatMul(hidden_states, w_sample)
        text = ReduceMean(encoder_hidden_states, one)
        told = MatMul(text, w_text)
        place = MatMul(img_ids, w_place)
        row = Unsqueeze(pooled_projections, one)
        whole = MatMul(row, w_pooled)
        moment = Unsqueeze(timestep, two)
        timed = Mul(moment, w_time)
        a = Add(mixed, told)
        b = Add(a, place)
        c = Add(b, whole)
        d = Add(c, timed)
    """
    if guided:
        inputs["guidance"] = (FLOAT, ["guidance_rows"])
        lines += "scale = Unsqueeze(guidance, two)\nled = Mul(scale, w_guidance)\ne = Add(d, led)\nvelocity = Tanh(e)\n"
    else:
        lines += "velocity = Tanh(d)\n"
    wide = CHANNELS * 4
    weights = {
        "w_sample": weight(wide, wide), "w_text": weight(WIDTH, wide), "w_place": weight(2, wide),
        "w_pooled": weight(WIDTH, wide), "w_time": weight(1, 1, wide), "w_guidance": weight(1, 1, wide),
        "one": np.array([1]), "two": np.array([1, 2]),
    }  # fmt: skip
    outputs = {"velocity": (FLOAT, ["rows", "tokens", wide])}
    text = "\n".join(line.strip() for line in lines.strip().splitlines())
    write_graph(path, inputs, outputs, text, **weights)


def decoder(path):
    rng = np.random.default_rng(1)
    weights = rng.normal(0, 0.2, (CHANNELS, 3)).astype(np.float32)
    lines = """
        rows = Transpose_(latent_sample)
        coloured = MatMul(rows, colours)
        small = Back_(coloured)
        sample = Resize(small, , scales)
    """
    write_graph(
        path,
        {"latent_sample": (FLOAT, ["b", CHANNELS, "h", "w"])},
        {"sample": (FLOAT, ["b", 3, "tall", "wide"])},
        lines,
        colours=weights,
        scales=np.array([1, 1, 8, 8], np.float32),
    )
    model = onnx.load(path)
    for node in model.graph.node:
        order = {"Transpose_": [0, 2, 3, 1], "Back_": [0, 3, 1, 2]}.get(node.op_type)
        if order is not None:
            node.op_type = "Transpose"
            node.attribute.append(helper.make_attribute("perm", order))
    onnx.save(model, path)


@pytest.fixture(autouse=True)
def toy_family(monkeypatch):
    monkeypatch.setitem(FAMILIES, "toy", TOY)
    monkeypatch.setitem(FORMS, "toy", FORM)
    monkeypatch.setitem(text_kinds.KINDS, "words", lambda folder, part: WordReader())
    monkeypatch.setattr(pipeline_folder, "DENOISERS", ("unet", "transformer"))


def toy_folder(path, *, guided):
    write = {
        "model_index.json": {"_class_name": "ToyPipeline"},
        "transformer/config.json": {"in_channels": 64, "guidance_embeds": guided},
        "vae_decoder/config.json": {
            "latent_channels": CHANNELS,
            "block_out_channels": [8] * 4,
            "scaling_factor": SCALING,
        },
        "scheduler/scheduler_config.json": SCHEDULER,
    }
    denoiser(path / "transformer" / "model.onnx", guided=guided)
    decoder(path / "vae_decoder" / "model.onnx")
    text_encoder(path / "text_encoder" / "model.onnx", masked=False, pooled=True)
    text_encoder(path / "text_encoder_2" / "model.onnx", masked=True, pooled=False)
    for name, content in write.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(json.dumps(content))
    write_tokenizer(path / "tokenizer", 1000)
    return path


def session(folder, component):
    return onnxruntime.InferenceSession(folder / component / "model.onnx", providers=["CPUExecutionProvider"])


def texts_of(folder, text):
    ids = np.array(text_kinds.open_text(folder, TOY.texts[0]).read(text).ids, np.int32)
    first = session(folder, "text_encoder").run(None, {"input_ids": ids})
    words = [len(word) for word in text.split()]
    padded = np.array([[*words, *[0] * (LENGTH - len(words))]])
    (second,) = session(folder, "text_encoder_2").run(
        None, {"input_ids": padded, "attention_mask": (padded > 0).astype(np.int64)}
    )
    return np.concatenate([first[0], second], axis=1), first[1]


def drawn_by_hand(folder, request, *, guided):
    """Return the latents of one picture, and its pixels from -1 to 1."""
    width, height = request.size
    scheduler = their_scheduler(None, SCHEDULER)
    scheduler.set_timesteps(request.steps)
    noise = torch.randn((1, CHANNELS, height // 8, width // 8), generator=torch.Generator().manual_seed(request.seed))
    latents, network = noise * scheduler.init_noise_sigma, session(folder, "transformer")
    grid = np.stack(np.meshgrid(*map(np.arange, (height // 16, width // 16)), indexing="ij"), -1).reshape(-1, 2)

    def predict(text, scaled, moment):
        states, pooled = texts_of(folder, text)
        inputs = {
            "hidden_states": pack(scaled.numpy()),
            "timestep": np.array([1 - moment / 1000], np.float32),
            "encoder_hidden_states": states,
            "pooled_projections": pooled,
            "img_ids": grid.astype(np.float32),
        }
        if guided:
            inputs["guidance"] = np.array([request.guidance_scale], np.float32)
        return torch.from_numpy(-unpack(network.run(None, inputs)[0], height // 8, width // 8))

    for moment in scheduler.timesteps:
        scaled = scheduler.scale_model_input(latents, moment)
        prediction = predict(request.prompts[0], scaled, float(moment))
        if not guided:
            negative = predict(request.negative_prompt, scaled, float(moment))
            prediction = negative + request.guidance_scale * (prediction - negative)
        latents = scheduler.step(prediction, moment, latents).prev_sample
    unscaled = (latents / SCALING + SHIFT).numpy()
    return latents, session(folder, "vae_decoder").run(None, {"latent_sample": unscaled})[0]


REQUEST = Request(
    ("a red circle and a square",), negative_prompt="dull blue", size=(64, 48), steps=3, seed=4, guidance_scale=3.5
)


@pytest.mark.parametrize("calls", ["one", "two"])
@pytest.mark.parametrize("guided", [True, False])
def test_a_denoiser_is_drawn_with_by_what_its_family_says(tmp_path, guided, calls):
    folder = toy_folder(tmp_path, guided=guided)
    pipeline = open_pipeline(folder)
    request = replace(REQUEST, guidance_calls=calls)
    latents, pixels = drawn_by_hand(folder, request, guided=guided)
    found = pipeline.latents(request)
    assert found.shape == (1, CHANNELS, 6, 8)
    np.testing.assert_allclose(found, latents, rtol=1e-4, atol=1e-4)
    (picture,) = pipeline.generate(request).pictures
    expected = np.clip(pixels[0] * 0.5 + 0.5, 0, 1).transpose(1, 2, 0) * 255
    assert np.abs(np.asarray(picture.image, np.float32) - expected).max() <= 1


def test_its_sizes_steps_and_several_parts_are_those_of_any_pipeline(tmp_path):
    pipeline = open_pipeline(toy_folder(tmp_path, guided=False))
    assert (pipeline.folder.default_size, pipeline.folder.size_unit) == ((64, 64), 16)
    shown = []
    request = replace(REQUEST, prompts=("a [cat|dog] AND fog :0.5", "house"), batch_size=2, size=None)
    result = pipeline.generate(request, on_step=lambda step: shown.append(step.preview.show()[0].size))
    assert shown == [(64, 64)] * 3
    alone = pipeline.generate(replace(request, prompts=request.prompts[:1])).pictures
    assert np.array_equal(np.asarray(result.pictures[0].image), np.asarray(alone[0].image))


def test_latents_of_a_picture_are_shifted_before_they_are_scaled(tmp_path):
    folder = toy_folder(tmp_path, guided=True)
    path = folder / "vae_encoder" / "model.onnx"
    write_graph(
        path,
        {"sample": (FLOAT, [1, 3, "tall", "wide"])},
        {"latent_sample": (FLOAT, [1, CHANNELS, "h", "w"])},
        "small = Resize(sample, , scales)\nlatent_sample = Tile(small, repeats)",
        scales=np.array([1, CHANNELS / 3, 1 / 8, 1 / 8], np.float32),
        repeats=np.array([1, 1, 1, 1]),
    )
    pixels = np.linspace(-1, 1, 3 * 64 * 64, dtype=np.float32).reshape(1, 3, 64, 64)
    network = Network("vae_encoder", open_session(path, SessionSettings()))
    found = encode_picture(pixels, network, CHANNELS, open_folder(folder), [torch.Generator()])
    (raw,) = session(folder, "vae_encoder").run(None, {"sample": pixels})
    np.testing.assert_allclose(found, (raw - SHIFT) * SCALING, rtol=1e-5, atol=1e-6)
