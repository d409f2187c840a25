"""A static page that paints with an output in the layout `web`: pipeline, onnxruntime-web and the page's own files."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files as files_in
from pathlib import Path
from typing import Final

from olivelike._installed import own_version
from olivelike._text import quoted
from olivelike._untrusted import Json, one_line, open_file, read_json
from olivelike.digest import digest_bytes
from olivelike.engine.output.asset_table import SCHEDULER_MODEL
from olivelike.engine.output.file_names import stage
from olivelike.engine.output.output_files import explained
from olivelike.engine.output.publication import publish
from olivelike.engine.output.staging import discard_staging, staging_folder
from olivelike.errors import SourceError, UsageError
from olivelike.extras.deploy.package_checks import check_place
from olivelike.extras.deploy.web_files import MANIFEST_FILE, MANIFEST_KIND, SAMPLER_FACTS, manifest
from olivelike.extras.deploy.web_runtime import VERSION, find_runtime
from olivelike.families import TEXT_ENCODERS, TEXT_TO_PICTURE, TOKENIZER_OF
from olivelike.graphs.inspect import inspect_model
from olivelike.model.client_layouts import PAGE
from olivelike.model.components import INDEX_FILE, SAFETY_CHECKER
from olivelike.model.records.output import FileFacts, OutputFile, OutputRecord
from olivelike.runtime.pictures.ai_mark import source_type, xmp_packet
from olivelike.runtime.pipeline.pipeline_folder import open_folder
from olivelike.serve.languages import table, words, words_module
from olivelike.workflow.calibration_prompts import PROMPTS

PAGE_FILES: Final = Path(__file__).with_name("web")
SHARED: Final = (
    "dom.js", "early_theme.js", "icon.svg", "language.js", "notices.js", "samplers.js", "style.css", "theme.js",
)  # fmt: skip
"""Files that the page has of the server's."""
_TITLE: Final = "A model of olivelike"
"""What stands in `index.html` for the name of the page."""
_EXAMPLES: Final = (PROMPTS[1], PROMPTS[5], PROMPTS[7])
_MOST_EXAMPLES: Final = 8
_ATTENTION: Final = frozenset({"MultiHeadAttention", "Attention"})
_PIECE_BYTES: Final = 8 << 20
_TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class WebPage:
    """A page that was written."""

    path: Path
    files: int
    bytes: int
    onnxruntime_web: str
    """Its version."""
    left: tuple[str, ...] = ()
    """Files that the page no longer needs, left alone since they were changed."""


def export_web(
    folder: str | Path,
    output: str | Path,
    *,
    onnxruntime_web: str | Path | None = None,
    title: str | None = None,
    examples: Sequence[str] = (),
    overwrite: bool = False,
    on_fetch: Callable[[str], None] | None = None,
) -> WebPage:
    """Write a page that paints in the browser, without any other server than that of its files.

    Args:
        folder: An output in the layout `web`.
        output: Where the page goes: a new folder, an empty one, or an earlier page of ours.
        onnxruntime_web: The npm package as a folder or tarball; by default what is found near by, or fetched.
        title: Name of the page; by default that of what the pipeline was made from.
        examples: Prompts to begin with, 8 at most; by default some that fit the pipeline.
        overwrite: Replace the page of another pipeline, and files in the page that were changed since.
        on_fetch: Told the address that something is fetched from, before it is.

    Raises:
        SourceError: if the folder has another layout, is not complete or was changed.
        MissingError: if onnxruntime-web is nowhere and can't be fetched.
        UsageError: if somebody else's files are in the way, or there are too many examples; the output is as it was.
        StoreError: if the disk refuses; the output is as it was.
    """
    folder, output = Path(folder), Path(output)
    if len(examples) > _MOST_EXAMPLES:
        raise UsageError(f"{len(examples)} examples are more than the page has room for; give {_MOST_EXAMPLES} at most")
    record = OutputRecord.require(folder)
    needed = _needed(folder, record)
    before = check_place(output, [folder], record, PAGE, overwrite=overwrite)
    told = _told(folder, record, [path for path, _ in needed], examples)
    runtime = find_runtime(None if onnxruntime_web is None else Path(onnxruntime_web), Path.cwd(), on_fetch)
    staging = staging_folder(output)
    try:
        files = {f"model/{path}": _copied(folder, path, facts, staging / "model" / path) for path, facts in needed}
        own = {name: files_in("olivelike.data").joinpath("serve", name).read_bytes() for name in SHARED}
        own |= {path.name: path.read_bytes() for path in sorted(PAGE_FILES.iterdir()) if path.is_file()}
        own |= {f"words.{code}.js": words_module(code, words(code)).encode() for code in table()["languages"]}
        model = one_line(str(record.source.name)).rpartition("/")[2]
        own["index.html"] = _named(own["index.html"], title or model)
        xmp = xmp_packet(source_type(masked=False)).decode()
        told["made"] = {"model": model, "version": f"olivelike {own_version()}", "xmp": xmp}
        own |= {f"ort/{name}": data for name, data in runtime.items()}
        own["attention.onnx"] = _attention()
        binaries = {name: data for name, data in runtime.items() if name.endswith(".wasm")}
        told["runtime"] = {name: {"size": len(data), "sha256": digest_bytes(data)} for name, data in binaries.items()}
        own[f"model/{MANIFEST_FILE}"] = manifest(dict(needed), told)
        for path, data in own.items():
            stage(staging, path, data)
            files[path] = OutputFile(len(data), digest_bytes(data))
        made = OutputRecord(
            record.workflow, record.target, record.source, files=files, loras=record.loras,
            embeddings=record.embeddings, layout=PAGE,
        )  # fmt: skip
        left = publish(staging, output, made, before, overwrite=overwrite)
    finally:
        discard_staging(staging)
    return WebPage(output, len(files), sum(file.size for file in files.values()), VERSION, tuple(left))


def _needed(folder: Path, record: OutputRecord) -> list[tuple[str, FileFacts]]:
    """Return what a picture takes of an output: the files of its networks and tokenizers, index and schedulers."""
    if record.layout != "web":
        source, target = quoted(one_line(record.source.name)), one_line(record.target.name)
        raise SourceError(
            f"{folder}: its layout is {one_line(record.layout)}, a page reads that of `web`; convert it again: "
            f"olivelike convert {source} -t {target} --layout web -o {quoted(f'{folder}_web')}"
        )
    encoders = [name for name in TEXT_ENCODERS if name in record.components]
    missing = [name for name in ("unet", "vae_decoder") if name not in record.components]
    if missing or not encoders:
        raise SourceError(
            f"{folder}: has no {(missing or TEXT_ENCODERS)[0]}; a page needs it: put it into `components`"
        )
    wanted = [
        *(f"{TOKENIZER_OF[name]}/{file}" for name in encoders for file in _TOKENIZER_FILES),
        INDEX_FILE,
        SCHEDULER_MODEL,
    ]
    if SAFETY_CHECKER in record.components:
        wanted.append("feature_extractor/preprocessor_config.json")
    if absent := [path for path in wanted if path not in record.files]:
        raise SourceError(f"{folder}: has no {absent[0]}, which a page needs; run the workflow again")
    networks = [path for path in record.files if path.partition("/")[0] in {*TEXT_TO_PICTURE, SAFETY_CHECKER}]
    return [(path, record.files[path]) for path in (*networks, *wanted)]


def _named(document: bytes, title: str) -> bytes:
    """Put a title where the document has the one that stands for it."""
    return document.replace(_TITLE.encode(), html.escape(title).encode())


def _told(folder: Path, record: OutputRecord, needed: Sequence[str], examples: Sequence[str]) -> Json:
    """Return what the manifest says of the pipeline beside its files."""
    path = folder / MANIFEST_FILE
    try:
        content = read_json(path)
        told = {name: content[name] for name in ("size", "samplers")}
        right = (
            content["kind"] == MANIFEST_KIND
            and (told["size"] is None or _is_size(told["size"]))
            and _are_samplers(told["samplers"])
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise SourceError(f"{path}: can't be read: {error}; run the workflow again") from error
    if not right:
        raise SourceError(f"{path}: is no manifest of kind {MANIFEST_KIND}; run the workflow again")
    opened = open_folder(folder)
    networks = [path for path in needed if path.endswith(".onnx") and path != SCHEDULER_MODEL]
    return {
        **told,
        "device": "webgpu" if record.target.name == "webgpu" else "wasm",
        "examples": list(examples or opened.examples or _EXAMPLES),
        "fused_attention": any(_has_fused_attention(folder / path) for path in networks),
        "colours": None if opened.colours is None else asdict(opened.colours),
    }


def _are_samplers(samplers: Json) -> bool:
    """Tell whether `samplers` of a manifest are as `web_files` writes them."""
    listed, own, texts = samplers["list"], samplers["own"], [samplers["class"], *samplers["other_noise"]]
    return (
        all(one.keys() == SAMPLER_FACTS and one["schedules"] for one in listed)
        and all(type(text) is str for text in [*texts, *([] if own is None else [own])])
        and bool(listed or own)
    )


def _is_size(size: object) -> bool:
    return isinstance(size, list) and len(size) == 2 and all(type(side) is int and side > 0 for side in size)


def _has_fused_attention(path: Path) -> bool:
    operators = inspect_model(path, targets=()).operators
    return bool(_ATTENTION & operators.get("com.microsoft", {}).keys())


def _attention() -> bytes:
    """Return a model of one attention, by which the page tries graphics cards."""
    from onnx import TensorProto, helper

    dims = [1, "tokens", "width"]
    names = ["query", "key", "value"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in names]
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, dims)
    node = helper.make_node("MultiHeadAttention", names, ["output"], domain="com.microsoft", num_heads=2)
    graph = helper.make_graph([node], "attention", inputs, [output])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(deterministic=True)
    return data


def _copied(folder: Path, relative: str, facts: FileFacts, target: Path) -> OutputFile:
    """Copy a file that is as its record says. Raises `SourceError` if it is missing, or its bytes are others."""
    digest, size = hashlib.sha256(), 0
    with explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as written:
            for piece in _pieces(folder / relative):
                written.write(piece)
                digest.update(piece)
                size += len(piece)
    if (size, digest.hexdigest()) != (facts.size, facts.sha256):
        raise SourceError(f"{folder / relative}: is damaged, or was changed since it was made; run the workflow again")
    return OutputFile(size, facts.sha256)


def _pieces(path: Path) -> Iterator[bytes]:
    try:
        with open_file(path) as file:
            while piece := file.read(_PIECE_BYTES):
                yield piece
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}; run the workflow again") from error
