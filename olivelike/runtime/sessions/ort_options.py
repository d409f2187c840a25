"""Session options of ONNX Runtime, made from settings."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike._text import did_you_mean
from olivelike._untrusted import open_file
from olivelike.errors import SessionError, UsageError
from olivelike.runtime.sessions.engine_errors import onnxruntime_errors, reason
from olivelike.runtime.sessions.filter_blocks import rewrite
from olivelike.runtime.sessions.folded_weights import FoldedModel, fold
from olivelike.runtime.sessions.provider_packages import provider_devices, registered_provider
from olivelike.runtime.sessions.providers import CPU, CUDA, DIRECTML, TENSORRT, WINDOWS_ML
from olivelike.runtime.sessions.session import check_initializers, read_model_file

if TYPE_CHECKING:
    import numpy as np

    from olivelike.model.onnx_messages import TensorProto
    from olivelike.runtime.sessions.session_settings import SessionSettings

    Array = np.ndarray[Any, Any]

_DATA_FOLDER: Final = "session.model_external_initializers_file_folder_path"
_KEEPING: Final = {
    "session.optimized_model_external_initializers_file_name": "weights.bin",
    "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
    "session.save_external_prepacked_constant_initializers": "1",
}
_EXTENSIONS: Final = "onnxruntime_extensions"
_WITH_DEVICE_ID: Final = frozenset({CUDA, TENSORRT, DIRECTML, "MIGraphXExecutionProvider", "CANNExecutionProvider"})
_CUDA_GRAPH: Final = {CUDA: "enable_cuda_graph", TENSORRT: "trt_cuda_graph_enable"}
_FATAL: Final = 4
"""An error is raised; ONNX Runtime would log it too."""


def provider_list(settings: SessionSettings, device_id: int | None) -> list[tuple[str, dict[str, str]]]:
    """Return providers with their options as `InferenceSession` takes them, the CPU last.

    Raises `UsageError` for options of the CPU provider, which has none, a CUDA graph on another provider, or an option
    `device_id` that says another device.

    Args:
        settings: Names and options; what is set there wins, but for the device.
        device_id: Number of the device for the providers that have several, where shared arrays are, too; `None`
            leaves it to the options.
    """
    listed = []
    for choice in settings.providers:
        name = choice.provider.name
        if name == CPU and choice.options:
            raise UsageError(
                f"the CPU provider has no options, but {', '.join(choice.options)} is set; "
                "use session configuration entries"
            )
        options: dict[str, str] = {}
        if device_id is not None and name in _WITH_DEVICE_ID:
            options["device_id"] = str(device_id)
            if (named := choice.options.get("device_id", str(device_id))) != str(device_id):
                raise UsageError(
                    f"{choice.provider.short_name}: device_id={named} is among its options, but the device is "
                    f"{device_id}; name one"
                )
        if settings.cuda_graph and name in _CUDA_GRAPH:
            options[_CUDA_GRAPH[name]] = "1"
        listed.append((name, {**options, **choice.options}))
    if settings.cuda_graph and settings.provider.name not in _CUDA_GRAPH:
        raise UsageError(f"CUDA graphs need the provider cuda or tensorrt, not {settings.provider.short_name}")
    if all(name != CPU for name, _ in listed):
        listed.append((CPU, {}))
    return listed


def add_providers(options: Any, listed: list[tuple[str, dict[str, str]]], device: int | None) -> bool:
    """Put providers into session options, if one comes from a plugin: that is how a plugin's are asked for.

    Returns whether it was done; `InferenceSession` takes providers in one way or the other. Raises `UsageError` for an
    unknown device policy.

    Args:
        listed: What `provider_list` returns.
        device: Position of the device among those of the first provider; `None` for the first, or for what the device
            policy of Windows ML chooses.
    """
    if not any(name == WINDOWS_ML or registered_provider(name) for name, _ in listed):
        return False
    for place, (name, given) in enumerate(listed):
        number = device if place == 0 else None
        if name == WINDOWS_ML and number is None:
            _set_policy(options, **given)
        elif name == WINDOWS_ML or registered_provider(name):
            others = {key: value for key, value in given.items() if (name, key) != (WINDOWS_ML, "policy")}
            options.add_provider_for_devices([provider_devices(name)[number or 0]], others)
        elif name != CPU:
            options.add_provider(name, given)
    return True


def _set_policy(options: Any, policy: str = "PREFER_GPU", **others: str) -> None:
    import onnxruntime

    policies = onnxruntime.OrtExecutionProviderDevicePolicy.__members__
    if others:
        raise UsageError(
            f"windowsml: {', '.join(others)}: options of a provider need its device: --device NAME; without one there "
            "is policy=NAME alone"
        )
    if policy not in policies:
        raise UsageError(f"windowsml: policy={policy}: {did_you_mean(policy, policies, 'policies')}")
    options.set_provider_selection_policy(policies[policy])


@dataclass(frozen=True)
class Opening:
    """Arguments of `InferenceSession`, and what has to live as long as it."""

    model: str | bytes
    options: Any
    """`SessionOptions`."""
    arrays: Mapping[str, Array] = field(default_factory=dict)
    """Arrays of initializers; the session reads them for as long as it lives."""
    wait: Callable[[], None] = lambda: None
    """Returns when the arrays are full; raises `SessionError` if a data file can't be read."""
    was_folded: bool = False
    """Whether weights were widened for it, which the session has copied."""


@contextmanager
def session_options(
    path: Path, settings: SessionSettings, initializers: Mapping[str, Array], content: bytes | None = None
) -> Iterator[Opening]:
    """Yield the model and `SessionOptions` for `InferenceSession`; what they point to lives until it is open.

    Raises `SessionError` for a library of operators, a weights file or an initializer that can't be used.

    Args:
        path: The model; its folder's name is in the names of profiles.
        initializers: Arrays in place of the model's, by name.
        content: What is opened in place of the model; `initializers` are its own then.
    """
    if settings.kept is not None:
        yield _kept(path, settings, settings.kept, content)
        return
    known, folded = _known(path, initializers), None
    if settings.is_cpu_alone and settings.weights is None:
        folded = fold(path, initializers, content)
    model, external = _exchange(path, content, known, initializers, folded)
    rewritten = None
    if content is None and folded is None and _is_reordered(settings):
        twin = _options(path, replace(settings, profile=None))
        twin.add_session_config_entry(_DATA_FOLDER, str(path.parent))
        inside = model if isinstance(model, bytes) else None
        rewritten = rewrite(path, inside, twin, lambda names: _give(twin, external, without=names))
    if rewritten is not None:
        options = _options(path, replace(settings, optimization="none"))
        options.add_session_config_entry(_DATA_FOLDER, str(path.parent))
        _give(options, {name: array for name, array in external.items() if name in rewritten.others})
        with rewritten.filled(path.parent, external) as (arrays, wait):
            values = {name: _ort_value(array) for name, array in arrays.items()}
            for name, value in values.items():
                options.add_initializer(name, value)
            yield Opening(rewritten.content, options, values, wait)
        return
    options = _options(path, settings)
    if isinstance(model, bytes):
        options.add_session_config_entry(_DATA_FOLDER, str(path.parent))
    _give(options, external)
    if settings.weights is not None:
        mapped = _map(settings.weights)
        location = _data_location(path, settings.weights, len(mapped))
        options.add_external_initializers_from_files_in_memory([location], [mapped], [len(mapped)])
    yield Opening(model, options, was_folded=folded is not None)


def _is_reordered(settings: SessionSettings) -> bool:
    """Return whether ONNX Runtime reorders filters as it opens a network with these settings."""
    return settings.is_cpu_alone and settings.optimization in ("layout", "all") and settings.weights is None


def _kept(path: Path, settings: SessionSettings, folder: Path, content: bytes | None) -> Opening:
    """Return how a network opens as it is kept: rewritten, and with packed weights; or so that it is put there."""
    model = folder / path.name
    if model.is_file():
        return Opening(str(model), _options(path, replace(settings, optimization="none")))
    options = _options(path, settings)
    options.optimized_model_filepath = str(model)
    for key, value in _KEEPING.items():
        options.add_session_config_entry(key, value)
    if content is not None:
        options.add_session_config_entry(_DATA_FOLDER, str(path.parent))
    return Opening(str(path) if content is None else content, options)


def _options(path: Path, settings: SessionSettings) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL
    options.intra_op_num_threads = settings.intra_threads
    options.inter_op_num_threads = settings.inter_threads
    if settings.inter_threads > 1:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    if settings.written_order:
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = {
        "none": level.ORT_DISABLE_ALL,
        "basic": level.ORT_ENABLE_BASIC,
        "extended": level.ORT_ENABLE_EXTENDED,
        "layout": level.ORT_ENABLE_LAYOUT,
        "all": level.ORT_ENABLE_ALL,
    }[settings.optimization]
    # DirectML has no memory patterns; on the CPU they take memory beside the arena's, and no less time.
    options.enable_mem_pattern = settings.provider.name not in (CPU, DIRECTML, WINDOWS_ML)
    if settings.provider.name in (DIRECTML, WINDOWS_ML):  # Nor has it parallel execution.
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    shared = _share_arena() if settings.provider.name == CPU else {}
    for key, value in {**shared, **settings.session_config}.items():
        options.add_session_config_entry(key, value)
    for name, size in settings.dimensions.items():
        options.add_free_dimension_override_by_name(name, size)
    if settings.profile is not None:
        settings.profile.parent.mkdir(parents=True, exist_ok=True)
        options.enable_profiling = True
        options.profile_file_prefix = f"{settings.profile}_{path.parent.name}"
    for library in settings.custom_operators:
        _register(options, library)
    return options


def _give(options: Any, arrays: Mapping[str, Array], without: Collection[str] = ()) -> None:
    """Let arrays stand for initializers that are in data files."""
    given = {name: array for name, array in arrays.items() if name not in without}
    if given:
        options.add_external_initializers(list(given), [_ort_value(array) for array in given.values()])


def _ort_value(array: Array) -> Any:
    """Return what ONNX Runtime takes of an array, whose memory it shares; NumPy itself has no float8."""
    import numpy as np
    import onnxruntime

    if array.dtype.name != "float8_e4m3fn":
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    from olivelike.model.onnx_messages import TensorProto

    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint8), TensorProto.FLOAT8E4M3FN)


@cache
def _share_arena() -> dict[str, str]:
    """Make an arena for all sessions on the CPU, which run in turns; return the entries that name it to a session.

    Where the program has registered one already and ONNX Runtime keeps that, sessions have arenas of their own.
    """
    import onnxruntime

    defaults = ("arena_extend_strategy", "initial_chunk_size_bytes", "max_dead_bytes_per_chunk")
    arena = onnxruntime.OrtArenaCfg({"max_mem": 0, **dict.fromkeys(defaults, -1)})
    kind, memory = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    try:
        onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu", kind, 0, memory), arena)
    except onnxruntime_errors():
        return {}
    return {"session.use_env_allocators": "1"}


def library_path(library: str) -> str:
    """Return the file of a library of operators. Raises `SessionError` if it is not there."""
    if library == _EXTENSIONS:
        if find_spec(_EXTENSIONS) is None:
            raise SessionError(f"{library}: is not installed; run: pip install onnxruntime-extensions")
        path: str = importlib.import_module(_EXTENSIONS).get_library_path()
        return path
    if not Path(library).is_file():
        raise SessionError(
            f"{library}: there is no such library of operators; name a file, or {_EXTENSIONS} for that package"
        )
    return library


def _register(options: Any, library: str) -> None:
    path = library_path(library)
    try:
        options.register_custom_ops_library(path)
    except onnxruntime_errors() as error:
        raise SessionError(f"{library}: can't be used as a library of operators: {reason(error)}") from error


def _map(path: Path) -> Any:
    """Return a file's content as memory that is read when it is touched."""
    import mmap

    try:
        with open_file(path) as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # An empty file can't be mapped.
        raise SessionError(f"{path}: can't be read as weights: {error}") from error


def _data_location(path: Path, weights: Path, size: int) -> str:
    """Return the name by which the model calls its only data file."""
    from olivelike.model.onnx_messages import data_files

    try:
        files = data_files(read_model_file(path))
    except (KeyError, ValueError) as error:
        raise SessionError(f"{path}: does not say where its weights are ({error}); export it again") from error
    if len(files) != 1:
        named = ", ".join(files) or "none"
        raise SessionError(f"{path}: takes one weights file, but names {len(files)} of its own ({named})")
    ((location, least),) = files.items()
    if size < least:
        raise SessionError(
            f"{weights}: has {size:,} bytes, but {path} needs {least:,}: it is cut short, or belongs to another model"
        )
    return location


def _known(path: Path, initializers: Mapping[str, Array]) -> Mapping[str, TensorProto]:
    """Return a model's initializers by name, if some are to be changed. Raises `SessionError` if arrays do not fit."""
    if not initializers:
        return {}
    known = {tensor.name: tensor for tensor in read_model_file(path).graph.initializer}
    check_initializers(path, known, initializers)
    return known


def _exchange(
    path: Path,
    content: bytes | None,
    known: Mapping[str, TensorProto],
    initializers: Mapping[str, Array],
    folded: FoldedModel | None,
) -> tuple[str | bytes, dict[str, Array]]:
    """Return a model, or its content, and what `SessionOptions.add_external_initializers` takes to change initializers.

    ONNX Runtime replaces tensors of data files alone. Small ones are inside the model, which is edited for them
    in memory. (`SessionOptions.add_initializer` takes any, but comes after constants were folded, which then have
    the old values.)
    """
    if folded is not None:
        content = folded.content
    external = {} if folded is None else dict(folded.arrays)
    left = {name: array for name, array in initializers.items() if folded is None or name not in folded.parts}
    inside = {name for name in left if not known[name].external_data}
    external |= {name: array for name, array in left.items() if name not in inside}
    if not inside:
        return str(path) if content is None else content, external
    from olivelike.model.onnx_messages import ModelProto, from_array, load_model

    proto = load_model(path) if content is None else ModelProto.FromString(content)
    for tensor in proto.graph.initializer:
        if tensor.name in inside:
            tensor.CopyFrom(from_array(initializers[tensor.name], tensor.name))
    return proto.SerializeToString(), external
