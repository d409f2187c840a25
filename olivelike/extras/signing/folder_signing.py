"""A folder's signature, and the signed statement of where it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olivelike._files import explained, write_whole
from olivelike._untrusted import one_line, read_bytes
from olivelike.digest import digest_file
from olivelike.errors import SourceError, UsageError, VerificationError
from olivelike.extras.signing.folder_signature import FolderSignature, covered_files, scratch_file, shown, unlike_files
from olivelike.extras.signing.provenance import provenance_of
from olivelike.model.records.output import RECORD_FILE, OutputRecord
from olivelike.model.records.run_record import RunRecord
from olivelike.model.records.signature_marks import MOST_BYTES, SIGNATURE_FILE, claimed_digests, claimed_statement
from olivelike.model.records.users_files import BOM_FILE, PROVENANCE_FILE, is_outdated_bom, listed_digests

if TYPE_CHECKING:
    from pathlib import Path

    from olivelike.extras.signing.signers import FolderSigner


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
        UsageError: if there is a statement already, and none is asked for; or a bill of materials of other files.
        SourceError: if the folder has no files, or can't be signed.
        VerificationError: if a file was changed since the run that the statement would be about, or the bill of
            materials lists it otherwise.
        StoreError: if nothing can be written there.
        MissingError: if somebody who has to be asked for the signature can't be reached.
    """
    files = covered_files(folder)
    if not files:
        raise SourceError(f"{folder}: has no file to sign")
    if is_outdated_bom(folder):
        raise UsageError(f"{folder}: its {BOM_FILE} is of what was here before; renew it with `bom`, or remove it")
    if not provenance:
        if PROVENANCE_FILE in files:
            raise UsageError(f"{folder}: has a {PROVENANCE_FILE}; renew it with --provenance, or remove it")
        return _signed(folder, signer, files, {})
    record = OutputRecord.require(folder)
    products = {name: file.sha256 for name, file in record.files.items()}
    products[RECORD_FILE] = digest_file(folder / RECORD_FILE)
    path = folder / PROVENANCE_FILE
    try:
        before = read_bytes(path, MOST_BYTES) if path.exists() else None
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}; remove it") from error
    _write(path, signer.signed(provenance_of(record, products, run)))
    try:
        return _signed(folder, signer, files | {PROVENANCE_FILE}, products)
    except BaseException:  # Also if somebody interrupts it: no statement without the folder's signature.
        path.unlink() if before is None else _write(path, before)
        raise


def _signed(folder: Path, signer: FolderSigner, files: set[str], products: dict[str, str]) -> FolderSignature:
    """Sign what lies in a folder, of which the products have to be as their run left them."""
    with scratch_file() as made:
        try:
            signer.sign(folder.resolve(), made)
        except (OSError, ValueError) as error:
            raise SourceError(
                f"{folder}: can't be signed: {one_line(str(error))}; sign it once no run writes"
            ) from error
        signature = read_bytes(made, MOST_BYTES)
    digests = claimed_digests(claimed_statement(signature))
    if changed := [name for name, digest in products.items() if digests.get(name) != digest]:
        raise VerificationError(
            f"{folder}: is not as its {RECORD_FILE} says: {shown(changed)}; run the workflow that "
            "made it again, or sign without --provenance"
        )
    bill = listed_digests(read_bytes(folder / BOM_FILE, MOST_BYTES)) if BOM_FILE in files else {}
    if bill and (unlike := unlike_files(folder, bill, digests)):
        raise VerificationError(
            f"{folder}: its {BOM_FILE} is of other files, by {shown(unlike)}; renew it with `bom`, or remove it"
        )
    path = folder / SIGNATURE_FILE
    _write(path, signer.finished(signature))
    return FolderSignature(path, len(files), signer.name, provenance=bool(products), bom=bool(bill))


def _write(path: Path, data: bytes) -> None:
    with explained("write a signature", path, "sign a copy of the folder"):
        write_whole(path, data)
