"""The tiny checkpoint laid out for every client at once, and painted with as each of them does."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import diffusers
import numpy as np
import onnxruntime as ort
import pytest
import torch
from onnxruntime_extensions import get_library_path

from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.measure.clients import check_client
from olivelike.testing.checkpoints import make_checkpoint
from tests.measure.clients.optimum_pictures import paint_with_optimum

pytestmark = pytest.mark.slow

DEMO_TOKENIZER = Path(__file__).parents[3] / "olivelike" / "data" / "demo" / "tokenizer"
PROMPT = "a big red circle on a blue background"
WORKFLOW = """
source: ./checkpoint
target: {provider: cpu, precision: PRECISION}
components:
  text_encoder: [convert, fuse HALF]
  unet: [convert, fuse HALF]
  vae_encoder: [convert, fuse HALF]
  vae_decoder: [convert, fuse HALF]
  safety_checker: [convert, fuse HALF]
outputs:
  - {path: models/diffusers}
  - {path: models/optimum, layout: optimum}
  - {path: models/csharp, layout: csharp}
  - {path: models/onnxstack, layout: onnxstack}
  - {path: models/painter, layout: a1111-dml}
"""


@pytest.fixture(scope="module", params=["fp32", "fp16"])
def models(request, tmp_path_factory):
    """Folder with an output for each client, in one precision."""
    project = tmp_path_factory.mktemp(request.param)
    make_checkpoint(project / "checkpoint")
    shutil.copytree(DEMO_TOKENIZER, project / "checkpoint" / "tokenizer", dirs_exist_ok=True)
    half = ", float16" if request.param == "fp16" else ""
    text = WORKFLOW.replace("PRECISION", request.param).replace(" HALF", half)
    (project / "workflow.yaml").write_text(text)
    run(str(project / "workflow.yaml"), Options(), lambda event: None)
    return project / "models"


@pytest.fixture(scope="module")
def tolerance(models):
    return 1e-4 if "fp32" in str(models) else 0.05


@pytest.fixture(scope="module")
def noise():
    return np.random.default_rng(0).standard_normal((1, 4, 8, 8), dtype=np.float32)


@pytest.fixture(scope="module")
def painting(models, noise):
    """What torch paints."""
    pipeline = diffusers.StableDiffusionPipeline.from_pretrained(models.parent / "checkpoint")
    return paint(pipeline, torch.from_numpy(noise))


ASKED = {
    "prompt": "a cat on the moon", "height": 64, "width": 64, "num_inference_steps": 2, "guidance_scale": 5.0,
}  # fmt: skip


def paint(pipeline, latents):
    pipeline.scheduler = diffusers.DDIMScheduler.from_config(pipeline.scheduler.config)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline(**ASKED, latents=latents, output_type="np").images[0]


def session(path, **dims):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if path.name == "cliptokenizer.onnx":
        options.register_custom_ops_library(get_library_path())
    for name, size in dims.items():
        options.add_free_dimension_override_by_name(name, size)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("folder", "client"),
    [("diffusers", "diffusers"), ("diffusers", "optimum"), ("optimum", "optimum"), ("painter", "a1111-dml")],
)
def test_the_check_says_that_the_folder_loads(models, folder, client):
    assert check_client(models / folder, client).failed == 0


@pytest.mark.parametrize("client", ["csharp", "onnxstack"])
def test_the_check_finds_the_tiny_sizes_alone(models, client):
    """These clients have the sizes of SD 1.x in their code."""
    failed = [v for v in check_client(models / client, client).verdicts if v.status == "failed"]
    assert failed
    assert all("layout" not in verdict.remedy for verdict in failed)


def test_diffusers_paints_what_torch_paints(models, noise, painting, tolerance):
    diffusers.utils.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline = diffusers.OnnxStableDiffusionPipeline.from_pretrained(
            models / "diffusers", provider="CPUExecutionProvider", provider_options=[{}]
        )
        kind = np.float32 if "fp32" in str(models) else np.float16
        picture = paint(pipeline, noise.astype(kind))
    assert np.abs(picture - painting).max() < tolerance


@pytest.mark.parametrize(
    ("folder", "class_name"),
    [
        ("diffusers", "ORTStableDiffusionPipeline"),
        ("optimum", "ORTStableDiffusionPipeline"),
        ("optimum", "ORTDiffusionPipeline"),
    ],
)
def test_optimum_paints_what_torch_paints(
    models, noise, painting, tolerance, optimum_python, tmp_path, folder, class_name
):
    np.save(tmp_path / "noise.npy", noise)
    picture, told, warned = paint_with_optimum(
        optimum_python, models / folder, class_name, tmp_path / "noise.npy", ASKED
    )
    assert told["class"] == "ORTStableDiffusionPipeline"
    assert ("non scalar timestep" in warned) == (folder == "diffusers")
    assert np.abs(picture - painting).max() < tolerance


def test_the_steps_of_the_c_sharp_sample_run_on_its_folder(models, tolerance):
    """As `TextProcessing.cs`, `UNet.cs`, `VaeDecoder.cs` and `SafetyChecker.cs` feed and read."""
    folder, usual = models / "csharp", models / "diffusers"
    ids = session(folder / "tokenizer" / "cliptokenizer.onnx").run(None, {"string_input": np.array([PROMPT])})[0]
    assert (ids.shape, ids.dtype) == ((1, 77), np.int64)
    text = session(folder / "text_encoder" / "model.onnx").run(None, {"input_ids": ids.astype(np.int32)})[0]
    rng = np.random.default_rng(1)
    feeds = {
        "encoder_hidden_states": np.concatenate([text, text]),
        "sample": rng.standard_normal((2, 4, 8, 8), dtype=np.float32),
        "timestep": np.array([961], np.int64),
    }
    predicted = session(folder / "unet" / "model.onnx").run(None, feeds)[0]
    assert predicted.dtype == text.dtype == np.float32
    kind = np.float32 if "fp32" in str(models) else np.float16
    usual_feeds = {name: value.astype(kind) for name, value in feeds.items()} | {
        "timestep": np.array([961], np.float32)
    }
    expected = session(usual / "unet" / "model.onnx").run(None, usual_feeds)[0]
    assert np.abs(predicted - expected).max() < tolerance
    picture = session(folder / "vae_decoder" / "model.onnx").run(None, {"latent_sample": feeds["sample"][:1]})[0]
    clip = rng.standard_normal((1, 3, 56, 56), dtype=np.float32)
    checked = {"clip_input": clip, "images": picture.transpose(0, 2, 3, 1)}
    assert session(folder / "safety_checker" / "model.onnx").run(None, checked)[-1].dtype == np.bool_


def test_positional_inputs_and_outputs_of_onnxstack_run(models):
    folder = models / "onnxstack"
    encoder, unet = (session(folder / name / "model.onnx") for name in ("text_encoder", "unet"))
    ids = np.full((1, 77), 5, np.int32)
    names = [value.name for value in encoder.get_outputs()][:2]
    hidden, pooled = encoder.run(names, {encoder.get_inputs()[0].name: ids})
    assert (hidden.ndim, pooled.ndim) == (3, 2)
    kind = hidden.dtype
    given = (np.ones((1, 4, 8, 8), kind), np.array([961], np.float32), hidden)
    feeds = {value.name: array for value, array in zip(unet.get_inputs(), given, strict=True)}
    assert unet.run(None, feeds)[0].shape == (1, 4, 8, 8)
    assert (folder / "unet" / "model.onnx.data").is_file()


def test_the_unet_of_the_directml_extension_runs_alone_with_its_dimensions_fixed(models, tmp_path):
    for path in (models / "painter" / "unet").glob("painter.onnx*"):
        shutil.copy(path, tmp_path)
    unet = session(
        tmp_path / "painter.onnx",
        unet_sample_batch=2, unet_sample_channels=4, unet_sample_height=8, unet_sample_width=8,
        unet_time_batch=1, unet_hidden_batch=2, unet_hidden_sequence=77,
    )  # fmt: skip
    shapes = {value.name: value.shape for value in unet.get_inputs()}
    assert shapes == {"sample": [2, 4, 8, 8], "timestep": [1], "encoder_hidden_states": [2, 77, 32]}
    feeds = {name: np.ones(shape, np.float16) for name, shape in shapes.items()}
    assert np.isfinite(unet.run(None, feeds)[0]).all()
