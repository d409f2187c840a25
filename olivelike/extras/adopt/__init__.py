"""Other exporters' graphs, written as today's ONNX with weights outside."""
