"""The mark that AI made a picture, as other programs read it, and hostile ones as we do."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import warnings
import zlib
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from picture_samples import PLAIN, RECORD, save
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from olivelike.errors import SourceError
from olivelike.runtime.pictures import PictureWriter, UsedFile, read_picture
from olivelike.runtime.pictures.ai_mark import COMPOSITE, MADE, said_source_type, xmp_packet
from olivelike.runtime.pictures.sheets import SheetPicture

VOCABULARY = "http://cv.iptc.org/newscodes/digitalsourcetype/"
FILES = ["a.png", "a.jpg", "a.webp"]
TAG = "{http://iptc.org/std/Iptc4xmpExt/2008-02-29/}DigitalSourceType"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("metadata", [True, False])
def test_every_picture_says_that_ai_made_it_with_and_without_its_recipe(tmp_path, image, name, metadata):
    path = save(tmp_path, image, PLAIN, name, metadata=metadata)
    found = read_picture(path)
    assert found.source_type == MADE
    assert (found.record == PLAIN, found.parameters is not None) == (metadata, metadata)
    with Image.open(path) as opened:
        opened.load()
        xmp = opened.info["xmp"]
    root = ET.fromstring(xmp)
    assert [tag.text for tag in root.iter(TAG)] == [VOCABULARY + MADE]


@pytest.mark.parametrize("name", FILES)
def test_nothing_of_the_recipe_is_left_without_metadata(tmp_path, image, name):
    data = save(tmp_path, image, replace(PLAIN, prompt="secretword"), name, metadata=False).read_bytes()
    for word in ("secretword", "Euler a", "olivelike", "parameters", "Steps"):
        assert word.encode() not in data
        assert word.encode("utf-16-be") not in data
    with Image.open(tmp_path / name) as opened:
        assert not opened.getexif()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("metadata", [True, False])
def test_sheets_are_marked_too(tmp_path, image, name, metadata):
    writer = PictureWriter(tmp_path / name, metadata=metadata)
    found = read_picture(writer.save_sheet([SheetPicture(image, "a cat", "seed 7")] * 2, PLAIN))
    assert (found.source_type, found.parameters is not None) == (MADE, metadata)


def test_with_a_mask_it_is_a_composite_and_from_a_picture_alone_it_is_made(tmp_path, image):
    started = replace(PLAIN, init_image=UsedFile("start.png"), strength=0.8)
    assert read_picture(save(tmp_path, image, started)).source_type == MADE
    assert read_picture(save(tmp_path, image, RECORD)).source_type == COMPOSITE


@pytest.mark.parametrize(
    "written",
    [
        "<Iptc4xmpExt:DigitalSourceType>{}</Iptc4xmpExt:DigitalSourceType>",
        '<rdf:Description Iptc4xmpExt:DigitalSourceType="{}"/>',
        "<rdf:Description iptcExt:DigitalSourceType = '{}'/>",
        '<Iptc4xmpExt:DigitalSourceType rdf:resource="{}"/>',
        "<Iptc4xmpExt:DigitalSourceType>\n   {}\n</Iptc4xmpExt:DigitalSourceType>",
    ],
)  # fmt: skip
def test_marks_of_other_programs_are_understood(written):
    text = written.format(f"{VOCABULARY}{COMPOSITE}")
    assert said_source_type(text.encode()) == said_source_type(text) == COMPOSITE
    assert said_source_type(text.replace("http:", "https:").encode()) == COMPOSITE


@pytest.mark.parametrize(
    "xmp",
    [
        None, 7, b"", b"\xff\xfe<", "\ud800", b"<x:xmpmeta/>", b"DigitalSourceType>" * 60_000,
        b"DigitalSourceType" + b" " * 2_000_000 + VOCABULARY.encode() + b"trainedAlgorithmicMedia",
        b"DigitalSourceType>http://elsewhere.example/trainedAlgorithmicMedia",
        b"DigitalSourceType>" + VOCABULARY.encode() + b"\x1b[31m",
        b"DigitalSourceType='" * 60_000 + VOCABULARY.encode(),
        b" " * (1 << 20) + xmp_packet(MADE),
    ],
    ids=range(12),
)  # fmt: skip
def test_what_says_nothing_or_lies_is_no_mark_and_takes_no_time(xmp):
    begun = time.process_time()
    assert said_source_type(xmp) is None
    assert time.process_time() - begun < 1


def test_entities_of_hostile_xmp_are_never_expanded(tmp_path, image):
    laughs = '<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY f SYSTEM "file:///etc/passwd">]>'
    for name, mark, expected in (
        ("bare", "&b;&f;", None),
        ("beside", f"<i:DigitalSourceType>{VOCABULARY}{MADE}</i:DigitalSourceType>&f;", MADE),
    ):
        chunks = PngInfo()
        chunks.add_itxt("XML:com.adobe.xmp", f"{laughs}<x>{mark}</x>")
        image.save(tmp_path / f"{name}.png", pnginfo=chunks)
        assert read_picture(tmp_path / f"{name}.png").source_type == expected


def test_xmp_that_inflates_without_end_is_refused(tmp_path, image):
    bomb = b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(b" " * (64 << 20), 9)
    image.save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    chunk = len(bomb).to_bytes(4, "big") + b"iTXt" + bomb + zlib.crc32(b"iTXt" + bomb).to_bytes(4, "big")
    (tmp_path / "a.png").write_bytes(data[:33] + chunk + data[33:])
    with pytest.raises(SourceError, match="can't be read as a picture"):
        read_picture(tmp_path / "a.png")


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("record", "kind"), [(PLAIN, MADE), (RECORD, COMPOSITE)])
def test_exiftool_and_pillow_read_the_mark(tmp_path, image, name, record, kind):
    if shutil.which("exiftool") is None:
        pytest.skip("exiftool is missing: apt-get install libimage-exiftool-perl")
    path = save(tmp_path, image, record, name)
    shown = subprocess.run(
        ["exiftool", "-json", "-n", "-validate", "-warning", "-XMP-iptcExt:DigitalSourceType", str(path)],
        capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    (found,) = json.loads(shown)
    assert found["DigitalSourceType"] == VOCABULARY + kind
    assert "XMP" not in str(found.get("Warning"))
    with warnings.catch_warnings(), Image.open(path) as opened:
        warnings.simplefilter("error")
        pytest.importorskip("defusedxml", reason="Pillow's getxmp needs it: pip install defusedxml")
        opened.load()
        said = opened.getxmp()["xmpmeta"]["RDF"]["Description"]["DigitalSourceType"]
    assert said == VOCABULARY + kind
