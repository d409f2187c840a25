from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from olivelike.errors import SourceError
from olivelike.sources import SourceSpec, open_source
from olivelike.sources.files.pickled import describe_pickle, read_pickle_table
from tests.fixtures.pickle_tables import read_pickle_here


@pytest.fixture
def pickled(saved_copy: Path) -> Path:
    """A folder whose text encoder has a `.bin` file only."""
    safe = saved_copy / "text_encoder/model.safetensors"
    torch.save(load_file(safe), safe.with_name("pytorch_model.bin"))
    safe.unlink()
    return saved_copy


def test_pickled_weights_are_refused_unless_allowed(pickled: Path) -> None:
    with pytest.raises(SourceError, match=r"only pickled weights \(pytorch_model\.bin\).*--allow-pickle"):
        open_source(SourceSpec(path=pickled), ["text_encoder"])


def test_safetensors_win_over_pickled_weights_even_where_those_are_allowed(saved_copy: Path) -> None:
    (saved_copy / "text_encoder/pytorch_model.bin").write_bytes(b"never read")
    source = open_source(SourceSpec(path=saved_copy), ["text_encoder"], allow_pickle=True)
    assert source.checkpoint("text_encoder").files[0].name == "model.safetensors"


def test_the_table_points_at_the_tensors_bytes_in_the_archive(pickled: Path, saved_checkpoint: Path) -> None:
    spec = SourceSpec(path=pickled)
    source = open_source(spec, ["text_encoder"], allow_pickle=True, read_pickle=read_pickle_here)
    found = source.checkpoint("text_encoder")
    data = found.files[0].read_bytes()
    expected = load_file(saved_checkpoint / "text_encoder/model.safetensors")
    assert found.tensors.keys() == expected.keys()
    for name, (stored, _) in found.tensors.items():
        piece = data[stored.offset : stored.offset + expected[name].nbytes]
        assert piece == expected[name].numpy().tobytes()
    plain = open_source(SourceSpec(path=saved_checkpoint), ["text_encoder"]).checkpoint("text_encoder")
    assert found.layout_digest == plain.layout_digest


def test_shared_and_sliced_tensors_point_into_one_storage(tmp_path: Path) -> None:
    whole = torch.arange(10.0)
    torch.save({"whole": whole, "part": whole[4:8], "half": torch.ones(3).half()}, tmp_path / "a.bin")
    table = describe_pickle(tmp_path / "a.bin")
    assert table["part"] == ["F32", [4], table["whole"][2] + 16]
    assert table["half"][:2] == ["F16", [3]]


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("exploded"),)


def test_neither_code_in_a_pickle_nor_modules_of_the_current_folder_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('imported from the current folder')")
    monkeypatch.chdir(tmp_path)
    torch.save({"w": Bomb()}, "a.bin")
    with pytest.raises(SourceError, match=r"a\.bin: can't be loaded as plain tensors"):
        read_pickle_table(tmp_path / "a.bin")
    assert not (tmp_path / "exploded").exists()


def test_checkpoints_of_training_programs_are_unwrapped(tmp_path: Path) -> None:
    state = {"a.weight": torch.ones(2), "global_step": 3, "optimizer": {"lr": 0.1}}
    content = {"epoch": 1, "global_step": 470000, "callbacks": {}, "state_dict": state}
    torch.save(content, tmp_path / "a.ckpt")
    assert list(describe_pickle(tmp_path / "a.ckpt")) == ["a.weight"]


def test_official_checkpoints_that_name_a_class_of_lightning_are_read(tmp_path: Path) -> None:
    plain, named = tmp_path / "plain.ckpt", tmp_path / "named.ckpt"
    torch.save({"callbacks": {Callback: {"best": 1.0}}, "state_dict": {"w": torch.ones(2)}}, plain)
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(named, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.endswith("data.pkl"):
                own = f"c{Callback.__module__}\nCallback\n".encode()
                assert own in data
                data = data.replace(own, b"cpytorch_lightning.callbacks.model_checkpoint\nModelCheckpoint\n")
            new.writestr(entry.filename.replace("plain/", "named/"), data)
    with pytest.raises(SourceError, match=r"plain\.ckpt: can't be loaded as plain tensors"):
        describe_pickle(plain)
    assert list(describe_pickle(named)) == ["w"]


class Callback:
    """Stands for a class that a training program left in its checkpoint."""


def test_the_vectors_of_an_embedding_are_found_beside_its_settings(tmp_path: Path) -> None:
    content = {
        "string_to_token": {"*": 265},
        "string_to_param": {"*": torch.ones(2, 768)},
        "name": "style",
        "step": 100,
    }
    torch.save(content, tmp_path / "style.pt")
    assert {name: row[:2] for name, row in describe_pickle(tmp_path / "style.pt").items()} == {
        "string_to_param.*": ["F32", [2, 768]]
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "expected a dict of tensors, found list"),
        ({"epoch": 3}, "epoch is no tensor"),
        ({"w": torch.ones(2, 3).t()}, "the bytes of w do not lie in one piece"),
    ],
)
def test_content_that_no_table_can_describe_is_refused(tmp_path: Path, content: object, message: str) -> None:
    torch.save(content, tmp_path / "a.bin")
    with pytest.raises(SourceError, match=message):
        describe_pickle(tmp_path / "a.bin")


def test_the_format_before_zip_archives_and_damaged_files_are_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    with pytest.raises(SourceError, match="do not lie in one piece; load it with torch once"):
        describe_pickle(tmp_path / "old.bin")
    (tmp_path / "bad.bin").write_bytes(b"PK, but no archive")
    with pytest.raises(SourceError, match=r"bad\.bin: can't be loaded"):
        describe_pickle(tmp_path / "bad.bin")


def repacked(path: Path, compression: int, change: Callable[[str, bytes], bytes] = lambda _, data: data) -> Path:
    """Write an archive's entries again, under the same names."""
    entries = {}
    with zipfile.ZipFile(path) as old:
        entries = {entry.filename: old.read(entry) for entry in old.infolist()}
    with zipfile.ZipFile(path, "w", compression) as new:
        for name, data in entries.items():
            new.writestr(name, change(name, data))
    return path


def test_a_compressed_archive_is_refused_rather_than_read_as_it_lies(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(4096.0), "b": torch.ones(8)}, tmp_path / "a.ckpt")
    repacked(tmp_path / "a.ckpt", zipfile.ZIP_DEFLATED)
    assert torch.load(tmp_path / "a.ckpt", weights_only=True)["a"][7] == 7
    with pytest.raises(SourceError, match=r"a\.ckpt: a is compressed in it \(a/data/0\).*save it as safetensors"):
        describe_pickle(tmp_path / "a.ckpt")


def test_an_archive_that_is_packed_anew_without_compression_is_read(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(4096.0)}, tmp_path / "a.ckpt")
    repacked(tmp_path / "a.ckpt", zipfile.ZIP_STORED)
    ((_, _, offset),) = describe_pickle(tmp_path / "a.ckpt").values()
    data = (tmp_path / "a.ckpt").read_bytes()[offset:]
    assert data.startswith(torch.arange(4096.0).numpy().tobytes())


def test_tensors_beyond_their_entry_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(64.0)}, tmp_path / "a.ckpt")
    repacked(tmp_path / "a.ckpt", zipfile.ZIP_STORED, lambda name, data: data[:16] if "/data/" in name else data)
    with pytest.raises(SourceError, match=r"a\.ckpt: the bytes of a are not inside|can't be loaded as plain"):
        describe_pickle(tmp_path / "a.ckpt")


def test_big_endian_numbers_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(64.0)}, tmp_path / "a.ckpt")
    repacked(tmp_path / "a.ckpt", zipfile.ZIP_STORED, lambda name, data: b"big" if "byteorder" in name else data)
    with pytest.raises(SourceError, match=r"a\.ckpt: its numbers are big-endian"):
        describe_pickle(tmp_path / "a.ckpt")
