"""What a workflow file may say (`WorkflowFile`), and what it means once resolved (`Workflow`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from olivelike.pass_api import Pass
    from olivelike.targets import Target
    from olivelike.workflow.findings import Position

COMPONENTS = ("text_encoder", "text_encoder_2", "unet", "vae_encoder", "vae_decoder", "safety_checker")
"""Names of components that a workflow may optimise."""


@dataclass(frozen=True)
class Source:
    """Where the pipeline comes from: either `hub` or `path`."""

    hub: str | None = None
    path: Path | None = None
    """Absolute."""
    revision: str | None = None
    variant: str | None = None


@dataclass(frozen=True)
class Output:
    """A folder to write, and the last pass of each chain that it shows."""

    path: Path
    """Absolute."""
    until: str | None = None


@dataclass(frozen=True)
class Step:
    """One entry of a component's chain."""

    pass_name: str
    instance: Pass
    position: Position


@dataclass(frozen=True)
class Workflow:
    """A workflow with every default filled in; equal files give equal values."""

    name: str
    source: Source
    target: Target
    components: Mapping[str, tuple[tuple[str, dict[str, Any]], ...]]
    """Each component's chain: pass names and all their options as JSON values."""
    outputs: tuple[Output, ...]


class _Section(BaseModel):
    # Descriptions stand in fields here: reading attribute docstrings back costs 15 ms at each start.
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceSection(_Section):
    """Where the pipeline comes from: either `hub` or `path`."""

    hub: str | None = Field(
        None,
        min_length=1,
        description="Model id on the Hugging Face hub, `OWNER/NAME`.",
    )
    path: str | None = Field(
        None, min_length=1, description="Folder in the layout of diffusers, relative to the project folder."
    )
    revision: str | None = Field(None, min_length=1, description="Branch, tag or commit on the hub.")
    variant: str | None = Field(
        None, min_length=1, description="Variant of the weight files, such as `fp16`."
    )


class TargetSection(_Section):
    """The execution provider that the result is for."""

    provider: str = Field(description="Name of the target, such as `directml`.")
    device_id: int | None = Field(None, ge=0, description="Number of the device that sessions use.")
    precision: Literal["fp32", "fp16"] | None = Field(
        None, description="Precision that passes aim at; by default the target's own."
    )
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="Options of the execution provider, passed on as they are."
    )


class OutputSection(_Section):
    """One folder to write."""

    path: str = Field(min_length=1, description="Folder, relative to the project folder.")
    until: str | None = Field(
        None, description="Last pass that this output shows, such as `convert`; by default the whole chain."
    )


class WorkflowFile(_Section):
    """The keys of a workflow file; sources, targets and steps in their long form."""

    name: str | None = Field(None, min_length=1, description="Name of the workflow; by default the file's.")
    extends: str | None = Field(
        None,
        description="A workflow file or shipped name that this one overrides: maps merge, the rest replaces.",
    )
    plugins: list[str] = Field(
        default_factory=list,
        description="Files, folders or modules that define passes, relative to this file.",
    )
    source: SourceSection = Field(description="Where the pipeline comes from: a hub id, a folder, or a map.")
    target: TargetSection = Field(
        description="The execution provider that the result is for: its name, or a map."
    )
    components: Any = Field(description="The chain of passes for each component of the pipeline.")
    output: str | None = Field(
        None, min_length=1, description="Folder for the result, relative to the project folder."
    )
    outputs: list[OutputSection] | None = Field(
        None, min_length=1, description="Several folders, in place of `output`."
    )
