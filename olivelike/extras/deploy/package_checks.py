"""Checks of a workflow for a package, before anything is made: targets that its reader runs, and all networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from olivelike.errors import UsageError
from olivelike.extras.deploy.package_targets import refused_setting
from olivelike.families import TEXT_ENCODERS

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
