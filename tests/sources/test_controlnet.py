"""`controlnets:` in every form; what is of another family, or no ControlNet, is refused by name."""

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
from olivelike.testing.checkpoints import make_checkpoint
from olivelike.testing.controlnets import make_controlnet


def opened(source, *nets):
    """Return the checkpoints of ControlNets beside a source."""
    spec = SourceSpec(path=source, controlnets=tuple(SourceSpec(path=net) for net in nets))
    names = ["controlnet", "controlnet_2"][: len(nets)]
    assert available_components(spec) >= {*names}
    source = open_source(spec, names)
    return source, [source.checkpoint(name) for name in names]


@pytest.mark.parametrize("family", ["sd15", "sd21", "sdxl"])
def test_folders_and_files_in_both_names_give_the_same_values(both_forms_of, tmp_path, family):
    forms = both_forms_of(family)
    folder = make_controlnet(tmp_path / "edges", forms.folder)
    shutil.copytree(folder, tmp_path / "pipeline" / "controlnet")
    files = [
        make_controlnet(tmp_path / f"{form}.safetensors", forms.folder, original=form) for form in ("plain", "prefixed")
    ]
    files.append(folder / "diffusion_pytorch_model.safetensors")
    source, (found,) = opened(forms.folder, folder)
    assert source.origin.controlnets == {"controlnet": Origin.local("folder", folder)}
    assert source.origin.leading_names == {"controlnet": "edges"}
    expected = values(found)
    assert len(expected) > 100
    for file in (*files, tmp_path / "pipeline"):
        for pipeline in (forms.folder, forms.file) if family != "sd21" else (forms.folder,):
            _, (again,) = opened(pipeline, file)
            actual = values(again)
            assert actual.keys() == expected.keys()
            assert all(np.array_equal(actual[name], expected[name]) for name in expected)
    for file in files:
        identity = identify(read_weight_table(file, None).tensors)
        assert (identity.kind, identity.supported) == ("controlnet", True)


def test_two_have_names_of_their_own_or_those_of_their_components(both_forms_of, tmp_path):
    forms = both_forms_of("sd15")
    nets = [make_controlnet(tmp_path / place / "edges", forms.folder) for place in ("one", "two")]
    source, found = opened(forms.folder, *nets)
    assert source.origin.leading_names == {"controlnet": "controlnet", "controlnet_2": "controlnet_2"}
    assert [one.component for one in found] == ["controlnet", "controlnet_2"]
    published = source.origin.published()
    assert [one.path for one in published.controlnets.values()] == [None, None]


def test_where_a_file_attends_is_read_off_its_names(both_forms_of, tmp_path):
    forms = both_forms_of("sdxl")
    few = {"down_block_types": ["DownBlock2D", "DownBlock2D", "CrossAttnDownBlock2D"]}
    folder = make_controlnet(tmp_path / "mid", forms.folder, changes=few)
    _, (found,) = opened(forms.folder, folder / "diffusion_pytorch_model.safetensors")
    assert found.config["down_block_types"] == few["down_block_types"]
    assert len(values(found)) == len(values(opened(forms.folder, folder)[1][0]))
    shuffle = shutil.copy(folder / "diffusion_pytorch_model.safetensors", tmp_path / "control_shuffle.safetensors")
    assert opened(forms.folder, shuffle)[1][0].config["global_pool_conditions"] is True


def test_another_family_and_what_is_no_controlnet_are_refused(both_forms_of, tmp_path):
    sd, xl = both_forms_of("sd15"), both_forms_of("sdxl")
    folder = make_controlnet(tmp_path / "xl", xl.folder)
    file = make_controlnet(tmp_path / "xl.safetensors", xl.folder, original="plain")
    for net in (folder, file, folder / "diffusion_pytorch_model.safetensors"):
        with pytest.raises(SourceError, match=r"takes text of width 128, and the pipeline's UNet .* of width 64"):
            opened(sd.folder, net)
    wide = make_checkpoint(tmp_path / "tiny", "sd15")
    config = json.loads((wide / "unet" / "config.json").read_text())
    other = make_controlnet(tmp_path / "other", sd.folder)
    own = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**own, "cross_attention_dim": config["cross_attention_dim"]}))
    with pytest.raises(SourceError, match=r"for a UNet of block_out_channels .*made for this family"):
        opened(wide, other)
    with pytest.raises(SourceError, match=r"this is a checkpoint.*name it as `source:`; `controlnets:` takes a Contr"):
        opened(sd.folder, sd.file)
    (other / "config.json").write_text(json.dumps({**own, "_class_name": "ControlNetUnionModel"}))
    with pytest.raises(SourceError, match="ControlNetUnionModel is not supported here: it takes several pictures"):
        opened(sd.folder, other)
    (other / "config.json").write_text(json.dumps({**own, "_class_name": "T2IAdapter"}))
    with pytest.raises(SourceError, match=r"other: controlnet: T2IAdapter is not.* drop it from `controlnets:`"):
        opened(sd.folder, other)
    (other / "config.json").write_text(json.dumps({**own, "conditioning_channels": 1}))
    with pytest.raises(SourceError, match="takes pictures of 1 channels"):
        opened(sd.folder, other)
    with pytest.raises(SourceError, match="this is a pipeline; name it as `source:`"):
        opened(sd.folder, xl.folder)
    with pytest.raises(SourceError, match="no such folder or file"):
        opened(sd.folder, tmp_path / "none")
    with pytest.raises(SourceError, match="`source:` takes"):
        open_source(SourceSpec(path=file), ["unet"])
