"""A folder's signature, and the signed statement of where it came from."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike._files import write_whole
from olivelike._text import listed
from olivelike._untrusted import one_line, read_bytes
from olivelike.digest import digest_file
from olivelike.errors import SourceError, UsageError, VerificationError
from olivelike.extras.signing.folder_signature import FolderSignature, covered_files
from olivelike.extras.signing.provenance import provenance_of
from olivelike.model.records.output import RECORD_FILE, OutputRecord
from olivelike.model.records.signature_marks import SIGNATURE_FILE, claimed_digests, claimed_statement
from olivelike.model.records.users_files import PROVENANCE_FILE

if TYPE_CHECKING:
    from olivelike.extras.signing.signers import FolderSigner
    from olivelike.model.records.run_record import RunRecord

_SHOWN = 5


def sign_folder(
    folder: Path, signer: FolderSigner, *, provenance: bool = False, run: RunRecord | None = None
) -> FolderSignature:
    """Sign all files of a folder, and write the signature as its `model.sig`, in place of an earlier one.

    Args:
        folder: It; links and empty folders are refused.
        signer: Who signs.
        provenance: Also write and sign the statement of what the folder was made of, and how.
        run: The record of the run that made it, whose times and versions go into that statement.

    Raises:
        UsageError: if there is a statement already, and none is asked for.
        SourceError: if the folder has no files, or can't be signed.
        VerificationError: if a file was changed since the run that the statement would be about.
        MissingError: if somebody who has to be asked for the signature can't be reached.
    """
    files = covered_files(folder)
    if not files:
        raise SourceError(f"{folder}: has no file to sign")
    if not provenance:
        if PROVENANCE_FILE in files:
            raise UsageError(f"{folder}: has a {PROVENANCE_FILE}; renew it with --provenance, or remove it")
        return _signed(folder, signer, files, {})
    record = OutputRecord.require(folder)
    products = {name: file.sha256 for name, file in record.files.items()}
    products[RECORD_FILE] = digest_file(folder / RECORD_FILE)
    path = folder / PROVENANCE_FILE
    before = read_bytes(path) if path.exists() else None
    _write(path, signer.signed(provenance_of(record, products, run)))
    try:
        return _signed(folder, signer, files | {PROVENANCE_FILE}, products)
    except BaseException:  # Also if somebody interrupts it: no statement without the folder's signature.
        path.unlink() if before is None else _write(path, before)
        raise


def _signed(folder: Path, signer: FolderSigner, files: set[str], products: dict[str, str]) -> FolderSignature:
    """Sign what lies in a folder, of which the products have to be as their run left them."""
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / SIGNATURE_FILE
        try:
            signer.sign(folder.resolve(), made)
        except (OSError, ValueError) as error:
            raise SourceError(
                f"{folder}: can't be signed: {one_line(str(error))}; sign it once no run writes"
            ) from error
        signature = read_bytes(made)
    digests = claimed_digests(claimed_statement(signature))
    if changed := sorted(name for name, digest in products.items() if digests.get(name) != digest):
        raise VerificationError(
            f"{folder}: is not as its {RECORD_FILE} says: {one_line(listed(changed, _SHOWN))}; run the workflow that "
            "made it again, or sign without --provenance"
        )
    path = folder / SIGNATURE_FILE
    _write(path, signer.finished(signature))
    return FolderSignature(path, len(files), signer.name, provenance=bool(products))


def _write(path: Path, data: bytes) -> None:
    try:
        write_whole(path, data)
    except OSError as error:
        raise SourceError(f"{path}: can't be written: {error.strerror}; sign a copy that you may write") from error
