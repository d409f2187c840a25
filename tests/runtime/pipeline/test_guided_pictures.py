"""Pictures by each kind of guide, alone and together, against those of diffusers' torch pipelines; what is refused."""

from __future__ import annotations

import json
import shutil
import warnings
from functools import cache
from typing import NamedTuple

import numpy as np
import onnxruntime
import pytest
from torch_pipelines import SCHEDULERS, assert_alike, psnr, torch_pipeline

from olivelike.errors import SourceError, UsageError
from olivelike.model.guides import CONTROL_KINDS, CONTROLNET, GUIDES, IMAGE_TOKENS, guided_file
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.pictures.preprocessors import preprocessed
from olivelike.runtime.pipeline.denoiser_calls import _size
from olivelike.runtime.pipeline.guides_in_use import Guide, GuideInputs, Guides
from olivelike.runtime.pipeline.request import Control
from tests.fixtures.little_guides import CONTROL_NAMES, LITTLE, guide_model, little_guide, little_guided, torch_guide
from tests.fixtures.little_pipeline import little_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:__array_:DeprecationWarning")
slow = pytest.mark.slow


class By(NamedTuple):
    """A guide that a picture is asked for with: its kind and seed, and how it leads."""

    guide: str
    seed: int = 0
    strength: float = 1.0
    start: float = 0.0
    end: float = 1.0


class Case(NamedTuple):
    """Guides, and fields of a request."""

    by: list[By]
    ours: dict


@cache
def drawing(size=(32, 32)):
    """Return a picture to lead by."""
    from PIL import Image

    few = np.random.default_rng(1).integers(0, 2, (4, 4, 1), dtype=np.uint8) * 255
    return Image.fromarray(np.repeat(few, 3, 2)).resize(size, Image.Resampling.NEAREST)


@cache
def shown():
    """Return pictures of other sizes and shapes than what the image encoder takes."""
    from PIL import Image

    random = np.random.default_rng(7)
    sizes = ((50, 37), (31, 64))
    few = [random.integers(0, 255, (4, 5, 3), dtype=np.uint8) for _ in sizes]
    return [Image.fromarray(one).resize(size) for one, size in zip(few, sizes, strict=True)]


def ask(*by, **more):
    """Return a request for two pictures at once."""
    size = more.get("size", (32, 32))
    controls = [Control(drawing(size), LITTLE[one.guide].names[one.seed], *one[2:]) for one in by
                if not GUIDES[one.guide].is_prompt]  # fmt: skip
    prompts = [one for one in by if GUIDES[one.guide].is_prompt]
    if prompts:
        more["ip_adapter_scale"] = prompts[0].strength
    asked = {"prompts": ("a red circle",), "num_images": 2, "batch_size": 2, "steps": 4, "seed": 5}
    asked |= {"scheduler": "Euler a", "controls": tuple(controls)}
    return Request(**{**asked, "ip_adapter_images": tuple(shown()[one.seed] for one in prompts), **more})


@cache
def torch_guided(kind, controlnets, adapters, form, way, pooled):
    """Return diffusers' pipeline of a little checkpoint with guides by their seeds, and an IP-Adapter of a form."""
    import diffusers

    xl = "XL" if kind == "attending_xl" else ""
    made = torch_pipeline.__wrapped__ if form else torch_pipeline  # Those with an IP-Adapter change their UNet.
    parts = dict(made(f"StableDiffusion{xl}Pipeline", kind).components)
    more = {"force_zeros_for_empty_prompt": True} if xl else {"requires_safety_checker": False}
    if controlnets:
        found = [torch_guide("controlnet", kind, seed, **({"global_pool_conditions": True} if pooled else {}))
                 for seed in controlnets]  # fmt: skip
        parts["controlnet"] = found[0] if len(found) == 1 else found
    if adapters:
        found = [torch_guide("t2i_adapter", kind, seed) for seed in adapters]
        parts["adapter"] = found[0] if len(found) == 1 else diffusers.MultiAdapter(found)
        if not xl:
            del parts["image_encoder"]
    elif xl:
        more["add_watermarker"] = False
    name = "ControlNet" if controlnets else "Adapter" if adapters else ""
    pipeline = getattr(diffusers, f"StableDiffusion{xl}{name}{way}Pipeline")(**parts, **more)
    if form:
        file = little_guide("ip_adapter", kind, form=form)
        pipeline.load_ip_adapter(str(file.parent), subfolder="", weight_name=file.name)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def paint(*by, kind="attending", form="classic", pooled=False, **ours):
    """Return what diffusers paints for what `ask` asks for."""
    import diffusers
    import torch

    size, picture, mask = ours.pop("size", None), ours.pop("init_image", None), ours.pop("mask", None)
    ours.pop("guidance_calls", None)
    nets, adapters, prompts = ([one for one in by if one.guide == guide]
                               for guide in ("controlnet", "t2i_adapter", "ip_adapter"))  # fmt: skip
    way = "Inpaint" if mask else "Img2Img" if picture else ""
    seeds = [tuple(one.seed for one in some) for some in (nets, adapters)]
    pipeline = torch_guided(kind, *seeds, form if prompts else "", way, pooled)
    published = diffusers.PNDMScheduler.load_config(little_checkpoint(kind), subfolder="scheduler")
    scheduler = SCHEDULERS[ours.pop("scheduler", "Euler a")]
    pipeline.scheduler = getattr(diffusers, scheduler).from_config(published, prediction_type="epsilon")
    given = {"prompt": "a red circle", "num_inference_steps": 4, "guidance_scale": 7.5}
    generators = [torch.Generator().manual_seed(5 + number) for number in range(ours.pop("num_images", 2))]
    if "control_guess" in ours:
        given["guess_mode"] = ours.pop("control_guess")
    if size or mask:
        given["width"], given["height"] = size or mask.size
    if way:
        given |= {"image": picture, **({"mask_image": mask} if mask else {})}
    image = drawing(size or (32, 32))

    def one_or_all(values):
        return values[0] if len(values) == 1 else values

    if nets:
        given["control_image" if way else "image"] = one_or_all([image] * len(nets))
        given["controlnet_conditioning_scale"] = one_or_all([one.strength for one in nets])
        given["control_guidance_start"] = one_or_all([one.start for one in nets])
        given["control_guidance_end"] = one_or_all([one.end for one in nets])
    if adapters:
        given["image"] = one_or_all([image] * len(adapters))
        given["adapter_conditioning_scale"] = one_or_all([one.strength for one in adapters])
        if kind == "attending_xl":
            given["adapter_conditioning_factor"] = adapters[0].end
    if prompts:
        pipeline.set_ip_adapter_scale(prompts[0].strength)
        given["ip_adapter_image"] = [[shown()[one.seed] for one in prompts]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = {**given, "num_images_per_prompt": len(generators), **ours}
        return pipeline(generator=generators, **given).images


@pytest.fixture(scope="session")
def guided(settings):
    """Return the little pipeline with guides of all kinds, open."""
    return open_pipeline(little_guided(), settings)


@pytest.fixture(scope="session")
def plain(settings):
    """Return a function that draws without guides, each request once."""
    # A pipeline of its own: `guided` would open its UNet anew for the next picture that is led.
    known, pipeline = {}, open_pipeline(little_guided(), settings)

    def drawn(ours):
        left = {name: value for name, value in ours.items() if name != "control_guess"}
        if repr(left) not in known:
            known[repr(left)] = pipeline.generate(ask(**left)).pictures[0].image
        return known[repr(left)]

    return drawn


EACH = {
    "one": ([(0, 1.0)], {}),
    "weak": ([(1, 0.4)], {"negative_prompt": "dark"}),
    "two": ([(0, 0.7), (1, 0.5)], {}),
    "two calls": ([(0, 1.0)], {"guidance_calls": "two"}),
    "second order": ([(0, 1.0)], {"scheduler": "Heun"}),
    "other size": ([(0, 1.0)], {"size": (24, 40)}),
}
"""Seeds and strengths of guides, and fields; pictures that are a prompt have one strength."""
CASES = {
    f"{guide}, {name}": Case(
        [By(guide, seed, by[0][1] if guide == "ip_adapter" else strength) for seed, strength in by], ours
    )
    for guide in GUIDES
    if LITTLE[guide].is_painted
    for name, (by, ours) in EACH.items()
} | {
    "controlnet, early": Case([By("controlnet", end=0.5)], {}),
    "controlnet, late, two": Case([By("controlnet", start=0.25), By("controlnet", 1, end=0.75)], {}),
    "controlnet, late, second order": Case([By("controlnet", start=0.3)], {"scheduler": "Heun"}),
    "controlnet, guess": Case([By("controlnet")], {"control_guess": True}),
    "controlnet, guess, two": Case([By("controlnet"), By("controlnet", 1, 0.6)], {"control_guess": True}),
    "controlnet, guess, two calls": Case([By("controlnet")], {"control_guess": True, "guidance_calls": "two"}),
    "controlnet, guess without guidance": Case([By("controlnet")], {"control_guess": True, "guidance_scale": 1.0}),
    "ip_adapter, without guidance": Case([By("ip_adapter")], {"guidance_scale": 1.0}),
}


SHOWN_BY_OTHERS = {
    "controlnet, two",
    "controlnet, weak", "controlnet, other size", "controlnet, early", "controlnet, second order", "controlnet, guess",
    "t2i_adapter, one", "t2i_adapter, weak", "t2i_adapter, second order",
    "ip_adapter, one", "ip_adapter, weak", "ip_adapter, other size", "ip_adapter, second order",
    "t2i_adapter, two calls", "ip_adapter, two calls", "controlnet, guess, two calls",
}  # fmt: skip
"""Cases whose every part is in another case, or goes the same way for all kinds of guides."""


# Sorted: as long as the same kind leads, its UNet stays open.
@pytest.mark.parametrize("case", [pytest.param(one, marks=[slow] * (one in SHOWN_BY_OTHERS)) for one in sorted(CASES)])
def test_a_guided_picture_is_that_of_torch(guided, plain, case):
    by, ours = CASES[case]
    result = guided.generate(ask(*by, **ours))
    assert_alike(result, paint(*by, **ours))
    assert psnr(plain(ours), result.pictures[0].image) < 40


@pytest.mark.parametrize(
    ("by", "strength", "masked"),
    [
        (By("controlnet", end=0.5), 0.6, False), (By("controlnet", strength=0.8), 0.6, True),
        (By("ip_adapter"), 0.6, False), pytest.param(By("controlnet", strength=0.8), 1.0, True, marks=slow),
    ],
)  # fmt: skip
def test_a_guided_picture_of_a_picture_is_that_of_torch(guided, picture, mask, by, strength, masked):
    ours = {"init_image": picture, "strength": strength, **({"mask": mask, "num_images": 1} if masked else {})}
    assert_alike(guided.generate(ask(by, **ours)), paint(by, **ours))


XL = {
    "controlnet, two": Case([By("controlnet", 0, 0.8), By("controlnet", 1, 0.5, end=0.75)], {}),
    "controlnet, guess, two": Case(
        [By("controlnet", 0, 0.8), By("controlnet", 1, 0.5, end=0.75)], {"control_guess": True}
    ),
    # Late steps of the other schedulers change little here.
    "t2i_adapter, one": Case([By("t2i_adapter")], {"scheduler": "DDIM"}),
    "t2i_adapter, half of the steps": Case([By("t2i_adapter", end=0.5)], {"scheduler": "DDIM"}),
    "t2i_adapter, two, half of the steps": Case(
        [By("t2i_adapter", 0, 0.8, end=0.5), By("t2i_adapter", 1, 0.6, end=0.5)], {"scheduler": "DDIM"}
    ),
    "ip_adapter, whole": Case([By("ip_adapter")], {}),
    "ip_adapter, weak": Case([By("ip_adapter", 0, 0.5)], {}),
}


SHOWN_BY_OTHERS_XL = {
    "controlnet, two",  # One goes with an IP-Adapter below.
    "controlnet, guess, two",
    "t2i_adapter, one",
    "t2i_adapter, half of the steps",
    "ip_adapter, whole",
    "ip_adapter, weak",
}


@pytest.mark.parametrize("case", [pytest.param(one, marks=[slow] * (one in SHOWN_BY_OTHERS_XL)) for one in XL])
def test_xl_is_guided_as_by_torch(settings, case):
    by, ours = XL[case]
    xl = open_pipeline(little_guided("attending_xl"), settings)
    result = xl.generate(ask(*by, **ours))
    assert_alike(result, paint(*by, kind="attending_xl", **ours))
    if "half of the steps" in case:
        whole = xl.generate(ask(*(one._replace(end=1.0) for one in by), **ours))
        assert psnr(whole.pictures[0].image, result.pictures[0].image) < 45


@pytest.mark.parametrize(
    ("kind", "form", "scale", "half"),
    [
        ("attending", "plus", 0.5, False), pytest.param("attending", "full", 0.5, False, marks=slow),
        pytest.param("attending", "plus", 1.0, False, marks=slow),
        pytest.param("attending", "full", 1.0, False, marks=slow),
        pytest.param("attending", "plus", 1.0, True, marks=slow),
        pytest.param("attending_xl", "plus", 0.5, False, marks=slow),
        pytest.param("attending_xl", "plus", 0.5, True, marks=slow),
    ],
)  # fmt: skip
def test_other_forms_of_ip_adapters_are_those_of_torch(settings, kind, form, scale, half):
    by = [By("ip_adapter", 0, scale), By("ip_adapter", 1, scale)]
    pipeline = open_pipeline(little_guided(kind, half=half, form=form), settings)
    assert_alike(pipeline.generate(ask(*by)), paint(*by, kind=kind, form=form), 30 if half else 50)


@pytest.mark.parametrize(
    ("guide", "kind"),
    [
        # A ControlNet and an IP-Adapter lead a UNet in half precision below.
        pytest.param(guide, kind, marks=slow)
        for guide in GUIDES
        for kind in ("attending", "attending_xl")
    ],
)
def test_half_precision_is_near_torch(settings, guide, kind):
    half = open_pipeline(little_guided(kind, half=True), settings)
    other = {"ip_adapter": [By(guide, 0, 0.5)]}.get(guide, [By(guide), By(guide, 1)])
    guess = {"control_guess": True} if guide == "controlnet" else {}
    for by, ours in (([By(guide)], {}), (other, guess)):
        assert_alike(half.generate(ask(*by, **ours)), paint(*by, kind=kind, **ours), 30)


@pytest.mark.parametrize(
    ("kind", "scale", "half"),
    [
        ("attending", 0.6, True), ("attending_xl", 1.0, False),
        pytest.param("attending", 1.0, False, marks=slow), pytest.param("attending_xl", 1.0, True, marks=slow),
    ],
)  # fmt: skip
def test_an_ip_adapter_goes_with_controlnets_as_in_torch(settings, guided, kind, scale, half):
    by = [By("controlnet", strength=0.8), By("ip_adapter", strength=scale)]
    if half:
        pipeline = open_pipeline(little_guided(kind, half=True, few="controlnet+ip_adapter"), settings)
    else:
        pipeline = open_pipeline(little_guided(kind), settings) if kind != "attending" else guided
    assert_alike(pipeline.generate(ask(*by)), paint(*by, kind=kind), 30 if half else 50)


def test_a_controlnet_and_an_adapter_lead_one_picture_as_in_torchs_unet(guided, monkeypatch):
    """Diffusers' adapter pipeline with a UNet that is given a ControlNet's residuals as well."""
    import torch

    adapter = By("t2i_adapter", strength=0.8)
    pipeline = torch_guided("attending", (), (0,), "", "", False)
    net, pixels = torch_guide("controlnet"), torch.from_numpy(np.asarray(drawing()) / np.float32(255))
    forward = pipeline.unet.forward

    def with_controlnet(sample, timestep, encoder_hidden_states, **more):
        picture = pixels.permute(2, 0, 1)[None].expand(len(sample), -1, -1, -1)
        down, middle = net(sample, timestep, encoder_hidden_states, picture, 0.7, return_dict=False)
        more |= {"down_block_additional_residuals": down, "mid_block_additional_residual": middle}
        return forward(sample, timestep, encoder_hidden_states, **more)

    monkeypatch.setattr(pipeline.unet, "forward", with_controlnet)
    expected = paint(adapter)
    assert_alike(guided.generate(ask(By("controlnet", strength=0.7), adapter)), expected)


def test_conditions_that_are_means_over_the_picture_lead_prompts_alone(settings, tmp_path):
    from olivelike.testing.models import traced_graph
    from olivelike.testing.parity import materialize_model

    folder = shutil.copytree(little_guided(), tmp_path / "guided")
    model = guide_model("controlnet", little_guide("controlnet", seed=2, global_pool_conditions=True))
    materialize_model(model.replace(graph=traced_graph(model.architecture)), folder / "controlnet")
    config = {**model.architecture.config, "_class_name": "ControlNetModel"}
    (folder / "controlnet" / "config.json").write_text(json.dumps(config))
    result = open_pipeline(folder, settings).generate(ask(By("controlnet", strength=0.9)))
    assert_alike(result, paint(By("controlnet", 2, 0.9), pooled=True))


@pytest.mark.parametrize("pooled", [(False, True), (True, False)])
def test_the_first_network_says_whether_prompts_alone_are_led_as_in_diffusers(pooled):
    guides = [
        Guide(CONTROLNET, Control(drawing()), None, np.zeros((1, 3, 8, 8), np.float32), is_pooled=one) for one in pooled
    ]
    inputs = GuideInputs(Guides(guides), negatives=2)
    assert (inputs._guess, inputs._skipped) == (pooled[0], 2 * pooled[0])


@pytest.mark.parametrize("guide", [pytest.param(one, marks=[slow] * (one != "ip_adapter")) for one in GUIDES])
def test_nothing_gives_the_bits_of_the_plain_unet_and_the_plain_picture(guided, guide):
    folder = little_guided() / "unet"
    plain, led = (onnxruntime.InferenceSession(folder / name) for name in ("model.onnx", guided_file([guide])))
    random = np.random.default_rng(3)
    sizes = {"unet_sample_batch": 3, "unet_sample_height": 16, "unet_sample_width": 24}
    given = {
        "sample": random.standard_normal((3, 4, 16, 24), np.float32),
        "timestep": np.array([300.0], np.float32),
        "encoder_hidden_states": random.standard_normal((3, 7, 32), np.float32),
    }
    own = led.get_inputs()[len(given) :]
    assert [value.name for value in own] == list(LITTLE[guide].takes)
    if guide == "ip_adapter":
        given[IMAGE_TOKENS] = random.standard_normal((3, 8, 32), np.float32)
    zeros = {
        value.name: np.zeros([_size(dim, sizes) for dim in value.shape], np.float32)
        for value in own
        if value.name not in given
    }
    (expected,) = plain.run(None, {value.name: given[value.name] for value in plain.get_inputs()})
    assert (led.run(None, {**given, **zeros})[0] == expected).all()
    for name, array in zeros.items():
        assert np.abs(led.run(None, {**given, **zeros, name: array + 1})[0] - expected).max() > 0.01

    def unets():
        return [name for name in guided._networks if name.startswith("unet")]

    few = {"num_images": 1, "steps": 2}
    before = guided.generate(ask(**few)).pictures
    assert unets() == ["unet"]
    nothing = guided.generate(ask(By(guide, strength=0.0), **few)).pictures
    assert unets() == [f"unet/{guide}"]
    again = guided.generate(ask(**few)).pictures
    for one, other, third in zip(before, nothing, again, strict=True):
        assert psnr(one.image, other.image) == psnr(one.image, third.image) == np.inf


def test_a_prompt_of_no_strength_leaves_a_led_picture_as_it_is(guided):
    both = guided.generate(ask(By("controlnet"), By("ip_adapter", strength=0.0), By("ip_adapter", 1), num_images=1))
    alone = guided.generate(ask(By("controlnet"), num_images=1))
    assert psnr(both.pictures[0].image, alone.pictures[0].image) == np.inf


def test_edges_are_found_by_canny(guided):
    pytest.importorskip("cv2")
    edges = preprocessed(drawing(), "canny")
    assert set(np.unique(np.asarray(edges))) == {0, 255}
    asked = ask(controls=(Control(drawing(), "edges", preprocessor="canny"),), num_images=1, steps=2)
    given = ask(controls=(Control(edges, "edges"),), num_images=1, steps=2)
    first, second = (guided.generate(one).pictures[0].image for one in (asked, given))
    assert psnr(first, second) == np.inf


def test_an_adapter_runs_once_for_a_batch(guided, monkeypatch):
    asked = ask(By("t2i_adapter"), steps=2)
    guided.generate(asked)
    network, calls = guided._networks.get("t2i_adapter"), []
    prepare = network.prepare
    monkeypatch.setattr(network, "prepare", lambda *shapes: calls.append(shapes) or prepare(*shapes))
    guided.generate(asked)
    ((given, features),) = calls
    assert given == {"adapter_input": (1, 3, 32, 32)}
    assert list(features.values()) == [(1, 16, 16, 16), (1, 32, 8, 8), (1, 32, 4, 4)]


def test_a_lora_is_merged_into_the_unet_that_attends_to_pictures(guided, tmp_path):
    from olivelike.engine.output.swap import LiveLoras
    from olivelike.testing.lora_files import make_lora

    file = make_lora(tmp_path / "style.safetensors", "kohya", base=little_checkpoint("attending"), components=("unet",))
    files = LiveLoras([], allow_pickle=False)
    styled = guided.with_initializers(files.merge([files.named(str(file))], little_guided()))
    by = By("ip_adapter")
    text, nothing, image = (styled.generate(one).pictures[0].image for one in (
        ask(num_images=1), ask(by._replace(strength=0.0), num_images=1), ask(by, num_images=1)
    ))  # fmt: skip
    assert psnr(text, nothing) == np.inf
    assert psnr(guided.generate(ask(by, num_images=1)).pictures[0].image, image) < 40 > psnr(text, image)


def test_what_can_not_be_guided_is_refused(guided, pipeline, picture, mask):
    image, wide = drawing(), drawing((48, 32))

    def led(*control, **more):
        return ask(controls=(Control(image, *control),), **more)

    titles, names = [kind.title for kind in CONTROL_KINDS], ", ".join(CONTROL_NAMES.values())
    edges, sketch, prompt = By("controlnet"), By("t2i_adapter"), By("ip_adapter")
    refusals = {
        f"no {' or '.join(titles)} 'edge'; did you mean 'edges'": led("edge"),
        f"{len(CONTROL_NAMES)} {'s and '.join(titles)}s; say which one a control picture is for: {names}": led(),
        "from 0.5 to 0.5": ask(edges._replace(start=0.5, end=0.5)),
        "nan, is no number from -10 to 10": led("edges", float("nan")),
        r"1e\+308, is no number from -10 to 10": led("edges", 1e308),
        "48x32 has another shape than the 32x32": ask(controls=(Control(wide, "sketch"),), size=(32, 32)),
        "without a picture that leads": ask(control_guess=True),
        "control_guess is about ControlNets": ask(sketch, control_guess=True),
        "leaves out the layers that a ControlNet leads, or .*T2I-Adapter.*; take cache_interval 1": ask(
            edges, cache_interval=2
        ),
        "leaves out the layers that a Control": ask(sketch, cache_interval=2),
        "leaves out layers in which the UNet attends": ask(prompt, cache_interval=2),
        "inpaint_area masked draws a part": ask(edges, init_image=picture, mask=mask, inpaint_area="masked"),
        "ip_adapter_scale nan is not between -10 and 10": ask(prompt._replace(strength=float("nan"))),
        "without a picture that is a prompt": ask(ip_adapter_scale=0.5),
        "17 pictures are a prompt; take at most 16": ask(ip_adapter_images=tuple(shown()[:1] * 17)),
    }
    for words, request in refusals.items():
        with pytest.raises(UsageError, match=words):
            guided.resolve_defaults(request)
    with pytest.raises(UsageError, match="has no ControlNet, which a control picture needs; name one under"):
        pipeline.resolve_defaults(led())
    with pytest.raises(UsageError, match=r"has no IP-Adapter, which a picture as a prompt needs; name one as `ip_ad"):
        pipeline.resolve_defaults(ask(prompt))
    fitted = guided.resolve_defaults(ask(controls=(Control(wide, "controlnet_2"),), size=(32, 32), fit=True))
    assert (fitted.controls[0].net, fitted.controls[0].image.size) == ("depth", (32, 32))
    for component, name in (("controlnet", "edges"), ("t2i_adapter_2", "colour")):
        found = guided.resolve_defaults(ask(controls=(Control(wide, component),)))
        assert (found.controls[0].net, found.size) == (name, (48, 32))


def test_a_folder_whose_unet_takes_no_guide_says_what_to_do(tmp_path):
    folder = shutil.copytree(little_guided(), tmp_path / "guided")
    for guide, words in (
        ("controlnet", r"no unet/controlnet\.onnx, which ControlNets lead"),
        ("t2i_adapter", r"no unet/t2i_adapter\.onnx, which T2I-Adapters lead; name one under `t2i_a"),
        ("ip_adapter", r"no unet/ip_adapter\.onnx, which IP-Adapters lead"),
    ):
        (folder / "unet" / guided_file([guide])).unlink()
        with pytest.raises(SourceError, match=words):
            open_pipeline(folder).resolve_defaults(ask(By(guide)))
    (folder / "unet" / "controlnet_ip_adapter.onnx").unlink()
    with pytest.raises(SourceError, match=r"no unet/controlnet_ip_adapter\.onnx"):
        open_pipeline(folder).resolve_defaults(ask(By("controlnet"), By("ip_adapter")))


def test_a_size_that_the_adapter_does_not_halve_is_refused(tmp_path, settings):
    folder = shutil.copytree(little_guided(), tmp_path / "guided")
    path = folder / "t2i_adapter" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "downscale_factor": 16}))
    with pytest.raises(UsageError, match=r"size 24x24: a T2I-Adapter of this pipeline takes sides .* multiples of 16"):
        open_pipeline(folder, settings).resolve_defaults(ask(By("t2i_adapter"), size=(24, 24)))
    path.write_text(json.dumps({"downscale_factor": "two"}))
    with pytest.raises(SourceError, match=r"t2i_adapter/config\.json: .*downscale_factor"):
        open_pipeline(folder, settings).resolve_defaults(ask(By("t2i_adapter")))
