"""Guides: what leads a UNet beside the text. Each kind is a row of `GUIDES`; who needs a fact of one asks it.

A new kind is a row here, its network's interface and forward, and its pass; the row "a new kind of guide" of
`docs/architecture.md` says what else some kinds need.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final, Literal

MIDDLE: Final = -1
"""In place of a connection's number: behind the middle of a UNet."""
GuideName = Literal["controlnet", "t2i_adapter", "ip_adapter"]
_MOST: Final = 8
"""Networks of a kind that a pipeline has, at most, where it can have several."""


@dataclass(frozen=True, eq=False)
class GuideKind:
    """A kind of guides: what people call it, and where it enters a UNet."""

    name: GuideName
    """Its name in files: of the UNet's graph that it leads, `controlnet.onnx`, and of what a file is told to be."""
    title: str
    """Its name among people."""
    key: str
    """Its section in a workflow, and its key in the record of a source."""
    components: tuple[str, ...]
    """Its networks, by the names of their folders, as many as a pipeline has."""
    network: tuple[str, str]
    """Library and class of its network."""
    step: str
    """Pass that has a UNet take what it gives."""
    picture: str
    """Input of its network: the picture."""
    enters: Literal["up", "down", "attention"]
    """Place in a UNet: what its way up gets of the way down, what goes down as well, or the attention to the text."""
    gives: str = ""
    """Input of a UNet that takes a residual of it, and output of its network, with `{}` for the number."""
    gives_middle: str = ""
    """Input for the middle, if that has a name of its own."""
    behind: str | None = None
    """Pass that its own comes behind; `None` for the last place of a chain."""
    clients: tuple[str, ...] = ("diffusers",)
    """Layouts whose clients feed its network, and a UNet with what that gives."""
    in_each_step: bool = False
    """Whether its network runs in each step, rather than once; it then takes `sample`, `timestep` and
    `encoder_hidden_states` as a UNet does."""
    is_prompt: bool = False
    """Whether its pictures are a prompt; others are control pictures, and name the network that they lead by."""
    is_file: bool = False
    """Whether it is a file of weights for the UNet, and its network is named beside it, under the component's name."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Classes of such names that are not supported, and why."""
    folders: tuple[str, ...] = ()
    """Folders of its network in that of a pipeline, where it may lie too."""
    says: str = "either `hub` or `path`"
    """Remark on its section in a workflow."""

    @property
    def is_list(self) -> bool:
        """Whether a pipeline has several, and its section is a list."""
        return len(self.components) > 1

    @property
    def section(self) -> str:
        """Its name among classes: `T2iAdapter`."""
        words = self.title.split("-")
        return "".join(word.capitalize() for word in words) if len(words) > 1 else self.title

    @property
    def network_title(self) -> str:
        """Name of its network among people: `image encoder`."""
        return self.components[0].replace("_", " ") if self.is_file else self.title

    @property
    def option(self) -> str:
        """Option of `convert` and `verify` that names one."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def one(self) -> str:
        """A single one, in a sentence."""
        return f"{'an' if self.title[0] in 'AEIO' else 'a'} {self.title}"

    @property
    def some(self) -> str:
        """As many as a pipeline has, in a sentence."""
        return f"{self.title}s" if self.is_list else self.one

    @property
    def place(self) -> str:
        """Advice on where to name a file of that kind."""
        return f"name it {'under' if self.is_list else 'as'} `{self.key}:`"

    def input(self, number: int, connection: int) -> str:
        """Return the UNet's input for a residual, counted from 0, that goes to a connection or to `MIDDLE`."""
        return self.gives_middle if connection == MIDDLE and self.gives_middle else self.gives.format(number)

    def is_given(self, name: str) -> bool:
        """Tell whether an input of a UNet is a residual of this kind."""
        before, _, behind = self.gives.partition("{}")
        return bool(name) and (name == self.gives_middle or (name.startswith(before) and name.endswith(behind)))


def _several(name: str) -> tuple[str, ...]:
    return (name, *(f"{name}_{number}" for number in range(2, _MOST + 1)))


IMAGE_ENCODER: Final = "image_encoder"
"""CLIP's vision tower with an IP-Adapter's projection: makes tokens of a picture, which the UNet attends to."""
IMAGE_PROJECTION: Final = "image_proj."
"""Beginning of the names of tensors in an IP-Adapter's file that make tokens of what an image encoder gives."""
IMAGE_TOKENS: Final = "ip_hidden_states"
"""Output of an image encoder and input of the UNet: tokens of a picture, as diffusers' attention calls them."""
NO_IMAGE_TOKENS: Final = "negative_ip_hidden_states"
"""Another output of those whose tokens of no picture are not those of a black one."""
IMAGE_STRENGTH: Final = "ip_adapter_scale"
"""Input of the UNet: what is multiplied with the attention to these tokens, float32 in every precision."""
STRENGTH: Final = "conditioning_scale"
"""Input of a ControlNet: what its outputs are multiplied by, float32 in every precision."""

CONTROLNET: Final = GuideKind(
    "controlnet", "ControlNet", "controlnets", _several("controlnet"), ("diffusers", "ControlNetModel"),
    step="controlnet_inputs", picture="controlnet_cond", enters="up",
    gives="down_block_{}_additional_residual", gives_middle="mid_block_additional_residual",
    clients=("diffusers", "onnxstack"), in_each_step=True, folders=("controlnet",),
    refused={
        "ControlNetUnionModel": "it takes several pictures and the kind of each",
        "ControlNetXSAdapter": "it changes the UNet's own layers",
        "SparseControlNetModel": "it makes videos",
        "SD3ControlNetModel": "it is for Stable Diffusion 3",
        "FluxControlNetModel": "it is for FLUX",
        "MultiControlNetModel": "it is several networks; name each of them under `controlnets:`",
    },
)  # fmt: skip
"""https://arxiv.org/abs/2302.05543: its picture is RGB from 0 to 1; names are those of diffusers and OnnxStack."""
T2I_ADAPTER: Final = GuideKind(
    "t2i_adapter", "T2I-Adapter", "t2i_adapters", _several("t2i_adapter"), ("diffusers", "T2IAdapter"),
    step="t2i_adapter_inputs", picture="adapter_input", enters="down", gives="down_intrablock_{}_additional_residual",
    folders=("t2i_adapter", "adapter"),
)  # fmt: skip
"""https://arxiv.org/abs/2302.08453: its picture is RGB or grey from 0 to 1; what it gives are the members of
`down_intrablock_additional_residuals` of diffusers' `UNet2DConditionModel`."""
IP_ADAPTER: Final = GuideKind(
    "ip_adapter", "IP-Adapter", "ip_adapter", (IMAGE_ENCODER,), ("transformers", "CLIPVisionModelWithProjection"),
    step="ip_adapter", picture="pixel_values", enters="attention", behind="convert", is_prompt=True, is_file=True,
    says="the UNet attends to a picture too",
)  # fmt: skip
"""https://arxiv.org/abs/2308.06721: its network is an image encoder."""

GUIDES: Final[Mapping[str, GuideKind]] = {kind.name: kind for kind in (CONTROLNET, T2I_ADAPTER, IP_ADAPTER)}
"""All kinds by name, in the order of the names of files."""
CONTROL_KINDS: Final = tuple(kind for kind in GUIDES.values() if not kind.is_prompt)
"""Kinds whose networks control pictures name."""
GUIDE_COMPONENTS: Final = tuple(component for kind in GUIDES.values() for component in kind.components)
"""Networks of all kinds."""
_KINDS: Final = {component: kind for kind in GUIDES.values() for component in kind.components}


def guide_kind(component: str) -> GuideKind | None:
    """Return the kind that a network is of; `None` if it is no guide."""
    return _KINDS.get(component)


def first_of_kind(component: str) -> str:
    """Return the component whose graphs another one shares if they have the same form; most have their own."""
    return _KINDS[component].components[0] if component in _KINDS else component


def guided_file(names: Collection[str]) -> str:
    """Return the file of a UNet's graph that takes what some of `GUIDES` give: `controlnet_ip_adapter.onnx`."""
    return "_".join(name for name in GUIDES if name in names) + ".onnx"


GUIDED_FILES: Final = frozenset(
    guided_file(some) for count in range(1, len(GUIDES) + 1) for some in combinations(GUIDES, count)
)
"""Graphs that are made of a UNet's, over its weights, for each set of guides that it may have."""
