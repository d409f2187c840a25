"""`profile_folder`: runs each network of a folder with ONNX Runtime's profiler on."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SessionError, SourceError, UsageError
from olivelike.measure.profile.profile_events import summarise
from olivelike.measure.profile.profile_inputs import random_inputs, read_config, sizes_of, takes_text
from olivelike.measure.profile.profile_result import FolderProfile, NetworkProfile
from olivelike.runtime.sessions.model_file import check_dimensions
from olivelike.runtime.sessions.providers import OPENVINO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from olivelike.measure.profile.profile_inputs import Sizes
    from olivelike.runtime.sessions.session_settings import SessionSettings


_OTHER_SIZES: Final = "give other sizes with --height, --width, --batch-size or --dimension"


def profile_folder(
    path: Path,
    settings: SessionSettings,
    *,
    batch_size: int = 1,
    height: int | None = None,
    width: int | None = None,
    runs: int = 3,
) -> FolderProfile:
    """Run networks on random inputs, and read where their nodes ran and how long each operator type took.

    On a GPU the times are those of the CPU that starts the kernels, unless the provider waits for each.

    Args:
        path: A pipeline's folder, or one ONNX file.
        settings: Provider, device and options.
        batch_size: Pictures at once; the UNet takes twice as many, as with guidance.
        height: In pixels; by default what the UNet was trained on.
        width: Likewise.
        runs: How many runs of each network to measure, after one that is not.

    Raises:
        SourceError: if there is no network.
        SessionError: if one can't be opened or run.
        UsageError: for OpenVINO, which is no provider of ONNX Runtime here, or a dimension that no network has.
    """
    import onnxruntime

    if settings.provider.name == OPENVINO:
        raise UsageError(
            "profiles are ONNX Runtime's, and the provider openvino runs without it; name another with --provider"
        )
    models = _models(path)
    check_dimensions(settings.dimensions, models)
    sizes = sizes_of(path if path.is_dir() else path.parent.parent, batch_size, height, width)
    profiles = (_profile(model, settings, sizes, runs) for model in models)
    return FolderProfile(
        str(path),
        f"onnxruntime {onnxruntime.__version__}",
        runs,
        tuple(profile for profile in profiles if profile is not None),
    )


def _models(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = sorted(path.glob("*/*.onnx"))
    if not found:
        raise SourceError(
            f"{path}: there is no such model or folder, or nothing in it is an ONNX network; name a folder that "
            "`olivelike run` wrote"
        )
    return found


def _profile(model: Path, settings: SessionSettings, sizes: Sizes, runs: int) -> NetworkProfile | None:
    """Return the profile of one network; `None` for one that takes text."""
    from olivelike.runtime.sessions.session_failures import onnxruntime_errors, reason

    name = model.parent.name if model.stem == "model" else model.stem
    with TemporaryDirectory(prefix="olivelike-profile-") as folder:
        with _session(model, replace(settings, profile=Path(folder) / "profile")) as session:
            if takes_text(session.get_inputs()):
                return None
            try:
                feeds = random_inputs(name, session.get_inputs(), sizes, read_config(model.parent))
            except (MemoryError, ValueError) as error:  # ValueError: more than an array can have.
                raise SessionError(f"{model}: no memory for its inputs: {error}; {_OTHER_SIZES}") from error
            shapes = {key: "x".join(map(str, value.shape)) for key, value in feeds.items()}
            try:
                for _ in range(1 + runs):
                    session.run(None, feeds)
            except onnxruntime_errors() as error:
                listed = ", ".join(f"{key} {shape}" for key, shape in shapes.items())
                raise SessionError(
                    f"{model}: {settings.provider.short_name} failed with {listed}: {reason(error)}; {_OTHER_SIZES}"
                ) from error
        (file,) = Path(folder).iterdir()
        milliseconds, operators = summarise(json.loads(file.read_bytes()))
    return NetworkProfile(name, shapes, milliseconds, operators)


@contextmanager
def _session(model: Path, settings: SessionSettings) -> Iterator[Any]:
    """Yield an `InferenceSession`; its profile is complete at the end of the block, whatever happens in it."""
    from olivelike.runtime.sessions.devices import find_device
    from olivelike.runtime.sessions.ort_session import start_inference
    from olivelike.runtime.sessions.providers import require_provider

    for choice in settings.providers:
        require_provider(choice.provider)
    device = find_device(settings.device, settings.provider)
    session = start_inference(model, settings, {}, device, None)
    try:
        yield session
    finally:
        session.end_profiling()
