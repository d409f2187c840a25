"""Guides beside a pipeline in every form; what is of another family, or of another kind, is refused by name."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from stored_values import values

from olivelike.errors import SourceError
from olivelike.model.guides import GUIDES
from olivelike.model.records.origin import Origin
from olivelike.sources import SourceSpec, available_components, open_source
from olivelike.sources.beside import Host, open_beside
from olivelike.sources.files.weight_table import read_weight_table
from olivelike.sources.identify.identify import identify
from olivelike.testing.checkpoints import make_checkpoint
from tests.fixtures.guide_files import make_controlnet, make_ip_adapter, make_t2i_adapter
from tests.fixtures.little_guides import beside
from tests.fixtures.little_pipeline import little_checkpoint
from tests.fixtures.pickle_tables import read_pickle_here

MAKE = {"controlnet": make_controlnet, "t2i_adapter": make_t2i_adapter}
ORIGINAL = {"controlnet": ("plain", "prefixed"), "t2i_adapter": (True,)}
"""Files in the names of the original code."""
WEIGHTS = "diffusion_pytorch_model.safetensors"


def opened(source, guide, *paths, others=None, **more):
    """Return a pipeline with guides of a kind, and others by theirs, and the checkpoints of its networks."""
    spec = beside(source, {guide: paths, **(others or {})})
    names = [*GUIDES[guide].components[: len(paths)]]
    assert available_components(spec, allow_pickle=True) >= {*names}
    source = open_source(spec, names, **more)
    return source, [source.checkpoint(name) for name in names]


def same(one, other):
    """Tell whether two checkpoints give the same values."""
    first, second = values(one), values(other)
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("guide", "kind", "more"),
    [
        ("controlnet", "sd15", {}), ("controlnet", "sdxl", {}),
        pytest.param("controlnet", "sd21", {}, marks=pytest.mark.slow), ("t2i_adapter", "attending", {}),
        ("t2i_adapter", "attending", {"light": True}), ("t2i_adapter", "attending", {"changes": {"in_channels": 1}}),
        ("t2i_adapter", "attending_xl", {}),
    ],
)  # fmt: skip
def test_folders_and_files_in_both_names_give_the_same_values(both_forms_of, tmp_path, guide, kind, more):
    forms = both_forms_of(kind) if guide == "controlnet" else None
    pipeline = forms.folder if forms else little_checkpoint(kind)
    folder = MAKE[guide](tmp_path / "edges", pipeline, **more)
    shutil.copytree(folder, tmp_path / "pipeline" / {"t2i_adapter": "adapter"}.get(guide, guide))
    files = [MAKE[guide](tmp_path / f"{form}.safetensors", pipeline, original=form, **more) for form in ORIGINAL[guide]]
    files.append(folder / WEIGHTS)
    source, (found,) = opened(pipeline, guide, folder)
    assert getattr(source.origin, GUIDES[guide].key) == {guide: Origin.local("folder", folder)}
    assert source.origin.leading_names == {guide: "edges"}
    assert len(values(found)) > 20
    told = {name: found.config[name] for name in ("in_channels", "adapter_type") if guide == "t2i_adapter"}
    for file in (*files, tmp_path / "pipeline"):
        for beside_it in (pipeline, forms.file) if forms and kind != "sd21" else (pipeline,):
            _, (again,) = opened(beside_it, guide, file)
            assert same(again, found)
            assert {name: again.config[name] for name in told} == told
    for file in files:
        identity = identify(read_weight_table(file, None).tensors)
        assert (identity.kind, identity.supported) == (guide, True)
        assert guide == "controlnet" or identity.naming == ("diffusers" if file.name == WEIGHTS else "original")


def test_several_have_names_of_their_own_or_those_of_their_components(tmp_path):
    pipeline = little_checkpoint("attending")
    nets = [make_controlnet(tmp_path / place / "edges", pipeline) for place in ("one", "two")]
    adapters = [make_t2i_adapter(tmp_path / name, pipeline) for name in ("edges", "sketch")]
    source, found = opened(pipeline, "controlnet", *nets, others={"t2i_adapter": adapters})
    assert source.origin.leading_names == {
        "controlnet": "controlnet", "controlnet_2": "controlnet_2", "t2i_adapter": "t2i_adapter",
        "t2i_adapter_2": "sketch",
    }  # fmt: skip
    assert [one.component for one in found] == ["controlnet", "controlnet_2"]
    published = source.origin.published()
    assert [one.path for one in (*published.controlnets.values(), *published.t2i_adapters.values())] == [None] * 4


def test_where_a_controlnets_file_attends_is_read_off_its_names(both_forms_of, tmp_path):
    forms = both_forms_of("sdxl")
    few = {"down_block_types": ["DownBlock2D", "DownBlock2D", "CrossAttnDownBlock2D"]}
    folder = make_controlnet(tmp_path / "mid", forms.folder, changes=few)
    _, (found,) = opened(forms.folder, "controlnet", folder / WEIGHTS)
    assert found.config["down_block_types"] == few["down_block_types"]
    assert len(values(found)) == len(values(opened(forms.folder, "controlnet", folder)[1][0]))
    shuffle = shutil.copy(folder / WEIGHTS, tmp_path / "control_shuffle.safetensors")
    assert opened(forms.folder, "controlnet", shuffle)[1][0].config["global_pool_conditions"] is True


def test_a_pickled_t2i_adapter_is_read_where_that_is_allowed(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    pipeline = little_checkpoint("attending")
    file = make_t2i_adapter(tmp_path / "sketch.safetensors", pipeline, original=True)
    torch.save(load_file(file), tmp_path / "sketch.pth")
    with pytest.raises(SourceError, match="--allow-pickle"):
        opened(pipeline, "t2i_adapter", tmp_path / "sketch.pth")
    allowed = {"allow_pickle": True, "read_pickle": read_pickle_here}
    found, again = (opened(pipeline, "t2i_adapter", one, **allowed)[1][0] for one in (file, tmp_path / "sketch.pth"))
    assert found.config == again.config


CHANGES = {
    "controlnet": (
        ("cross_attention_dim", 64, r"for a UNet of block_out_channels .*made for this family"),
        (
            "_class_name",
            "ControlNetUnionModel",
            "ControlNetUnionModel is not supported here: it takes several pictures",
        ),
        ("_class_name", "T2IAdapter", r"controlnet: T2IAdapter is not.* drop it from `controlnets:`"),
        ("conditioning_channels", 1, "takes pictures of 1 channels"),
    ),
    "t2i_adapter": (
        (
            "channels",
            [8, 32, 32],
            "8 channels at 1/2, 32 channels at 1/4.*the pipeline's UNet takes 16 channels at 1/2",
        ),
        ("adapter_type", "fuller_adapter", 'T2IAdapter with `adapter_type: "fuller_adapter"` is not known; there are'),
        ("in_channels", 4, "`in_channels: 4` is not known; there are 1, 3"),
        ("channels", "many", '`channels: "many"`'),
        ("downscale_factor", -1, "downscale_factor: -1"),
        ("downscale_factor", [2], r"`downscale_factor: \[2\]` is not known; it is a number"),
        ("_class_name", "ControlNetModel", "it is a ControlNet; name it under `controlnets:`"),
    ),
}


@pytest.mark.parametrize("guide", CHANGES)
def test_configs_of_another_family_or_class_are_refused(both_forms_of, tmp_path, guide):
    pipeline = little_checkpoint("attending")
    folder = MAKE[guide](tmp_path / "other", both_forms_of("sd15").folder if guide == "controlnet" else pipeline)
    config = json.loads((folder / "config.json").read_text())
    for key, other, words in CHANGES[guide]:
        source, value = both_forms_of("sd15").folder if guide == "controlnet" else pipeline, other
        if key == "cross_attention_dim":  # Of the same width, and nothing else.
            source = make_checkpoint(tmp_path / "tiny", "sd15")
            value = json.loads((source / "unet" / "config.json").read_text())[key]
        (folder / "config.json").write_text(json.dumps({**config, key: value}))
        with pytest.raises(SourceError, match=words) as refused:
            opened(source, guide, folder)
        assert str(folder) in str(refused.value)


@pytest.mark.parametrize("enters", ["up", "down"])
def test_a_kind_has_to_fit_by_where_it_enters_whatever_it_is(tmp_path, enters):
    kind = replace(next(one for one in GUIDES.values() if one.enters == enters), name="other", title="Other")
    own, xl = little_checkpoint("attending"), little_checkpoint("attending_xl")
    unet = json.loads((xl / "unet" / "config.json").read_text())
    folder = MAKE["controlnet" if enters == "up" else "t2i_adapter"](tmp_path / "one", own)
    with pytest.raises(SourceError, match="this Other is for Stable Diffusion|this Other is for another network"):
        open_beside(SourceSpec(path=folder), kind, kind.components[0], Host(unet=unet, pixels=2), None)


def test_guides_of_another_family_are_refused(both_forms_of, tmp_path):
    sd, xl = both_forms_of("sd15"), both_forms_of("sdxl")
    net = make_controlnet(tmp_path / "xl", xl.folder)
    for file in (net, make_controlnet(tmp_path / "xl.safetensors", xl.folder, original="plain"), net / WEIGHTS):
        with pytest.raises(SourceError, match=r"takes text of width 128, and the pipeline's UNet .* of width 64"):
            opened(sd.folder, "controlnet", file)
    shown = make_ip_adapter(tmp_path / "shown", xl.folder)
    for source in (sd.folder, sd.file):
        with pytest.raises(SourceError, match=r"its tokens have width 128, and the UNet of .* with text of width 64"):
            shown_by(source, shown)
    narrow = make_checkpoint(tmp_path / "tiny", "sd15")
    other = make_ip_adapter(tmp_path / "other", narrow)
    changed(other, lambda tensors: [tensors.pop(f"ip_adapter.31.to_{kind}_ip.weight") for kind in "kv"])
    with pytest.raises(SourceError, match=r"for a UNet of 15 cross-attentions, and the pipeline's has 16"):
        shown_by(narrow, other)
    sd, xl = little_checkpoint("attending"), little_checkpoint("attending_xl")
    for own, other, title in ((sd, xl, "Stable Diffusion XL"), (xl, sd, r"Stable Diffusion 1\.x")):
        for name in ("folder", "file.safetensors"):
            adapter = make_t2i_adapter(tmp_path / other.name / name, other, original=name != "folder")
            words = rf"this T2I-Adapter is for {title}: it gives features of 16 channels"
            with pytest.raises(SourceError, match=words):
                opened(own, "t2i_adapter", adapter)


def test_what_is_of_another_kind_says_where_to_name_it(both_forms_of, tmp_path, adapters, pipeline):
    forms, sd = both_forms_of("sd15"), little_checkpoint("attending")
    net = make_controlnet(tmp_path / "net.safetensors", sd, original="plain")
    sketch = make_t2i_adapter(tmp_path / "t.safetensors", sd, original=True)
    shown = adapters["classic"]
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(sketch.read_bytes()[:-40])
    save_file({"lllite_unet_proj.depth.weight": np.zeros((8, 8), np.float32)}, tmp_path / "lllite.safetensors")
    for guide, file, words in (
        ("controlnet", forms.file, r"this is a checkpoint.*name it as `source:`; `controlnets:` takes a Contr"),
        *((guide, forms.folder, "this is a pipeline; name it as `source:`") for guide in MAKE),
        ("controlnet", sketch, r"this is a T2I-Adapter .*; name it under `t2i_adapters:`; `controlnets:` takes"),
        ("controlnet", shown, r"an IP-Adapter.*; name it as `ip_adapter:`; `controlnets:` takes"),
        ("t2i_adapter", net, r"this is a ControlNet.*name it under `controlnets:`; `t2i_adapters:` takes"),
        ("ip_adapter", net, "name it under `controlnets:`; `ip_adapter:` takes an IP-Adapter"),
        ("ip_adapter", tmp_path / "lllite.safetensors", r"in ControlNet-LLLite only\); `ip_adapter:` takes"),
        ("t2i_adapter", broken, r"broken\.safetensors"),
        *((guide, tmp_path / "none", "no such folder or file") for guide in MAKE),
        ("ip_adapter", tmp_path / "none.safetensors", "no such file"),
    ):
        with pytest.raises(SourceError, match=words):
            opened(sd, guide, file)
    with pytest.raises(SourceError, match="`source:` takes"):
        open_source(SourceSpec(path=net), ["unet"])


def test_a_t2i_adapter_without_some_layers_is_refused(tmp_path):
    sd = little_checkpoint("attending")
    whole = load_file(make_t2i_adapter(tmp_path / "t.safetensors", sd, original=True))

    def less(tensors):
        save_file(tensors, tmp_path / "less.safetensors")
        return opened(sd, "t2i_adapter", tmp_path / "less.safetensors")[1][0]

    def but(name):
        return {key: array for key, array in whole.items() if key != name}

    for left_out in ("conv_in.weight", "body.3.block1.weight"):
        with pytest.raises(SourceError, match="lacks layers, or has them in sizes of its own; get the file again"):
            less(but(left_out))
    with pytest.raises(SourceError, match="lacks layers"):
        less({**whole, "body.0.out_conv.weight": np.zeros((), np.float32)})
    with pytest.raises(SourceError, match="1 parameters of T2IAdapter are not in the weight files"):
        values(less(but("body.3.block2.weight")))


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("sd") / "pipeline")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory, pipeline):
    """Return the file of each form, each with its encoder."""
    root = tmp_path_factory.mktemp("adapters")
    return {form: make_ip_adapter(root / form, pipeline, form=form) for form in ("classic", "plus", "full")}


@pytest.fixture
def copied(tmp_path, adapters):
    """Return a copy of the classic adapter and its encoder, to be damaged."""
    folder = shutil.copytree(adapters["classic"].parent, tmp_path / "h94" / "models")
    return folder / adapters["classic"].name


def shown_by(source, file, encoder=None, **more):
    """Return a pipeline with an IP-Adapter."""
    spec = beside(source, {"ip_adapter": [file]}, network=None if encoder is None else SourceSpec(path=encoder))
    assert "image_encoder" in available_components(spec, allow_pickle=True)
    return open_source(spec, ["unet", "image_encoder"], **more)


def changed(file, change, place=None):
    """Write a file with other tensors; return it."""
    tensors = load_file(file)
    change(tensors)
    save_file({name: np.ascontiguousarray(one) for name, one in tensors.items()}, place or file)
    return place or file


@pytest.mark.parametrize("form", ["classic", "plus", "full"])
def test_parameters_are_those_that_diffusers_makes_of_a_file(pipeline, adapters, form):
    import torch
    from diffusers import UNet2DConditionModel
    from safetensors.torch import load_file as load_torch

    source = shown_by(pipeline, adapters[form])
    found = {name: one for name, one in values(source.checkpoint("image_encoder")).items() if "projection." in name}
    parts = {name: one for name, one in load_torch(adapters[form]).items() if name.startswith("image_proj.")}
    parts = {name.removeprefix("image_proj."): one for name, one in parts.items()}
    network = UNet2DConditionModel.from_pretrained(pipeline / "unet")
    wanted = network._convert_ip_adapter_image_proj_to_diffusers(parts, low_cpu_mem_usage=False).state_dict()
    own = {f"image_projection.{name}": one for name, one in wanted.items()}
    assert own.keys() == found.keys() - {"visual_projection.weight"}
    assert all(torch.equal(one, torch.from_numpy(found[name])) for name, one in own.items())
    assert source.origin.ip_adapter == Origin.local("file", adapters[form])
    assert source.origin.published().ip_adapter.path is None


def test_what_a_file_is_tensors_tell(adapters):
    for form, words in (("classic", ""), ("plus", "Plus"), ("full", "Full Face")):
        identity = identify(read_weight_table(adapters[form]).tensors)
        assert (identity.kind, identity.supported) == ("ip_adapter", True)
        assert identity.description.startswith("an IP-Adapter of ")
        assert identity.description.endswith(words)


def test_a_pickled_file_has_the_same_tensors(pipeline, adapters, copied):
    import torch
    from safetensors.torch import load_file as load_torch

    parts = {"image_proj": {}, "ip_adapter": {}}
    for name, tensor in load_torch(copied).items():
        part, _, rest = name.partition(".")
        parts[part][rest] = tensor
    path = copied.with_suffix(".bin")
    torch.save(parts, path)
    with pytest.raises(SourceError, match="this is a pickled file, which can run code"):
        shown_by(pipeline, path)
    found = shown_by(pipeline, path, allow_pickle=True, read_pickle=read_pickle_here)
    safe = values(shown_by(pipeline, copied).checkpoint("image_encoder"))
    for name, one in values(found.checkpoint("image_encoder")).items():
        assert np.array_equal(one, safe[name])
    assert len(found.guide_files["ip_adapter"].layers) == 16


def test_an_encoder_is_found_where_it_lies(pipeline, copied, tmp_path):
    beside = copied.parent / "image_encoder"
    assert shown_by(pipeline, copied).origin.image_encoder is not None
    # An adapter for SDXL may be for the encoder of the others, and the one beside it is larger.
    away = tmp_path / "h94" / "sdxl_models" / copied.name
    away.parent.mkdir()
    shutil.move(copied, away)
    larger = shutil.copytree(beside, away.parent / "image_encoder")
    config = json.loads((larger / "config.json").read_text())
    (larger / "config.json").write_text(json.dumps({**config, "projection_dim": 24}))
    files = shown_by(pipeline, away).checkpoint("image_encoder").files
    assert {path.parent.name for path in files if path.name == "model.safetensors"} == {"image_encoder"}
    assert beside / "model.safetensors" in {path.resolve() for path in files}
    shutil.move(beside, tmp_path / "tower")
    with pytest.raises(SourceError, match=r"another image encoder, one whose projection_dim is 16: .*has 24"):
        shown_by(pipeline, away)
    assert shown_by(pipeline, away, tmp_path / "tower").origin.image_encoder.name == "tower"
    with pytest.raises(SourceError, match="an image encoder is a folder with config.json and weights"):
        shown_by(pipeline, away, away)
    shutil.rmtree(larger)
    with pytest.raises(SourceError, match=r"has no image encoder, which ip-adapter\.safetensors can't do without"):
        shown_by(pipeline, away)


def test_a_hub_has_both(pipeline, copied, monkeypatch, tmp_path):
    commit = "1" * 40
    snapshot = tmp_path / "hub" / "models--h94--IP-Adapter" / "snapshots" / commit
    shutil.copytree(copied.parent, snapshot / "models")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    spec = SourceSpec(hub="h94/IP-Adapter", file="models/ip-adapter.safetensors", revision=commit)
    source = open_source(SourceSpec(path=pipeline, guides={"ip_adapter": [spec]}), ["image_encoder"])
    assert (source.origin.ip_adapter.name, source.origin.ip_adapter.file) == ("h94/IP-Adapter", spec.file)
    assert source.origin.image_encoder.commit == commit


def test_what_is_no_ip_adapter_is_refused(pipeline, copied):
    def only(tensors, wanted, **more):
        for name in [name for name in tensors if wanted not in name]:
            del tensors[name]
        tensors.update(more)

    one = np.zeros((8, 8), np.float32)
    refusals = {
        "FaceID, which takes what insightface makes of a face": lambda tensors: only(
            tensors, "ip_adapter.", **{"image_proj.norm.weight": one[0], "image_proj.proj.0.weight": one}
        ),
        "FaceID Plus, which takes what insightface": lambda tensors: only(
            tensors, "ip_adapter.", **{"image_proj.perceiver_resampler.proj_in.weight": one}
        ),
        "it lacks keys for the UNet": lambda tensors: only(tensors, "image_proj."),
        "it lacks a projection": lambda tensors: only(tensors, "ip_adapter."),
        "are no matrices of one width, in pairs": lambda tensors: tensors.pop("ip_adapter.3.to_v_ip.weight"),
        "makes tokens of width 2, and its keys and values take": lambda tensors: tensors.update(
            {"image_proj.proj.weight": one}
        ),
        "of no form that is known: proj.weight has 7 rows": lambda tensors: tensors.update(
            {"image_proj.proj.weight": one[:7]}
        ),
    }
    for words, change in refusals.items():
        file = changed(copied, change, copied.with_name("other.safetensors"))
        with pytest.raises(SourceError, match=words):
            shown_by(pipeline, file)
    data = copied.read_bytes()
    copied.write_bytes(data[: len(data) // 2])
    with pytest.raises(SourceError, match="download it again"):
        shown_by(pipeline, copied)


def test_an_encoder_of_another_class_and_a_torn_projection_are_refused(pipeline, copied, adapters):
    config = copied.parent / "image_encoder" / "config.json"
    told = json.loads(config.read_text())
    config.write_text(json.dumps({**told, "architectures": ["SiglipVisionModel"]}))
    with pytest.raises(SourceError, match="image_encoder: SiglipVisionModel is not supported here"):
        shown_by(pipeline, copied)
    plus = changed(adapters["plus"], lambda t: t.pop("image_proj.layers.1.0.norm1.bias"), copied.with_name("plus.bin2"))
    config.write_text(json.dumps(told))
    source = shown_by(pipeline, Path(plus))
    with pytest.raises(SourceError, match=r"does not fit IPAdapterPlusImageProjection: layers\.1\.ln0\.bias is not th"):
        values(source.checkpoint("image_encoder"))
