"""GGUF files: read as the library `gguf` decodes them, opened as the networks that they hold, or refused."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from network_values import check_same, networks_of, spec_of, values
from safetensors.numpy import load_file, save_file

from olivelike.errors import MissingError, SourceError
from olivelike.model import Tensor
from olivelike.model.block_forms import BLOCK_FORMS
from olivelike.model.quantised_values import BlockFormat
from olivelike.model.tensor_file import read_part, read_tensor
from olivelike.sources import Adaptation, Checkpoint, SourceSpec, bind, open_source
from olivelike.sources.files import weight_header
from olivelike.sources.files.weight_table import read_weight_table
from olivelike.sources.identify.weight_file import describe_weight_file
from olivelike.sources.names.adaptation import StoredView
from tests.fixtures.gguf_files import write_gguf
from tests.fixtures.maker_files import SMALL, in_llamas_names, in_makers_names, maker_folder, states, write_parts

FORMS = (*BLOCK_FORMS, "F16", "BF16", "F32")
LLAMAS = {
    ("flux2", "text_encoder"): "qwen3", ("z_image", "text_encoder"): "qwen3",
    ("flux", "text_encoder_2"): "t5", ("sd3", "text_encoder_3"): "t5",
}  # fmt: skip
FORM_OF = {"flux2": "Q8_0", "z_image": "Q4_0", "flux": "Q5_1", "sd3": "BF16"}


def test_sizes_of_blocks_are_those_of_the_library() -> None:
    expected = {kind.name: (int(kind), *GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType}
    assert {name: tuple(form) for name, form in BLOCK_FORMS.items()} == {name: expected[name] for name in BLOCK_FORMS}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_as_the_library_decodes_it(form, tmp_path) -> None:
    random = np.random.default_rng(0)
    shapes = {"a.weight": (6, 512), "b.bias": (7,), "c.weight": (64, 4, 3, 3), "x_pad_token": (1, 256), "d": (5, 3)}
    state = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    path = tmp_path / "a.gguf"
    meant = write_gguf(path, state, form, rows_of_256=True)
    header = read_weight_table(path)
    assert {name: raw.shape for name, raw in header.tensors.items()} == shapes
    assert header.metadata == {"general.architecture": "flux"}
    tensors = {name: Tensor(raw.dtype, raw.shape, "f", raw.offset) for name, raw in header.tensors.items()}
    for name, tensor in tensors.items():
        assert np.array_equal(read_tensor(tensor, {"f": path}).astype(np.float32), meant[name])
    if form in BLOCK_FORMS:
        held = [name for name, tensor in tensors.items() if tensor.dtype == form]
        assert held == ["a.weight", "c.weight", "x_pad_token"]
        assert tensors["a.weight"].read_dtype == "F32"
    # A part of rows that are no whole blocks.
    part = read_part(tensors["c.weight"], {"f": path}, 36 * 3, 36 * 5)
    assert np.array_equal(part.astype(np.float32), meant["c.weight"].reshape(-1)[36 * 3 : 36 * 8])


@pytest.mark.parametrize("family", SMALL)
def test_networks_in_gguf_are_those_of_the_same_values_in_safetensors(family, tmp_path) -> None:
    parts, wide = {}, {}
    for name, state in states(maker_folder(family)).items():
        held = in_makers_names(family, name, state)
        if name == "vae":
            parts |= (written := write_parts(tmp_path, {name: held}))
            wide |= written
            continue
        named = in_llamas_names(LLAMAS[family, name], held) if (family, name) in LLAMAS else held
        path = parts[name] = tmp_path / f"{name}.gguf"
        meant = write_gguf(path, {key: value.numpy() for key, value in named.items()}, FORM_OF[family], ones=False)
        same = {key: torch.from_numpy(meant[own]) for key, own in zip(held, named, strict=True)}
        wide |= write_parts(tmp_path, {name: same})
    names = networks_of(family)
    found, expected = open_source(spec_of(parts), names), open_source(spec_of(wide), names)
    assert (found.index, found.left_out) == (expected.index, ())
    for name in names:
        check_same(values(found.checkpoint(name)), values(expected.checkpoint(name)))


def test_a_unet_with_rows_of_256_is_that_of_its_checkpoint(both_forms_of, tmp_path) -> None:
    both = both_forms_of("sd15")
    state = {name: value for name, value in load_file(both.file).items() if value.dtype.kind == "f"}
    save_file(write_gguf(tmp_path / "a.gguf", state, rows_of_256=True), tmp_path / "a.safetensors")
    assert "Q8_0" in {one.dtype for one in read_weight_table(tmp_path / "a.gguf").tensors.values()}
    found, expected = (open_source(SourceSpec(path=tmp_path / f"a.{end}"), ["unet"]) for end in ("gguf", "safetensors"))
    assert found.origin.identified == expected.origin.identified
    check_same(values(found.checkpoint("unet")), values(expected.checkpoint("unet")))
    # Alone, as ComfyUI-GGUF makes them.
    own = {
        name.removeprefix("model.diffusion_model."): value
        for name, value in state.items()
        if name.startswith("model.diffusion_model.")
    }
    write_gguf(tmp_path / "unet.gguf", own, rows_of_256=True)
    alone = open_source(SourceSpec(path=tmp_path / "unet.gguf"), ["unet"])
    check_same(values(alone.checkpoint("unet")), values(expected.checkpoint("unet")))


def test_8_bits_in_symmetric_blocks_of_32_keep_the_numbers_of_q8_0(tmp_path) -> None:
    state = {"a": np.random.default_rng(0).standard_normal((16, 256)).astype(np.float32)}
    (meant,) = write_gguf(tmp_path / "a.gguf", state).values()
    form = BlockFormat(8, 32, 1, symmetric=True, packed=True)
    assert np.array_equal(form.dequantise(form.quantise(meant), meant.shape), meant)


def test_info_tells_forms_and_names_of_llama(tmp_path) -> None:
    held = in_llamas_names("qwen3", states(maker_folder("flux2"))["text_encoder"])
    write_gguf(tmp_path / "q.gguf", {name: value.numpy() for name, value in held.items()})
    told = "\n".join(describe_weight_file(tmp_path / "q.gguf").summary_lines())
    assert "a text encoder of Qwen3" in told
    assert "in llama.cpp's names" in told
    assert re.search(r"precision .*Q8_0 \d", told)


def test_the_library_is_asked_for_where_it_is_missing(tmp_path, monkeypatch) -> None:
    held = in_makers_names("z_image", "transformer", states(maker_folder("z_image"))["transformer"])
    arrays = {name: value.numpy() for name, value in held.items()}
    for form in ("Q8_0", "BF16"):
        write_gguf(tmp_path / f"{form}.gguf", arrays, form)
    monkeypatch.setattr(weight_header, "find_spec", lambda name: None)
    # What has no blocks needs no library.
    open_source(SourceSpec(path=tmp_path / "BF16.gguf"), ["transformer"])
    told = r"Q8_0, which the library gguf reads, and that is not installed; run `pip install 'olivelike\[gguf\]'`"
    with pytest.raises(MissingError, match=rf"Q8_0\.gguf: tensor .* is stored as {told}"):
        open_source(SourceSpec(path=tmp_path / "Q8_0.gguf"), ["transformer"])


def test_a_part_that_begins_within_a_block_is_refused(tmp_path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, {"qkv": np.zeros((6, 256), np.float32)}, "Q4_K")
    held = Checkpoint("unet", "diffusers", "Any", {}, {"qkv": (read_weight_table(path).tensors["qkv"], path)})
    whole = bind(Adaptation(None, {"to_k": StoredView("qkv", (2, 256), 512)}, ()), held, {path: "f"})
    assert whole["to_k"].offset == held.tensors["qkv"][0].offset + 2 * 144
    with pytest.raises(SourceError, match=r"blocks of 256 values \(Q4_K\), and to_k, a part of it, begins within one"):
        bind(Adaptation(None, {"to_k": StoredView("qkv", (128,), 128)}, ()), held, {path: "f"})


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def made(*rows: bytes, notes: bytes = b"", count: int = 0, version: int = 3, data: bytes = b"") -> bytes:
    """Return a file of rows of tensors, behind `count` notes."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(rows), count) + notes + b"".join(rows)
    return head + bytes(-len(head) % 32) + data


def row(name: bytes = b"a.weight", dims: tuple[int, ...] = (32, 2), kind: int = 8, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


NOTE = text(b"comfy.gguf.orig_shape.a.weight") + struct.pack("<II", 9, 5)
WHOLE = bytes(68)
HUGE = 1 << 62


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GGUF", "truncated: at least 24 bytes expected, 4 found"),
        (made(version=1), "it has version 1, and version 2 and 3 are read"),
        (made(version=3 << 24), "it has the other order of bytes"),
        (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), "at most 50,000 of each are read"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), "at most 50,000 of each are read"),
        (made(row(), data=WHOLE[:-1]), "truncated: at least"),
        (made(struct.pack("<Q", HUGE)), r"the name of a tensor has 4,611,686,018,427,387,904 bytes"),
        (made(text(b"\xff")), "the name of a tensor at byte 32 is no text"),
        (made(text(b"a") + struct.pack("<I", 1 << 30)), "tensor a has 1073741824 dimensions"),
        (made(row(dims=(HUGE, HUGE)), data=WHOLE), "truncated"),
        (made(row(dims=(33, 2)), data=WHOLE), r"tensor a\.weight has rows of \(33,\) values in blocks of 32 \(Q8_0\)"),
        (made(row(dims=()), data=WHOLE), r"tensor a\.weight has rows of \(\) values"),
        (made(row(), row(), data=WHOLE), "tensor a.weight occurs twice"),
        (made(row(), row(b"b", offset=32), data=bytes(200)), "tensor b begins within another one"),
        (made(row(offset=8), data=bytes(100)), "begins at 8, no multiple of 32"),
        (made(row(offset=HUGE), data=WHOLE), "truncated"),
        (made(notes=text(b"n") + struct.pack("<I", 13), count=1), "its note n is of unknown type 13"),
        (made(notes=text(b"n") + struct.pack("<IIQ", 9, 9, 1), count=1), "its note n is a list of unknown type 9"),
        (made(notes=text(b"n") + struct.pack("<IIQ", 9, 4, HUGE), count=1), "truncated"),
        (made(notes=text(b"n") + struct.pack("<IIQ", 9, 8, HUGE), count=1, data=bytes(99)), "truncated"),
        (made(notes=text(b"n") + struct.pack("<IQ", 8, HUGE), count=1), "truncated"),
        (made(notes=2 * (text(b"n") + struct.pack("<IB", 0, 1)), count=2), "a note of it, n, occurs twice"),
        (made(notes=text(b"general.alignment") + struct.pack("<II", 4, 0), count=1), "is no number of bytes"),
        (made(row(), notes=NOTE + struct.pack("<Q2i", 2, 8, 9), count=1, data=WHOLE), r"its shape should be \[8, 9\]"),
        (made(row(), notes=NOTE + struct.pack("<Q2i", 2, -8, -8), count=1, data=WHOLE), r"should be \[-8, -8\]"),
        (made(row(), notes=NOTE + struct.pack("<Q20i", 20, *[1] * 20), count=1, data=WHOLE), "is no shape"),
    ],
)
def test_files_that_lie_are_refused_with_what_is_wrong(content, message, tmp_path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=rf"a\.gguf: .*{message}"):
        read_weight_table(path)


@pytest.mark.parametrize(("kind", "told"), [(39, "MXFP4"), (15, "Q8_K"), (99, "GGML type 99")])
def test_forms_that_are_not_known_are_named_with_their_tensor(kind, told, tmp_path) -> None:
    held = in_makers_names("z_image", "transformer", states(maker_folder("z_image"))["transformer"])
    path = tmp_path / "a.gguf"
    write_gguf(path, {name: value.numpy() for name, value in held.items()}, "F32")
    data = path.read_bytes()
    place = data.index(b"cap_embedder.1.weight") + len(b"cap_embedder.1.weight") + 4 + 2 * 8
    path.write_bytes(data[:place] + struct.pack("<I", kind) + data[place + 4 :])
    with pytest.raises(
        SourceError, match=rf"a\.gguf: tensor cap_embedder\.1\.weight is stored as {told}, which is not"
    ):
        open_source(SourceSpec(path=path), ["transformer"])
