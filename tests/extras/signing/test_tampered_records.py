"""Edits of records, bills of materials and statements are found; none of them has a private key or a path."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest

pytest.importorskip("model_signing")
pytest.importorskip("cyclonedx")
pytest.importorskip("olivelike.extras.bom")

from olivelike.extras.signing.provenance import MEDIA_TYPE
from olivelike.extras.signing.signed_payloads import payload_of
from olivelike.extras.signing.signers import KeySigner
from tests.cli import conftest as commands
from tests.extras.signing.signers import write_record
from tests.fixtures.certificates import certificate, write_key

cli, empty_folder, project, warm_project = (
    commands.cli, commands.empty_folder, commands.project, commands.warm_project,
)  # fmt: skip
_jobs_in_this_process, _no_store_of_the_user = commands._jobs_in_this_process, commands._no_store_of_the_user

EDITS = 100
STATEMENT, BOM, RECORD = "provenance.sigstore.json", "bom.cdx.json", "olivelike.json"


def edited(value: Any, rng: random.Random) -> Any:
    """Return JSON with one leaf, name or entry that is another."""
    if isinstance(value, dict) and value:
        name = rng.choice(sorted(value))
        kind = rng.randrange(8)
        if kind == 0:
            return {key: one for key, one in value.items() if key != name}
        if kind == 1:
            return {**value, f"{name}s": value[name]}
        return {**value, name: edited(value[name], rng)}
    if isinstance(value, list) and value:
        place = rng.randrange(len(value))
        if rng.randrange(4) == 0:
            return value[:place] + value[place + 1 :]
        return [*value[:place], edited(value[place], rng), *value[place + 1 :]]
    if isinstance(value, str) and value:
        place = rng.randrange(len(value))
        return value[:place] + chr(ord(value[place]) ^ 1) + value[place + 1 :]
    return [value]


def test_every_edit_of_a_record_a_bom_and_a_statement_is_found(cli, empty_folder):
    output = write_record(empty_folder / "out", b"weights")
    _, _, key = write_key(empty_folder, "a")
    assert cli("bom", "out").status == 0
    assert cli("sign", "out", "--key", "a.key", "--provenance").status == 0
    kept = {name: (output / name).read_bytes() for name in (STATEMENT, BOM, RECORD)}
    envelope = json.loads(kept[STATEMENT])["dsseEnvelope"]
    missed = []
    for number in range(EDITS):
        rng = random.Random(number)
        name = (STATEMENT, BOM, RECORD, "payload")[number % 4]
        if name == "payload":  # By itself, wherever it is kept.
            statement = edited(json.loads(base64.b64decode(envelope["payload"])), rng)
            payload = base64.b64encode(json.dumps(statement).encode()).decode()
            try:
                payload_of({**envelope, "payload": payload}, key.public_key(), MEDIA_TYPE)
                missed.append(number)
            except ValueError:
                pass
            continue
        (output / name).write_text(json.dumps(edited(json.loads(kept[name]), rng)))
        found = cli("verify-signature", "out", "--key", "a.pub")
        if (found.status, f"changed: {name}" in found.err) != (5, True):
            missed.append((number, found))
        (output / name).write_bytes(kept[name])
    assert not missed
    found = cli("verify-signature", "out", "--key", "a.pub")
    assert (found.status, found.out.endswith(f"{BOM}: about these files\n")) == (0, True)


@pytest.mark.slow
def test_nothing_that_is_written_of_a_run_has_a_key_or_a_path(cli, project, monkeypatch):
    _, _, key = write_key(project, "a", b"secret word")
    (project / "a.pem").write_bytes(certificate("Studio", key, "Studio", key))
    monkeypatch.setenv("OLIVELIKE_KEY_PASSWORD", "secret word")
    output = project / "models" / "little"
    told = cli("bom", output, "--json"), cli("bom", "models/little")
    by = ("--key", "a.key", "--certificate", "a.pem", "--provenance")
    signed = cli("sign", "models/little", *by)
    assert signed.status == 0, signed.err
    assert signed.out.endswith(f"wrote models/little/{STATEMENT}\n"), "the store has the run, with its times"
    checked = cli("verify-signature", "models/little", "--certificate", "a.pem")
    assert checked.status == 0, checked.err
    statement = json.loads(base64.b64decode(json.loads((output / STATEMENT).read_bytes())["dsseEnvelope"]["payload"]))
    predicate = statement["predicate"]
    assert predicate["runDetails"]["builder"]["version"].keys() >= {"olivelike", "python", "torch"}
    names = [one["name"] for one in predicate["buildDefinition"]["resolvedDependencies"]]
    assert names == ["checkpoint", "text_encoder/model.safetensors"]
    number = key.private_numbers().private_value.to_bytes(32, "big")
    written = b"".join((output / name).read_bytes() for name in (STATEMENT, BOM, RECORD, "model.sig"))
    written += json.dumps(statement).encode()
    for secret in (b"secret word", b"PRIVATE", number, number.hex().encode(), base64.b64encode(number)):
        assert secret not in written
        assert all(secret not in (one.out + one.err).encode() for one in (*told, signed, checked))
    assert str(project).encode() not in written
    assert all(str(project) not in one.out + one.err for one in (told[1], signed, checked))


def _network(bill: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in bill["components"] if "components" in one)


def _other_weights(bill: dict[str, Any]) -> None:
    _network(bill)["components"][0]["hashes"][0]["content"] = "0" * 64


def _no_weights(bill: dict[str, Any]) -> None:
    del _network(bill)["components"]


def _one_more(bill: dict[str, Any]) -> None:
    bill["components"].append({"type": "file", "name": "unet/more.onnx", "hashes": []})


def _two_digests(bill: dict[str, Any]) -> None:
    bill["components"].append({"type": "file", "name": "unet/model.onnx", "hashes": []})


def _no_kind(bill: dict[str, Any]) -> None:
    bill["components"] = [{"name": RECORD}]


def _of_another_program(bill: dict[str, Any]) -> None:
    bill["components"] = [{"type": "file", "name": "README"}]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_other_weights, "is of other files, by unet/model.onnx"),
        (_no_weights, "is of other files, by unet/model.onnx"),
        (_one_more, "is of other files, by unet/more.onnx"),
        (_two_digests, "two digests for a file"),
        (_no_kind, "no bill of materials"),
        (_of_another_program, ""),
    ],
)
def test_a_bill_of_other_files_is_neither_signed_nor_believed_where_another_program_signed_it(
    cli, empty_folder, change, said
):
    output = write_record(empty_folder / "out", b"weights")
    write_key(empty_folder, "a")
    assert cli("bom", "out").status == 0
    bill = json.loads((output / BOM).read_text())
    change(bill)
    (output / BOM).write_text(json.dumps(bill))
    refused = cli("sign", "out", "--key", "a.key")
    assert (refused.status in {2, 5}) == bool(said), refused.err
    signer, made = KeySigner(empty_folder / "a.key"), empty_folder / "made.sig"
    (output / "model.sig").unlink(missing_ok=True)
    signer.sign(output, made)
    (output / "model.sig").write_bytes(signer.finished(made.read_bytes()))
    found = cli("verify-signature", "out", "--key", "a.pub", "--json")
    assert (found.status, said in found.err) == (5 if said else 0, True), found.err
    if not said:
        assert json.loads(found.out)["bom"] is False
