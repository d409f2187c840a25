"""Declaration of adopting: reading other exporters' folders of ONNX models, and the job behind their `load`."""

SOURCES = {"onnx": "olivelike.extras.adopt.onnx_source:open_onnx_component"}
JOBS = {"AdoptJob": "olivelike.extras.adopt.adopt_job:AdoptJob"}
