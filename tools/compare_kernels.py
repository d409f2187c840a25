"""Compares what the tables of targets claim with the registries inside released wheels.

    python -m tools.compare_kernels FOLDER

`FOLDER` has the wheels (`.whl`); what is not there is left out and named. They are fetched by

    pip download --no-deps -d FOLDER onnxruntime-gpu==1.31.1 onnxruntime-migraphx==1.27.1
    pip download --no-deps -d FOLDER onnxruntime-ep-webgpu==0.4.0 onnxruntime-ep-nv-tensorrt-rtx-cu13==0.5.0
    pip download --no-deps -d FOLDER --platform win_amd64 --python-version 312 onnxruntime-directml==1.24.4
    pip download --no-deps -d FOLDER --platform win_amd64 --python-version 312 onnxruntime-windowsml

It prints each disagreement, and what a wheel has beyond a table; its status is 1 if a claim is wrong. The sources of
claims are on the page `docs/claims.md`, which a test holds against the tables; without a folder the script writes that
page's claims anew, keeps their sources, and leaves the place of a source that is missing empty.
"""

from __future__ import annotations

import re
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx

from olivelike.graphs.inspect.placement import REGISTRIES
from olivelike.model.plugin_targets import claims
from olivelike.model.targets import TARGETS, Target
from tools.kernel_registries import Found, Kernels, ask_registry, read_directml, read_names

PAGE = Path(__file__).parents[1] / "docs" / "claims.md"
_STANDARD = frozenset({"ArgMax", "LayerNormalization", "RMSNormalization", "GroupNormalization", "Gemm"})
"""Operators of the standard domain that tables name without `ai.onnx.`."""


# Claims and their sources


def sources() -> dict[str, dict[str, tuple[str, str]]]:
    """Return the rows of the page, by target and what is claimed of it: the claim in words, and its source."""
    rows: dict[str, dict[str, tuple[str, str]]] = {}
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        found = re.findall(r"^\| `(.+?)` \| (.+?) \| (.*?) ?\|$", section, re.MULTILINE)
        if found:
            rows[section.split()[0]] = {claim: (words, source) for claim, words, source in found}
    return rows


def page() -> str:
    """Return the page as it should be, as far as the tables say it: sources are a person's work."""
    known = sources()
    text = PAGE.read_text(encoding="utf-8").partition("\n## ")[0]
    for target in TARGETS.values():
        text += f"\n## {target.name}\n| claim of | in the table | source |\n| --- | --- | --- |\n"
        for claim, words in claims(target).items():
            source = known.get(target.name, {}).get(claim, ("", ""))[1]
            text += f"| `{claim}` | {words} | {source} |\n"
    return text


# Claims and registries


@dataclass(frozen=True)
class Wheel:
    """A wheel, and what can be read in it."""

    name: str
    """Beginning of its file's name."""
    target: str
    read: Callable[[Path, Path], Kernels]
    """Given the unpacked wheel and a scratch folder."""
    limits: str = ""
    """The library whose messages say which widths run."""
    table: str = ""
    """The target whose list of all operators `olivelike inspect` uses comes from here."""


def _library(pattern: str, read: Callable[[Path], Kernels]) -> Callable[[Path, Path], Kernels]:
    return lambda unpacked, _: read(next(unpacked.rglob(pattern)))


def _named(path: Path) -> Kernels:
    return {prefix + name: Found() for name in read_names(path) for prefix in ("", "ai.onnx.")}


def _provider(name: str) -> Callable[[Path, Path], Kernels]:
    return lambda unpacked, scratch: ask_registry(unpacked, scratch)[name]


WHEELS = (
    Wheel("onnxruntime_gpu", "cpu", _provider("CPUExecutionProvider"), table="cpu"),
    Wheel(
        "onnxruntime_gpu", "cuda", _provider("CUDAExecutionProvider"), "libonnxruntime_providers_cuda.so", table="cuda"
    ),
    Wheel("onnxruntime_directml", "directml", _library("onnxruntime.dll", read_directml), table="directml"),
    Wheel("onnxruntime_migraphx", "migraphx", _library("libonnxruntime_providers_migraphx.so", _named)),
    Wheel("onnxruntime_windowsml", "windowsml", _library("onnxruntime.dll", read_directml)),
    Wheel("onnxruntime_ep_nv_tensorrt_rtx", "tensorrt_rtx", _library("libtensorrt_onnxparser_rtx.so.*", _named)),
    Wheel("onnxruntime_ep_webgpu", "webgpu", _library("libonnxruntime_providers_webgpu.so", _named)),
)


def compare(target: Target, kernels: Kernels) -> Iterator[str]:
    """Yield what a table claims and a registry denies."""
    for operator, kernel in target.kernels.items():
        key = _key(operator)
        found = kernels.get(key)
        if found is None:
            if not _has_body(key):
                yield f"{target.name}: claims {operator}, which is not there"
        elif found.dtypes is not None and (wrong := kernel.dtypes - set(found.dtypes)):
            yield f"{target.name}: claims {operator} in {' '.join(sorted(wrong))}, it is there in {found.dtypes}"
    for operator in sorted(target.bfloat16_operators):
        both = [found for key in (operator, f"ai.onnx.{operator}") if (found := kernels.get(key)) is not None]
        if not both or any("b" not in (found.dtypes or "b") for found in both):
            yield f"{target.name}: claims {operator} in bfloat16, which is not there"


def _key(operator: str) -> str:
    return f"ai.onnx.{operator}" if operator in _STANDARD else operator


_WIDTHS = {
    "BiasAdd": rb"umber of channels should be ([\d, or]+)",
    "BiasSplitGelu": rb"hidden size should be ([\d, or]+)",
}
"""How a kernel refuses a width: without such a message it takes any."""


def compare_widths(target: Target, library: bytes) -> Iterator[str]:
    """Yield kernels for whose widths a library has another message than the table."""
    for operator, pattern in _WIDTHS.items():
        message = re.search(pattern, library)
        there = frozenset(map(int, re.findall(r"\d+", message[1].decode()))) if message else None
        here = target.kernels[operator].channels
        if here != there:
            yield f"{target.name}: claims {operator} for {_sorted(here)} widths, the library says {_sorted(there)}"


def _sorted(widths: frozenset[int] | None) -> str:
    return "all" if widths is None else " ".join(map(str, sorted(widths)))


def compare_opset(target: Target, kernels: Kernels) -> Iterator[str]:
    """Yield standard operators whose form at the target's opset is newer than the newest that a registry has."""
    # What GroupNormalization is lowered to.
    written = _WRITTEN | (set() if "GroupNormalization" in target.kernels else {"InstanceNormalization"})
    for name in sorted(written):
        found = kernels.get(f"ai.onnx.{name}")
        if found is None or found.opset is None:
            continue
        since = onnx.defs.get_schema(name, target.opset).since_version
        if since > found.opset:
            yield f"{target.name}: claims opset {target.opset}, where {name} is that of {since}; it has {found.opset}"


_WRITTEN = frozenset(
    {"Add", "Cast", "Concat", "Conv", "Cos", "Div", "Equal", "Erf", "Exp", "Expand", "Gather", "Gemm"}
    | {"LayerNormalization", "MatMul", "Mul", "Neg", "Pad", "Pow", "Range", "ReduceMean"}
    | {"Reshape", "Resize", "Shape", "Sigmoid", "Sin", "Slice", "Softmax", "Split", "Sqrt", "Squeeze", "Sub"}
    | {"Tanh", "Transpose", "Trilu", "Unsqueeze", "Where"}
)
"""Standard operators of the shipped networks."""


def compare_registry(name: str, kernels: Kernels) -> Iterator[str]:
    """Yield where the list of all operators that `olivelike inspect` uses differs from a registry."""
    listed = REGISTRIES[name]
    standard = {
        key.removeprefix("ai.onnx."): found.opset
        for key, found in kernels.items()
        if key.startswith("ai.onnx.") and onnx.defs.has(key.removeprefix("ai.onnx."))
    }
    contrib = {key for key in kernels if not key.startswith("ai.onnx.")}
    for operator in sorted({*standard, *listed.standard}):
        here, there = listed.standard.get(operator), standard.get(operator)
        if here != there:
            yield f"{name}: inspect's list has {operator} {here or 'not at all'}, the registry {there or 'not at all'}"
    for operator in sorted(contrib ^ listed.contrib):
        yield f"{name}: {operator} is only in {'the registry' if operator in contrib else 'the list of inspect'}"


def beyond(target: Target, kernels: Kernels) -> list[str]:
    """Return operators and types that are there and that the table leaves out, of those that any table names."""
    wanted = {operator for other in TARGETS.values() for operator in other.kernels}
    found = []
    for operator in sorted(wanted):
        there = kernels.get(_key(operator))
        here = target.kernels.get(operator)
        if there is not None and here is None and (there.opset or "." not in operator):
            found.append(operator)
        elif there is not None and here is not None and (more := set(there.dtypes or "") - here.dtypes):
            found.append(f"{operator} in {' '.join(sorted(more))}")
    return found


def _has_body(key: str) -> bool:
    """Whether the runtime puts other operators in the place of one that it has no kernel for."""
    name = key.removeprefix("ai.onnx.")
    if key == name or not onnx.defs.has(name):
        return False
    schema = onnx.defs.get_schema(name)
    return bool(schema.has_function or schema.has_context_dependent_function)


def disagreements(folder: Path, say: Callable[[str], object] = print) -> list[str]:
    """Compare with all wheels in a folder; return what is wrong. `say` is told what was looked at."""
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for wheel in WHEELS:
            files = sorted(folder.glob(f"{wheel.name}*.whl"))
            if not files:
                say(f"{wheel.target}: no {wheel.name}*.whl in {folder}; not compared")
                continue
            kernels = wheel.read(_unpacked(files[-1], scratch), scratch / "stand-ins")
            target = TARGETS[wheel.target]
            found = [*compare(target, kernels), *compare_opset(target, kernels)]
            if wheel.limits:
                found += compare_widths(target, next(_unpacked(files[-1], scratch).rglob(wheel.limits)).read_bytes())
            if wheel.table:
                found += compare_registry(wheel.table, kernels)
            say(f"{wheel.target}: {files[-1].name}: {len(kernels)} operators, {len(found)} disagreements")
            if more := beyond(target, kernels):
                say(f"  there, and not in the table: {', '.join(more)}")
            wrong += found
    return wrong


_LARGE = re.compile(r"DirectML\.dll|/transformers/|tensorrt_(plugins|rtx\.so)")
"""What nothing is read in."""


def _unpacked(wheel: Path, scratch: Path) -> Path:
    folder = scratch / wheel.stem
    if not folder.is_dir():
        with zipfile.ZipFile(wheel) as content:
            content.extractall(folder, [name for name in content.namelist() if not _LARGE.search(name)])
    return folder


def main(arguments: list[str]) -> int:
    """Print what was compared and what is wrong."""
    if not arguments:
        PAGE.write_text(page(), encoding="utf-8", newline="\n")
        return 0
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print(__doc__)
        return 2
    wrong = disagreements(Path(arguments[0]))
    print("\n".join(wrong) or "0 disagreements")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
