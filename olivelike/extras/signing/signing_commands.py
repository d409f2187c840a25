"""`olivelike sign` and `olivelike verify-signature`: who made a folder, and whether it is as they left it."""

from pathlib import Path
from typing import Annotated

import typer

from olivelike.cli import options as shared

_Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a model.", show_default=False)]


def sign(
    folder: _Folder,
    key: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Private key as PEM, of the curve P-256, P-384 or P-521.", show_default=False
        ),
    ],
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The key's certificate as PEM; it goes into the signature.", show_default=False
        ),
    ] = None,
    chain: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Certificates between it and the root; repeatable.", show_default=False),
    ] = None,
    json: shared.Json = False,
) -> None:
    """Sign every file of a folder; the signature is its `model.sig`.

    The password of an encrypted key is read from $OLIVELIKE_KEY_PASSWORD.
    """
    import os

    from olivelike._signing_keys import PASSWORD
    from olivelike._text import count
    from olivelike.cli.stdout import write_found
    from olivelike.extras.signing.folder_signing import sign_folder

    signed = sign_folder(
        folder, key, password=os.environ.get(PASSWORD), certificate=certificate, chain=tuple(chain or ())
    )
    lines = [f"wrote {signed.path}: {count(signed.files, 'file')}", f"signed by {signed.signer}"]
    write_found(signed.to_json(), lines, json=json)


def verify_signature(
    folder: _Folder,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Public key of the signer, as PEM.", show_default=False)
    ] = None,
    certificate: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Root certificate that the signer's must descend from, as PEM; repeatable.",
            show_default=False,
        ),
    ] = None,
    json: shared.Json = False,
) -> None:
    """Check who signed a folder, and that each file is as it was then.

    The exit status is 5 if another key signed it, or a file was changed, added or removed.
    """
    from olivelike._text import count
    from olivelike._untrusted import one_line
    from olivelike.cli.stdout import write_found
    from olivelike.extras.signing.folder_checking import check_folder

    found = check_folder(folder, key=key, roots=tuple(certificate or ()))
    lines = [f"{found.path}: {count(found.files, 'file')} as they were signed", f"signed by {found.signer}"]
    write_found(found.to_json(), map(one_line, lines), json=json)
