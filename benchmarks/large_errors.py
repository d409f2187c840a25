"""How far klein's and Z-Image's transformers and Qwen3 are from float32 in w8 and w4, and what each kind of layer adds.

    OMP_NUM_THREADS=1 python benchmarks/large_errors.py klein     # or z_image, qwen3; an eighth of the width: 20 s
    python benchmarks/large_errors.py klein --narrower 1          # real size, a weight at a time: 60 times as long

Networks of their depth and form, without rotary embeddings, with random weights: normal ones as large as torch's linear
layers begin with, and √3 times as large, so that a layer keeps the size of what it reads; and those of
`large_folders.py`, for transformers even ones as torch begins, for Qwen3 normal ones of 0.02. All ways go through the
network side by side, and share each weight. Depth decides the errors, width hardly.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

HEAD: Final = 128
CELLS, WORDS = 128, 64
_WHOLE: Final = 1 << 20
"""A block that has all of a row."""
TABLE: Final = "table"
"""Name of the rows of an encoder's table, which no layer has."""


@dataclass(frozen=True)
class Policy:
    """Layers that `weights8` treats apart, as patterns of names; `weights4` has those of more bits as well."""

    more_bits: str
    not_int8: str = "$"
    """Of those that take activations as they are."""
    not_by_rows: str = "$"
    """Of further such ones where a row has one scale."""
    more_of_4: str = "$"
    """Of those that have more bits in `weights4` alone."""

    def fine(self, name: str, bits: int) -> bool:
        """Tell whether a layer's weights have more bits than most, which have so many."""
        return re.fullmatch(self.more_bits if bits > 4 else f"{self.more_bits}|{self.more_of_4}", name) is not None

    def exact(self, name: str, *, rows: bool) -> bool:
        """Tell whether activations are not rounded for a layer, or to 16 bits, where a row has one scale."""
        return re.fullmatch(f"{self.not_int8}|{self.not_by_rows}" if rows else self.not_int8, name) is not None


POLICIES: Final = {
    "klein": Policy(r"time\..|mod\..*|pixels|out"),
    "z_image": Policy(
        r"time\..|mod\.out|.*(main|noise)\.mod|pixels|out|text|.*context\..*", r".*noise\..*|.*main\.down", r".*main\.o"
    ),
    "qwen3": Policy(r"[0-5]layer\..*|.*layer\.v", more_of_4=r".*layer\.o"),
}


@dataclass(frozen=True)
class Rounding:
    """How a layer computes."""

    bits: int = 0
    """Of its weights; 0 for bfloat16 of all."""
    block: int = 256
    symmetric: bool = False
    activations: bool = False
    """Whether they are rounded to 8 bits in blocks as well."""


Way = Callable[[str], Rounding | None]
"""A layer's name to how it computes; `None` for float32."""


Spread = Callable[["Layers", int, int], "torch.Tensor"]
"""Makes the weights of a layer by its width and depth."""


@dataclass
class Layers:
    """Linear layers by name, each made when it is asked for, used by all ways at once, and dropped."""

    narrower: int
    device: str
    spread: Spread
    ways: list[Way]

    def __call__(self, name: str, x: torch.Tensor, width: int) -> torch.Tensor:
        """Multiply by a layer's weights: the first axis is the way."""
        weight = self.spread(self, width, x.shape[-1])
        groups: dict[Rounding | None, list[int]] = {}
        for number, way in enumerate(self.ways):
            groups.setdefault(way(name), []).append(number)
        result = x.new_empty(*x.shape[:-1], width)
        for rounding, numbers in groups.items():
            result[numbers] = product(x[numbers], weight, rounding)
        return result

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """Round rows of a table, as each way does."""
        import torch

        roundings = [way(TABLE) for way in self.ways]
        same = (one is None or not one.bits for one in roundings)
        return torch.stack(
            [row if skip else rounded(row, how) for row, how, skip in zip(x, roundings, same, strict=True)]
        )

    def random(self, *shape: int) -> torch.Tensor:
        """Return random values."""
        import torch

        return torch.randn(*shape, device=self.device)

    def given(self, *shape: int) -> torch.Tensor:
        """Return an input, the same for each way."""
        return self.random(1, *shape).repeat(len(self.ways), 1, 1)


def normal(gain: float) -> Spread:
    """Return what makes normal weights, by how many times as large as its input a layer's output is."""
    return lambda layers, width, depth: layers.random(width, depth).mul_(gain / math.sqrt(depth))


def even(layers: Layers, width: int, depth: int) -> torch.Tensor:
    """Make weights as torch's linear layers begin with them."""
    import torch

    return torch.rand(width, depth, device=layers.device).sub_(0.5).mul_(2 / math.sqrt(depth))


def small(layers: Layers, width: int, depth: int) -> torch.Tensor:
    """Make weights as transformers begins with them, as large as at real width."""
    return layers.random(width, depth).mul_(0.02 * math.sqrt(layers.narrower))


def product(x: torch.Tensor, weight: torch.Tensor, rounding: Rounding | None) -> torch.Tensor:
    """Return what a layer makes of its input."""
    if rounding is None:
        return x @ weight.T
    if not rounding.bits:
        return (x.bfloat16() @ weight.bfloat16().T).float()
    if rounding.activations:
        x = rounded(x, Rounding(8, rounding.block, symmetric=True))
    return x @ rounded(weight, rounding).T


def kind(name: str) -> str:
    """Return a layer's name without the number of its block."""
    return name.lstrip("0123456789")


def rounded(values: torch.Tensor, how: Rounding) -> torch.Tensor:
    """Return values as blocks of whole numbers stand for them."""
    import torch

    width, most = values.shape[-1], 2**how.bits - 1
    size = min(how.block, width)
    filled = torch.nn.functional.pad(values, (0, -width % size))  # The last block of a row ends short.
    blocks = filled.reshape(-1, size)
    if how.symmetric:
        scale = blocks.abs().amax(1, keepdim=True).clamp_(min=1e-12) / (most // 2)
        numbers = (blocks / scale).round_()
    else:
        low = blocks.amin(1, keepdim=True).clamp_(max=0)
        scale = ((blocks.amax(1, keepdim=True).clamp_(min=0) - low) / most).clamp_(min=1e-12)
        zero = (-low / scale).round_()
        numbers = (blocks / scale).round_().add_(zero).clamp_(0, most).sub_(zero)
    return numbers.mul_(scale).view(filled.shape)[..., :width]


def norm(x: torch.Tensor) -> torch.Tensor:
    """Return rows of the same size."""
    import torch

    return torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)


def centred(x: torch.Tensor) -> torch.Tensor:
    """Return rows of the same size around 0."""
    import torch

    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return the inner values of a feed-forward network."""
    import torch

    return torch.nn.functional.silu(gate) * up


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, head: int, *, causal: bool = False) -> torch.Tensor:
    """Attend with normed queries and keys; several queries may share a key."""
    import torch

    heads = [one.unflatten(-1, (-1, head)).transpose(1, 2) for one in (norm_heads(q, head), norm_heads(k, head), v)]
    shared = heads[0].shape[1] // heads[1].shape[1]
    query, key, value = heads[0], *(one.repeat_interleave(shared, 1) for one in heads[1:])
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    return found.transpose(1, 2).flatten(2)


def norm_heads(x: torch.Tensor, head: int) -> torch.Tensor:
    """Norm each head."""
    return norm(x.unflatten(-1, (-1, head))).flatten(-2)


def klein(layer: Layers) -> torch.Tensor:
    """Return what FLUX.2-klein's transformer makes of random latents and text."""
    import torch

    s = layer.narrower
    width, head = 3072 // s, HEAD // s
    image = layer("pixels", layer.given(CELLS, 128), width)
    text = layer("text", layer.given(WORDS, 7680 // s), width)
    silu = torch.nn.functional.silu
    moment = silu(layer("time.2", silu(layer("time.1", layer.given(1, 256), width)), width))
    shifts = [layer(f"mod.{name}", moment, 6 * width).chunk(6, -1) for name in ("image", "text")]
    streams, words = [image, text], text.shape[1]
    for block in range(5):
        seen = [centred(x) * (1 + m[1]) + m[0] for x, m in zip(streams, shifts, strict=True)]
        joint = [
            torch.cat([layer(f"{block}double.{part}{stream}", seen[stream], width) for stream in (1, 0)], 1)
            for part in "qkv"
        ]
        found = attend(*joint, head)
        for stream, own in ((0, found[:, words:]), (1, found[:, :words])):
            m = shifts[stream]
            streams[stream] = streams[stream] + m[2] * layer(f"{block}double.o{stream}", own, width)
            inner = centred(streams[stream]) * (1 + m[4]) + m[3]
            up = layer(f"{block}double.up{stream}", inner, 6 * width)
            streams[stream] = streams[stream] + m[5] * layer(
                f"{block}double.down{stream}", gated(*up.chunk(2, -1)), width
            )
    x = torch.cat(streams[::-1], 1)
    m = layer("mod.single", moment, 3 * width).chunk(3, -1)
    for block in range(20):
        both = layer(f"{block}single.in", centred(x) * (1 + m[1]) + m[0], 9 * width)
        found = attend(*both[..., : 3 * width].chunk(3, -1), head)
        inner = torch.cat([found, gated(*both[..., 3 * width :].chunk(2, -1))], -1)
        x = x + m[2] * layer(f"{block}single.out", inner, width)
    scale, shift = layer("mod.out", moment, 2 * width).chunk(2, -1)
    return layer("out", centred(x[:, words:]) * (1 + scale) + shift, 128)


def z_image(layer: Layers) -> torch.Tensor:
    """Return what Z-Image's transformer makes of random latents and text."""
    import torch

    s = layer.narrower
    width, inner, head = 3840 // s, 10240 // s, HEAD // s
    x = layer("pixels", layer.given(CELLS, 64), width)
    text = layer("text", norm(layer.given(WORDS, 2560 // s)), width)
    silu = torch.nn.functional.silu
    moment = layer("time.2", silu(layer("time.1", layer.given(1, 256), 1024)), 256)

    def block(x: torch.Tensor, name: str, *, led: bool = True) -> torch.Tensor:
        a, b, c, d = (
            (part.tanh() for part in layer(f"{name}.mod", moment, 4 * width).chunk(4, -1)) if led else (0, 1) * 2
        )
        seen: Any = norm(x) * (1 + a)
        found = attend(*(layer(f"{name}.{part}", seen, width) for part in "qkv"), head)
        x = x + b * norm(layer(f"{name}.o", found, width))
        seen = norm(x) * (1 + c)
        between = gated(layer(f"{name}.gate", seen, inner), layer(f"{name}.up", seen, inner))
        return x + d * norm(layer(f"{name}.down", between, width))

    for number in range(2):
        x, text = block(x, f"{number}noise"), block(text, f"{number}context", led=False)
    cells = x.shape[1]
    x = torch.cat([x, text], 1)
    for number in range(30):
        x = block(x, f"{number}main")
    return layer("out", centred(x[:, :cells]) * (1 + layer("mod.out", silu(moment), width)), 64)


def qwen3(layer: Layers) -> torch.Tensor:
    """Return states behind layers 9, 18 and 27 of Qwen3-4B, of random embeddings."""
    import torch

    s = layer.narrower
    width, inner, head, states = 2560 // s, 9728 // s, HEAD // s, []
    x = layer.rows(layer.given(WORDS, width) * 0.02)
    for number in range(27):
        seen, name = norm(x), f"{number}layer"
        q, k, v = (layer(f"{name}.{part}", seen, size // s) for part, size in (("q", 4096), ("k", 1024), ("v", 1024)))
        x = x + layer(f"{name}.o", attend(q, k, v, head, causal=True), width)
        seen = norm(x)
        between = gated(layer(f"{name}.gate", seen, inner), layer(f"{name}.up", seen, inner))
        x = x + layer(f"{name}.down", between, width)
        if number % 9 == 8:
            states.append(x)
    return torch.cat(states, -1)


Network = Callable[[Layers], "torch.Tensor"]
NETWORKS: Final = {"klein": klein, "z_image": z_image, "qwen3": qwen3}


def measure(network: Network, ways: list[Way], spread: Spread, narrower: int, device: str = "cpu") -> list[float]:
    """Return how far each way is from float32."""
    import torch

    torch.manual_seed(0)
    exact, *found = network(Layers(narrower, device, spread, [lambda _: None, *ways]))
    return [float((one - exact).norm() / exact.norm()) for one in found]


def main() -> None:
    """Measure and print."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--narrower", type=int, default=8, help="part of the real width: 1 for all, by default 8")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kinds", action="store_true", help="and each kind of layer alone in 8 bits")
    options = parser.parse_args()
    network, policy = NETWORKS[options.network], POLICIES[options.network]
    fine, w8, w4 = Rounding(12, 256), Rounding(8, 256), Rounding(4, 64)
    int8 = Rounding(8, 256, activations=True)
    table = Rounding(8, 256, symmetric=True)
    rows = Rounding(8, _WHOLE, symmetric=True, activations=True)

    def way(most: Rounding, finer: Rounding, *, exact: Rounding | None = None, first: bool = True) -> Way:
        """Return how layers compute by a policy, most of them as `most` says."""

        def choose(name: str) -> Rounding:
            if name == TABLE:
                return fine if first and finer is fine else table
            if first and policy.fine(name, most.bits):
                return finer
            return exact if exact and policy.exact(name, rows=most is rows) else most

        return choose

    ways: dict[str, Way] = {
        "bfloat16": lambda _: Rounding(), "w8, nothing finer": way(w8, w8, first=False), "w8": way(w8, fine),
        "w8, int8_compute everywhere": way(int8, fine), "w8, int8_compute": way(int8, fine, exact=w8),
        "w8, int8_rows": way(rows, fine, exact=Rounding(8, _WHOLE, symmetric=True)),
        "w4, nothing finer": way(w4, w4, first=False), "w4": way(w4, Rounding(8, 64)),
    }  # fmt: skip
    with torch.inference_mode():
        if options.kinds:
            for one in sorted({kind(name) for name in names(network)}):
                ways[f"{one} alone"] = lambda name, one=one: w8 if kind(name) == one else None
        errors = [
            measure(network, list(ways.values()), spread, options.narrower, options.device)
            for spread in (normal(1 / math.sqrt(3)), normal(1), small if network is qwen3 else even)
        ]
    print("| way | normal, as torch begins | √3 times as much | of `large_folders.py` |\n| --- | --- | --- | --- |")
    for name, *each in zip(ways, *errors, strict=True):
        print(f"| {name} | {' | '.join(f'{one:.2%}' for one in each)} |")


def names(network: Network) -> set[str]:
    """Return the names of a network's layers."""
    found = {TABLE}

    def note(name: str) -> None:
        found.add(name)

    network(Layers(128, "cpu", normal(1), [note]))
    return found


if __name__ == "__main__":
    main()
