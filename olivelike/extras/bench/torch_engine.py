"""The original checkpoint in diffusers' torch pipeline: eager, compiled, or with xformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Final

from olivelike._light_diffusers import light_diffusers
from olivelike.errors import SourceError
from olivelike.extras.bench.bench_settings import TorchDtype
from olivelike.extras.bench.engines import TORCH, TORCH_COMPILE, XFORMERS, torch_device
from olivelike.measure.contest.engine import Engine, EngineAbsent, Stage, Stopwatch, Timing, Turn
from olivelike.measure.contest.runtime_engine import PipelineJob, weights_dtype
from olivelike.runtime.pipeline.pipeline_folder import open_folder
from olivelike.runtime.schedulers.class_settings import scheduler_settings

_PROVIDERS: Final = {TORCH: "default", TORCH_COMPILE: "compile", XFORMERS: "xformers"}
"""As the benchmark script that ONNX Runtime comes with calls them."""


@dataclass(frozen=True)
class TorchJob(PipelineJob):
    """Pictures by torch, from what a folder was made of; scheduler and precision are the folder's."""

    checkpoint: str = ""
    """A folder, a file or a hub id."""
    revision: str | None = None
    """Commit of a hub id."""
    torch_dtype: TorchDtype | None = None
    channels_last: bool = False
    """Whether torch keeps the UNet's weights in the order that some convolutions are faster in."""

    def start(self) -> Engine:
        """Open the pipeline in diffusers."""
        return TorchEngine(self)


class TorchEngine(Engine):
    """A pipeline of diffusers."""

    def __init__(self, job: TorchJob) -> None:
        import torch

        self._job = job
        device = torch_device(job.sessions.provider)
        _require_device(device)
        if job.sessions.intra_threads:
            torch.set_num_threads(job.sessions.intra_threads)
        dtype = job.torch_dtype or (weights_dtype(job.folder) if device != "cpu" else "float32")
        self._device, self._family = device, open_folder(job.folder).family
        self._stopwatch = Stopwatch(_synchronize(device))
        self._pipeline = _load(job, getattr(torch, dtype)).to(device)
        # The very scheduler that the folder has, so that both evaluate the UNet as often.
        self._pipeline.scheduler = _scheduler(job)
        self._pipeline.set_progress_bar_config(disable=True)
        denoiser = getattr(self._pipeline, self._family.denoiser)
        if job.channels_last:
            denoiser.to(memory_format=torch.channels_last)
        if job.engine == XFORMERS:
            self._pipeline.enable_xformers_memory_efficient_attention()
        if job.engine == TORCH_COMPILE:
            denoiser.compile(dynamic=False)
        _watch(self._pipeline, self._stopwatch)
        self.facts = {"version": str(torch.__version__), "provider": _PROVIDERS[job.engine], "dtype": dtype}

    def run(self, turn: Turn) -> Timing:
        """Make a batch of pictures."""
        import torch

        def on_step(_pipeline: Any, _number: int, _timestep: Any, _tensors: Any) -> dict[str, object]:
            self._stopwatch.step()
            return {}

        width, height = self._job.size
        seeds = range(turn.seed, turn.seed + turn.batch_size)
        self._stopwatch.start()
        self._pipeline(
            prompt=[turn.prompt] * turn.batch_size,
            width=width,
            height=height,
            num_inference_steps=self._job.steps,
            **self._family.asked(self._family.guidance),
            generator=[torch.Generator("cpu").manual_seed(seed) for seed in seeds],
            callback_on_step_end=on_step,
        )
        return self._stopwatch.stop()

    def device_bytes(self) -> int | None:
        """Return what torch's allocator has had of the GPU at most."""
        import torch

        return int(torch.cuda.max_memory_reserved()) if self._device == "cuda" else None


def _load(job: TorchJob, dtype: Any) -> Any:
    with light_diffusers():
        import diffusers

        cls = getattr(diffusers, open_folder(job.folder).family.pipelines[0])
    taken = signature(cls).parameters
    options: dict[str, Any] = {"torch_dtype": dtype}
    if "add_watermarker" in taken:
        options["add_watermarker"] = False
    if "safety_checker" in taken and not job.safety:
        options |= {"safety_checker": None, "requires_safety_checker": False}
    try:
        if Path(job.checkpoint).is_file():
            return cls.from_single_file(job.checkpoint, **options)
        return diffusers.DiffusionPipeline.from_pretrained(job.checkpoint, revision=job.revision, **options)
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{job.checkpoint}: diffusers can't load it: {error}; name the original with --checkpoint"
        ) from error


def _watch(pipeline: Any, stopwatch: Stopwatch) -> None:
    """Let the modules around the loop tell when they run."""
    vae = pipeline.vae
    around: list[tuple[Stage, Any, Any]] = [
        ("text_encoder", encoder, encoder)
        for name in ("text_encoder", "text_encoder_2")
        if (encoder := getattr(pipeline, name, None)) is not None
    ]
    around.append(("vae_decoder", getattr(vae, "post_quant_conv", None) or vae.decoder, vae.decoder))
    if (checker := getattr(pipeline, "safety_checker", None)) is not None:
        around.append(("safety_checker", checker, checker))
    for stage, first, last in around:
        first.register_forward_pre_hook(lambda *_, stage=stage: stopwatch.enter(stage))
        last.register_forward_hook(lambda *_, stage=stage: stopwatch.leave(stage))


def _scheduler(job: TorchJob) -> Any:
    """Return the folder's scheduler, as diffusers has it."""
    with light_diffusers():
        import diffusers

    chosen = scheduler_settings(None, open_folder(job.folder).scheduler)
    return getattr(diffusers, chosen.class_name).from_config(dict(chosen.settings))


def _require_device(device: str) -> None:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise EngineAbsent(f"this torch ({torch.__version__}) has no CUDA device")
    if device == "mps" and not torch.backends.mps.is_available():
        raise EngineAbsent(f"this torch ({torch.__version__}) has no Metal device")


def _synchronize(device: str) -> Callable[[], None]:
    import torch

    synchronize: dict[str, Callable[[], None]] = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}
    return synchronize.get(device, lambda: None)
