"""Pictures that lead, by ControlNets, against those of diffusers' torch pipelines; and what is refused."""

from __future__ import annotations

import json
import shutil
import warnings
from functools import cache

import numpy as np
import onnxruntime
import pytest
from torch_pipelines import SCHEDULERS, assert_alike, psnr, torch_pipeline

from olivelike.errors import SourceError, UsageError
from olivelike.model.guides import CONTROLNET, guided_file
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.pipeline.denoiser_calls import _size
from olivelike.runtime.pipeline.guides_in_use import Guide, GuideInputs, Guides, find_edges
from olivelike.runtime.pipeline.request import Control
from olivelike.testing.models import traced_graph
from olivelike.testing.parity import materialize_model
from tests.fixtures.little_controlnets import controlnet_model, little_controlled, little_controlnet, make_controlnet
from tests.fixtures.little_pipeline import little_checkpoint

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:__array_:DeprecationWarning")


@pytest.fixture(scope="session")
def led(settings):
    """Return the little pipeline with the ControlNets `edges` and `depth`, open."""
    return open_pipeline(little_controlled(), settings)


@pytest.fixture(scope="session")
def drawing():
    """Return a picture of 32 pixels a side to lead by."""
    few = np.random.default_rng(1).integers(0, 2, (4, 4, 1), dtype=np.uint8) * 255
    from PIL import Image

    return Image.fromarray(np.repeat(few, 3, 2)).resize((32, 32), Image.Resampling.NEAREST)


@cache
def torch_led(nets, kind="sd", way="", pooled=False):
    """Return diffusers' pipeline of a little checkpoint and ControlNets, by their seeds."""
    import diffusers

    xl = "XL" if kind == "xl" else ""
    parts = dict(torch_pipeline(f"StableDiffusion{xl}Pipeline", kind).components)
    found = [make_controlnet(kind, seed, **({"global_pool_conditions": True} if pooled else {})) for seed in nets]
    parts["controlnet"] = found[0] if len(found) == 1 else found
    more = (
        {"add_watermarker": False, "force_zeros_for_empty_prompt": True} if xl else {"requires_safety_checker": False}
    )
    pipeline = getattr(diffusers, f"StableDiffusion{xl}ControlNet{way}Pipeline")(**parts, **more)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def paint_led(nets, scheduler="Euler a", seeds=(5, 6), kind="sd", way="", pooled=False, **arguments):
    """Return what diffusers paints, as `paint` of the other tests."""
    import diffusers

    pipeline = torch_led(nets, kind, way, pooled)
    published = diffusers.PNDMScheduler.load_config(little_checkpoint(kind), subfolder="scheduler")
    pipeline.scheduler = getattr(diffusers, SCHEDULERS[scheduler]).from_config(published, prediction_type="epsilon")
    arguments = {"prompt": "a red circle", "num_inference_steps": 4, "guidance_scale": 7.5, **arguments}
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pipeline(generator=generators, num_images_per_prompt=len(seeds), **arguments).images


def ask(*controls, **more):
    """Return a request for two pictures at once."""
    asked = {"prompts": ("a red circle",), "num_images": 2, "batch_size": 2, "steps": 4, "seed": 5}
    return Request(**{**asked, "scheduler": "Euler a", "controls": controls, **more})


CASES = {
    "one": ([0], [{}], {}, {}),
    "weak": ([1], [{"strength": 0.4}], {"negative_prompt": "dark"}, {"negative_prompt": "dark"}),
    "two": ([0, 1], [{"strength": 0.7}, {"strength": 0.5}], {}, {}),
    "early": ([0], [{"end": 0.5}], {}, {"control_guidance_end": 0.5}),
    "late, two": (
        [0, 1], [{"start": 0.25}, {"end": 0.75}], {},
        {"control_guidance_start": [0.25, 0.0], "control_guidance_end": [1.0, 0.75]},
    ),
    "guess": ([0], [{}], {"control_guess": True}, {"guess_mode": True}),
    "guess, two": ([0, 1], [{}, {"strength": 0.6}], {"control_guess": True}, {"guess_mode": True}),
    "guess without guidance": (
        [0], [{}], {"control_guess": True, "guidance_scale": 1.0}, {"guess_mode": True, "guidance_scale": 1.0},
    ),
    "two calls": ([0], [{}], {"guidance_calls": "two"}, {}),
    "guess, two calls": ([0], [{}], {"control_guess": True, "guidance_calls": "two"}, {"guess_mode": True}),
    "second order": (
        [0], [{"start": 0.3}], {"scheduler": "Heun"}, {"control_guidance_start": 0.3, "scheduler": "Heun"},
    ),
    "other size": ([0], [{}], {"size": (24, 24)}, {"width": 24, "height": 24}),
}  # fmt: skip
NAMES = ("edges", "depth")


@pytest.mark.parametrize("case", CASES)
def test_a_led_picture_is_that_of_torch(led, drawing, case):
    nets, controls, ours, theirs = CASES[case]
    asked = ask(*(Control(drawing, NAMES[net], **one) for net, one in zip(nets, controls, strict=True)), **ours)
    scales = [one.get("strength", 1.0) for one in controls]
    images = [drawing] * len(nets)
    one = len(nets) == 1
    expected = paint_led(
        tuple(nets),
        image=images[0] if one else images,
        controlnet_conditioning_scale=scales[0] if one else scales,
        **theirs,
    )
    result = led.generate(asked)
    assert_alike(result, expected)
    plain = led.generate(ask(**{name: value for name, value in ours.items() if name != "control_guess"}))
    assert psnr(plain.pictures[0].image, result.pictures[0].image) < 40


def test_a_led_picture_of_a_picture_is_that_of_torch(led, drawing, picture):
    more = {"image": picture, "control_image": drawing, "strength": 0.6, "controlnet_conditioning_scale": 1.0}
    expected = paint_led((0,), way="Img2Img", control_guidance_end=0.5, **more)
    asked = ask(Control(drawing, "edges", end=0.5), init_image=picture, strength=0.6)
    assert_alike(led.generate(asked), expected)


@pytest.mark.parametrize("strength", [0.6, 1.0])
def test_a_led_part_of_a_picture_is_that_of_torch(led, drawing, picture, mask, strength):
    expected = paint_led(
        (0,), way="Inpaint", seeds=(5,), image=picture, mask_image=mask, control_image=drawing, strength=strength,
        width=32, height=32, controlnet_conditioning_scale=0.8,
    )  # fmt: skip
    asked = ask(Control(drawing, "edges", 0.8), init_image=picture, mask=mask, strength=strength, num_images=1)
    assert_alike(led.generate(asked), expected)


def test_conditions_that_are_means_over_the_picture_lead_prompts_alone(settings, drawing, tmp_path):
    folder = shutil.copytree(little_controlled(), tmp_path / "led")
    model = controlnet_model(little_controlnet("sd", "shuffle", 2, global_pool_conditions=True))
    materialize_model(model.replace(graph=traced_graph(model.architecture)), folder / "controlnet")
    config = {**model.architecture.config, "_class_name": "ControlNetModel"}
    (folder / "controlnet" / "config.json").write_text(json.dumps(config))
    result = open_pipeline(folder, settings).generate(ask(Control(drawing, "edges", 0.9)))
    expected = paint_led((2,), pooled=True, image=drawing, controlnet_conditioning_scale=0.9)
    assert_alike(result, expected)


@pytest.mark.parametrize("pooled", [(False, True), (True, False)])
def test_the_first_network_says_whether_prompts_alone_are_led_as_in_diffusers(drawing, pooled):
    guides = [Guide(CONTROLNET, Control(drawing), None, torch.zeros(1, 3, 8, 8), is_pooled=one) for one in pooled]
    inputs = GuideInputs(Guides(guides), negatives=2)
    assert (inputs._guess, inputs._skipped) == (pooled[0], 2 * pooled[0])


def test_half_precision_is_near_torch(settings, drawing):
    half = open_pipeline(little_controlled(half=True), settings)
    for nets, more in (((0,), {}), ((0, 1), {"guess_mode": True})):
        asked = ask(*(Control(drawing, NAMES[net]) for net in nets), control_guess="guess_mode" in more)
        images = drawing if len(nets) == 1 else [drawing] * 2
        assert_alike(half.generate(asked), paint_led(nets, image=images, **more), 30)


@pytest.mark.parametrize("guess", [False, True])
def test_xl_is_led_as_by_torch(settings, drawing, guess):
    xl = open_pipeline(little_controlled("xl"), settings)
    asked = ask(Control(drawing, "edges", 0.8), Control(drawing, "depth", 0.5, end=0.75), control_guess=guess)
    expected = paint_led(
        (0, 1), kind="xl", image=[drawing] * 2, controlnet_conditioning_scale=[0.8, 0.5], guess_mode=guess,
        control_guidance_start=[0.0, 0.0], control_guidance_end=[1.0, 0.75],
    )  # fmt: skip
    assert_alike(xl.generate(asked), expected)


def test_zeros_give_the_bits_of_the_plain_unet():
    folder = little_controlled() / "unet"
    plain, led = (onnxruntime.InferenceSession(folder / name) for name in ("model.onnx", guided_file(["controlnet"])))
    random = np.random.default_rng(3)
    sizes = {"unet_sample_batch": 3, "unet_sample_height": 16, "unet_sample_width": 24}
    given = {
        "sample": random.standard_normal((3, 4, 16, 24), np.float32),
        "timestep": np.array([300.0], np.float32),
        "encoder_hidden_states": random.standard_normal((3, 7, 32), np.float32),
    }
    zeros = {
        value.name: np.zeros([_size(dim, sizes) for dim in value.shape], np.float32)
        for value in led.get_inputs()[len(given) :]
    }
    assert list(zeros) == [f"down_block_{number}_additional_residual" for number in range(4)] + [
        "mid_block_additional_residual"
    ]
    (expected,) = plain.run(None, given)
    assert (led.run(None, {**given, **zeros})[0] == expected).all()
    for name, array in zeros.items():
        assert np.abs(led.run(None, {**given, **zeros, name: array + 1})[0] - expected).max() > 0.01


def test_a_strength_of_nothing_draws_the_plain_picture_and_the_plain_unet_comes_back(led, drawing):
    before = led.generate(ask()).pictures
    nothing = led.generate(ask(Control(drawing, "edges", 0.0))).pictures
    again = led.generate(ask()).pictures
    for one, other, third in zip(before, nothing, again, strict=True):
        assert psnr(one.image, other.image) == psnr(one.image, third.image) == np.inf


def test_edges_are_found_by_canny(led, drawing):
    pytest.importorskip("cv2")
    edges = find_edges(drawing)
    assert set(np.unique(np.asarray(edges))) == {0, 255}
    asked = led.generate(ask(Control(drawing, "edges", preprocessor="canny")))
    given = led.generate(ask(Control(edges, "edges")))
    assert psnr(asked.pictures[0].image, given.pictures[0].image) == np.inf


def test_what_can_not_be_led_is_refused(led, pipeline, drawing, picture, mask):
    wide = drawing.resize((48, 32))
    refusals = {
        "no ControlNet 'edge'; did you mean 'edges'": ask(Control(drawing, "edge")),
        "2 ControlNets; say which one a control picture is for: edges, depth": ask(Control(drawing)),
        "from 0.5 to 0.5": ask(Control(drawing, "edges", start=0.5, end=0.5)),
        "nan, is no number from -10 to 10": ask(Control(drawing, "edges", float("nan"))),
        r"1e\+308, is no number from -10 to 10": ask(Control(drawing, "edges", 1e308)),
        "48x32 has another shape than the 32x32": ask(Control(wide, "edges"), size=(32, 32)),
        "without a picture that leads": ask(control_guess=True),
        "leaves out the layers that a ControlNet leads": ask(Control(drawing, "edges"), cache_interval=2),
        "inpaint_area masked draws a part": ask(
            Control(drawing, "edges"), init_image=picture, mask=mask, inpaint_area="masked"
        ),
    }
    for words, request in refusals.items():
        with pytest.raises(UsageError, match=words):
            led.resolve_defaults(request)
    with pytest.raises(UsageError, match="has no ControlNet, which a control picture needs; name one under"):
        pipeline.resolve_defaults(ask(Control(drawing)))
    fitted = led.resolve_defaults(ask(Control(wide, "controlnet_2"), size=(32, 32), fit=True))
    assert (fitted.controls[0].net, fitted.controls[0].image.size) == ("depth", (32, 32))
    assert led.resolve_defaults(ask(Control(wide, "edges"))).size == (48, 32)


def test_a_folder_whose_unet_takes_no_residuals_says_what_to_do(tmp_path, drawing):
    folder = shutil.copytree(little_controlled(), tmp_path / "led")
    (folder / "unet" / guided_file(["controlnet"])).unlink()
    with pytest.raises(SourceError, match=r"no unet/controlnet\.onnx, which ControlNets lead"):
        open_pipeline(folder).resolve_defaults(ask(Control(drawing, "edges")))
