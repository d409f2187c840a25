"""The part of a network that decides an answer: its form, from which everything is left out that changes no graph.

Configs are completed as the libraries complete them, by the defaults of their classes, which ship as data. A key of
which nothing is known makes a form of its own (`exact`), so that it is never taken for a published one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike.digest import digest_json
from olivelike.families.networks import NETWORKS, STORED
from olivelike.graphs.shelf.shelf_folder import VERSION
from olivelike.model.components import PREVIEW, TAKEN_STATES, own_marks

if TYPE_CHECKING:
    from olivelike._untrusted import Json, JsonView
    from olivelike.families.network import Network
    from olivelike.model import Architecture
    from olivelike.model.architecture import Config
    from olivelike.sources import Checkpoint

DEFAULTS_FILE: Final = Path(__file__).parents[2] / "data" / "shelf" / "networks.json"
"""Class → its `library`, and the `config` that it has of itself: what a raw config is laid over."""

_BOOKKEEPING: Final = frozenset(
    {"name_or_path", "torch_dtype", "dtype", "architectures", "transformers_version", "model_type"}
)
"""Keys that tell of a file, not of a network; so do all that begin with an underscore."""
_TRAINING: Final = frozenset(
    {"decay", "min_decay", "inv_gamma", "power", "update_after_step", "optimization_step", "use_ema_warmup"}
)
"""Keys that an average of weights left in the config of a UNet or a VAE; diffusers ignores it."""
_GENERATION: Final[JsonView] = {
    "add_cross_attention": False, "bad_words_ids": None, "begin_suppress_tokens": None, "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None, "decoder_start_token_id": None, "diversity_penalty": 0.0, "do_sample": False,
    "dropout": 0.0, "early_stopping": False, "encoder_no_repeat_ngram_size": 0,
    "exponential_decay_length_penalty": None, "finetuning_task": None, "forced_bos_token_id": None,
    "forced_eos_token_id": None, "gradient_checkpointing": False, "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
    "is_decoder": False, "is_encoder_decoder": False, "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "length_penalty": 1.0,
    "max_length": 20, "min_length": 0, "no_repeat_ngram_size": 0, "num_beam_groups": 1, "num_beams": 1,
    "num_return_sequences": 1, "output_attentions": False, "output_hidden_states": False, "output_scores": False,
    "prefix": None, "problem_type": None, "pruned_heads": {}, "remove_invalid_values": False,
    "repetition_penalty": 1.0, "return_dict": True, "return_dict_in_generate": False, "sep_token_id": None,
    "suppress_tokens": None, "task_specific_params": None, "temperature": 1.0, "tf_legacy_loss": False,
    "tie_encoder_decoder": False, "tie_word_embeddings": True, "tokenizer_class": None, "top_k": 50, "top_p": 1.0,
    "torchscript": False, "typical_p": 1.0, "use_bfloat16": False, "use_cache": True,
}  # fmt: skip
"""Keys that transformers 4 wrote into every config, with the value that says nothing; CLIP's networks read none of it.

In a tower that is not for text, `bos_token_id`, `eos_token_id` and `pad_token_id` are such, too."""
_TOKEN_IDS: Final = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_TOWERS: Final = ("text_config", "vision_config")

_OF_NO_NAME: Final = frozenset({"eos_token_id", TAKEN_STATES})
"""Keys on which a graph depends, but neither a name nor a shape of a parameter."""

UNUSED: Final = ("embeddings.position_ids", "logit_scale", "norm_final.weight", "num_batches_tracked")
"""Ends of stored names that are no parameter of any network here: counted-up numbers, what training scales by, and a
norm that Z-Image's makers have no use for."""


@cache
def _known() -> Mapping[str, JsonView]:
    found: Mapping[str, JsonView] = json.loads(DEFAULTS_FILE.read_bytes())
    return found


def complete(class_name: str, config: Config) -> tuple[str, Config] | None:
    """Return the library of a class, and what it makes of a raw config; `None` if that can't be told without it."""
    known, network = _known().get(class_name), _network(class_name)
    if known is None:
        return None
    marks = own_marks(config)
    raw = {name: value for name, value in config.items() if name not in marks}
    try:
        spelled = network.spelled(raw) if network else raw
    except (TypeError, ValueError):
        return None
    whole = _complete(known["config"], spelled, network.inert if network else frozenset())
    return None if whole is None else (known["library"], {**whole, **marks})


def _network(class_name: str) -> Network | None:
    return next((one for one in NETWORKS if one.class_name == class_name), None)


def _complete(defaults: Config, config: Config, inert: frozenset[str]) -> Config | None:
    whole = dict(defaults)
    for name, value in config.items():
        tower = name.removesuffix("_dict")
        if name.startswith("_") or name in _BOOKKEEPING:
            if name == "model_type" and value != defaults.get(name, value):
                return None
        elif tower in _TOWERS and isinstance(defaults.get(tower), dict):
            # Old configs hold each tower twice, and what the second one does not say has its default.
            chosen = config.get(f"{tower}_dict", value)
            found = _complete(defaults[tower], chosen, frozenset()) if isinstance(chosen, dict) else None
            if found is None:
                return None
            whole[tower] = found
        elif name in defaults:
            whole[name] = value
        elif not _says_nothing(name, value, defaults, inert):
            return None
    return whole


def _says_nothing(name: str, value: Any, defaults: Config, inert: frozenset[str]) -> bool:
    """Tell whether a key that a class does not have is known to be of no meaning."""
    if "model_type" not in defaults:
        # `AutoencoderTiny` writes into its config what another key of it says, and FLUX.2's VAE what others have.
        return name in _TRAINING | inert or (name == "block_out_channels" and "encoder_block_out_channels" in defaults)
    idle = {**_GENERATION, **({} if "vocab_size" in defaults else _TOKEN_IDS)}
    return name in idle and value == idle[name]


def form_of(class_name: str, config: Config) -> Any:
    """Return what of a completed config decides the graph, as JSON values.

    Keys that have their default are left out, so a library that adds one changes nothing.
    """
    known, network = _known().get(class_name), _network(class_name)
    marks = own_marks(config)
    known_to_library = {name: value for name, value in config.items() if name not in marks}
    if known is None or _strange(known["config"], known_to_library):
        return ["exact", config]
    form = _differing(known["config"], known_to_library, network.inert if network else frozenset())
    try:
        return {**(network.one_form(form, config) if network else form), **marks}
    except (TypeError, LookupError):
        return ["exact", config]


def _strange(defaults: Config, config: Config) -> bool:
    return any(
        name not in defaults or (isinstance(defaults[name], dict) and _strange(defaults[name], value))
        for name, value in config.items()
    )


def _differing(defaults: Config, config: Config, inert: frozenset[str], within: str = "") -> Json:
    found: Json = {}
    for name, value in config.items():
        path, default = within + name, defaults[name]
        if path in inert or value == default or (default is False and value is None):
            continue
        found[name] = _differing(default, value, inert, f"{path}.") if isinstance(default, dict) else value
    return found


def graph_question(architecture: Architecture) -> str:
    """Return the digest of what decides the graph of an architecture."""
    form = form_of(architecture.class_name, architecture.config)
    # A decoder for previews is like any other.
    component = "vae_decoder" if architecture.component == PREVIEW else architecture.component
    return digest_json(["shelf/graph", VERSION, component, architecture.class_name, form])


def stored_form(checkpoint: Checkpoint) -> tuple[str, dict[str, str]]:
    """Return the prefix of the stored names of a network, and each name that counts without it."""
    names = checkpoint.tensors
    prefix = STORED[checkpoint.original].prefix_of(names) if checkpoint.original else ""
    return prefix, {name: name.removeprefix(prefix) for name in names if not name.endswith(UNUSED)}


def names_question(checkpoint: Checkpoint, config: Config) -> str:
    """Return the digest of what decides which stored tensor is which parameter.

    Args:
        checkpoint: The network as it is stored.
        config: Its completed config.
    """
    naming = {name: value for name, value in config.items() if name not in _OF_NO_NAME}
    form = form_of(checkpoint.class_name, naming)
    _, names = stored_form(checkpoint)
    shapes = checkpoint.shapes
    rows = sorted([name, list(shapes[stored])] for stored, name in names.items())
    return digest_json(["shelf/names", VERSION, checkpoint.class_name, checkpoint.original or "", form, rows])
