"""Keys: golden digests, and what changes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from olivelike.engine.keys import Key

KEY = Key(
    name="float16",
    code="c" * 64,
    modules={"olivelike.passes.float16": "d" * 64},
    options={"keep_io": False, "force_fp32": []},
    facets={"graph": "a" * 64},
    target=None,
    tools={"onnx": "1.19.0"},
)


def test_the_digest_of_a_known_key_is_pinned() -> None:
    assert KEY.digest == "33b539ba00769c788c2dd46119da487bd678abaea1a98771c53b855a78614ee6"


def test_the_order_of_options_does_not_matter() -> None:
    assert replace(KEY, options={"force_fp32": [], "keep_io": False}).digest == KEY.digest


@pytest.mark.parametrize(
    "change",
    [
        {"name": "float32"},
        {"code": "e" * 64},
        {"options": {"keep_io": True, "force_fp32": []}},
        {"facets": {"graph": "b" * 64}},
        {"facets": {"weights": "a" * 64}},
        {"target": {"name": "cpu"}},
        {"tools": {"onnx": "1.20.0"}},
        {"named": {"data file table.csv": "f" * 64}},
    ],
)
def test_every_part_changes_the_digest(change: dict) -> None:
    assert replace(KEY, **change).digest != KEY.digest


def test_the_list_of_modules_explains_and_does_not_decide() -> None:
    """`code` is already the digest over the modules."""
    assert replace(KEY, modules={}).digest == KEY.digest
