"""What the libraries of a wheel say of a provider's kernels; no GPU, no Windows and no driver is needed.

| wheel | what is read |
| --- | --- |
| `onnxruntime-gpu` | its own registry, asked in a child process. The CUDA provider loads without CUDA, since every function of the libraries that it needs is stood in for by one that answers 0 (compiled with `gcc`). |
| `onnxruntime-directml`, `onnxruntime-windowsml` | the table of registrations in `onnxruntime.dll`: operator, domain, opset, types. |
| `onnxruntime-migraphx`, `onnxruntime-ep-webgpu`, `onnxruntime-ep-nv-tensorrt-rtx-cu13` | names that the code refers to: the provider knows them; types are not said. |
"""  # noqa: E501

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Found:
    """What a library says of one operator."""

    opset: int | None = None
    """The newest form that it has a kernel for; `None` if it does not say."""
    dtypes: str | None = None
    """Letters as in `Kernel.dtypes`; `None` if it does not say."""


Kernels = Mapping[str, Found]
"""By operator; those of the standard domain begin with `ai.onnx.`, those of com.microsoft have no prefix."""

_PREFIX = {"": "ai.onnx.", "ai.onnx": "ai.onnx.", "com.microsoft": ""}
_LETTERS = {"tensor(float)": "f", "tensor(float16)": "h", "tensor(bfloat16)": "b", "tensor(double)": "d"}


# ONNX Runtime's own registry

_ASK = """
import json, os
from onnxruntime.capi import onnxruntime_pybind11_state as state
rows = [[d.provider, d.domain, d.op_name, d.version_range, d.type_constraints] for d in state.get_all_opkernel_def()]
print(json.dumps(rows), flush=True)
os._exit(0)
"""


def ask_registry(unpacked: Path, scratch: Path) -> dict[str, Kernels]:
    """Return the kernels of each provider that an unpacked wheel for this Python and Linux has, by provider.

    Args:
        unpacked: The folder with `onnxruntime/` in it.
        scratch: Where stand-ins for the libraries that are not here are made.
    """
    _stand_in(sorted((unpacked / "onnxruntime" / "capi").glob("libonnxruntime_providers_*.so")), scratch)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(scratch), "PYTHONPATH": str(unpacked)}
    done = subprocess.run([sys.executable, "-c", _ASK], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{unpacked}: its registry can't be asked (status {done.returncode}): {done.stderr[-500:]}")
    found: dict[str, dict[str, Found]] = defaultdict(dict)
    for provider, domain, name, (since, _), types in json.loads(done.stdout):
        if domain in _PREFIX:
            kernels, key = found[provider], _PREFIX[domain] + name
            letters = _letters(types)
            known = kernels.get(key, Found(since, ""))
            if since > (known.opset or 0):
                known = Found(since, "")
            if since == known.opset:
                kernels[key] = Found(since, "".join(sorted({*(known.dtypes or ""), *letters})))
    return dict(found)


def _letters(types: Mapping[str, list[str]]) -> str:
    first = next((types[name] for name in ("T", "T1") if name in types), [])
    return "".join(letter for name, letter in _LETTERS.items() if name in first)


def _stand_in(libraries: list[Path], scratch: Path) -> None:
    """Make a library for each that is needed and is not part of a Linux system, whose functions return 0."""
    scratch.mkdir(parents=True, exist_ok=True)
    functions: dict[str, set[str]] = defaultdict(set)
    foreign = re.compile(r"lib(cu|nv)\w*\.so\.\d+")
    for library in libraries:
        needed = foreign.finditer(_tool("readelf", "-d", library))
        functions.update({name: functions[name] for name in {match[0] for match in needed}})
        for line in _tool("nm", "-D", "--undefined-only", library).splitlines():
            name, _, version = line.split()[-1].partition("@")
            home = version if foreign.fullmatch(version) else _UNVERSIONED.get(name)
            if home:
                functions[home].add(name)
    for home, names in functions.items():
        source, exports, target = (scratch / f"{home}{end}" for end in (".c", ".map", ""))
        # A provider asks how many devices there are before it says what it has.
        code = "".join(
            f"long {name}(int* count) {{ *count = 1; return 0; }}\n" if name == "cudaGetDeviceCount"
            else f"long {name}(void) {{ return 0; }}\n"
            for name in sorted(names)
        )  # fmt: skip
        source.write_text(code, encoding="ascii")
        exports.write_text(f"{home} {{ global: *; }};\n", encoding="ascii")
        linker = (f"-Wl,-soname,{home}", f"-Wl,--version-script={exports}")
        _tool("gcc", "-shared", "-fPIC", "-fno-builtin", "-w", *linker, "-o", target, source)


_UNVERSIONED = {
    "cuTensorMapEncodeTiled": "libcuda.so.1",
    **dict.fromkeys(("createNvOnnxParser_INTERNAL", "createNvOnnxParserRefitter_INTERNAL"), "libnvonnxparser.so.10"),
    **dict.fromkeys(
        ("createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL",
         "getInferLibVersion", "getPluginRegistry"),
        "libnvinfer.so.10",
    ),
}  # fmt: skip
"""Functions whose library the provider does not name, and where they are."""


def _tool(name: str, *arguments: str | Path) -> str:
    return subprocess.run([name, *arguments], check=True, capture_output=True, text=True).stdout


# DirectML's table

_ROW, _TYPES_AT, _ANCHOR = 160, 96, b"\0BiasSplitGelu\0"
_FLOAT32, _FLOAT16 = 1 << 1, 1 << 12
"""Bits of a type mask, as operators of known types have them: And (bool) 1 << 11, QLinearConv (8-bit) 3 << 4."""
_NEWEST_OPSET = 40
_DIRECTML_BESIDE = {
    f"ai.onnx.{name}": Found(opset)
    for name, opset in (
        ("DFT", 20), ("GridSample", 16), ("STFT", 17), ("If", 19), ("OptionalGetElement", 18),
        ("OptionalHasElement", 18), ("SequenceAt", 11), ("SequenceConstruct", 11), ("SequenceEmpty", 11),
        ("SequenceErase", 11), ("SequenceInsert", 11), ("SequenceLength", 11),
    )
}  # fmt: skip
"""What `RegisterDmlOperators` and `RegisterCpuOperatorsAsDml` of ONNX Runtime's OperatorRegistration.cpp add."""


def read_directml(library: Path) -> Kernels:
    """Return the rows of DirectML's table of registrations in an `onnxruntime.dll` of 64 bits.

    A row has 160 bytes: address of the name, opset, address of the domain, functions; at 96 how many masks of types
    there are, and where. The table is found by a row that is known to be in it, and ends where a row makes no sense.
    """
    image = _Image.of_dll(library)
    name = image.address(image.data.index(_ANCHOR) + 1)
    anchor = image.data.index(struct.pack("<Q", name))
    kernels: dict[str, Found] = {}
    for step in (-_ROW, _ROW):
        place = anchor
        while row := _directml_row(image, place):
            key, found = row
            if key and (found.opset or 0) >= (kernels.get(key, found).opset or 0):
                kernels[key] = found
            place += step
    return kernels | _DIRECTML_BESIDE


def _directml_row(image: _Image, place: int) -> tuple[str, Found] | None:
    name_at, opset, domain_at = struct.unpack_from("<QQQ", image.data, place)
    name, domain = image.text(name_at), image.text(domain_at)
    if not name or domain is None or not 0 < opset < _NEWEST_OPSET:
        return None
    count, masks_at = struct.unpack_from("<QQ", image.data, place + _TYPES_AT)
    masks = image.offset(masks_at) if count else None
    mask = struct.unpack_from("<I", image.data, masks)[0] if masks is not None else 0
    letters = ("f" if mask & _FLOAT32 else "") + ("h" if mask & _FLOAT16 else "")
    return (_PREFIX[domain] + name if domain in _PREFIX else ""), Found(opset, letters)


# Names in code

_LEA, _RIP = 0x8D, 0x05
_NAME = re.compile(rb"[A-Z][A-Za-z0-9]+")


def read_names(library: Path) -> frozenset[str]:
    """Return the names like those of operators that the code of a Linux library refers to.

    Text alone would not do: linkers keep `Attention` as the end of `MultiHeadAttention`, so what counts is the address
    in an instruction (`lea`, relative to the next one) of x86-64.
    """
    image = _Image.of_so(library)
    start, address, size = image.sections[".text"]
    code = np.frombuffer(image.data, np.uint8, size, start)
    found = np.nonzero((code[1:-6] == _LEA) & ((code[2:-5] & 0xC7) == _RIP))[0] + 1
    steps = sum(code[found + 2 + i].astype(np.uint32) << np.uint32(8 * i) for i in range(4))
    targets = np.unique(address + found + 6 + np.asarray(steps, np.uint32).view(np.int32).astype(np.int64))
    start, address, size = image.sections[".rodata"]
    inside = targets[(targets >= address) & (targets < address + size)] - address + start
    return frozenset(text.decode() for text in _texts(image.data, inside) if _NAME.fullmatch(text))


def _texts(data: bytes, places: np.ndarray) -> Iterator[bytes]:
    for place in places.tolist():
        yield data[place : data.index(b"\0", place)]


@dataclass(frozen=True)
class _Image:
    """A library as it lies in its file."""

    data: bytes
    sections: Mapping[str, tuple[int, int, int]]
    """By name: place in the file, address in memory, size."""

    @classmethod
    def of_dll(cls, path: Path) -> _Image:
        data = path.read_bytes()
        (header,) = struct.unpack_from("<I", data, 0x3C)
        count, optional = struct.unpack_from("<H", data, header + 6)[0], struct.unpack_from("<H", data, header + 20)[0]
        (base,) = struct.unpack_from("<Q", data, header + 48)
        sections = {}
        for number in range(count):
            row = header + 24 + optional + 40 * number
            _, address, size, place = struct.unpack_from("<IIII", data, row + 8)
            sections[data[row : row + 8].rstrip(b"\0").decode()] = (place, base + address, size)
        return cls(data, sections)

    @classmethod
    def of_so(cls, path: Path) -> _Image:
        data = path.read_bytes()
        (table,) = struct.unpack_from("<Q", data, 0x28)
        count, names = struct.unpack_from("<HH", data, 0x3C)
        rows = [struct.unpack_from("<IIQQQQ", data, table + 64 * number) for number in range(count)]
        start = rows[names][4]
        named = {data[start + row[0] : data.index(b"\0", start + row[0])].decode(): row for row in rows}
        return cls(data, {name: (place, address, size) for name, (*_, address, place, size) in named.items()})

    def address(self, place: int) -> int:
        """Return the address of a place in the file."""
        return next(at + place - start for start, at, size in self.sections.values() if start <= place < start + size)

    def offset(self, address: int) -> int | None:
        """Return the place in the file of an address; `None` if it is none."""
        found = (start + address - at for start, at, size in self.sections.values() if at <= address < at + size)
        return next(found, None)

    def text(self, address: int) -> str | None:
        """Return the text at an address; `None` if there is none."""
        place = self.offset(address)
        if place is None:
            return None
        found = self.data[place : self.data.index(b"\0", place)]
        return found.decode() if re.fullmatch(rb"[\w.]*", found) else None
