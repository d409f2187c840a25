"""Damage to valid samples, by structure and by byte, and the loop that feeds readers with it."""

from __future__ import annotations

import copy
import json
import random
import resource
import string
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from olivelike.errors import OlivelikeError
from olivelike.sources.files.onnx_wire import encode_bytes, encode_number

QUICK = 100
SLOW = 20_000
SECONDS = 5.0
BYTES = 1 << 30

TEXTS = (
    "", " ", "\0", "a\0b", "\x1b[31mred", "\u202eeman", "\ud800", "é", "東京", "🎉", "x" * 300, "../../etc/passwd",
    "/etc/passwd", "/dev/zero", "NaN", "None", "null", "true", "1e999", "-1", "0x10", "%s{0}$HOME", "\r\n", "\t", "\\",
    "'", '"', "[", "{", "~", "*", "&a", "!!str", "<<", "- ", ": ", "#", "(a+)+$", "(.*)*x", "\ufeff", ".", "..", "a.b",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 4, 9, 77, 255, 320, 768, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63),
    10**30, 10**98, 10**400, 0.5, -0.0, 1e-320, 1e308, 1.5,
)  # fmt: skip
RAW_JSON = (b"1e999", b"-1e999", b"NaN", b"Infinity", b"-Infinity", b"1" * 5000, b"[" * 2000, b"{}", b"[[]]",
            b'"\\ud800"', b'"\\u0000"', b"tru", b"01", b"")  # fmt: skip


def odd_value(rng: random.Random) -> object:
    """Return a JSON value that a reader may not expect."""
    kinds = (
        lambda: rng.choice(TEXTS),
        lambda: rng.choice(NUMBERS),
        lambda: rng.choice((None, True, False, [], {}, [[]], {"": {}}, [None], {"a": 1})),
        lambda: [rng.choice(NUMBERS) for _ in range(rng.randrange(6))],
        lambda: {rng.choice(TEXTS): rng.choice(NUMBERS) for _ in range(3)},
    )
    return rng.choice(kinds)()


def damage_value(rng: random.Random, value: object) -> object:
    """Change one place of a JSON value."""
    if isinstance(value, dict) and value and rng.random() < 0.97:
        key = rng.choice(list(value))
        match rng.randrange(8):
            case 0:
                return {name: inner for name, inner in value.items() if name != key}
            case 1:
                return {rng.choice(TEXTS) if name == key else name: inner for name, inner in value.items()}
            case 2:
                return {**value, key: value[rng.choice(list(value))]}
            case 3:
                return {**value, rng.choice(TEXTS): odd_value(rng)}
            case _:
                return {**value, key: damage_value(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        match rng.randrange(4):
            case 0:
                return value[:index] + value[index + 1 :]
            case 1:
                return [*value[:index], value[index], *value[index:]]
            case _:
                return [*value[:index], damage_value(rng, value[index]), *value[index + 1 :]]
    if isinstance(value, int) and rng.random() < 0.4:
        return value + rng.choice((-1, 1, 2, 1 << 31, 1 << 63))
    return odd_value(rng)


def damage_json(rng: random.Random, value: object, times: int | None = None) -> bytes:
    """Return a JSON text of a value with some places changed, now and then no JSON any more."""
    for _ in range(rng.choice((0, 1, 1, 2, 4)) if times is None else times):
        value = damage_value(rng, value)
    data = json.dumps(value).encode()
    match rng.randrange(20):
        case 0:
            return damage_bytes(rng, data)
        case 1:
            numbers = [i for i, byte in enumerate(data) if chr(byte).isdigit()]
            if numbers:
                place = rng.choice(numbers)
                return data[:place] + rng.choice(RAW_JSON) + data[place + 1 :]
    return data


def damage_bytes(rng: random.Random, data: bytes) -> bytes:
    """Change, drop, double or insert a few bytes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        place = rng.randrange(len(out) + 1)
        match rng.randrange(6):
            case 0 if out:
                out[place % len(out)] = rng.randrange(256)
            case 1 if out:
                out[place % len(out)] ^= 1 << rng.randrange(8)
            case 2:
                del out[place : place + rng.choice((1, 2, 8, 64))]
            case 3:
                out[place:place] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 2, 8))))
            case 4:
                out[place:place] = out[place : place + rng.choice((1, 8, 64))]
            case _:
                out[place : place + 8] = rng.choice((b"\xff" * 8, bytes(8), b"\x80" * 8, b"\xff" * 7 + b"\x7f"))
    return bytes(out)


def damage_text(rng: random.Random, text: str, tokens: tuple[str, ...]) -> str:
    """Change, drop, double, move or insert pieces of a text, lines and tokens among them."""
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        place = rng.randrange(len(text) + 1)
        match rng.randrange(7):
            case 0:
                text = text[:place] + rng.choice(tokens) + text[place:]
            case 1:
                text = text[:place] + text[place + rng.choice((1, 2, 10)) :]
            case 2:
                text = text[:place] + rng.choice(TEXTS) + text[place:]
            case 3:
                lines = text.split("\n")
                lines.insert(rng.randrange(len(lines)), rng.choice(lines))
                text = "\n".join(lines)
            case 4:
                lines = text.split("\n")
                index = rng.randrange(len(lines))
                lines[index] = " " * rng.randrange(6) + lines[index].strip()
                text = "\n".join(lines)
            case 5:
                text = text[:place] + rng.choice(string.printable) + text[place + 1 :]
            case _:
                end = min(len(text), place + rng.randrange(1, 30))
                text = text[:place] + text[place:end] * rng.choice((2, 3, 50)) + text[end:]
    return text


@dataclass
class Outcome:
    """What a reader made of many inputs."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    """Processor seconds for an input: others on the machine take none of them."""
    grown: int = 0
    """Bytes that the most memory of the process grew by."""

    def check(self, least_read: float) -> None:
        """Assert that all is documented, quick and small, and that enough was read to matter."""
        total = sum(self.counts.values())
        share = self.counts["read"] / total
        sys.stdout.write(
            f"{total} inputs, {share:.0%} read, slowest {self.slowest:.2f} s, grown {self.grown / 1e6:.0f} MB, "
            f"{dict(self.counts)}\n"
        )
        assert not self.failures, "\n".join(self.failures[:10])
        assert self.slowest < SECONDS
        assert self.grown < BYTES
        assert share > least_read


def feed(read, make, runs: int, seed: int = 0) -> Outcome:
    """Make inputs and have them read; only errors of ours are in order."""
    rng = random.Random(seed)
    outcome = Outcome()
    before = _most_memory()
    for number in range(runs):
        sample = make(rng)
        start = time.process_time()
        try:
            read(sample)
            outcome.counts["read"] += 1
        except OlivelikeError as error:
            outcome.counts[type(error).__name__] += 1
            if error.exit_code == 1 or not str(error):
                outcome.failures.append(f"input {number}: {error!r}")
        except Exception as error:
            frames = []
            trace = error.__traceback__
            while trace is not None:
                frames.append(f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}")
                trace = trace.tb_next
            what = f"{type(error).__name__}: {str(error)[:80]} at {' < '.join(frames[:-5:-1])}"
            outcome.counts[type(error).__name__] += 1
            outcome.failures.append(f"input {number}: {what}: {repr(sample)[:200]}")
        outcome.slowest = max(outcome.slowest, time.process_time() - start)
    outcome.grown = _most_memory() - before
    return outcome


def _most_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def onnx_model():
    """Return a model with weights in the file and beside it, a constant, a subgraph and a function."""
    inner = helper.make_graph(
        [helper.make_node("Identity", ["weight"], ["inner"])],
        "then",
        [],
        [helper.make_tensor_value_info("inner", 1, None)],
    )
    beside = numpy_helper.from_array(np.zeros((2, 8), np.float32), "beside")
    beside.ClearField("raw_data")
    beside.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "data.bin"), ("offset", "64"), ("length", "64")):
        beside.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["table"], value=numpy_helper.from_array(np.zeros((90, 100), np.float32))),
            helper.make_node("MatMul", ["x", "weight"], ["y"], name="/down/MatMul"),
            helper.make_node("If", ["flag"], ["z"], then_branch=inner, else_branch=inner),
            helper.make_node("Resize", ["y", "", "scales"], ["r"], mode="nearest"),
            helper.make_node("F", ["y"], ["f"], domain="own"),
        ],
        "main",
        [helper.make_tensor_value_info("x", 1, ["batch", 4]), helper.make_tensor_value_info("flag", 9, [])],
        [helper.make_tensor_value_info("y", 1, ["batch", 8])],
        [
            numpy_helper.from_array(np.zeros((4, 8), np.float32), "weight"),
            numpy_helper.from_array(np.arange(4), "numbers"),
            numpy_helper.from_array(np.ones(4, np.float32), "scales"),
            beside,
        ],
    )
    function = helper.make_function(
        "own", "F", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 18)]
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8)


def damage_message(rng, message):
    """Change one field somewhere in a protobuf message."""
    below = []
    waiting = [message]
    while waiting:
        found = waiting.pop()
        below.append(found)
        for descriptor, value in found.ListFields():
            if descriptor.type == descriptor.TYPE_MESSAGE:
                waiting += value if hasattr(value, "append") or hasattr(value, "add") else [value]
    target = rng.choice(below)
    descriptor = rng.choice(target.DESCRIPTOR.fields)
    name = descriptor.name
    present = {found.name: value for found, value in target.ListFields()}
    repeated = hasattr(getattr(target, name), "extend")
    odd = {"cpp_string": lambda: rng.choice(TEXTS[:6]).encode("utf-8", "replace").decode()}
    if rng.random() < 0.25:
        target.ClearField(name)
    elif descriptor.type == descriptor.TYPE_MESSAGE:
        if repeated and present.get(name):
            items = getattr(target, name)
            items.add().CopyFrom(rng.choice(list(items)))
        elif repeated:
            getattr(target, name).add()
        elif rng.random() < 0.2 and type(target).__name__ == "AttributeProto":
            target.g.CopyFrom(onnx_model().graph)
        else:
            getattr(target, name).SetInParent()
    else:
        if descriptor.type == descriptor.TYPE_STRING:
            value = odd["cpp_string"]()
        elif descriptor.type == descriptor.TYPE_BYTES:
            value = rng.randbytes(rng.choice((0, 1, 8, 64)))
        elif descriptor.type in (descriptor.TYPE_FLOAT, descriptor.TYPE_DOUBLE):
            value = rng.choice((0.0, float("inf"), float("nan"), -1.5))
        else:
            value = rng.choice((0, 1, 2, 3, 7, 16, 23, 99, -1, 2**31 - 1, 2**40, -(2**63), 2**63 - 1))
        try:
            if repeated:
                getattr(target, name).append(value)
            else:
                setattr(target, name, value)
        except (ValueError, TypeError):
            pass


def read_all_ways(path, readers, runs):
    """Feed damaged ONNX files to several readers; the error of the last that raises one of ours counts."""
    whole = onnx_model()

    def make(rng):
        model = copy.deepcopy(whole)
        for _ in range(rng.choice((0, 1, 1, 2, 3, 6))):
            damage_message(rng, model)
        data = model.SerializeToString()
        return damage_bytes(rng, data) if rng.random() < 0.3 else data

    def read(data):
        path.write_bytes(data)
        error = None
        for reader in readers:
            try:
                reader(path)
            except OlivelikeError as found:
                error = found
        if error is not None:
            raise error

    feed(read, make, runs).check(0.1)


def nested_graphs(levels):
    graph = b""
    for _ in range(levels):
        attribute = encode_bytes(1, b"then_branch") + encode_bytes(6, graph) + encode_number(20, 5)
        graph = encode_bytes(1, encode_bytes(4, b"If") + encode_bytes(5, attribute))
    return encode_number(1, 8) + encode_bytes(8, encode_number(2, 18)) + encode_bytes(7, graph)
