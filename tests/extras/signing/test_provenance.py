"""`sign --provenance`: an in-toto statement with SLSA's predicate, by the signer of the folder and about its files."""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import replace

import pytest

pytest.importorskip("model_signing")

from google.protobuf.json_format import ParseDict
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.statement_pb2 import Statement
from sigstore import dsse
from sigstore_models.bundle.v1 import Bundle

from olivelike.extras.signing import folder_signing, signing_commands
from olivelike.extras.signing.folder_signature import covered_files
from olivelike.extras.signing.folder_signing import _signed
from olivelike.extras.signing.provenance import products, provenance_of
from olivelike.extras.signing.signed_payloads import PayloadSigner
from olivelike.extras.signing.signers import KeySigner
from olivelike.model.records.origin import License, LoraRecord, Origin
from olivelike.model.records.output import ComponentRecord, OutputRecord, StepRecord
from olivelike.model.records.run_record import NodeRecord
from olivelike.model.targets import TargetChoice
from tests.cli import conftest as commands
from tests.extras.signing.signers import write_record
from tests.fixtures.certificates import certificate, write_key
from tests.fixtures.sample_records import output_record, run_record, write_output_record

cli, empty_folder = commands.cli, commands.empty_folder
_jobs_in_this_process, _no_store_of_the_user = commands._jobs_in_this_process, commands._no_store_of_the_user
SIGN = ("sign", "out", "--key", "a.key", "--provenance")
VERIFY = ("verify-signature", "out", "--key", "a.pub")


@pytest.fixture
def output(empty_folder):
    """An output `out` of one network, and a key `a`."""
    write_key(empty_folder, "a")
    return write_record(empty_folder / "out", b"weights")


def statement_of(folder):
    bundle = json.loads((folder / "provenance.sigstore.json").read_bytes())
    return json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))


def test_it_is_signed_with_the_folder_and_checked_with_it(cli, output):
    told = cli(*SIGN)
    assert told.status == 0
    assert told.err.startswith("warning: no file says the licence of checkpoint; ")
    assert "wrote out/provenance.sigstore.json, without times and versions" in told.out
    found = cli(*VERIFY)
    assert found.status == 0, found.err
    assert "provenance.sigstore.json: signed by the same, about these files" in found.out
    assert json.loads(cli(*VERIFY, "--json").out)["provenance"] is True
    names = [one["name"] for one in statement_of(output)["subject"]]
    assert names == ["olivelike.json", "unet/model.onnx"]
    Bundle.from_json((output / "provenance.sigstore.json").read_bytes())


def test_other_libraries_read_it(cli, output):
    assert cli(*SIGN).status == 0
    statement = statement_of(output)
    dsse.Statement(json.dumps(statement).encode())
    ParseDict(statement, Statement())
    ParseDict(statement["predicate"], Provenance())


def test_it_says_materials_steps_and_times():
    hub = Origin("hub", "someone/painter", "/home/me/secret", commit="1" * 40, license=License("mit", "README.md"))
    lora = Origin("file", "night.safetensors", "/home/me/secret/night.safetensors")
    record = output_record(
        source=hub.published(),
        target=TargetChoice("tensorrt", "fp16", options={"trt_engine_cache_path": "/home/me/secret"}),
        loras=(LoraRecord(lora.published(), 0.5),),
        components={
            "unet": ComponentRecord("k", passes=(StepRecord("convert", {"opset": 23}),), made_of={"unet/a": "2" * 64})
        },
    )
    run = run_record(
        run_id="20261127", finished="2026-11-27T04:00:10+00:00", seconds=10.0, file="/home/me/secret/w.yaml",
        outputs=("/home/me/secret/out",), versions={"olivelike": "0.2.0", "python": "3.11"},
    )  # fmt: skip
    payload = provenance_of(record, {"olivelike.json": "3" * 64}, run)
    assert b"/home/me" not in payload
    assert products(payload) == {"olivelike.json": "3" * 64}
    predicate = json.loads(payload)["predicate"]
    target = predicate["buildDefinition"]["externalParameters"]["target"]
    assert target == {"name": "tensorrt", "precision": "fp16", "plugin": ""}
    ParseDict(predicate, Provenance())
    source, night, weights = predicate["buildDefinition"]["resolvedDependencies"]
    assert source["uri"] == "https://huggingface.co/someone/painter"
    assert source["digest"] == {"gitCommit": "1" * 40}
    assert source["annotations"] == {"role": "source", "license": {"name": "mit", "said_by": "README.md"}}
    assert night == {"name": "night.safetensors", "annotations": {"role": "LoRA", "license": "unknown"}}
    assert weights == {"name": "unet/a", "digest": {"sha256": "2" * 64}}
    steps = predicate["buildDefinition"]["internalParameters"]["components"]["unet"]["steps"]
    assert steps == [{"name": "convert", "options": {"opset": 23}}]
    assert predicate["runDetails"] == {
        "builder": {"id": "urn:olivelike", "version": {"olivelike": "0.2.0", "python": "3.11"}},
        "metadata": {
            "invocationId": "20261127",
            "startedOn": "2026-11-27T04:00:00Z",
            "finishedOn": "2026-11-27T04:00:10Z",
        },
    }


def test_a_run_that_is_known_gives_its_times(cli, output, monkeypatch):
    wrote = NodeRecord("a", "unet", "materialize", "executed", key="key")
    runs = [
        run_record(run_id="3", nodes=(replace(wrote, key="other"),)),
        run_record(run_id="2", nodes=(replace(wrote, status="hit"),)),
        run_record(run_id="1", nodes=(wrote,)),
    ]
    monkeypatch.setattr(signing_commands.shared, "open_store", lambda named: runs)
    monkeypatch.setattr("olivelike.engine.run_result.readable_runs", iter)
    for known, expected in ((runs, "1"), (runs[:2], "2")):
        runs[:] = known
        assert cli(*SIGN).out.endswith("wrote out/provenance.sigstore.json\n")
        assert statement_of(output)["predicate"]["runDetails"]["metadata"]["invocationId"] == expected
    del runs[1:]
    assert "no record of its run here" in cli(*SIGN).out


def test_what_licences_ask_is_told(cli, output):
    hub = Origin("hub", "someone/painter", license=License("creativeml-openrail-m", "README.md"))
    write_output_record(output, source=hub)
    told = cli("sign", "out", "--key", "a.key").err
    assert told.startswith("warning: a signed folder is for others to use, and someone/painter is under creativeml-")
    assert "no file says" not in told


def test_a_store_that_is_named_has_to_be_there(cli, output):
    refused = cli(*SIGN, "--cache-dir", "nowhere")
    assert (refused.status, "there is no store in" in refused.err) == (3, True)
    assert sorted(path.name for path in output.iterdir()) == ["olivelike.json", "unet"]


def test_files_that_were_changed_are_no_products(cli, output):
    (output / "unet/model.onnx").write_bytes(b"other weights")
    refused = cli(*SIGN)
    assert refused.status == 5
    assert "is not as its olivelike.json says: unet/model.onnx" in refused.err
    assert sorted(path.name for path in output.iterdir()) == ["olivelike.json", "unet"]
    assert cli("sign", "out", "--key", "a.key").status == 0


def test_an_earlier_statement_stays_if_signing_fails_and_is_renewed_otherwise(cli, output, monkeypatch):
    assert cli(*SIGN).status == 0
    kept = (output / "provenance.sigstore.json").read_bytes()
    weights = (output / "unet/model.onnx").read_bytes()
    (output / "unet/model.onnx").write_bytes(b"other weights")
    assert cli(*SIGN).status == 5
    assert (output / "provenance.sigstore.json").read_bytes() == kept
    (output / "unet/model.onnx").write_bytes(weights)
    refused = cli("sign", "out", "--key", "a.key")
    assert (refused.status, "renew it with --provenance" in refused.err) == (2, True)
    with monkeypatch.context() as large:
        large.setattr(folder_signing, "MOST_BYTES", 10)
        refused = cli(*SIGN)
    assert (refused.status, "can't be read: it has" in refused.err) == (3, True)
    assert cli(*SIGN).status == 0
    assert cli(*VERIFY).status == 0


def _signed_by(folder, key, statement):
    """Put a statement into a folder and sign that as somebody would who owns the key."""
    (folder / "provenance.sigstore.json").write_bytes(statement)
    signer = KeySigner(key)
    _signed(folder, signer, covered_files(folder), {})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda made: b"{}", "does not hold"),
        (lambda made: b"\xff", "does not hold"),
        (lambda made: made[:-20], "does not hold"),
        (lambda made: made.replace(b"in-toto", b"in-tot0"), "does not hold"),
        ("other key", "none of the keys has signed it"),
        ("other kind", "something else was signed"),
        ("other folder", "is of other files, by olivelike.json, unet/model.onnx"),
        ("other predicate", "it is no provenance of SLSA's version 1"),
        ("two files of a name", "it names a file twice"),
        ("a number for a name", "it has no list of files"),
        ("no subject", "it names a file twice, or not olivelike.json"),
    ],
)
def test_a_statement_of_another_or_about_other_files_is_refused(cli, output, change, said):
    key = output.with_name("a.key")
    assert cli(*SIGN).status == 0
    made = (output / "provenance.sigstore.json").read_bytes()
    statement = statement_of(output)
    if callable(change):
        made = change(made)
    elif change == "other key":
        write_key(output.parent, "b")
        made = KeySigner(output.with_name("b.key")).signed(json.dumps(statement).encode())
    elif change == "other kind":
        bundle = json.loads(made)
        bundle["dsseEnvelope"] = PayloadSigner(key).signed(json.dumps(statement).encode(), "text/plain")
        made = json.dumps(bundle).encode()
    else:
        if change == "other folder":
            other = write_record(output.with_name("other"), b"other weights")
            record = OutputRecord.require(other)
            digests = {"olivelike.json": "0" * 64, "unet/model.onnx": record.files["unet/model.onnx"].sha256}
            statement = json.loads(provenance_of(record, digests))
        elif change == "other predicate":
            statement["predicateType"] = "https://slsa.dev/provenance/v0.2"
        elif change == "two files of a name":
            statement["subject"] *= 2
        elif change == "a number for a name":
            statement["subject"][-1]["name"] = 7
        else:
            statement["subject"] = []
        made = KeySigner(key).signed(json.dumps(statement).encode())
    _signed_by(output, key, made)
    refused = cli(*VERIFY)
    assert refused.status == 5
    assert said in refused.err


def test_a_certificate_signs_both(cli, output):
    there = output.parent
    _, _, root = write_key(there, "root")
    _, _, own = write_key(there, "studio")
    (there / "root.pem").write_bytes(certificate("Root", root, "Root", root, root=True))
    (there / "studio.pem").write_bytes(certificate("Studio", own, "Root", root))
    by = ("--key", "studio.key", "--certificate", "studio.pem", "--provenance")
    assert cli("sign", "out", *by).status == 0
    found = cli("verify-signature", "out", "--certificate", "root.pem")
    assert found.status == 0, found.err
    assert "signed by the same" in found.out
    other = there / "other"
    shutil.copytree(output, other)
    (there / "twin.pem").write_bytes(certificate("Twin", own, "Root", root))
    assert cli("sign", "other", "--key", "studio.key", "--certificate", "twin.pem", "--provenance").status == 0
    signer = KeySigner(there / "studio.key", certificate=there / "studio.pem")
    shutil.copy(other / "provenance.sigstore.json", output)
    _signed(output, signer, covered_files(output), {})
    refused = cli("verify-signature", "out", "--certificate", "root.pem")
    assert (refused.status, "another certificate has signed it" in refused.err) == (5, True)
