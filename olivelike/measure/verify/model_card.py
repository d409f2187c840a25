"""The model card of an output folder: what it was made of, how, how large it is, and how near to the original.

A card is `README.md`, as the Hugging Face hub shows it: keys for the hub above, text below. One that is there already
keeps all but what lies between two comments of ours. Source of the keys: the hub's documentation of model cards.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike._files import write_whole
from olivelike._table import Table, markdown_text
from olivelike._text import count, size
from olivelike._untrusted import read_settings
from olivelike.errors import UsageError
from olivelike.families import DENOISERS, TEXT_ENCODERS, family_of_folder, missing_networks
from olivelike.graphs.inspect.inspection import inspect_model
from olivelike.graphs.inspect.quantised import shares
from olivelike.model.components import INDEX_FILE, PIPELINE
from olivelike.model.licenses import HUB_IDS
from olivelike.model.records.card_marks import CARD_FILE, END, begin, read_card, with_part
from olivelike.model.records.output import OutputRecord

if TYPE_CHECKING:
    from olivelike.measure.verify.folder_verification import FolderVerification

_FULL: Final = "fp32"
_TAGS: Final = {"sd3": "stable-diffusion-3", "flux": "flux", "flux2": "flux2", "z_image": "z-image"}
"""Family → the hub's tag, where it is not of SD 1.x, 2.x or XL."""


def check_card(folder: Path) -> None:
    """Check, before minutes are spent, that a folder's card can be written.

    Raises `UsageError` if a `README.md` is there that has no part of ours, or can't be read.
    """
    place = folder / CARD_FILE
    try:
        card = read_card(folder)
    except (OSError, ValueError) as error:
        raise UsageError(f"--card: {place} can't be read as text: {error}; move it away") from error
    if place.is_symlink() or (card is not None and with_part(card, "") is None):
        raise UsageError(
            f"--card: {place} is not from olivelike; move it away, or put a line `<!-- olivelike: begin "
            f"{'0' * 12} -->` and a line `{END}` in it, between which the figures go"
        )


def write_card(found: FolderVerification) -> Path:
    """Write the card of a folder that was verified, or renew our part of it, and return its path.

    Raises `UsageError` if it can't be written.
    """
    check_card(found.folder)
    record = OutputRecord.require(found.folder)
    part = "\n".join([begin(record), *_figures(found, record), END])
    there = read_card(found.folder)
    text = None if there is None else with_part(there, part)
    if text is None:
        text = "\n".join([*_front(found, record), "", *_opening(found.folder, record), "", part, "", *_use(record), ""])
    place = found.folder / CARD_FILE
    try:
        write_whole(place, text.encode(), durable=False)
    except OSError as error:
        raise UsageError(f"{place}: the card can't be written: {error.strerror}") from error
    return place


def _front(found: FolderVerification, record: OutputRecord) -> Iterator[str]:
    """Yield what the hub reads; texts are quoted as JSON, which is YAML."""
    precisions = dict.fromkeys(one.verification.precision for one in found.components)
    yield "---"
    if record.source.repository is not None:
        yield f"base_model: {json.dumps(record.source.repository)}"
        if precisions.keys() - {_FULL}:
            yield "base_model_relation: quantized"
    for key, value in _license(record).items():
        yield f"{key}: {json.dumps(value)}"
    yield "library_name: onnx"
    if not missing_networks(record.components) and record.components.keys() & {*TEXT_ENCODERS}:
        yield "pipeline_tag: text-to-image"
    runtime = "openvino" if record.target.name == "openvino" else "onnxruntime"
    yield "tags:"
    for tag in ("onnx", runtime, _family_tag(found.folder, record), *sorted(precisions.keys() - {_FULL}), "olivelike"):
        yield f"- {tag}"
    yield "---"


def _family_tag(folder: Path, record: OutputRecord) -> str:
    """Return the hub's tag for what was optimised; of networks that tell no family it is Stable Diffusion's."""
    again = "run the workflow that made it again"
    index = read_settings(folder / INDEX_FILE, again, absent={})
    denoisers = [name for name in DENOISERS if name in record.components]
    config = read_settings(folder / denoisers[0] / "config.json", again, absent={}) if denoisers else {}
    other = "stable-diffusion-xl" if "text_encoder_2" in record.components else "stable-diffusion"
    return _TAGS.get(family_of_folder(index, record.components, config).name, other)


def _license(record: OutputRecord) -> dict[str, str]:
    """Return the hub's keys for the licence, if all that it is made of has one and the same."""
    licenses = [origin.license for _, origin in record.origins]
    first = licenses[0]
    if first is None or any(one is None or one.name != first.name for one in licenses):
        return {}
    if first.name in HUB_IDS:
        return {"license": first.name}
    return {"license": "other", "license_name": first.name, **({"license_link": first.link} if first.link else {})}


def _licenses(record: OutputRecord) -> Iterator[str]:
    rows = dict[tuple[str, ...], None]()
    for role, origin in record.origins:
        said = origin.license
        told = ("unknown", "") if said is None else (markdown_text(said.name), markdown_text(said.said_by))
        rows[(role, markdown_text(origin), *told)] = None
    yield from Table(("part", "from", "licence", "said by"), list(rows)).markdown()


def _opening(folder: Path, record: OutputRecord) -> Iterator[str]:
    merged = [f"{markdown_text(lora.origin)} at {lora.weight:g}" for lora in record.loras]
    merged += [f"{markdown_text(one.origin)} as {markdown_text(one.token)}" for one in record.embeddings]
    added = f" With it: {', '.join(merged)}." if merged else ""
    runtime = "OpenVINO" if record.target.name == "openvino" else "ONNX Runtime"
    yield f"# {markdown_text(folder.resolve().name)}"
    yield ""
    yield (
        f"{markdown_text(record.source)} as ONNX networks, for {runtime}, made by olivelike for target "
        f"`{record.target.name}`.{added}"
    )


def _figures(found: FolderVerification, record: OutputRecord) -> Iterator[str]:
    verdicts = {one.name: one for one in found.components}
    rows = []
    for name, entry in record.components.items():
        verdict, path = verdicts.get(name), record.find_model_file(name)
        held = path is not None and (name == PIPELINE or PIPELINE not in record.components)
        kept = shares(inspect_model(found.folder / path, targets=()).kept_weights) if path and held else ""
        precision = verdict.verification.precision if verdict is not None else ""
        figures = verdict.to_json() if verdict is not None else {}
        error, limit = "not compared" if verdict is None else _number(figures["relative_error"]), figures.get("limit")
        cells = (
            markdown_text(name),
            ", ".join(markdown_text(step.name) for step in entry.passes),
            size(sum(file.size for file in record.component_files(name).values())) if held else f"in {PIPELINE}",
            kept or precision,
            error if verdict is None or verdict.passed else f"{error}, **too far off**",
            f"{limit:g}" if limit is not None else "",
        )
        rows.append(cells)
    yield from Table(("network", "steps", "size", "weights", "relative error", "limit"), rows).markdown()
    yield ""
    yield f"{size(sum(file.size for file in record.files.values()))} in {count(len(record.files), 'file')}."
    yield (
        "Errors are ‖difference‖ / ‖original‖ of a network's outputs on random inputs, against the original in torch "
        "in float32; the largest is shown."
    )
    if found.pictures:
        yield ""
        yield from _pictures(found)
    yield ""
    yield from _licenses(record)


def _pictures(found: FolderVerification) -> Iterator[str]:
    rows = [
        (
            f"{markdown_text(one.prompt)}, seed {one.seed}",
            f"{one.psnr:.1f} dB" if math.isfinite(one.psnr) else "equal",
            f"{one.ssim:.4f}",
        )
        for one in found.pictures
    ]
    yield from Table(("picture, against the original's of the same seed", "PSNR", "SSIM"), rows).markdown()


def _use(record: OutputRecord) -> Sequence[str]:
    if record.layout != "diffusers":
        return (f"The folder is laid out for {markdown_text(record.layout)}.",)
    return ("```", 'olivelike generate FOLDER "a prompt"', "```")


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.1e}"
