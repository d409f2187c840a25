"""The grammar of the data set's captions."""

from __future__ import annotations

import re

import numpy as np

from tools.train_demo.captions.captions import (  # fmt: skip
    WORDS,
    partial_caption,
    random_caption,
    read_caption,
    whole_caption,
)
from tools.train_demo.captions.scenes import Scene, random_scene


def test_the_plainest_caption_names_shape_and_both_colours() -> None:
    assert whole_caption(Scene("circle", "red", "blue")) == "a red circle on a blue background"


def test_captions_say_what_the_scene_shows_in_every_form() -> None:
    rng = np.random.default_rng(0)
    captions = set()
    for _ in range(400):
        scene = random_scene(rng)
        caption = random_caption(scene, rng)
        captions.add(re.sub(f"{scene.color}|{scene.background}|{scene.shape}", "_", caption))
        mention = read_caption(caption)
        assert (mention.shape, mention.color, mention.background) == (
            scene.shape, scene.color, scene.background,
        )  # fmt: skip
        assert mention.size in {None, scene.size}
        assert mention.position in {None, scene.position}
    assert len(captions) > 50


def test_training_captions_leave_parts_out_but_say_nothing_untrue() -> None:
    rng = np.random.default_rng(1)
    left_out = {"shape": 0, "color": 0, "background": 0}
    for _ in range(400):
        scene = random_scene(rng)
        caption = partial_caption(scene, rng)
        mention = read_caption(caption)
        assert caption == caption.strip()
        assert "  " not in caption
        for part in left_out:
            assert getattr(mention, part) in {None, getattr(scene, part)}, caption
            left_out[part] += getattr(mention, part) is None
    assert all(20 < count < 140 for count in left_out.values())


def test_every_word_of_a_caption_is_in_the_list_that_becomes_tokens() -> None:
    rng = np.random.default_rng(2)
    used = {word for _ in range(300) for word in re.findall(r"\w+", partial_caption(random_scene(rng), rng))}
    assert used <= set(WORDS)
