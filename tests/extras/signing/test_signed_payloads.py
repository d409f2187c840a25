"""What securesystemslib makes and checks: envelopes as the specification of DSSE has them."""

from __future__ import annotations

import base64

import pytest

pytest.importorskip("securesystemslib")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from olivelike.extras.signing.signed_payloads import PayloadSigner, PayloadSigners
from tests.fixtures.certificates import write_key


def test_an_envelope_is_that_of_dsse(tmp_path):
    """Its modules `dsse` and `exceptions` are in no reference; the format is, with its encoding of what is signed."""
    private, public, key = write_key(tmp_path, "a")
    envelope = PayloadSigner(private).signed(b"hello", "text/plain")
    (signature,) = envelope["signatures"]
    assert envelope == {"payload": "aGVsbG8=", "payloadType": "text/plain", "signatures": [signature]}
    assert signature.keys() == {"keyid", "sig"}
    key.public_key().verify(base64.b64decode(signature["sig"]), b"DSSEv1 10 text/plain 5 hello", ec.ECDSA(SHA256()))
    assert PayloadSigners(public).flaw(envelope, b"hello", "text/plain") is None


def test_a_signature_of_another_key_or_of_nonsense_does_not_count(tmp_path):
    private, _, _ = write_key(tmp_path, "a")
    _, other, _ = write_key(tmp_path, "b")
    envelope = PayloadSigner(private).signed(b"hello", "text/plain")
    asked = PayloadSigners(other)
    assert asked.flaw(envelope, b"hello", "text/plain") == "none of the keys has signed it"
    envelope["signatures"][0] |= {"keyid": next(iter(asked._keys)), "sig": "AAAA"}
    assert asked.flaw(envelope, b"hello", "text/plain") == "it was changed after it was signed"
