"""`sign --keyless` and `verify-signature --identity`, with a Sigstore of one's own on loopback."""

from __future__ import annotations

import base64
import json
import random

import pytest

pytest.importorskip("model_signing")

from model_signing import verifying

from olivelike.extras.signing import signers as signing
from tests.cli import conftest as commands
from tests.extras.signing.little_sigstore import ISSUER, LittleSigstore, token
from tests.extras.signing.signers import write_record
from tests.fixtures.certificates import write_key

cli, empty_folder = commands.cli, commands.empty_folder
_jobs_in_this_process, _no_store_of_the_user = commands._jobs_in_this_process, commands._no_store_of_the_user
ME = "me@example.org"
SIGN = ("sign", "out", "--keyless", "--trust-config", "trust.json")
CHECK = ("verify-signature", "out", "--trust-config", "trust.json", "--issuer", ISSUER, "--identity")


@pytest.fixture
def sigstore():
    with LittleSigstore() as running:
        yield running


@pytest.fixture
def output(empty_folder, sigstore, monkeypatch):
    """An output `out`, and a login."""
    (empty_folder / "trust.json").write_text(sigstore.trust_config())
    monkeypatch.setenv("OLIVELIKE_IDENTITY_TOKEN", token(ME))
    return write_record(empty_folder / "out", b"weights")


def test_a_login_signs_and_is_checked(cli, output):
    told = cli(*SIGN, "--provenance")
    assert told.status == 0, told.err
    assert f"signed by {ME} (login at {ISSUER})" in told.out
    found = cli(*CHECK, ME)
    assert found.status == 0, found.err
    assert f"signed by {ME} (login at {ISSUER})" in found.out
    assert "provenance.sigstore.json: signed by the same" in found.out
    config = verifying.Config().use_sigstore_verifier(
        identity=ME, oidc_issuer=ISSUER, trust_config=output.with_name("trust.json")
    )
    config.verify(output, output / "model.sig")


def test_another_login_another_issuer_and_another_sigstore_are_refused(cli, output):
    assert cli(*SIGN).status == 0
    other = cli(*CHECK, "you@example.org")
    assert (other.status, "did not sign it: Certificate's SANs do not match you@example.org" in other.err) == (5, True)
    elsewhere = cli(
        "verify-signature", "out", "--trust-config", "trust.json", "--issuer", "https://a.org", "--identity", ME
    )
    assert (elsewhere.status, "did not sign it" in elsewhere.err) == (5, True)
    with LittleSigstore() as stranger:
        output.with_name("trust.json").write_text(stranger.trust_config())
    assert cli(*CHECK, ME).status == 5


def test_checking_asks_no_server(cli, output, sigstore):
    assert cli(*SIGN).status == 0
    asked = len(sigstore.asked)
    assert cli(*CHECK, ME).status == 0
    assert len(sigstore.asked) == asked


def test_keys_and_logins_are_told_apart(cli, output):
    write_key(output.parent, "a")
    assert cli(*SIGN).status == 0
    for how in (("--key", "a.pub"), ("--certificate", "a.pub")):
        refused = cli("verify-signature", "out", *how)
        assert refused.status in (2, 5)
    assert "it is signed by a login; name that with --identity" in cli("verify-signature", "out", "--key", "a.pub").err
    assert cli("sign", "out", "--key", "a.key").status == 0
    refused = cli(*CHECK, ME)
    assert (refused.status, "it is signed with a key" in refused.err) == (5, True)


@pytest.mark.parametrize("path", ["/api/v2/signingCert", "/api/v1/log/entries", "/.well-known/openid-configuration"])
def test_a_server_that_refuses_leaves_the_folder_as_it_was(cli, output, sigstore, path):
    sigstore.refuses.add(path)
    before = sorted(one.relative_to(output) for one in output.rglob("*"))
    for more in ((), ("--provenance",)):
        refused = cli(*SIGN, *more)
        assert (refused.status, "Sigstore can't be reached, or refuses" in refused.err) == (3, True), refused.err
        assert sorted(one.relative_to(output) for one in output.rglob("*")) == before


def test_without_a_network_it_says_so(cli, output, monkeypatch):
    from sigstore.errors import TUFError
    from sigstore.models import ClientTrustConfig

    def unreachable():
        raise TUFError("Failed to refresh TUF metadata") from ConnectionError("no network")

    monkeypatch.setattr(ClientTrustConfig, "production", unreachable)
    for command in (("sign", "out", "--keyless"), ("verify-signature", "out", "--identity", ME, "--issuer", ISSUER)):
        if command[0] == "verify-signature":
            assert cli(*SIGN).status == 0
        refused = cli(*command)
        assert refused.status == 3
        assert "Sigstore can't be reached, or refuses: Failed to refresh TUF metadata; connect" in refused.err


def test_tokens_that_can_not_be_used_are_named_and_not_told(cli, output, monkeypatch):
    for made in ("noise", token(ME, exp=1), token(ME, aud="another")):
        monkeypatch.setenv("OLIVELIKE_IDENTITY_TOKEN", made)
        refused = cli(*SIGN)
        assert (refused.status, "the identity token in $OLIVELIKE_IDENTITY_TOKEN can't be used" in refused.err) == (
            2,
            True,
        )
        assert made not in refused.err
    assert not (output / "model.sig").exists()


def test_a_ci_gives_its_own_token(cli, output, monkeypatch):
    monkeypatch.delenv("OLIVELIKE_IDENTITY_TOKEN")
    monkeypatch.setattr("sigstore.oidc.detect_credential", lambda: token("ci@example.org"))
    assert cli(*SIGN).status == 0
    assert cli(*CHECK, "ci@example.org").status == 0


def test_wrong_options_are_refused(cli, output):
    for arguments, said in (
        (("sign", "out"), "name who signs"),
        (("sign", "out", "--key", "a", "--keyless"), "name who signs"),
        (("sign", "out", "--keyless", "--certificate", "a.pem"), "--keyless gets a certificate"),
        (("sign", "out", "--key", "a", "--trust-config", "trust.json"), "--trust-config is for --keyless"),
        (("sign", "out", "--keyless", "--trust-config", "nowhere.json"), "no such file"),
        (("sign", "out", "--keyless", "--trust-config", "out/olivelike.json"), "no client trust config of Sigstore"),
        (("verify-signature", "out", "--identity", ME), "belong together"),
        (("verify-signature", "out", "--key", "a", "--trust-config", "trust.json"), "--trust-config is for --identity"),
        (("verify-signature", "out", "--key", "a", "--identity", ME, "--issuer", ISSUER), "name the signer"),
    ):
        found = cli(*arguments)
        assert (found.status, said in found.err) == (2, True), (arguments, found)


def test_every_change_of_a_bundle_is_found_or_of_no_weight(cli, output):
    """Bytes of a bundle that nobody has signed, such as spaces, weigh nothing; what it says of files does."""
    assert cli(*SIGN).status == 0
    path = output / "model.sig"
    data = path.read_bytes()
    rng = random.Random(0)
    for _ in range(20):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(7)
        path.write_bytes(changed)
        found = cli(*CHECK, ME)
        assert found.status in (0, 5), found.err
        if not found.status:
            assert _payload(changed) == _payload(data)
    path.write_bytes(data)
    (output / "unet/model.onnx").write_bytes(b"other")
    assert "changed: unet/model.onnx" in cli(*CHECK, ME).err


def _payload(bundle):
    return base64.b64decode(json.loads(bundle)["dsseEnvelope"]["payload"])


def test_a_statement_of_another_login_is_refused(cli, output, monkeypatch):
    from olivelike.extras.signing.folder_signature import covered_files
    from olivelike.extras.signing.folder_signing import _signed

    trust = output.with_name("trust.json")
    monkeypatch.setenv("OLIVELIKE_IDENTITY_TOKEN", token("you@example.org"))
    assert cli(*SIGN, "--provenance").status == 0
    _signed(output, signing.KeylessSigner(token(ME), trust), covered_files(output), {})
    refused = cli(*CHECK, ME)
    assert (refused.status, "provenance.sigstore.json does not hold" in refused.err) == (5, True)
