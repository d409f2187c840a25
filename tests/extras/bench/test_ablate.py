"""`olivelike ablate`: a table of the variants of a sweep."""

from __future__ import annotations

import csv
import json
from collections import Counter

import pytest

SWEEP = "sweep=[{name: plain, components: {text_encoder: [convert]}}, {name: labelled}]"
VERIFIED = (
    "sweep=[{name: right, components: {text_encoder: [convert, verify: {samples: 1}]}}, "
    "{name: strict, components: {text_encoder: [convert, verify: {samples: 1, max_relative_error: 1e-12}]}}, "
    "{name: unverified}]"
)
FAILING = (
    "sweep=[{name: strict, components: {text_encoder: [convert, verify: {samples: 1, max_relative_error: 1e-12}]}}, "
    "{name: refused, components: {text_encoder: [convert, verify: {samples: 1}, refuse]}}, "
    "{name: right, components: {text_encoder: [convert, verify: {samples: 1}]}}]"
)
WORKFLOW = "workflows/little.yaml"
ELSEWHERE = ("--set", "output=models/swept")


def test_each_variant_is_measured_in_a_process_of_its_own(project, cli):
    done = cli("ablate", WORKFLOW, *ELSEWHERE, "--set", SWEEP, "--runs", 2, "--warmup", 0, "--csv", "table.csv")
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    (header,) = (line for line in lines if line.startswith("text_encoder  "))
    assert header.split() == ["text_encoder", "latency", "speed", "memory", "files", "error"]
    assert sum(" ms" in line and "not verified" in line for line in lines) == 2
    assert "note: its chain has no step `verify`" in lines
    with (project / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["variant"] for row in rows] == ["plain", "labelled"]
    for row in rows:
        assert 0 < float(row["median_latency"]) < 60
        assert int(row["memory_bytes"]) > 50_000_000
        assert row["provider"] == "CPUExecutionProvider"
        assert row["relative_error"] == ""


def test_each_variant_is_verified_and_one_that_fails_is_shown_and_not_published(project, cli):
    done = cli("ablate", WORKFLOW, *ELSEWHERE, "--set", VERIFIED, "--no-measure", "--json")
    assert done.status == 5
    assert "text_encoder.verify@strict failed" in done.err
    right, strict, unverified = json.loads(done.out)["rows"]
    assert right["verified"]
    assert right["precision"] == "fp32"
    assert 0 < right["relative_error"] < 1e-5
    assert right["size_bytes"] > 10_000
    assert right["median_latency"] is None
    assert strict["verified"] is False
    assert strict["relative_error"] == right["relative_error"]
    assert strict["size_bytes"] is None
    assert (unverified["verified"], unverified["note"]) == (None, "its chain has no step `verify`")
    assert sorted(path.name for path in (project / "models" / "swept").iterdir()) == ["right", "unverified"]

    again = cli("ablate", WORKFLOW, *ELSEWHERE, "--set", VERIFIED.replace("1e-12", "1e-3"), "--no-measure")
    assert again.status == 0
    assert again.out.count("e-07") + again.out.count("e-06") == 2
    assert "TOO FAR OFF" not in again.out
    asked = (*ELSEWHERE, "--set", VERIFIED.replace("1e-12", "1e-3"))
    explained = cli("explain", WORKFLOW, "text_encoder.verify@right", *asked)
    assert "  - relative error" in explained.out
    assert "against torch, of 1e-04" in explained.out


def test_variants_that_are_stopped_show_why_and_nothing_of_an_earlier_run(project, cli):
    before = FAILING.replace("1e-12", "1e-3").replace(", refuse", "")
    assert cli("ablate", WORKFLOW, *ELSEWHERE, "--set", before, "--no-measure").status == 0
    asked = ("--runs", 1, "--warmup", 0, "--csv", "table.csv")
    done = cli("ablate", WORKFLOW, *ELSEWHERE, "--set", FAILING, *asked)
    assert done.status == 4  # A pass that fails is graver than a result that is too far off, whichever comes first.
    assert "text_encoder.verify@strict failed" in done.err
    assert "text_encoder.refuse@refused failed" in done.err
    assert "note: strict is not published: text_encoder.verify@strict failed" in done.out
    assert "note: refused is not published: text_encoder.refuse@refused failed" in done.out
    with (project / "table.csv").open() as file:
        strict, refused, right = csv.DictReader(file)
    assert strict["relative_error"] == refused["relative_error"] == right["relative_error"] != ""
    for row in (strict, refused):
        assert row["size_bytes"] == row["median_latency"] == row["memory_bytes"] == ""
    assert int(right["size_bytes"]) > 10_000
    # Speed is relative to the first variant, which has none.
    (line,) = (line for line in done.out.splitlines() if line.startswith("right ") and " ms " in line)
    assert "x" not in line


def test_a_misspelt_dimension_is_refused_with_the_nearest(project, cli):
    done = cli("ablate", WORKFLOW, *ELSEWHERE, "--set", SWEEP, "--dimension", "text_sequenc=9")
    assert done.status == 2
    assert "no network has a dynamic dimension 'text_sequenc'; did you mean 'text_sequence'?" in done.err


@pytest.mark.slow
def test_pictures_of_variants_are_compared_with_those_of_the_first(empty_folder, cli):
    sweep = "sweep=[{name: plain}, {name: half, components: {unet: [convert, fuse, float16]}}]"
    done = cli("ablate", "demo", "--set", sweep, "--no-measure", "--pictures", 1, "--json")
    assert done.status == 0, done.err
    rows = json.loads(done.out)["fidelity"]["rows"]
    assert [(row["method"], row["role"]) for row in rows][:2] == [("as it is", "reference"), ("half", "method")]
    assert rows[1]["psnr"] > 30


@pytest.mark.slow
def test_the_shipped_ablation_verifies_every_variant_and_runs_what_they_share_once(empty_folder, cli):
    done = cli("ablate", "ablation_sd15_cpu", "--set", "source=demo", "--no-measure", "--json")
    assert done.status == 0, done.err
    rows = json.loads(done.out)["rows"]
    assert len(rows) >= 7
    assert len({row["variant"] for row in rows}) == len(rows)
    assert all(row["verified"] and row["relative_error"] < 2e-2 for row in rows)
    (record,) = (empty_folder / "cache" / "runs").glob("*.json")
    nodes = json.loads(record.read_text())["nodes"]
    names = Counter((node["component"], node["name"]) for node in nodes)
    for component in ("text_encoder", "unet", "vae_decoder"):
        assert names[component, "load"] == names[component, "convert"] == 1
        assert names[component, "materialize"] == len(rows)
    made = [node["key"] for node in nodes if node["status"] == "executed" and node["name"] != "materialize"]
    assert len(made) == len(set(made))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "has no `sweep`"),
        (("--set", SWEEP, "--component", "unet"), "--component unet: no variant has such a network"),
        (("--set", SWEEP, "--dimension", "x"), "--dimension: 'x' is no key=value pair"),
        (("--set", SWEEP, "--provider", "cdua"), "cdua"),
        (("--set", SWEEP, "--runs", "0"), "--runs"),
        (("--set", SWEEP, "--csv", "gone/table.csv"), "gone/table.csv: is a folder, or lies in none"),
        (("--set", "sweep=[{name: a}, {name: a}]"), "two variants are 'a'"),
        (("--set", SWEEP, "--output", "models/little"), "is the output of a workflow without `sweep`"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(project, cli, arguments, message):
    done = cli("ablate", WORKFLOW, *ELSEWHERE, *arguments)
    assert done.status == 2
    assert message in done.err
    assert not (project / "models" / "swept").exists()
