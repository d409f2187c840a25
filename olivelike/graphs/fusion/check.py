"""What holds after every rule: a valid graph whose types and shapes agree with ONNX's own inference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from olivelike.errors import PassError

if TYPE_CHECKING:
    from olivelike.graphs.editing.editor import GraphEditor


def check(editor: GraphEditor, rule: str) -> None:
    """Check the graph that a rule left.

    Args:
        editor: The graph.
        rule: Name of the rule that ran last, for the message.

    Raises:
        PassError: with the rule's name and what is wrong.
    """
    for node in editor.graph:
        for value in node.outputs:
            if value.name and (value.dtype is None or value.shape is None):
                raise PassError(
                    f"fuse: rule {rule} left {value.name!r} of {node.op_type} without type or shape"
                )
    editor.import_contrib()
    proto = ir.to_proto(editor.model)
    try:
        onnx.checker.check_model(proto)
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise PassError(
            f"fuse: rule {rule} left a graph that is not valid: {error}; report it, and leave the rule out meanwhile"
        ) from error
