from __future__ import annotations

import re
import struct
import zlib

import pytest
from example_run import BENCH, PREVIOUS, PROFILE, RECORD
from hypothesis import given, settings, strategies as st

from olivelike.measure.report.page import STYLE, TEMPLATE, Beside, page
from olivelike.model.records.run_record import RunRecord
from tests.fixtures.characters import CHARACTERS

PICTURE = "data:image/png;base64,"


def png(grey: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes([0, grey]))) + chunk(b"IEND", b"")


@pytest.fixture
def with_pictures(tmp_path):
    (tmp_path / "original.png").write_bytes(png(0))
    (tmp_path / "optimised.png").write_bytes(png(255))


def test_a_report_has_a_section_for_each_thing_that_the_record_knows(record, report, with_pictures):
    made = report({**record, "previous": PREVIOUS}, PROFILE, bench=BENCH)
    assert made.headings() == [
        "Since the last run", "Steps", "Verification", "Pictures", "Speed", "Operators", "Placement", "Sizes",
        "LoRAs and embeddings", "Details", "Environment",
    ]  # fmt: skip


def test_a_report_loads_nothing_and_runs_nothing(record, report, with_pictures):
    made = report(record, {"networks": []})
    assert not made.elements("script")
    for element in made.root.iter():
        assert not any(name.startswith("on") for name in element.attrib)
        addresses = [value for name, value in element.attrib.items() if name in {"src", "href", "srcset", "data"}]
        assert all(address.startswith(("data:", "#")) for address in addresses), addresses
    assert not re.search(r"url\(|@import|https?:", STYLE)
    (policy,) = (m for m in made.elements("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy.get("content")


def test_links_lead_to_sections_that_are_there_and_every_table_has_a_caption(record, report):
    made = report(record)
    identifiers = {element.get("id") for element in made.root.iter()}
    assert all(link.get("href").removeprefix("#") in identifiers for link in made.elements("a"))
    assert all(table.findtext("caption") for table in made.elements("table"))
    assert len(made.elements("h1")) == 1


def test_operators_before_and_after_are_listed_with_what_changed_most_first(record, report):
    made = report(record)
    assert made.rows("Nodes of each graph") == [["unet.fuse", "14", "9", "-36 %"]]
    assert made.rows("Operators of unet.fuse") == [
        ["MatMul", "5", "0", "-5"],
        ["Add", "9", "7", "-2"],
        ["com.microsoft.MultiHeadAttention", "0", "2", "+2"],
    ]
    assert ["group_norm", "left", "cuda has no kernel", "3"] in made.rows(
        "What each rule of unet.fuse wrote, and left as it was"
    )


def test_every_figure_of_a_verification_is_shown(record, report):
    record["nodes"][2]["facts"]["verification"]["samples"][0]["outputs"]["out_sample"]["relative_error"] = None
    made = report(record)
    assert made.rows("Results against the original")[0][:4] == ["unet.verify", "yes", "fp16", "1.5e-06"]
    ((title, error, *_),) = made.rows("Each comparison of unet.verify")
    assert title == "batch 1, 16x24, seed 0 · out_sample"
    assert error == "not finite"


def test_pictures_are_in_the_page_itself(record, report, with_pictures):
    images = report(record).elements("img")
    assert [image.get("alt") for image in images] == ["Original picture", "Optimised picture"]
    assert all(image.get("src").startswith(PICTURE) for image in images)
    assert "41.5" in report(record).shown()


def test_what_was_verified_later_is_shown_with_its_pictures(record, report, with_pictures):
    del record["nodes"][2]
    pictures = [{"seed": 7, "psnr": None, "original": "original.png", "optimised": "optimised.png"}]
    made = report(record, verification={"components": {"unet": {"relative_error": 3e-7}}, "pictures": pictures})
    assert made.rows("The output against the original") == [["unet", "3e-07"]]
    assert len(made.elements("img")) == 2
    assert "infinite" in made.shown()


@pytest.mark.parametrize("name", ["absent.png", "../outside.png", "text.png", "", "\0"])
def test_what_is_no_picture_of_the_run_is_left_out(record, report, tmp_path, name):
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "outside.png").write_bytes(png(0))
    (folder / "text.png").write_text("no picture")
    record["nodes"][2]["facts"]["pictures"] = [{"original": name}]
    assert "Pictures" not in report(record, folder=folder).headings()


def test_placement_shows_providers_and_folds_the_fast_operators_away(record, report):
    made = report(record, PROFILE)
    (row,) = made.rows("Nodes by execution provider, and time of one run")
    assert row == ["unet", "CUDA: 826", "12.50", "sample: 2x4x64x64"]
    assert len(made.rows("Operators of unet, slowest first")) == 12
    assert len(made.rows("Operators of unet, the rest")) == 2


def test_sizes_of_source_and_output_are_added_up(record, report):
    made = report(record)
    assert made.rows("Weight files of the source")[-1] == ["all", "3.7 GB"]
    assert made.rows("Files of models/demo")[0] == ["unet/model.onnx", "400.0 kB"]


def test_a_failure_is_shown_with_its_log_before_anything_else(record, report):
    record["status"] = "failed"
    record["nodes"][2] |= {
        "status": "failed",
        "error": "the graph\nis broken",
        "log": "/art/my project/cache/logs/1/unet.verify.log",
    }
    made = report(record)
    assert made.headings()[0] == "What went wrong"
    assert "the graph\nis broken" in made.shown()
    assert "cache/logs/1/unet.verify.log" in made.shown()
    assert "1 failed" in made.shown()


def test_an_error_without_a_failed_node_is_shown_too(record, report):
    assert "the disk is full" in report({**record, "error": "the disk is full"}).shown()


NASTY = "<script>alert(1)</script>\"'&\x00\x1b[31m\ud800"


def test_nothing_in_a_record_becomes_markup(record, report):
    def spoilt(value):
        if isinstance(value, dict):
            return {
                (NASTY if name in {"Add", "python", "attention"} else name): v if name == "kind" else spoilt(v)
                for name, v in value.items()
            }
        if isinstance(value, list):
            return [spoilt(entry) for entry in value]
        return NASTY + value if isinstance(value, str) else value

    profile = spoilt(PROFILE)
    profile["networks"][0] |= {"name": NASTY, "inputs": {NASTY: NASTY}}
    damaged = spoilt(record)
    damaged["nodes"][0] |= {"status": "failed", "error": NASTY, "log": NASTY}
    for text in (report(damaged, profile).text, report({**damaged, "nodes": [], "error": NASTY}).text):
        assert "<script" not in text
        assert "\x1b" not in text
        assert "&lt;script&gt;alert(1)" in text
        text.encode()


def test_the_template_takes_nothing_as_markup_but_the_style_sheet():
    assert re.findall(r"{{[^}]*(?:safe|Markup)[^}]*}}", TEMPLATE) == ["{{ style | safe }}"]
    assert "autoescape" not in TEMPLATE


def test_a_record_of_the_first_version_has_a_report(record, report):
    for name in ("loras", "embeddings", "source_files", "output_files"):
        del record[name]
    for node in record["nodes"]:
        for name in ("parent", "start_seconds", "memory_before_bytes"):
            node.pop(name, None)
    made = report(record)
    assert [text.split()[0] for _, text in made.steps()] == ["load", "fuse", "verify"]
    assert "Sizes" not in made.headings()


def test_a_run_without_nodes_has_a_report(report):
    whole = ("workflow", "target", "source")
    made = report({**{name: RECORD[name] for name in whole}, "run_id": "x", "status": "interrupted", "nodes": []})
    assert made.headings() == ["Environment"] or not made.headings()


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(CHARACTERS, max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(CHARACTERS, max_size=5), inner, max_size=3),
    max_leaves=12,
)
FACTS = st.dictionaries(
    st.sampled_from(
        [
            "operators_before",
            "operators_after",
            "nodes_before",
            "fused",
            "left",
            "verification",
            "auto",
            "pictures",
            "components",
        ]
    ),
    ANYTHING,
)


@settings(max_examples=60, deadline=None)
@given(FACTS, st.dictionaries(st.sampled_from(["networks", "runs"]), ANYTHING), ANYTHING)
def test_whatever_facts_a_pass_leaves_the_report_is_made(tmp_path_factory, facts, profile, anything):
    nodes = [{**node, "facts": {**node["facts"], **facts}} for node in RECORD["nodes"]]
    beside = Beside(tmp_path_factory.getbasetemp(), profile, facts, {"rows": [anything, facts]})
    page(RunRecord.from_json({**RECORD, "nodes": nodes, "previous": PREVIOUS}), beside).encode()
    page(RunRecord.from_json(RECORD), Beside(beside.folder, anything, anything, anything)).encode()


def test_weights_that_an_output_could_not_keep_are_told(record, report):
    record["nodes"][-1]["facts"] = {"not_finite": {"conv_in.weight": 2}, "saturated": {}, "files": {}}
    made = report(record)
    assert "Weights that are not as they were" in made.headings()
    assert "2 values of its weights are infinite or NaN, and so is what it computes: conv_in.weight (2)" in made.shown()
    record["nodes"][-1]["facts"] = {"not_finite": {"conv_in.weight": "many"}}
    assert "Weights that are not as they were" not in report(record).headings()
