"""optimum's `ORTStableDiffusionPipeline` and its kin.

Read from `optimum/onnxruntime/modeling_diffusion.py` and `base.py` of optimum-onnx 0.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from olivelike.measure.clients.requirement import Problem, Requirement, feeds, has_file, loads
from olivelike.model.families import SD_NETWORKS, TEXT_ENCODERS

if TYPE_CHECKING:
    from olivelike.measure.clients.client_folder import ClientFolder

_SECOND = "text_encoder_2"
_CLASSES = tuple(
    f"{prefix}{family}{task}Pipeline"
    for prefix in ("", "ORT")
    for family in ("StableDiffusion", "StableDiffusionXL", "LatentConsistencyModel")
    for task in ("", "Img2Img", "Inpaint")
)
_RELAY = "run the workflow with `layout: optimum`"


def _index_unet(folder: ClientFolder) -> Problem:
    return None if folder.index.get("unet") is not None else "it has none, so everything would be exported anew"


def _index_class(folder: ClientFolder) -> Problem:
    found = folder.index.get("_class_name")
    return None if found in _CLASSES else f"it is {found!r}: only a pipeline class named in code loads the folder"


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
    for name in SD_NETWORKS:
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


REQUIREMENTS: Final = (
    Requirement("model_index.json has an entry for unet", _index_unet, _RELAY),
    Requirement(
        "model_index.json names a class that `ORTDiffusionPipeline` finds", _index_class, _RELAY, only_advised=True
    ),
    has_file("scheduler/scheduler_config.json", "fetch the source's scheduler, and run the workflow again"),
    has_file("tokenizer/tokenizer_config.json", "fetch the source's tokenizer, and run the workflow again"),
    *(loads(name) for name in SD_NETWORKS),
    *(has_file(f"{name}/config.json", "run the workflow again") for name in SD_NETWORKS),
    feeds("text_encoder", ("input_ids",), _RELAY, more=("attention_mask",)),
    Requirement("text_encoder: last_hidden_state is the first output", _text, _RELAY),
    feeds(
        "unet",
        ("sample", "timestep", "encoder_hidden_states"),
        _RELAY,
        more=("timestep_cond", "text_embeds", "time_ids"),
    ),
    Requirement("unet: the only output is out_sample", _out_sample, _RELAY),
    Requirement("unet: timestep is a scalar", _scalar_timestep, _RELAY, only_advised=True),
    feeds("vae_encoder", ("sample",), _RELAY),
    Requirement("vae_encoder: an output is latent_parameters or latent_sample", _latents, _RELAY),
    feeds("vae_decoder", ("latent_sample",), _RELAY),
    Requirement("vae_decoder: the output is sample", _picture, _RELAY),
    Requirement("the configs of the VAE have scaling_factor", _scaling, "run the workflow again"),
    Requirement("CUDA: sizes of outputs can be computed from those of inputs", _formulas, _RELAY, only_advised=True),
    feeds(_SECOND, ("input_ids",), _RELAY, more=("attention_mask",), where=_SECOND),
    Requirement(f"{_SECOND}: text_embeds is the first output", _pooled_first, _RELAY, where=_SECOND),
    Requirement("text encoders give hidden_states.N for each layer", _hidden_states, _RELAY, where=_SECOND),
)
