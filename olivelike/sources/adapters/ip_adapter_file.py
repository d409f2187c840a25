"""IP-Adapters (https://arxiv.org/abs/2308.06721) as files: which form they are of, and what they are for.

A file has two parts: `image_proj.*`, which makes tokens of what an image encoder gives, and keys and values for the
UNet's cross-attentions, `ip_adapter.N.to_k_ip.weight` and `to_v_ip`, N = 1, 3, 5, … in the order of diffusers'
modules. What it is, tensors tell, never the file's name; forms are those of https://github.com/tencent-ailab/IP-Adapter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from olivelike._untrusted import Json
from olivelike.errors import SourceError
from olivelike.families import FAMILIES, family_of_text_width
from olivelike.model.architecture import Config
from olivelike.model.guides import IMAGE_PROJECTION
from olivelike.sources.files.weight_header import RawTensor, check_dtype
from olivelike.sources.files.weight_table import ReadPickle, read_weight_table
from olivelike.sources.identify.identify import identify

_LAYER: Final = re.compile(r"ip_adapter\.(\d+)\.to_([kv])_ip\.weight")
_KEYS: Final = ".attn2.to_k.weight"
_TOKENS: Final = 4
"""Tokens of a classic adapter, as diffusers takes for granted."""
_HEAD: Final = 64
"""Width of a resampler's heads, likewise."""

ProjectionClass = Literal["ImageProjection", "IPAdapterPlusImageProjection", "IPAdapterFullImageProjection"]


@dataclass(frozen=True)
class IpAdapterFile:
    """An IP-Adapter, as far as its header says."""

    path: Path
    tensors: Mapping[str, RawTensor]
    """Tensors of the projection, by their names in the file."""
    layers: tuple[Mapping[str, RawTensor], ...]
    """For each cross-attention its weights of keys, `k`, and values, `v`."""
    projection: Config
    """Class of diffusers and its arguments, as `class_name` and `arguments`."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The header's own metadata."""

    @property
    def class_name(self) -> ProjectionClass:
        """The projection's class in diffusers."""
        found: ProjectionClass = self.projection["class_name"]
        return found

    @property
    def width(self) -> int:
        """Width of the tokens: that of the text that the UNet attends to."""
        return self.layers[0]["k"].shape[1]

    @property
    def encoder_width(self) -> int:
        """Width of what it takes from the image encoder: embeddings, or hidden states."""
        arguments = self.projection["arguments"]
        return int(arguments.get("image_embed_dim") or arguments["embed_dims"])

    @property
    def pooled(self) -> bool:
        """Whether it takes one embedding for the whole picture, rather than hidden states of the last layer but one."""
        return self.class_name == "ImageProjection"

    def check_family(self, needed: Any, where: str) -> None:
        """Refuse the adapter for a UNet that attends to text of another width. Raises `SourceError` naming both."""
        if isinstance(needed, int) and needed != self.width:
            raise SourceError(
                f"{self.path}: this IP-Adapter is for {_title(self.width)}: its tokens have width {self.width}, and "
                f"the UNet of {where} is {_title(needed)}, with text of width {needed}; take an IP-Adapter for that"
            )

    def layers_for(self, names: Iterable[str]) -> tuple[Mapping[str, RawTensor], ...]:
        """Return the layers for a UNet whose tensors have these names, in any spelling.

        Raises `SourceError` if it has another number of cross-attentions.
        """
        count = sum(name.endswith(_KEYS) for name in names)
        if count != len(self.layers):
            raise SourceError(
                f"{self.path}: this IP-Adapter is for a UNet of {len(self.layers)} cross-attentions, and the "
                f"pipeline's has {count}; take one that was made for this family of checkpoints"
            )
        return self.layers


def read_ip_adapter(path: Path, read_pickle: ReadPickle | None) -> IpAdapterFile:
    """Read the table of an IP-Adapter.

    Raises `SourceError` if the file is missing or damaged, or something else.

    Args:
        path: a `.safetensors` file, or a `.bin`.
        read_pickle: reads the table of a pickled file; `None` refuses such files.
    """
    header = read_weight_table(path, read_pickle)
    identity = identify(header.tensors, header.metadata)
    if identity.kind != "ip_adapter" or not identity.supported:
        raise SourceError(f"{path}: {identity.misplaced}`ip_adapter:` takes an IP-Adapter")
    own = {name: tensor for name, tensor in header.tensors.items() if name.startswith(IMAGE_PROJECTION)}
    numbered: dict[int, dict[str, RawTensor]] = {}
    for name, tensor in header.tensors.items():
        if match := _LAYER.fullmatch(name):
            numbered.setdefault(int(match[1]), {})[match[2]] = tensor
            check_dtype(path, name, tensor)
    for name, tensor in own.items():
        check_dtype(path, name, tensor)
    layers = tuple(layer for _, layer in sorted(numbered.items()))
    shapes = {tensor.shape for layer in layers for tensor in layer.values()}
    widths = {shape[-1] if len(shape) == 2 else 0 for shape in shapes}
    whole = all(len(layer) == 2 and layer["k"].shape == layer["v"].shape for layer in layers)
    if not layers or not whole or len(widths) != 1 or 0 in widths:
        raise SourceError(
            f"{path}: its keys and values (ip_adapter.N.to_k_ip.weight and to_v_ip) are no matrices of one width, in "
            "pairs; the file is damaged or incomplete: get it again"
        )
    try:
        projection = _checked({name.removeprefix(IMAGE_PROJECTION): tensor.shape for name, tensor in own.items()})
    except (LookupError, ValueError) as error:
        raise SourceError(
            f"{path}: its projection (image_proj.*) is of no form that is known: {error}; known are those of "
            "ip-adapter, -light, -plus, -plus-face and -full-face: get the file again"
        ) from error
    found = IpAdapterFile(path, own, layers, projection, header.metadata)
    if (made := _made_width(projection)) != found.width:
        raise SourceError(
            f"{path}: its projection makes tokens of width {made}, and its keys and values take {found.width}; the "
            "file is damaged: get it again"
        )
    return found


def _checked(shapes: Mapping[str, tuple[int, ...]]) -> Json:
    """Return a projection's class and arguments. Raises `LookupError` or `ValueError` if they can't be read off."""
    found = _projection(shapes)
    if absent := [name for name, value in found["arguments"].items() if value < 1]:
        raise ValueError(f"its {absent[0]} would be 0")
    return found


def _projection(shapes: Mapping[str, tuple[int, ...]]) -> Json:
    """Return class and arguments of a projection, as diffusers' `load_ip_adapter` reads them off."""

    def matrix(name: str) -> tuple[int, int]:
        rows, columns = shapes[name]
        return rows, columns

    if "proj.weight" in shapes:
        rows, columns = matrix("proj.weight")
        if rows % _TOKENS:
            raise ValueError(f"proj.weight has {rows} rows, which are no {_TOKENS} tokens")
        arguments = {
            "image_embed_dim": columns, "cross_attention_dim": rows // _TOKENS, "num_image_text_embeds": _TOKENS,
        }  # fmt: skip
        return {"class_name": "ImageProjection", "arguments": arguments}
    if "proj.3.weight" in shapes:
        arguments = {
            "image_embed_dim": matrix("proj.0.weight")[1], "cross_attention_dim": matrix("proj.2.weight")[0],
        }  # fmt: skip
        return {"class_name": "IPAdapterFullImageProjection", "arguments": arguments}
    _, queries, hidden = shapes["latents"]
    queried = [shape for name, shape in shapes.items() if re.fullmatch(r"layers\.0\.(0|attn)\.to_q\.weight", name)]
    if len(queried) != 1 or len(queried[0]) != 2:
        raise KeyError("layers.0.0.to_q.weight")
    arguments = {
        "embed_dims": matrix("proj_in.weight")[1], "output_dims": matrix("proj_out.weight")[0], "hidden_dims": hidden,
        "depth": len({name.split(".")[1] for name in shapes if name.startswith("layers.")}),
        "heads": queried[0][0] // _HEAD, "num_queries": queries,
    }  # fmt: skip
    return {"class_name": "IPAdapterPlusImageProjection", "arguments": arguments}


def _made_width(projection: Config) -> int:
    arguments = projection["arguments"]
    return int(arguments.get("cross_attention_dim") or arguments["output_dims"])


def _title(width: int) -> str:
    family = family_of_text_width(width)
    return FAMILIES[family].title if family else "another network"
