"""Pipelines for other readers: model repositories of Triton, packages of ONNX Runtime, pages for browsers."""
