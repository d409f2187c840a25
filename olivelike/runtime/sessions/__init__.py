"""Networks in an inference engine: ONNX Runtime and OpenVINO, devices and options."""
