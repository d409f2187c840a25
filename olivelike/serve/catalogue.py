"""What is served: folders with pipelines, and LoRAs, by name."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path

from olivelike._text import did_you_mean
from olivelike.engine.output.swap import lora_folders
from olivelike.errors import OlivelikeError, SourceError
from olivelike.model.families import INDEX_FILE
from olivelike.runtime.jobs.job_notes import HASH_DIGITS, checkpoint_hash
from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder, open_folder
from olivelike.serve.settings import ServeSettings
from olivelike.serve.views import ModelView


class Catalogue:
    """The folders of a server."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings

    def folders(self) -> dict[str, Path]:
        """Return the folders by name: those that were named, then those in `--models`."""
        found: dict[str, Path] = {}
        listed = [path.parent for one in self._settings.models_dirs for path in sorted(one.glob(f"*/{INDEX_FILE}"))]
        for folder in dict.fromkeys(one.resolve() for one in (*self._settings.folders, *listed)):
            number, name = 1, folder.name
            while name in found:
                number += 1
                name = f"{folder.name}-{number}"
            found[name] = folder
        return found

    def folder(self, name: str) -> Path:
        """Return a folder by its name. Raises `SourceError` if none of that name is served."""
        folders = self.folders()
        if name not in folders:
            raise SourceError(f"no model {name!r} is served; {did_you_mean(name, folders, 'models')}")
        return folders[name]

    def models(self, loaded: Collection[str]) -> list[ModelView]:
        """Return all folders; `loaded` are those that are open."""
        return [_view(name, folder, str(folder) in loaded) for name, folder in self.folders().items()]

    def lora_folders(self) -> list[Path]:
        """Return where LoRAs are looked for."""
        folders = list(self.folders().values()) or [Path("models/none")]
        return list(dict.fromkeys(one for folder in folders for one in lora_folders(self._settings.lora_dirs, folder)))


def _view(name: str, folder: Path, loaded: bool) -> ModelView:  # noqa: FBT001
    opened: PipelineFolder | None = None
    with contextlib.suppress(OlivelikeError):
        opened = open_folder(folder)
    sha256 = ""
    with contextlib.suppress(OlivelikeError):
        sha256 = checkpoint_hash(folder)
    short = sha256[:HASH_DIGITS] or None
    inpaints = opened is not None and _inpaints(opened.unet)
    return ModelView(
        name=name,
        title=f"{name} [{short}]" if short else name,
        family=("sdxl" if opened.is_xl else "sd1") if opened else "",
        default_size=opened.default_size if opened else (512, 512),
        size_unit=opened.size_unit if opened else 64,
        hash=short,
        sha256=sha256 or None,
        inpaints=inpaints,
        takes_pictures=opened is not None and opened.has("vae_encoder"),
        takes_negative_prompt=opened is None or opened.guidance_width is None,
        has_safety_checker=opened is not None and opened.has("safety_checker"),
        loaded=loaded,
        state="ready" if opened else "missing",
    )


def _inpaints(unet: Mapping[str, object]) -> bool:
    channels, made = unet.get("in_channels", 4), unet.get("out_channels", 4)
    return isinstance(channels, int) and isinstance(made, int) and channels > made


