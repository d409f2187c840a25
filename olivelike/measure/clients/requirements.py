"""The table of what each client insists on: rows of facts, and of rules where a fact has no form of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from olivelike.families import FAMILIES, TEXT_TO_PICTURE
from olivelike.measure.clients.client_folder import ClientFolder, Unreadable
from olivelike.measure.clients.requirement import (
    Problem,
    Requirement,
    clip_vocabulary,
    data_file,
    feeds,
    first_output,
    gives,
    has_file,
    loads,
    setting,
    takes,
    unless,
)
from olivelike.model.guides import GUIDES, STRENGTH

if TYPE_CHECKING:
    from olivelike.families.family import Family, TextPart
    from olivelike.graphs.inspect import Inspection

_NETWORKS: Final = FAMILIES["sd1"].networks
_SCALING: Final = FAMILIES["sd1"].latents.scaling
_WIDTH: Final = FAMILIES["sd1"].text_width
_SECOND: Final = "text_encoder_2"
(_GUIDE,) = (kind.components[0] for kind in GUIDES.values() if "onnxstack" in kind.clients)
_UNET: Final = ("sample", "timestep", "encoder_hidden_states")
_SD3: Final = ("hidden_states", "timestep", "encoder_hidden_states", "pooled_projections")
_FLOATS: Final = ("float32", "float16", "bfloat16")
_TOKENIZER: Final = "fetch the source's tokenizer, and run the workflow again"
_SCHEDULER: Final = "fetch the source's scheduler, and run the workflow again"
_AGAIN: Final = "run the workflow again"
_MEAN: Final = "export it with the mean first"
_OTHER_FAMILY: Final = "use another client: this one knows SD 1.x and 2.x alone"
_SD1: Final = "use a pipeline of SD 1.x: the sample's tensors have its sizes"
_SD1_OR_SD2: Final = "use a pipeline of SD 1.x or 2.x: the extension refuses SDXL"
_CHECKER: Final = (
    "name as source a pipeline's folder that has `safety_checker/` and `feature_extractor/`, with `safety_checker` in "
    "`components`; a single file never has one"
)
_ONNX_CLASSES: Final = tuple(f"OnnxStableDiffusion{task}Pipeline" for task in ("", "Img2Img", "Inpaint", "Upscale"))
_OPTIMUM_PIPELINES: Final = (
    *(
        f"{family}{task}Pipeline"
        for family in ("StableDiffusion", "StableDiffusionXL", "LatentConsistencyModel", "StableDiffusion3")
        for task in ("", "Img2Img", "Inpaint")
    ),
    "FluxPipeline",
)
"""Classes of torch that optimum has as `ORT…`."""
_OPTIMUM_CLASSES: Final = (*_OPTIMUM_PIPELINES, *(f"ORT{name}" for name in _OPTIMUM_PIPELINES))
_RUNTIME_MODEL: Final = ["diffusers", "OnnxRuntimeModel"]
_MOST_BYTES: Final = 0x7FE00000
"""Largest buffer in Chrome."""


_HAS_UNET: Final = Requirement(
    "its denoiser is a UNet",
    lambda folder: unless(folder.family.denoiser == "unet", f"{folder.family.title} has a transformer"),
    "draw with `olivelike generate`, which has pipelines of its family",
)
"""First of a client that knows UNets alone; what else it wants is asked of those."""


def _of(families: Collection[str], *requirements: Requirement) -> tuple[Requirement, ...]:
    return tuple(replace(one, families=frozenset(families)) for one in requirements)


def _where_there_is(component: str, *requirements: Requirement) -> tuple[Requirement, ...]:
    return tuple(replace(one, where=component) for one in requirements)


def _class_name(folder: ClientFolder) -> object:
    return folder.index.get("_class_name")


def _index_entries(folder: ClientFolder) -> Problem:
    other = {name: folder.index.get(name) for name in _NETWORKS if folder.index.get(name) != _RUNTIME_MODEL}
    return next((f"that of {name} is {entry}" for name, entry in other.items()), None)


def _safety_entry(folder: ClientFolder) -> Problem:
    entry = folder.index.get("safety_checker")
    if entry == _RUNTIME_MODEL:
        folder.model("safety_checker")
        return None
    if entry not in (None, [None, None]):
        return f"its entry is {entry}"
    declared = not folder.index.get("requires_safety_checker", True)
    return unless(declared, "there is none, and requires_safety_checker is not false")


def _one_float_type(folder: ClientFolder) -> Problem:
    values = {
        "text_encoder's first output": folder.output("text_encoder"),
        "unet's sample": folder.input("unet", "sample"),
        "unet's encoder_hidden_states": folder.input("unet", "encoder_hidden_states"),
        "unet's output": folder.output("unet"),
        "vae_decoder's latent_sample": folder.input("vae_decoder", "latent_sample"),
    }
    told = ", ".join(f"{name} is {value.dtype}" for name, value in values.items())
    return unless(len({value.dtype for value in values.values()}) == 1, told)


def _safety_type(folder: ClientFolder) -> Problem:
    picture = folder.output("vae_decoder").dtype
    for name in ("clip_input", "images"):
        if (found := folder.input("safety_checker", name).dtype) != picture:
            return f"{name} is {found}, and vae_decoder's output {picture}"
    return None


_DIFFUSERS: Final = (
    Requirement(
        "model_index.json names an Onnx pipeline class",
        lambda folder: unless((found := _class_name(folder)) in _ONNX_CLASSES, f"it is {found!r}"),
    ),
    Requirement("model_index.json has each network as diffusers' OnnxRuntimeModel", _index_entries),
    Requirement("the safety checker is there, or declared absent", _safety_entry),
    has_file("tokenizer/tokenizer_config.json", _TOKENIZER),
    has_file("scheduler/scheduler_config.json", _SCHEDULER),
    *map(loads, _NETWORKS),
    feeds("text_encoder", "input_ids"),
    takes("text_encoder", "input_ids", "int32", shape=(1, 77)),
    feeds("unet", *_UNET, remedy=_OTHER_FAMILY),
    takes("unet", "timestep", shape=(1,)),
    Requirement("texts, latents and noise have one float type throughout", _one_float_type),
    gives("unet", 0, shape=(None, 4, None, None), remedy=_OTHER_FAMILY),
    feeds("vae_decoder", "latent_sample"),
    feeds("vae_encoder", "sample"),
    gives("vae_encoder", 0, shape=(None, 4, None, None), remedy=_MEAN),
    setting("vae_decoder/config.json", "scaling_factor", _SCALING, _OTHER_FAMILY),
    *_where_there_is(
        "safety_checker",
        feeds("safety_checker", "clip_input", "images"),
        Requirement("the safety checker takes pictures as vae_decoder gives them", _safety_type),
    ),
    data_file(_NETWORKS, "weights.pb", "`save_pretrained` leaves that behind"),
)
"""`OnnxStableDiffusionPipeline` and its kin, in versions before 0.43, which has them no more.

Read from `pipelines/stable_diffusion/pipeline_onnx_stable_diffusion.py` and `pipelines/onnx_utils.py` of 0.42."""


def _outputs(folder: ClientFolder, component: str) -> list[str]:
    return [value.name for value in folder.model(component).outputs]


def _hidden_states(folder: ClientFolder) -> Problem:
    for text in folder.family.texts:
        if not text.back:
            continue
        count = folder.json(f"{text.component}/config.json").get("num_hidden_layers", 0)
        if not isinstance(count, int):
            return f"the config of {text.component} has no whole number as num_hidden_layers"
        names = set(_outputs(folder, text.component))
        lost = next((one for index in range(count) if (one := f"hidden_states.{index}") not in names), None)
        if lost is not None:
            return f"{text.component} lacks {lost}"
    return None


def _has_numbers(*keys: str) -> Callable[[ClientFolder], Problem]:
    def problem(folder: ClientFolder) -> Problem:
        for name in ("vae_decoder", "vae_encoder"):
            if lost := [key for key in keys if key not in folder.json(f"{name}/config.json")]:
                return f"that of {name} lacks {lost[0]}"
        return None

    return problem


def _formulas(folder: ClientFolder) -> Problem:
    own = {f"out_{family.sample}" for family in FAMILIES.values()}
    for name in folder.family.networks:
        model = folder.model(name)
        known = {dim for value in model.inputs for dim in value.shape or () if isinstance(dim, str)}
        for value in model.outputs:
            for dim in value.shape or ():
                if isinstance(dim, str) and value.name not in own and not _is_computable(dim, known):
                    return f"{name}: {value.name} has {dim!r}"
    return None


def _is_computable(dim: str, known: set[str]) -> bool:
    """Tell whether sizes take the place of all names once the text is split at spaces."""
    return all(part in known or not any(letter.isalpha() for letter in part) for part in dim.split(" "))


def _only_output(component: str, name: str) -> Requirement:
    return Requirement(
        f"{component}: the only output is {name}",
        lambda folder: unless((names := _outputs(folder, component)) == [name], f"they are {', '.join(names)}"),
    )


def _has_output(component: str, *wanted: str) -> Requirement:
    return Requirement(
        f"{component}: an output is {' or '.join(wanted)}",
        lambda folder: unless(
            bool({*wanted} & {*(names := _outputs(folder, component))}), f"they are {', '.join(names)}"
        ),
    )


def _in_index(denoiser: str) -> Requirement:
    return Requirement(
        f"model_index.json has an entry for {denoiser}",
        lambda folder: unless(
            folder.index.get(denoiser) is not None, "it has none, so everything would be exported anew"
        ),
    )


def _network(component: str) -> tuple[Requirement, ...]:
    return loads(component), has_file(f"{component}/config.json", _AGAIN)


def _text(text: TextPart) -> tuple[Requirement, ...]:
    """Return what is asked of a text encoder: its first output is the one vector, if there is a projection."""
    name = text.component
    ids = feeds(name, "input_ids", more=("attention_mask",))
    tokenizer = has_file(f"{text.tokenizer}/tokenizer_config.json", _TOKENIZER)
    if text.pooled == _BY_NAME:
        return *_network(name), tokenizer, ids, _has_output(name, _BY_NAME)
    first = "text_embeds" if text.class_name.endswith("WithProjection") else "last_hidden_state"
    return *_network(name), tokenizer, ids, first_output(name, first)


_BY_NAME: Final = "pooler_output"
"""The one vector of a text, where a pipeline takes it by its name."""
_DENOISERS: Final = {
    **{
        name: feeds("unet", *_UNET, more=("timestep_cond", "text_embeds", "time_ids"))
        for name, family in FAMILIES.items()
        if family.denoiser == "unet"
    },
    "sd3": feeds("transformer", *_SD3),
    "flux": feeds("transformer", *_SD3, "img_ids", "txt_ids", more=("guidance",)),
}
"""Family that optimum has pipelines of → what they feed its denoiser."""


def _of_family(family: Family) -> Iterator[Requirement]:
    """Yield what is asked of the networks of a family alone."""
    denoiser = family.denoiser
    yield from _of([family.name], _in_index(denoiser), *_network(denoiser), _DENOISERS[family.name])
    yield from _of([family.name], _only_output(denoiser, f"out_{family.sample}"))
    for text in family.texts:
        wanted = _of([family.name], *_text(text))
        yield from _where_there_is(text.component, *wanted) if text.optional else wanted
    if any(text.back for text in family.texts):
        yield from _of([family.name], Requirement("text encoders give hidden_states.N for each layer", _hidden_states))
    if family.latents.shift:
        keys = _has_numbers("shift_factor")
        yield from _of([family.name], Requirement("the configs of the VAE have shift_factor", keys, _AGAIN))


_UNETS: Final = [name for name, family in FAMILIES.items() if family.denoiser == "unet"]
_OPTIMUM: Final = (
    Requirement(
        "optimum has pipelines of its family",
        lambda folder: unless(folder.family.name in _DENOISERS, f"it has none of {folder.family.title}"),
        "draw with `olivelike generate`, which has",
    ),
    *(row for name in _DENOISERS for row in _of_family(FAMILIES[name])),
    Requirement(
        "model_index.json names a class that `ORTDiffusionPipeline` finds",
        lambda folder: unless(
            (found := _class_name(folder)) in _OPTIMUM_CLASSES,
            f"it is {found!r}: only a pipeline class named in code loads the folder",
        ),
        only_advised=True,
    ),
    has_file("scheduler/scheduler_config.json", _SCHEDULER),
    *_of(
        _UNETS,
        Requirement(
            "unet: timestep is a scalar",
            lambda folder: unless(
                not folder.input("unet", "timestep").shape,
                "it has a dimension, which is added at each step with a warning",
            ),
            only_advised=True,
        ),
    ),
    *_of({*_DENOISERS} - {*_UNETS}, takes("transformer", "timestep", shape=(None,))),
    *(row for name in ("vae_encoder", "vae_decoder") for row in _network(name)),
    feeds("vae_encoder", "sample"),
    _has_output("vae_encoder", "latent_parameters", "latent_sample"),
    feeds("vae_decoder", "latent_sample"),
    Requirement(
        "vae_decoder: the output is sample",
        lambda folder: unless((name := folder.output("vae_decoder").name) == "sample", f"it is {name}"),
    ),
    Requirement("the configs of the VAE have scaling_factor", _has_numbers("scaling_factor"), _AGAIN),
    Requirement("CUDA: sizes of outputs can be computed from those of inputs", _formulas, only_advised=True),
)
"""`ORTStableDiffusionPipeline` and its kin, as `modeling_diffusion.py` and `base.py` of optimum-onnx 0.1 have them."""


def _tokenizer(folder: ClientFolder) -> Problem:
    places = [path for path in ("cliptokenizer.onnx", "tokenizer/cliptokenizer.onnx") if folder.has(path)]
    if not places:
        return "there is none"
    model = folder.model(places[0])
    if "CLIPTokenizer" not in model.operators.get("ai.onnx.contrib", {}):
        return f"{places[0]} has no operator CLIPTokenizer of ai.onnx.contrib"
    text, ids = model.inputs[0], model.outputs[0]
    if (text.name, text.dtype) != ("string_input", "string"):
        return f"its input is {text}"
    return unless(ids.dtype == "int64", f"its first output is {ids}")


_CSHARP: Final = (
    Requirement("cliptokenizer.onnx takes string_input and gives int64 ids", _tokenizer),
    clip_vocabulary(_SD1),
    *(loads(name) for name in ("text_encoder", "unet", "vae_decoder")),
    loads("safety_checker", _CHECKER),
    feeds("text_encoder", "input_ids"),
    takes("text_encoder", "input_ids", "int32", shape=(1, 77)),
    gives("text_encoder", 0, "float32"),
    gives("text_encoder", 0, shape=(1, 77, _WIDTH), remedy=_SD1),
    feeds("unet", *_UNET, remedy=_SD1),
    takes("unet", "sample", "float32", shape=(2, 4, 64, 64)),
    takes("unet", "timestep", "int64", shape=(1,)),
    takes("unet", "encoder_hidden_states", "float32"),
    takes("unet", "encoder_hidden_states", shape=(2, 77, _WIDTH), remedy=_SD1),
    gives("unet", 0, "float32", shape=(2, 4, 64, 64)),
    feeds("vae_decoder", "latent_sample"),
    takes("vae_decoder", "latent_sample", "float32", shape=(1, 4, 64, 64)),
    gives("vae_decoder", 0, "float32", shape=(1, 3, None, None)),
    setting("vae_decoder/config.json", "scaling_factor", _SCALING, _SD1),
    feeds("safety_checker", "clip_input", "images"),
    takes("safety_checker", "clip_input", "float32"),
    takes("safety_checker", "clip_input", shape=(1, 3, 224, 224), remedy=_SD1),
    takes("safety_checker", "images", "float32", shape=(1, 224, 224, 3)),
    gives("safety_checker", -1, "bool"),
)
"""cassiebreviu/StableDiffusion: `TextProcessing.cs`, `UNet.cs`, `VaeDecoder.cs`, `SafetyChecker.cs`."""

_ONNXSTACK: Final = (
    has_file("tokenizer/vocab.json", _TOKENIZER),
    has_file("tokenizer/merges.txt", _TOKENIZER),
    clip_vocabulary("use a pipeline with CLIP's own vocabulary: its ids are in the client's code"),
    *map(loads, _NETWORKS),
    feeds("text_encoder", "input_ids", in_order=True),
    takes("text_encoder", "input_ids", "int32", shape=(1, 77)),
    gives("text_encoder", 0, *_FLOATS, shape=(1, 77, None)),
    gives("text_encoder", 1, *_FLOATS, shape=(1, None)),
    feeds("unet", *_UNET, in_order=True, more=("text_embeds", "time_ids")),
    takes("unet", "sample", *_FLOATS),
    takes("unet", "timestep", *_FLOATS, "int64", shape=(1,)),
    takes("unet", "encoder_hidden_states", *_FLOATS),
    gives("unet", 0, *_FLOATS),
    gives("vae_encoder", 0, *_FLOATS, shape=(1, 4, None, None), remedy=_MEAN),
    gives("vae_decoder", 0, *_FLOATS, shape=(1, 3, None, None)),
    *_where_there_is(
        _SECOND, takes(_SECOND, "input_ids", "int32", shape=(1, 77)), gives(_SECOND, 0, *_FLOATS, shape=(1, None))
    ),
    *_where_there_is(_GUIDE, takes(_GUIDE, STRENGTH, "float64", shape=(1,))),
    data_file(_NETWORKS, "model.onnx.data", "its tools copy model.onnx with model.onnx.data"),
)
"""OnnxStack and Amuse. Inputs and outputs go by position; floats are converted to what the graph wants, ids are not.

Read from saddam213/OnnxStack: `StableDiffusionPipeline.cs`, `OnnxInferenceParameters.cs`, `ModelFactory.cs`."""

_A1111_LAYOUT: Final = "run the workflow with `layout: a1111-dml`"
_DIMS: Final = {
    "sample": ("unet_sample_batch", "unet_sample_channels", "unet_sample_height", "unet_sample_width"),
    "timestep": ("unet_time_batch",),
    "encoder_hidden_states": ("unet_hidden_batch", "unet_hidden_sequence"),
}


def _path(folder: ClientFolder) -> str:
    """Return the UNet's file: the only one in `unet/`, or of the whole folder."""
    files = [path for path in folder.onnx_files if path.startswith("unet/")] or folder.onnx_files
    if len(files) != 1:
        raise Unreadable(f"of {len(files)} ONNX files none is known to be the UNet")
    return files[0]


def _unet(folder: ClientFolder) -> Inspection:
    return folder.model(_path(folder))


def _is_there(folder: ClientFolder) -> Problem:
    _unet(folder)
    return None


def _inputs(folder: ClientFolder) -> Problem:
    names = [value.name for value in _unet(folder).inputs]
    return unless(sorted(names) == sorted(_UNET), f"they are {', '.join(names)}")


def _half(folder: ClientFolder) -> Problem:
    other = [f"{value.name} is {value.dtype}" for value in _unet(folder).inputs if value.dtype != "float16"]
    return ", ".join(other) or None


def _timestep(folder: ClientFolder) -> Problem:
    ranks = {value.name: len(value.shape or ()) for value in _unet(folder).inputs}
    return unless(ranks.get("timestep") == 1, f"it has {ranks.get('timestep', 0)}")


def _own_name(folder: ClientFolder) -> Problem:
    name = PurePosixPath(_path(folder)).stem
    return unless(name not in {"model", "unet"}, f"it is {name}.onnx")


def _own_data(folder: ClientFolder) -> Problem:
    name = PurePosixPath(_path(folder)).stem
    other = [file.location for file in _unet(folder).data_files if not file.location.startswith(name)]
    return f"it is {other[0]}" if other else None


def _dims(folder: ClientFolder) -> Problem:
    for value in _unet(folder).inputs:
        for found, wanted in zip(value.shape or (), _DIMS.get(value.name, ()), strict=False):
            if found != wanted:
                return f"{value.name} has {found!r} in place of {wanted}"
    return None


_A1111: Final = (
    Requirement("the UNet's file and its data are there", _is_there),
    Requirement(
        "the folder holds no other ONNX file",
        lambda folder: unless((count := len(folder.onnx_files)) == 1, f"it holds {count}, and each would be listed"),
        f"{_A1111_LAYOUT}, or copy the UNet alone",
        only_advised=True,
    ),
    Requirement(f"the inputs are {', '.join(_UNET)}", _inputs, _SD1_OR_SD2),
    Requirement("every input is float16", _half),
    Requirement("timestep has one dimension", _timestep),
    Requirement("the dimensions have the names that the extension fixes", _dims),
    Requirement(
        "the file is named after its checkpoint",
        _own_name,
        f"{_A1111_LAYOUT} and an output folder named after the checkpoint: it is chosen by that name",
        only_advised=True,
    ),
    Requirement(
        "the data file is named after the UNet's file",
        _own_data,
        f"{_A1111_LAYOUT}: two UNets in one folder must not share a data file",
        only_advised=True,
    ),
)
"""microsoft/Stable-Diffusion-WebUI-DirectML, `scripts/dml.py`.

It lists every `.onnx` file under `models/Unet-dml` as a UNet, by its file's name."""


def _fits(folder: ClientFolder) -> Problem:
    for component in filter(folder.has, TEXT_TO_PICTURE):
        for file in folder.model(component).data_files:
            if (file.actual_bytes or 0) > _MOST_BYTES:
                return f"{component}/{file.location} has {file.actual_bytes:,}"
    return None


def _borders(folder: ClientFolder) -> Problem:
    for component in filter(folder.has, TEXT_TO_PICTURE):
        model = folder.model(component)
        for value in (*model.inputs, *model.outputs):
            if value.dtype not in {"float32", "int32"}:
                return f"{value.name} of {component} is {value.dtype}"
    return None


_WEB: Final = (
    *(has_file(name) for name in ("manifest.json", "scheduler/model.onnx", "model_index.json")),
    *(loads(name) for name in ("unet", "vae_decoder")),
    Requirement("inputs and outputs are float32, and ids int32", _borders),
    takes("unet", "timestep", "float32", shape=(1,)),
    Requirement(f"data files have at most {_MOST_BYTES:,} bytes", _fits),
)
"""The page of `olivelike export-web` and any other; read in `olivelike/extras/deploy/web/`."""

CLIENTS: Final[Mapping[str, tuple[Requirement, ...]]] = {
    "diffusers": (_HAS_UNET, *_of(_UNETS, *_DIFFUSERS)),
    "optimum": _OPTIMUM,
    "csharp": (_HAS_UNET, *_of(_UNETS, *_CSHARP)),
    "onnxstack": (_HAS_UNET, *_of(_UNETS, *_ONNXSTACK)),
    "a1111-dml": (_HAS_UNET, *_of(_UNETS, *_A1111)),
    "web": (_HAS_UNET, *_of(_UNETS, *_WEB)),
}
"""By client; the names are those of the layouts."""
