"""How far klein's and Z-Image's transformers and Qwen3 are from float32 in w8 and w4, and what each kind of layer adds.

    python benchmarks/large_errors.py klein              # or z_image, qwen3; an eighth of the width, minutes on a CPU
    python benchmarks/large_errors.py klein --narrower 1 --device cuda     # real size: 16 to 25 GB

Networks of their depth and form, without rotary embeddings, with random weights: as torch's linear layers begin, and
√3 times as large, so that a layer keeps the size of what it reads. Depth decides the errors, width hardly.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

HEAD: Final = 128
FINE: Final = {
    "klein": {"time.1", "time.2", "mod.image", "mod.text", "mod.single", "mod.out", "pixels", "out"},
    "z_image": {"time.1", "time.2", "main.mod", "noise.mod", "mod.out", "pixels", "out"},
    "qwen3": {"layer.v"},
}
"""Kinds of layers in `fine_blocks` of `weights8`; those of `weights4` have Qwen3's `layer.o`, too."""


@dataclass(frozen=True)
class Rounding:
    """How a layer computes."""

    bits: int = 0
    """Of its weights; 0 for bfloat16 of all."""
    block: int = 256
    symmetric: bool = False
    activations: bool = False
    """Whether they are rounded to 8 bits in blocks as well."""


@dataclass
class Layers:
    """Linear layers by name, made as they are first asked for; a name without its number is a layer's kind."""

    narrower: int
    device: str
    gain: float
    choose: Callable[[str], Rounding | None] = lambda _: None
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)

    def __call__(self, name: str, x: torch.Tensor, width: int) -> torch.Tensor:
        """Multiply by a layer's weights, as `choose` says."""
        if name not in self.weights:
            self.weights[name] = self.random(width, x.shape[-1]) * (self.gain / math.sqrt(x.shape[-1]))
        weight, rounding = self.weights[name], self.choose(kind(name))
        if rounding is None:
            return x @ weight.T
        if not rounding.bits:
            return (x.bfloat16() @ weight.bfloat16().T).float()
        if rounding.activations:
            x = rounded(x, Rounding(8, rounding.block, symmetric=True))
        return x @ rounded(weight, rounding).T

    def random(self, *shape: int) -> torch.Tensor:
        """Return random values."""
        import torch

        return torch.randn(*shape, device=self.device)

    def given(self, name: str, *shape: int) -> torch.Tensor:
        """Return an input, the same each time."""
        if name not in self.inputs:
            self.inputs[name] = self.random(*shape)
        return self.inputs[name]


def kind(name: str) -> str:
    """Return a layer's name without the number of its block."""
    return name.lstrip("0123456789")


def rounded(values: torch.Tensor, how: Rounding) -> torch.Tensor:
    """Return values as blocks of whole numbers stand for them."""
    blocks, most = values.reshape(-1, math.gcd(how.block, values.shape[-1])), 2**how.bits - 1
    if how.symmetric:
        scale = blocks.abs().amax(1, keepdim=True).clamp_(min=1e-12) / (most // 2)
        return ((blocks / scale).round_() * scale).view(values.shape)
    low = blocks.amin(1, keepdim=True).clamp_(max=0)
    scale = ((blocks.amax(1, keepdim=True).clamp_(min=0) - low) / most).clamp_(min=1e-12)
    zero = (-low / scale).round_()
    return (((blocks / scale).round_() + zero).clamp_(0, most).sub_(zero) * scale).view(values.shape)


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
    image = layer("pixels", layer.given("image", 1, 1024 // s, 128), width)
    text = layer("text", layer.given("text", 1, 512 // s, 7680 // s), width)
    silu = torch.nn.functional.silu
    moment = silu(layer("time.2", silu(layer("time.1", layer.given("time", 1, 256), width)), width))
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
    x = layer("pixels", layer.given("image", 1, 1024 // s, 64), width)
    text = layer("text", norm(layer.given("text", 1, 64, 2560 // s)), width)
    silu = torch.nn.functional.silu
    moment = layer("time.2", silu(layer("time.1", layer.given("time", 1, 256), 1024)), 256)

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
    x = layer.given("rows", 1, 512 // s, width) * 0.02
    rounding = layer.choose("table")
    if rounding is not None and rounding.bits:
        x = rounded(x, Rounding(8, 256, symmetric=True))
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


NETWORKS: Final = {"klein": klein, "z_image": z_image, "qwen3": qwen3}


def main() -> None:
    """Measure and print."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--narrower", type=int, default=8, help="part of the real width: 1 for all, by default 8")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kinds", action="store_true", help="and each kind of layer alone in 8 bits")
    options = parser.parse_args()
    network = NETWORKS[options.network]
    fine = FINE[options.network]
    finer = fine | ({"layer.o"} if options.network == "qwen3" else set())
    w8, w4 = Rounding(8, 256), Rounding(4, 64)
    fine8, fine4 = Rounding(12, 1 << 20, symmetric=True), Rounding(8, 64)
    int8 = Rounding(8, 256, activations=True)
    ways: dict[str, Callable[[str], Rounding | None]] = {
        "bfloat16": lambda _: Rounding(), "w8, nothing finer": lambda _: w8,
        "w8": lambda name: fine8 if name in fine else w8,
        "w8, int8_compute": lambda name: fine8 if name in fine else int8,
        "w4, nothing finer": lambda _: w4, "w4": lambda name: fine4 if name in finer else w4,
    }  # fmt: skip
    print("| way | weights as torch begins | √3 times as much |\n| --- | --- | --- |", flush=True)
    torch.manual_seed(0)
    with torch.inference_mode():
        both = [Layers(options.narrower, options.device, gain) for gain in (1 / math.sqrt(3), 1.0)]
        exact = [network(layers) for layers in both]
        if options.kinds:
            kinds = sorted({kind(name) for name in both[0].weights} | ({"table"} if network is qwen3 else set()))
            ways |= {f"{one} alone": lambda name, one=one: w8 if name == one else None for one in kinds}
        for way, choose in ways.items():
            errors = []
            for layers, wanted in zip(both, exact, strict=True):
                layers.choose = choose
                errors.append(float((network(layers) - wanted).norm() / wanted.norm()))
            print(f"| {way} | {errors[0]:.2%} | {errors[1]:.2%} |", flush=True)


if __name__ == "__main__":
    main()
