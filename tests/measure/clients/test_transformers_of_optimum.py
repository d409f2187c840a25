"""Stable Diffusion 3 and FLUX.1 as optimum's pipelines load and paint them, beside torch's own."""

from __future__ import annotations

import diffusers
import numpy as np
import pytest
import torch

from olivelike.engine.convert_request import ConvertRequest, draft
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from tests.fixtures.inline_executor import InlineExecutor
from tests.fixtures.little_transformers import little_transformer
from tests.measure.clients.optimum_pictures import paint_with_optimum

pytestmark = pytest.mark.slow

ASKED = {"prompt": "a red circle", "height": 32, "width": 40, "num_inference_steps": 4}
NO_T5 = {"text_encoder_3": None, "tokenizer_3": None}
LEAST = 40.0
"""PSNR in dB; the two sides have versions of diffusers of their own."""


@pytest.mark.parametrize(
    ("name", "family", "variant", "absent", "asked"),
    [
        ("Flux", "flux", "", {}, {"guidance_scale": 0.0, "max_sequence_length": 256}),
        ("Flux", "flux", "dev", {}, {"guidance_scale": 3.5}),
        ("StableDiffusion3", "sd3", "", {}, {"guidance_scale": 5.0, "negative_prompt": "a dog"}),
        ("StableDiffusion3", "sd3", "without T5", NO_T5, {"guidance_scale": 5.0}),
    ],
    ids=["schnell", "dev", "with T5", "without T5"],
)
def test_optimum_paints_what_torch_paints_from_a_seed(optimum_python, tmp_path, name, family, variant, absent, asked):
    source = little_transformer(family, variant)
    place, options = draft(
        ConvertRequest(str(source), "cpu", tmp_path / "optimum", layout="optimum"),
        Options(cache_dir=tmp_path / "cache"),
    )
    run(place, options, executor=InlineExecutor)
    painted, told, _ = paint_with_optimum(
        optimum_python, tmp_path / "optimum", f"ORT{name}Pipeline", 5, {**ASKED, **asked}
    )
    assert told["class"] == f"ORT{name}Pipeline"
    pipeline = getattr(diffusers, f"{name}Pipeline").from_pretrained(source, **absent)
    pipeline.set_progress_bar_config(disable=True)
    wanted = pipeline(**ASKED, **asked, generator=torch.Generator().manual_seed(5), output_type="np").images[0]
    assert wanted.std() > 0.1
    assert -10 * np.log10(np.square(painted - wanted).mean()) >= LEAST
