"""Facts of a pipeline that a page needs beside its networks, as JSON: the schedule, and a manifest of all files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from olivelike.digest import digest_bytes
from olivelike.engine.output.packages import Package
from olivelike.engine.output.pipeline_files import to_json
from olivelike.errors import SourceError
from olivelike.model.records.output import FileFacts
from olivelike.runtime.schedulers.spacing import SCHEDULER_FILE, alphas_of

if TYPE_CHECKING:
    from olivelike.engine.output.packages import Packaged

MANIFEST_FILE: Final = "manifest.json"
SCHEDULE_FILE: Final = "schedule.json"
MANIFEST_KIND: Final = "web/1"


class WebFolder(Package):
    """The layout `web`: a pipeline that says what it is, for a page that lists no folders."""

    names = (MANIFEST_FILE, SCHEDULE_FILE)

    def files(self, package: Packaged) -> dict[str, bytes]:
        """Return the pipeline's files, the schedule, and the manifest of them and the networks'."""
        assets = {**package.pipeline, SCHEDULE_FILE: schedule(package.pipeline)}
        listed = dict(package.networks)
        listed |= {path: FileFacts(len(data), digest_bytes(data)) for path, data in assets.items()}
        return {**assets, MANIFEST_FILE: manifest(listed, package.size)}


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
