"""From an architecture to a weightless ONNX graph: the network under fake parameters, traced and simplified."""

from olivelike.graphs.export.exporter import export_component

__all__ = ["export_component"]
