"""`profile_folder`: runs each network of a folder with ONNX Runtime's profiler on.

Format: https://onnxruntime.ai/docs/performance/tune-performance/profiling-tools.html.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from olivelike._untrusted import Json
from olivelike.errors import SessionError, SourceError, UsageError
from olivelike.measure.contest.memory import noise, surveying
from olivelike.measure.network_sizes import Array, PictureSizes, random_values, read_config, sizes_of
from olivelike.measure.one_file_inputs import is_one_file, one_file_inputs, with_operators
from olivelike.measure.result_rows import FolderProfile, NetworkProfile, OperatorTime
from olivelike.model.client_layouts import several_targets
from olivelike.model.components import PIPELINE_FILE
from olivelike.model.records.output import OutputRecord
from olivelike.runtime.pipeline.pipeline_folder import read_folder_target, target_settings
from olivelike.runtime.sessions.engine_errors import onnxruntime_errors, reason
from olivelike.runtime.sessions.providers import OPENVINO
from olivelike.runtime.sessions.session import ValueSpec, check_dimensions
from olivelike.runtime.sessions.session_settings import SessionSettings

_VOCABULARY: Final = 1000
_OTHER_SIZES: Final = "give other sizes with --height, --width, --batch-size or --dimension"
_KERNEL: Final = "_kernel_time"
_RUN: Final = "model_run"
_LOOP: Final = "Loop"
_LEAST_RUNS: Final = 3
_ENOUGH_SECONDS: Final = 0.5
_MOST_RUNS: Final = 50


def profile_folder(
    path: str | Path,
    settings: SessionSettings | None = None,
    *,
    batch_size: int = 1,
    height: int | None = None,
    width: int | None = None,
    runs: int | None = None,
) -> FolderProfile:
    """Run networks on random inputs, and read where their nodes ran and how long each operator type took.

    On a GPU the times are those of the CPU that starts the kernels, unless the provider waits for each.

    Args:
        path: A pipeline's folder, or one ONNX file.
        settings: Provider, device and options; by default those of the folder's target.
        batch_size: Pictures at once; the UNet takes twice as many, as with guidance.
        height: In pixels; by default what the UNet was trained on.
        width: Likewise.
        runs: How many runs of each network to measure, after one that is not; by default 3, and of quick networks as
            many as half a second takes, up to 50.

    Raises:
        SourceError: if there is no network.
        SessionError: if one can't be opened or run.
        UsageError: for OpenVINO, which is no provider of ONNX Runtime here, or a dimension that no network has.
    """
    path = Path(path)
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
        _profile(model, settings, {"batch_size": batch_size, "height": height, "width": width}, runs)
        for model in models
    ]
    networks = tuple(profile for profile in profiles if profile is not None)
    least = min((network.runs for network in networks), default=runs or _LEAST_RUNS)
    return FolderProfile(str(path), f"onnxruntime {onnxruntime.__version__}", least, networks)


def _models(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    record = OutputRecord.read(path)
    if record is not None and (several := several_targets(record.layout)) is not None:
        raise SourceError(f"{path}: {several}")
    found = sorted([*path.glob("*/*.onnx"), *path.glob(PIPELINE_FILE)]) or sorted(path.glob("*/*/*.onnx"))
    if not found:
        raise SourceError(
            f"{path}: there is no such model or folder, or nothing in it is an ONNX network; name a folder that "
            "`olivelike run` wrote"
        )
    return found


def _profile(
    model: Path, settings: SessionSettings, given: Mapping[str, Any], runs: int | None
) -> NetworkProfile | None:
    """Return the profile of one network, or of a pipeline in one file; `None` for a network that takes text.

    `given` are the keywords of `sizes_of` that say how many pictures of which size.
    """
    from olivelike.runtime.sessions.ort_session import open_ort_session

    home = model.parent
    if any((home.parent / described).is_file() for described in ("config.pbtxt", "component.json")):
        home = home.parent  # In a package, networks lie one folder deeper.
    name = home.name if model.stem == "model" else model.stem
    if whole := is_one_file(model):
        settings = with_operators(model, settings)
    with TemporaryDirectory(prefix="olivelike-profile-") as folder:
        opened = open_ort_session(model, replace(settings, profile=Path(folder) / "profile"), {})
        session = opened.inference_session
        try:
            if whole:
                metadata = session.get_modelmeta().custom_metadata_map
                feeds = one_file_inputs(opened.inputs.values(), metadata, **given)
            elif any(spec.dtype == "string" for spec in opened.inputs.values()):
                return None
            else:
                feeds = _feeds(model, name, opened.inputs.values(), sizes_of(model.parent, **given))
            shapes = {key: "x".join(map(str, value.shape)) for key, value in feeds.items()}
            try:
                session.run(None, feeds)
                with surveying() as surroundings:
                    _run(lambda: session.run(None, feeds), runs)
            except onnxruntime_errors() as error:
                listed = ", ".join(f"{key} {shape}" for key, shape in shapes.items())
                raise SessionError(
                    f"{model}: {settings.provider.short_name} failed with {listed}: {reason(error)}; {_OTHER_SIZES}"
                ) from error
        finally:
            session.end_profiling()  # The profile is complete, whatever happened.
        (file,) = Path(folder).iterdir()
        seconds, operators = summarise(json.loads(file.read_bytes()))
    note = noise(seconds, surroundings[0])
    return NetworkProfile(name, shapes, 1000 * median(seconds), operators, len(seconds), note)


def _run(work: Callable[[], object], runs: int | None) -> None:
    """Work so often, or often enough for a median."""
    done, begun = 0, time.perf_counter()
    while done < (_LEAST_RUNS if runs is None else runs) or (
        runs is None and done < _MOST_RUNS and time.perf_counter() - begun < _ENOUGH_SECONDS
    ):
        work()
        done += 1


def _feeds(model: Path, name: str, inputs: Iterable[ValueSpec], sizes: PictureSizes) -> dict[str, Array]:
    tokens = read_config(model.parent).get("vocab_size")
    shapes = {spec.name: (spec.dtype, sizes.shape(name, spec.name, spec.dims, by_place=True)) for spec in inputs}
    try:
        return random_values(shapes, tokens if isinstance(tokens, int) else _VOCABULARY)
    except (MemoryError, ValueError) as error:  # ValueError: more than an array can have.
        raise SessionError(f"{model}: no memory for its inputs: {error}; {_OTHER_SIZES}") from error


def summarise(events: Sequence[Json]) -> tuple[list[float], tuple[OperatorTime, ...]]:
    """Return the seconds of each run, and what each operator type takes: the medians of its nodes, added up.

    A run that other work held up, or one node of it, thus decides nothing. The first run warms up, and does not count.

    Args:
        events: The profile: one `model_run` per run and one `…_kernel_time` per node, with microseconds in `ts`, when
            it began, and `dur`.
    """
    runs = sorted((event for event in events if event["name"] == _RUN), key=lambda event: event["ts"])[1:]
    kernels = [
        event
        for event in events
        # The nodes in a loop have their own.
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL) and event["args"]["op_name"] != _LOOP
    ]
    kernels.sort(key=lambda event: event["ts"])
    begins = [event["ts"] for event in kernels]
    times: dict[tuple[str, str, str, int], list[float]] = defaultdict(list)
    for run in runs:
        seen: Counter[str] = Counter()
        inside = slice(bisect_left(begins, run["ts"]), bisect_right(begins, run["ts"] + run["dur"]))
        for event in kernels[inside]:
            name, arguments = event["name"], event["args"]
            provider = arguments["provider"].removesuffix("ExecutionProvider")
            times[arguments["op_name"], provider, name, seen[name]].append(event["dur"])
            seen[name] += 1
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (operator, provider, _, _), durations in times.items():
        found[operator, provider].append(median(durations))
    total = sum(map(sum, found.values()))
    operators = [
        OperatorTime(*place, len(nodes), sum(nodes) / 1000, sum(nodes) / total if total else 0.0)
        for place, nodes in found.items()
    ]
    operators.sort(key=lambda found: (-found.milliseconds, found.operator, found.provider))
    return [run["dur"] / 1e6 for run in runs], tuple(operators)
