"""The tables of components and families say what is published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from olivelike.errors import SourceError
from olivelike.families import (
    COMPONENTS,
    FAMILIES,
    LORA_COMPONENTS,
    TEXT_TO_PICTURE,
    TOKENIZER_OF,
    blocks_for,
    family_of_folder,
    family_of_text_width,
)
from olivelike.families.family import Blocks
from olivelike.families.networks import classes_of
from olivelike.model.components import TAKEN_STATES, torch_folder
from olivelike.model.guides import GUIDE_COMPONENTS


def test_each_family_has_the_widths_and_factors_of_its_published_configs() -> None:
    rows = {
        name: (family.text_width, family.widths, family.latents.scaling, family.prediction)
        for name, family in FAMILIES.items()
    }
    # From config.json of stable-diffusion-v1-5, stable-diffusion-2-1, stable-diffusion-xl-base-1.0 and -refiner-1.0.
    assert rows == {
        "sd1": (768, (320, 640, 1280, 1280), 0.18215, "epsilon"),
        "sd2": (1024, (320, 640, 1280, 1280), 0.18215, "v_prediction"),
        "sdxl": (2048, (320, 640, 1280), 0.13025, "epsilon"),
        "sdxl_refiner": (1280, (384, 768, 1536, 1536), 0.13025, "epsilon"),
        # As diffusers' scripts/convert_sd3_to_diffusers.py writes it.
        "sd3": (4096, (), 1.5305, "epsilon"),
        # As its convert_flux_to_diffusers.py does.
        "flux": (4096, (), 0.3611, "epsilon"),
        # Qwen3-4B's hidden size; the VAE is FLUX.1's.
        "z_image": (2560, (), 0.3611, "epsilon"),
        # Three states of Qwen3-4B; the VAE's graph has its own statistics.
        "flux2": (7680, (), 1.0, "epsilon"),
        # Qwen2.5-VL-7B's hidden size; the VAE's config has a mean and a deviation of each channel.
        "qwen_image": (3584, (), 1.0, "epsilon"),
    }


def test_the_width_of_the_text_tells_the_family() -> None:
    told = {name: family_of_text_width(family.text_width) for name, family in FAMILIES.items()}
    assert told == {name: name if family.text_key else None for name, family in FAMILIES.items()}
    assert family_of_text_width(4096) is None


def test_each_family_has_its_text_encoders_and_one_folder_for_both_halves_of_the_vae() -> None:
    for name, family in FAMILIES.items():
        if family.published.networks is None:  # Its files in original names are not read.
            continue
        assert FAMILIES[name].published.configs.keys() == set(family.folders)
        for text in family.texts:
            config = text.marked(family.published.configs[text.component])
            width = config.get("hidden_size") or config["d_model"]
            assert width * len(config.get(TAKEN_STATES, (0,))) == text.width
    assert {torch_folder(name) for name in COMPONENTS} - FAMILIES["sdxl"].published.configs.keys() == {
        "safety_checker", "preview_decoder", "image_encoder", "transformer", "text_encoder_3", *GUIDE_COMPONENTS
    }  # fmt: skip


def test_roles_are_of_known_components() -> None:
    assert all(map(classes_of, COMPONENTS))
    assert {*LORA_COMPONENTS, *TEXT_TO_PICTURE, *TOKENIZER_OF} <= set(COMPONENTS)


def test_quantising_treats_the_blocks_of_all_families_apart(monkeypatch) -> None:
    own = blocks_for("weights8")
    assert own.fine[: len(FAMILIES["sd1"].blocks["weights8"].fine)] == FAMILIES["sd1"].blocks["weights8"].fine
    assert {"time_guidance_embed", "all_final_layer", "layers.*.self_attn.v_proj"} <= set(own.fine)
    assert {"layers.[0-5].mlp", "embed_tokens", "context_refiner"} <= set(own.paired) - set(own.fine)
    assert "embed_tokens" not in blocks_for("weights4").fine
    assert "layers.*.self_attn.o_proj" in set(blocks_for("weights4").fine) - set(own.fine)
    added = Blocks(("pool", "conv_in"), ("norm",), ("first",), ("last",), ("out",))
    other = replace(FAMILIES["sd1"], blocks={"weights8": added})
    monkeypatch.setitem(FAMILIES, "other", other)
    assert blocks_for("weights8") == Blocks(
        (*own.in_float, "pool"), (*own.fine, "norm"), (*own.paired, "first"), (*own.exact, "last"),
        (*own.exact_by_rows, "out"),
    )  # fmt: skip
    assert blocks_for("float16") == Blocks()


@pytest.mark.parametrize("place", ["index", "config"])
def test_an_index_of_another_pipeline_than_its_denoiser_is_told(place: str) -> None:
    made = FAMILIES["flux2"].denoiser_class
    entry = {"transformer": ["diffusers", made if place == "index" else "OnnxRuntimeModel"]}
    config = {"_class_name": made} if place == "config" else {}
    assert family_of_folder({"_class_name": "Flux2KleinPipeline", **entry}, (), config).name == "flux2"
    said = f"names FluxPipeline, whose transformer is a FluxTransformer2DModel, and here it is a {made}; get all parts"
    with pytest.raises(SourceError, match=said):
        family_of_folder({"_class_name": "FluxPipeline", **entry}, (), config)


@pytest.mark.parametrize(
    ("name", "back"), [("sd1", [0, 1, 2]), ("sd2", [0, 0, 1]), ("sdxl", [1, 1, 2]), ("sd3", [1, 1, 2])]
)
def test_clip_skip_counts_from_the_end_of_clip_as_it_was_trained_and_begins_at_the_models_own(name, back):
    for part in FAMILIES[name].texts:
        expected = back if part.kind == "clip" else [part.back] * 3
        assert [part.layers_back(layer) for layer in (1, 2, 3)] == expected
