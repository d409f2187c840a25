"""Licences are read where they stand, and what nothing says stays unknown."""

from __future__ import annotations

import json
import shutil

import pytest

from olivelike.engine.plan.adapters import _open_lora
from olivelike.model.licenses import license_id, terms_of
from olivelike.model.records.origin import License, Origin
from olivelike.sources import SourceSpec, open_source
from olivelike.sources.checkpoint import FolderFiles
from olivelike.sources.source_licenses import licensed, origin_of
from olivelike.testing.lora_files import make_lora
from olivelike.workflow.places import FileRef
from olivelike.workflow.workflow_file import Lora
from tests.fixtures.tiny_vae_files import make_tiny_vae


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"README.md": "---\nlicense: openrail++\ntags: []\n---\n"}, License("openrail++", "README.md")),
        (
            {"README.md": "---\nlicense: other\nlicense_name: owls-1.0\nlicense_link: https://owls.org/l\n---\n"},
            License("owls-1.0", "README.md", "https://owls.org/l"),
        ),
        (
            {"README.md": "---\r\nlicense: 'mit' # ours\r\nlicense_link: LICENSE.md\r\n---\r\n"},
            License("mit", "README.md"),
        ),
        ({"README.md": "---\ntags: []\n---\nlicense: mit\n"}, None),
        ({"README.md": "license: mit"}, None),
        ({"README.md": b"\xff\xfe"}, None),
        ({}, None),
        (
            {"README.md": "---\nlicense: other\n---\n", "LICENSE.md": "# FLUX.1 [dev] Non-Commercial License\nText."},
            License("flux-1-dev-non-commercial-license", "LICENSE.md"),
        ),
        (
            {"LICENSE": "                    Apache License\n              Version 2.0, January 2004\n"},
            License("apache-2.0", "LICENSE"),
        ),
        (
            {"LICENCE.txt": "Copyright (c) 2022 someone\n\nCreativeML Open RAIL++-M License dated July 26, 2023\n"},
            License("openrail++", "LICENCE.txt"),
        ),
        ({"LICENSE": "The licence of owls, version 3\n"}, License("The licence of owls, version 3", "LICENSE")),
        ({"LICENSE": "Do as you like.\n"}, None),
        ({"README.md": f"---\nlicense:{' ' * 100_000}x'y\n---\n"}, License("x'y", "README.md")),
        (
            {"README.md": '---\nlicense: other\nlicense_name: "o"\nlicense_link: https://o.org/l#2\n---\n'},
            License("o", "README.md", "https://o.org/l#2"),
        ),
        ({"LICENSE-notes.py": "mit license"}, License("mit", "LICENSE-notes.py")),
    ],
)
def test_a_folder_says_its_licence(tmp_path, files, expected):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert origin_of(FolderFiles.local(tmp_path)).license == expected


def test_metadata_says_it_unless_the_folder_does():
    origin = Origin("file", "a.safetensors")
    assert licensed(origin).license is None
    assert licensed(origin, metadata={"modelspec.license": "CreativeML Open RAIL-M"}).license == License(
        "creativeml-openrail-m", "modelspec.license"
    )
    assert licensed(origin, metadata={"general.license": "apache-2.0"}).license == License(
        "apache-2.0", "general.license"
    )
    assert licensed(origin, metadata={"modelspec.license": "unknown"}).license is None


def test_what_the_workflow_states_counts_and_the_files_words_are_kept():
    origin = Origin("file", "a.safetensors")
    assert licensed(origin, "MIT").license == License("mit", "workflow")
    assert licensed(origin, "MIT", {"license": "mit"}).license == License("mit", "workflow")
    said = licensed(origin, "Owls Ltd, contract 5", {"license": "FLUX.1-dev-Non-Commercial-License"}).license
    assert said == License("Owls Ltd, contract 5", "workflow", otherwise="flux-1-dev-non-commercial-license")


def test_terms_of_licences():
    assert [license_id(name) for name in ("Apache 2.0", "Apache-2.0", "the MIT License", "CC-BY-NC-4.0", "Mine")] == [
        "apache-2.0", "apache-2.0", "mit", "cc-by-nc-4.0", "Mine",
    ]  # fmt: skip
    for name in ("flux-1-dev-non-commercial-license", "flux-dev-non-commercial-license", "sai-nc-community"):
        assert not terms_of(name).commercial
    nothing = terms_of("cc-by-nc-nd-4.0")
    assert (nothing.commercial, nothing.derivatives) == (False, False)
    assert terms_of("openrail++").restrictions
    assert terms_of("apache-2.0").commercial
    for name in ("gpl-3.0", "Mine", "concise", "ncsa"):
        assert terms_of(name) is None


def with_metadata(path, copy, **metadata):
    """Write a copy of a weight file with other metadata."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.dumps({**json.loads(data[8 : 8 + length]), "__metadata__": metadata}).encode()
    copy.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    return copy


def test_each_part_of_a_source_has_its_own(both_forms_of, tmp_path):
    forms = both_forms_of("sd15")
    file = with_metadata(forms.file, tmp_path / "a.safetensors", **{"modelspec.license": "CreativeML Open RAIL-M"})
    vae = shutil.copytree(forms.folder / "vae", tmp_path / "vae")
    (vae / "README.md").write_text("---\nlicense: mit\n---\n")
    tiny, *_ = make_tiny_vae(tmp_path / "tiny", size="little")
    spec = SourceSpec(path=file, vae=SourceSpec(path=vae), preview=SourceSpec(path=tiny, license="MIT"))
    origin = open_source(spec, ["unet", "vae_decoder", "preview_decoder"]).origin
    said = {role: one.license and (one.license.name, one.license.said_by) for role, one in origin.everything.items()}
    assert said == {
        "source": ("creativeml-openrail-m", "modelspec.license"),
        "vae": ("mit", "README.md"),
        "preview": ("mit", "workflow"),
    }
    folder = open_source(SourceSpec(path=forms.folder, license="Mine"), ["unet"]).origin
    assert folder.license == License("Mine", "workflow")


def test_loras_say_it_in_their_metadata_and_their_folder_s_card(both_forms_of, tmp_path):
    made = make_lora(
        tmp_path / "lora" / "a.safetensors", "kohya", base=both_forms_of("sd15").folder, components=("unet",),
        metadata={"modelspec.license": "Mine"},
    )  # fmt: skip
    file = open_lora_of(made)
    assert file.license == License("Mine", "modelspec.license")
    assert open_lora_of(made, license="Yours").license == License("Yours", "workflow", otherwise="Mine")
    (made.parent / "README.md").write_text("---\nlicense: openrail++\n---\n")
    assert open_lora_of(made.parent).license == License("openrail++", "README.md")


def open_lora_of(path, **more):
    return _open_lora(Lora(file=FileRef(path), **more), None).origin
