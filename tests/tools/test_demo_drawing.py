"""Pictures of the data set, and the rule that reads them."""

from __future__ import annotations

import numpy as np
import pytest

from tools.train_demo.captions.caption_reading import Reading, read_picture
from tools.train_demo.captions.drawing import draw_scene, draw_scenes, shape_coverage
from tools.train_demo.captions.scenes import COLORS, SHAPES, Scene, random_scene


def test_a_seed_gives_the_same_pictures_again() -> None:
    def drawn(seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        return draw_scenes([random_scene(rng) for _ in range(4)], rng)

    assert drawn(3).shape == (4, 64, 64, 3)
    assert drawn(3).dtype == np.uint8
    np.testing.assert_array_equal(drawn(3), drawn(3))
    assert (drawn(3) != drawn(4)).any()


@pytest.mark.parametrize("shape", SHAPES)
def test_edges_are_smooth_and_the_shape_is_where_it_should_be(shape: str) -> None:
    coverage = shape_coverage(shape, 30.0, 34.0, 15.0)
    assert coverage.min() == 0
    assert coverage.max() == 1
    assert ((coverage > 0) & (coverage < 1)).any()
    rows, columns = np.nonzero(coverage > 0.5)
    assert abs((rows.min() + rows.max() + 1) / 2 - 34) < 1.5
    assert abs((columns.min() + columns.max() + 1) / 2 - 30) < 1.5


@pytest.mark.parametrize("noise", [0.0, 12.0])
def test_the_rule_reads_drawn_pictures_right_noisy_ones_too(noise: float) -> None:
    rng = np.random.default_rng(11)
    scenes = [random_scene(rng) for _ in range(300)]
    wrong = 0
    for scene in scenes:
        picture = draw_scene(scene, rng) + noise * rng.standard_normal((64, 64, 3))
        reading = read_picture(np.clip(picture, 0, 255).astype(np.uint8))
        assert (reading.shape, reading.color, reading.background) == (
            scene.shape, scene.color, scene.background,
        )  # fmt: skip
        wrong += (reading.size, reading.position) != (scene.size, scene.position)
    assert wrong <= 3


def test_a_plain_picture_shows_a_background_alone() -> None:
    plain = np.full((64, 64, 3), COLORS["green"], np.uint8)
    assert read_picture(plain) == Reading("green")


def test_what_is_no_shape_is_not_called_one() -> None:
    rng = np.random.default_rng(0)
    picture = draw_scene(Scene("circle", "red", "blue", "large"), rng)
    picture[::4] = COLORS["blue"]
    picture[:, ::3] = COLORS["blue"]
    assert read_picture(picture).shape is None
