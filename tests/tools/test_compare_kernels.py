"""Claims of targets: each has a source, and none differs from the registries of released wheels."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from olivelike.graphs.inspect.placement import REGISTRIES
from olivelike.model.targets import TARGETS, Kernel
from tools import compare_kernels
from tools.compare_kernels import WHEELS, claims, compare, compare_registry, compare_widths, disagreements, sources
from tools.kernel_registries import Found, read_directml

HELP = "write the claims anew with `python -m tools.compare_kernels`, and the source of each that is new"


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_each_claim_of_a_target_has_a_source_and_each_source_a_claim(target):
    rows = sources().get(target.name, {})
    assert {claim: words for claim, (words, _) in rows.items()} == claims(target), HELP
    assert not [claim for claim, (_, source) in rows.items() if len(source.split()) < 3], HELP


def test_the_page_is_as_the_script_writes_it():
    assert compare_kernels.page() == compare_kernels.PAGE.read_text(encoding="utf-8"), HELP


def test_a_claim_that_is_not_in_the_tables_words_is_seen(tmp_path, monkeypatch):
    page = tmp_path / "claims.md"
    text = compare_kernels.PAGE.read_text(encoding="utf-8")
    page.write_text(text.replace("| f h b, packed |", "| f h, packed |"), encoding="utf-8")
    monkeypatch.setattr(compare_kernels, "PAGE", page)
    assert {claim: words for claim, (words, _) in sources()["cuda"].items()} != claims(TARGETS["cuda"])
    assert compare_kernels.page() == text


def test_sources_are_in_no_facts():
    assert all("source" not in kernel for target in TARGETS.values() for kernel in target.facts()["kernels"].values())


def test_wrong_claims_are_named():
    kernels = {"BiasAdd": Kernel(frozenset("fhb")), "Nothing": Kernel(frozenset("f"))}
    target = replace(TARGETS["cuda"], kernels=kernels, bfloat16_operators=frozenset({"Abs", "BiasAdd", "Neg"}))
    assert list(compare(target, {"BiasAdd": Found(1, "fh"), "ai.onnx.Neg": Found(13, "fb")})) == [
        "cuda: claims BiasAdd in b, it is there in fh",
        "cuda: claims Nothing, which is not there",
        "cuda: claims Abs in bfloat16, which is not there",
        "cuda: claims BiasAdd in bfloat16, which is not there",
    ]
    body = replace(target, kernels={"GroupNormalization": Kernel(frozenset("f"))}, bfloat16_operators=frozenset())
    assert not list(compare(body, {}))


def test_widths_that_a_library_refuses_are_named():
    text = b"\0hidden size should be 2560 or 5120, got \0"
    assert list(compare_widths(TARGETS["cuda"], text)) == [
        "cuda: claims BiasSplitGelu for 2560 5120 6144 10240 12288 widths, the library says 2560 5120"
    ]


def test_a_list_that_differs_from_the_registry_is_named():
    kernels = {f"ai.onnx.{name}": Found(opset) for name, opset in REGISTRIES["cpu"].standard.items()}
    kernels |= {name: Found(1) for name in REGISTRIES["cpu"].contrib}
    assert not list(compare_registry("cpu", kernels))
    del kernels["BiasGelu"]
    kernels["ai.onnx.Conv"] = Found(11)
    assert list(compare_registry("cpu", kernels)) == [
        "cpu: inspect's list has Conv 22, the registry 11", "cpu: BiasGelu is only in the list of inspect",
    ]  # fmt: skip


def test_directmls_table_is_read_by_address(tmp_path):
    """A made library: two rows of the layout, in a section whose address is not its place."""
    base, start, place = 0x180000000, 0x1000, 0x200
    text = b"\0BiasSplitGelu\0com.microsoft\0Conv\0\0"
    masks, rows = 64, 80

    def row(name: int, opset: int, domain: int) -> bytes:
        fields = [base + start + name, opset, base + start + domain, *[0] * 9, 1, base + start + masks, *[0] * 6]
        return struct.pack("<20Q", *fields)

    data = text.ljust(masks, b"\0") + struct.pack("<IIQ", 0x1002, 0, 0)
    data += row(1, 1, 15) + row(29, 11, 34) + struct.pack("<20Q", *[0] * 20)
    assert len(data) == rows + 3 * 160
    header = bytearray(place)
    struct.pack_into("<I", header, 0x3C, 0x40)
    struct.pack_into("<H", header, 0x40 + 6, 1)
    struct.pack_into("<H", header, 0x40 + 20, 0xF0)
    struct.pack_into("<Q", header, 0x40 + 48, base)
    struct.pack_into("<8sIIII", header, 0x40 + 24 + 0xF0, b".rdata", len(data), start, len(data), place)
    library = tmp_path / "onnxruntime.dll"
    library.write_bytes(bytes(header) + data)
    found = read_directml(library)
    assert found["BiasSplitGelu"] == Found(1, "fh")
    assert found["ai.onnx.Conv"] == Found(11, "fh")


@pytest.mark.slow
def test_no_claim_differs_from_the_registries_of_released_wheels():
    folder = Path(os.environ.get("OLIVELIKE_WHEELS", "wheels"))
    missing = [wheel.name for wheel in WHEELS if not list(folder.glob(f"{wheel.name}*.whl"))]
    if missing:
        pytest.skip(f"no wheels of {', '.join(dict.fromkeys(missing))} in {folder} (OLIVELIKE_WHEELS): docs/claims.md")
    assert disagreements(folder) == []
