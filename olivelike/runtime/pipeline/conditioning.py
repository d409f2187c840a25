"""Prompts as inputs of the denoiser: what its family makes of texts, sizes and guidance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from olivelike.errors import SourceError, UsageError
from olivelike.families.denoiser_forms import EncodedText, Inputs
from olivelike.model.components import MODEL_FILE
from olivelike.model.guides import IMAGE_TOKENS
from olivelike.runtime.pipeline.prompt_cost import batch_texts, check_cost
from olivelike.runtime.prompts.text_kinds import TextReader, encode_prompts

if TYPE_CHECKING:
    from olivelike.families.denoiser_forms import Array
    from olivelike.families.family import TextPart
    from olivelike.runtime.pipeline.guides_in_use import ImagePrompt
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.pipeline.request import ResolvedRequest
    from olivelike.runtime.sessions.session import Network


@dataclass(frozen=True)
class Terms:
    """Rows of prompts, where a picture has several, or one with a weight."""

    weights: tuple[float, ...]
    pictures: tuple[int, ...]
    """Picture that each row belongs to."""


def terms_of(weights: Sequence[Sequence[float]]) -> Terms | None:
    """Return the rows for the weights of each picture's terms; `None` if each has one, of weight 1."""
    if all(list(own) == [1.0] for own in weights):
        return None
    owners = tuple(picture for picture, own in enumerate(weights) for _ in own)
    return Terms(tuple(weight for own in weights for weight in own), owners)


@dataclass(frozen=True, eq=False)
class Conditioning:
    """Inputs that lead a batch's pictures from step to step, with a row for each row, negative prompts first."""

    steps: tuple[Inputs, ...]
    """For each step; the same value as long as the texts stay."""
    guided: bool
    """Whether the rows begin with a negative prompt for each picture."""
    terms: Terms | None
    """Owners and weights of the rows of prompts; `None` if each picture has one, of weight 1."""

    def at(self, step: int) -> Inputs:
        """Return what leads a step, counted from 0; schedulers with a step more than asked repeat the last."""
        return self.steps[min(step, len(self.steps) - 1)]


_MOST_KEPT: Final = 8
_MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class KeptTexts:
    """What batches' texts became: who draws with the same ones again opens no encoder.

    The last `_MOST_KEPT` batches are kept, each of at most `_MOST_BYTES`.
    """

    _kept: dict[tuple[object, ...], Inputs] = field(default_factory=dict)
    """The one that was asked for last at the end."""

    def get(self, texts: tuple[object, ...], encode: Callable[[], Inputs]) -> Inputs:
        """Return what texts are, and encode them if they are not here."""
        found = self._kept.pop(texts, None)
        if found is None:
            found = encode()
            if sum(value.nbytes for value in found.values()) > _MOST_BYTES:
                return found
        self._kept[texts] = found
        for first in list(self._kept)[:-_MOST_KEPT]:
            del self._kept[first]
        return found

    def clear(self) -> None:
        """Let the next batch encode its texts."""
        self._kept.clear()


def encode(
    prompts: Sequence[str],
    request: ResolvedRequest,
    folder: PipelineFolder,
    encoders: Callable[[], Sequence[tuple[TextReader, Network]]],
    kept: KeptTexts,
    image: ImagePrompt | None = None,
) -> Conditioning:
    """Encode the prompts of a batch, each text that a step has once.

    As diffusers' pipelines, but for `clip_layer`: it holds for negative prompts too, as in A1111, since the denoiser
    compares the two. Raises `UsageError` if more layers are to be skipped than there are, or prompts cost too much, and
    `SourceError` if a text encoder lacks an output.

    Args:
        prompts: one for each picture.
        request: gives negative prompt, guidance, `clip_layer`, and the size that some denoisers take as an input.
        encoders: returns each reader of texts with its network, in the order of `folder.texts`.
        kept: texts of batches before, of the same encoders.
        image: tokens of the pictures that are a prompt too.
    """
    found_texts = batch_texts(prompts, request, folder)
    check_cost(found_texts, folder, prompt_weights=request.prompt_weights)
    parted, against, guided = found_texts.parts, found_texts.against, found_texts.guided
    terms = terms_of([[term.weight for term in one] for one in parted])
    texts = found_texts.distinct

    def encoded() -> Inputs:
        callables = [
            (reader, _Encoder(network, folder, part, request.clip_layer))
            for part, (reader, network) in zip(folder.texts, encoders(), strict=True)
        ]
        read = encode_prompts(texts, callables, prompt_weights=request.prompt_weights)
        names = (part.component for part in folder.texts)
        return folder.form.encode(dict(zip(names, read, strict=True)), folder.denoiser)

    found = kept.get((*texts, request.clip_layer, request.prompt_weights), encoded)
    places = {text: place for place, text in enumerate(texts)}
    made: dict[tuple[int, ...], Inputs] = {}

    def conditions(step: int) -> Inputs:
        rows = tuple(places[term.texts[step]] for one in parted for term in one)
        negative = places[against[step]] if against else None
        key = rows if negative is None else (negative, *rows)
        if key not in made:
            made[key] = _conditions(found, rows, negative, len(prompts) if guided else 0, request, folder, image)
        return made[key]

    return Conditioning(tuple(conditions(step) for step in range(request.steps)), guided, terms)


def _conditions(
    found: Inputs,
    rows: tuple[int, ...],
    negative: int | None,
    pictures: int,
    request: ResolvedRequest,
    folder: PipelineFolder,
    image: ImagePrompt | None,
) -> Inputs:
    """Return what leads one step: of all texts' embeddings, those of the prompts' rows, behind the negative prompt's.

    The negative one is `None` for zeros, and has a row for each of so many pictures: none without guidance.
    """
    import numpy as np

    def gather(embedded: Array) -> Array:
        wanted = embedded[list(rows)]
        if not pictures:
            return wanted
        one = np.zeros_like(embedded[:1]) if negative is None else embedded[negative : negative + 1]
        return np.concatenate([one] * pictures + [wanted])

    inputs = {name: gather(value) for name, value in found.items()}
    for name, (of_prompts, of_negatives) in folder.family.size_inputs(*request.size).items():
        inputs[name] = np.array([of_negatives] * pictures + [of_prompts] * len(rows), np.float32)
    if (guidance := folder.guidance_input) is not None:
        row = guidance.row(request.guidance_scale)
        inputs[guidance.name] = np.broadcast_to(row, (pictures + len(rows), *row.shape[1:]))
    if image is not None:
        inputs[IMAGE_TOKENS] = np.concatenate([image.negative] * pictures + [image.tokens] * len(rows))
    return inputs


class _Encoder:
    """A text encoder as prompts call it: the hidden states of the layer that the denoiser was trained on."""

    def __init__(self, network: Network, folder: PipelineFolder, part: TextPart, clip_layer: int) -> None:
        self._network = network
        self._folder = folder
        back = part.layers_back(clip_layer)
        self._states = self._layer(back) if back else part.output
        self._norm = read_final_norm(folder.model(network.component)) if back and part.normed else None
        self._pooled = part.pooled if part.pooled in network.session.outputs else None
        # Embeddings add words to CLIP's.
        self._words = folder.config(network.component).get("vocab_size") if part.kind != "clip" else None
        self._tokenizer = folder.path / part.tokenizer

    def __call__(self, ids: Array, mask: Array | None = None, /) -> EncodedText:
        network = self._network
        if isinstance(self._words, int) and ids.size and (last := int(ids.max())) >= self._words:
            raise SourceError(
                f"{self._tokenizer}: gives token {last}, and {network.component} knows those below {self._words}; "
                "get both from the same pipeline"
            )
        outputs = {self._states: (*ids.shape, self._width(self._states))}
        pooled = self._pooled
        if pooled is not None:
            outputs[pooled] = (ids.shape[0], self._width(pooled))
        given = {"input_ids": ids} if mask is None else {"input_ids": ids, "attention_mask": mask}
        call = network.prepare({name: value.shape for name, value in given.items()}, outputs)
        for name, value in given.items():
            call.inputs[name][...] = value
        call.run()
        # The buffers are used again, by other prompts.
        states = call.outputs[self._states].copy()
        if self._norm is not None:
            states = self._norm.apply(states)
        return EncodedText(states, call.outputs[pooled].copy() if pooled is not None else None)

    def _layer(self, back: int) -> str:
        """Return the output that has the states `back` layers before the last one's."""
        outputs = self._network.session.outputs
        layers = sum(name.startswith("hidden_states.") for name in outputs) - 1
        what = f"{self._folder.path / self._network.component / MODEL_FILE}"
        if layers < 0:
            raise SourceError(
                f"{what}: has no outputs hidden_states.N, which clip_layer and SDXL need; "
                "convert the checkpoint with `olivelike run`, which writes them"
            )
        if back >= layers:
            raise UsageError(f"clip_layer leaves no layer: {what} has {layers}")
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

    weight: Array
    bias: Array
    epsilon: float

    def apply(self, states: Array) -> Array:
        """Norm hidden states of shape (rows, tokens, width); computed in float32, returned in their dtype."""
        import numpy as np

        given = states.astype(np.float32)
        centred = given - given.mean(axis=-1, keepdims=True)
        deviation = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + np.float32(self.epsilon))
        normed: Array = centred / deviation * self.weight + self.bias
        return normed.astype(states.dtype)


def read_final_norm(path: Path) -> FinalNorm:
    """Read the norm that gives `last_hidden_state` from a model file.

    Raises `SourceError` if the file can't be read, or its last operator is no norm.
    """
    from google.protobuf.message import DecodeError

    from olivelike.model.onnx_messages import load_model

    try:
        model = load_model(path)
    except (OSError, DecodeError) as error:
        raise SourceError(f"{path}: can't be read: {error}; run the workflow again") from error
    node = next((node for node in _chain(model) if node.op_type in _WEIGHTS), None)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    names = [node.input[place] for place in _WEIGHTS[node.op_type]] if node is not None else []
    if node is None or not stored.keys() >= set(names):
        raise SourceError(
            f"{path}: {_OUTPUT} is no layer norm with weights of its own, which clip_layer needs; "
            "convert the checkpoint with `olivelike run`"
        )
    weight, bias = (_tensor(stored[name], path) for name in names)
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), _EPSILON[node.op_type])
    return FinalNorm(weight, bias, epsilon)


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

    from olivelike.model.onnx_messages import to_array

    try:
        array = to_array(stored, path.parent)
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: {stored.name} can't be read: {error}; run the workflow again") from error
    return np.array(array, np.float32)
