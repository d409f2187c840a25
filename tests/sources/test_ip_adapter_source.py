"""`ip_adapter:` in every form, with its encoder where it may lie; what is another's, or no IP-Adapter, is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from stored_values import values

from olivelike.errors import SourceError
from olivelike.model.records.origin import Origin
from olivelike.sources import SourceSpec, available_components, open_source
from olivelike.sources.files.weight_table import read_weight_table
from olivelike.sources.identify.identify import identify
from olivelike.sources.source_spec import IpAdapterSpec
from olivelike.testing.checkpoints import make_checkpoint
from olivelike.testing.controlnets import make_controlnet
from olivelike.testing.ip_adapters import make_ip_adapter
from tests.fixtures.pickle_tables import read_pickle_here


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


def opened(source, file, encoder=None, **more):
    """Return a pipeline with an IP-Adapter."""
    spec = IpAdapterSpec(path=file, image_encoder=None if encoder is None else SourceSpec(path=encoder))
    spec = SourceSpec(path=source, ip_adapter=spec)
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

    source = opened(pipeline, adapters[form])
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
        opened(pipeline, path)
    found = opened(pipeline, path, allow_pickle=True, read_pickle=read_pickle_here)
    safe = values(opened(pipeline, copied).checkpoint("image_encoder"))
    for name, one in values(found.checkpoint("image_encoder")).items():
        assert np.array_equal(one, safe[name])
    assert len(found.ip_adapter.layers) == 16


def test_an_encoder_is_found_where_it_lies(pipeline, copied, tmp_path):
    beside = copied.parent / "image_encoder"
    assert opened(pipeline, copied).origin.image_encoder is not None
    # An adapter for SDXL may be for the encoder of the others, and the one beside it is larger.
    away = tmp_path / "h94" / "sdxl_models" / copied.name
    away.parent.mkdir()
    shutil.move(copied, away)
    larger = shutil.copytree(beside, away.parent / "image_encoder")
    config = json.loads((larger / "config.json").read_text())
    (larger / "config.json").write_text(json.dumps({**config, "projection_dim": 24}))
    files = opened(pipeline, away).checkpoint("image_encoder").files
    assert {path.parent.name for path in files if path.name == "model.safetensors"} == {"image_encoder"}
    assert beside / "model.safetensors" in {path.resolve() for path in files}
    shutil.move(beside, tmp_path / "tower")
    with pytest.raises(SourceError, match=r"another image encoder, one whose projection_dim is 16: .*has 24"):
        opened(pipeline, away)
    assert opened(pipeline, away, tmp_path / "tower").origin.image_encoder.name == "tower"
    with pytest.raises(SourceError, match="an image encoder is a folder with config.json and weights"):
        opened(pipeline, away, away)
    shutil.rmtree(larger)
    with pytest.raises(SourceError, match=r"has no image encoder, which ip-adapter\.safetensors can't do without"):
        opened(pipeline, away)


def test_a_hub_has_both(pipeline, copied, monkeypatch, tmp_path):
    commit = "1" * 40
    snapshot = tmp_path / "hub" / "models--h94--IP-Adapter" / "snapshots" / commit
    shutil.copytree(copied.parent, snapshot / "models")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    spec = IpAdapterSpec(hub="h94/IP-Adapter", name="models/ip-adapter.safetensors", revision=commit)
    source = open_source(SourceSpec(path=pipeline, ip_adapter=spec), ["image_encoder"])
    assert (source.origin.ip_adapter.name, source.origin.ip_adapter.file) == ("h94/IP-Adapter", spec.name)
    assert source.origin.image_encoder.commit == commit


def test_another_family_is_refused(both_forms_of, tmp_path):
    sd, xl = both_forms_of("sd15"), both_forms_of("sdxl")
    file = make_ip_adapter(tmp_path / "xl", xl.folder)
    for source in (sd.folder, sd.file):
        with pytest.raises(SourceError, match=r"its tokens have width 128, and the UNet of .* with text of width 64"):
            opened(source, file)
    narrow = make_checkpoint(tmp_path / "tiny", "sd15")
    other = make_ip_adapter(tmp_path / "other", narrow)
    changed(other, lambda tensors: [tensors.pop(f"ip_adapter.31.to_{kind}_ip.weight") for kind in "kv"])
    with pytest.raises(SourceError, match=r"for a UNet of 15 cross-attentions, and the pipeline's has 16"):
        opened(narrow, other)


def test_what_is_no_ip_adapter_or_of_another_kind_is_refused(pipeline, copied, tmp_path, adapters):
    def only(tensors, wanted, **more):
        for name in [name for name in tensors if wanted not in name]:
            del tensors[name]
        tensors.update(more)

    one = np.zeros((8, 8), np.float32)
    controlnet = make_controlnet(tmp_path / "net.safetensors", pipeline, original="plain")
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
            opened(pipeline, file)
    with pytest.raises(SourceError, match="name it under `controlnets:`; `ip_adapter:` takes an IP-Adapter"):
        opened(pipeline, controlnet)
    with pytest.raises(SourceError, match="no such file"):
        opened(pipeline, tmp_path / "none.safetensors")
    with pytest.raises(SourceError, match=r"an IP-Adapter.*; name it as `ip_adapter:`; `controlnets:` takes"):
        open_source(SourceSpec(path=pipeline, controlnets=(SourceSpec(path=copied),)), ["controlnet"])
    data = copied.read_bytes()
    copied.write_bytes(data[: len(data) // 2])
    with pytest.raises(SourceError, match="download it again"):
        opened(pipeline, copied)


def test_an_encoder_of_another_class_and_a_torn_projection_are_refused(pipeline, copied, adapters):
    config = copied.parent / "image_encoder" / "config.json"
    told = json.loads(config.read_text())
    config.write_text(json.dumps({**told, "architectures": ["SiglipVisionModel"]}))
    with pytest.raises(SourceError, match="image_encoder: SiglipVisionModel is not supported here"):
        opened(pipeline, copied)
    plus = changed(adapters["plus"], lambda t: t.pop("image_proj.layers.1.0.norm1.bias"), copied.with_name("plus.bin2"))
    config.write_text(json.dumps(told))
    source = opened(pipeline, Path(plus))
    with pytest.raises(SourceError, match=r"does not fit IPAdapterPlusImageProjection: layers\.1\.ln0\.bias is not th"):
        values(source.checkpoint("image_encoder"))
