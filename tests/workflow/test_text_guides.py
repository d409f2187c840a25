"""Guides as a command line or a script names them, by their keys in a workflow."""

from __future__ import annotations

import re

import pytest

from olivelike.errors import UsageError
from olivelike.sources import SourceSpec
from olivelike.workflow.long_form import text_guides


def test_texts_become_what_a_workflow_would_name(tmp_path):
    given = {"controlnets": ["./edges", "a/b"], "ip_adapter": ["c/d/e.safetensors"]}
    found = text_guides(given, "./encoder", tmp_path)
    specs = {key: [one.spec() for one in some] for key, some in found.items()}
    encoder = SourceSpec(path=tmp_path / "encoder")
    assert specs == {
        "controlnets": [SourceSpec(path=tmp_path / "edges"), SourceSpec(hub="a/b")],
        "ip_adapter": [SourceSpec(hub="c/d", file="e.safetensors", network=encoder)],
    }


@pytest.mark.parametrize(
    ("given", "encoder", "says"),
    [
        ({"controlnet": ["a"]}, None, "no guides are called 'controlnet'; did you mean 'controlnets'?"),
        ({"t2i_adapters": ["a", " "]}, None, "--t2i-adapter ' ': nothing is named"),
        ({"ip_adapter": ["a.safetensors"]}, "", "--image-encoder '': nothing is named"),
        ({"controlnets": ["a"]}, "b", "--image-encoder is that of an IP-Adapter; name one with --ip-adapter"),
    ],
)
def test_what_names_nothing_is_refused(tmp_path, given, encoder, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        text_guides(given, encoder, tmp_path)
