"""What ONNX Runtime's fused operators mean, in standard operators, so that any graph runs on the CPU provider."""

from olivelike.graphs.functions.functions import FUNCTION_DOMAIN, with_functions

__all__ = ["FUNCTION_DOMAIN", "with_functions"]
