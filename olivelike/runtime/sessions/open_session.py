"""One network opened: by ONNX Runtime or OpenVINO, or from what was kept of a compilation."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike.errors import SessionError
from olivelike.model.low_rank_inputs import LORA_INPUTS_FILE
from olivelike.runtime.sessions.providers import CUDA, OPENVINO, TENSORRT
from olivelike.runtime.sessions.session import Opened, Session
from olivelike.runtime.sessions.session_settings import SessionSettings

if TYPE_CHECKING:
    from olivelike.runtime.sessions.session import Array


def open_session(
    model_path: Path,
    settings: SessionSettings,
    initializers: Mapping[str, Array] | None = None,
    *,
    content: bytes | None = None,
    part: str = "",
) -> Session:
    """Open a network.

    Raises `SessionError` if the network can't be opened here as asked; the message says what the file asks for and what
    the installed runtime offers.

    Args:
        model_path: An ONNX file; its data files are read from its folder.
        initializers: Arrays in place of initializers of the model, in their dtype and shape, by name.
        content: A part of the model to open in place of the whole; its weights are in it, or in the model's data files.
        part: Its name, if it is the same each time that the model is opened, so that what is compiled of it is kept.
    """
    if not model_path.is_file():
        raise SessionError(f"{model_path}: there is no such model file")
    stays = (content is None or part) and model_path.name != LORA_INPUTS_FILE  # ONNX Runtime reads none that it wrote.
    if settings.compiled is not None and not initializers and stays and settings.weights is None:
        from olivelike.runtime.sessions.compiled import open_keeping

        session = open_keeping(model_path, settings, lambda chosen: _open(model_path, chosen, {}, content), part)
    else:
        session = _open(model_path, settings, initializers or {}, content)
    session.opened = Opened(model_path, settings, initializers or {}) if content is None else None
    return session


def import_engine(settings: SessionSettings) -> None:
    """Import and load what sessions open with: threads that do it beside other imports hold each other up.

    What is not installed is told of by the session that needs it.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("openvino" if settings.provider.name == OPENVINO else "onnxruntime")
        if settings.provider.name in (CUDA, TENSORRT):
            from olivelike.runtime.sessions.devices import load_nvidia_libraries

            load_nvidia_libraries()


def _open(path: Path, settings: SessionSettings, initializers: Mapping[str, Array], content: bytes | None) -> Session:
    if settings.provider.name == OPENVINO:
        from olivelike.runtime.sessions.openvino_session import open_openvino_session

        return open_openvino_session(path, settings, initializers, content)
    from olivelike.runtime.sessions.ort_session import open_ort_session

    return open_ort_session(path, settings, initializers, content)
