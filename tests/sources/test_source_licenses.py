"""Licences are read where they stand, and what nothing says stays unknown."""

from __future__ import annotations

import pytest

from olivelike.model.licenses import license_id, terms_of
from olivelike.model.records.origin import License, Origin
from olivelike.sources.checkpoint import FolderFiles
from olivelike.sources.source_licenses import licensed, origin_of


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
