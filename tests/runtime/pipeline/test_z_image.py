"""Z-Image at tiny size, in what it has of its own beside other transformers."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from drawn_transformers import LEAST, assert_alike
from torch_pipelines import psnr

from olivelike.errors import SourceError
from olivelike.model.onnx_messages import load_model, to_array
from olivelike.runtime import open_pipeline
from olivelike.runtime.sessions import compiled
from olivelike.runtime.sessions.open_session import open_session
from olivelike.runtime.sessions.ort_session import OrtSession
from olivelike.runtime.sessions.session_settings import SessionSettings
from olivelike.runtime.sessions.text_part import open_in_two

LONG = "a red circle in a blue square, a large dog with a small cat on the white tree " * 3


@pytest.mark.parametrize("negative", [None, "a dark dog", LONG], ids=["none", "short", "long"])
def test_a_scale_is_that_of_diffusers_and_one_more(drawn, negative):
    made = drawn("z_image")
    result = made.pipeline.generate(made.ask(negative_prompt=negative, guidance_scale=4.0))
    assert_alike(result, made.painted(negative_prompt=negative, guidance_scale=3.0))


def test_texts_of_several_lengths_are_drawn_in_a_batch(drawn):
    made, prompts = drawn("z_image"), ("a red circle", LONG, "a blue square")
    together = made.pipeline.generate(made.ask(prompts=prompts, batch_size=3, guidance_scale=3.0)).pictures
    for place, prompt in enumerate(prompts):
        alone = made.pipeline.generate(made.ask(prompts=(prompt,), guidance_scale=3.0)).pictures[0]
        assert psnr(together[place].image, alone.image) >= LEAST


def test_blocks_that_read_the_text_alone_run_once_for_a_text(drawn, monkeypatch):
    made, runs, real = drawn("z_image"), Counter(), OrtSession.compute
    monkeypatch.setattr(OrtSession, "compute", lambda *given: runs.update(["texts"]) or real(*given))
    ask = {"steps": 3, "size": (48, 32)}  # Of a size that no other test has, so that buffers are new.
    first = made.pipeline.generate(made.ask(num_images=2, batch_size=1, **ask)).pictures[0]
    assert runs["texts"] == 1
    made.pipeline.generate(made.ask(prompts=("a blue square",), **ask))
    assert runs["texts"] == 2
    again = made.pipeline.generate(made.ask(**ask)).pictures[0]
    assert np.array_equal(again.image, first.image)
    assert runs["texts"] == 3
    made.pipeline.forget_texts()
    made.pipeline.generate(made.ask(**ask))
    assert runs["texts"] == 4


@pytest.mark.parametrize("kept", [False, True], ids=["", "kept"])
def test_a_network_in_two_is_the_whole(drawn, tmp_path, monkeypatch, kept):
    monkeypatch.setattr(compiled, "_SETTLED_NS", 0)
    path = drawn("z_image").folder / "transformer" / "model.onnx"
    random = np.random.default_rng(0)
    feeds = {
        "sample": random.standard_normal((2, 16, 6, 10), np.float32), "timestep": np.array([0.3], np.float32),
        "encoder_hidden_states": random.standard_normal((2, 37, 32), np.float32),
    }  # fmt: skip
    settings = SessionSettings(intra_threads=1)
    if kept:
        settings = replace(settings, compiled=tmp_path, keep_compiled=True)
    tensors = [tensor for tensor in load_model(path).graph.initializer if len(tensor.dims) == 2]
    others = {} if kept else {one.name: 1.25 * to_array(one, path.parent) for one in tensors if one.data_type == 1}
    plain = open_session(path, SessionSettings(intra_threads=1), others)
    found, wanted = (np.empty_like(feeds["sample"]) for _ in range(2))
    plain.bind(feeds, {"out_sample": wanted}).run()
    for _ in range(2):
        session = open_in_two(path, settings, others)
        assert type(session) is not type(plain)
        assert (session.inputs, session.outputs) == (plain.inputs, plain.outputs)
        session.bind(feeds, {"out_sample": found}).run()
        assert np.linalg.norm(found - wanted) <= 1e-5 * np.linalg.norm(wanted)
    assert len([*tmp_path.glob("*/model.onnx")]) == 2 * kept


def test_a_network_without_such_blocks_is_opened_whole(drawn):
    path = drawn("z_image").folder / "vae_decoder" / "model.onnx"
    assert isinstance(open_in_two(path, SessionSettings(), {}), OrtSession)


def test_a_text_encoder_of_another_width_says_so(drawn, tmp_path):
    made = drawn("z_image")
    folder = shutil.copytree(made.folder, tmp_path / "copy")
    config = folder / "transformer" / "config.json"
    config.write_text(config.read_text().replace('"cap_feat_dim": 32', '"cap_feat_dim": 64'))
    with pytest.raises(SourceError, match="takes vectors of 64 numbers, and text_encoder makes 32"):
        open_pipeline(folder).generate(made.ask())


def test_tokens_that_the_text_encoder_does_not_know_are_told(drawn, tmp_path):
    made = drawn("z_image")
    folder = shutil.copytree(made.folder, tmp_path / "of another tokenizer")
    file = folder / "text_encoder" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_bytes()), "vocab_size": 300}))
    with pytest.raises(SourceError, match=r"tokenizer: gives token \d+, and text_encoder knows those below 300; "):
        open_pipeline(folder).latents(made.ask(steps=1))
