"""Pictures as prompts, by IP-Adapters, against those of diffusers' torch pipelines; and what is refused."""

from __future__ import annotations

import shutil
import warnings
from functools import cache

import numpy as np
import onnxruntime
import pytest
from torch_pipelines import SCHEDULERS, assert_alike, psnr, torch_pipeline

from olivelike.errors import SourceError, UsageError
from olivelike.model.guides import IMAGE_STRENGTH, IMAGE_TOKENS, guided_file
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.pipeline.request import Control
from tests.fixtures.little_controlnets import make_controlnet
from tests.fixtures.little_ip_adapters import little_ip_adapter, little_prompted
from tests.fixtures.little_pipeline import little_checkpoint

IMAGE_PROMPT_FILE = guided_file(["ip_adapter"])

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:__array_:DeprecationWarning")


@cache
def torch_prompted(kind="sd", form="classic", way="", controlled=False):
    """Return diffusers' pipeline of a little checkpoint with an IP-Adapter."""
    import diffusers

    xl = "XL" if kind == "xl" else ""
    parts = dict(torch_pipeline.__wrapped__(f"StableDiffusion{xl}Pipeline", kind).components)
    more = (
        {"add_watermarker": False, "force_zeros_for_empty_prompt": True} if xl else {"requires_safety_checker": False}
    )
    if controlled:
        parts["controlnet"] = make_controlnet(kind)
    pipeline = getattr(diffusers, f"StableDiffusion{xl}{'ControlNet' if controlled else ''}{way}Pipeline")(
        **parts, **more
    )
    file = little_ip_adapter(kind, form)
    pipeline.load_ip_adapter(str(file.parent), subfolder="", weight_name=file.name)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def paint_prompted(kind="sd", form="classic", scale=1.0, way="", controlled=False, seeds=(5, 6), **arguments):
    """Return what diffusers paints."""
    import diffusers

    pipeline = torch_prompted(kind, form, way, controlled)
    pipeline.set_ip_adapter_scale(scale)
    published = diffusers.PNDMScheduler.load_config(little_checkpoint(kind), subfolder="scheduler")
    pipeline.scheduler = getattr(diffusers, SCHEDULERS["Euler a"]).from_config(published, prediction_type="epsilon")
    arguments = {"prompt": "a red circle", "num_inference_steps": 4, "guidance_scale": 7.5, **arguments}
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pipeline(generator=generators, num_images_per_prompt=len(seeds), **arguments).images


def ask(*images, **more):
    """Return a request for two pictures at once."""
    asked = {"prompts": ("a red circle",), "num_images": 2, "batch_size": 2, "steps": 4, "seed": 5}
    return Request(**{**asked, "scheduler": "Euler a", "ip_adapter_images": images, **more})


@pytest.fixture(scope="session")
def shown():
    """Return two pictures of other sizes and shapes than what the image encoder takes."""
    from PIL import Image

    random = np.random.default_rng(7)
    sizes = ((50, 37), (31, 64))
    few = [random.integers(0, 255, (4, 5, 3), dtype=np.uint8) for _ in sizes]
    return [Image.fromarray(one).resize(size) for one, size in zip(few, sizes, strict=True)]


@pytest.fixture(scope="session")
def prompted(settings):
    """Return the little pipeline with a classic IP-Adapter and the ControlNet `edges`, open."""
    return open_pipeline(little_prompted(controlled=True), settings)


CASES = {
    "whole": ({}, {}),
    "weak": ({"ip_adapter_scale": 0.4}, {"scale": 0.4}),
    "negative prompt": ({"negative_prompt": "dark"}, {"negative_prompt": "dark"}),
    "without guidance": ({"guidance_scale": 1.0}, {"guidance_scale": 1.0}),
    "two calls": ({"guidance_calls": "two"}, {}),
    "other size": ({"size": (24, 24)}, {"width": 24, "height": 24}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_picture_is_a_prompt_as_in_torch(prompted, shown, case):
    ours, theirs = CASES[case]
    result = prompted.generate(ask(shown[0], **ours))
    assert_alike(result, paint_prompted(ip_adapter_image=shown[0], **theirs))
    plain = prompted.generate(ask(**{name: value for name, value in ours.items() if name != "ip_adapter_scale"}))
    assert psnr(plain.pictures[0].image, result.pictures[0].image) < 40


def test_several_pictures_are_more_tokens(prompted, shown):
    expected = paint_prompted(ip_adapter_image=[shown], scale=0.7)
    assert_alike(prompted.generate(ask(*shown, ip_adapter_scale=0.7)), expected)


@pytest.mark.parametrize("form", ["plus", "full"])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_other_forms_are_those_of_torch(settings, shown, form, scale):
    found = open_pipeline(little_prompted(form=form), settings).generate(ask(*shown, ip_adapter_scale=scale))
    assert_alike(found, paint_prompted(form=form, scale=scale, ip_adapter_image=[shown]))


def test_a_picture_of_a_picture_has_a_prompt_too(prompted, shown, picture):
    expected = paint_prompted(way="Img2Img", image=picture, strength=0.6, ip_adapter_image=shown[0])
    assert_alike(prompted.generate(ask(shown[0], init_image=picture, strength=0.6)), expected)


@pytest.mark.parametrize(
    ("scale", "half"),
    [
        (1.0, False),
        (0.6, True),
        pytest.param(0.6, False, marks=pytest.mark.slow),
        pytest.param(1.0, True, marks=pytest.mark.slow),
    ],
)
def test_it_goes_with_controlnets(prompted, settings, shown, picture, scale, half):
    expected = paint_prompted(
        controlled=True, scale=scale, image=picture, ip_adapter_image=shown[0], controlnet_conditioning_scale=0.8
    )
    asked = ask(shown[0], controls=(Control(picture, "edges", 0.8),), ip_adapter_scale=scale)
    used = open_pipeline(little_prompted(half=True, controlled=True), settings) if half else prompted
    assert_alike(used.generate(asked), expected, 30 if half else 50)


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("sd", "classic"),
        pytest.param("xl", "plus", marks=pytest.mark.slow),
        pytest.param("sd", "plus", marks=pytest.mark.slow),
        pytest.param("xl", "classic", marks=pytest.mark.slow),
    ],
)
def test_half_precision_is_near_torch(settings, shown, kind, form):
    half = open_pipeline(little_prompted(kind, form, half=True, controlled=form == "classic"), settings)
    for scale in (1.0, 0.5):
        found = half.generate(ask(shown[0], ip_adapter_scale=scale))
        assert_alike(found, paint_prompted(kind, form, scale, ip_adapter_image=shown[0]), 30)


@pytest.mark.parametrize("form", ["classic", pytest.param("plus", marks=pytest.mark.slow)])
def test_xl_has_a_prompt_as_in_torch(settings, shown, form):
    xl = open_pipeline(little_prompted("xl", form, controlled=form == "classic"), settings)
    for scale in (1.0, 0.5):
        found = xl.generate(ask(shown[0], ip_adapter_scale=scale))
        assert_alike(found, paint_prompted("xl", form, scale, ip_adapter_image=shown[0]))


@pytest.mark.parametrize("half", [pytest.param(False, marks=pytest.mark.slow), True])
def test_xl_goes_with_controlnets(settings, shown, picture, half):
    expected = paint_prompted(
        "xl", controlled=True, image=picture, ip_adapter_image=shown[0], controlnet_conditioning_scale=0.8
    )
    xl = open_pipeline(little_prompted("xl", half=half, controlled=True), settings)
    found = xl.generate(ask(shown[0], controls=(Control(picture, "edges", 0.8),)))
    assert_alike(found, expected, 30 if half else 50)


def test_a_scale_of_nothing_gives_the_bits_of_the_plain_unet(prompted, shown, picture):
    folder = little_prompted(controlled=True) / "unet"
    random = np.random.default_rng(3)
    given = {
        "sample": random.standard_normal((3, 4, 16, 24), np.float32),
        "timestep": np.array([300.0], np.float32),
        "encoder_hidden_states": random.standard_normal((3, 7, 32), np.float32),
    }
    image = {IMAGE_TOKENS: random.standard_normal((3, 8, 32), np.float32), IMAGE_STRENGTH: np.zeros(1, np.float32)}
    plain, ours = (onnxruntime.InferenceSession(folder / name) for name in ("model.onnx", IMAGE_PROMPT_FILE))
    assert [value.name for value in ours.get_inputs()] == [*given, *image]
    (expected,) = plain.run(None, given)
    assert (ours.run(None, {**given, **image})[0] == expected).all()
    assert np.abs(ours.run(None, {**given, **image, IMAGE_STRENGTH: np.ones(1, np.float32)})[0] - expected).max() > 0.01
    before = prompted.generate(ask()).pictures
    nothing = prompted.generate(ask(shown[0], ip_adapter_scale=0.0)).pictures
    led = [ask(*images, controls=(Control(picture, "edges"),), ip_adapter_scale=0.0) for images in (shown, ())]
    both = prompted.generate(led[0]).pictures
    alone = prompted.generate(ask(controls=led[1].controls)).pictures
    for one, other in (*zip(before, nothing, strict=True), *zip(both, alone, strict=True)):
        assert psnr(one.image, other.image) == np.inf


def test_a_lora_is_merged_into_the_unet_that_attends_to_pictures(prompted, shown, tmp_path):
    from olivelike.engine.output.swap import LiveLoras
    from olivelike.testing.lora_files import make_lora

    file = make_lora(tmp_path / "style.safetensors", "kohya", base=little_checkpoint(), components=("unet",))
    files = LiveLoras([], allow_pickle=False)
    styled = prompted.with_initializers(files.merge([files.named(str(file))], little_prompted(controlled=True)))
    text, nothing, image = (styled.generate(one).pictures[0].image for one in (
        ask(), ask(shown[0], ip_adapter_scale=0.0), ask(shown[0])
    ))  # fmt: skip
    assert psnr(text, nothing) == np.inf
    assert psnr(prompted.generate(ask(shown[0])).pictures[0].image, image) < 40 > psnr(text, image)


def test_what_can_not_be_a_prompt_is_refused(prompted, pipeline, shown, tmp_path, picture):
    refusals = {
        "leaves out layers in which the UNet attends": ask(shown[0], cache_interval=2),
        "ip_adapter_scale nan is no number from -10 to 10": ask(shown[0], ip_adapter_scale=float("nan")),
        "without a picture that it is about": ask(ip_adapter_scale=0.5),
        "17 pictures are a prompt; take at most 16": ask(*shown[:1] * 17),
    }
    for words, request in refusals.items():
        with pytest.raises(UsageError, match=words):
            prompted.resolve_defaults(request)
    with pytest.raises(UsageError, match=r"has no IP-Adapter, which a picture as a prompt needs; name one as `ip_ad"):
        pipeline.resolve_defaults(ask(shown[0]))
    folder = shutil.copytree(little_prompted(controlled=True), tmp_path / "prompted")
    (folder / "unet" / "controlnet_ip_adapter.onnx").unlink()
    (folder / "unet" / IMAGE_PROMPT_FILE).unlink()
    broken = open_pipeline(folder)
    with pytest.raises(SourceError, match=r"no unet/ip_adapter\.onnx, which IP-Adapters lead"):
        broken.resolve_defaults(ask(shown[0]))
    with pytest.raises(SourceError, match=r"no unet/controlnet_ip_adapter\.onnx"):
        broken.resolve_defaults(ask(shown[0], controls=(Control(picture),)))
