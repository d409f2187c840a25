"""FLUX.1 at tiny size: converted as any checkpoint, and drawn as diffusers' pipelines draw it."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image
from torch_pipelines import psnr

from olivelike.engine.convert_request import ConvertRequest, draft
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.errors import SourceError, UsageError
from olivelike.measure.verify.folder_verification import verify_folder
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.jobs.job_plan import plan_jobs
from olivelike.runtime.jobs.prompt_lines import PromptLine
from olivelike.testing.models import lend_graphs, load_model
from tests.fixtures.inline_executor import InlineExecutor
from tests.fixtures.little_flux import little_flux

TEXT, PICTURE, INPAINT = (f"Flux{name}Pipeline" for name in ("", "Img2Img", "Inpaint"))
COMPONENTS = ("text_encoder", "text_encoder_2", "transformer", "vae_encoder", "vae_decoder")
LENGTHS = {False: 256, True: 512}
"""Tokens of T5 by whether it is dev: the card of schnell has `max_sequence_length=256`, and the pipeline 512."""
LEAST = 60.0
"""PSNR in dB of 8-bit pictures that are equal but for a few roundings."""
both = pytest.mark.parametrize("dev", [False, True], ids=["schnell", "dev"])


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Return what opens an output of schnell or dev."""
    root = tmp_path_factory.mktemp("flux")

    @cache
    def open_output(*, dev):
        source = little_flux(dev=dev)
        lend_graphs(root / "cache", [load_model(source, name).architecture for name in COMPONENTS])
        folder = root / ("dev" if dev else "schnell")
        place, options = draft(ConvertRequest(str(source), "cpu", folder), Options(cache_dir=root / "cache"))
        run(place, options, executor=InlineExecutor)
        return open_pipeline(folder)

    return open_output


@cache
def torch_pipeline(class_name, *, dev):
    import diffusers

    made = getattr(diffusers, class_name).from_pretrained(little_flux(dev=dev))
    made.set_progress_bar_config(disable=True)
    return made


def painted(class_name=TEXT, seed=5, *, dev=False, **arguments):
    arguments = {"prompt": "a red circle", "num_inference_steps": 4, "guidance_scale": 3.5, **arguments}
    pipeline = torch_pipeline(class_name, dev=dev)
    return pipeline(
        generator=torch.Generator().manual_seed(seed), max_sequence_length=LENGTHS[dev], **arguments
    ).images[0]


def ask(**more):
    return Request(
        **{"prompts": ("a red circle",), "steps": 4, "seed": 5, "guidance_scale": 3.5, "size": (32, 32), **more}
    )


def assert_alike(result, image):
    assert np.asarray(image).std() > 20
    assert psnr(result.pictures[0].image, image) >= LEAST


@pytest.mark.parametrize(
    ("dev", "size"),
    [
        (False, (32, 32)), (True, (24, 40)),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((False, (24, 40)), (True, (32, 32)))),
    ],
    ids=str,
)  # fmt: skip
def test_text_gives_the_picture_of_torch(opened, dev, size):
    pipeline = opened(dev=dev)
    assert (pipeline.folder.default_size, pipeline.folder.size_unit) == ((32, 32), 4)
    assert_alike(pipeline.generate(ask(size=size)), painted(dev=dev, width=size[0], height=size[1]))


def test_a_long_text_is_cut_where_diffusers_cuts_it(opened):
    prompt = "a red circle, " * 100
    assert_alike(opened(dev=False).generate(ask(prompts=(prompt,))), painted(prompt=prompt, width=32, height=32))


def test_the_guidance_is_an_input_of_dev_and_nothing_to_schnell(opened):
    weak, strong = (opened(dev=True).latents(ask(guidance_scale=scale)) for scale in (1.0, 6.0))
    assert not np.allclose(weak, strong, atol=1e-3)
    assert_alike(
        opened(dev=True).generate(ask(guidance_scale=1.0)), painted(dev=True, guidance_scale=1.0, width=32, height=32)
    )
    same = [opened(dev=False).latents(ask(guidance_scale=scale)) for scale in (0.0, 6.0)]
    assert np.array_equal(*same)


@pytest.mark.parametrize(
    ("dev", "strength"),
    [
        (False, 0.5), (True, 0.6), (True, 1.0),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((True, 0.5), (False, 0.6), (False, 1.0))),
    ],
)  # fmt: skip
def test_a_picture_gives_the_picture_of_torch(opened, dev, strength):
    image = painted(seed=9, width=32, height=32)
    theirs = painted(PICTURE, dev=dev, image=image, strength=strength, width=32, height=32)
    assert_alike(opened(dev=dev).generate(ask(init_image=image, strength=strength)), theirs)


def test_a_mask_gives_the_picture_of_torch(opened):
    image = painted(seed=9, width=32, height=32)
    mask = Image.fromarray(np.repeat(np.arange(32, dtype=np.uint8)[:, None] // 16 * 255, 32, axis=1))
    result = opened(dev=False).generate(ask(init_image=image, mask=mask, strength=0.75))
    theirs = painted(INPAINT, image=image, mask_image=mask, strength=0.75, width=32, height=32)
    assert_alike(result, theirs)


def test_pictures_of_a_batch_are_those_that_are_drawn_alone(opened):
    pipeline = opened(dev=True)
    together = pipeline.generate(ask(num_images=2, batch_size=2)).pictures
    assert psnr(together[0].image, pipeline.generate(ask()).pictures[0].image) >= LEAST
    assert psnr(together[1].image, pipeline.generate(ask(seed=6)).pictures[0].image) >= LEAST


def test_the_folder_is_verified_with_its_pictures(opened):
    folder = opened(dev=True).folder.path
    found = verify_folder(folder, against=str(little_flux(dev=True)), samples=1, pictures=1, steps=3, min_psnr=LEAST)
    assert found.passed
    assert {one.name for one in found.components} == set(COMPONENTS)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"negative_prompt": "a dark dog"}, "negative_prompt has no meaning for FLUX.1: "),
        ({"clip_skip": 1}, "clip_skip has no meaning for FLUX.1: "),
        ({"scheduler": "DPM++ 2M Karras"}, "trained for flow matching; take Euler"),
        ({"guidance_interval": (0.2, 0.8)}, "there is no guidance that runs in steps of its own"),
        ({"size": (30, 32)}, "multiples of 4 pixels"),
    ],
    ids=str,
)
def test_what_it_has_no_meaning_for_is_refused_in_a_sentence(opened, wrong, said):
    with pytest.raises(UsageError, match=said.replace("+", r"\+")) as caught:
        opened(dev=True).resolve_defaults(ask(**wrong))
    assert "\n" not in str(caught.value)


def test_brackets_are_text_as_in_diffusers(opened):
    prompt = "a (red:1.5) circle AND a [blue] square"
    assert_alike(opened(dev=False).generate(ask(prompts=(prompt,))), painted(prompt=prompt, width=32, height=32))


@both
def test_a_request_that_names_neither_has_the_steps_and_guidance_of_its_variant(opened, dev):
    folder = opened(dev=dev).folder.path
    plan = plan_jobs(folder, [PromptLine("a red circle")])
    (job,) = plan.jobs
    assert (job.request.steps, job.request.guidance_scale) == ((28, 3.5) if dev else (4, 0.0))
    assert not job.request.prompt_weights
    assert plan.notes == ()
    noted = plan_jobs(folder, [PromptLine("a red circle")], {"guidance_scale": 7.0}).notes
    assert any("guidance scale is not used" in note for note in noted) is not dev


def test_a_folder_without_t5_says_so(opened, tmp_path):
    import shutil

    folder = shutil.copytree(opened(dev=False).folder.path, tmp_path / "copy")
    shutil.rmtree(folder / "text_encoder_2")
    with pytest.raises(SourceError, match="text_encoder_2, T5"):
        open_pipeline(folder).generate(ask())


def test_half_precision_draws_and_halves_t5(opened, tmp_path):
    source = little_flux()
    place, options = draft(
        ConvertRequest(str(source), "cpu", tmp_path / "half", precision="fp16"),
        Options(cache_dir=opened(dev=False).folder.path.parent / "cache"),
    )
    run(place, options, executor=InlineExecutor)
    sizes = [
        {name: sum(one.stat().st_size for one in (folder / name).iterdir()) for name in COMPONENTS}
        for folder in (opened(dev=False).folder.path, tmp_path / "half")
    ]
    assert sizes[1]["text_encoder_2"] < 0.7 * sizes[0]["text_encoder_2"], "its streams stay, its weights do not"
    assert sizes[1]["transformer"] < 0.7 * sizes[0]["transformer"]
    latents = [open_pipeline(folder).latents(ask()) for folder in (opened(dev=False).folder.path, tmp_path / "half")]
    assert np.linalg.norm(latents[1] - latents[0]) / np.linalg.norm(latents[0]) < 0.05


def test_optimum_s_layout_has_its_classes(opened, tmp_path):
    place, options = draft(
        ConvertRequest(str(little_flux()), "cpu", tmp_path / "optimum", layout="optimum"),
        Options(cache_dir=opened(dev=False).folder.path.parent / "cache"),
    )
    run(place, options, executor=InlineExecutor)
    index = json.loads((tmp_path / "optimum" / "model_index.json").read_bytes())
    assert index["_class_name"] == "ORTFluxPipeline"
    assert index["transformer"][1] == "ORTTransformer"
    assert np.array_equal(open_pipeline(tmp_path / "optimum").latents(ask()), opened(dev=False).latents(ask()))


@both
def test_an_order_has_the_usual_values_of_the_folder_and_the_page_leaves_out_what_has_no_meaning(opened, dev):
    from types import SimpleNamespace

    from olivelike.runtime.pipeline.resolve_defaults import absent_fields
    from olivelike.serve.api.catalogue_routes import _fields
    from olivelike.serve.catalogue import Catalogue
    from olivelike.serve.drawing.planning import Files, plan_order
    from olivelike.serve.orders import Order
    from olivelike.serve.settings import ServeSettings

    folder = opened(dev=dev).folder.path
    settings = ServeSettings(folders=(folder,))
    (view,) = Catalogue(settings).models(())
    told = _fields(SimpleNamespace(settings=settings), view)
    assert (told["steps"]["default"], told["guidance_scale"]["default"]) == ((28, 3.5) if dev else (4, 0.0))
    absent = {name for name, one in told.items() if one.get("absent")}
    assert absent == {*absent_fields(opened(dev=dev).folder)} >= {"negative_prompt", "clip_skip"}
    files = Files({folder.name: folder}, folder, (), (), allow_pickle=False)
    sent = Order(model=folder.name, prompt="a red circle", seed=5).model_dump(mode="json", exclude_unset=True)
    (job,) = plan_order(Order.model_validate(sent), files).jobs
    assert (job.request.steps, job.request.guidance_scale) == ((28, 3.5) if dev else (4, 0.0))
    (job,) = plan_order(Order.model_validate({**sent, "steps": 3}), files).jobs
    assert job.request.steps == 3
