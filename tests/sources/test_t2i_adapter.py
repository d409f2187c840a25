"""`t2i_adapters:` in every form; what is of another family, or no T2I-Adapter, is refused by name."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from stored_values import values

from olivelike.errors import SourceError
from olivelike.model.records.origin import Origin
from olivelike.sources import SourceSpec, available_components, open_source
from olivelike.sources.files.weight_table import read_weight_table
from olivelike.sources.identify.identify import identify
from olivelike.testing.controlnets import make_controlnet
from olivelike.testing.t2i_adapters import make_t2i_adapter
from tests.fixtures.little_pipeline import little_checkpoint
from tests.fixtures.pickle_tables import read_pickle_here


def opened(source, *adapters, controlnets=(), **options):
    """Return the checkpoints of T2I-Adapters beside a source."""
    spec = SourceSpec(
        path=source,
        t2i_adapters=tuple(SourceSpec(path=one) for one in adapters),
        controlnets=tuple(SourceSpec(path=one) for one in controlnets),
    )
    names = ["t2i_adapter", "t2i_adapter_2"][: len(adapters)]
    assert available_components(spec) >= {*names}
    source = open_source(spec, names, **options)
    return source, [source.checkpoint(name) for name in names]


@pytest.mark.parametrize(
    ("kind", "form"), [("attending", "full"), ("attending", "light"), ("attending", "grey"), ("attending_xl", "full")]
)
def test_folders_and_files_in_both_names_give_the_same_values(tmp_path, kind, form):
    pipeline, light = little_checkpoint(kind), form == "light"
    changes = {"in_channels": 1} if form == "grey" else {}
    folder = make_t2i_adapter(tmp_path / "sketch", pipeline, light=light, changes=changes)
    shutil.copytree(folder, tmp_path / "pipeline" / "adapter")
    original = make_t2i_adapter(tmp_path / "t.safetensors", pipeline, light=light, changes=changes, original=True)
    files = [original, folder / "diffusion_pytorch_model.safetensors"]
    source, (found,) = opened(pipeline, folder)
    assert source.origin.t2i_adapters == {"t2i_adapter": Origin.local("folder", folder)}
    assert source.origin.leading_names == {"t2i_adapter": "sketch"}
    assert source.origin.published().t2i_adapters["t2i_adapter"].path is None
    expected, config = values(found), {name: found.config[name] for name in ("in_channels", "adapter_type")}
    assert len(expected) > 20
    for one in (*files, tmp_path / "pipeline"):
        _, (again,) = opened(pipeline, one)
        assert {name: again.config[name] for name in config} == config
        actual = values(again)
        assert actual.keys() == expected.keys()
        assert all(np.array_equal(actual[name], expected[name]) for name in expected)
    for file, naming in zip(files, ("original", "diffusers"), strict=True):
        identity = identify(read_weight_table(file, None).tensors)
        assert (identity.kind, identity.supported, identity.naming) == ("t2i_adapter", True, naming)


def test_a_pickled_file_is_read_where_that_is_allowed(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    pipeline = little_checkpoint("attending")
    file = make_t2i_adapter(tmp_path / "sketch.safetensors", pipeline, original=True)
    torch.save(load_file(file), tmp_path / "sketch.pth")
    with pytest.raises(SourceError, match="--allow-pickle"):
        opened(pipeline, tmp_path / "sketch.pth")
    allowed = {"allow_pickle": True, "read_pickle": read_pickle_here}
    found, again = (opened(pipeline, one, **allowed)[1][0] for one in (file, tmp_path / "sketch.pth"))
    assert found.config == again.config


def test_one_called_like_a_controlnet_has_the_name_of_its_component(tmp_path):
    pipeline = little_checkpoint("attending")
    adapters = [make_t2i_adapter(tmp_path / name, pipeline) for name in ("edges", "sketch")]
    net = make_controlnet(tmp_path / "net" / "edges", pipeline)
    source, _ = opened(pipeline, *adapters, controlnets=[net])
    assert source.origin.leading_names == {
        "controlnet": "controlnet", "t2i_adapter": "t2i_adapter", "t2i_adapter_2": "sketch",
    }  # fmt: skip


def test_another_family_and_what_is_no_t2i_adapter_are_refused(tmp_path):
    sd, xl = little_checkpoint("attending"), little_checkpoint("attending_xl")
    for own, other, title in ((sd, xl, "Stable Diffusion XL"), (xl, sd, r"Stable Diffusion 1\.x")):
        for name in ("folder", "file.safetensors"):
            adapter = make_t2i_adapter(tmp_path / other.name / name, other, original=name != "folder")
            with pytest.raises(
                SourceError, match=rf"this T2I-Adapter is for {title}: it gives features of 16 channels"
            ):
                opened(own, adapter)
    folder = make_t2i_adapter(tmp_path / "sketch", sd)
    config = json.loads((folder / "config.json").read_text())
    for key, value, words in (
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
    ):
        (folder / "config.json").write_text(json.dumps({**config, key: value}))
        with pytest.raises(SourceError, match=words) as refused:
            opened(sd, folder)
        assert str(folder) in str(refused.value)
    net = make_controlnet(tmp_path / "net.safetensors", sd, original="plain")
    with pytest.raises(SourceError, match=r"this is a ControlNet.*name it under `controlnets:`; `t2i_adapters:` takes"):
        opened(sd, net)
    original = make_t2i_adapter(tmp_path / "t.safetensors", sd, original=True)
    with pytest.raises(
        SourceError, match=r"this is a T2I-Adapter .*; name it under `t2i_adapters:`; `controlnets:` takes"
    ):
        open_source(SourceSpec(path=sd, controlnets=(SourceSpec(path=original),)), ["controlnet"])
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(original.read_bytes()[:-40])
    with pytest.raises(SourceError, match=r"broken\.safetensors"):
        opened(sd, broken)
    with pytest.raises(SourceError, match="no such folder or file"):
        opened(sd, tmp_path / "none")


def test_a_file_without_some_layers_is_refused(tmp_path):
    from safetensors.numpy import load_file, save_file

    sd = little_checkpoint("attending")
    whole = load_file(make_t2i_adapter(tmp_path / "t.safetensors", sd, original=True))
    for left_out in ("conv_in.weight", "body.3.block1.weight"):
        save_file({name: array for name, array in whole.items() if name != left_out}, tmp_path / "less.safetensors")
        with pytest.raises(SourceError, match="lacks layers, or has them in sizes of its own; get the file again"):
            opened(sd, tmp_path / "less.safetensors")
    save_file({**whole, "body.0.out_conv.weight": np.zeros((), np.float32)}, tmp_path / "less.safetensors")
    with pytest.raises(SourceError, match="lacks layers"):
        opened(sd, tmp_path / "less.safetensors")
    less = {name: array for name, array in whole.items() if name != "body.3.block2.weight"}
    save_file(less, tmp_path / "less.safetensors")
    with pytest.raises(SourceError, match="1 parameters of T2IAdapter are not in the weight files"):
        values(opened(sd, tmp_path / "less.safetensors")[1][0])
