"""What a package asks of a workflow, before anything is made: targets that its reader runs, and all networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from olivelike.errors import UsageError
from olivelike.families import TEXT_ENCODERS
from olivelike.model.client_layouts import LAYOUTS
from olivelike.model.package_targets import PACKAGE_TARGETS, refused_setting

if TYPE_CHECKING:
    from collections.abc import Collection

    from olivelike.workflow import LoadedWorkflow, Output

_LOOP: Final = ("unet", "vae_decoder")


def check_package(output: Output, workflow: LoadedWorkflow, only: Collection[str]) -> None:
    """Refuse a package that could not be read, or a part of one.

    Raises:
        UsageError: naming the target, the setting or the network.
    """
    package = LAYOUTS[output.layout].package
    if package is None:
        return
    if only:
        raise UsageError(f"--only: the layout {output.layout} describes all components together; run without it")
    variant = workflow.variants[output.variant]
    target = variant.workflow.target
    targets = PACKAGE_TARGETS[package]
    if target.name not in targets:
        raise UsageError(
            f"layout {output.layout}: {target.name} names no execution provider that its reader has; choose one of "
            f"the targets {', '.join(targets)}"
        )
    if package != "triton":
        return
    if (setting := refused_setting(target)) is not None:
        raise UsageError(f"layout triton: Triton's back end for ONNX Runtime does not know {setting}; leave it out")
    missing = [name for name in _LOOP if name not in variant.steps]
    if not {*TEXT_ENCODERS} & {*variant.steps}:
        missing.append(TEXT_ENCODERS[0])
    if missing:
        raise UsageError(
            f"layout triton: the loop needs {', '.join(missing)}, which the workflow lacks; add it to `components`"
        )
