"""Declaration of adopting: reading other exporters' folders of ONNX models, and the task behind their `load`."""

SOURCES = {"onnx": "olivelike.extras.adopt.onnx_source:open_onnx_component"}
TASKS = {"AdoptTask": "olivelike.extras.adopt.adopt_task:AdoptTask"}
