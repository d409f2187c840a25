"""Pictures that are drawn before networks are rounded to 8 bits: `calibration:` of a workflow, with its prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from olivelike._untrusted import read_bytes
from olivelike.errors import UsageError
from olivelike.workflow.findings import Findings
from olivelike.workflow.places import Place, absolute
from olivelike.workflow.workflow_file import Calibration, CalibrationSection
from olivelike.workflow.yaml_tree import Mapping

PROMPTS: Final[tuple[str, ...]] = (
    "a red circle on a blue background",
    "a photo of a lighthouse on a cliff at sunset, waves, dramatic sky",
    "portrait of an old fisherman with a grey beard, oil painting",
    "two green squares and a yellow triangle on a white background",
    "a bowl of ramen on a wooden table, steam, close-up, natural light",
    "an astronaut riding a horse through a dense jungle, highly detailed",
    "a narrow street in Kyoto at night, rain, neon signs, wide angle",
    "a white cat asleep on a purple sofa, pencil drawing",
)
"""Prompts where a workflow names none: things, people and places, plain and detailed, in several styles."""
_MOST: Final = 1024


def resolve_calibration(
    root: object, section: CalibrationSection | None, place: Place, findings: Findings
) -> Calibration | None:
    """Return what a workflow's calibration draws, its prompts read; what is wrong with them is added to `findings`."""
    chosen = section or CalibrationSection.model_validate({})
    prompts, problem = PROMPTS, None
    if isinstance(chosen.prompts, str):
        try:
            prompts = read_prompts(absolute(chosen.prompts, place.project_folder))
        except UsageError as error:
            problem = str(error)
    elif chosen.prompts is not None:
        prompts = tuple(chosen.prompts)
    if any(not prompt.strip() for prompt in prompts):
        problem = "a prompt of `calibration` is empty; name what the pipeline is to draw"
    elif len(prompts) > _MOST:
        problem = f"`calibration` has {len(prompts)} prompts, and each is a picture; name {_MOST} at most"
    if problem is not None and isinstance(root, Mapping):
        node = root.entries["calibration"]
        findings.add(node.keys.get("prompts", node.position) if isinstance(node, Mapping) else node.position, problem)
    return Calibration(prompts, chosen.steps, chosen.guidance_scale, chosen.size, chosen.seed, prompts != PROMPTS)


def read_prompts(path: Path) -> tuple[str, ...]:
    """Return the prompts of a text file, one in each line; empty lines don't count.

    Raises `UsageError` if it can't be read, or has none.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: prompts can't be read from it: {error}; name a text file, a prompt a line"
        ) from error
    found = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not found:
        raise UsageError(f"{path}: has no prompts; write one in each line")
    return found
