"""`olivelike sign` and `olivelike verify-signature`: who made a folder, and whether it is as they left it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from olivelike._text import count
from olivelike._untrusted import one_line
from olivelike.cli import options as shared
from olivelike.cli.options import argument, option
from olivelike.cli.stdout import write_error, write_found
from olivelike.errors import StoreError, UsageError

if TYPE_CHECKING:
    from olivelike.model.records.run_record import RunRecord

_Folder = Annotated[Path, argument("FOLDER", "The folder of a model.")]
_Trust = Annotated[Path | None, option("FILE", "Client trust config of a Sigstore of your own, as JSON.")]


def sign(
    folder: _Folder,
    key: Annotated[Path | None, option("FILE", "Private key as PEM, of the curve P-256, P-384 or P-521.")] = None,
    certificate: Annotated[
        Path | None, option("FILE", "The key's certificate as PEM; it goes into the signature.")
    ] = None,
    chain: Annotated[list[Path] | None, option("FILE", "Certificates between it and the root; repeatable.")] = None,
    keyless: Annotated[
        bool, option("--keyless", "Sign by a login in place of a key, with Sigstore; a public log names it.")
    ] = False,
    trust_config: _Trust = None,
    provenance: Annotated[
        bool, option("--provenance", "Also write and sign what the folder was made of, by which steps (in-toto, SLSA).")
    ] = False,
    cache_dir: shared.StoreDir = None,
    json: shared.Json = False,
) -> None:
    """Sign every file of a folder; the signature is its `model.sig`.

    The password of an encrypted key is read from $OLIVELIKE_KEY_PASSWORD, a token for --keyless from
    $OLIVELIKE_IDENTITY_TOKEN; without one that of a CI is taken, or a browser asks you to log in.
    """
    from olivelike.engine.output.license_notes import folder_notes
    from olivelike.extras.signing.folder_signing import sign_folder
    from olivelike.extras.signing.signers import TOKEN, FolderSigner, KeylessSigner, KeySigner

    if keyless == (key is not None):
        raise UsageError("name who signs: --key FILE with a private key, or --keyless for a login")
    if keyless and (certificate or chain):
        raise UsageError("--keyless gets a certificate for the login; leave out --certificate and --chain")
    if trust_config is not None and not keyless:
        raise UsageError("--trust-config is for --keyless")
    signer: FolderSigner = KeylessSigner(os.environ.get(TOKEN) or None, trust_config)
    if key is not None:
        signer = KeySigner(key, certificate=certificate, chain=tuple(chain or ()))
    run = _run_of(folder, cache_dir) if provenance else None
    notes = [*folder_notes(folder, "a signed folder")]
    signed = sign_folder(folder, signer, provenance=provenance, run=run)
    lines = [f"wrote {signed.path}: {count(signed.files, 'file')}", f"signed by {signed.signer}"]
    if provenance:
        from olivelike.model.records.users_files import PROVENANCE_FILE

        lacks = "" if run else ", without times and versions: no record of its run here"
        lines.append(f"wrote {folder / PROVENANCE_FILE}{lacks}")
    for note in notes:
        write_error(f"warning: {note}")
    write_found(signed.to_json(), map(one_line, lines), json=json)


def _run_of(folder: Path, cache_dir: str | None) -> "RunRecord | None":
    """Return the record of the run that made a folder, wherever that lies by now, if the store has it."""
    from olivelike.engine.run_result import readable_runs
    from olivelike.model.records.output import OutputRecord

    try:
        store = shared.open_store(cache_dir)
    except StoreError:
        if cache_dir is not None:
            raise
        return None
    keys = {entry.key for entry in OutputRecord.require(folder).components.values()}
    had = [run for run in readable_runs(store) if run.status == "ok" and keys <= {node.key for node in run.nodes}]
    wrote = (run for run in had if keys <= {node.key for node in run.nodes if node.status == "executed"})
    return next(wrote, had[0] if had else None)


def verify_signature(
    folder: _Folder,
    key: Annotated[Path | None, option("FILE", "Public key of the signer, as PEM.")] = None,
    certificate: Annotated[
        list[Path] | None, option("FILE", "Root certificate that the signer's must descend from, as PEM; repeatable.")
    ] = None,
    identity: Annotated[str | None, option("WHO", "Login that signed: a mail address, or a CI's workflow.")] = None,
    issuer: Annotated[str | None, option("URL", "Who vouched for it, such as https://github.com/login/oauth.")] = None,
    trust_config: _Trust = None,
    json: shared.Json = False,
) -> None:
    """Check who signed a folder, and that each file is as it was then.

    The exit status is 5 if another signed it, or a file was changed, added or removed; also if a statement of where it
    came from is of another signer, or it or the bill of materials is of other files.
    """
    from olivelike.extras.signing.folder_checking import Login, check_folder
    from olivelike.model.records.users_files import BOM_FILE, PROVENANCE_FILE

    if (identity is None) != (issuer is None):
        raise UsageError("--identity and --issuer belong together: anybody can log in somewhere under any name")
    if trust_config is not None and identity is None:
        raise UsageError("--trust-config is for --identity and --issuer")
    login = Login(identity, issuer, trust_config) if identity is not None and issuer is not None else None
    found = check_folder(folder, key=key, roots=tuple(certificate or ()), login=login)
    lines = [f"{found.path}: {count(found.files, 'file')} as they were signed", f"signed by {found.signer}"]
    if found.provenance:
        lines.append(f"{PROVENANCE_FILE}: signed by the same, about these files")
    if found.bom:
        lines.append(f"{BOM_FILE}: about these files")
    write_found(found.to_json(), map(one_line, lines), json=json)
