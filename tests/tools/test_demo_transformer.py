"""The shipped pipeline with a transformer: its size, what it draws, and the script that trains it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from olivelike.data import demo_transformer
from olivelike.engine.preparation import plan
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.measure.verify.folder_verification import verify_folder
from olivelike.runtime import Request, open_pipeline
from tests.fixtures.inline_executor import InlineExecutor
from tools.train_demo import transformer
from tools.train_demo.captions.captions import WORDS
from tools.train_demo.captions.evaluation import random_captions, score_pictures
from tools.train_demo.captions.scenes import random_scene
from tools.train_demo.chat_tokenizer import write_chat_tokenizer
from tools.train_demo.latents import Latents

QUANTISED = [f"components.{name}=[convert, fuse, weights8]" for name in ("text_encoder", "transformer")]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("demo-transformer")


def asked(work, name, changes=()):
    return "demo_transformer", Options(overrides=tuple(changes), cache_dir=work / "cache", output=work / name)


def opened(work, name, changes=()):
    assert run(*asked(work, name, changes), executor=InlineExecutor).status == "ok"
    return open_pipeline(work / name)


@pytest.fixture(scope="module")
def pipeline(work, one_torch_thread):
    return opened(work, "whole")


def right(pipeline, captions, **more):
    """Return how many captions are drawn right."""
    result = pipeline.generate(Request(tuple(captions), seed=0, **{"batch_size": 25, **more}))
    return score_pictures(captions, np.stack([np.asarray(picture.image) for picture in result.pictures])).right


def test_it_takes_at_most_8_megabytes():
    assert sum(path.stat().st_size for path in demo_transformer().rglob("*") if path.is_file()) <= 8e6


def test_the_shelf_has_all_its_graphs(work):
    _, found = plan(*asked(work, "planned"))
    statuses = {one.node.id: one.status for one in found.nodes if one.node.id.endswith((".load", ".convert"))}
    assert len(statuses) == 8
    assert set(statuses.values()) <= {"shelf", "hit"}


def test_captions_are_drawn_right(pipeline):
    assert right(pipeline, random_captions(4, seed=21), steps=8, guidance_scale=2.0) == 4


def test_its_steps_and_guidance_are_those_of_z_images_base(pipeline):
    assert pipeline.folder.family.usual == {"steps": 28, "guidance_scale": 4.0}


@pytest.mark.slow
@pytest.mark.parametrize("caption", random_captions(3, seed=21))
def test_diffusers_draws_the_same_pictures(work, pipeline, caption):
    """In float32; guidance and networks too."""
    del pipeline
    against = str(demo_transformer())
    assert verify_folder(
        work / "whole", against=against, samples=1, pictures=2, prompt=caption, steps=20, min_psnr=60.0
    ).passed


@pytest.mark.slow
@pytest.mark.parametrize("changes", [(), QUANTISED], ids=["float32", "weights8"])
def test_90_of_100_captions_are_drawn_right(work, changes):
    """With its own steps and guidance."""
    scored = opened(work, f"scored-{bool(changes)}", changes)
    usual = scored.folder.family.usual
    assert right(scored, random_captions(100, seed=1001), **usual) >= 90


def test_each_word_is_one_token_and_any_text_comes_back(tmp_path):
    write_chat_tokenizer(tmp_path)
    for file in (demo_transformer() / "tokenizer").iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert all(len(tokenizer.encode(f"a {word}").ids) == 2 for word in WORDS if word.isalpha())
    text = "ünïcode 你好 skulls & 🎨"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.fixture
def little(tmp_path, monkeypatch):
    """A tokenizer, and random latents of a few scenes for networks of few layers."""
    monkeypatch.setitem(transformer.TRANSFORMER, "n_layers", 1)
    monkeypatch.setitem(transformer.TEXT_ENCODER, "num_hidden_layers", 2)
    rng = np.random.default_rng(0)
    mean = torch.randn(8, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    latents = Latents([random_scene(rng) for _ in mean], mean, torch.full_like(mean, 0.1))
    return write_chat_tokenizer(tmp_path / "tokenizer"), transformer.Scaled(latents, 0.0, 1.0)


def test_both_networks_learn_and_a_finished_training_is_not_done_again(little, tmp_path):
    course = transformer.Course(batch=2, steps=2, minutes=None, seed=0)
    trained, resumed = (transformer._train(*little, tmp_path, course) for _ in range(2))
    for one, same in zip(trained.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, same)
    first = transformer.make_networks(little[0].get_vocab_size(), 0)
    assert not torch.equal(trained.text_encoder.embed_tokens.weight, first.text_encoder.embed_tokens.weight)
    for one, old in zip(trained.transformer.parameters(), first.transformer.parameters(), strict=True):
        assert not torch.equal(one, old)


@torch.no_grad()
def test_texts_of_several_lengths_at_once_give_what_diffusers_gives_for_each(little):
    tokenizer, scaled = little
    networks = transformer.make_networks(tokenizer.get_vocab_size(), 0)
    torch.nn.init.normal_(networks.transformer.all_final_layer["2-1"].linear.weight)
    texts = transformer.tokenize(tokenizer, ["a red circle", ""], torch.device("cpu"))
    states, share = transformer.encode(networks, texts), torch.tensor([0.25, 0.75])
    ours = transformer.predict(networks, scaled.latents.mean[:2], share, states, texts.lengths)
    for place, length in enumerate(texts.lengths):
        sample = [scaled.latents.mean[place][:, None]]
        (theirs,) = networks.transformer(sample, share[place : place + 1], [states[place, :length]]).sample
        assert (ours[place] - theirs[:, 0]).abs().max() <= 1e-4 * theirs.abs().max()
