"""Z-Image at tiny size, in what it has of its own beside other transformers."""

from __future__ import annotations

import json
import shutil

import pytest
from drawn_transformers import LEAST, assert_alike
from torch_pipelines import psnr

from olivelike.errors import SourceError
from olivelike.runtime import open_pipeline

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
