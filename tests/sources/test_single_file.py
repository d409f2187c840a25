"""A checkpoint in one file is the same pipeline as its diffusers folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from stored_values import adapted, renamed, values

from olivelike.engine.output.assets import normalise_assets
from olivelike.errors import SourceError
from olivelike.families import FAMILIES
from olivelike.families.networks.unet import LdmNames
from olivelike.sources import Adaptation, SourceSpec, StoredView, open_source
from olivelike.sources.identify.identity import Part
from olivelike.sources.identify.published import derive_config
from olivelike.sources.names.adapt import adapt
from olivelike.testing.checkpoints import make_checkpoint, write_safetensors
from olivelike.testing.single_file_writer import make_single_file
from tests.fixtures.pickle_tables import read_pickle_here

THREE_LEVELS = {
    "down_block_types": ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
}


def test_folder_and_file_have_one_architecture_and_the_same_value_in_every_parameter(both_forms) -> None:
    folder = open_source(SourceSpec(path=both_forms.folder), both_forms.components)
    file = open_source(both_forms.spec, both_forms.components)
    for component in both_forms.components:
        first, second = folder.checkpoint(component), file.checkpoint(component)
        assert adapted(first).architecture == adapted(second).architecture
        expected, found = values(first), values(second)
        assert expected.keys() == found.keys()
        assert all(np.array_equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize(
    "family",
    [
        "sd15", "sdxl",  # Whose two tokenizers are those of all.
        *(pytest.param(one, marks=pytest.mark.slow)
          for one in ("sd15_inpainting", "sd21", "sd21_base", "sdxl_refiner")),
    ],
)  # fmt: skip
def test_folder_and_file_have_the_same_files_beside_the_networks(both_forms_of, family) -> None:
    both_forms = both_forms_of(family)
    folder, file = open_source(SourceSpec(path=both_forms.folder), []), open_source(both_forms.spec, [])
    assert normalise_assets(folder.index, folder.extras) == normalise_assets(file.index, file.extras)
    kept = {name: entry for name, entry in file.index.items() if name != "requires_safety_checker"}
    assert kept == {name: entry for name, entry in folder.index.items() if name != "_diffusers_version"}


@pytest.mark.parametrize(
    "family",
    [
        "sd15", "sd21", "sdxl", pytest.param("sdxl_refiner", marks=pytest.mark.slow),
        # As large as another one: where they differ, the small ones above do.
        pytest.param("sd15_inpainting", marks=pytest.mark.slow), pytest.param("sd21_base", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_full_size_files_have_the_published_architectures(both_forms_of, family, tmp_path) -> None:
    both_forms = both_forms_of(family)
    folder = make_checkpoint(tmp_path / "a", both_forms.family, size="full", dtype="F16", hollow=True)
    path = make_single_file(folder, tmp_path / "a.safetensors", hollow=True)
    file = open_source(SourceSpec(path=path, prediction=both_forms.prediction), both_forms.components)
    published = open_source(SourceSpec(path=folder), both_forms.components)
    for component in ("unet", "vae_decoder", *(c for c in both_forms.components if "text" in c)):
        ours, theirs = (adapted(source.checkpoint(component)) for source in (file, published))
        assert ours.architecture == theirs.architecture
        assert ours.names.keys() == theirs.names.keys()


@pytest.mark.parametrize("family", ["sd15", "sdxl", "sdxl_refiner"])
def test_parameters_are_those_that_diffusers_itself_loads_from_the_file(both_forms_of, family) -> None:
    import diffusers

    forms = both_forms_of(family)
    index = json.loads((forms.folder / "model_index.json").read_text())
    pipeline = getattr(diffusers, index["_class_name"]).from_single_file(
        str(forms.file), config=str(forms.folder), local_files_only=True
    )
    source = open_source(forms.spec, forms.components)
    for component in forms.components:
        if (family, component) == ("sdxl", "text_encoder_2"):
            continue  # diffusers tells the two by width, which is one here; the refiner has this one alone
        network = getattr(pipeline, "vae" if component.startswith("vae") else component)
        expected = network.state_dict()
        found = values(source.checkpoint(component))
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[name], torch.from_numpy(found[name].copy())) for name in expected)


def test_networks_loaded_from_the_file_give_the_outputs_of_the_folders(both_forms_of) -> None:
    from diffusers import UNet2DConditionModel
    from transformers import CLIPTextModelWithProjection

    forms = both_forms_of("sdxl")
    source = open_source(forms.spec, ["unet", "text_encoder_2"])
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 49406, (2, 77), generator=generator)
    latent = torch.randn(2, 4, 8, 16, generator=generator)
    text = torch.randn(2, 77, 128, generator=generator)
    added = {"text_embeds": torch.randn(2, 64, generator=generator), "time_ids": torch.ones(2, 6)}
    calls = {
        "text_encoder_2": (CLIPTextModelWithProjection, lambda n: n(ids).text_embeds),
        "unet": (UNet2DConditionModel, lambda n: n(latent, 7, text, added_cond_kwargs=added).sample),
    }
    for component, (network_class, call) in calls.items():
        theirs = network_class.from_pretrained(forms.folder / component).eval()
        ours = network_class.from_pretrained(forms.folder / component).eval()
        for parameter in ours.parameters():
            torch.nn.init.zeros_(parameter)
        found = values(source.checkpoint(component))
        ours.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in found.items()})
        with torch.no_grad():
            assert torch.equal(call(ours), call(theirs))


def test_half_precision_and_file_name_change_no_layout(both_forms_of, tmp_path) -> None:
    forms = both_forms_of("sdxl")
    other = make_checkpoint(tmp_path / "other", "sdxl", seed=1)
    half = make_single_file(other, tmp_path / "sd_v1-5_inpainting_vae.ckpt", dtype="BF16")
    first, second = (open_source(SourceSpec(path=p), forms.components) for p in (forms.file, half))
    for component in forms.components:
        assert first.checkpoint(component).layout_digest == second.checkpoint(component).layout_digest


def test_original_names_are_another_layout_than_the_same_names_without_a_converter(both_forms_of) -> None:
    from dataclasses import replace

    found = open_source(both_forms_of("sd15").spec, ["unet"]).checkpoint("unet")
    assert replace(found, original=None).layout_digest != found.layout_digest


def test_a_pickled_checkpoint_is_the_same_as_the_safetensors_one(both_forms_of, tmp_path) -> None:
    forms = both_forms_of("sdxl")
    path = make_single_file(forms.folder, tmp_path / "model.ckpt", pickled=True)
    with pytest.raises(SourceError, match=r"model\.ckpt: this is a pickled file.*--allow-pickle"):
        open_source(SourceSpec(path=path), ["unet"])
    safe = open_source(forms.spec, forms.components)
    pickled = open_source(SourceSpec(path=path), forms.components, allow_pickle=True, read_pickle=read_pickle_here)
    for component in forms.components:
        first, second = safe.checkpoint(component), pickled.checkpoint(component)
        assert first.layout_digest == second.layout_digest
        expected, found = values(first), values(second)
        assert all(np.array_equal(expected[name], found[name]) for name in expected)


def test_sd1_text_encoders_without_the_level_text_model_are_read(both_forms_of, tmp_path) -> None:
    forms = both_forms_of("sd15")
    path = renamed(forms.file, tmp_path / "early.safetensors", ".text_model.", ".")
    expected, found = (
        values(open_source(SourceSpec(path=p), ["text_encoder"]).checkpoint("text_encoder")) for p in (forms.file, path)
    )
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("prefix", ["", "diffusion_model."])
def test_a_unet_alone_opens_as_such_and_lacks_the_rest(both_forms_of, tmp_path, prefix) -> None:
    forms = both_forms_of("sd21")
    path = make_single_file(forms.folder, tmp_path / "unet.safetensors", components=["unet"], marks=["v_pred"])
    path = renamed(path, tmp_path / "renamed.safetensors", "model.diffusion_model.", prefix)
    whole = open_source(forms.spec, ["unet"]).checkpoint("unet")
    alone = open_source(SourceSpec(path=path), ["unet"]).checkpoint("unet")
    expected, found = values(whole), values(alone)
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    with pytest.raises(SourceError, match="has no text_encoder.*holds: unet.*get the whole checkpoint, or drop"):
        open_source(SourceSpec(path=path), ["text_encoder"])


@pytest.mark.parametrize(
    ("component", "message"),
    [
        ("safety_checker", r"has no safety_checker \(it holds: .*\); drop safety_checker from `components:`"),
        ("vae_decoder", r"has no vae_decoder .*add `vae:` with a VAE for Stable Diffusion 1\.x, or drop"),
    ],
)
def test_a_component_that_the_file_lacks_is_named_with_what_to_do(both_forms_of, tmp_path, component, message) -> None:
    folder = both_forms_of("sd15").folder
    path = make_single_file(folder, tmp_path / "a.safetensors", components=["unet", "text_encoder"])
    with pytest.raises(SourceError, match=message):
        open_source(SourceSpec(path=path), [component])


def test_a_prediction_told_by_the_user_wins_and_decides_config_and_scheduler(both_forms_of) -> None:
    forms = both_forms_of("sd21")
    plain = open_source(SourceSpec(path=forms.file), ["unet"])
    told = open_source(SourceSpec(path=forms.file, prediction="epsilon"), ["unet"])
    assert plain.origin.identified.prediction == "v_prediction"
    assert told.origin.identified.prediction == "epsilon"
    assert plain.checkpoint("unet").config["sample_size"] == 96
    assert told.checkpoint("unet").config["sample_size"] == 64
    assert [scheduler_of(s)["prediction_type"] for s in (plain, told)] == ["v_prediction", "epsilon"]


def scheduler_of(source):
    """Return the scheduler's config as an output folder gets it."""
    name = "scheduler/scheduler_config.json"
    return json.loads(normalise_assets(source.index, {name: source.extras[name]}, None, source.few_steps)[name])


def test_marks_of_v_prediction_and_zero_snr_reach_the_scheduler(both_forms_of, tmp_path) -> None:
    folder = both_forms_of("sdxl").folder
    path = make_single_file(folder, tmp_path / "v.safetensors", marks=["v_pred", "ztsnr"], hollow=True)
    source = open_source(SourceSpec(path=path), [])
    config = scheduler_of(source)
    assert (config["prediction_type"], config["rescale_betas_zero_snr"]) == ("v_prediction", True)
    assert config["timestep_spacing"] == "trailing"


def test_truncated_and_lying_files_are_refused(both_forms_of, tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    shutil.copy(both_forms_of("sd15").file, path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1000)
    with pytest.raises(SourceError, match=r"a\.safetensors: truncated"):
        open_source(SourceSpec(path=path), ["unet"])
    data = both_forms_of("sd15").file.read_bytes()
    path.write_bytes(data.replace(b'"dtype":"F32"', b'"dtype":"F16"', 1))
    with pytest.raises(SourceError, match="not a valid safetensors file"):
        open_source(SourceSpec(path=path), ["unet"])


def test_tensors_of_another_network_are_refused_in_the_worker(both_forms_of, tmp_path) -> None:
    forms = both_forms_of("sd15")
    gone = "model.diffusion_model.middle_block.0.in_layers.2.weight"
    path = renamed(forms.file, tmp_path / "a.safetensors", gone, "model.diffusion_model.other.weight")
    found = open_source(SourceSpec(path=path), ["unet"]).checkpoint("unet")
    with pytest.raises(SourceError, match=r"1 parameters of UNet2DConditionModel .*mid_block\.resnets\.0\.conv1"):
        adapted(found)


def test_a_unet_of_uneven_levels_is_refused(both_forms_of, tmp_path) -> None:
    forms = both_forms_of("sd15")
    path = renamed(forms.file, tmp_path / "a.safetensors", "output_blocks.7.", "output_blocks.9.")
    with pytest.raises(SourceError, match="unet: its structure can't be read.*10 output blocks"):
        open_source(SourceSpec(path=path), ["unet"])


def test_q_k_v_and_the_projection_are_views_that_survive_serialisation(both_forms_of) -> None:
    found = open_source(both_forms_of("sdxl").spec, ["text_encoder_2"]).checkpoint("text_encoder_2")
    adaptation = adapted(found)
    assert Adaptation.from_bytes(adaptation.to_bytes()) == adaptation
    layer = "conditioner.embedders.1.model.transformer.resblocks.1.attn.in_proj_"
    attention = "text_model.encoder.layers.1.self_attn."
    assert adaptation.names[f"{attention}v_proj.weight"] == StoredView(f"{layer}weight", (64, 64), 2 * 64 * 64)
    assert adaptation.names[f"{attention}k_proj.bias"] == StoredView(f"{layer}bias", (64,), 64)
    projection = adaptation.names["text_projection.weight"]
    assert projection == StoredView("conditioner.embedders.1.model.text_projection", (64, 64), transposed=True)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        # SSD-1B and Vega: depths that differ on the way out, a middle without attention.
        (
            "sdxl",
            {"transformer_layers_per_block": [1, 2, 3], "reverse_transformer_layers_per_block": [[3, 1], [2, 1], 1]},
        ),
        ("sdxl", {"mid_block_type": "UNetMidBlock2D", "transformer_layers_per_block": [1, 1, 2]}),
        # BK-SDM: fewer layers, no middle.
        ("sd15", {"mid_block_type": None}),
        ("sd15", {"block_out_channels": [32, 64, 96], "layers_per_block": 2, **THREE_LEVELS}),
        ("sd21", {"out_channels": 8, "layers_per_block": 3}),
    ],
)
def test_distilled_unets_keep_their_structure(both_forms_of, tmp_path, family, changes) -> None:
    from diffusers import UNet2DConditionModel

    forms = both_forms_of(family)
    config = json.loads((forms.folder / "unet/config.json").read_text()) | changes
    with torch.device("meta"):
        network = UNet2DConditionModel.from_config(config)
    shapes = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    original = LdmNames(shapes)
    table = {f"model.diffusion_model.{original(name)}": ("F16", shape) for name, shape in shapes.items()}
    path = tmp_path / "a.safetensors"
    write_safetensors(path, table, None)
    found = adapted(open_source(SourceSpec(path=path), ["unet"]).checkpoint("unet"))
    assert {name: view.shape for name, view in found.names.items()} == shapes
    with torch.device("meta"):
        again = UNet2DConditionModel.from_config(found.architecture.config)
    assert {name: tuple(value.shape) for name, value in again.state_dict().items()} == shapes
    assert not found.unused


def test_widths_that_no_head_fits_are_refused(both_forms_of) -> None:
    forms = both_forms_of("sd21")
    found = open_source(forms.spec, ["unet"]).checkpoint("unet")
    shapes = {name: tuple(96 if size == 128 else size for size in shape) for name, shape in found.shapes.items()}
    with pytest.raises(SourceError, match="96 channels, no multiple of 64"):
        derive_config(FAMILIES["sd2"], Part("unet", "unet", "model.diffusion_model."), shapes, "epsilon")


def test_a_prediction_told_for_a_folder_is_refused(both_forms_of) -> None:
    spec = SourceSpec(path=both_forms_of("sd15").folder, prediction="epsilon")
    with pytest.raises(SourceError, match=r"for a single file only; a folder says it in scheduler"):
        open_source(spec, ["unet"])


def test_an_object_in_a_pickled_checkpoint_is_refused_and_does_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {"w": torch.ones(2), "x": Bomb()}}, "a.ckpt")
    with pytest.raises(SourceError, match=r"a\.ckpt: can't be loaded as plain tensors"):
        open_source(SourceSpec(path=tmp_path / "a.ckpt"), ["unet"], allow_pickle=True, read_pickle=read_pickle_here)
    assert not (tmp_path / "exploded").exists()


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("exploded"),)


def test_a_wrong_shape_names_the_tensor_and_the_family(both_forms_of) -> None:
    found = open_source(both_forms_of("sd15").spec, ["unet"]).checkpoint("unet")
    shapes = {**found.shapes, "model.diffusion_model.out.2.bias": (5,)}
    with pytest.raises(SourceError, match=r"the family's config does not match .*conv_out\.bias: .*the file \[5\]"):
        adapt("unet", found.library, found.class_name, found.config, shapes, original="unet")


def test_an_lcm_in_one_file_is_known_by_its_structure(tmp_path) -> None:
    folder = make_checkpoint(tmp_path / "lcm", "sd15", size="small")
    config = json.loads((folder / "unet" / "config.json").read_bytes())
    (folder / "unet" / "config.json").write_text(json.dumps({**config, "time_cond_proj_dim": 256}))
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    extra = np.full((config["block_out_channels"][0], 256), 0.5, np.float32)
    save_file({**load_file(weights), "time_embedding.cond_proj.weight": extra}, weights)
    file = open_source(SourceSpec(path=make_single_file(folder, tmp_path / "painter.safetensors")), ["unet"])
    whole = open_source(SourceSpec(path=folder), ["unet"])
    expected, found = (values(source.checkpoint("unet")) for source in (whole, file))
    assert adapted(file.checkpoint("unet")).architecture == adapted(whole.checkpoint("unet")).architecture
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    assert file.few_steps is not None
    assert str(file.few_steps) == "LCM (its UNet takes the guidance as an input)"
    scheduler = json.loads(
        normalise_assets(file.index, file.extras, None, file.few_steps)["scheduler/scheduler_config.json"]
    )
    assert (scheduler["_class_name"], scheduler["beta_start"]) == ("LCMScheduler", 0.00085)


@pytest.mark.parametrize(
    ("family", "name", "told", "prediction", "scheduler"),
    [
        ("sd21_base", "sd_turbo", None, "epsilon", "EulerAncestralDiscreteScheduler"),
        ("sdxl", "sdxl_lightning_1step_x0", None, "sample", "EulerDiscreteScheduler"),
        ("sdxl", "one_step", "sample", "sample", "EulerDiscreteScheduler"),
        ("sdxl", "painter", None, "epsilon", None),
    ],
)
def test_a_distilled_file_gets_the_scheduler_that_it_wants(
    tmp_path, both_forms_of, family, name, told, prediction, scheduler
) -> None:
    path = tmp_path / f"{name}.safetensors"
    path.hardlink_to(both_forms_of(family).file)
    source = open_source(SourceSpec(path=path, prediction=told), [])
    assert source.origin.identified is not None
    assert source.origin.identified.prediction == prediction
    assert (source.few_steps and source.few_steps.recipe.class_name) == scheduler
    config = scheduler_of(source)
    assert config["prediction_type"] == prediction
    assert config["timestep_spacing"] == ("trailing" if scheduler else "leading")


def test_a_file_trained_as_edm_gets_its_scheduler_and_the_statistics_of_its_latents(tmp_path, both_forms_of) -> None:
    path = Path(shutil.copy(both_forms_of("sdxl").file, tmp_path / "playground.safetensors"))
    mean, std = np.array([-1.5, 1.75, -1.25, 2.5], np.float32), np.array([8.5, 5.75, 6.5, 5.25], np.float32)
    save_file({**load_file(path), "edm_mean": mean.reshape(1, 4, 1, 1), "edm_std": std.astype(np.float16)}, path)
    source = open_source(SourceSpec(path=path), ["vae_decoder"])
    config = source.checkpoint("vae_decoder").config
    assert (config["latents_mean"], config["latents_std"]) == (mean.tolist(), std.tolist())
    assert config["scaling_factor"] == 0.5
    scheduler = scheduler_of(source)
    assert (scheduler["_class_name"], scheduler["sigma_data"]) == ("EDMDPMSolverMultistepScheduler", 0.5)
    save_file({**load_file(path), "edm_std": std[:3]}, path)
    with pytest.raises(SourceError, match="edm_std should be 4 numbers"):
        open_source(SourceSpec(path=path), ["vae_decoder"])


@pytest.mark.parametrize(
    "prefix",
    [
        "cond_stage_model.clip_l.",
        "cond_stage_model.clip_l.transformer.",
        "text_encoders.clip_l.transformer.",
        "clip_l.",
    ],
)
def test_a_text_encoder_is_found_behind_each_prefix(prefix, both_forms_of, tmp_path) -> None:
    forms = both_forms_of("sd15")
    path = renamed(forms.file, tmp_path / "a.safetensors", "cond_stage_model.transformer.", prefix)
    source = open_source(SourceSpec(path=path), ["text_encoder", "unet"])
    assert source.left_out == ()
    expected = values(open_source(SourceSpec(path=forms.folder), ["text_encoder"]).checkpoint("text_encoder"))
    found = values(source.checkpoint("text_encoder"))
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)


def test_tensors_of_no_known_part_are_counted_and_named(both_forms_of, tmp_path) -> None:
    forms = both_forms_of("sd15")
    path = renamed(forms.file, tmp_path / "a.safetensors", "cond_stage_model.transformer.", "a.program's.")
    tensors = load_file(path)
    lost = sorted(name for name in tensors if name.startswith("a.program's."))
    # Neither the mark of an embedding nor that of a LoRA makes another file of a whole checkpoint.
    strays = {"emb_params": np.zeros((1, 4), "f4"), "lora_unet_x.lora_down.weight": np.zeros((1, 4), "f4")}
    leftovers = {"betas": np.zeros(4, "f4"), "model_ema.decay": np.zeros(1, "f4"), "v_pred": np.zeros(0, "f4")}
    save_file({**tensors, **strays, **leftovers}, path)
    source = open_source(SourceSpec(path=path), ["unet"])
    (told,) = source.left_out
    assert f"{len(lost) + 2} tensors belong to no part that is known" in told
    assert lost[0] in told


@pytest.mark.parametrize("family", ["sd15", "sd21", "sdxl", "sdxl_refiner"])
def test_a_whole_checkpoint_leaves_nothing_out(family, both_forms_of) -> None:
    assert open_source(both_forms_of(family).spec, ["unet"]).left_out == ()
