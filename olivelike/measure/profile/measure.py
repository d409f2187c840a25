"""`profile_folder`: runs each network of a folder with ONNX Runtime's profiler on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from olivelike.errors import SessionError, SourceError, UsageError
from olivelike.measure.network_sizes import read_config, sizes_of
from olivelike.measure.profile.profile_events import summarise
from olivelike.measure.profile.profile_result import FolderProfile, NetworkProfile
from olivelike.measure.random_inputs import random_values
from olivelike.runtime.pipeline.folder_target import read_folder_target, target_settings
from olivelike.runtime.sessions.model_file import check_dimensions
from olivelike.runtime.sessions.providers import OPENVINO

if TYPE_CHECKING:
    from collections.abc import Iterable

    from olivelike.measure.network_sizes import PictureSizes
    from olivelike.measure.random_inputs import Array
    from olivelike.runtime.sessions.session import ValueSpec
    from olivelike.runtime.sessions.session_settings import SessionSettings

_VOCABULARY: Final = 1000
_OTHER_SIZES: Final = "give other sizes with --height, --width, --batch-size or --dimension"


def profile_folder(
    path: Path,
    settings: SessionSettings | None = None,
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
        settings: Provider, device and options; by default those of the folder's target.
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

    if settings is None:
        settings = target_settings(read_folder_target(path))
    if settings.provider.name == OPENVINO:
        raise UsageError(
            "profiles are ONNX Runtime's, and the provider openvino runs without it; name another with --provider"
        )
    models = _models(path)
    check_dimensions(settings.dimensions, models)
    profiles = [
        _profile(
            model, settings, sizes_of(model.parent, batch_size=batch_size, height=height, width=width), runs
        )
        for model in models
    ]
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


def _profile(model: Path, settings: SessionSettings, sizes: PictureSizes, runs: int) -> NetworkProfile | None:
    """Return the profile of one network; `None` for one that takes text."""
    from olivelike.runtime.sessions.ort_session import open_ort_session
    from olivelike.runtime.sessions.session_failures import onnxruntime_errors, reason

    name = model.parent.name if model.stem == "model" else model.stem
    with TemporaryDirectory(prefix="olivelike-profile-") as folder:
        opened = open_ort_session(model, replace(settings, profile=Path(folder) / "profile"), {})
        session = opened.inference_session
        try:
            if any(spec.dtype == "string" for spec in opened.inputs.values()):
                return None
            feeds = _feeds(model, name, opened.inputs.values(), sizes)
            shapes = {key: "x".join(map(str, value.shape)) for key, value in feeds.items()}
            try:
                for _ in range(1 + runs):
                    session.run(None, feeds)
            except onnxruntime_errors() as error:
                listed = ", ".join(f"{key} {shape}" for key, shape in shapes.items())
                raise SessionError(
                    f"{model}: {settings.provider.short_name} failed with {listed}: {reason(error)}; {_OTHER_SIZES}"
                ) from error
        finally:
            session.end_profiling()  # The profile is complete, whatever happened.
        (file,) = Path(folder).iterdir()
        milliseconds, operators = summarise(json.loads(file.read_bytes()))
    return NetworkProfile(name, shapes, milliseconds, operators)


def _feeds(model: Path, name: str, inputs: Iterable[ValueSpec], sizes: PictureSizes) -> dict[str, Array]:
    tokens = read_config(model.parent).get("vocab_size")
    shapes = {
        spec.name: (spec.dtype, sizes.shape(name, spec.name, spec.dims, by_place=True)) for spec in inputs
    }
    try:
        return random_values(shapes, tokens if isinstance(tokens, int) else _VOCABULARY)
    except (MemoryError, ValueError) as error:  # ValueError: more than an array can have.
        raise SessionError(f"{model}: no memory for its inputs: {error}; {_OTHER_SIZES}") from error
