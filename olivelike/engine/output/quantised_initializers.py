"""Initializers of an output, where numbers, scales and zero points are the one weight that they stand for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from olivelike.engine.output.derivation import shape_of
from olivelike.errors import SourceError
from olivelike.model.graph import QUANTISE_DOMAIN
from olivelike.model.quantised_values import BlockFormat, QuantisedFormat, quantised_format

if TYPE_CHECKING:
    from olivelike.engine.output.derivation import Expression
    from olivelike.engine.output.initializers import Array, Initializers

_BYTE = 8


class QuantisedInitializers:
    """A component's initializers, read one weight at a time: a quantised one goes by the name of its numbers."""

    def __init__(self, file: Initializers, derivations: Mapping[str, Expression]) -> None:
        """Take the initializers of a model file, and how each was derived."""
        self.file = file
        groups: dict[str, dict[int, str]] = {}
        for name, expression in derivations.items():
            if expression.get("domain") == QUANTISE_DOMAIN:
                same = json.dumps({**expression, "output": 0}, sort_keys=True)
                groups.setdefault(same, {})[expression.get("output", 0)] = name
        self._parts = {found[0]: [found[index] for index in sorted(found)] for found in groups.values()}
        self._expressions = {name: derivations[name] for name in self._parts}
        further = {name for names in self._parts.values() for name in names[1:]}
        self.derivations = {
            name: expression["inputs"][0] if name in self._parts else expression
            for name, expression in derivations.items()
            if name not in further
        }
        """Expression of each weight, before it was quantised."""

    def read(self, name: str) -> Array:
        """Return a weight's values; of a quantised one in float32."""
        if name not in self._parts:
            return self.file.read(name)
        numbers = [self.file.read(part) for part in self._parts[name]]
        return self._format(name).dequantise(numbers, shape_of(self.derivations[name]))

    def parts(self, name: str, array: Array) -> Iterator[tuple[str, Array]]:
        """Yield the initializers that hold a weight's new values, and theirs, in row order; quantised as it was."""
        if name not in self._parts:
            yield name, array
            return
        from olivelike.model.half_values import in_row_order

        form = self._format(name)
        if isinstance(form, BlockFormat) and not form.packed and form.bits < _BYTE:
            raise SourceError(
                f"initializer {name!r} is in {form.bits} bits behind DequantizeLinear, and a session takes no other "
                "values for such a one; merge the LoRA in a run"
            )
        numbers, scales, *zeros = form.quantise(array)
        dtype = self.file.dtype(self._parts[name][1])
        # Of a block along another axis than the last they are views, which no session takes.
        made = map(in_row_order, (numbers, scales.astype(dtype), *zeros))
        yield from zip(self._parts[name], made, strict=True)

    def _format(self, name: str) -> QuantisedFormat:
        return quantised_format(self._expressions[name])
