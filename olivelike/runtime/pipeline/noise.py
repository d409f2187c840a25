"""Noise of a seed: the numbers that `torch.randn` draws on the CPU, and torchsde's Brownian motion, by NumPy.

torch's generator is MT19937 (Matsumoto and Nishimura, 1998), seeded with the lower 32 bits. From 16 numbers on, all are
drawn as uniform ones of 24 bits, and each 16 go through Box and Muller's transform: the first 8 make radii, the others
angles. Where the count is no multiple of 16, the last 16 are drawn anew. Fewer than 16 are drawn one after the other
in float64, the second of each pair kept for the next call (`normal_fill` and `normal_distribution` of ATen).

On x86 with AVX2, torch takes logarithm, sine and cosine by Cephes' polynomials in float32, with multiplications and
additions rounded once. So does this module on any processor, and its numbers are the same to the last bit. The page's
`noise.js` is the same algorithm with the functions of its language, at most 1e-6 away.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]

_BLOCK: Final = 16
_BITS: Final = 24
_DOUBLE_BITS: Final = 53
_AT_ONCE: Final = 1 << 15
"""Numbers that are made together, so that what lies between takes little memory."""
_DIGITS: Final = 6
"""Decimals that times of a path are rounded to."""
_POOL: Final = 24
"""Words of entropy that torchsde asks of NumPy's `SeedSequence`."""


class Noise:
    """Standard normal numbers of a seed, drawn one call after the other."""

    def __init__(self, seed: int) -> None:
        self._twister = np.random.RandomState(seed & 0xFFFFFFFF)
        self._kept: list[float] = []

    def draw(self, shape: tuple[int, ...]) -> Floats:
        """Draw numbers of a shape."""
        count = math.prod(shape)
        if count < _BLOCK:
            return np.array([self._single() for _ in range(count)], np.float32).reshape(shape)
        drawn = self._uniform(count)
        whole = drawn[: count - count % _BLOCK]
        for start in range(0, len(whole), _AT_ONCE):
            _transform(whole[start : start + _AT_ONCE])
        if count % _BLOCK:
            drawn[-_BLOCK:] = self._uniform(_BLOCK)
            _transform(drawn[-_BLOCK:])
        return drawn.reshape(shape)

    def _uniform(self, count: int) -> Floats:
        drawn = self._words(count) & np.uint32((1 << _BITS) - 1)
        return drawn.astype(np.float32) * np.float32(2.0**-_BITS)

    def _single(self) -> float:
        if self._kept:
            return self._kept.pop()
        high, low = self._words(4).astype(np.uint64).reshape(2, 2).T
        turn, share = ((high << np.uint64(32) | low) & np.uint64((1 << _DOUBLE_BITS) - 1)) * 2.0**-_DOUBLE_BITS
        radius, angle = math.sqrt(-2 * math.log1p(-share)), 2 * math.pi * turn
        self._kept.append(radius * math.sin(angle))
        return radius * math.cos(angle)

    def _words(self, count: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
        return self._twister.randint(0, 1 << 32, count, np.uint32)


class BrownianPath:
    """A path of a Brownian motion with a seed: torchsde's `BrownianInterval` over a dyadic tree.

    The way over an interval is halved again and again, and what the first half has of it drawn from a seed of its own,
    until the times that are asked for are ends of intervals.
    """

    def __init__(self, seed: int, start: float, end: float, shape: tuple[int, ...]) -> None:
        """Begin a path of numbers of a shape between two times."""
        self._seed, self._shape = seed, shape
        self._span = round(start, _DIGITS), round(end, _DIGITS)
        self._way = self._draw() * np.float32(math.sqrt(end - start))
        self._halves: dict[tuple[int, int], Floats] = {}

    def between(self, start: float, end: float) -> Floats:
        """Return the way from one time to a later one; times beyond the path's ends are taken for these."""
        first, last = (round(min(max(time, self._span[0]), self._span[1]), _DIGITS) for time in (start, end))
        if first == last:
            return np.zeros(self._shape, np.float32)
        # Times asked for one after the other share an end, and the intervals around it.
        before, self._halves = self._halves, {}
        ways = self._cover(*self._span, self._way, (0, 0), (first, last), before)
        total = next(ways)
        for way in ways:
            total = total + way
        return total

    def _cover(
        self, start: float, end: float, way: Floats, place: tuple[int, int], asked: tuple[float, float],
        before: dict[tuple[int, int], Floats],
    ) -> Iterator[Floats]:  # fmt: skip
        """Return the ways over the largest intervals that make up the one that is asked for.

        Args:
            start: begin of the interval that is looked at.
            end: its end.
            way: the way over it.
            place: its number among those of its size, and how often the path was halved for it.
            asked: times that lie in it.
            before: halves that are known.
        """
        if asked == (start, end):
            yield way
            return
        middle = round(0.5 * (end + start), _DIGITS)
        half = before.get(place)
        if half is None:
            first, last, share = middle - start, end - middle, 1 / (end - start)
            half = first * way * share + math.sqrt(first * last * share) * self._draw(place)
        self._halves[place] = half
        number, depth = 2 * place[0], place[1] + 1
        if asked[0] < middle:
            yield from self._cover(start, middle, half, (number, depth), (asked[0], min(asked[1], middle)), before)
        if asked[1] > middle:
            rest = max(asked[0], middle), asked[1]
            yield from self._cover(middle, end, way - half, (number + 1, depth), rest, before)

    def _draw(self, place: tuple[int, ...] = ()) -> Floats:
        sequence = np.random.SeedSequence(self._seed, spawn_key=place, pool_size=_POOL)
        return Noise(int(sequence.generate_state(1)[0])).draw(self._shape)


def _transform(drawn: Floats) -> None:
    """Make standard normal numbers of uniform ones, in their place."""
    blocks = drawn.reshape(-1, 2, _BLOCK // 2)
    radius = np.sqrt(np.float32(-2) * _logarithm(np.float32(1) - blocks[:, 0]))
    sine, cosine = _sine_and_cosine(np.float32(2 * math.pi) * blocks[:, 1])
    np.multiply(radius, cosine, out=blocks[:, 0])
    np.multiply(radius, sine, out=blocks[:, 1])


_ROOT_OF_HALF: Final = np.float32(math.sqrt(0.5))
_LOGARITHM: Final = np.array(
    [
        7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
        2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
    ],
    np.float32,
)  # fmt: skip
_OF_TWO: Final = np.array([-2.12194440e-4, 0.693359375], np.float32)
"""The logarithm of 2, the lesser part first."""
_QUARTERS: Final = np.array([-0.78515625, -2.4187564849853515625e-4, -3.77489497744594108e-8], np.float32)
"""A quarter of pi below zero, in parts."""
_SINE: Final = np.array([-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1], np.float32)
_COSINE: Final = np.array([2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2], np.float32)


def _logarithm(values: Floats) -> Floats:
    """Return natural logarithms of numbers above 0 and up to 1."""
    share, exponent = np.frexp(values)
    is_small = share < _ROOT_OF_HALF
    power = (exponent - is_small).astype(np.float32)
    rest = share - np.float32(1) + np.where(is_small, share, np.float32(0))
    square = rest * rest
    series = _polynomial(_LOGARITHM, rest) * rest
    series = _fused(series, square, power * _OF_TWO[0])
    series = _fused(square, np.float32(-0.5), series)
    return _fused(power, _OF_TWO[1], rest + series)


def _sine_and_cosine(angles: Floats) -> tuple[Floats, Floats]:
    """Return sines and cosines of angles from 0 to two pi."""
    eighths = (angles * np.float32(4 / math.pi)).astype(np.int32) + 1 & ~1
    rest, turned = angles, eighths.astype(np.float32)
    for part in _QUARTERS:
        rest = _fused(turned, part, rest)
    square = rest * rest
    cosine = _polynomial(_COSINE, square) * square
    cosine = _fused(cosine, square, square * np.float32(-0.5)) + np.float32(1)
    sine = _fused(_polynomial(_SINE, square) * square, rest, rest)
    is_turned = (eighths & 2) != 0
    across, along = np.where(is_turned, cosine, sine), np.where(is_turned, sine, cosine)
    np.negative(across, out=across, where=(eighths & 4) != 0)
    np.negative(along, out=along, where=(eighths + 2 & 4) != 0)
    return across, along


def _polynomial(factors: Floats, values: Floats) -> Floats:
    """Return the values of a polynomial, by Horner's rule; factors of high powers are first."""
    wide = values.astype(np.float64)
    found = np.full_like(values, factors[0])
    for factor in factors[1:]:
        found = (wide * found + factor).astype(np.float32)
    return found


def _fused(one: Floats, other: Floats | np.float32, added: Floats) -> Floats:
    """Return products with something added, rounded once; float64 holds a product of float32."""
    return (one.astype(np.float64) * other + added).astype(np.float32)
