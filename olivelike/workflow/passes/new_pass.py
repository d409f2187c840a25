"""Writes the beginning of a new pass: a module that works, and its test."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from typing import Literal

from olivelike.errors import UsageError
from olivelike.model.records.output import is_device

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z][a-z0-9]*)*")

Facet = Literal["graph", "weights"]

_GRAPH_MODULE = '''\
"""The pass `{name}`."""

from typing import ClassVar

from olivelike.pass_api import Context, Graph, Model, Pass


class {class_name}(Pass):
    """Give the graph a name; say here what your pass does."""

    pass_api: ClassVar = 1
    reads: ClassVar = ("graph",)
    writes: ClassVar = ("graph",)

    label: str = "{name}"
    """Name that the graph gets."""

    def run(self, model: Model, context: Context) -> Model:
        onnx_model = model.require("graph").to_ir()
        onnx_model.graph.name = self.label
        return model.replace(graph=Graph.from_ir(onnx_model))
'''

_GRAPH_TEST = '''\
"""Tests of the pass `{name}`."""

import onnx
from {name} import {class_name}

from olivelike.pass_api import Graph, Model
from olivelike.testing import run_pass


def test_the_graph_gets_the_label():
    onnx_model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]> before (float[N] x) => (float[N] y) {{ y = Relu(x) }}'
    )
    model = Model("unet", graph=Graph(onnx_model.SerializeToString()))

    result = run_pass({class_name}(label="after"), model)

    assert result.graph.to_ir().graph.name == "after"
'''


_WEIGHTS_MODULE = '''\
"""The pass `{name}`."""

from typing import ClassVar

from olivelike.pass_api import Context, Model, Pass


class {class_name}(Pass):
    """Limit the weights; say here what your pass does."""

    pass_api: ClassVar = 1
    reads: ClassVar = ("weights",)
    writes: ClassVar = ("weights",)

    limit: float = 4.0
    """Largest absolute value that is kept."""

    def run(self, model: Model, context: Context) -> Model:
        weights = model.require("weights")
        changed = {{}}
        for done, (name, tensor) in enumerate(weights.items(), start=1):
            if tensor.dtype in ("F32", "F16", "BF16"):
                before = context.tensors.read(tensor)
                after = before.clip(-self.limit, self.limit).astype(before.dtype)
                if (after != before).any():
                    changed[name] = context.tensors.write(after)
            context.progress(done, len(weights))
        context.report(changed=len(changed))
        return model.replace(weights=weights.replace(changed))
'''

_WEIGHTS_TEST = '''\
"""Tests of the pass `{name}`."""

import numpy as np
from {name} import {class_name}

from olivelike.testing import LocalModel, LocalTensors, run_pass


def test_values_beyond_the_limit_become_the_limit():
    tensors = LocalTensors()
    large, small = np.array([1, -9], np.float32), np.array([1, 2], np.float32)
    weights = tensors.table({{"large": large, "small": small}})

    result = run_pass({class_name}(limit=4), LocalModel("unet", weights=weights, tensors=tensors))

    assert result.parameter("large").tolist() == [1, -4]
    assert result.weights["small"] == weights["small"]
    assert result.facts["changed"] == 1
'''

_TEMPLATES = {"graph": (_GRAPH_MODULE, _GRAPH_TEST), "weights": (_WEIGHTS_MODULE, _WEIGHTS_TEST)}


def new_pass(name: str, folder: str | Path, writes: Facet = "graph") -> tuple[Path, Path]:
    """Write `NAME.py` and `test_NAME.py` into `folder`, which is made if needed.

    Args:
        name: name of the pass, lower-case words joined by `_`.
        folder: where the files go; list it, or the new file, under `plugins:`.
        writes: what the pass changes.

    Returns:
        The two files.

    Raises:
        UsageError: for a name that no pass can have, or that a built-in one has, or if one of the files exists.
    """
    from olivelike.workflow.passes.registry import Registry

    folder = Path(folder)
    if name.startswith("test_"):
        raise UsageError(f"{name!r} can't be the name of a pass: in a folder of plugins its file would be a test's")
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or is_device(name):
        raise UsageError(
            f"{name!r} can't be the name of a pass; use lower-case words joined by `_`, each beginning "
            "with a letter, such as prune_heads"
        )
    if name in Registry.built_in().names():
        raise UsageError(f"{name!r} is the name of a built-in pass; choose another")
    files = folder / f"{name}.py", folder / f"test_{name}.py"
    for file in files:
        if file.exists():
            raise UsageError(f"{file} exists already; choose another name or folder")
    class_name = "".join(word.capitalize() for word in name.split("_"))
    folder.mkdir(parents=True, exist_ok=True)
    for file, template in zip(files, _TEMPLATES[writes], strict=True):
        file.write_text(template.format(name=name, class_name=class_name), encoding="utf-8", newline="\n")
    return files
