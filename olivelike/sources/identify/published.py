"""Published configs of each family, for checkpoints in one file.

Configs of networks are those of the repositories named below. `derive_config` replaces widths, depths and counts in
them by what a file's shapes say; what no shape tells (heads, groups, activations, scaling factor) stays. So distilled
and small networks of a family open as well as the published ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from olivelike.errors import SourceError
from olivelike.families.networks import STORED
from olivelike.families.supported import first_line

if TYPE_CHECKING:
    from olivelike.families.family import Family
    from olivelike.model.architecture import Config
    from olivelike.model.components import Prediction
    from olivelike.sources.identify.identity import Part

_PUBLISHED = Path(__file__).parents[2] / "data" / "published"


def network_class(family: Family, folder: str) -> tuple[str, str]:
    """Return library and class of the published network in a folder of a pipeline."""
    texts = {text.component: ("transformers", text.class_name) for text in family.texts}
    return {family.denoiser: ("diffusers", family.denoiser_class), "vae": ("diffusers", "AutoencoderKL"), **texts}[
        folder
    ]


def derive_config(family: Family, part: Part, tensors: Mapping[str, tuple[int, ...]], prediction: Prediction) -> Config:
    """Return the `config.json` of a part of a checkpoint.

    Raises `SourceError` if a tensor that tells a width is missing, or the structure is none that diffusers builds.
    `tensors` are shapes by stored name, of this part at least.
    """
    template = family.published.configs[part.folder]
    if part.folder == family.denoiser:
        template = {**template, **family.published.changes.get(prediction, {})}
    shapes = {name.removeprefix(part.prefix): shape for name, shape in tensors.items() if name.startswith(part.prefix)}
    try:
        return {**template, **STORED[part.converter].config(template, shapes, family.published.head_width)}
    except (KeyError, IndexError, ValueError) as error:
        raise SourceError(
            f"{part.folder}: its structure can't be read from the tensors' names and shapes ({first_line(error)}); the "
            "file is incomplete or of another network"
        ) from error


def scheduler_file(family: Family, prediction: Prediction, *, zero_snr: bool) -> tuple[str, Path]:
    """Return class and config file of the published scheduler for a prediction.

    Args:
        family: the family.
        prediction: what the UNet predicts.
        zero_snr: the network was trained with zero terminal signal-to-noise ratio, https://arxiv.org/abs/2305.08891.
    """
    euler = family.published.scheduler == "EulerDiscreteScheduler"
    if prediction != "v_prediction":
        name, stem = family.published.scheduler, "euler_epsilon" if euler else "pndm_epsilon"
    else:
        name = "EulerDiscreteScheduler" if euler else "DDIMScheduler"
        stem = ("euler" if euler else "ddim") + "_v_prediction" + ("_zero_snr" if zero_snr else "")
    return name, _PUBLISHED / "scheduler" / f"{stem}.json"


EDM_SCHEDULER: Final = ("EDMDPMSolverMultistepScheduler", _PUBLISHED / "scheduler" / "edm_epsilon.json")
"""Class and config file of playgroundai/playground-v2.5-1024px-aesthetic."""


def tokenizer_files(family: Family) -> dict[str, Path]:
    """Return the tokenizers' files: relative path in a pipeline folder → file of this package.

    There is no `vocab.json` among them: it follows from `merges.txt`.
    """
    files: dict[str, Path] = {}
    for folder, settings in family.published.tokenizers.items():
        files[f"{folder}/merges.txt"] = _PUBLISHED / "tokenizer" / "merges.txt"
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            files[f"{folder}/{name}"] = _PUBLISHED / "tokenizer" / settings / name
    return files
