"""`olivelike workflows`."""

from __future__ import annotations

import json

from olivelike.workflow import shipped_names


def test_every_shipped_workflow_is_listed_and_one_shows_chains_and_figures(cli):
    listed = cli("workflows").out
    assert [line.split()[0] for line in listed.splitlines()[1:]] == shipped_names()
    shown = cli("workflows", "flux2_klein").out
    assert 'transformer:  convert, fuse, weights8 {"int8_compute": true}' in shown
    assert "docs/performance.md#a-transformer-of-4-billion-parameters" in shown
    assert [one["name"] for one in json.loads(cli("workflows", "--json").out)] == shipped_names()
    assert json.loads(cli("workflows", "demo_edges", "--json").out)["guides"] == {"controlnets": ["demo_edges"]}


def test_an_unknown_name_is_answered_with_the_nearest(cli):
    done = cli("workflows", "demo_edge")
    assert done.status == 2
    assert "did you mean 'demo_edges'?" in done.err
