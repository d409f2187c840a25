"""A pipeline as one graph, against the runtime's pictures of the same networks from the same noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from olivelike.engine.output.scheduler_model import NAMES_KEY, Choices
from olivelike.errors import PassError
from olivelike.extras.one_file.clip_pixels import clip_pixels
from olivelike.extras.one_file.pipeline_graph import PipelineFacts, pipeline_graph
from olivelike.graphs.editing.arithmetic import Number, Writer
from olivelike.graphs.inspect import inspect_model
from olivelike.graphs.inspect.borders import read_borders, take_out
from olivelike.runtime.schedulers.scheduler_names import scheduler_names
from tests.fixtures.little_networks import LittleKind
from tests.fixtures.little_pipeline import little_model, little_one_file, little_pipeline

SCHEDULERS = (
    "",
    "DDIM",
    "Euler a",
    "LCM",
    "DPM++ 2M Karras",
    "DPM++ 3M SDE",
    "Heun Beta",
    "DPM2 a",
    "UniPC",
    "SA Solver",
    "DPM++ 2S a Align Your Steps",
)
"""One of each kind."""
DRAWS = 13
"""Enough noise for each of them, in three steps."""
PROMPT, NEGATIVE, SEED = "a red circle", "blue", 7


def open_file(folder: Path) -> onnxruntime.InferenceSession:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = 1, 4
    return onnxruntime.InferenceSession(folder / "pipeline.onnx", settings, providers=["CPUExecutionProvider"])


def ids(folder: Path, tokenizer: str, text: str) -> np.ndarray:
    from olivelike.runtime.prompts.clip_text import chunk_prompt, open_tokenizer
    from olivelike.runtime.prompts.syntax import parse_prompt

    opened = open_tokenizer(folder / tokenizer)
    parts = parse_prompt(text, prompt_weights=False)
    return np.array(chunk_prompt(opened, parts).padded(1, opened).ids, np.int32)


def noise_of(seeds: list[int], draws: int, size: tuple[int, int]) -> np.ndarray:
    from olivelike.runtime.pipeline.latents import draw_noise, generators

    sources = generators(seeds)
    return np.stack([draw_noise((4, *size), sources) for _ in range(draws)])


def psnr(found: np.ndarray, wanted: np.ndarray) -> float:
    error = float(((found.astype(np.float64) - wanted) ** 2).mean())
    return 99.0 if error == 0 else 10 * np.log10(255**2 / error)


class Drawing:
    """One file and the folder of the same networks, both open."""

    def __init__(self, kind: LittleKind, settings: Any, *, half: bool = False, scheduler: str = "{}") -> None:
        from olivelike.runtime import open_pipeline

        self.folder = little_pipeline(kind, half=half)
        self.session = open_file(little_one_file(kind, half=half, scheduler=scheduler))
        self.pipeline = open_pipeline(self.folder, settings)
        self.pipeline.folder.scheduler.update(json.loads(scheduler))

    def feeds(self, scheduler: str, steps: int, guidance: float, negative: str = NEGATIVE) -> dict[str, Any]:
        given = {
            "scheduler": np.array([scheduler], object),
            "steps": np.array([steps]),
            "guidance": np.array([guidance], np.float32),
        }
        for name in (one.name for one in self.session.get_inputs()):
            text = negative if name.startswith("negative") else PROMPT
            if "prompt_ids" in name:
                given[name] = ids(self.folder, "tokenizer_2" if name.endswith("_2") else "tokenizer", text)
        width, height = self.pipeline.folder.default_size
        sides = height // self.pipeline.folder.vae_factor, width // self.pipeline.folder.vae_factor
        given["noise"] = noise_of([SEED], DRAWS, sides)
        return given

    def psnr(self, scheduler: str, steps: int = 3, guidance: float = 7.5, negative: str | None = NEGATIVE) -> float:
        from olivelike.runtime import Request

        request = Request(
            (PROMPT,), negative_prompt=negative, steps=steps, guidance_scale=guidance,
            scheduler=scheduler or None, seed=SEED,
        )  # fmt: skip
        made = self.pipeline.generate(request).pictures[0]
        images, *flags = self.session.run(None, self.feeds(scheduler, steps, guidance, negative or ""))
        assert not flags or bool(flags[0][0]) == made.flagged
        assert images.dtype == np.uint8
        return psnr(images[0], np.asarray(made.image))


@pytest.fixture(scope="module")
def drawing(settings) -> Drawing:
    return Drawing("sd", settings)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_each_kind_of_scheduler_draws_what_generate_draws(drawing: Drawing, scheduler: str) -> None:
    assert drawing.psnr(scheduler) >= 50


@pytest.mark.slow
def test_every_scheduler_draws_what_generate_draws(drawing: Drawing) -> None:
    names = json.loads(drawing.session.get_modelmeta().custom_metadata_map[NAMES_KEY])
    assert {*scheduler_names(), ""} == {*names}
    for name in names:
        found = {steps: drawing.psnr(name, steps=steps, guidance=2.0 * steps - 1) for steps in (1, 4)}
        # Brownian noise is drawn as normals: other pixels.
        assert all(one >= 50 for one in found.values()) or "SDE" in name.replace("2M SDE", "").replace("3M SDE", ""), (
            name, found,
        )  # fmt: skip


@pytest.mark.parametrize(
    "settings_of_scheduler", ['{"clip_sample": true, "clip_sample_range": 0.7}', '{"thresholding": true}']
)
def test_pictures_are_cut_as_the_checkpoint_says(settings, drawing: Drawing, settings_of_scheduler: str) -> None:
    cutting = Drawing("sd", settings, scheduler=settings_of_scheduler)
    for scheduler in ("DDIM", "DPM++ 2M", "Euler"):
        assert cutting.psnr(scheduler) >= 50
    plain = drawing.session.run(None, cutting.feeds("DDIM", 3, 7.5))[0]
    assert psnr(cutting.session.run(None, cutting.feeds("DDIM", 3, 7.5))[0], plain) < 50


@pytest.mark.parametrize("kind", ["xl", "lcm", pytest.param("lcm_xl", marks=pytest.mark.slow)])
def test_other_kinds_of_pipelines_draw_what_generate_draws(settings, kind: LittleKind) -> None:
    drawing = Drawing(kind, settings)
    assert drawing.psnr("Euler" if kind == "xl" else "LCM") >= 50
    if kind == "xl":  # Where there is no negative prompt, its vectors are zeros.
        assert drawing.psnr("Euler", negative=None) >= 50


@pytest.mark.slow  # In `test_one_file.py` a run makes one in half precision, whose UNet is verified.
def test_half_precision_holds_in_the_loop(settings) -> None:
    drawing = Drawing("sd", settings, half=True)
    assert drawing.psnr("DPM++ 2M") >= 40


def test_pictures_of_a_batch_are_those_drawn_alone(drawing: Drawing) -> None:
    given = drawing.feeds("Euler a", 2, 5.0)
    other = drawing.feeds("Euler a", 2, 5.0)
    other["noise"] = noise_of([SEED + 1], DRAWS, other["noise"].shape[-2:])
    alone = [drawing.session.run(["images"], one)[0][0] for one in (given, other)]
    both = {
        **given,
        "prompt_ids": np.concatenate([given["prompt_ids"]] * 2),
        "noise": np.concatenate([given["noise"], other["noise"]], axis=1),
    }
    images, flags = drawing.session.run(None, both)
    assert flags.shape == (2,)
    for found, wanted in zip(images, alone, strict=True):
        assert psnr(found, wanted) >= 50


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("scheduler", np.array(["Hein"], object), "scheduler is none of olivelike.schedulers in the metadata"),
        ("steps", np.array([0]), "steps must be 1 to 1000, as many as the network was trained on"),
        *(
            ("guidance", np.array([bad], np.float32), "guidance must be -100 to 1000")
            for bad in (np.nan, np.inf, 1e38, 1000.5, -101)
        ),
        ("noise", np.ones((1, 1, 4, 2, 1 << 21), np.float32), "noise must be for at most 2048x2048 pixels"),
        ("negative_prompt_ids", np.zeros((2, 77), np.int32), "negative_prompt must be one, or one for each prompt"),
        ("negative_prompt_ids", np.zeros((0, 77), np.int32), "negative_prompt must be one, or one for each prompt"),
    ],
)
def test_what_can_not_be_drawn_is_refused_by_name(drawing: Drawing, name: str, value: np.ndarray, message: str) -> None:
    with pytest.raises(Exception, match=message):
        drawing.session.run(None, {**drawing.feeds("DDIM", 2, 7.5), name: value})


def test_noise_that_does_not_do_is_refused_by_name(drawing: Drawing) -> None:
    given = drawing.feeds("Euler a", 3, 7.5)
    with pytest.raises(Exception, match="noise must be for as many pictures as there are prompts"):
        drawing.session.run(None, {**given, "noise": given["noise"].repeat(2, axis=1)})
    with pytest.raises(Exception, match="noise has too few draws for this scheduler"):
        drawing.session.run(None, {**given, "noise": given["noise"][:2]})
    with pytest.raises(Exception, match="noise needs a draw to begin with"):
        drawing.session.run(None, {**given, "noise": given["noise"][:0]})
    with pytest.raises(Exception, match="noise must be finite numbers"):
        drawing.session.run(None, {**given, "noise": np.where(given["noise"] > 2, np.nan, given["noise"])})
    for sides in ((7, 8), (8, 0)):
        with pytest.raises(Exception, match="noise must have sides that are multiples of 2"):
            drawing.session.run(None, {**given, "noise": np.zeros((3, 1, 4, *sides), np.float32)})


def test_weights_and_what_no_step_changes_lie_outside_the_loop(drawing: Drawing) -> None:
    path = little_one_file() / "pipeline.onnx"
    (loop,) = [node for node in onnx.load(path, load_external_data=False).graph.node if node.op_type == "Loop"]
    (body,) = [attribute.g for attribute in loop.attribute if attribute.name == "body"]
    assert not body.initializer
    found = inspect_model(path, targets=())
    assert found.networks.keys() == {"text_encoder", "unet", "vae_decoder", "safety_checker"}
    unet = inspect_model(drawing.folder / "unet" / "model.onnx", targets=())
    assert found.networks["unet"].nodes == unet.nodes
    hoisted = found.networks["unet"].nodes - found.networks["unet"].in_loop
    assert 0 < hoisted < found.networks["unet"].in_loop
    assert found.networks["vae_decoder"].in_loop == 0
    # Fusions hold inside the loop.
    assert (
        sum(node.op_type == "MultiHeadAttention" for node in body.node)
        == unet.operators["com.microsoft"]["MultiHeadAttention"]
    )


def test_a_network_is_taken_out_as_it_went_in(drawing: Drawing) -> None:
    path = little_one_file() / "pipeline.onnx"
    model = ir.from_proto(onnx.load(path, load_external_data=False))
    unet = take_out(model, "unet")
    alone = ir.from_proto(onnx.load(drawing.folder / "unet" / "model.onnx", load_external_data=False))
    for side in ("inputs", "outputs"):
        found, wanted = (
            [(value.name, value.dtype, str(value.shape)) for value in getattr(one.graph, side)] for one in (unet, alone)
        )
        assert found == wanted
    assert sorted(node.op_type for node in unet.graph) == sorted(node.op_type for node in alone.graph)


def test_metadata_that_lies_is_told() -> None:
    path = little_one_file() / "pipeline.onnx"
    model = ir.from_proto(onnx.load(path, load_external_data=False))
    with pytest.raises(ValueError, match="it holds no network vae_encoder"):
        take_out(model, "vae_encoder")
    model.metadata_props["olivelike.components"] = model.metadata_props["olivelike.components"].replace("loop", "lop")
    with pytest.raises(ValueError, match="unet has another border than its metadata tells"):
        take_out(model, "unet")
    for damage in ("[", "[1]", '{"unet": {"inputs": [[1]], "outputs": []}}'):
        with pytest.raises(ValueError, match="is damaged"):
            read_borders({"olivelike.components": damage})


@pytest.mark.parametrize(
    ("kind", "left_out", "message"),
    [
        ("inpainting", (), "the UNet takes 9 channels where latents have 4"),
        ("sd", ("unet",), "has no unet"),
        ("sd", ("vae_decoder",), "has no vae_decoder"),
        ("sd", ("text_encoder",), "has no text_encoder"),
    ],
)
def test_what_one_file_cannot_have_is_refused_by_name(
    kind: LittleKind, left_out: tuple[str, ...], message: str
) -> None:
    networks = {
        name: little_model(kind, name).require("graph")
        for name in ("text_encoder", "unet", "vae_decoder")
        if name not in left_out
    }
    with pytest.raises(PassError, match=message):
        pipeline_graph(networks, PipelineFacts(Choices({}, []), {}))


@pytest.mark.parametrize(
    "config", [{"size": 10**30}, {"size": 9, "crop_size": 9, "rescale_factor": 10**400}], ids=["size", "factor"]
)
def test_numbers_that_no_graph_holds_are_refused(config):
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 20})
    pictures = ir.Value(name="images", shape=ir.Shape(["n", 8, 8, 3]), type=ir.TensorType(ir.DataType.UINT8))
    with pytest.raises(PassError, match="asks for what is no node here: OverflowError"):
        clip_pixels(Number(pictures, Writer(graph, "")), config)
