"""Steps that cost less: deep layers' features from steps before, guidance in some steps, its halves in two calls."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from torch_pipelines import assert_alike, paint, torch_pipeline

from olivelike.errors import SourceError, UsageError
from olivelike.model.components import SHALLOW_FILE
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.pipeline import cheap_steps
from olivelike.testing import run_pass
from olivelike.testing.parity import materialize_model
from olivelike.workflow.passes import Registry
from tests.fixtures.little_pipeline import little_model

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:__array_:DeprecationWarning")

TEXT = "StableDiffusionPipeline"


@pytest.fixture(scope="module")
def cached_folder(little_folder, tmp_path_factory):
    """Return the little pipeline with a shallow graph."""
    folder = tmp_path_factory.mktemp("cached") / "little"
    shutil.copytree(little_folder, folder)
    model = little_model("sd", "unet")
    for name, target in (("fuse", {"target": "cpu"}), ("deepcache", {})):
        model = run_pass(Registry.built_in().get(name).cls, model, **target)
    materialize_model(model, folder / "unet")
    return folder


@pytest.fixture(scope="module")
def cached(cached_folder, settings):
    return open_pipeline(cached_folder, settings)


def ask(**more):
    return Request(**{"prompts": ("a red circle",), "num_images": 2, "batch_size": 2, "steps": 12, "seed": 5, **more})


def pixels(result):
    return np.stack([np.asarray(picture.image) for picture in result.pictures])


class TorchCache:
    """What enters the last layer up of a torch UNet, as in DeepCache: of whole steps as it is, else foretold."""

    def __init__(self, interval, order, first):
        self.interval, self.order, self.first = interval, order, first
        self.calls, self.moment, self.kept, self.shares = -1, 0.0, [], []

    def begin(self, _module, arguments, keywords):
        self.calls += 1
        self.moment = float(arguments[1] if len(arguments) > 1 else keywords["timestep"])

    def enter(self, _module, arguments):
        joined, *rest = arguments
        skipped = 16  # channels of the connection, behind those of the features
        features = joined[:, :-skipped]
        step = self.calls // self.order
        if step <= self.first or (step - self.first) % self.interval == 0:
            self.kept = [*[one for one in self.kept if one[0] != self.moment][-1:], (self.moment, features.clone())]
            return None
        (first, before), (second, last) = self.kept[0], self.kept[-1]
        if first == second:
            return (torch.cat([last, joined[:, -skipped:]], dim=1), *rest)
        changes = [((b - a).norm() / b.norm()).item() for a, b in zip(before, last, strict=True)]
        share = (self.moment - first) / (second - first)
        shares = [min(share, 1 + 0.5 * min(max((0.3 - change) / 0.15, 0), 1)) for change in changes]
        features = torch.stack([torch.lerp(a, b, one) for a, b, one in zip(before, last, shares, strict=True)])
        self.shares += [one for one in shares if one < share]
        return (torch.cat([features, joined[:, -skipped:]], dim=1), *rest)


# PLMS has its second timestep twice, among the whole steps.
@pytest.mark.parametrize(("scheduler", "order", "steps"), [("DDIM", 1, 12), ("Heun", 2, 12), ("PLMS", 1, 20)])
def test_a_cache_interval_gives_the_picture_of_torch_with_the_same_features(cached, scheduler, order, steps):
    unet = torch_pipeline(TEXT, "sd").unet
    cache = TorchCache(3, order, first=steps // 10)
    hooks = [
        unet.register_forward_pre_hook(cache.begin, with_kwargs=True),
        unet.up_blocks[-1].resnets[-1].register_forward_pre_hook(cache.enter),
    ]
    try:
        painted = paint(TEXT, scheduler, [5, 6], num_inference_steps=steps, negative_prompt="dark")
    finally:
        for hook in hooks:
            hook.remove()
    asked = ask(scheduler=scheduler, steps=steps, cache_interval=3, negative_prompt="dark")
    assert_alike(cached.generate(asked), painted)
    assert cache.shares  # Some were not foretold as far as the line goes.


def test_an_interval_of_one_and_the_second_graph_itself_change_nothing(pipeline, cached):
    assert (pixels(cached.generate(ask(steps=3))) == pixels(pipeline.generate(ask(steps=3)))).all()


def test_a_picture_alone_and_in_a_batch_with_others_is_the_same_with_a_cache_interval(cached):
    together, alone = (cached.generate(ask(steps=6, cache_interval=2, batch_size=size)) for size in (2, 1))
    assert_alike(together, [picture.image for picture in alone.pictures])


def test_guidance_in_an_interval_is_that_of_torch_without_guidance_behind_it(pipeline):
    def end(torch_pipeline, step, _timestep, values):
        if step == 1:
            torch_pipeline._guidance_scale = 0.0
            values["prompt_embeds"] = values["prompt_embeds"].chunk(2)[-1]
        return values

    painted = paint(
        TEXT, "DDIM", [5, 6], negative_prompt="dark", callback_on_step_end=end,
        callback_on_step_end_tensor_inputs=["prompt_embeds"],
    )  # fmt: skip
    result = pipeline.generate(ask(steps=4, scheduler="DDIM", guidance_interval=(0, 0.5), negative_prompt="dark"))
    assert_alike(result, painted)


def test_an_interval_of_guidance_that_is_all_steps_changes_nothing(pipeline):
    every = pipeline.generate(ask(steps=3, guidance_interval=(0, 1)))
    assert (pixels(every) == pixels(pipeline.generate(ask(steps=3)))).all()


def test_terms_of_a_prompt_are_added_up_in_all_steps(pipeline):
    result = pipeline.generate(ask(prompts=("a red circle AND a square",), steps=2, guidance_interval=(0.5, 1)))
    assert len(result.pictures) == 2


@pytest.mark.parametrize("more", [{}, {"cache_interval": 2}, {"guidance_interval": (0.3, 0.7)}])
def test_two_calls_give_the_picture_of_one(cached, more):
    one, two = (cached.generate(ask(steps=4, guidance_calls=calls, **more)) for calls in ("one", "two"))
    assert_alike(two, [picture.image for picture in one.pictures], least=60)


def test_the_faster_way_is_found_once_and_remembered(cached, monkeypatch, tmp_path):
    monkeypatch.setattr(cheap_steps, "_notes", lambda: tmp_path / "notes" / "calls.json")
    now = iter(range(1000))
    monkeypatch.setattr(cheap_steps, "time", SimpleNamespace(perf_counter=lambda: float(next(now))))
    cached.generate(ask(steps=8, num_images=1, guidance_calls="faster"))
    (answer,) = json.loads((tmp_path / "notes" / "calls.json").read_text()).values()
    assert answer is False  # Each took a second.
    monkeypatch.setattr(cheap_steps, "_remember", lambda _: pytest.fail("it was known"))
    cached.generate(ask(steps=8, num_images=1, guidance_calls="faster"))


def test_another_lora_is_in_both_graphs(cached):
    name = "conv_out.bias"
    changed = cached.with_initializers({"unet": {name: np.full(4, 0.5, np.float32)}})
    before, after = (pixels(one.generate(ask(steps=2, cache_interval=2))) for one in (cached, changed))
    assert (before != after).any()
    last = ask(steps=2, cache_interval=2, guidance_scale=1.0)
    assert (pixels(changed.generate(last)) != pixels(cached.generate(last))).any()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"cache_interval": 0}, "at least 1"),
        ({"cache_interval": 13}, "beyond the 12 steps.*at most 12"),
        ({"guidance_interval": (0.5, 0.5)}, "to a larger one"),
        ({"guidance_interval": (-1, 0.5)}, "between 0 and 1"),
        ({"guidance_interval": (0.01, 0.02)}, "none of the 12 steps"),
        ({"guidance_interval": (0, 0.5), "guidance_scale": 1.0}, "there is no guidance"),
        ({"guidance_calls": "faster", "cache_interval": 2}, "say one or two"),
    ],
)
def test_what_can_not_be_had_is_refused(cached, more, words):
    with pytest.raises(UsageError, match=words):
        cached.generate(ask(**more))


def test_a_folder_without_the_shallow_graph_says_what_makes_one(pipeline):
    with pytest.raises(SourceError, match=rf"no unet/{SHALLOW_FILE}.*`deepcache` behind the other steps"):
        pipeline.generate(ask(cache_interval=3))


@pytest.mark.parametrize(
    ("interval", "steps", "guided"),
    [(None, 3, range(3)), ((0.2, 0.8), 10, range(2, 8)), ((0.1, 1.0), 30, range(3, 30)), ((0, 0.05), 10, range(1))],
)
def test_shares_are_those_at_which_steps_begin(interval, steps, guided):
    assert cheap_steps.guided_steps(ask(guidance_interval=interval), steps) == guided
