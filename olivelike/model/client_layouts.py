"""Layouts of folders for each client, as data; `web` is for browsers, `single` for whoever has ONNX Runtime.

`triton` is a model repository of the Triton Inference Server, `ortpackage` a model package of ONNX Runtime.

Read from the clients' own code: diffusers 0.42 (`pipeline_onnx_stable_diffusion.py`), optimum-onnx 0.1
(`modeling_diffusion.py`), cassiebreviu/StableDiffusion, saddam213/OnnxStack, microsoft/Stable-Diffusion-WebUI-DirectML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from olivelike.model.components import MODEL_FILE, PIPELINE_FILE, SAFETY_CHECKER
from olivelike.model.guides import guide_kind

LayoutName = Literal[
    "diffusers", "optimum", "csharp", "onnxstack", "a1111-dml", "web", "single", "single-ids", "triton", "ortpackage"
]

DEFAULT: Final = "diffusers"
"""The layout that `convert` and `materialize` write without being told."""

PAGE: Final = "page"
"""Stands in the record of a page that `export-web` wrote, where an output has its layout."""

PACKAGE: Final = "package"
"""Layout of a package of several outputs, which `olivelike package` wrote."""

TOKENIZER_FILE: Final = "cliptokenizer.onnx"
"""Name of a tokenizer's ONNX model, in its tokenizer's folder."""

_HOME: Final = "{component}"


@dataclass(frozen=True)
class Layout:
    """A client's demands on graphs, and on the folder around them."""

    name: LayoutName
    floats: Literal["float32", "float16"] | None = None
    """Type of every float input and output; `None` leaves them as they are."""
    timestep: Literal["int64", "float16"] | None = None
    """Type of the UNet's `timestep`; `None` leaves it as it is."""
    scalar_timestep: bool = False
    """`timestep` has no dimension, rather than one of size 1."""
    named_channels: bool = False
    """The channels of the UNet's `sample` are a named dimension, rather than a number."""
    spaced_formulas: bool = False
    """Names in the formulas of output dimensions stand between spaces."""
    only_unet_inputs: bool = False
    """The client feeds the UNet of SD 1.x and 2.x, and can't feed that of SDXL."""
    conditioning_scale: Literal["float32", "float64"] = "float32"
    """Type of a guide's strength."""
    only_unets: bool = False
    """The client knows pipelines with a UNet, whose loop it has, and no transformers."""
    components: tuple[str, ...] | None = None
    """Networks that the client reads; `None` for all. Where it does not read all, the folder is no pipeline: it has no
    index, tokenizer or scheduler."""
    needed: tuple[str, ...] = ()
    """Components that a pipeline may lack, and that the client does not load without."""
    data_file: str = "weights.pb"
    """Name of a component's data file."""
    most_data_bytes: int | None = None
    """Size of a data file at most, unless it holds a single tensor; what has no room goes into further files."""
    named_after_folder: bool = False
    """`NAME.onnx` with `NAME.onnx.data`, after the output folder, in place of `model.onnx` with its data file."""
    onnx_tokenizer: bool = False
    """Each tokenizer is there as an ONNX model, too."""
    one_file: bool = False
    """All networks are one model, with the loop around the UNet."""
    tokenizer_files: bool = False
    """Tokenizers are there although the folder is no pipeline, for who makes ids of texts."""
    network_home: str = _HOME
    """Folder of a network's files. One folder deeper, other files say what the whole is, and it is no pipeline."""
    package: str | None = None
    """Name in `PACKAGES` of an extra's part that writes further files."""
    pipeline_prefix: str = "Onnx"
    """Beginning of pipeline classes in the index, before the name of the torch one."""
    network_classes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Module and class of networks in the index; others are diffusers' `OnnxRuntimeModel`."""

    @property
    def is_pipeline(self) -> bool:
        """Whether the folder is a whole pipeline, with an index and what is no network."""
        return self.components is None and self.network_home == _HOME

    def has(self, component: str) -> bool:
        """Tell whether the folder holds this network."""
        if (kind := guide_kind(component)) is not None:
            return self.name in kind.clients
        return self.components is None or component in self.components

    def network_folder(self, component: str, target: str) -> str:
        """Return where the files of a network lie in an output folder.

        Triton has a folder for each version of a model, a package one for each target.
        """
        return self.network_home.format(component=component, target=target)

    def file_names(self, folder_name: str) -> dict[str, str]:
        """Return the `model_file` and the `data_file` of the networks in an output folder of this name."""
        if self.named_after_folder:
            return {"model_file": f"{folder_name}.onnx", "data_file": f"{folder_name}.onnx.data"}
        return {"model_file": MODEL_FILE, "data_file": self.data_file}


_DRAWING: Final = ("text_encoder", "text_encoder_2", "unet", "vae_decoder", SAFETY_CHECKER)
_OPTIMUM = "optimum.onnxruntime.modeling_diffusion"

LAYOUTS: Final[Mapping[str, Layout]] = {
    layout.name: layout
    for layout in (
        Layout("diffusers"),
        # Bound outputs get their sizes by evaluating formulas whose names stand between spaces.
        Layout(
            "optimum",
            scalar_timestep=True,
            spaced_formulas=True,
            pipeline_prefix="ORT",
            network_classes={
                "unet": (_OPTIMUM, "ORTUnet"),
                "transformer": (_OPTIMUM, "ORTTransformer"),
                "text_encoder": (_OPTIMUM, "ORTTextEncoder"),
                "text_encoder_2": (_OPTIMUM, "ORTTextEncoder"),
                "text_encoder_3": (_OPTIMUM, "ORTTextEncoder"),
                "vae_encoder": (_OPTIMUM, "ORTVaeEncoder"),
                "vae_decoder": (_OPTIMUM, "ORTVaeDecoder"),
            },
        ),
        Layout(
            "csharp",
            floats="float32",
            timestep="int64",
            only_unet_inputs=True,
            only_unets=True,
            onnx_tokenizer=True,
            needed=(SAFETY_CHECKER,),
        ),
        Layout("onnxstack", data_file="model.onnx.data", conditioning_scale="float64", only_unets=True),
        Layout(
            "a1111-dml",
            floats="float16",
            timestep="float16",
            named_channels=True,
            only_unet_inputs=True,
            only_unets=True,
            components=("unet",),
            named_after_folder=True,
        ),
        # Browsers read a file into one buffer: Chrome's have less than 2 GiB, and half of that is found more easily.
        Layout("web", floats="float32", most_data_bytes=1 << 30, package="web", only_unets=True),
        # Texts need the operators of onnxruntime-extensions, which JavaScript has not.
        Layout(
            "single",
            components=_DRAWING,
            data_file=f"{PIPELINE_FILE}.data",
            one_file=True,
            onnx_tokenizer=True,
            only_unets=True,
        ),
        Layout(
            "single-ids",
            components=_DRAWING,
            data_file=f"{PIPELINE_FILE}.data",
            one_file=True,
            tokenizer_files=True,
            only_unets=True,
        ),
        Layout("triton", components=_DRAWING, network_home="{component}/1", package="triton", only_unets=True),
        Layout("ortpackage", network_home="{component}/{target}", package="ortpackage"),
    )
}
"""Every layout by name."""


def several_targets(layout: str) -> str | None:
    """Return what to say of a folder that is put together of several outputs; `None` if it is not."""
    return "is a package of several outputs; name one of those that it was made of" if layout == PACKAGE else None


def is_package(layout: str) -> bool:
    """Tell whether a record's layout is that of a package, whose reader is another program."""
    return layout == PACKAGE or (layout in LAYOUTS and LAYOUTS[layout].network_home != _HOME)
