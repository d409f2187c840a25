"""`open_session`: one network, in the engine that its provider belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from olivelike.errors import SessionError
from olivelike.runtime.sessions.providers import OPENVINO

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

    from olivelike.runtime.sessions.session import Session
    from olivelike.runtime.sessions.session_settings import SessionSettings


def open_session(
    model_path: Path,
    settings: SessionSettings,
    initializers: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Session:
    """Open a network.

    Args:
        model_path: An ONNX file; its data files are read from its folder.
        settings: Provider, device and options.
        initializers: Arrays in place of initializers of the model, in their dtype and shape, by name.

    Raises:
        SessionError: if the network can't be opened here as asked; the message says what the file asks for
            and what the installed runtime offers.
    """
    if not model_path.is_file():
        raise SessionError(f"{model_path}: there is no such model file")
    if settings.provider.name == OPENVINO:
        from olivelike.runtime.sessions.openvino_session import open_openvino_session

        return open_openvino_session(model_path, settings, initializers or {})
    from olivelike.runtime.sessions.ort_session import open_ort_session

    return open_ort_session(model_path, settings, initializers or {})
