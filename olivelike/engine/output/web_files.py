"""What a page needs of a pipeline beside its networks, as JSON: the schedule, and a manifest of all files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from olivelike.engine.output.pipeline_files import to_json
from olivelike.errors import SourceError

if TYPE_CHECKING:
    import numpy as np

    from olivelike.model.architecture import Config
    from olivelike.model.records.output import FileFacts

MANIFEST_FILE: Final = "manifest.json"
SCHEDULE_FILE: Final = "schedule.json"
MANIFEST_KIND: Final = "web/1"
SCHEDULER_FILE: Final = "scheduler/scheduler_config.json"
_MOST_BETA: Final = 0.999
_MOST_MOMENTS: Final = 1_000_000


def manifest(
    files: Mapping[str, FileFacts], size: tuple[int, int] | None, *, fused_attention: bool | None = None
) -> bytes:
    """Return `manifest.json`: size and SHA-256 of each file, and the only size of pictures if there is but one.

    What a page is told beside that is whether attention is one operator, which some graphics cards compute wrongly.
    """
    told = {} if fused_attention is None else {"fused_attention": fused_attention}
    facts = {path: {"size": file.size, "sha256": file.sha256} for path, file in sorted(files.items())}
    return to_json({"kind": MANIFEST_KIND, "size": size, **told, "files": facts})


def schedule(assets: Mapping[str, bytes]) -> bytes:
    """Return `schedule.json`: the scheduler's config, and the products of alphas that it leads to.

    Formulas are those of diffusers' schedulers, in float32 as there.

    Raises:
        SourceError: if the config is missing, or of no scheduler with alphas.
    """
    import numpy as np

    try:
        config = json.loads(assets[SCHEDULER_FILE])
        with np.errstate(all="ignore"):  # Numbers that are none are refused below.
            alphas = alphas_of(config)
        final = np.float32(1) if config.get("set_alpha_to_one", True) else alphas[0]
        # Read back as float32, these shorter texts are the same numbers.
        listed, last = [float(str(alpha)) for alpha in alphas], float(str(final))
        content = {"config": config, "final_alpha_cumprod": last, "alphas_cumprod": listed}
        return (json.dumps(content, allow_nan=False) + "\n").encode()
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise SourceError(
            f"{SCHEDULER_FILE}: can't be made a schedule for a page: {error!r}; the source's scheduler has no betas"
        ) from error


def alphas_of(config: Config) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the products of alphas that a scheduler's config leads to, one per timestep.

    Raises `KeyError`, `ValueError` or `TypeError` if it leads to none.
    """
    import numpy as np

    return np.cumprod(1 - _betas(config), dtype=np.float32)


def _betas(config: Config) -> np.ndarray[Any, np.dtype[np.float32]]:
    import numpy as np

    if (trained := config.get("trained_betas")) is not None:
        betas = np.array(trained, np.float32)
        if betas.ndim != 1 or not betas.size:
            raise ValueError("trained_betas is no list of numbers")
    else:
        count, kind = int(config["num_train_timesteps"]), config["beta_schedule"]
        if not 0 < count <= _MOST_MOMENTS:
            raise ValueError(f"num_train_timesteps is {count}")
        first, last = float(config["beta_start"]), float(config["beta_end"])
        if kind == "linear":
            betas = np.linspace(first, last, count, dtype=np.float32)
        elif kind == "scaled_linear":
            betas = np.linspace(math.sqrt(first), math.sqrt(last), count, dtype=np.float32) ** 2
        elif kind == "squaredcos_cap_v2":
            bars = np.cos((np.arange(count + 1) / count + 0.008) / 1.008 * np.pi / 2) ** 2
            betas = np.minimum(1 - bars[1:] / bars[:-1], _MOST_BETA).astype(np.float32)
        else:
            raise ValueError(f"beta_schedule is {kind!r}")
    return _without_signal_at_the_end(betas) if config.get("rescale_betas_zero_snr") else betas


def _without_signal_at_the_end(betas: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return betas whose last step is noise alone: algorithm 1 of https://arxiv.org/abs/2305.08891."""
    import numpy as np

    roots = np.sqrt(np.cumprod(1 - betas, dtype=np.float32))
    bars = ((roots - roots[-1]) * (roots[0] / (roots[0] - roots[-1]))) ** 2
    return np.asarray(1 - np.concatenate([bars[:1], bars[1:] / bars[:-1]]), np.float32)
