"""What tests of pipelines share: the little pipeline, open, and pictures to start from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fixtures.little_pipeline import little_pipeline


@pytest.fixture(scope="session")
def settings(one_torch_thread):
    """Return settings for sessions that leave the other cores to the other processes of the suite."""
    from olivelike.runtime import SessionSettings

    return replace(SessionSettings(), intra_threads=1)


@pytest.fixture(scope="session")
def little_folder(one_torch_thread):
    """Return the optimised folder of the little pipeline; not to be changed."""
    return little_pipeline()


@pytest.fixture(scope="session")
def pipeline(little_folder, settings):
    """Return the little pipeline, open."""
    from olivelike.runtime import open_pipeline

    return open_pipeline(little_folder, settings)


@pytest.fixture(scope="session")
def picture():
    """Return a colourful picture of 32 pixels a side."""
    import numpy as np
    from PIL import Image

    few = np.random.default_rng(0).integers(0, 255, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(few).resize((32, 32))


@pytest.fixture(scope="session")
def mask():
    """Return a mask of the same size, with a white rectangle."""
    from PIL import Image

    mask = Image.new("L", (32, 32), 0)
    mask.paste(255, (8, 10, 25, 30))
    return mask


@pytest.fixture(scope="session")
def image():
    """Return a picture of 8 pixels a side."""
    import numpy as np
    from PIL import Image

    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8))
