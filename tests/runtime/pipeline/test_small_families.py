"""Small checkpoints of each published family are drawn as diffusers' own pipelines draw them."""

from __future__ import annotations

import numpy as np
import pytest
from torch_pipelines import psnr

from olivelike.runtime import Request, open_pipeline

PIPELINES = {
    "sd15": "StableDiffusionPipeline", "sd21": "StableDiffusionPipeline", "sdxl": "StableDiffusionXLPipeline",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", PIPELINES)
def test_a_small_checkpoint_is_drawn_as_diffusers_draws_it(family, settings, tmp_path):
    import diffusers
    import torch

    from olivelike.engine.convert_request import ConvertRequest, draft
    from olivelike.engine.prepared import Options
    from olivelike.engine.run import run
    from olivelike.testing import make_checkpoint

    checkpoint = make_checkpoint(tmp_path / "checkpoint", family, size="small")
    request = ConvertRequest(str(checkpoint), "cpu", tmp_path / "optimised")
    place, options = draft(request, Options(cache_dir=tmp_path / "cache"))
    run(place, options)
    original = getattr(diffusers, PIPELINES[family]).from_pretrained(checkpoint)
    original.set_progress_bar_config(disable=True)
    asked = {"prompt": "a red circle", "num_inference_steps": 4, "guidance_scale": 7.5, "height": 128, "width": 128}
    (theirs,) = original(**asked, generator=torch.Generator().manual_seed(5)).images
    request = Request(prompts=("a red circle",), steps=4, guidance_scale=7.5, size=(128, 128), seed=5)
    (ours,) = open_pipeline(tmp_path / "optimised", settings).generate(request).pictures
    assert np.asarray(theirs).std() > 5
    assert psnr(ours.image, theirs) >= 50
