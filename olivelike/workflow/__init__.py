"""Workflow files: from YAML with positions to a validated workflow with pass instances."""

from typing import TYPE_CHECKING

from olivelike._lazy import names_from

if TYPE_CHECKING:
    from olivelike.workflow.loader import LoadedWorkflow, default_cache_dir, load_workflow
    from olivelike.workflow.places import FileRef, shipped_names
    from olivelike.workflow.workflow_file import (
        Calibration,
        Embedding,
        Guide,
        Lora,
        Output,
        Source,
        Step,
        Vae,
        Workflow,
        json_schema,
    )

__all__ = [
    "Calibration", "Embedding", "FileRef", "Guide", "LoadedWorkflow", "Lora", "Output", "Source", "Step",
    "Vae", "Workflow", "default_cache_dir", "json_schema", "load_workflow", "shipped_names",
]  # fmt: skip

__getattr__ = names_from(__name__, __file__)
