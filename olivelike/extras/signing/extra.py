"""Declaration of signatures: two commands, and what signs and checks the records of shared stores."""

from olivelike._extras import Command

COMMANDS = {
    "sign": Command(
        "olivelike.extras.signing.signing_commands:sign",
        "olivelike sign models/painter --key painter.key",
        group="Make",
        after="package",
    ),
    "verify-signature": Command(
        "olivelike.extras.signing.signing_commands:verify_signature",
        "olivelike verify-signature models/painter --key painter.pub",
        group="Measure",
        after="verify",
    ),
}
SIGNATURES = {
    "signer": "olivelike.extras.signing.signed_payloads:PayloadSigner",
    "signers": "olivelike.extras.signing.signed_payloads:PayloadSigners",
}
