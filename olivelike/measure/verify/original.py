"""Outputs of the original in torch for seeded inputs, a layer in memory at a time; how far graphs are off."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from olivelike.errors import PassError, VerificationError
from olivelike.families.network import stored_values
from olivelike.families.networks import interface_of
from olivelike.families.networks.unet import take_residuals
from olivelike.graphs.export.torch_network import build_network, wrap
from olivelike.graphs.inspect.quantised import quantised_precision
from olivelike.measure.network_sizes import CASES, Case, random_inputs, random_residuals
from olivelike.model.components import CACHED_FEATURES, SHALLOW_FILE
from olivelike.model.finite_values import is_float
from olivelike.model.graph import BLOCK_KEY
from olivelike.model.half_values import HALVES

if TYPE_CHECKING:
    import onnx_ir as ir

    from olivelike._untrusted import Json
    from olivelike.measure.verify.evaluation import Observer
    from olivelike.model import Architecture, Weights
    from olivelike.pass_api import Progress, TensorAccess

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Figures:
    """One output against torch's in float64."""

    relative_error: float
    """‖actual - expected‖ / ‖expected‖; 0 where both are all zero, infinite for another shape or where only the
    expected one is zero, NaN where the output has a NaN."""
    worst: float
    """Largest absolute difference of one element."""
    worst_at: tuple[int, ...]
    """Index of that element."""
    cosine: float
    """Cosine of the angle between the two, flattened."""
    nan: int
    """NaN where torch has a finite value."""
    inf: int
    """Infinities where torch has a finite value."""

    @property
    def is_finite(self) -> bool:
        """Tell whether everything that torch has finite is finite."""
        return not self.nan and not self.inf

    def within(self, limit: float) -> bool:
        """Tell whether the output is finite, and no further off than `limit`."""
        return self.is_finite and self.relative_error <= limit

    def to_json(self) -> Json:
        """Return the figures as JSON values; what is not finite is `None`."""
        return {
            "relative_error": _number(self.relative_error),
            "worst": _number(self.worst),
            "worst_at": list(self.worst_at),
            "cosine": _number(self.cosine),
            "nan": self.nan,
            "inf": self.inf,
        }


def compare(actual: Array, expected: Array) -> Figures:
    """Return the figures of an output; booleans count as 0 and 1.

    Args:
        actual: What was computed, of any dtype.
        expected: What torch computed from the same inputs.
    """
    if actual.shape != expected.shape:
        return Figures(math.inf, math.inf, (), math.nan, 0, 0)
    found, wanted = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(wanted)
    nan, inf = np.isnan(found) & finite, np.isinf(found) & finite
    with np.errstate(invalid="ignore", over="ignore"):
        # Where both are the same infinity, as in a mask, there is no difference.
        difference = np.where(found == wanted, 0.0, found - wanted)
        # The worst element is the one that is least a number.
        size = np.where(np.isnan(difference), math.inf, np.abs(difference))
        index = np.unravel_index(int(np.argmax(size)), size.shape) if size.size else ()
        return Figures(
            relative_error=_ratio(_norm(difference), _norm(np.where(finite, wanted, 0.0))),
            worst=float(size[index]) if size.size else 0.0,
            worst_at=tuple(int(axis) for axis in index),
            cosine=_cosine(found, wanted),
            nan=int(nan.sum()),
            inf=int(inf.sum()),
        )


def relative_error(actual: Array, expected: Array) -> float:
    """Return ‖actual - expected‖ / ‖expected‖, infinite for another shape."""
    return compare(actual, expected).relative_error


def summary(figures: Iterable[Figures]) -> Json:
    """Return the worst of each figure over several outputs, as JSON values."""
    found = list(figures)
    return {
        "relative_error": _number(float(np.max([one.relative_error for one in found]))),
        "worst": _number(max(one.worst for one in found)),
        "cosine": _number(float(np.min([one.cosine for one in found]))),
        "nan": sum(one.nan for one in found),
        "inf": sum(one.inf for one in found),
    }


def _norm(values: Array) -> float:
    return float(np.linalg.norm(values.ravel()))


def _ratio(distance: float, length: float) -> float:
    if length == 0:
        return 0.0 if distance == 0 else math.nan if math.isnan(distance) else math.inf
    return distance / length


def _cosine(found: Array, wanted: Array) -> float:
    """Return the cosine; 1 where both are zero, 0 where one is, NaN where a value is not finite."""
    lengths = _norm(found), _norm(wanted)
    if 0.0 in lengths:
        return 1.0 if lengths[0] == lengths[1] else 0.0
    return float(np.dot(found.ravel() / lengths[0], wanted.ravel() / lengths[1]))


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


LIMITS = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 1.6e-1, "w8": 5e-2, "w4": 6e-1, "int8": 3e-1, "fp8": 3e-1}
"""Largest relative error that is taken as right, by the precision of the graph; bfloat16 has three bits less.

Of weights in 8 and 4 bits, whatever the rest is in: decision 108 has what networks of random weights are off by."""


@dataclass(frozen=True)
class Sample:
    """One comparison: sizes and seed of the inputs, and the figures of each output."""

    case: Case
    seed: int
    outputs: Mapping[str, Figures]

    def to_json(self) -> Json:
        """Return the sample as JSON values."""
        return {
            "case": str(self.case),
            "seed": self.seed,
            "outputs": {name: figures.to_json() for name, figures in self.outputs.items()},
        }


@dataclass(frozen=True)
class Verification:
    """A graph compared with its original."""

    precision: str
    """As `precision_of` says it."""
    samples: tuple[Sample, ...]
    origin: str | None = None
    """The operator and block where the first value appeared that is not finite, if one reached an output."""

    @property
    def figures(self) -> list[Figures]:
        """Return those of every output and sample."""
        return [figures for sample in self.samples for figures in sample.outputs.values()]

    def joined(self, other: Verification, file: str) -> Verification:
        """Return this, and the same of another file's graph."""
        named = (
            replace(sample, outputs={f"{name} of {file}": figures for name, figures in sample.outputs.items()})
            for sample in other.samples
        )
        return replace(self, samples=(*self.samples, *named), origin=self.origin or other.origin)

    def within(self, limit: float) -> bool:
        """Tell whether every output is finite and no further off than `limit`."""
        return all(figures.within(limit) for figures in self.figures)

    def to_json(self) -> Json:
        """Return the worst figures, and those of each sample, as JSON values."""
        found = {**summary(self.figures), "precision": self.precision}
        if self.origin is not None:
            found["origin"] = self.origin
        return {**found, "samples": [sample.to_json() for sample in self.samples]}

    def require(self, component: str, limit: float) -> None:
        """Check that every output is finite and no further off than `limit`.

        Raises `VerificationError` with every output that is further off; it carries the figures.
        """
        if self.within(limit):
            return
        rows = [
            f"  {name} at {sample.case}, seed {sample.seed}: {_described(figures)}"
            for sample in self.samples
            for name, figures in sample.outputs.items()
            if not figures.within(limit)
        ]
        if self.origin is not None:
            rows.append(f"  the first value that is not finite comes from {self.origin}")
        raise VerificationError(
            "\n".join([f"{component}: its {self.precision} graph is further from torch than {limit:.1e}:", *rows]),
            {"verification": {**self.to_json(), "limit": limit, "passed": False}},
        )


class RunnableGraph(Protocol):
    """A graph that is compared with its original."""

    def run(self, feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        """Return the outputs by name, for inputs by name, cast to the types that the graph takes.

        Args:
            feeds: Inputs by name.
            observe: Called after each operator, where the graph is run one operator at a time.
        """


class Original:
    """The outputs of a component's torch network for seeded random inputs, in float64."""

    def __init__(
        self,
        architecture: Architecture,
        read: Callable[[str], Array],
        *,
        samples: int = 2,
        seed: int = 0,
        cases: Sequence[Case] = CASES,
        residuals: Mapping[str, Sequence[int | str]] = MappingProxyType({}),
    ) -> None:
        """Run the network once for each sample.

        Raises `PassError` when the library refuses the config, or a weight does not fit it.

        Args:
            samples: Number of inputs, of different sizes.
            seed: Of the first one; the others have the numbers after it.
            cases: Their sizes, in turns.
            residuals: Shape of each input of a UNet for what guides give, by name, in terms of the latents' sizes.
        """
        interface = interface_of(architecture)
        network = Reference(architecture, read)
        self._samples: list[tuple[Case, int, dict[str, Array], dict[str, Array]]] = []
        for index in range(samples):
            case = cases[index % len(cases)]
            feeds = random_inputs(interface.inputs, case, architecture.config, seed + index)
            given = random_residuals(residuals, case, seed + index)
            outputs = dict(zip(interface.outputs, network(feeds, given), strict=True))
            self._samples.append((case, seed + index, feeds | given, outputs))

    def compare(
        self,
        graph: RunnableGraph,
        precision: str,
        progress: Progress | None = None,
        *,
        only: Collection[str] | None = None,
        shallow: RunnableGraph | None = None,
    ) -> Verification:
        """Run a graph on the same inputs and compare all outputs.

        Args:
            graph: The graph; an output that it lacks counts as infinitely far off.
            precision: What the result says of the graph.
            progress: Told the samples that are done.
            only: Outputs to compare, of a graph that is part of a larger one.
            shallow: The part of a UNet that draws on the features that the whole graph gives: on those of the same
                step it makes the same, so it is compared with the same.
        """
        found, origin = [], _Origin()
        for index, (case, seed, feeds, expected) in enumerate(self._samples):
            outputs = graph.run(feeds, origin.observe)
            nothing = np.empty(0)
            figures = {
                name: compare(outputs.get(name, nothing), array)
                for name, array in expected.items()
                if only is None or name in only
            }
            if shallow is not None:
                reused = shallow.run({**feeds, CACHED_FEATURES: outputs[CACHED_FEATURES]}, origin.observe)
                for name, array in expected.items():
                    figures[f"{name} of {SHALLOW_FILE}"] = compare(reused.get(name, nothing), array)
            found.append(Sample(case, seed, figures))
            if progress is not None:
                progress(index + 1, len(self._samples))
        result = Verification(precision, tuple(found), origin.place)
        finite = all(figures.is_finite for figures in result.figures)
        return Verification(precision, result.samples) if finite else result

    def watch(self, graph: RunnableGraph, observe: Observer) -> None:
        """Run a graph on the same inputs, for what there is to see on the way."""
        for _, _, feeds, _ in self._samples:
            graph.run(feeds, observe)


def parameter_reader(weights: Weights, tensors: TensorAccess) -> Callable[[str], Array]:
    """Return how to read a parameter of a table by name; a name that it lacks is a `PassError`."""

    def read(name: str) -> Array:
        if name not in weights:
            raise PassError(f"the weights have no parameter {name!r}, which the network needs")
        return tensors.read(weights[name])

    return read


def precision_of(model: ir.Model) -> str:
    """Return `int8` or `fp8` if activations are rounded, `w8` or `w4` if weights alone are.

    Else `fp16` or `bf16` if any operator gives that, else `fp32`.
    """
    if (quantised := quantised_precision(model.graph)) is not None:
        return quantised
    dtypes = {value.dtype for node in model.graph for value in node.outputs}
    return next((name for half, name in HALVES.items() if half in dtypes), "fp32")


class _Origin:
    """Notes the first operator that makes something not finite out of finite operands."""

    def __init__(self) -> None:
        self.place: str | None = None

    def observe(self, node: ir.Node, operands: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        if self.place is not None or all(map(_is_finite, outputs)):
            return
        if all(operand is None or _is_finite(operand) for operand in operands):
            block = node.metadata_props.get(BLOCK_KEY)
            self.place = f"{node.op_type} in {block}" if block else f"{node.op_type} {node.name!r}"


def _is_finite(array: Array) -> bool:
    return not is_float(array.dtype) or bool(np.isfinite(array).all())


def _described(figures: Figures) -> str:
    bad = [f"{count} {kind}" for kind, count in (("NaN", figures.nan), ("Inf", figures.inf)) if count]
    if bad:
        return " and ".join(bad)
    return f"relative error {figures.relative_error:.1e}, worst element off by {figures.worst:.1e}"


class Reference:
    """A component's network of diffusers or transformers, which reads its weights as its layers run."""

    def __init__(self, architecture: Architecture, read: Callable[[str], Array]) -> None:
        """Build the network. Raises `PassError` when the library refuses the config.

        `read` returns a parameter's values, in any float dtype.
        """
        # Parameters are on the meta device, so that this changes nothing but what layers take for their dtype.
        network = build_network(architecture).double()
        for prefix, module in network.named_modules():
            own = dict(module.named_parameters(prefix, recurse=False))
            if own and next(module.children(), None) is None:
                _stream(network, module, own, read)
            else:
                # What belongs to no layer, such as a class token, is small, and others than its owner may use it.
                fill(network, own, read)
        stored = stored_values(network)
        fill(network, {name: buffer for name, buffer in network.named_buffers() if name in stored}, read)
        self._network, self._module = network, wrap(architecture.component, network)

    def __call__(
        self, feeds: Mapping[str, Array], residuals: Mapping[str, Array] = MappingProxyType({})
    ) -> list[Array]:
        """Return the component's outputs in order, float64 or boolean.

        Args:
            feeds: Inputs by name, in the order of the component's interface.
            residuals: Of guides, by the names of a UNet's inputs for them.
        """
        if residuals:
            take_residuals(self._network, {name: torch.from_numpy(one).double() for name, one in residuals.items()})
        return run_torch(self._module, feeds)


def run_torch(network: torch.nn.Module, feeds: Mapping[str, Array]) -> list[Array]:
    """Return the outputs of a float64 network that takes a component's inputs in order."""
    arguments = [torch.from_numpy(value.copy()) for value in feeds.values()]
    arguments = [value.double() if value.is_floating_point() else value for value in arguments]
    with torch.no_grad():
        outputs = network(*arguments)
    return [value.numpy() for value in (outputs if isinstance(outputs, tuple) else (outputs,))]


def _stream(
    network: torch.nn.Module,
    layer: torch.nn.Module,
    own: Mapping[str, torch.nn.Parameter],
    read: Callable[[str], Array],
) -> None:
    def load(_: object, __: object) -> None:
        fill(network, own, read)

    def unload(layer: torch.nn.Module, _: object, __: object) -> None:
        for name, empty in own.items():
            setattr(layer, name.rpartition(".")[2], empty)

    layer.register_forward_pre_hook(load)
    layer.register_forward_hook(unload)


def fill(
    network: torch.nn.Module,
    parameters: Mapping[str, torch.Tensor],
    read: Callable[[str], Array],
    dtype: torch.dtype = torch.float64,
) -> None:
    """Give a network parameters with values. Raises `PassError` when values do not fit.

    Args:
        parameters: Those to replace, by name.
        read: Returns a parameter's values, in any float dtype.
        dtype: Of the new parameters.
    """
    for name, empty in parameters.items():
        values = torch.from_numpy(np.ascontiguousarray(read(name), dtype=str(dtype).removeprefix("torch.")))
        if values.numel() != empty.numel():
            raise PassError(
                f"parameter {name!r} has shape {tuple(values.shape)}, the network needs {tuple(empty.shape)}; the "
                "config and the weights belong to different networks"
            )
        owner, _, leaf = name.rpartition(".")
        parameter = torch.nn.Parameter(values.reshape(empty.shape), requires_grad=False)
        setattr(network.get_submodule(owner), leaf, parameter)
