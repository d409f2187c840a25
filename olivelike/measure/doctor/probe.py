"""A child process that tries one execution provider: `python -m olivelike.measure.doctor.probe [PROVIDER]`.

Without an argument it lists what the installed ONNX Runtime offers, and plugins that are installed beside it, as
`plugin:MODULE`. The answer is JSON on standard output; an
error ends the process with a traceback on standard error. A provider may also crash or hang, hence the process.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NoReturn

_GRAPH = """\
<ir_version: 8, opset_import: ["": 17]>
one_node (float[2, 2] a, float[2, 2] b) => (float[2, 2] product) { product = MatMul(a, b) }
"""
_CUDA = {"CUDAExecutionProvider", "TensorrtExecutionProvider"}
_CPU = "CPUExecutionProvider"


def main() -> NoReturn:
    """Answer and end."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Libraries print what they like.
    json.dump(_answer(*sys.argv[1:]), answers)
    answers.flush()
    os._exit(0)  # Some providers crash or hang as they unload, which harms nobody.


def _answer(provider: str = "") -> list[str] | dict[str, str]:
    if provider.startswith("plugin:"):
        return _run_plugin(provider)
    if provider:
        detail = _run_openvino() if provider == "OpenVINO" else _run_session(provider)
        return {"name": provider, "status": "usable", "detail": detail}
    import onnxruntime

    from olivelike.runtime.sessions.provider_packages import plugin_modules

    return [*onnxruntime.get_available_providers(), *(f"plugin:{module}" for module in plugin_modules())]


def _run_plugin(provider: str) -> dict[str, str]:
    """Register a plugin and run one node on each of its devices; what it lacks is an answer, too."""
    from olivelike.errors import SessionError
    from olivelike.runtime.sessions.devices import list_devices
    from olivelike.runtime.sessions.providers import find_provider, require_provider

    name = provider
    try:
        found = find_provider(provider)
        name = found.name
        require_provider(found)
    except SessionError as error:
        return {"name": name, "status": "unusable", "detail": str(error)}
    devices = [device.name for device in list_devices(found)]
    detail = _run_session(name, plugin=True)
    return {"name": name, "status": "usable", "detail": f"{detail}; {provider}; devices: {', '.join(devices)}"}


def _run_session(provider: str, *, plugin: bool = False) -> str:
    """Run one node on a provider and nowhere else; return what it ran on."""
    import numpy as np
    import onnxruntime

    if provider in _CUDA and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # CUDA and cuDNN from wheels.
    options = onnxruntime.SessionOptions()
    if provider != _CPU:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if plugin:
        from olivelike.runtime.sessions.ort_options import add_providers

        add_providers(options, [(provider, {})], None)
    providers = None if plugin else [provider]
    session = onnxruntime.InferenceSession(_model(), options, providers=providers, enable_fallback=False)
    if session.get_providers()[0] != provider:
        raise RuntimeError(f"the session ran on {session.get_providers()[0]}")
    a, b = np.array([[1, 2], [3, 4]], np.float32), np.array([[5, 6], [7, 8]], np.float32)
    (product,) = session.run(None, {"a": a, "b": b})
    _check(product, a @ b)
    return "ran one node"


def _run_openvino() -> str:
    import importlib

    import numpy as np

    openvino: Any = importlib.import_module("openvino")  # Not one of the dependencies.
    core = openvino.Core()
    model = core.compile_model(core.read_model(_model()), "AUTO")
    a, b = np.eye(2, dtype=np.float32), np.full((2, 2), 3, np.float32)
    _check(model([a, b])[0], a @ b)
    return f"ran one node; devices: {', '.join(core.available_devices)}"


def _model() -> bytes:
    import onnx

    data: bytes = onnx.parser.parse_model(_GRAPH).SerializeToString()
    return data


def _check(found: Any, wanted: Any) -> None:
    import numpy as np

    if not np.allclose(found, wanted, rtol=1e-2):
        raise RuntimeError(f"it computed {found.tolist()}, right is {wanted.tolist()}")


if __name__ == "__main__":
    main()
