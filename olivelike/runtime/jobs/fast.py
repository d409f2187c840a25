"""`--fast`: scheduler, steps and guidance that a few-step model is made for; a word where others are asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from olivelike._text import count
from olivelike.model.few_steps import ENOUGH, FewSteps, few_steps_of_configs
from olivelike.runtime.pipeline.cheap_steps import CHEAPER

if TYPE_CHECKING:
    from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder
    from olivelike.runtime.pipeline.request import Request

_EMBEDDED_GUIDANCE: Final = 8.0
"""For LCM's UNets, which take it as an input: as the card of SimianLuo/LCM_Dreamshaper_v7 has it."""
_MAKES_FAST: Final = {
    768: "latent-consistency/lcm-lora-sdv1-5",
    1024: "h1t/TCD-SD21-base-LoRA",
    2048: "latent-consistency/lcm-lora-sdxl",
}
"""Width of the prompt's vectors → a published LoRA."""


class Lora(Protocol):
    """A LoRA on top of a folder, as a value: equal ones change it equally."""

    @property
    def name(self) -> str:
        """Name of its file."""

    @property
    def hash(self) -> str:
        """As A1111 prints it."""

    @property
    def unet_weight(self) -> float:
        """Its weight for the UNet."""

    @property
    def few_steps(self) -> FewSteps | None:
        """Steps and guidance that it distils the UNet to."""


def few_steps_of(folder: PipelineFolder, loras: Sequence[Lora]) -> FewSteps | None:
    """Return what a folder with LoRAs on top is distilled to: what the last LoRA says, the record, the configs.

    `None` for those of flow matching, whose family has their steps and guidance.
    """
    if folder.is_of_flow:
        return None
    live = (lora.few_steps for lora in reversed(loras) if lora.unet_weight >= ENOUGH and lora.few_steps is not None)
    return next(live, None) or folder.recorded.few_steps or few_steps_of_configs(folder.denoiser, folder.scheduler)


def sped_up(
    request: Request, given: Collection[str], folder: PipelineFolder, loras: Sequence[Lora]
) -> tuple[Request, str]:
    """Return a request with what suits the folder, and a line that says so.

    Args:
        given: fields that were asked for; they stay, as far as the model can do with them.
        loras: on top of the folder.
    """
    few = few_steps_of(folder, loras)
    if few is None and folder.is_of_flow:
        usual = f"{count(folder.family.steps, 'step')} and guidance {folder.family.guidance:g}"
        return request, (
            f"fast: {folder.path.name} is drawn with {usual} where nothing else is asked for, as it was made for; all "
            "stays as it is"
        )
    if few is None:
        name = _MAKES_FAST.get(folder.denoiser.get("cross_attention_dim", 0))
        lora = f"--lora {name}" if name else "a LoRA that was distilled for it (LCM, TCD, Lightning, Hyper-SD, DMD2)"
        return request, (
            f"fast: {folder.path.name} is no few-step model, so all stays as it is; {lora} makes it one, and {CHEAPER}"
        )
    recipe, least, most = few.recipe, *_bounds(few)
    steps = min(max(request.steps if "steps" in given else few.steps or recipe.steps, least), most)
    embedded = folder.takes_guidance
    guidance = request.guidance_scale if "guidance_scale" in given else recipe.guidance
    guidance = min(guidance, recipe.most_guidance)
    if embedded:
        guidance = request.guidance_scale if "guidance_scale" in given else _EMBEDDED_GUIDANCE
    scheduler = request.scheduler
    if "scheduler" not in given:
        scheduler = None if _has_own(few, folder) else recipe.scheduler
    eta = request.eta if "eta" in given or "scheduler" in given else recipe.eta
    made = replace(request, steps=steps, guidance_scale=guidance, scheduler=scheduler, eta=eta)
    shown = scheduler or str(folder.scheduler.get("_class_name"))
    off = "off" if not made.guided and not embedded else f"{guidance:g}"
    line = f"fast: {few}: {shown}, {count(steps, 'step')}, guidance {off}"
    corrected = [
        f"{option} {getattr(request, option):g}"
        for option in ("steps", "guidance_scale")
        if option in given and getattr(request, option) != getattr(made, option)
    ]
    if corrected:
        line += f" in place of {', '.join(corrected)}, which it is not made for"
    return made, line


def unsuited_notes(jobs: Iterable[tuple[Request, Sequence[Lora]]], folder: PipelineFolder) -> Iterator[str]:
    """Return a line for each few-step model that is asked for more steps or guidance than it was made for."""
    for request, loras in jobs:
        few = few_steps_of(folder, loras)
        if few is None:
            continue
        _, most = _bounds(few)
        burns = not folder.takes_guidance and request.guidance_scale > few.recipe.most_guidance
        if request.steps > most or burns:
            asked = [f"{request.steps} steps"] if request.steps > most else []
            asked += [f"CFG scale {request.guidance_scale:g}"] if burns else []
            yield f"{' and '.join(asked)}: more than this is made for, {few}; --fast takes what suits it"


def _bounds(few: FewSteps) -> tuple[int, int]:
    """Return the least and the most steps."""
    least = (few.steps or 1) if few.recipe.fixed else 1
    return least, max(few.recipe.most, least)


def _has_own(few: FewSteps, folder: PipelineFolder) -> bool:
    """Tell whether the folder's own scheduler is the right one."""
    own, recipe = folder.scheduler, few.recipe
    alone = few_steps_of_configs({**folder.denoiser, "time_cond_proj_dim": None}, own)
    if alone is not None and alone.kind == few.kind:
        return True
    return own.get("_class_name") == recipe.class_name and all(own.get(k) == v for k, v in recipe.settings.items())
