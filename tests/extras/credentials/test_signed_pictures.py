"""Pictures signed as C2PA has it: what `info` says of good ones, of those that somebody has changed, and of keys."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import random
import socket
import struct
import sys
import time
import zlib
from dataclasses import replace

import pytest

pytest.importorskip("c2pa")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from olivelike.extras.credentials.picture_check import check_picture
from olivelike.extras.credentials.picture_signer import open_signer
from olivelike.runtime.pictures import PictureRecord, PictureWriter, UsedFile, read_picture
from olivelike.runtime.pictures.picture_record import a1111_text, encode_picture
from olivelike.runtime.pictures.picture_signature import RECIPE, read_signature
from olivelike.runtime.pictures.sheets import SheetPicture
from tests.cli import conftest as commands
from tests.extras.credentials.signed_pictures import CLAIMS, CODE, DOCUMENTS, write_certificate
from tests.fixtures.certificates import EMAIL, NOW, YEAR, certificate, rsa_key

cli, empty_folder, generate, little = commands.cli, commands.empty_folder, commands.generate, commands.little
_jobs_in_this_process, _no_store_of_the_user = commands._jobs_in_this_process, commands._no_store_of_the_user

RECORD = PictureRecord(
    "a red circle, \u00e4", "blurry", 20, "Euler a", "Euler a", guidance_scale=7.5, seed=2**64 - 1, width=16, height=16,
    loras=(UsedFile("ink", "0123", 0.5),), version="olivelike 0.2.0",
)  # fmt: skip
FILES = ("a.png", "a.jpg", "a.webp")


@pytest.fixture
def signer(empty_folder):
    return open_signer(*write_certificate(empty_folder))


def picture(seed=0):
    noise = random.Random(seed)
    return Image.frombytes("RGB", (16, 16), noise.randbytes(16 * 16 * 3))


@pytest.mark.parametrize("name", FILES)
def test_a_signed_picture_holds_and_keeps_what_other_programs_read(empty_folder, signer, cli, name):
    path = PictureWriter(name, signer=signer).save(picture(), RECORD)
    plain = PictureWriter(f"plain-{name}").save(picture(), RECORD)
    found = read_picture(path)
    assert replace(found, path=plain) == read_picture(plain)
    assert found.parameters == a1111_text(RECORD)
    with Image.open(path) as ours, Image.open(plain) as theirs:
        assert ours.tobytes() == theirs.tobytes()
    told = cli("info", path, "--certificate", "root.pem")
    assert (told.status, told.err) == (0, "")
    lines = told.out.splitlines()
    assert "Signature     holds: nothing was changed since" in lines
    assert "Signed with   olivelike 0.2.0" in lines
    assert "Trusted       by root.pem" in lines
    (by,) = [line for line in lines if line.startswith("Signed by")]
    assert by.startswith("Signed by     The Studio, Studio Ltd (certificate ")
    assert "name its root with --certificate" in cli("info", path).out
    write_certificate(empty_folder, "other", "elsewhere")
    told = cli("info", path, "--certificate", "elsewhere.pem", "--json")
    other = json.loads(told.out)["signature"]
    assert (told.status, other["state"], other["trusted_by"]) == (5, "valid", [])
    both = json.loads(cli("info", path, "--certificate", "elsewhere.pem", "--certificate", "root.pem", "--json").out)
    assert both["signature"]["trusted_by"] == ["root.pem"]


def manifest(data):
    from c2pa import Reader

    from olivelike.extras.credentials.offline import offline

    with Reader("image/png", io.BytesIO(data), context=offline()) as reader:
        found = reader.get_active_manifest()
    return {one["label"]: one["data"] for one in found["assertions"]}


def test_the_manifest_says_that_ai_made_it_and_has_the_recipe(signer):
    said = manifest(encode_picture(picture(), ".png", RECORD, signer=signer))
    assert said[RECIPE] == json.loads(RECORD.to_json())
    (action,) = said["c2pa.actions.v2"]["actions"]
    assert action["action"] == "c2pa.created"
    assert action["digitalSourceType"].endswith("/trainedAlgorithmicMedia")
    masked = manifest(encode_picture(picture(), ".png", replace(RECORD, mask=UsedFile("mask.png")), signer=signer))
    (action,) = masked["c2pa.actions.v2"]["actions"]
    assert action["digitalSourceType"].endswith("/compositeWithTrainedAlgorithmicMedia")
    broken = replace(RECORD, prompt="half \ud800 and \0")
    assert manifest(encode_picture(picture(), ".png", broken, signer=signer))[RECIPE]["prompt"] == "half ? and \0"


def test_without_metadata_and_on_sheets_there_is_no_recipe(empty_folder, signer):
    data = encode_picture(picture(), ".png", replace(RECORD, prompt="secretword"), metadata=False, signer=signer)
    assert RECIPE not in manifest(data)
    assert b"secretword" not in data
    path = PictureWriter("a.png", signer=signer).save_sheet([SheetPicture(picture(), "a cat", "seed 7")], RECORD)
    assert RECIPE not in manifest(path.read_bytes())


TAMPERINGS = 108
"""Twelve kinds, each with three pictures of three formats."""


def test_every_change_of_a_picture_is_found(empty_folder, signer):
    write_certificate(empty_folder, "rogue", "rogue-root")
    rogue = open_signer(empty_folder / "rogue.pem", empty_folder / "rogue.key")
    root = [empty_folder / "root.pem"]
    missed = []
    for number in range(TAMPERINGS):
        name, rng = FILES[number // 12 % 3], random.Random(number)
        suffix = name[1:]
        data = encode_picture(picture(number), suffix, RECORD, signer=signer)
        assert check_picture(data, root).state == "trusted"
        (empty_folder / name).write_bytes(tamper(data, suffix, number % 12, rng, signer, rogue))
        found = read_signature(empty_folder / name, root)
        stripped = number % 12 in (8, 9)
        if found.state not in (("none",) if stripped else ("invalid",) if number % 12 < 10 else ("valid", "invalid")):
            missed.append((number % 12, name, found))
    assert missed == []


def tamper(data, suffix, kind, rng, signer, rogue):
    """Return a picture's file changed in one of twelve ways."""
    start, end = manifest_of(data, suffix)
    match kind:
        case 0:  # a bit of anything but the manifest
            at = rng.choice([*range(16, start), *range(end, len(data))])
            return flipped(data, at, rng)
        case 1:  # a bit of the recipe in the manifest
            return flipped(data, data.index(b'"negative_prompt"', start) + rng.randrange(300), rng)
        case 2:  # a bit of what it says that happened
            return flipped(data, data.index(b"trainedAlgorithmicMedia", start) + rng.randrange(23), rng)
        case 3:  # a bit of the hash of the file, or of the certificate
            found = data.index(rng.choice([b"dhash", b"exclusions", b"The Studio"]), start)
            return flipped(data, found + rng.randrange(5), rng)
        case 4:  # the manifest of another picture
            other = encode_picture(picture(1000), suffix, replace(RECORD, seed=8), signer=signer)
            return data[:start] + other[slice(*manifest_of(other, suffix))] + data[end:]
        case 5:  # another picture in it, with the same texts
            changed = encode_picture(picture(2000), suffix, RECORD, signer=signer)
            begin, finish = manifest_of(changed, suffix)
            return changed[:begin] + data[start:end] + changed[finish:]
        case 6:  # another recipe in it
            changed = encode_picture(picture(0), suffix, replace(RECORD, prompt="a dog"), signer=signer)
            begin, finish = manifest_of(changed, suffix)
            return changed[:begin] + data[start:end] + changed[finish:]
        case 7:  # a text or a file behind it
            return with_text(data) if suffix == ".png" else data + rng.randbytes(40)
        case 8:  # without its manifest
            bare = data[:start] + data[end:]
            return bare if suffix != ".webp" else b"RIFF" + struct.pack("<I", len(bare) - 8) + bare[8:]
        case 9:  # saved anew by a program that knows nothing of it
            return saved_anew(data, suffix)
        case 10:  # signed by somebody who calls himself the same
            return encode_picture(picture(3000), suffix, RECORD, signer=rogue)
        case _:  # the certificate of somebody else in the place of the signer's
            forged = encode_picture(picture(0), suffix, RECORD, signer=rogue)
            at, there = (one.index(b"The Studio") for one in (data, forged))
            return data[: at - 100] + forged[there - 100 : there + 200] + data[at + 200 :]


def flipped(data, at, rng):
    changed = bytearray(data)
    changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed)


def manifest_of(data, suffix):
    """Return where a file has its manifest: a PNG's chunk, a JPEG's segment or a WebP's."""
    found = data.index(b"jumdc2pa")
    if suffix == ".png":
        start = data.rindex(b"caBX", 0, found) - 4
        return start, start + 12 + struct.unpack(">I", data[start : start + 4])[0]
    if suffix == ".jpg":
        start = data.rindex(b"\xff\xeb", 0, found)
        return start, start + 2 + struct.unpack(">H", data[start + 2 : start + 4])[0]
    start = data.rindex(b"C2PA", 0, found)
    size = struct.unpack("<I", data[start + 4 : start + 8])[0]
    return start, start + 8 + size + size % 2


def with_text(data):
    body = b"tEXtComment\0added"
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    end = data.index(b"IEND") - 4
    return data[:end] + chunk + data[end:]


def saved_anew(data, suffix):
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        kept = io.BytesIO()
        image.save(kept, {".png": "PNG", ".jpg": "JPEG", ".webp": "WEBP"}[suffix])
    return kept.getvalue()


def test_bits_that_no_check_covers_change_nothing_of_what_is_said(empty_folder, signer):
    """The manifest's filling, and names of its boxes: what is read of a picture is the same."""
    data = encode_picture(picture(), ".png", RECORD, signer=signer)
    start, end = manifest_of(data, ".png")
    root, rng = [empty_folder / "root.pem"], random.Random(0)
    whole, said = check_picture(data, root), manifest(data)
    held = 0
    for at in range(start, end, 37):
        changed = flipped(data, at, rng)
        found = check_picture(changed, root)
        if found.state not in ("invalid", "none"):
            held += 1
            assert (found, manifest(changed)) == (whole, said)
    assert held < 0.4 * (end - start) / 37


def test_a_root_is_asked_for_a_verdict_and_one_that_has_ended_gives_none(empty_folder, signer, cli):
    path = PictureWriter("a.jpg", signer=signer).save(picture(), RECORD)
    data = path.read_bytes()
    path.write_bytes(data + b"more")
    for asked, status in (((), 0), (("--certificate", "root.pem"), 5)):
        told = cli("info", path, *asked)
        assert (told.status, "does not hold: pixels or texts were changed" in told.out) == (status, True)
    path.write_bytes(data)
    key = load_pem_private_key((empty_folder / "root.key").read_bytes(), None)
    (empty_folder / "root.pem").write_bytes(
        certificate("Root", key, "Root", key, root=True, organisation="Studio Ltd", end=NOW - YEAR / 2)
    )
    refused = cli("info", path, "--certificate", "root.pem")
    assert (refused.status, "root.pem: the certificate is not valid now: it ended on" in refused.err) == (2, True)


@pytest.mark.slow
def test_a_certificate_that_has_ended_is_told_apart_from_a_change(empty_folder):
    now = dt.datetime.now(dt.UTC)
    paths = write_certificate(empty_folder, end=now + dt.timedelta(seconds=2))
    data = encode_picture(picture(), ".png", RECORD, signer=open_signer(*paths))
    time.sleep(3.2)
    found = check_picture(data, [empty_folder / "root.pem"])
    assert (found.state, found.signer) == ("invalid", "The Studio, Studio Ltd")
    assert found.problems == ("the signer's certificate has ended, and nothing proves that it was signed before",)


def test_neither_private_keys_nor_paths_are_written_or_told(generate, empty_folder, monkeypatch):
    monkeypatch.setenv("OLIVELIKE_KEY_PASSWORD", "secret word")
    write_certificate(empty_folder, password=b"secret word")
    signing = ("--sign-pictures", "studio.pem", "--sign-key", "studio.key")
    told = generate("a red circle", "--seed", 7, "-n", 2, "--sheet", "-o", "out/{index}.png", *signing)
    assert told.status == 0, told.err
    told_as_json = generate("a red circle", "--seed", 7, "-o", "a.png", "--json", *signing)
    key = load_pem_private_key((empty_folder / "studio.key").read_bytes(), b"secret word")
    number = key.private_numbers().private_value.to_bytes(32, "big")
    pictures = [*(empty_folder / "out").iterdir(), empty_folder / "a.png"]
    assert len(pictures) == 4
    assert {read_signature(path, [empty_folder / "root.pem"]).state for path in pictures} == {"trusted"}
    written = b"".join(path.read_bytes() for path in pictures)
    said = f"{told.out}{told.err}{told_as_json.out}{told_as_json.err}".encode()
    for secret in (b"secret word", b"PRIVATE", number, number.hex().encode(), base64.b64encode(number), b"studio.key"):
        assert secret not in written + said
    assert str(empty_folder).encode() not in written


@pytest.mark.parametrize(("curve", "use"), [(ec.SECP256R1, DOCUMENTS), (ec.SECP384R1, CLAIMS), (ec.SECP521R1, EMAIL)])
def test_keys_and_usages_that_c2pa_takes(empty_folder, curve, use):
    paths = write_certificate(empty_folder, key=ec.generate_private_key(curve()), uses=(use,))
    data = encode_picture(picture(), ".png", RECORD, signer=open_signer(*paths))
    assert check_picture(data, [empty_folder / "root.pem"]).state == "trusted"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"uses": ()}, "can't sign pictures: Signature: the certificate is invalid; it takes a certificate that is no"),
        ({"uses": (CODE,)}, "can't sign pictures: Signature: the certificate is invalid"),
        ({"usage": False}, "can't sign pictures: "),
        ({"end": NOW - YEAR / 2}, "studio.pem: the certificate is not valid now: it ended on "),
        ({"key": rsa_key()}, "studio.key: signatures need a key of the curve"),
    ],
)
def test_certificates_that_can_not_sign_are_told_before_anything_is_drawn(empty_folder, generate, how, said):
    write_certificate(empty_folder, **how)
    told = generate("a", "--sign-pictures", "studio.pem", "--sign-key", "studio.key", "-o", "a.png")
    assert (told.status, told.out) == (2, "")
    assert said in told.err
    assert not (empty_folder / "a.png").exists()


def test_files_that_are_no_keys_or_certificates_are_told(empty_folder, generate, cli, signer):
    (empty_folder / "no.pem").write_text("nothing")
    write_certificate(empty_folder, "other")
    for options, said in (
        (("--sign-pictures", "studio.pem"), "give both, or neither"),
        (("--sign-key", "studio.key"), "give both, or neither"),
        (("--sign-pictures", "gone.pem", "--sign-key", "studio.key"), "gone.pem: no such file"),
        (("--sign-pictures", "no.pem", "--sign-key", "studio.key"), "no.pem: is no certificate in PEM form"),
        (("--sign-pictures", "studio.pem", "--sign-key", "no.pem"), "no.pem: is no private key"),
        (("--sign-pictures", "studio.pem", "--sign-key", "other.key"), "studio.pem: can't sign pictures"),
    ):
        told = generate("a", *options)
        assert (told.status, said in told.err) == (2, True), told.err
    path = PictureWriter("a.png", signer=signer).save(picture(), RECORD)
    told = cli("info", path, "--certificate", "no.pem")
    assert (told.status, "no.pem: is no certificate in PEM form" in told.err) == (2, True)
    for path, status in (("no.pem", 2), (".", 2), ("gone.png", 3)):
        told = cli("info", path, "--certificate", "root.pem")
        assert (told.status, "that is for signed pictures" in told.err) == (status, status == 2), told.err
    plain = PictureWriter("b.png").save(picture(), RECORD)
    unsigned = cli("info", plain, "--certificate", "root.pem")
    assert (unsigned.status, unsigned.out.endswith("Signature     none\n")) == (5, True)
    unasked = cli("info", plain)
    assert (unasked.status, "Signature" in unasked.out) == (0, False)


def test_without_the_package_a_signed_picture_is_said_to_be_unchecked(empty_folder, signer, cli, generate, monkeypatch):
    path = PictureWriter("a.png", signer=signer).save(picture(), RECORD)
    monkeypatch.setitem(sys.modules, "c2pa", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "Signature     was not checked: pip install 'olivelike[c2pa]' has it checked" in cli("info", path).out
    for told in (
        cli("info", path, "--certificate", "root.pem"),
        generate("a", "--sign-pictures", "studio.pem", "--sign-key", "studio.key"),
    ):
        assert (told.status, told.err.startswith("error: this needs c2pa-python, which is not installed")) == (3, True)


def test_nobody_is_called(empty_folder, signer):
    """A picture may name a manifest elsewhere, which c2pa fetches by itself."""
    calls = []
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0.2)
        place = f"http://127.0.0.1:{server.getsockname()[1]}/a.c2pa"
        xmp = (
            '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
            f'<rdf:Description rdf:about="" xmlns:dcterms="http://purl.org/dc/terms/" dcterms:provenance="{place}"/>'
            "</rdf:RDF></x:xmpmeta>"
        )
        chunks = PngInfo()
        chunks.add_itxt("XML:com.adobe.xmp", xmp)
        picture().save("a.png", pnginfo=chunks)
        found = read_signature(empty_folder / "a.png", [empty_folder / "root.pem"])
        with pytest.raises(TimeoutError):
            calls.append(server.accept())
    assert found.state == "invalid"
    assert place in found.problems[0]
    assert not calls
