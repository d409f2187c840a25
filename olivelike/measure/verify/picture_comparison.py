"""How alike two pictures are, and pictures of an output folder beside those of its original."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from olivelike._light_diffusers import light_diffusers
from olivelike._untrusted import Json, read_settings
from olivelike.engine.output.assets import byte_pair_files
from olivelike.errors import SourceError
from olivelike.families import family_of_folder
from olivelike.families.network import stored_values
from olivelike.families.supported import first_line
from olivelike.graphs.export.torch_network import build_network
from olivelike.measure.verify.original import fill
from olivelike.model.components import TAKEN_STATES
from olivelike.runtime import Request, open_pipeline
from olivelike.runtime.jobs.fast import few_steps_of, sped_up
from olivelike.runtime.pipeline.pipeline_folder import recorded_facts
from olivelike.sources.identify.published import read_extra
from olivelike.sources.names.loading_result import quiet

if TYPE_CHECKING:
    from PIL.Image import Image

    from olivelike.families.family import TextPart
    from olivelike.measure.verify.folder_original import Originals
    from olivelike.runtime.sessions.session_settings import SessionSettings

    Array = np.ndarray[Any, Any]

_WINDOW, _SIGMA = 11, 1.5
_K1, _K2 = 0.01, 0.03


@dataclass(frozen=True)
class Likeness:
    """Two pictures of one prompt and seed."""

    prompt: str
    seed: int
    optimised: Image
    original: Image
    psnr: float
    """Peak signal-to-noise ratio in dB; infinite for equal pictures."""
    ssim: float
    """Structural similarity, 1 for equal pictures."""

    def to_json(self) -> Json:
        """Return the figures as JSON values; the PSNR of equal pictures is `None`."""
        psnr = self.psnr if math.isfinite(self.psnr) else None
        return {"prompt": self.prompt, "seed": self.seed, "psnr": psnr, "ssim": self.ssim}


def compare_pictures(
    folder: Path,
    originals: Originals,
    prompts: Sequence[str],
    *,
    seed: int = 0,
    steps: int = 20,
    size: tuple[int, int] | None = None,
    settings: SessionSettings | None = None,
) -> list[Likeness]:
    """Make the same pictures with an output folder and with diffusers on torch in float32, and compare them.

    Raises `SourceError` if the folder or the source is no whole pipeline, and `SessionError` if the folder can't run on
    this machine.

    Args:
        originals: What it was made of, its text encoders, UNet and VAE decoder opened.
        prompts: One picture for each.
        seed: Of the first picture; the others have the numbers after it.
        size: Width and height in pixels; by default what the UNet was trained on.
        settings: Provider and device; by default those of the folder's target.
    """
    pipeline = open_pipeline(folder, settings, safety=False)
    family = pipeline.folder.family
    pairs = []
    for index, prompt in enumerate(prompts):
        request = Request(
            (prompt,), seed=seed + index, steps=steps, size=size, guidance_scale=family.guidance, prompt_weights=False
        )
        if few_steps_of(pipeline.folder, ()) is not None:
            request = replace(sped_up(request, {"steps"}, pipeline.folder, ())[0], scheduler=None)
        result = pipeline.generate(request)
        pairs.append((result.request, result.pictures[0].image))
    del pipeline  # Both at once may be more than there is memory for.
    originals.source = originals.source.distilled(recorded_facts(folder).few_steps)
    reference = torch_pipeline(originals)
    layers = _taken_layers(originals, signature(reference.__call__).parameters)
    takes_eta = "eta" in signature(reference.__call__).parameters
    found = []
    for request, optimised in pairs:
        original = reference(
            prompt=request.prompts[0],
            width=request.size[0],
            height=request.size[1],
            num_inference_steps=request.steps,
            **family.asked(request.guidance_scale),
            generator=torch.Generator("cpu").manual_seed(request.seed),
            **({"eta": request.eta} if takes_eta else {}),
            **layers,
        ).images[0]
        likeness = psnr(optimised, original), ssim(optimised, original)
        found.append(Likeness(request.prompts[0], request.seed, optimised, original, *likeness))
    return found


def psnr(a: Image, b: Image) -> float:
    """Return the peak signal-to-noise ratio of two RGB pictures of one size, in dB."""
    mean = float(np.mean((_values(a) - _values(b)) ** 2))
    return math.inf if mean == 0 else -10 * math.log10(mean)


def ssim(a: Image, b: Image) -> float:
    """Return the mean structural similarity of two RGB pictures of one size.

    As in Wang, Bovik, Sheikh and Simoncelli, "Image quality assessment: from error visibility to structural
    similarity" (2004): Gaussian window of 11 x 11, sigma 1.5, K1 = 0.01, K2 = 0.03; the mean over the channels.
    """
    x, y = (torch.from_numpy(_values(image)).permute(2, 0, 1).unsqueeze(1) for image in (a, b))
    axis = torch.arange(_WINDOW, dtype=torch.float64) - _WINDOW // 2
    line = torch.exp(-(axis**2) / (2 * _SIGMA**2))
    window = torch.outer(line, line)
    window = (window / window.sum())[None, None]

    def blurred(values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(values, window)

    mean_x, mean_y = blurred(x), blurred(y)
    variance_x, variance_y = blurred(x * x) - mean_x**2, blurred(y * y) - mean_y**2
    covariance = blurred(x * y) - mean_x * mean_y
    c1, c2 = _K1**2, _K2**2
    above = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    below = (mean_x**2 + mean_y**2 + c1) * (variance_x + variance_y + c2)
    return float((above / below).mean())


def _values(image: Image) -> Array:
    """Return a picture as float64 from 0 to 1, (height, width, 3)."""
    return np.asarray(image.convert("RGB"), np.float64) / 255


def torch_pipeline(originals: Originals) -> Any:
    """Return the text-to-image pipeline in float32 on the CPU, without a safety checker.

    Tokenizers and scheduler are the source's own, as its index names them. Raises `SourceError` if the source has no
    tokenizer or scheduler.
    """
    import diffusers
    from transformers.utils import logging

    source = originals.source
    family = family_of_folder(source.index, source.checkpoints, {})
    parts: dict[str, object] = {
        "vae": _network(originals, "vae_decoder"),
        family.denoiser: _network(originals, family.denoiser),
        "scheduler": _scheduler(originals),
    }
    for text in family.texts:
        if text.component in source.checkpoints:
            parts[text.component] = _network(originals, text.component)
            parts[text.tokenizer] = _tokenizer(originals, text)
    with quiet(logging):  # Importing the class asks for image processors of torchvision, which it never uses.
        cls = getattr(diffusers, family.pipelines[0])
    taken = signature(cls).parameters
    off: dict[str, object] = {"safety_checker": None, "feature_extractor": None}
    off |= {"requires_safety_checker": False, "add_watermarker": False}
    options = {name: value for name, value in off.items() if name in taken}
    if "is_distilled" in taken:
        options["is_distilled"] = bool(source.index.get("is_distilled"))
    if family.zeros_for_no_text:
        options["force_zeros_for_empty_prompt"] = bool(source.index.get("force_zeros_for_empty_prompt", True))
    pipeline = cls(**parts, **options)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _network(originals: Originals, component: str) -> Any:
    """Return a network with its weights; what text to image has no use for, such as the VAE's encoder, is zero."""
    architecture, read = originals.network(component)
    network = build_network(architecture)
    parameters = stored_values(network)
    unused = ("encoder.", "quant_conv.") if component == "vae_decoder" else ()

    def values(name: str) -> Array:
        return np.zeros(parameters[name].shape, np.float32) if name.startswith(unused) else read(name)

    fill(network, parameters, values, torch.float32)
    return network


def _taken_layers(originals: Originals, taken: Collection[str]) -> Json:
    """Return the states of a text encoder as an argument, for pipelines that take it."""
    configs = (one.config for one in originals.source.checkpoints.values())
    states = next((config[TAKEN_STATES] for config in configs if TAKEN_STATES in config), None)
    name = "text_encoder_out_layers"
    return {name: tuple(states)} if states is not None and name in taken else {}


def _scheduler(originals: Originals) -> Any:
    source = originals.source
    path, entry = source.extras.get("scheduler/scheduler_config.json"), source.index.get("scheduler")
    named = entry[-1] if isinstance(entry, list) and entry else None
    with light_diffusers():
        import diffusers

        cls: Any = getattr(diffusers, named, None) if isinstance(named, str) else None
        if path is None or not hasattr(cls, "from_config"):
            raise SourceError("the source names no scheduler of diffusers, so its pictures can't be made")
        config, few_steps = read_settings(path, "get the file again", unbounded=True), source.few_steps
        # It imports all classes that take the config, too.
        return cls.from_config(config if few_steps is None else few_steps.scheduler_config(config))


_TOKENIZERS: Final = {"clip": "CLIPTokenizer", "t5": "T5Tokenizer", "chat": "Qwen2Tokenizer"}
"""Kind of text → class of transformers that reads it."""


def _tokenizer(originals: Originals, text: TextPart) -> Any:
    import transformers

    files = {key: path for key, path in originals.source.extras.items() if key.startswith(f"{text.tokenizer}/")}
    if not files:
        raise SourceError(f"the source has no {text.tokenizer}, so its pictures can't be made")
    with tempfile.TemporaryDirectory(prefix="olivelike-tokenizer-") as folder:
        contents = {key: read_extra(path) for key, path in files.items()}
        if text.kind == "clip":  # A single file brings no vocabulary.
            contents |= byte_pair_files(text.tokenizer, contents)
        for key, data in contents.items():
            Path(folder, key.rpartition("/")[2]).write_bytes(data)
        try:
            tokenizer = getattr(transformers, _TOKENIZERS[text.kind]).from_pretrained(folder, local_files_only=True)
        except Exception as error:
            raise SourceError(
                f"the source's {text.tokenizer} can't be read, so its pictures can't be made: {first_line(error)}; get "
                "its files again"
            ) from error
    if text.template[0] and tokenizer.chat_template is None:  # Files of one network come with none.
        tokenizer.chat_template = text.chat_template
    return tokenizer
