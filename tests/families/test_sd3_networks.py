"""The denoiser of each form of Stable Diffusion 3 as a graph: torch's own numbers at any size, length and batch."""

from __future__ import annotations

import pytest

from olivelike.errors import SourceError
from olivelike.families.supported import check_network
from olivelike.measure.network_sizes import Case
from olivelike.model import Architecture
from olivelike.testing import compare_with_torch
from olivelike.testing.models import load_model, random_model, traced_graph
from tests.fixtures.little_transformers import little_transformer

CASES = (Case(1, 4, 4, 1), Case(3, 6, 10, 333), Case(1, 48, 16, 50), Case(2, 24, 8, 9), Case(1, 32, 40, 154))
"""None of them was traced."""
FORMS = {
    "3 medium": {"qk_norm": None, "dual_attention_layers": []},
    "3.5 medium": {"qk_norm": "rms_norm", "dual_attention_layers": [0, 1]},
    "3.5 large": {"qk_norm": "rms_norm", "dual_attention_layers": []},
}
"""Release of https://huggingface.co/stabilityai → what its transformer has otherwise than the others."""


@pytest.mark.parametrize("form", FORMS)
def test_the_denoiser_of_each_release_agrees_with_torch_at_other_sizes(form):
    little = load_model(little_transformer("sd3"), "transformer").architecture
    architecture = Architecture(little.component, little.library, little.class_name, {**little.config, **FORMS[form]})
    model = random_model(architecture)
    assert "pos_embed.pos_embed" in model.weights
    compare_with_torch(model.replace(graph=traced_graph(architecture)), cases=CASES).require(1e-5)


@pytest.mark.parametrize("component", ["text_encoder", "text_encoder_3"])
def test_its_text_encoders_agree_with_torch_at_other_lengths(component):
    model = load_model(little_transformer("sd3"), component)
    cases = [Case(case.batch, 1, 1, min(case.sequence, 77)) for case in CASES] if component == "text_encoder" else CASES
    compare_with_torch(model.replace(graph=traced_graph(model.architecture)), cases=cases).require(1e-5)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"pos_embed_max_size": None}, "its file holds no table of positions"),
        ({"pos_embed_max_size": 1 << 20}, "which are too many patches"),
        ({"in_channels": 32}, "it takes more than latents"),
    ],
    ids=str,
)
def test_denoisers_that_take_something_else_are_refused(config, said):
    with pytest.raises(SourceError, match=said):
        check_network("transformer", "SD3Transformer2DModel", config)
