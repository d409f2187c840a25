"""Pictures that lead by T2I-Adapters, against those of diffusers' torch pipelines; and what is refused."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import onnxruntime
import pytest
from torch_pipelines import SCHEDULERS, assert_alike, psnr, torch_pipeline

from olivelike.errors import SourceError, UsageError
from olivelike.model.guides import guided_file
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.pipeline.request import Control
from tests.fixtures.little_controlnets import make_controlnet
from tests.fixtures.little_pipeline import little_checkpoint
from tests.fixtures.little_t2i_adapters import NAMES, little_adapted, make_t2i_adapter

ADAPTED_FILE = guided_file(["t2i_adapter"])

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:__array_:DeprecationWarning")


@pytest.fixture(scope="session")
def led(settings):
    """Return a little pipeline with a full and a light T2I-Adapter and a ControlNet, open."""
    return open_pipeline(little_adapted(controlled=True), settings)


@pytest.fixture(scope="session")
def drawing():
    """Return a picture of 32 pixels a side to lead by."""
    few = np.random.default_rng(1).integers(0, 2, (4, 4, 1), dtype=np.uint8) * 255
    from PIL import Image

    return Image.fromarray(np.repeat(few, 3, 2)).resize((32, 32), Image.Resampling.NEAREST)


@cache
def torch_led(adapters, kind):
    """Return diffusers' pipeline of a little checkpoint and T2I-Adapters, by their seeds."""
    import diffusers

    xl = "XL" if kind == "attending_xl" else ""
    parts = dict(torch_pipeline(f"StableDiffusion{xl}Pipeline", kind).components)
    if not xl:
        del parts["image_encoder"]
    found = [make_t2i_adapter(kind, seed) for seed in adapters]
    parts["adapter"] = found[0] if len(found) == 1 else diffusers.MultiAdapter(found)
    more = {"force_zeros_for_empty_prompt": True} if xl else {"requires_safety_checker": False}
    pipeline = getattr(diffusers, f"StableDiffusion{xl}AdapterPipeline")(**parts, **more)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def paint_led(adapters, image, scheduler="Euler a", seeds=(5, 6), kind="attending", **arguments):
    """Return what diffusers paints, as `paint` of the other tests."""
    import diffusers

    pipeline = torch_led(adapters, kind)
    published = diffusers.PNDMScheduler.load_config(little_checkpoint(kind), subfolder="scheduler")
    pipeline.scheduler = getattr(diffusers, SCHEDULERS[scheduler]).from_config(published, prediction_type="epsilon")
    arguments = {"prompt": "a red circle", "num_inference_steps": 4, "guidance_scale": 7.5, **arguments}
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    images = image if len(adapters) == 1 else [image] * len(adapters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pipeline(image=images, generator=generators, num_images_per_prompt=len(seeds), **arguments).images


def ask(*controls, **more):
    """Return a request for two pictures at once."""
    asked = {"prompts": ("a red circle",), "num_images": 2, "batch_size": 2, "steps": 4, "seed": 5}
    return Request(**{**asked, "scheduler": "Euler a", "controls": controls, **more})


CASES = {
    "full": ([0], [{}], {}, {}),
    "light, weak": ([1], [{"strength": 0.4}], {"negative_prompt": "dark"}, {"negative_prompt": "dark"}),
    "two": ([0, 1], [{"strength": 0.7}, {"strength": 0.5}], {}, {}),
    "two calls": ([0], [{}], {"guidance_calls": "two"}, {}),
    "second order": ([0], [{}], {"scheduler": "Heun"}, {"scheduler": "Heun"}),
    "other size": ([0], [{}], {"size": (24, 40), "fit": True}, {"width": 24, "height": 40}),
}  # fmt: skip


def scales(controls):
    found = [one.get("strength", 1.0) for one in controls]
    return found[0] if len(found) == 1 else found


@pytest.mark.parametrize("case", CASES)
def test_a_led_picture_is_that_of_torch(led, drawing, case):
    adapters, controls, ours, theirs = CASES[case]
    image = drawing.crop((6, 0, 26, 32)) if case == "other size" else drawing
    named = [Control(drawing, NAMES[net], **one) for net, one in zip(adapters, controls, strict=True)]
    if case == "other size":
        image = drawing.resize((24, 40))
        named = [Control(image, NAMES[0])]
    result = led.generate(ask(*named, **ours))
    expected = paint_led(tuple(adapters), image, adapter_conditioning_scale=scales(controls), **theirs)
    assert_alike(result, expected)
    plain = led.generate(ask(**ours))
    assert psnr(plain.pictures[0].image, result.pictures[0].image) < 40


XL_CASES = {
    "one": ([0], [{}], {}),
    "half of the steps": ([0], [{"end": 0.5}], {"adapter_conditioning_factor": 0.5}),
    "two, half of the steps": (
        [0, 1], [{"strength": 0.8, "end": 0.5}, {"strength": 0.6, "end": 0.5}], {"adapter_conditioning_factor": 0.5},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", XL_CASES)
def test_xl_is_led_as_by_torch_up_to_a_share_of_the_steps(settings, drawing, case):
    adapters, controls, theirs = XL_CASES[case]
    xl = open_pipeline(little_adapted("attending_xl"), settings)
    named = [Control(drawing, NAMES[net], **one) for net, one in zip(adapters, controls, strict=True)]
    # Late steps of the other schedulers change little here.
    expected = paint_led(
        tuple(adapters), drawing, "DDIM", kind="attending_xl", adapter_conditioning_scale=scales(controls), **theirs
    )
    result = xl.generate(ask(*named, scheduler="DDIM"))
    assert_alike(result, expected)
    if "end" in controls[0]:
        whole = xl.generate(ask(*(replace(control, end=1.0) for control in named), scheduler="DDIM"))
        assert psnr(whole.pictures[0].image, result.pictures[0].image) < 45


@pytest.mark.parametrize("kind", [pytest.param("attending", marks=pytest.mark.slow), "attending_xl"])
def test_half_precision_is_near_torch(settings, drawing, kind):
    half = open_pipeline(little_adapted(kind, half=True), settings)
    for adapters in ((0,), (0, 1)):
        result = half.generate(ask(*(Control(drawing, NAMES[net]) for net in adapters)))
        scale = 1.0 if len(adapters) == 1 else [1.0] * 2
        assert_alike(result, paint_led(adapters, drawing, kind=kind, adapter_conditioning_scale=scale), 30)


def test_a_controlnet_and_an_adapter_lead_one_picture_as_in_torchs_unet(led, drawing, monkeypatch):
    """Diffusers' adapter pipeline with a UNet that is given a ControlNet's residuals as well."""
    pipeline = torch_led((0,), "attending")
    net, pixels = make_controlnet("attending"), torch.from_numpy(np.asarray(drawing) / np.float32(255))
    forward = pipeline.unet.forward

    def with_controlnet(sample, timestep, encoder_hidden_states, **more):
        picture = pixels.permute(2, 0, 1)[None].expand(len(sample), -1, -1, -1)
        down, middle = net(sample, timestep, encoder_hidden_states, picture, 0.7, return_dict=False)
        more |= {"down_block_additional_residuals": down, "mid_block_additional_residual": middle}
        return forward(sample, timestep, encoder_hidden_states, **more)

    monkeypatch.setattr(pipeline.unet, "forward", with_controlnet)
    expected = paint_led((0,), drawing, adapter_conditioning_scale=0.8)
    result = led.generate(ask(Control(drawing, "edges", 0.7), Control(drawing, "sketch", 0.8)))
    assert_alike(result, expected)


def test_a_strength_of_nothing_draws_the_plain_picture_and_one_unet_is_open(led, drawing):
    before = led.generate(ask()).pictures
    assert [name for name in led._networks if name.startswith("unet")] == ["unet"]
    nothing = led.generate(ask(Control(drawing, "sketch", 0.0))).pictures
    assert [name for name in led._networks if name.startswith("unet")] == ["unet/t2i_adapter"]
    again = led.generate(ask()).pictures
    for one, other, third in zip(before, nothing, again, strict=True):
        assert psnr(one.image, other.image) == psnr(one.image, third.image) == np.inf


def test_an_adapter_runs_once_for_a_batch(led, drawing, monkeypatch):
    led.generate(ask(Control(drawing, "sketch")))
    network, calls = led._networks.get("t2i_adapter"), []
    prepare = network.prepare
    monkeypatch.setattr(network, "prepare", lambda *shapes: calls.append(shapes) or prepare(*shapes))
    led.generate(ask(Control(drawing, "sketch")))
    ((given, features),) = calls
    assert given == {"adapter_input": (1, 3, 32, 32)}
    assert list(features.values()) == [(1, 16, 16, 16), (1, 32, 8, 8), (1, 32, 4, 4)]


def test_what_can_not_be_led_is_refused(led, settings, drawing):
    wide = drawing.resize((48, 32))
    refusals = {
        "no ControlNet or T2I-Adapter 'sketsch'; did you mean 'sketch'": ask(Control(drawing, "sketsch")),
        "3 ControlNets and T2I-Adapters; say which one": ask(Control(drawing)),
        "48x32 has another shape than the 32x32": ask(Control(wide, "sketch"), size=(32, 32)),
        "control_guess is about ControlNets": ask(Control(drawing, "sketch"), control_guess=True),
        "that a ControlNet leads, or a T2I-Adapter; take cache_interval 1": ask(
            Control(drawing, "sketch"), cache_interval=2
        ),
    }
    for words, request in refusals.items():
        with pytest.raises(UsageError, match=words):
            led.resolve_defaults(request)
    assert led.resolve_defaults(ask(Control(wide, "t2i_adapter_2"))).controls[0].net == "colour"


def test_a_size_that_the_adapter_does_not_halve_is_refused(tmp_path, settings, drawing):
    import json

    folder = shutil.copytree(little_adapted(), tmp_path / "led")
    path = folder / "t2i_adapter" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "downscale_factor": 16}))
    with pytest.raises(UsageError, match=r"size 24x24: a T2I-Adapter of this pipeline takes sides .* multiples of 16"):
        open_pipeline(folder, settings).resolve_defaults(ask(Control(drawing, "sketch"), size=(24, 24)))
    path.write_text(json.dumps({"downscale_factor": "two"}))
    with pytest.raises(SourceError, match=r"t2i_adapter/config\.json: .*downscale_factor"):
        open_pipeline(folder, settings).resolve_defaults(ask(Control(drawing, "sketch")))
    (folder / "unet" / ADAPTED_FILE).unlink()
    with pytest.raises(SourceError, match=r"no unet/t2i_adapter\.onnx, which T2I-Adapters lead; name one under `t2i_a"):
        open_pipeline(folder, settings).resolve_defaults(ask(Control(drawing, "sketch")))


def test_files_lie_over_the_weights_of_the_unet():
    folder = little_adapted(controlled=True) / "unet"
    assert {path.name for path in folder.iterdir()} == {
        "model.onnx", "controlnet.onnx", "t2i_adapter.onnx", "controlnet_t2i_adapter.onnx", "weights.pb", "config.json",
    }  # fmt: skip
    names = [value.name for value in onnxruntime.InferenceSession(folder / ADAPTED_FILE).get_inputs()]
    assert names[3:] == [f"down_intrablock_{number}_additional_residual" for number in range(3)]
