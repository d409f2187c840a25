"""Checks of a workflow for a package, before anything is made: targets that its reader runs, and all networks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike._untrusted import one_line
from olivelike.engine.output.output_files import resolved
from olivelike.engine.output.publication import check_is_ours, recover
from olivelike.errors import UsageError
from olivelike.extras.deploy.package_targets import refused_setting
from olivelike.families import TEXT_ENCODERS
from olivelike.model.records.output import OutputRecord

if TYPE_CHECKING:
    from collections.abc import Collection

    from olivelike.workflow import LoadedWorkflow, Output

_LOOP: Final = ("unet", "vae_decoder")


def check_whole(output: Output, workflow: LoadedWorkflow, only: Collection[str], targets: tuple[str, ...]) -> None:
    """Refuse a package that could not be read, or a part of one.

    Raises `UsageError` naming the option or the target.
    """
    if only:
        raise UsageError(f"--only: the layout {output.layout} describes all components together; run without it")
    target = workflow.variants[output.variant].workflow.target
    if target.name not in targets:
        raise UsageError(
            f"layout {output.layout}: {target.name} names no execution provider that its reader has; choose one of "
            f"the targets {', '.join(targets)}"
        )


def check_place(
    output: Path, folders: Collection[Path], record: OutputRecord, layout: str, *, overwrite: bool
) -> OutputRecord | None:
    """Refuse an output that is not ours, overlaps what it is made of, or belongs to something else.

    Raises `UsageError` naming both.

    Args:
        output: Where a page or a package goes.
        folders: The outputs that it is made of.
        record: That of the first.
        layout: What it has.
        overwrite: Whether it may replace something else of ours.

    Returns:
        What its own record says.
    """
    inner = resolved(output)
    for folder in folders:
        outer = resolved(folder)
        if inner.is_relative_to(outer) or outer.is_relative_to(inner):
            raise UsageError(f"{output} overlaps {folder}, which it is made of; choose another folder")
    check_is_ours(output)
    recover(output, overwrite=overwrite)
    before = OutputRecord.read(output)
    if before is not None and not overwrite and (before.layout, before.source.name) != (layout, record.source.name):
        what = f"the {layout} of" if before.layout == layout else "a pipeline made from"
        raise UsageError(
            f"{output} holds {what} {one_line(str(before.source.name))}; choose another folder, or replace it with "
            "--overwrite"
        )
    return before


def check_triton(output: Output, workflow: LoadedWorkflow) -> None:
    """Refuse what Triton's loop, or its back end for ONNX Runtime, can't do.

    Raises `UsageError` naming the setting or the network.
    """
    variant = workflow.variants[output.variant]
    if (setting := refused_setting(variant.workflow.target)) is not None:
        raise UsageError(f"layout triton: Triton's back end for ONNX Runtime does not know {setting}; leave it out")
    missing = [name for name in _LOOP if name not in variant.steps]
    if not {*TEXT_ENCODERS} & {*variant.steps}:
        missing.append(TEXT_ENCODERS[0])
    if missing:
        raise UsageError(
            f"layout triton: the loop needs {', '.join(missing)}, which the workflow lacks; add it to `components`"
        )
