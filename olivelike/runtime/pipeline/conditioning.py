"""Prompts as inputs of the UNet: hidden states of the text encoders, and what SDXL's wants beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError, UsageError
from olivelike.model.families import MODEL_FILE
from olivelike.runtime.pipeline.prompt_cost import batch_texts, check_cost
from olivelike.runtime.prompts.prompt_encoding import EncodedText, PromptEmbeddings, PromptTokenizer, encode_prompts

if TYPE_CHECKING:
    import torch

    from olivelike.runtime.pipeline.image_prompt import ImagePrompt
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.pipeline.request import Request
    from olivelike.runtime.sessions.session import Network

_AESTHETIC_SCORES: Final = (6.0, 2.5)
"""For prompts and negative prompts, as diffusers' `StableDiffusionXLImg2ImgPipeline` has them."""


@dataclass(frozen=True, eq=False)
class Conditions:
    """What the rows of a batch are led by; where guided, negative prompts first, in one batch with the prompts."""

    states: torch.Tensor
    """Of shape (batch, tokens, width)."""
    pooled: torch.Tensor | None
    """SDXL's `text_embeds`, of shape (batch, width)."""
    times: torch.Tensor | None
    """SDXL's `time_ids`, of shape (batch, 5 or 6), float32."""
    guidance: torch.Tensor | None = None
    """LCM's `timestep_cond`, of shape (batch, width), float32."""
    image: torch.Tensor | None = None
    """An IP-Adapter's tokens, of shape (batch, tokens, width)."""


@dataclass(frozen=True)
class Terms:
    """Rows of prompts, where a picture has several, or one with a weight."""

    weights: tuple[float, ...]
    pictures: tuple[int, ...]
    """Which picture each row belongs to."""


def terms_of(weights: Sequence[Sequence[float]]) -> Terms | None:
    """Return the rows for the weights of each picture's terms; `None` if each has one, of weight 1."""
    if all(list(own) == [1.0] for own in weights):
        return None
    owners = tuple(picture for picture, own in enumerate(weights) for _ in own)
    return Terms(tuple(weight for own in weights for weight in own), owners)


@dataclass(frozen=True, eq=False)
class Conditioning:
    """What leads the pictures of a batch from step to step."""

    steps: tuple[Conditions, ...]
    """For each step; the same value as long as the texts stay."""
    guided: bool
    """Whether the rows begin with a negative prompt for each picture."""
    terms: Terms | None
    """How the rows of prompts belong to pictures; `None` if each picture has one, of weight 1."""

    def at(self, step: int) -> Conditions:
        """Return what leads a step, counted from 0; schedulers with a step more than asked repeat the last."""
        return self.steps[min(step, len(self.steps) - 1)]


def encode(
    prompts: Sequence[str],
    request: Request,
    folder: PipelineFolder,
    encoders: Sequence[tuple[PromptTokenizer, Network]],
    image: ImagePrompt | None = None,
) -> Conditioning:
    """Encode the prompts of a batch, each text that a step has once.

    As diffusers' pipelines, but for `clip_skip`: it holds for negative prompts too, as in A1111, since the UNet
    compares the two. Raises `UsageError` if more layers are to be skipped than there are, or prompts cost too much, and
    `SourceError` if a text encoder lacks an output.

    Args:
        prompts: one for each picture.
        request: gives negative prompt, guidance, `clip_skip`, and the size that SDXL takes as an input.
        encoders: each tokenizer with its network, in the order of `folder.text_encoders`.
        image: tokens of the pictures that are a prompt too.
    """
    found_texts = batch_texts(prompts, request, folder)
    check_cost(found_texts, folder, prompt_weights=request.prompt_weights)
    parted, against, guided = found_texts.parts, found_texts.against, found_texts.guided
    terms = terms_of([[term.weight for term in one] for one in parted])
    texts = found_texts.distinct
    callables = [(tokenizer, _Encoder(network, folder, request.clip_skip)) for tokenizer, network in encoders]
    found = encode_prompts(texts, callables, prompt_weights=request.prompt_weights)
    places = {text: place for place, text in enumerate(texts)}
    made: dict[tuple[int, ...], Conditions] = {}

    def conditions(step: int) -> Conditions:
        rows = tuple(places[term.texts[step]] for one in parted for term in one)
        negative = places[against[step]] if against else None
        key = rows if negative is None else (negative, *rows)
        if key not in made:
            made[key] = _conditions(found, rows, negative, len(prompts) if guided else 0, request, folder, image)
        return made[key]

    return Conditioning(tuple(conditions(step) for step in range(request.steps)), guided, terms)


def _conditions(
    found: PromptEmbeddings,
    rows: tuple[int, ...],
    negative: int | None,
    pictures: int,
    request: Request,
    folder: PipelineFolder,
    image: ImagePrompt | None,
) -> Conditions:
    """Return what leads one step: of all embeddings found, those of the prompts' rows, behind the negative prompt's.

    The negative one is `None` for zeros, and has a row for each of so many pictures: none without guidance.
    """
    import torch

    def gather(embedded: torch.Tensor) -> torch.Tensor:
        wanted = embedded[list(rows)]
        if not pictures:
            return wanted
        one = torch.zeros_like(embedded[:1]) if negative is None else embedded[negative : negative + 1]
        return torch.cat([one.expand(pictures, *one.shape[1:]), wanted])

    pooled = found.pooled if folder.is_xl else None
    return Conditions(
        gather(found.states),
        None if pooled is None else gather(pooled),
        _times(pictures, len(rows), request, folder) if folder.is_xl else None,
        embed_guidance(request.guidance_scale, folder.guidance_width).expand(pictures + len(rows), -1)
        if folder.guidance_width is not None
        else None,
        None if image is None else torch.cat([image.negative] * pictures + [image.tokens] * len(rows)),
    )


def embed_guidance(scale: float, width: int) -> torch.Tensor:
    """Return the embedding of a guidance scale that LCM's UNets take, of shape (1, width), float32.

    Sines and cosines of 1000 · (scale - 1), as of a timestep: https://arxiv.org/abs/2310.04378, section 4.3, with the
    frequencies of `LatentConsistencyModelPipeline.get_guidance_scale_embedding`.
    """
    import torch

    half = width // 2
    frequencies = torch.exp(torch.arange(half, dtype=torch.float32) * -(math.log(10000.0) / (half - 1)))
    angles = (scale - 1) * 1000.0 * frequencies[None]
    return torch.nn.functional.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, width % 2))


def _times(negatives: int, prompts: int, request: Request, folder: PipelineFolder) -> torch.Tensor:
    """Return original size, crop's corner and target size, or in the refiner's case an aesthetic score."""
    import torch

    assert request.size is not None
    width, height = request.size
    if folder.index.get("requires_aesthetics_score"):
        rows = [[height, width, 0, 0, score] for score in _AESTHETIC_SCORES]
    else:
        rows = [[height, width, 0, 0, height, width]] * 2
    return torch.tensor([rows[1]] * negatives + [rows[0]] * prompts, dtype=torch.float32)


class _Encoder:
    """A text encoder as prompts call it: the hidden states of the layer that the UNet was trained on."""

    def __init__(self, network: Network, folder: PipelineFolder, skipped: int) -> None:
        self._network = network
        self._folder = folder
        # SDXL's UNet was trained on the last layer but one, without its norm.
        back = skipped + folder.is_xl
        self._states = self._layer(back) if back else "last_hidden_state"
        self._norm = None if folder.is_xl or not back else read_final_norm(folder.model(network.component))

    def __call__(self, ids: torch.Tensor, /) -> EncodedText:
        network = self._network
        outputs = {self._states: (*ids.shape, self._width(self._states))}
        pooled = "text_embeds" if "text_embeds" in network.session.outputs else None
        if pooled is not None:
            outputs[pooled] = (ids.shape[0], self._width(pooled))
        call = network.prepare({"input_ids": tuple(ids.shape)}, outputs)
        call.inputs["input_ids"].copy_(ids)
        call.run()
        # The buffers are used again, by other prompts.
        states = call.outputs[self._states].clone()
        if self._norm is not None:
            states = self._norm.apply(states)
        return EncodedText(states, call.outputs[pooled].clone() if pooled is not None else None)

    def _layer(self, back: int) -> str:
        """Return the output that has the states `back` layers before the last one's."""
        outputs = self._network.session.outputs
        layers = sum(name.startswith("hidden_states.") for name in outputs) - 1
        what = f"{self._folder.path / self._network.component / MODEL_FILE}"
        if layers < 0:
            raise SourceError(
                f"{what}: has no outputs hidden_states.N, which clip_skip and SDXL need; "
                "convert the checkpoint with `olivelike run`, which writes them"
            )
        if back >= layers:
            raise UsageError(f"clip_skip leaves no layer: {what} has {layers}")
        return f"hidden_states.{layers - back}"

    def _width(self, output: str) -> int:
        last = self._network.output(output).dims[-1]
        if isinstance(last, int):
            return last
        config = self._folder.config(self._network.component)
        width = config.get("projection_dim" if output == "text_embeds" else "hidden_size")
        if not isinstance(width, int):
            raise SourceError(
                f"{self._folder.path / self._network.component}: neither model.onnx nor config.json says how "
                f"wide {output} is; make the folder again with `olivelike run`"
            )
        return width


_OUTPUT: Final = "last_hidden_state"
_WEIGHTS: Final = {"LayerNormalization": (1, 2), "SkipLayerNormalization": (2, 3)}
"""Operator → positions of scale and bias among its inputs."""
_EPSILON: Final = {"LayerNormalization": 1e-5, "SkipLayerNormalization": 1e-12}
"""Defaults of the operators' schemas."""


@dataclass(frozen=True, eq=False)
class FinalNorm:
    """The norm after a text encoder's last layer: scale and bias, of shape (width,), float32.

    Clients take `hidden_states.N` as they are and norm them with the network's own weights, from its model file.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    epsilon: float

    def apply(self, states: torch.Tensor) -> torch.Tensor:
        """Norm hidden states of shape (rows, tokens, width); computed in float32, returned in their dtype."""
        from torch.nn.functional import layer_norm

        weight, bias = self.weight.to(states.device), self.bias.to(states.device)
        return layer_norm(states.float(), weight.shape, weight, bias, self.epsilon).to(states.dtype)


def read_final_norm(path: Path) -> FinalNorm:
    """Read the norm that gives `last_hidden_state` from a model file.

    Raises `SourceError` if the file can't be read, or its last operator is no norm.
    """
    import onnx
    import torch
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(path, load_external_data=False)
    except (OSError, DecodeError) as error:
        raise SourceError(f"{path}: can't be read: {error}; run the workflow again") from error
    node = next((node for node in _chain(model) if node.op_type in _WEIGHTS), None)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    names = [node.input[place] for place in _WEIGHTS[node.op_type]] if node is not None else []
    if node is None or not stored.keys() >= set(names):
        raise SourceError(
            f"{path}: {_OUTPUT} is no layer norm with weights of its own, which clip_skip needs; "
            "convert the checkpoint with `olivelike run`"
        )
    weight, bias = (_tensor(stored[name], path) for name in names)
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), _EPSILON[node.op_type])
    return FinalNorm(torch.from_numpy(weight), torch.from_numpy(bias), epsilon)


def _chain(model: Any) -> list[Any]:
    """Return the node that gives `last_hidden_state`, or those that cast what it gives."""
    makers = {name: node for node in model.graph.node for name in node.output}
    found, name = [], _OUTPUT
    while (node := makers.get(name)) is not None:
        found.append(node)
        if node.op_type != "Cast":
            break
        name = node.input[0]
    return found


def _tensor(stored: Any, path: Path) -> Any:
    import numpy as np
    import onnx

    try:
        array = onnx.numpy_helper.to_array(stored, str(path.parent))
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: {stored.name} can't be read: {error}; run the workflow again") from error
    return np.array(array, np.float32)
