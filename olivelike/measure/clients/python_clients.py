"""What diffusers' and optimum's pipelines of ONNX models insist on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from olivelike.families import FAMILIES, TEXT_ENCODERS
from olivelike.measure.clients.requirement import (
    Problem,
    Requirement,
    data_file,
    feeds,
    gives,
    has_file,
    loads,
    setting,
    takes,
)

if TYPE_CHECKING:
    from olivelike.measure.clients.client_folder import ClientFolder

_DIFFUSERS_CLASSES = (
    "OnnxStableDiffusionPipeline", "OnnxStableDiffusionImg2ImgPipeline", "OnnxStableDiffusionInpaintPipeline",
    "OnnxStableDiffusionUpscalePipeline",
)  # fmt: skip
_DIFFUSERS_LAYOUT = "run the workflow with `layout: diffusers`"
_OTHER_FAMILY = "use another client: this one knows SD 1.x and 2.x alone"


def _diffusers_class(folder: ClientFolder) -> Problem:
    found = folder.index.get("_class_name")
    return None if found in _DIFFUSERS_CLASSES else f"it is {found!r}"


def _index_entries(folder: ClientFolder) -> Problem:
    for name in FAMILIES["sd1"].networks:
        if folder.index.get(name) != ["diffusers", "OnnxRuntimeModel"]:
            return f"that of {name} is {folder.index.get(name)}"
    return None


def _safety_entry(folder: ClientFolder) -> Problem:
    entry = folder.index.get("safety_checker")
    if entry == ["diffusers", "OnnxRuntimeModel"]:
        folder.model("safety_checker")
        return None
    if entry not in (None, [None, None]):
        return f"its entry is {entry}"
    if folder.index.get("requires_safety_checker", True):
        return "there is none, and requires_safety_checker is not false"
    return None


def _one_float_type(folder: ClientFolder) -> Problem:
    values = {
        "text_encoder's first output": folder.output("text_encoder"),
        "unet's sample": folder.input("unet", "sample"),
        "unet's encoder_hidden_states": folder.input("unet", "encoder_hidden_states"),
        "unet's output": folder.output("unet"),
        "vae_decoder's latent_sample": folder.input("vae_decoder", "latent_sample"),
    }
    kinds = {value.dtype for value in values.values()}
    return None if len(kinds) == 1 else ", ".join(f"{name} is {value.dtype}" for name, value in values.items())


def _safety_type(folder: ClientFolder) -> Problem:
    picture = folder.output("vae_decoder").dtype
    for name in ("clip_input", "images"):
        if (found := folder.input("safety_checker", name).dtype) != picture:
            return f"{name} is {found}, and vae_decoder's output {picture}"
    return None


DIFFUSERS: Final = (
    Requirement("model_index.json names an Onnx pipeline class", _diffusers_class, _DIFFUSERS_LAYOUT),
    Requirement("model_index.json has each network as diffusers' OnnxRuntimeModel", _index_entries, _DIFFUSERS_LAYOUT),
    Requirement("the safety checker is there, or declared absent", _safety_entry, _DIFFUSERS_LAYOUT),
    has_file("tokenizer/tokenizer_config.json", "fetch the source's tokenizer, and run the workflow again"),
    has_file("scheduler/scheduler_config.json", "fetch the source's scheduler, and run the workflow again"),
    *(loads(name) for name in FAMILIES["sd1"].networks),
    feeds("text_encoder", ("input_ids",), _DIFFUSERS_LAYOUT),
    takes("text_encoder", "input_ids", ("int32",), _DIFFUSERS_LAYOUT, shape=(1, 77)),
    feeds("unet", ("sample", "timestep", "encoder_hidden_states"), _OTHER_FAMILY),
    takes("unet", "timestep", (), _DIFFUSERS_LAYOUT, shape=(1,)),
    Requirement("texts, latents and noise have one float type throughout", _one_float_type, _DIFFUSERS_LAYOUT),
    gives("unet", 0, (), _OTHER_FAMILY, shape=(None, 4, None, None)),
    feeds("vae_decoder", ("latent_sample",), _DIFFUSERS_LAYOUT),
    feeds("vae_encoder", ("sample",), _DIFFUSERS_LAYOUT),
    gives("vae_encoder", 0, (), "export it with the mean first", shape=(None, 4, None, None)),
    setting("vae_decoder/config.json", "scaling_factor", FAMILIES["sd1"].latents.scaling, _OTHER_FAMILY),
    feeds("safety_checker", ("clip_input", "images"), _DIFFUSERS_LAYOUT, where="safety_checker"),
    Requirement(
        "the safety checker takes pictures as vae_decoder gives them",
        _safety_type,
        _DIFFUSERS_LAYOUT,
        where="safety_checker",
    ),
    data_file(FAMILIES["sd1"].networks, "weights.pb", "`save_pretrained` leaves that behind", _DIFFUSERS_LAYOUT),
)
"""`OnnxStableDiffusionPipeline` and its kin, in versions before 0.43, which has them no more.

Read from `pipelines/stable_diffusion/pipeline_onnx_stable_diffusion.py` and `pipelines/onnx_utils.py` of 0.42."""


_SECOND = "text_encoder_2"
_OPTIMUM_CLASSES = tuple(
    f"{prefix}{family}{task}Pipeline"
    for prefix in ("", "ORT")
    for family in ("StableDiffusion", "StableDiffusionXL", "LatentConsistencyModel")
    for task in ("", "Img2Img", "Inpaint")
)
_OPTIMUM_LAYOUT = "run the workflow with `layout: optimum`"


def _index_unet(folder: ClientFolder) -> Problem:
    return None if folder.index.get("unet") is not None else "it has none, so everything would be exported anew"


def _optimum_class(folder: ClientFolder) -> Problem:
    found = folder.index.get("_class_name")
    return (
        None if found in _OPTIMUM_CLASSES else f"it is {found!r}: only a pipeline class named in code loads the folder"
    )


def _out_sample(folder: ClientFolder) -> Problem:
    names = [value.name for value in folder.model("unet").outputs]
    return None if names == ["out_sample"] else f"they are {', '.join(names)}"


def _scalar_timestep(folder: ClientFolder) -> Problem:
    shape = folder.input("unet", "timestep").shape
    return None if not shape else "it has a dimension, which is added at each step with a warning"


def _latents(folder: ClientFolder) -> Problem:
    names = [value.name for value in folder.model("vae_encoder").outputs]
    return None if {"latent_parameters", "latent_sample"} & set(names) else f"they are {', '.join(names)}"


def _picture(folder: ClientFolder) -> Problem:
    return None if (name := folder.output("vae_decoder").name) == "sample" else f"it is {name}"


def _text(folder: ClientFolder) -> Problem:
    names = [value.name for value in folder.model("text_encoder").outputs]
    if names[:1] != ["last_hidden_state"]:
        return f"the first is {', '.join(names[:1])}"
    return None


def _hidden_states(folder: ClientFolder) -> Problem:
    for encoder in TEXT_ENCODERS:
        count = folder.json(f"{encoder}/config.json").get("num_hidden_layers", 0)
        names = {value.name for value in folder.model(encoder).outputs}
        lost = [f"hidden_states.{index}" for index in range(count) if f"hidden_states.{index}" not in names]
        if lost:
            return f"{encoder} lacks {lost[0]}"
    return None


def _pooled_first(folder: ClientFolder) -> Problem:
    return None if (name := folder.output(_SECOND).name) == "text_embeds" else f"the first is {name}"


def _scaling(folder: ClientFolder) -> Problem:
    for name in ("vae_decoder", "vae_encoder"):
        if "scaling_factor" not in folder.json(f"{name}/config.json"):
            return f"that of {name} lacks it, and 8 would be taken"
    return None


def _formulas(folder: ClientFolder) -> Problem:
    for name in FAMILIES["sd1"].networks:
        model = folder.model(name)
        known = {dim for value in model.inputs for dim in value.shape or () if isinstance(dim, str)}
        for value in model.outputs:
            for dim in value.shape or ():
                if isinstance(dim, str) and value.name != "out_sample" and not _is_computable(dim, known):
                    return f"{name}: {value.name} has {dim!r}"
    return None


def _is_computable(dim: str, known: set[str]) -> bool:
    """Tell whether sizes take the place of all names once the text is split at spaces."""
    return all(part in known or not any(letter.isalpha() for letter in part) for part in dim.split(" "))


OPTIMUM: Final = (
    Requirement("model_index.json has an entry for unet", _index_unet, _OPTIMUM_LAYOUT),
    Requirement(
        "model_index.json names a class that `ORTDiffusionPipeline` finds",
        _optimum_class,
        _OPTIMUM_LAYOUT,
        only_advised=True,
    ),
    has_file("scheduler/scheduler_config.json", "fetch the source's scheduler, and run the workflow again"),
    has_file("tokenizer/tokenizer_config.json", "fetch the source's tokenizer, and run the workflow again"),
    *(loads(name) for name in FAMILIES["sd1"].networks),
    *(has_file(f"{name}/config.json", "run the workflow again") for name in FAMILIES["sd1"].networks),
    feeds("text_encoder", ("input_ids",), _OPTIMUM_LAYOUT, more=("attention_mask",)),
    Requirement("text_encoder: last_hidden_state is the first output", _text, _OPTIMUM_LAYOUT),
    feeds(
        "unet",
        ("sample", "timestep", "encoder_hidden_states"),
        _OPTIMUM_LAYOUT,
        more=("timestep_cond", "text_embeds", "time_ids"),
    ),
    Requirement("unet: the only output is out_sample", _out_sample, _OPTIMUM_LAYOUT),
    Requirement("unet: timestep is a scalar", _scalar_timestep, _OPTIMUM_LAYOUT, only_advised=True),
    feeds("vae_encoder", ("sample",), _OPTIMUM_LAYOUT),
    Requirement("vae_encoder: an output is latent_parameters or latent_sample", _latents, _OPTIMUM_LAYOUT),
    feeds("vae_decoder", ("latent_sample",), _OPTIMUM_LAYOUT),
    Requirement("vae_decoder: the output is sample", _picture, _OPTIMUM_LAYOUT),
    Requirement("the configs of the VAE have scaling_factor", _scaling, "run the workflow again"),
    Requirement(
        "CUDA: sizes of outputs can be computed from those of inputs", _formulas, _OPTIMUM_LAYOUT, only_advised=True
    ),
    feeds(_SECOND, ("input_ids",), _OPTIMUM_LAYOUT, more=("attention_mask",), where=_SECOND),
    Requirement(f"{_SECOND}: text_embeds is the first output", _pooled_first, _OPTIMUM_LAYOUT, where=_SECOND),
    Requirement("text encoders give hidden_states.N for each layer", _hidden_states, _OPTIMUM_LAYOUT, where=_SECOND),
)
"""`ORTStableDiffusionPipeline` and its kin, as `modeling_diffusion.py` and `base.py` of optimum-onnx 0.1 have them."""
