"""Pictures on the disk, for tests of `olivelike generate`."""

from __future__ import annotations

import numpy as np
from PIL import Image


def save(path, size=(32, 32), mode="RGB", value=128):
    """Write a picture of one colour; return its path."""
    Image.new(mode, size, value if mode == "L" else (value, 40, 200)).save(path)
    return path


def pixels(path):
    """Return a picture as an array."""
    with Image.open(path) as image:
        return np.asarray(image)
