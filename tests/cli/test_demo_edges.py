"""The demo's ControlNet as it comes: converted, and leading `generate`."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tools.train_demo.captions.caption_reading import read_picture
from tools.train_demo.captions.drawing import draw_at
from tools.train_demo.captions.scenes import Scene

pytestmark = pytest.mark.slow
PLACES = ((22.0, 20.0, 14.0), (41.0, 40.0, 19.0))


def test_edges_of_a_circle_give_a_circle_there(tmp_path):
    pytest.importorskip("cv2")
    rng = np.random.default_rng(0)

    def olivelike(*words):
        command = [sys.executable, "-m", "olivelike", *map(str, words)]
        subprocess.run(command, check=True, cwd=tmp_path, env={**os.environ, "OLIVELIKE_CACHE_DIR": "cache"})

    olivelike("run", "demo_edges")
    for place in PLACES:
        drawn = draw_at(Scene("circle", "white", "black"), *place, rng)
        Image.fromarray(drawn).save(tmp_path / "drawn.png")
        olivelike(
            "generate", "models/demo_edges", "a red circle on a blue background", "--control", "drawn.png:canny",
            "--seed", 1, "-o", "led.png", "--overwrite",
        )  # fmt: skip
        shown = read_picture(np.asarray(Image.open(tmp_path / "led.png").convert("RGB")))
        assert (shown.shape, shown.color, shown.background) == ("circle", "red", "blue")
        assert shown.stands_like(read_picture(drawn)), shown
