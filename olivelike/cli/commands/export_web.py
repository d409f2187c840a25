"""`olivelike export-web`: a static page that paints in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from olivelike.cli import options as shared


def export_web(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="An output with `layout: web`.", show_default=False)],
    output: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the page.", show_default=False)],
    onnxruntime_web: Annotated[
        Path | None,
        typer.Option(
            "--onnxruntime-web",
            metavar="PATH",
            help="npm's onnxruntime-web as a folder or tarball; by default from node_modules, the cache or npm.",
        ),
    ] = None,
    overwrite: shared.Overwrite = False,
    json: shared.Json = False,
) -> None:
    """Write a static page that paints in the browser.

    Any server of files will do; the page asks for nothing elsewhere.
    """
    import shlex

    from olivelike._extras import needed
    from olivelike._text import size
    from olivelike.cli.stdout import write_error, write_found

    def on_fetch(url: str) -> None:
        write_error(f"fetching {url}")

    export = needed("WRITERS", "page", "olivelike export-web")
    page = export(folder, output, onnxruntime_web=onnxruntime_web, overwrite=overwrite, on_fetch=on_fetch)
    lines = [
        f"wrote {page.path}: {page.files} files, {size(page.bytes)}, with onnxruntime-web {page.onnxruntime_web}",
        *(f"left alone, since it was changed: {path}" for path in page.left),
        f"next: python -m http.server --directory {shlex.quote(str(page.path))} --bind 127.0.0.1 8000",
    ]
    found = {
        "path": str(page.path), "files": page.files, "bytes": page.bytes, "onnxruntime_web": page.onnxruntime_web,
        "left": list(page.left),
    }  # fmt: skip
    write_found(found, lines, json=json)
