"""`olivelike sign` and `verify-signature`: what they say of good keys, bad ones, and folders that were changed."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil

import pytest

pytest.importorskip("model_signing")

from cryptography.hazmat.primitives.asymmetric import ec
from model_signing import hashing, signing, verifying

from olivelike.engine.output.file_names import wrong_name
from olivelike.extras.signing import folder_checking
from tests.cli import conftest as commands
from tests.extras.signing.signers import write_folder, write_record
from tests.fixtures.certificates import NOW, YEAR, certificate, rsa_key, write_key

cli, empty_folder = commands.cli, commands.empty_folder
_jobs_in_this_process, _no_store_of_the_user = commands._jobs_in_this_process, commands._no_store_of_the_user


@pytest.fixture
def signed(cli, empty_folder):
    """A folder `out` that `a.key` has signed."""
    write_folder(empty_folder / "out")
    write_key(empty_folder, "a")
    assert cli("sign", "out", "--key", "a.key").status == 0
    return empty_folder / "out"


def test_a_folder_is_signed_and_checked(cli, signed):
    found = cli("verify-signature", "out", "--key", "a.pub")
    assert (found.status, found.err) == (0, "")
    assert found.out.startswith("out: 6 files as they were signed\nsigned by key ")
    assert json.loads(cli("verify-signature", "out", "--key", "a.pub", "--json").out)["files"] == 6


def test_other_programs_check_it(signed):
    """model-signing by itself reads it, from a folder of another name."""
    moved = signed.rename(signed.with_name("elsewhere"))
    verifying.Config().use_elliptic_key_verifier(public_key=moved.with_name("a.pub")).verify(moved, moved / "model.sig")


def test_neither_private_keys_nor_paths_are_written_or_told(cli, empty_folder, monkeypatch):
    write_folder(empty_folder / "out")
    private, _, key = write_key(empty_folder, "a", b"secret word")
    (empty_folder / "a.pem").write_bytes(certificate("Studio", key, "Studio", key))
    monkeypatch.setenv("OLIVELIKE_KEY_PASSWORD", "secret word")
    told = [cli("sign", empty_folder / "out", "--key", private), cli("sign", "out", "--key", "a.key", "--json")]
    told += [cli("sign", "out", "--key", "a.key", "--certificate", "a.pem")]
    assert [one.status for one in told] == [0, 0, 0]
    bundle = (empty_folder / "out" / "model.sig").read_bytes()
    payload = base64.b64decode(json.loads(bundle)["dsseEnvelope"]["payload"])
    number = key.private_numbers().private_value.to_bytes(32, "big")
    written = bundle + payload + b"".join(map(base64.b64decode, _certificates_in(bundle)))
    for secret in (b"secret word", b"PRIVATE", number, number.hex().encode(), base64.b64encode(number)):
        assert secret not in written
        assert all(secret not in (one.out + one.err).encode() for one in told)
    assert str(empty_folder).encode() not in written
    assert str(empty_folder) not in told[1].out + told[1].err + told[2].out


def _certificates_in(bundle):
    return [
        one["rawBytes"] for one in json.loads(bundle)["verificationMaterial"]["x509CertificateChain"]["certificates"]
    ]


TAMPERINGS = 104
"""Thirteen kinds, each eight times with other files and places."""


def test_every_change_of_a_folder_is_found(cli, signed):
    other = write_folder(signed.with_name("other"))
    (other / "unet/weights.pb").write_bytes(b"other weights")
    assert cli("sign", "other", "--key", "a.key").status == 0
    write_key(signed.parent, "b")
    missed = []
    for number in range(TAMPERINGS):
        folder = signed.with_name(f"tampered-{number}")
        shutil.copytree(signed, folder)
        key = _tamper(folder, other, number, random.Random(number))
        found = cli("verify-signature", folder.name, "--key", key)
        if found.status not in (3, 5) or not found.err.startswith("error: "):
            missed.append((number % 13, found))
        shutil.rmtree(folder)
    assert not missed


ADDED = ("added", "unet/a", ".gitignore", ".git/config", ".github/a", ".gitattributes", "unet/model.sig", "vae/.git")


def _tamper(folder, other, number, rng):
    """Change a folder in one of thirteen ways, and return the key to check it with."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    full = folder / rng.choice([name for name in names if name not in ("vae/empty", "model.sig")])
    signature = folder / "model.sig"
    match number % 13:
        case 0:  # a bit of a file
            data = bytearray(full.read_bytes())
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            full.write_bytes(data)
        case 1:  # a file more, also where model-signing does not look by itself
            path = folder / ADDED[number // 13]
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"")
        case 2:
            full.unlink()
        case 3:
            full.rename(full.with_name(f"{full.name}.renamed"))
        case 4:  # two files swapped
            one, two = rng.sample([name for name in names if name != "model.sig"], 2)
            kept = (folder / one).read_bytes()
            (folder / one).write_bytes((folder / two).read_bytes())
            (folder / two).write_bytes(kept)
        case 5:  # a link to the same bytes
            full.rename(folder.with_name(f"kept-{number}"))
            full.symlink_to(folder.with_name(f"kept-{number}"))
        case 6:
            full.write_bytes(full.read_bytes()[: rng.randrange(120) % full.stat().st_size])
        case 7:
            (folder / "olivelike.json").write_text(json.dumps({"edited": number}))
        case 8:  # the signature of another folder
            shutil.copy(other / "model.sig", signature)
        case 9:
            return "b.pub"
        case 10:  # a signature that is cut, empty, gone or made of noise
            data = signature.read_bytes()
            signature.write_bytes(
                [b"", data[: rng.randrange(len(data))], b"{}", b"[]", rng.randbytes(200), data[:-1]][number % 6]
            )
        case 11:  # statement and digests edited, under the old signature
            bundle = json.loads(signature.read_bytes())
            statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
            full.write_bytes(b"changed")
            if number % 2:
                statement["predicate"]["resources"] = statement["predicate"]["resources"][:-1]
            else:
                statement["predicate"]["serialization"]["ignore_paths"].append(full.relative_to(folder).as_posix())
            bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
            signature.write_text(json.dumps(bundle))
        case 12:
            place = [folder / "nothing", folder / "unet/nothing", folder / "pipe"][number % 3]
            os.mkfifo(place) if place.name == "pipe" else place.mkdir()
    return "a.pub"


def test_a_flipped_byte_of_a_signature_is_refused_or_of_no_weight(cli, signed):
    """Hints and spaces are not signed; whatever is told of files must be."""
    path = signed / "model.sig"
    data = path.read_bytes()
    rng = random.Random(0)
    for _ in range(40):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(7)
        path.write_bytes(changed)
        found = cli("verify-signature", "out", "--key", "a.pub")
        assert found.status in (0, 5)
        if not found.status:
            assert _signed(changed) == _signed(data)


def _signed(bundle):
    return base64.b64decode(json.loads(bundle)["dsseEnvelope"]["payload"])


def test_what_was_changed_is_named(cli, signed):
    (signed / "unet/weights.pb").write_bytes(b"other")
    (signed / "unet/more").write_bytes(b"")
    (signed / "README.md").unlink()
    found = cli("verify-signature", "out", "--key", "a.pub")
    assert found.status == 5
    assert "changed: unet/weights.pb; added: unet/more; missing: README.md" in found.err


def test_files_that_a_signer_left_out_are_refused(cli, signed):
    """model-signing's own command leaves out those of git."""
    key = signed.with_name("a.key")
    config = signing.Config().use_elliptic_key_signer(private_key=key)
    config.set_hashing_config(hashing.Config().set_ignored_paths(paths=["model.sig"])).sign(
        signed, signed / "model.sig"
    )
    assert cli("verify-signature", "out", "--key", "a.pub").status == 0
    (signed / ".gitattributes").write_text("*")
    found = cli("verify-signature", "out", "--key", "a.pub")
    assert found.status == 5
    assert "the signer left out .gitattributes" in found.err


@pytest.fixture
def studio(empty_folder):
    """A root `root.pem`, and `studio.pem` below it for `studio.key`, whose password is `word`."""
    write_folder(empty_folder / "out")
    _, _, root = write_key(empty_folder, "root")
    _, _, own = write_key(empty_folder, "studio", b"word")
    (empty_folder / "root.pem").write_bytes(certificate("Root", root, "Root", root, root=True))
    (empty_folder / "studio.pem").write_bytes(certificate("Studio", own, "Root", root))
    return root, own


SIGN = ("sign", "out", "--key", "studio.key", "--certificate", "studio.pem")


def test_a_certificate_says_who_signed(cli, studio, empty_folder, monkeypatch):
    monkeypatch.setenv("OLIVELIKE_KEY_PASSWORD", "word")
    assert cli(*SIGN).status == 0
    found = cli("verify-signature", "out", "--certificate", "root.pem")
    assert found.status == 0, found.err
    assert "signed by CN=Studio (SHA-256 " in found.out
    signature = empty_folder / "out" / "model.sig"
    config = verifying.Config().use_certificate_verifier(certificate_chain=[empty_folder / "root.pem"])
    config.verify(empty_folder / "out", signature)
    _, _, stranger = write_key(empty_folder, "stranger")
    (empty_folder / "stranger.pem").write_bytes(certificate("Root", stranger, "Root", stranger, root=True))
    refused = cli("verify-signature", "out", "--certificate", "stranger.pem")
    assert refused.status == 5
    assert "does not descend from yours" in refused.err
    of_another_kind = cli("verify-signature", "out", "--key", "studio.pub")
    assert of_another_kind.err == "error: out: it is signed with a certificate; name its root with --certificate\n"
    assert of_another_kind.status == 5
    (empty_folder / "out/unet/weights.pb").write_bytes(b"other")
    assert "changed: unet/weights.pb" in cli("verify-signature", "out", "--certificate", "root.pem").err


def test_a_certificate_that_ended_since_is_refused(cli, studio, empty_folder, monkeypatch):
    monkeypatch.setenv("OLIVELIKE_KEY_PASSWORD", "word")
    assert cli(*SIGN).status == 0
    ended = {"CN=Studio": "it ended"}
    with monkeypatch.context() as later:
        later.setattr(folder_checking, "not_valid_now", lambda one: ended.get(one.subject.rfc4514_string()))
        found = cli("verify-signature", "out", "--certificate", "root.pem")
    assert found.status == 5
    assert "is not valid now: it ended; ask for a new signature" in found.err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"end": NOW - YEAR / 2}, "is not valid now: it ended on "),
        ({"begin": NOW + YEAR / 2}, "is not valid now: it begins on "),
        ({"chain": NOW - YEAR / 2}, "chain.pem: the certificate is not valid now: it ended on "),
        ({"usage": False}, "is not for signing; get one whose key usage has digitalSignature"),
    ],
)
def test_certificates_that_can_not_sign_are_refused(cli, studio, empty_folder, monkeypatch, changes, said):
    root, own = studio
    monkeypatch.setenv("OLIVELIKE_KEY_PASSWORD", "word")
    more = ()
    if end := changes.get("chain"):
        (empty_folder / "chain.pem").write_bytes(certificate("Root", root, "Root", root, root=True, end=end))
        changes, more = {}, ("--chain", "chain.pem")
    (empty_folder / "studio.pem").write_bytes(certificate("Studio", own, "Root", root, **changes))
    found = cli(*SIGN, *more)
    assert found.status == 2
    assert said in found.err
    assert not (empty_folder / "out" / "model.sig").exists()


def test_wrong_keys_and_folders_have_their_status_and_remedy(cli, signed, monkeypatch):
    there = signed.parent
    write_key(there, "locked", b"word")
    write_key(there, "rsa", key=rsa_key())
    (there / "noise.key").write_bytes(b"noise")
    for arguments, status, said in (
        (("sign", "out", "--key", "absent.key"), 2, "absent.key: no such file"),
        (("sign", "out", "--key", "noise.key"), 2, "openssl genpkey"),
        (("sign", "out", "--key", "a.pub"), 2, "is no private key"),
        (("sign", "out", "--key", "rsa.key"), 2, "P-256, P-384 or P-521"),
        (("sign", "out", "--key", "locked.key"), 2, "OLIVELIKE_KEY_PASSWORD"),
        (("sign", "nowhere", "--key", "a.key"), 3, "nowhere: no such folder"),
        (("verify-signature", "out"), 2, "name the signer"),
        (("verify-signature", "out", "--key", "a.key"), 2, "openssl pkey -in KEY -pubout"),
        (("verify-signature", "out", "--key", "rsa.pub"), 2, "is no public key of the curve"),
        (("verify-signature", "out", "--certificate", "a.pub"), 2, "is no certificate"),
        (("verify-signature", "nowhere", "--key", "a.pub"), 3, "nowhere: no such folder"),
    ):
        found = cli(*arguments)
        assert (found.status, said in found.err) == (status, True), (arguments, found)
    monkeypatch.setenv("OLIVELIKE_KEY_PASSWORD", "another")
    assert "is not its password" in cli("sign", "out", "--key", "locked.key").err
    (signed / "model.sig").unlink()
    unsigned = cli("verify-signature", "out", "--key", "a.pub")
    assert unsigned.status == 3
    assert "is not signed" in unsigned.err


def test_a_password_that_a_key_does_not_need_is_let_be(cli, signed, monkeypatch):
    monkeypatch.setenv("OLIVELIKE_KEY_PASSWORD", "of another key")
    assert cli("sign", "out", "--key", "a.key").status == 0
    assert cli("verify-signature", "out", "--key", "a.pub").status == 0


@pytest.mark.parametrize(
    ("found", "changed"),
    [
        (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x09"),  # version
        (b"\x2a\x86\x48\xce\x3d\x02\x01", b"\x2a\x86\x48\xce\x3d\x02\x09"),  # kind of key
        (b"\x03\x01\x07\x03", b"\x03\x01\x09\x03"),  # curve
        (b"\x55\x1d\x0f", b"\x55\x1d\x0e"),  # an extension twice
        (b"\x55\x1d\x0f\x01\x01", b"\x55\x1d\x0f\x02\x01"),
    ],
)
def test_a_damaged_certificate_is_told(cli, studio, empty_folder, monkeypatch, found, changed):
    monkeypatch.setenv("OLIVELIKE_KEY_PASSWORD", "word")
    assert cli(*SIGN).status == 0
    path = empty_folder / "out" / "model.sig"
    bundle = json.loads(path.read_bytes())
    (held,) = bundle["verificationMaterial"]["x509CertificateChain"]["certificates"]
    data = base64.b64decode(held["rawBytes"])
    assert found in data
    held["rawBytes"] = base64.b64encode(data.replace(found, changed, 1)).decode()
    path.write_text(json.dumps(bundle))
    refused = cli("verify-signature", "out", "--certificate", "root.pem")
    assert refused.status == 5, refused.err
    assert "its certificate is damaged" in refused.err


def test_a_certificate_of_another_curve_is_not_for_signing(cli, studio, empty_folder, monkeypatch):
    root, _ = studio
    monkeypatch.setenv("OLIVELIKE_KEY_PASSWORD", "word")
    assert cli(*SIGN).status == 0
    path = empty_folder / "out" / "model.sig"
    bundle = json.loads(path.read_bytes())
    (held,) = bundle["verificationMaterial"]["x509CertificateChain"]["certificates"]
    pem = certificate("Studio", ec.generate_private_key(ec.SECP256K1()), "Root", root)
    held["rawBytes"] = "".join(pem.decode().splitlines()[1:-1])
    path.write_text(json.dumps(bundle))
    refused = cli("verify-signature", "out", "--certificate", "root.pem")
    assert (refused.status, "is not for signing; ask for a signature by another" in refused.err) == (5, True)


def test_what_is_out_of_date_is_not_signed(cli, empty_folder):
    output = write_record(empty_folder / "out", b"weights")
    write_key(empty_folder, "a")
    bom = output / "bom.cdx.json"
    listed = {"type": "file", "name": "olivelike.json", "hashes": [{"alg": "SHA-256", "content": "0" * 64}]}
    bom.write_text(json.dumps({"components": [listed]}))
    refused = cli("sign", "out", "--key", "a.key")
    assert (refused.status, "its bom.cdx.json is of what was here before" in refused.err) == (2, True)
    bom.write_text(json.dumps({"components": [{"type": "library", "name": "of another program"}]}))
    assert cli("sign", "out", "--key", "a.key").status == 0
    (output / "model.sig").unlink()
    record = json.loads((output / "olivelike.json").read_bytes())
    (output / "olivelike.json").write_text(json.dumps({**record, "version": 99}))
    assert (cli("sign", "out", "--key", "a.key").status, (output / "model.sig").exists()) == (3, False)


def test_without_room_and_without_the_right_to_read_it_says_so(cli, signed, monkeypatch):
    commands = (("sign", "out", "--key", "a.key"), ("verify-signature", "out", "--key", "a.pub"))

    def full():
        raise OSError(28, "No space left on device")

    def may_read(path, mode):
        return not str(path).endswith("weights.pb")

    for change, said in (
        (("tempfile.TemporaryDirectory", full), "No space left on device; free some space"),
        (("os.access", may_read), "unet/weights.pb may not be read"),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(f"olivelike.extras.signing.folder_signature.{change[0]}", change[1])
            for command in commands:
                refused = cli(*command)
                assert (refused.status, said in refused.err) == (3, True), refused.err


def test_links_are_refused(cli, signed):
    (signed / "unet/link").symlink_to(signed / "README.md")
    found = cli("sign", "out", "--key", "a.key")
    assert found.status == 3
    assert "unet/link is a link" in found.err


def test_info_and_a_run_know_the_signature(cli, empty_folder):
    """A run leaves it alone and `info` says that it is of what was there before; no step may write it."""
    folder = write_record(empty_folder / "out", b"weights")
    write_key(empty_folder, "a")
    assert "signature" not in cli("info", "out").out
    assert cli("sign", "out", "--key", "a.key").status == 0
    told = cli("info", "out").out
    assert "model.sig, not checked here: olivelike verify-signature out" in told
    assert "what was here before" not in told
    write_record(folder, b"other weights")
    assert "model.sig signs what was here before, or is damaged; olivelike sign out" in cli("info", "out").out
    (folder / "model.sig").write_bytes(b"noise")
    assert "model.sig signs what was here before, or is damaged" in cli("info", "out").out
    assert wrong_name(["unet/model.onnx", "Model.sig"]) == "Model.sig is the user's own"
