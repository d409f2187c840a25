"""What a report shows of weights that a step quantised."""

from __future__ import annotations

import pytest

KEPT = [
    {"form": "8 bits", "blocks": [64, 128], "layers": 90, "weights": 900_000, "names": []},
    {"form": "float32", "blocks": [], "layers": 1, "weights": 100_000, "names": ["conv_in.weight"]},
]


@pytest.fixture
def quantised(record):
    """A record whose UNet is quantised in front of its `verify`."""
    node = {
        "id": "unet.weights8", "component": "unet", "name": "weights8", "parent": "unet.fuse", "status": "executed",
        "reason": "never run here", "facts": {"weights_left": 1, "kept_weights": KEPT},
    }  # fmt: skip
    record["nodes"].insert(2, node)
    record["nodes"][3]["parent"] = "unet.weights8"
    return record


def test_each_type_has_a_row_with_the_error_of_the_network(quantised, report):
    found = report(quantised)
    assert "Quantisation" in found.headings()
    first, second = found.rows("Weights of layers")
    assert first[:6] == ["unet.weights8", "8 bits", "64, 128", "90", "900,000", "90.0 %"]
    assert "e-" in first[6]
    assert second == ["unet.weights8", "float32", "", "1", "100,000", "10.0 %", ""]
    assert found.rows("1 layer of unet.weights8 in float32") == [["conv_in.weight"]]
    assert "kept weights" not in found.shown()


def test_without_a_step_verify_the_error_is_not_there(quantised, report):
    del quantised["nodes"][3]
    assert report(quantised).rows("Weights of layers")[0][6] == "not compared"


@pytest.mark.parametrize("kept", [None, "8 bits", [{"form": 8}], [{**KEPT[0], "blocks": "many"}]])
def test_facts_of_another_form_are_details(quantised, report, kept):
    quantised["nodes"][2]["facts"]["kept_weights"] = kept
    assert "Quantisation" not in report(quantised).headings()


def test_a_float_graph_has_no_such_section(record, report):
    assert "Quantisation" not in report(record).headings()
