"""`SessionSettings`: how networks are opened and run, as chosen by a target or on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from olivelike._files import hold_paths
from olivelike.errors import UsageError
from olivelike.runtime.sessions.providers import CPU, CUDA, PLUGIN, TENSORRT, Provider, find_provider

OptimizationLevel = Literal["none", "basic", "extended", "layout", "all"]


@dataclass(frozen=True)
class ProviderChoice:
    """A provider and the options that it is given."""

    provider: Provider
    options: Mapping[str, str] = field(default_factory=dict)
    """As the provider names them; for `OpenVINO` its properties (`INFERENCE_PRECISION_HINT`, `CACHE_DIR`, …)."""


@dataclass(frozen=True)
class SessionSettings:
    """Settings with which all networks of a pipeline are opened and run."""

    providers: tuple[ProviderChoice, ...] = (ProviderChoice(find_provider("cpu")),)
    """In order of preference. The CPU takes what is left, named or not."""
    device: int | str | None = None
    """Number of the device, or a part of its name; for OpenVINO also its own name, `GPU.0`. The first by default."""
    session_config: Mapping[str, str] = field(default_factory=dict)
    """ONNX Runtime's session configuration entries (`session.set_denormal_as_zero`, …)."""
    run_config: Mapping[str, str] = field(default_factory=dict)
    """ONNX Runtime's run configuration entries (`memory.enable_memory_arena_shrinkage`, …)."""
    dimensions: Mapping[str, int] = field(default_factory=dict)
    """Sizes for dynamic dimensions, by the dimension's name; names that a network does not have are passed over."""
    optimization: OptimizationLevel = "all"
    """Rewriting that ONNX Runtime may do as it loads."""
    intra_threads: int = 0
    """Threads within an operator; 0 lets the engine decide."""
    inter_threads: int = 0
    """Operators that run at the same time; 0 lets the engine decide."""
    custom_operators: tuple[str, ...] = ()
    """Libraries with operators: files, or `onnxruntime_extensions` for those of that package."""
    cuda_graph: bool = False
    """Record the first run of a call and replay it; shapes are fixed per call anyway."""
    profile: Path | None = None
    """Beginning of the names of ONNX Runtime's profiles, one file per network, written as its session closes."""
    weights: Path | None = None
    """A data file in place of the one that the model names; for a single network."""
    memory_limit: int | None = None
    """Bytes of weights that a pipeline has open at once: a network is closed when another one is to be opened and both
    are more than that. Networks that draw together are open together."""
    written_order: bool = False
    """Run operators in the order in which they are written, where ONNX Runtime has one of its own."""
    compiled: Path | None = None
    """Folder where engines keep what they compile of networks, for the next time; nowhere by default."""
    keep_compiled: bool = False
    """Keep there networks of the CPU, too, with their weights: up to twice the bytes that those have in float32."""
    kept: Path | None = None
    """Folder in which a session finds its network as it was compiled for the CPU, or else puts it."""

    def __post_init__(self) -> None:
        """Take text for paths too."""
        hold_paths(self, "profile", "weights", "compiled", "kept")

    @property
    def provider(self) -> Provider:
        """The one that is asked first."""
        return self.providers[0].provider if self.providers else find_provider(CPU)

    @property
    def is_cpu_alone(self) -> bool:
        """Whether ONNX Runtime's CPU runs all of a network."""
        return [choice.provider.name for choice in self.providers] == [CPU]

    @property
    def options(self) -> Mapping[str, str]:
        """Options of the provider that is asked first."""
        return self.providers[0].options if self.providers else {}

    @property
    def asked_device(self) -> int | str | None:
        """The device, or else what the options of the first provider say that state one."""
        if self.device is not None:
            return self.device
        named = (choice.options.get("device_id", "") for choice in self.providers)
        return next((int(number) for number in named if number.isdecimal()), None)

    def unfused(self) -> SessionSettings:
        """Return settings with which ONNX Runtime fuses nothing around QuantizeLinear, unless they say otherwise."""
        return replace(self, session_config={"session.disable_quant_qdq": "1", **self.session_config})


def choose_providers(base: SessionSettings, texts: Sequence[str]) -> SessionSettings:
    """Return settings for the providers of a command line, in place of those of a folder's target.

    Options, device and configuration entries of the base stay where its first provider is the one that is asked for
    first; what a text sets wins. Raises `UsageError` for an unknown name, a name given twice, or what is no pair.
    `texts` are `NAME` or `NAME:key=value,…`, in order of preference; none leaves the base as it is.
    """
    choices = with_fallback([parse_provider(text) for text in texts])
    names = [choice.provider.name for choice in choices]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"--provider: {twice[0]} is given twice")
    if not choices:
        return base
    if choices[0].provider != base.provider:
        return replace(base, providers=choices, device=None, session_config={}, run_config={})
    return set_options(replace(base, providers=(base.providers[0], *choices[1:])), choices[0].options)


def with_fallback(choices: Sequence[ProviderChoice]) -> tuple[ProviderChoice, ...]:
    """Return providers with CUDA for what TensorRT leaves, where TensorRT is the only one."""
    alone = [choice.provider.name for choice in choices] == [TENSORRT]
    return (*choices, ProviderChoice(find_provider(CUDA))) if alone else tuple(choices)


def set_options(base: SessionSettings, options: Mapping[str, str]) -> SessionSettings:
    """Return settings with more options for the provider that is asked first; `device_id` replaces the device."""
    first, *others = base.providers
    return replace(
        base,
        providers=(replace(first, options={**first.options, **options}), *others),
        device=None if "device_id" in options else base.device,
    )


def parse_provider(text: str) -> ProviderChoice:
    """Read `NAME`, `plugin:NAME` or either with `:key=value,key=value`.

    Raises `UsageError` for an unknown name, or what is no pair, and `SessionError` for a plugin that can't be used.
    """
    prefix = PLUGIN if text.startswith(PLUGIN) else ""
    name, _, options = text.removeprefix(prefix).partition(":")
    pairs = options.split(",") if options else []
    return ProviderChoice(find_provider(prefix + name), parse_pairs(pairs, f"--provider {prefix}{name}"))


def parse_pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Read `key=value` texts; `option` is named in errors.

    Raises `UsageError` for a text without key or `=`, or a key given twice with different values.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not key or not equals:
            raise UsageError(f"{option}: {text!r} is no key=value pair")
        if pairs.setdefault(key, value) != value:
            raise UsageError(f"{option}: {key} is given twice, as {pairs[key]!r} and {value!r}")
    return pairs


def parse_dimensions(texts: Iterable[str]) -> dict[str, int]:
    """Read `name=size` texts. Raises `UsageError` for what is no pair, or no positive size."""
    sizes: dict[str, int] = {}
    for name, value in parse_pairs(texts, "--dimension").items():
        if not value.isdecimal() or int(value) == 0:
            raise UsageError(f"--dimension: {name} needs a positive whole number, not {value!r}")
        sizes[name] = int(value)
    return sizes


def parse_device(text: str) -> int | str:
    """Read a device: its number, or a part of its name."""
    return int(text) if text.isdecimal() else text


def parse_optimization(text: str) -> OptimizationLevel:
    """Read a graph optimisation level. Raises `UsageError` for an unknown one."""
    levels: tuple[OptimizationLevel, ...] = get_args(OptimizationLevel)
    for level in levels:
        if level == text:
            return level
    raise UsageError(f"--graph-optimization: unknown level {text!r}; known levels: {', '.join(levels)}")
