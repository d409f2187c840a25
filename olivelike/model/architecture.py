"""The architecture facet: which network a component is, without its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from olivelike.digest import canonical_json, digest_bytes

Config = Mapping[str, Any]
"""A network's settings in a library's JSON, such as `config.json`; the library knows the keys."""


@dataclass(frozen=True)
class Architecture:
    """A component's class and normalised config: all that `convert` needs to know.

    The config is what the library's own class makes of `config.json`: defaults filled in, stray keys,
    paths and versions left out, so two spellings of one network have one digest.
    """

    component: str
    """Name within the pipeline, such as `unet`; `vae_encoder` and `vae_decoder` share a class."""
    library: str
    """`diffusers` or `transformers`: the package that the class comes from."""
    class_name: str
    config: Config

    def to_bytes(self) -> bytes:
        """Serialise as canonical JSON."""
        return canonical_json(["architecture/1", self.component, self.library, self.class_name, self.config])

    @classmethod
    def from_bytes(cls, data: bytes) -> Architecture:
        """Read what `to_bytes` wrote."""
        kind, component, library, class_name, config = json.loads(data)
        if kind != "architecture/1":
            raise ValueError(f"expected architecture/1, found {kind!r}")
        return cls(component, library, class_name, config)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the serialised form."""
        return digest_bytes(self.to_bytes())
