"""Writes `workflows/index.json` and `docs/shipped-workflows.md`: the shipped workflows, with figures of the docs.

    python -m tools.shipped_workflows

What a workflow is for and does is read from its file; figures are cells of tables in `docs/`, with the command above
them, so that each stands once.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike._table import Table
from olivelike.families import FAMILIES
from olivelike.model.components import HALF_PASSES, QUANTISING_PASSES
from olivelike.workflow import load_workflow, shipped_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from olivelike.workflow import Step

ROOT = Path(__file__).parents[1]
INDEX = ROOT / "workflows" / "index.json"
PAGE = ROOT / "docs" / "shipped-workflows.md"

FAMILY_OF: Final = {
    "Qwen/Qwen-Image": "qwen_image",
    "Tongyi-MAI/Z-Image-Turbo": "z_image",
    "black-forest-labs/FLUX.1-schnell": "flux",
    "black-forest-labs/FLUX.2-klein-4B": "flux2",
    "demo": "sd1",
    "demo_transformer": "z_image",
    "stable-diffusion-v1-5/stable-diffusion-v1-5": "sd1",
    "stabilityai/stable-diffusion-3.5-medium": "sd3",
}
"""Family of each model that a workflow names: its file, which would tell it, is not at hand."""


@dataclass(frozen=True)
class Figure:
    """One row of a table in `docs/`, which is about a workflow."""

    section: str
    """Heading that the table stands below."""
    row: str
    """First cell of the row."""
    columns: tuple[str, ...]
    command: str
    """Beginning of the command in that section; measured with it."""
    about: str = ""
    """What the row says only in its place."""
    page: str = "performance.md"


FIGURES: Final = {
    "sd15_cuda": (
        Figure("A whole run", "from nothing", ("seconds", "peak resident GB"), "python benchmarks/spine.py", "a run"),
        Figure(
            "A whole run", "another checkpoint of the same architecture", ("seconds", "peak resident GB"),
            "python benchmarks/spine.py", "a run",
        ),
        Figure(
            "On a GPU", "fused", ("SD 1.5's UNet, 2 × 512²",),  # noqa: RUF001
            "python -m tools.gpu_checks run", "a step on an H200",
        ),
    ),
    "sd15_cpu": (
        Figure(
            "A denoising step", "olivelike, target `cpu`", ("seconds per step", "peak resident GB"),
            "python benchmarks/runtime_step.py", "256 by 256",
        ),
        Figure(
            "Opening", "`generate`, target `cpu`", ("first step, s", "end, s", "peak, GB"),
            "python benchmarks/start.py --ours CPU", "a picture of 256 by 256",
        ),
    ),
    "sd15_openvino": (
        Figure(
            "A denoising step", "olivelike, target `openvino`, `[convert, fuse, bfloat16]`",
            ("seconds per step", "peak resident GB"), "python benchmarks/runtime_step.py", "256 by 256",
        ),
        Figure(
            "Opening", "`generate`, target `openvino`", ("first step, s", "end, s", "peak, GB"),
            "python benchmarks/start.py --ours OPENVINO", "a picture of 256 by 256",
        ),
    ),
    "demo": (
        Figure(
            "Whole pictures", "onnxruntime, float32", ("median s", "step ms", "peak resident MB"),
            "olivelike bench models/demo", "a picture of 64 by 64, 50 steps",
        ),
    ),
    "flux2_klein": (
        Figure(
            "A transformer of 4 billion parameters", "klein to `w8` (8.0 GB)", ("seconds", "GB, all processes"),
            "python benchmarks/large_convert.py",
        ),
        Figure(
            "A transformer of 4 billion parameters", "klein's picture of 512 by 512, 4 steps",
            ("seconds", "processor seconds", "GB, all processes"), "olivelike generate",
            "before sensitive layers were two products",
        ),
    ),
    "z_image_turbo": (
        Figure(
            "A transformer of 4 billion parameters", "Z-Image to `w8` (11.4 GB)", ("seconds", "GB, all processes"),
            "python benchmarks/large_convert.py",
        ),
        Figure(
            "A transformer of 4 billion parameters", "Z-Image's picture of 512 by 512, 8 steps",
            ("seconds", "processor seconds", "GB, all processes"), "olivelike generate",
            "before sensitive layers were two products",
        ),
    ),
}  # fmt: skip
"""Figures by workflow; what the docs have of none is not here."""

_INTRODUCTION = """# Shipped workflows

`olivelike run NAME` runs one in the current folder, `extends: NAME` begins [a workflow](workflows.md#extends) of your
own with it. `olivelike workflows` lists them, `olivelike workflows NAME` shows one, and `--json` writes the index
that the package brings as `workflows/index.json`. `python -m tools.shipped_workflows` writes that and this page.
"""
_FIGURES_INTRODUCTION = """## Figures

The page that a row names has the machine, and what it was measured beside. What no table of the docs has is not here.
"""


def index() -> list[dict[str, Any]]:
    """Return what the index should hold."""
    return [_entry(name) for name in shipped_names()]


def page() -> str:
    """Return the page as it should be."""
    found = index()
    rows = [
        (f"`{one['name']}`", f"{one['model']} ({one['family_title']})", f"`{one['target']}`", one["precision"],
         " ".join(f"`{name}`" for name in one["passes"]), one["purpose"])
        for one in found
    ]  # fmt: skip
    figures = [
        (f"`{one['name']}`", f"[{figure['measured']}]({figure['page']})",
         "; ".join(f"{title}: {cell}" for title, cell in figure["values"].items()), f"`{figure['command']}`")
        for one in found for figure in one["figures"]
    ]  # fmt: skip
    listed = Table(("name", "model (family)", "target", "precision", "passes", "is"), rows).markdown()
    measured = Table(("name", "what", "figures", "command"), figures).markdown()
    return "\n".join([_INTRODUCTION, *listed, "", _FIGURES_INTRODUCTION, *measured]) + "\n"


def index_text() -> str:
    """Return the text of the index as it should be."""
    return json.dumps(index(), indent=2, ensure_ascii=False) + "\n"


def _entry(name: str) -> dict[str, Any]:
    loaded = load_workflow(name)
    workflow, source = loaded.workflow, loaded.workflow.source
    model = source.hub or Path(str(source.path)).name
    family = FAMILIES[FAMILY_OF[model]]
    return {
        "name": name,
        "purpose": _purpose(loaded.path.read_text(encoding="utf-8")),
        "model": model,
        "family": family.name,
        "family_title": family.title,
        "loras": [lora.file.path.stem if lora.file.path else str(lora.file) for lora in workflow.loras],
        "guides": {
            key: [one.hub or Path(str(one.path)).name for one in found] for key, found in workflow.guides.items()
        },
        "target": workflow.target.name,
        "precision": _precision(loaded.steps),
        "passes": list(dict.fromkeys(step.pass_name for chain in loaded.steps.values() for step in chain)),
        "components": {component: [*map(_written, chain)] for component, chain in loaded.steps.items()},
        "variants": list(loaded.sweep),
        "figures": [_figure(figure) for figure in FIGURES.get(name, ())],
    }


def _purpose(text: str) -> str:
    """Return the comment below the editor's line: the first line of it, which says what the workflow is for."""
    return text.splitlines()[1].removeprefix("# ")


def _precision(chains: dict[str, tuple[Step, ...]]) -> str:
    """Return the precision of the denoiser and text encoders; where these differ, of each."""
    words = {pass_name: word for word, pass_name in (HALF_PASSES | QUANTISING_PASSES).items()}
    found: dict[str, list[str]] = {}
    for component, chain in chains.items():
        narrowed = [words[step.pass_name] for step in chain if step.pass_name in words]
        found.setdefault("+".join(narrowed) or "fp32", []).append(component)
    if len(found) == 1:
        return next(iter(found))
    narrow = {word: components for word, components in found.items() if word != "fp32"}
    return ", ".join(f"{word} ({', '.join(components)})" for word, components in narrow.items())


def _written(step: Step) -> Any:
    options = step.instance.model_dump(mode="json", exclude_defaults=True)
    return {step.pass_name: options} if options else step.pass_name


def _figure(figure: Figure) -> dict[str, Any]:
    text = (ROOT / "docs" / figure.page).read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {re.escape(figure.section)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    commands = re.sub(r" \\\n +", " ", section)
    command = next(line.strip() for line in commands.splitlines() if line.strip().startswith(figure.command))
    (row,) = (row for row in _rows(section) if row[""] == figure.row and figure.columns[0] in row)
    anchor = re.sub(r"[^\w -]", "", figure.section.lower()).replace(" ", "-")
    return {
        "measured": f"{figure.about}: {figure.row}" if figure.about else figure.row,
        "values": {title: row[title] for title in figure.columns},
        "command": command.partition(" #")[0].rstrip(),
        "page": f"{figure.page}#{anchor}",
    }


def _rows(section: str) -> Iterable[dict[str, str]]:
    """Return the rows of all tables of a section, as cells by title; the first cell of each is under ``""``."""
    for table in re.findall(r"(?:^\|.*\|\n)+", section, re.MULTILINE):
        header, _, *lines = ([cell.strip(" *") for cell in line.split("|")[1:-1]] for line in table.splitlines())
        for cells in lines:
            yield {"": cells[0], **dict(zip(header[1:], cells[1:], strict=True))}


if __name__ == "__main__":
    INDEX.write_text(index_text(), encoding="utf-8", newline="\n")
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
