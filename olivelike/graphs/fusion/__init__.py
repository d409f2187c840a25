"""Fusion: rules that rewrite a weightless graph into the operators that a target runs."""

from typing import TYPE_CHECKING

from olivelike._lazy import names_from

if TYPE_CHECKING:
    from olivelike.graphs.fusion.rules import fuse

__all__ = ["fuse"]

__getattr__ = names_from(__name__, __file__)
