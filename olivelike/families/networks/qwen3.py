"""Qwen3 as a text encoder: transformers' `Qwen3ForCausalLM`, of which a denoiser takes states between its layers.

`Qwen3Model` is the same network without the head that makes words.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError
from olivelike.families.network import (
    Input,
    Interface,
    Network,
    Shapes,
    Stored,
    check_base,
    head_count,
    in_llamas_names,
    layer_count,
    shown,
    size_of,
)
from olivelike.model.components import TAKEN_STATES

if TYPE_CHECKING:
    import torch

    from olivelike._untrusted import Json
    from olivelike.model.architecture import Config

STATES: Final = "hidden_states"
"""Output with all states that are taken, beside each other in each row."""


def _taken(config: Config) -> list[int]:
    """Return the numbers of the states that are taken, those of the embeddings being 0; by default the last layer's."""
    taken: list[int] = config.get(TAKEN_STATES) or [config["num_hidden_layers"]]
    return taken


def interface(config: Config) -> Interface:
    """Return what a network of the kind takes and gives, whatever its sizes."""
    del config
    dims, example = ("text_batch", "text_sequence"), (2, 24)
    return Interface(
        (Input("input_ids", "int32", dims, example), Input("attention_mask", "int32", dims, example)), (STATES,)
    )


def _forward(self: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
    import torch

    model = _body(self.network)
    states = model(input_ids, attention_mask, output_hidden_states=True, use_cache=False).hidden_states
    return torch.cat([states[number] for number in _taken(self.network.config.to_dict())], dim=-1)


def _body(network: Any) -> Any:
    """Return the layers of a network, with or without the head that makes words."""
    return getattr(network, "model", network)


def _check(component: str, class_name: str, config: Config) -> None:
    """Refuse a network that lacks a state that is taken, or whose layers see a part of the text."""
    layers = config.get("num_hidden_layers")
    taken = config.get(TAKEN_STATES) or [0]
    if not isinstance(taken, list) or not all(isinstance(number, int) for number in taken):
        raise SourceError(
            f"{component}: the config of {class_name} has `{TAKEN_STATES}: {shown(taken)}`, where a list of layers' "
            "numbers makes sense; get its config.json again"
        )
    if isinstance(layers, int) and max(taken) > layers:
        raise SourceError(
            f"{component}: {class_name} has {layers} layers, and the denoiser takes the states behind number "
            f"{max(taken)}; get both from the same pipeline"
        )
    turns = config.get("rope_parameters")
    check_base(component, class_name, turns if isinstance(turns, dict) else config, "rope_theta")
    heads, width = size_of(config, "num_attention_heads", 32), size_of(config, "head_dim", 128)
    groups = size_of(config, "num_key_value_heads", heads)
    if heads % groups or width % 2:
        raise SourceError(
            f"{component}: the config of {class_name} has {heads:g} heads of width {width:g} and {groups:g} of keys, "
            "where the width is even and the first number a multiple of the last; get its config.json again"
        )
    check_window(component, class_name, config)


def check_window(component: str, class_name: str, config: Config) -> None:
    """Refuse layers that see a part of the text each. Raises `SourceError`."""
    if config.get("use_sliding_window"):
        raise SourceError(
            f"{component}: {class_name} with `use_sliding_window: {shown(config['use_sliding_window'])}` is not "
            "supported: its layers read a part of the text each"
        )


_WHOLE: Final = "full_attention"
"""The kind of a layer that reads the whole text, as all do that are supported."""


def _spelled(config: Config) -> Config:
    """Return a config as transformers 5 spells it: rotations are one setting, and each layer has its kind."""
    found = dict(config)
    if "rope_parameters" not in found and found.get("rope_scaling") is None:
        found.pop("rope_scaling", None)
        found["rope_parameters"] = {"rope_theta": found.pop("rope_theta", 10000.0), "rope_type": "default"}
    if not found.get("use_sliding_window"):
        found["sliding_window"] = None
        if found.get("layer_types") is None and "num_hidden_layers" in found:
            found["layer_types"] = [_WHOLE] * found["num_hidden_layers"]
    return found


def _one_form(form: Json, config: Config) -> Json:
    """Leave out kinds of layers that say no more than their number, and write the base of rotations as one type."""
    if config["layer_types"] == [_WHOLE] * config["num_hidden_layers"]:
        form = {key: value for key, value in form.items() if key != "layer_types"}
    if "rope_parameters" in form:
        turns = form["rope_parameters"]
        form = {**form, "rope_parameters": {**turns, "rope_theta": float(config["rope_parameters"]["rope_theta"])}}
    return form


def _without_the_rest(network: Any, config: Config) -> Any:
    """Leave out layers above those whose states are taken, but for one: the last one's states are normed."""
    kept = min(max(_taken(config)) + 1, network.config.num_hidden_layers)
    _body(network).layers = _body(network).layers[:kept]
    network.config.num_hidden_layers = kept
    setattr(network.config, TAKEN_STATES, list(_taken(config)))
    return network


def _attend(
    self: Any, hidden_states: torch.Tensor, position_embeddings: Any, attention_mask: torch.Tensor | None, **_: Any
) -> tuple[torch.Tensor, None]:
    """Attend as transformers' `Qwen3Attention` does, with its rotations as single operators."""
    import torch

    def heads(values: torch.Tensor) -> torch.Tensor:
        return values.unflatten(-1, (-1, self.head_dim))

    half = self.head_dim // 2
    cosine, sine = (part[..., :half].expand(hidden_states.shape[0], -1, -1) for part in position_embeddings)
    query, key = (
        torch.onnx.ops.rotary_embedding(norm(heads(project(hidden_states))).transpose(1, 2), cosine, sine)
        for project, norm in ((self.q_proj, self.q_norm), (self.k_proj, self.k_norm))
    )
    value = heads(self.v_proj(hidden_states)).transpose(1, 2)
    found = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        is_causal=attention_mask is None,
        scale=self.scaling,
        enable_gqa=True,
    )
    return self.o_proj(found.transpose(1, 2).flatten(2)), None


def _as_operators(network: Any) -> None:
    """Write rotations and attention as operators that say what they are."""
    for layer in _body(network).layers:
        layer.self_attn.forward = MethodType(_attend, layer.self_attn)


def _config(published: Config, shapes: Shapes, head_width: int | None) -> Config:
    del published, head_width
    shapes = {name.removeprefix("model."): shape for name, shape in shapes.items()}
    if stranger := next((name for name in shapes if any(part in name for part in _OF_GEMMA)), None):
        raise ValueError(f"{stranger} is of Gemma, which has Qwen3's names besides")
    (vocabulary, width), (head,) = shapes["embed_tokens.weight"], shapes[_FIRST]
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shapes["layers.0.mlp.down_proj.weight"][1],
        "num_hidden_layers": layer_count(shapes, r"^layers\.(\d+)\."),
        "head_dim": head,
        "num_attention_heads": head_count(shapes["layers.0.self_attn.q_proj.weight"][0], head),
        "num_key_value_heads": head_count(shapes["layers.0.self_attn.k_proj.weight"][0], head),
    }


def _prefix_at(name: str) -> str | None:
    """Return what stands before the first layer, if it is one of a network of texts alone."""
    known = name.endswith(_FIRST) and "language_model" not in name
    return name.removesuffix(_FIRST).removesuffix("model.") if known else None


_FIRST: Final = "layers.0.self_attn.q_norm.weight"
STORED: Final = Stored(
    name="qwen3",
    to_library=lambda config, tensors: tensors,  # noqa: ARG005
    prefix_at=_prefix_at,
    config=_config,
)
_OF_GEMMA: Final = (".pre_feedforward_layernorm.", ".post_ffw_norm.")
IN_LLAMA: Final = in_llamas_names(
    STORED,
    {
        "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
        "blk.#.attn_norm": "model.layers.#.input_layernorm",
        "blk.#.ffn_norm": "model.layers.#.post_attention_layernorm",
        **{f"blk.#.attn_{one}": f"model.layers.#.self_attn.{one}_proj" for one in "qkv"},
        **{f"blk.#.attn_{one}_norm": f"model.layers.#.self_attn.{one}_norm" for one in "qk"},
        "blk.#.attn_output": "model.layers.#.self_attn.o_proj",
        **{f"blk.#.ffn_{one}": f"model.layers.#.mlp.{one}_proj" for one in ("gate", "up", "down")},
    },
    "blk.0.attn_q_norm.weight",
)  # fmt: skip
NETWORKS: Final = tuple(
    Network(
        class_name,
        ("text_encoder",),
        interface,
        lambda network: _forward,  # noqa: ARG005
        _check,
        prepare=_without_the_rest,
        stored=(STORED, IN_LLAMA),
        as_operators=_as_operators,
        counts=frozenset({"num_hidden_layers"}),
        sizes=frozenset(
            {
                "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
                "head_dim", "max_position_embeddings",
            }
        ),
        inert=frozenset(
            {
                "attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range",
                "max_window_layers", "sliding_window", "use_cache",
            }
        ),
        spelled=_spelled,
        one_form=_one_form,
    )
    for class_name in ("Qwen3ForCausalLM", "Qwen3Model")
)  # fmt: skip
