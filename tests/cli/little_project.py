"""The files of the project that the tests of the command line work on."""

from __future__ import annotations

WORKFLOW = """\
name: little
source: ./checkpoint
target: cpu
plugins: [../plugins]
components:
  text_encoder: [convert, label]
output: models/little
"""

PLUGIN = '''
import os
import time

from olivelike.errors import PassError
from olivelike.model import Graph
from olivelike.pass_api import Pass


class Label(Pass):
    """Name the graph."""

    reads = ("graph",)
    writes = ("graph",)

    text: str = "labelled"
    """Name that the graph gets."""

    def run(self, model, context):
        onnx_model = model.graph.to_ir()
        onnx_model.graph.name = self.text
        return model.replace(graph=Graph.from_ir(onnx_model))


class Slow(Pass):
    """Take its time."""

    reads = ("graph",)

    def run(self, model, context):
        (context.scratch / "half-done").write_text("x")
        context.progress(1, 10)
        time.sleep(600)
        return model


class Refuse(Pass):
    """Fail."""

    reads = ("graph",)

    def run(self, model, context):
        raise PassError("the graph is not to its liking; give it another one")
'''
