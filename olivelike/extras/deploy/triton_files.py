"""A model repository of the Triton Inference Server: a model for each network, and one that holds the loop.

```
unet/config.pbtxt  unet/1/model.onnx  unet/1/weights.pb        and so for each network
pipeline/config.pbtxt  pipeline/1/model.py  pipeline/1/networks.json  pipeline/1/tokenizer/vocab.json  …
```

Each folder at the top is a model, named after it, with a folder for each version of it. What the loop reads lies in its
own model, since a server with models in the cloud copies one model at a time to where it runs.

Fields are those of `ModelConfig` in `protobuf/model_config.proto` of triton-inference-server/common; what its back ends
take of them is in the README files of triton-inference-server/onnxruntime_backend and python_backend.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike._untrusted import Json, JsonView, read_bytes
from olivelike.engine.output.packages import CONFIG_FILE, Package, Packaged
from olivelike.engine.output.pipeline_files import to_json
from olivelike.errors import SourceError
from olivelike.extras.deploy.package_checks import check_triton, check_whole
from olivelike.extras.deploy.package_targets import PRECISION_MODES, TRITON_TARGETS
from olivelike.extras.deploy.served import NETWORKS_FILE, PIPELINE_INPUTS, PIPELINE_OUTPUTS, TensorSpec
from olivelike.model.components import PIPELINE, SAFETY_CHECKER

if TYPE_CHECKING:
    from olivelike.model.targets import TargetChoice
    from olivelike.workflow import LoadedWorkflow, Output

CONFIGURATION: Final = "config.pbtxt"
MODEL_PROGRAM: Final = "model.py"
_VERSION: Final = "1"
_TYPES: Final = {
    "float16": "TYPE_FP16", "float32": "TYPE_FP32", "float64": "TYPE_FP64", "int32": "TYPE_INT32",
    "int64": "TYPE_INT64", "uint8": "TYPE_UINT8", "bool": "TYPE_BOOL", "string": "TYPE_STRING",
}  # fmt: skip
"""Triton's names for the types that its back end for ONNX Runtime takes, by numpy name."""
_PROGRAM: Final = '''\
"""The loop of this pipeline, for Triton's Python back end: `pip install olivelike` into the Python that runs it."""

from pathlib import Path

from olivelike.runtime.pipeline.triton_model import TritonModel


class TritonPythonModel(TritonModel):
    """Prompts in, pictures out; the networks are other models of this repository."""

    folder = Path(__file__).parent
'''


class TritonRepository(Package):
    """The layout `triton`."""

    def check(self, output: Output, workflow: LoadedWorkflow, only: Collection[str]) -> None:
        """Refuse targets and settings that Triton does not hand on, and a pipeline without a network of the loop."""
        check_whole(output, workflow, only, tuple(TRITON_TARGETS))
        check_triton(output, workflow)

    def files(self, package: Packaged) -> dict[str, bytes]:
        """Return what a model repository has beside its networks."""
        return triton_files(package)


def triton_files(package: Packaged) -> dict[str, bytes]:
    """Return what a model repository has beside its networks, by relative path.

    Raises `SourceError` if a network is missing, damaged, or of a kind that Triton does not run.
    """
    networks = {name: read_specs(path) for name, path in package.models.items()}
    _check_latents(networks["unet"], networks["vae_decoder"])
    files = {
        f"{name}/{CONFIGURATION}": network_configuration(name, *specs, package.target)
        for name, specs in networks.items()
    }
    home = f"{PIPELINE}/{_VERSION}"
    files[f"{PIPELINE}/{CONFIGURATION}"] = pipeline_configuration(checked=SAFETY_CHECKER in networks)
    files[f"{home}/{MODEL_PROGRAM}"] = _PROGRAM.encode()
    described = {
        name: {"inputs": [vars(one) for one in inputs], "outputs": [vars(one) for one in outputs]}
        for name, (inputs, outputs) in networks.items()
    }
    files[f"{home}/{NETWORKS_FILE}"] = to_json(described)
    files |= {f"{home}/{path}": content for path, content in package.pipeline.items()}
    for name, path in package.models.items():
        if (config := path.with_name(CONFIG_FILE)).is_file():
            files[f"{home}/{name}/{CONFIG_FILE}"] = read_bytes(config)
    return files


def read_specs(path: Path) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Return the inputs and the outputs of a network, in their order; weights are not read.

    Raises `SourceError` if the file can't be read, or is no ONNX model.
    """
    import onnx
    from google.protobuf.message import DecodeError

    from olivelike.graphs.inspect.skeleton import read_skeleton

    try:
        graph = onnx.ModelProto.FromString(read_skeleton(path)).graph
    except DecodeError as error:
        raise SourceError(f"{path}: is not an ONNX model; run the workflow again") from error
    initializers = {tensor.name for tensor in graph.initializer}
    inputs = [_spec(value, path) for value in graph.input if value.name not in initializers]
    return inputs, [_spec(value, path) for value in graph.output]


def network_configuration(
    name: str, inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec], target: TargetChoice
) -> bytes:
    """Return the `config.pbtxt` of a network.

    It has no batches of its own (`max_batch_size: 0`), for a UNet takes one timestep for all rows; so dimensions are
    those of the graph, the batch included, with -1 for any size.
    """
    kind, accelerator = TRITON_TARGETS[target.name]
    place = {"kind": kind, "count": 1, **({"gpus": [target.device_id]} if kind == "KIND_GPU" else {})}
    content: Json = {
        "name": _text(name),
        "backend": _text("onnxruntime"),
        "max_batch_size": 0,
        "input": [_tensor(one) for one in inputs],
        "output": [_tensor(one) for one in outputs],
        "instance_group": [place],
    }
    if accelerator is not None:
        side = "gpu" if kind == "KIND_GPU" else "cpu"
        options = {key: _text(_value(value)) for key, value in target.options.items()}
        if accelerator == "tensorrt":
            options = {"precision_mode": _text(PRECISION_MODES[target.precision]), **options}
        used = {
            "name": _text(accelerator),
            "parameters": [{"key": _text(key), "value": options[key]} for key in options],
        }
        content["optimization"] = {"execution_accelerators": {f"{side}_execution_accelerator": [used]}}
    if target.session_options:
        content["parameters"] = [
            {"key": _text(key), "value": {"string_value": _text(_value(value))}}
            for key, value in target.session_options.items()
        ]
    return _pbtxt(content)


def pipeline_configuration(*, checked: bool) -> bytes:
    """Return the `config.pbtxt` of the model that holds the loop; `checked` if there is a safety checker."""
    outputs = [one for one in PIPELINE_OUTPUTS if checked or one.name != "has_nsfw_concepts"]
    content = {
        "name": _text(PIPELINE),
        "backend": _text("python"),
        "max_batch_size": 0,
        "input": [
            {**_tensor(one), **({} if one.name == "prompt" else {"optional": "true"})} for one in PIPELINE_INPUTS
        ],
        "output": [_tensor(one) for one in outputs],
        "instance_group": [{"kind": "KIND_CPU", "count": 1}],
    }
    return _pbtxt(content)


def _check_latents(
    unet: tuple[list[TensorSpec], list[TensorSpec]], decoder: tuple[list[TensorSpec], list[TensorSpec]]
) -> None:
    taken, drawn = unet[0][0].dims[1], decoder[0][0].dims[1]
    if taken != drawn:
        raise SourceError(
            f"layout triton: the UNet takes {taken} channels, and latents have {drawn}: it is for inpainting, and the "
            "loop draws from texts alone; take a checkpoint that does"
        )


def _spec(value: Any, path: Path) -> TensorSpec:
    import onnx

    tensor = value.type.tensor_type
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    except KeyError:
        dtype = f"ONNX type {tensor.elem_type}"
    if dtype not in _TYPES:
        raise SourceError(f"{path}: {value.name} is {dtype}, which Triton does not take; choose another precision")
    dims = [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{value.name}.{axis}"
        for axis, dim in enumerate(tensor.shape.dim)
    ]
    return TensorSpec(value.name, dtype, tuple(dims))


def _tensor(spec: TensorSpec) -> Json:
    # A tensor without dimensions has one of size 1 here.
    dims = [size if isinstance(size, int) else -1 for size in spec.dims] or [1]
    return {"name": _text(spec.name), "data_type": _TYPES[spec.dtype], "dims": dims}


def _value(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _text(value: str) -> str:
    """Return a string as protobuf's text format quotes it: JSON's quotes are among those that it reads."""
    return json.dumps(value)


def _pbtxt(content: JsonView) -> bytes:
    """Return a message in protobuf's text format."""
    return "".join(f"{line}\n" for line in _lines(content)).encode()


def _lines(content: JsonView, indent: str = "") -> Iterator[str]:
    for key, value in content.items():
        many = value if isinstance(value, list) and value and isinstance(value[0], dict) else [value]
        for one in many:
            if isinstance(one, Mapping):
                yield f"{indent}{key} {{"
                yield from _lines(one, f"{indent}  ")
                yield f"{indent}}}"
            elif one != []:
                yield f"{indent}{key}: {one}"
