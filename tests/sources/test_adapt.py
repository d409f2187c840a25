from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL, AutoencoderKLFlux2, UNet2DConditionModel
from diffusers.pipelines.stable_diffusion.safety_checker import StableDiffusionSafetyChecker
from transformers import CLIPTextModel

from olivelike.digest import digest_file
from olivelike.errors import SourceError
from olivelike.families.network import Stored
from olivelike.sources import Adaptation, Checkpoint, SourceSpec, StoredView, bind, open_source
from olivelike.sources.names import adapt as names
from olivelike.sources.names.adapt import adapt
from olivelike.sources.names.loading import load_diffusers

if TYPE_CHECKING:
    from pathlib import Path

    from olivelike.model import Weights

COMPONENTS = ("text_encoder", "unet", "vae_encoder", "vae_decoder", "safety_checker")
LOADERS = {
    "text_encoder": (CLIPTextModel, "text_encoder"),
    "unet": (UNet2DConditionModel, "unet"),
    "vae_encoder": (AutoencoderKL, "vae"),
    "vae_decoder": (AutoencoderKL, "vae"),
    "safety_checker": (StableDiffusionSafetyChecker, "safety_checker"),
}


def checkpoint(folder: Path, component: str, variant: str | None = None) -> Checkpoint:
    return open_source(SourceSpec(path=folder, variant=variant), [component]).checkpoint(component)


def adapted(found: Checkpoint) -> Adaptation:
    return adapt(found.component, found.library, found.class_name, found.config, found.shapes)


def bound(found: Checkpoint) -> tuple[Weights, dict[str, Path]]:
    digests = {path: digest_file(path) for path in found.files}
    return bind(adapted(found), found, digests), {digest: path for path, digest in digests.items()}


@pytest.mark.parametrize("component", COMPONENTS)
def test_hub_and_saved_layout_have_one_architecture_and_one_parameter_table(
    component: str, saved_checkpoint: Path, hub_checkpoint: Path
) -> None:
    first, second = (adapted(checkpoint(folder, component)) for folder in (saved_checkpoint, hub_checkpoint))
    assert first.architecture == second.architecture
    assert [(name, view.shape) for name, view in first.names.items()] == [
        (name, view.shape) for name, view in second.names.items()
    ]


@pytest.mark.parametrize("layout", ["saved", "hub"])
@pytest.mark.parametrize("component", COMPONENTS)
def test_the_bound_bytes_are_the_parameters_that_the_library_loads(
    component: str, layout: str, saved_checkpoint: Path, hub_checkpoint: Path
) -> None:
    folder = saved_checkpoint if layout == "saved" else hub_checkpoint
    weights, files = bound(checkpoint(folder, component))
    network_class, name = LOADERS[component]
    parameters = network_class.from_pretrained(folder / name).state_dict()
    assert set(weights) == set(parameters)
    contents = {digest: path.read_bytes() for digest, path in files.items()}
    for name, tensor in weights.items():
        values = np.frombuffer(contents[tensor.file], "<f4", parameters[name].numel(), tensor.offset)
        assert torch.equal(torch.tensor(values).reshape(tensor.shape), parameters[name])


def test_stored_tensors_that_are_no_parameters_are_listed_as_unused(hub_checkpoint: Path) -> None:
    assert adapted(checkpoint(hub_checkpoint, "text_encoder")).unused == ("text_model.embeddings.position_ids",)
    assert adapted(checkpoint(hub_checkpoint, "unet")).unused == ()


def test_a_variant_keeps_the_adaptation_and_changes_dtypes(hub_checkpoint: Path) -> None:
    plain, half = (checkpoint(hub_checkpoint, "vae_decoder", variant) for variant in (None, "fp16"))
    assert adapted(plain) == adapted(half)
    assert {tensor.dtype for tensor in bound(half)[0].values()} == {"F16"}


def test_an_adaptation_survives_serialisation(saved_checkpoint: Path) -> None:
    first = adapted(checkpoint(saved_checkpoint, "safety_checker"))
    assert Adaptation.from_bytes(first.to_bytes()) == first
    assert Adaptation.from_bytes(first.to_bytes()).to_bytes() == first.to_bytes()
    with pytest.raises(ValueError, match="adaptation/2"):
        Adaptation.from_bytes(json.dumps(["other/1", "", {}, []]).encode())


@pytest.mark.parametrize("computed", [False, True])
def test_copies_and_rows_that_a_converter_swaps_are_views(monkeypatch, computed) -> None:
    def convert(config, tensors):
        shift, scale = tensors["both"].chunk(2)
        more = {"doubled": torch.cat([scale, scale])} if computed else {}
        return {"copy": torch.cat([scale]), "swapped": torch.cat([scale, shift]), **more}

    monkeypatch.setattr(names, "STORED", {"own": Stored(name="own", to_library=convert)})
    if computed:
        with pytest.raises(SourceError, match="computes doubled from the stored tensors"):
            names.convert_names("unet", "own", {}, {"both": (6, 4)})
        return
    views = names.convert_names("unet", "own", {}, {"both": (6, 4)})
    assert views == {"copy": StoredView("both", (3, 4), 12), "swapped": StoredView("both", (6, 4), rolled=3)}
    known = Adaptation(None, views, ())
    assert Adaptation.from_bytes(known.to_bytes()) == known


def test_the_config_holds_defaults_and_no_bookkeeping(hub_checkpoint: Path) -> None:
    unet = adapted(checkpoint(hub_checkpoint, "unet")).architecture
    assert unet.config["use_linear_projection"] is False
    assert not any(key.startswith("_") for key in unet.config)
    assert "decay" not in unet.config
    text = adapted(checkpoint(hub_checkpoint, "text_encoder")).architecture
    assert text.config["eos_token_id"] == 2
    assert not {"dtype", "torch_dtype", "architectures", "transformers_version"} & text.config.keys()


def test_the_architecture_builds_the_same_network_again(hub_checkpoint: Path) -> None:
    found = adapted(checkpoint(hub_checkpoint, "safety_checker"))
    assert found.architecture.library == "transformers"
    config_class = StableDiffusionSafetyChecker.config_class
    unet_config = adapted(checkpoint(hub_checkpoint, "unet")).architecture.config
    with torch.device("meta"):
        rebuilt = StableDiffusionSafetyChecker(config_class.from_dict(found.architecture.config))
        unet = UNet2DConditionModel.from_config(unet_config)
    assert {name: tuple(value.shape) for name, value in rebuilt.state_dict().items()} == {
        name: view.shape for name, view in found.names.items()
    }
    assert len(unet.state_dict()) == 686


@pytest.mark.parametrize("component", ["unet", "text_encoder"])
def test_missing_parameters_are_counted_and_the_first_are_named(saved_checkpoint: Path, component: str) -> None:
    found = checkpoint(saved_checkpoint, component)
    gone = sorted(found.shapes)[:12]
    shapes = {name: shape for name, shape in found.shapes.items() if name not in gone}
    with pytest.raises(SourceError, match=f"{component}: 12 parameters .*{gone[0]}.*{gone[9]}; and 2 more"):
        adapt(component, found.library, found.class_name, found.config, shapes)


@pytest.mark.parametrize("component", ["unet", "text_encoder"])
def test_a_config_of_another_width_names_both_shapes(saved_checkpoint: Path, component: str) -> None:
    found = checkpoint(saved_checkpoint, component)
    other = {"unet": {"cross_attention_dim": 48}, "text_encoder": {"intermediate_size": 64}}[component]
    with pytest.raises(SourceError, match=r"does not match the weights in \d+ tensors: .* has \[.*\], the file \["):
        adapt(component, found.library, found.class_name, {**found.config, **other}, found.shapes)


def test_weights_of_another_network_are_refused_with_what_is_missing(saved_checkpoint: Path) -> None:
    found = checkpoint(saved_checkpoint, "text_encoder")
    with pytest.raises(SourceError, match="52 parameters of CLIPTextModel are not in the weight files"):
        adapt("text_encoder", found.library, found.class_name, found.config, {"other.weight": (3, 3)})


@pytest.mark.parametrize(
    ("library", "class_name", "message"),
    [
        ("diffusers", "UNetOfTomorrow", "the installed diffusers has no class UNetOfTomorrow"),
        ("my_custom_code", "Net", "diffusers.pipelines.my_custom_code has no class Net"),
        ("diffusers", "PNDMScheduler", "PNDMScheduler is not supported here; use a checkpoint with UNet2D"),
        ("diffusers", "UNet2DModel", "UNet2DModel is not supported here: it takes no text"),
    ],
)
def test_a_class_that_is_unknown_or_no_network_is_refused(library: str, class_name: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        adapt("unet", library, class_name, {}, {})


@pytest.mark.parametrize(
    ("component", "change"),
    [("unet", {"down_block_types": ["NoSuchBlock"] * 4}), ("text_encoder", {"hidden_size": 33})],
)
def test_a_config_that_the_class_refuses_is_reported(
    saved_checkpoint: Path, component: str, change: dict[str, object]
) -> None:
    found = checkpoint(saved_checkpoint, component)
    with pytest.raises(SourceError, match=r"refuses its config: .*; compare its config\.json with that of the network"):
        adapt(component, found.library, found.class_name, {**found.config, **change}, found.shapes)


@pytest.mark.parametrize("name", ["PNDMScheduler", "utils", "is_torch_available"])
def test_what_the_index_names_may_be_no_network_at_all(name: str) -> None:
    with pytest.raises(SourceError, match=f"prior: {name} is no network; drop prior"):
        adapt("prior", "diffusers", name, {}, {})


@pytest.mark.parametrize(
    "change", [{"attention_head_dim": 7}, {"norm_num_groups": 3}, {"sample_size": {}, "norm_num_groups": 0}]
)
def test_numbers_that_the_class_divides_by_are_no_bug_of_ours(
    saved_checkpoint: Path, change: dict[str, object]
) -> None:
    found = checkpoint(saved_checkpoint, "unet")
    with pytest.raises(SourceError, match="unet: "):
        adapt("unet", found.library, found.class_name, {**found.config, **change}, found.shapes)


def test_a_count_of_batches_is_no_parameter_and_need_not_be_in_a_file() -> None:
    """The makers' file of FLUX.2's VAE has the statistics of its batch norm, and no count of what made them."""
    levels = {"down_block_types": ("DownEncoderBlock2D",), "up_block_types": ("UpDecoderBlock2D",)}
    network = AutoencoderKLFlux2(block_out_channels=(4,), layers_per_block=1, norm_num_groups=2, **levels)
    shapes = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    count = "bn.num_batches_tracked"
    for stored in (shapes, {name: shape for name, shape in shapes.items() if name != count}):
        loading = load_diffusers(AutoencoderKLFlux2, network.config, stored, SourceError)
        assert (loading.missing, set(loading.names)) == (set(), shapes.keys() - {count})
