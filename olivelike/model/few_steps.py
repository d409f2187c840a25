"""Few-step models: checkpoints and LoRAs that were distilled, what tells them, and what they are drawn with.

Schedulers, steps and guidance are those of the model cards: latent-consistency/lcm-lora-sdxl, h1t/TCD-SDXL-LoRA,
ByteDance/SDXL-Lightning, ByteDance/Hyper-SD, tianweiy/DMD2, stabilityai/sd-turbo and sdxl-turbo on Hugging Face.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from olivelike._untrusted import Json, JsonView
    from olivelike.model.architecture import Config

FewStepsKind = Literal["lcm", "tcd", "lightning", "hyper", "dmd2", "turbo"]


@dataclass(frozen=True)
class FewSteps:
    """The kind of few-step model that a checkpoint or LoRA was distilled to."""

    kind: FewStepsKind
    steps: int | None = None
    """Number of steps that it is for; `None` if nothing says."""
    guided: bool = False
    """Whether it keeps guidance with a negative prompt, as Hyper-SD's "CFG" LoRAs."""
    reason: str = ""
    """Evidence, such as the metadata key that says it."""

    @property
    def recipe(self) -> Recipe:
        """Scheduler, steps and guidance to draw with."""
        if self.steps == 1 and self.kind in _ONE_STEP:
            return _ONE_STEP[self.kind]
        return _HYPER_GUIDED if self.kind == "hyper" and self.guided else _RECIPES[self.kind]

    def __str__(self) -> str:
        """Return what it is in a few words, with the reason."""
        steps = f" for {self.steps} step{'s' if self.steps > 1 else ''}" if self.steps else ""
        return f"{self.recipe.title}{steps} ({self.reason})"

    def scheduler_config(self, own: JsonView) -> Json:
        """Return a pipeline's `scheduler_config.json`, as diffusers' `from_config` makes the right scheduler of it."""
        kept = {key: value for key, value in own.items() if key != "skip_prk_steps" and not key.endswith("_sigmas")}
        recipe = self.recipe
        return {"clip_sample": False, **kept, **recipe.settings, "_class_name": recipe.class_name}


@dataclass(frozen=True)
class Recipe:
    """Scheduler, steps and guidance of models of one kind."""

    title: str
    scheduler: str
    """A name that `find_scheduler` knows."""
    class_name: str
    """Class of the scheduler in diffusers."""
    settings: Mapping[str, str | int] = field(default_factory=dict)
    """Settings of the scheduler beside those that the network was trained with."""
    steps: int = 4
    """Number of steps where nothing says it."""
    most: int = 8
    fixed: bool = False
    """Whether they want at least the steps that they are for."""
    guidance: float = 1.0
    most_guidance: float = 1.0
    """Above it pictures burn out; at 1 guidance is off."""
    eta: float = 0.0


ENOUGH: Final = 0.5
"""Weight of a LoRA that distils; with less of it the network is what it was."""

_TRAILING: Final = {"timestep_spacing": "trailing"}
_RECIPES: Final[Mapping[FewStepsKind, Recipe]] = {
    "lcm": Recipe("LCM", "LCM", "LCMScheduler", most_guidance=2.0),
    "tcd": Recipe("TCD", "TCD", "TCDScheduler", most=50, eta=0.3),
    "lightning": Recipe("Lightning", "Euler SGM Uniform", "EulerDiscreteScheduler", _TRAILING, fixed=True),
    "hyper": Recipe("Hyper-SD", "DDIM SGM Uniform", "DDIMScheduler", _TRAILING, fixed=True),
    # Of all 1000 timesteps 4 are 999, 749, 499 and 249, which it was trained on.
    "dmd2": Recipe("DMD2", "LCM SGM Uniform", "LCMScheduler", {"original_inference_steps": 1000}),
    "turbo": Recipe("Turbo", "Euler a SGM Uniform", "EulerAncestralDiscreteScheduler", _TRAILING),
}
_ONE_STEP: Final[Mapping[FewStepsKind, Recipe]] = {
    "hyper": Recipe("Hyper-SD", "TCD", "TCDScheduler", eta=1.0),
    "lightning": Recipe(
        "Lightning", "Euler SGM Uniform", "EulerDiscreteScheduler", {**_TRAILING, "prediction_type": "sample"}, most=1
    ),
}
"""Hyper-SD's takes up to 8 as well; Lightning's predicts the picture, and takes one alone."""
_HYPER_GUIDED: Final = Recipe(
    "Hyper-SD with guidance", "DDIM SGM Uniform", "DDIMScheduler", _TRAILING, 8, 20,
    fixed=True, guidance=5.0, most_guidance=8.0,
)  # fmt: skip

_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_STEPS: Final = re.compile(r"(?<![0-9])([0-9]{1,2})[ _-]?steps?(?![a-z])")
_WORDS: Final[Mapping[FewStepsKind, str]] = {
    "tcd": "tcd",
    "dmd2": "dmd2?",
    "hyper": r"hyper[ _-]*(?:sd|sdxl|sd15)?(?=[ _0-9-]*steps?)|hyper[ _-]*(?:sd|sdxl|sd15)",
    "lightning": "(?:sd|xl|sdxl)?lightning",
    "turbo": "(?:sd|xl|sdxl)?turbo",
    "lcm": "lcm|latent[ _-]consistency(?:[ _-]models?)?",
}
_TITLES: Final = ("modelspec.title", "ss_output_name", "modelspec.tags")
_PLAIN_NAME: Final = re.compile(r"pytorch_lora_weights|adapter_model|diffusion_pytorch_model|model|lora|[0-9a-f]{40,}")
"""Names of files that say what they hold, not what they are."""
_SHOWN: Final = 60


def few_steps_of_text(text: str) -> FewSteps | None:
    """Return what a title or the name of a file says; `None` if it says nothing."""
    plain = _CAPITAL.sub(" ", text).casefold()
    kind = next((kind for kind, words in _WORDS.items() if _has(words, plain)), None)
    if kind is None:
        return None
    steps = _STEPS.search(plain)
    told = int(steps[1]) if steps and int(steps[1]) else None
    return FewSteps(kind, told, kind == "hyper" and "cfg" in plain)


def _has(words: str, text: str) -> bool:
    return re.search(rf"(?<![a-z])(?:{words})(?![a-z])", text) is not None


def few_steps_of_metadata(metadata: Mapping[str, str]) -> FewSteps | None:
    """Return what the title in a weight file's header says, by Stability's `modelspec.*` and kohya's `ss_*` keys."""
    for key in _TITLES:
        if (found := few_steps_of_text(metadata.get(key, ""))) is not None:
            return replace(found, reason=f"{key} is {metadata[key][:_SHOWN]!r}")
    return None


def few_steps_of_path(path: PurePath) -> FewSteps | None:
    """Return what names alone say, where nothing else tells: of the file, or of the folder or repository it is in."""
    repository = next((part for part in reversed(path.parts) if part.startswith("models--")), None)
    around = path.parent.name if repository is None else repository.removeprefix("models--").replace("--", "/")
    for name in (path.stem, *([around] if _PLAIN_NAME.fullmatch(path.stem) else [])):
        if (found := few_steps_of_text(name)) is not None:
            return replace(found, reason=f"the name {name[:_SHOWN]!r} says so, and nothing else does")
    return None


def few_steps_of_configs(unet: Config, scheduler: JsonView) -> FewSteps | None:
    """Return what the configs of a pipeline's UNet and scheduler say; `None` for a usual one."""
    own, spacing = scheduler.get("_class_name"), scheduler.get("timestep_spacing")
    if unet.get("time_cond_proj_dim") is not None:
        return FewSteps("lcm", reason="its UNet takes the guidance as an input")
    if own == "TCDScheduler":
        return FewSteps("tcd", reason=f"its scheduler is {own}")
    if own == "LCMScheduler":
        whole = scheduler.get("original_inference_steps") == 1000
        return FewSteps("dmd2" if whole else "lcm", reason=f"its scheduler is {own}")
    if spacing != "trailing" or scheduler.get("rescale_betas_zero_snr"):
        return None
    if own == "EulerDiscreteScheduler" and scheduler.get("prediction_type") == "sample":
        return FewSteps("lightning", 1, reason="its UNet predicts the picture itself")
    # stabilityai/sd-turbo and sdxl-turbo; other pipelines of noise begin at the last timestep but one.
    if own == "EulerAncestralDiscreteScheduler" or (own, unet.get("cross_attention_dim")) == (
        "EulerDiscreteScheduler",
        1024,
    ):
        epsilon = scheduler.get("prediction_type", "epsilon") == "epsilon"
        return FewSteps("turbo", reason=f"its scheduler is {own}, from the last timestep on") if epsilon else None
    return None
