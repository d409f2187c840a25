"""The name by which the `model.py` of a repository that Triton serves finds its loop; an extra has it."""

from __future__ import annotations

from typing import Any

from olivelike._extras import needed

TritonModel: Any = needed("SERVED", "triton", "a model repository of Triton")
"""The class that Triton's `TritonPythonModel` is of."""
