"""Prompts as inputs of the UNet: hidden states of the text encoders, and what SDXL's wants beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from olivelike.errors import SourceError, UsageError
from olivelike.runtime.final_norm import read_final_norm
from olivelike.runtime.prompts import EncodedText, encode_prompts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from olivelike.runtime.folder import PipelineFolder
    from olivelike.runtime.network import Network
    from olivelike.runtime.prompts import PromptTokenizer
    from olivelike.runtime.request import Request

_AESTHETIC_SCORES: Final = (6.0, 2.5)
"""For prompts and negative prompts, as diffusers' `StableDiffusionXLImg2ImgPipeline` has them."""


@dataclass(frozen=True, eq=False)
class Conditions:
    """What the pictures of a batch are led by; where guided, negative prompts first, in one batch with the prompts."""

    states: torch.Tensor
    """Of shape (batch, tokens, width)."""
    pooled: torch.Tensor | None
    """SDXL's `text_embeds`, of shape (batch, width)."""
    times: torch.Tensor | None
    """SDXL's `time_ids`, of shape (batch, 5 or 6), float32."""


def encode(
    prompts: Sequence[str],
    request: Request,
    folder: PipelineFolder,
    encoders: Sequence[tuple[PromptTokenizer, Network]],
) -> Conditions:
    """Encode the prompts of a batch.

    As diffusers' pipelines, but for `clip_skip`: it holds for negative prompts too, as in A1111, since the UNet
    compares the two.

    Args:
        prompts: one for each picture.
        request: gives negative prompt, guidance, `clip_skip`, and the size that SDXL is told.
        folder: the pipeline.
        encoders: each tokenizer with its network, in the order of `folder.text_encoders`.

    Raises:
        UsageError: if more layers are to be skipped than there are.
        SourceError: if a text encoder lacks an output.
    """
    import torch

    zeros = request.negative_prompt is None and bool(folder.index.get("force_zeros_for_empty_prompt"))
    wants_negative = request.guided and not (folder.is_xl and zeros)
    negative = [request.negative_prompt or ""] * len(prompts) if wants_negative else None
    callables = [(tokenizer, _Encoder(network, folder, request.clip_skip)) for tokenizer, network in encoders]
    found = encode_prompts(prompts, negative, callables, prompt_weights=request.prompt_weights)
    states, pooled = found.positive, found.positive_pooled if folder.is_xl else None
    if request.guided:
        against = torch.zeros_like(states) if found.negative is None else found.negative
        states = torch.cat([against, states])
        if pooled is not None:
            other = torch.zeros_like(pooled) if found.negative_pooled is None else found.negative_pooled
            pooled = torch.cat([other, pooled])
    return Conditions(states, pooled, _times(len(prompts), request, folder) if folder.is_xl else None)


def _times(count: int, request: Request, folder: PipelineFolder) -> torch.Tensor:
    """Return original size, crop's corner and target size, or in the refiner's case an aesthetic score."""
    import torch

    assert request.size is not None
    width, height = request.size
    if folder.index.get("requires_aesthetics_score"):
        rows = [[height, width, 0, 0, score] for score in _AESTHETIC_SCORES]
    else:
        rows = [[height, width, 0, 0, height, width]] * 2
    wanted = [rows[1]] * count + [rows[0]] * count if request.guided else [rows[0]] * count
    return torch.tensor(wanted, dtype=torch.float32)


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
        what = f"{self._folder.path / self._network.component / 'model.onnx'}"
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
