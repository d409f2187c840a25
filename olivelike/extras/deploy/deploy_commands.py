"""`olivelike export-web` and `olivelike package`: outputs as a page that paints, and as one for several targets."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from olivelike.cli import options as shared
from olivelike.cli.options import argument, option
from olivelike.cli.stdout import write_error, write_found

if TYPE_CHECKING:
    from olivelike.extras.deploy.joined_package import ModelPackage
    from olivelike.extras.deploy.web_page import WebPage


def export_page(
    folder: Annotated[Path, argument("FOLDER", "An output with `layout: web`.")],
    output: Annotated[Path, argument("DIR", "Where to write the page.")],
    onnxruntime_web: Annotated[
        Path | None,
        option(
            "--onnxruntime-web PATH",
            "npm's onnxruntime-web as a folder or tarball; by default from node_modules, the cache or npm.",
        ),
    ] = None,
    title: Annotated[str | None, option("NAME", "Name of the page; by default that of the pipeline's source.")] = None,
    example: Annotated[list[str] | None, option("PROMPT", "A prompt to begin with; repeatable.")] = None,
    overwrite: shared.Overwrite = False,
    json: shared.Json = False,
) -> None:
    """Write a static page that paints in the browser.

    Any server of files will do; the page asks for nothing elsewhere.
    """
    from olivelike._text import quoted, size
    from olivelike.extras.deploy.web_page import export_web

    def on_fetch(url: str) -> None:
        write_error(f"fetching {url}")

    page = export_web(
        folder, output, onnxruntime_web=onnxruntime_web, title=title, examples=example or (), overwrite=overwrite,
        on_fetch=on_fetch,
    )  # fmt: skip
    wrote = f"wrote {page.path}: {page.files} files, {size(page.bytes)}, with onnxruntime-web {page.onnxruntime_web}"
    serve = f"next: python -m http.server --directory {quoted(page.path)} --bind 127.0.0.1 8000"
    _tell(page, [folder], "a page", [wrote, *_left(page), serve], json=json)


def package(
    folders: Annotated[list[Path], argument("FOLDER...", "Outputs, each for another target.")],
    output: Annotated[Path, option("-o --output DIR", "Where to write: NAME.ortpackage.")],
    overwrite: shared.Overwrite = False,
    json: shared.Json = False,
) -> None:
    """Put outputs for several targets together as one model package of ONNX Runtime.

    Weights that they have alike are stored once.
    """
    from olivelike._text import size
    from olivelike.extras.deploy.joined_package import package_outputs

    made = package_outputs(folders, output, overwrite=overwrite)
    wrote = f"wrote {made.path}: {made.files} files, {size(made.bytes)}, for {', '.join(made.targets)}"
    once = f"stored once for several targets: {size(made.shared_bytes)}"
    _tell(made, folders, "a package", [wrote, once, *_left(made)], json=json)


def _left(made: "WebPage | ModelPackage") -> list[str]:
    return [f"left alone, since it was changed: {path}" for path in made.left]


def _tell(made: "WebPage | ModelPackage", folders: list[Path], what: str, lines: list[str], *, json: bool) -> None:
    from olivelike.engine.output.license_notes import folder_notes

    for warning in dict.fromkeys(warning for folder in folders for warning in folder_notes(folder, what)):
        write_error(f"warning: {warning}")
    write_found({**asdict(made), "path": str(made.path)}, lines, json=json)
