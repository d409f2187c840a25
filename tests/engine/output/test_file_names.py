"""The gate where files are written: what others have named never gets past it."""

from __future__ import annotations

import pytest
from output_folders import NEW, OLD, content, make_record, publish_files

from olivelike.engine.output.file_names import stage, wrong_name
from olivelike.engine.output.output_files import write_file
from olivelike.engine.output.publication import publish
from olivelike.engine.output.staging import discard_staging, staging_folder
from olivelike.errors import PassError
from olivelike.model.records.output import JOURNAL_FILE, RECORD_FILE, OutputRecord

OUTSIDE = (
    "/etc/passwd",
    "../up",
    "a/../../up",
    "a/./b",
    "a//b",
    "",
    ".",
    "..",
    "a/",
    "C:/x",
    "C:x",
    "a\\b",
    "\\\\host\\x",
)
UNUSABLE = (
    "con", "NUL.txt", "a/COM1", "aux .json", "a.", "a ", "a:b", "a\0b", "a\nb", "a*", "\ud800", "x" * 256, "東" * 86,
)  # fmt: skip
OURS = (
    RECORD_FILE,
    "OLIVELIKE.json",
    JOURNAL_FILE,
    ".Olivelike-Journal.JSON",
    "unet/.olivelike-staging-7",
    "README.md",
    "readme.MD",
)
TWICE = (
    ("a/b", "a/b"), ("a/B", "A/b"), ("straße", "STRASSE"), ("caf\u00e9", "cafe\u0301"), ("a", "a/b"), ("A/b/c", "a/B"),
)  # fmt: skip


@pytest.mark.parametrize("name", [*OUTSIDE, *UNUSABLE, *OURS])
def test_a_name_that_is_none_below_the_output_on_every_system_is_refused(tmp_path, name):
    assert wrong_name(["unet/model.onnx", name]) is not None
    staging = staging_folder(tmp_path / "models" / "out")
    with pytest.raises(PassError, match="nothing was published"):
        stage(staging, name, b"evil")
    assert not list(staging.iterdir())


@pytest.mark.parametrize("names", TWICE)
def test_names_that_are_one_somewhere_are_refused(names):
    assert wrong_name(names) is not None
    assert wrong_name(names[::-1]) is not None


def test_names_that_outputs_have_are_taken():
    names = [
        *OLD,
        "tokenizer/merges.txt",
        "weights.1.pb",
        ".gitattributes",
        "a/.hidden",
        "console",
        "x" * 255,
        "東" * 85,
    ]
    assert wrong_name(names) is None


def test_nothing_is_staged_twice_or_through_a_link(tmp_path):
    staging = staging_folder(tmp_path / "out")
    stage(staging, "unet/model.onnx", b"mine")
    (tmp_path / "elsewhere").mkdir()
    (staging / "linked").symlink_to(tmp_path / "elsewhere")
    (staging / "file").symlink_to(tmp_path / "elsewhere" / "made")
    for name in ("unet/model.onnx", "linked/x", "file", "unet/model.onnx/x"):
        with pytest.raises(PassError, match="can't go into the output"):
            stage(staging, name, b"evil")
    assert (staging / "unet" / "model.onnx").read_bytes() == b"mine"
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("how", ["more", "longer", "link", "linked folder", "name"])
def test_what_no_step_has_reported_is_not_published(tmp_path, is_new, how):
    output = tmp_path / "out"
    if not is_new:
        publish_files(output, OLD)
    before = OutputRecord.read(output)
    files = {**NEW, **({"unet/con.onnx": b"x"} if how == "name" else {})}
    staging = staging_folder(output)
    for path, data in files.items():
        write_file(staging / path, data)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "evil").write_bytes(b"evil")
    match how:
        case "more":
            write_file(staging / "unet" / "evil.py", b"evil")
        case "longer":
            write_file(staging / "unet" / "model.onnx", NEW["unet/model.onnx"] + b"!")
        case "link":
            (staging / "unet" / "model.onnx").unlink()
            (staging / "unet" / "model.onnx").symlink_to(tmp_path / "elsewhere" / "evil")
        case "linked folder":
            (staging / "evil").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PassError, match="nothing was published"):
        publish(staging, output, make_record(files), before)
    discard_staging(staging)
    assert (not output.exists()) if is_new else (content(output) == OLD)
    assert (tmp_path / "elsewhere" / "evil").read_bytes() == b"evil"
