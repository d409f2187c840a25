"""Catalogue of all that is served: folders with pipelines, LoRAs, textual inversions and wildcards, by name.

Everything is looked up when it is asked for, and read again when its files have changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from olivelike._files import files_below, identity_at
from olivelike._text import did_you_mean
from olivelike._untrusted import Json, has_utf8, read_json
from olivelike.engine.output.swap import lora_folders
from olivelike.errors import OlivelikeError, SourceError
from olivelike.model.components import INDEX_FILE
from olivelike.runtime.jobs.fast import few_steps_of, sped_up
from olivelike.runtime.jobs.job_notes import HASH_DIGITS
from olivelike.runtime.pipeline.pipeline_folder import PipelineFolder, open_folder
from olivelike.runtime.pipeline.request import Request
from olivelike.runtime.pipeline.resolve_defaults import absent_fields
from olivelike.runtime.prompts.wildcards import Wildcards
from olivelike.runtime.schedulers.class_settings import listed_samplers
from olivelike.serve.lora_cards import card_of
from olivelike.serve.settings import ServeSettings
from olivelike.serve.upscalers import upscaler_files
from olivelike.serve.views import LISTED_GUIDES, LoraView, ModelView
from olivelike.sources.adapters.lora_file import denoisers_of
from olivelike.sources.adapters.lora_settings import SUFFIXES
from olivelike.sources.adapters.open_lora import open_lora
from olivelike.sources.files.pickled import read_pickle_table

_PICTURES: Final = (".preview.png", ".png", ".jpg", ".jpeg", ".webp")
"""Endings that make a LoRA's own name that of its thumbnail, as A1111 has it."""
_MOST_TOKENIZER: Final = 64 << 20


@dataclass(frozen=True)
class Embedding:
    """A textual inversion that a folder's tokenizer knows."""

    name: str
    vectors: int
    width: int


class Catalogue:
    """The folders of a server."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._views: dict[str, tuple[PipelineFolder, tuple[bool, ...], ModelView]] = {}
        """What is told of each folder, with what that was made of."""
        self._seen: Mapping[str, Path] | None = None
        """The folders that were there in this turn of the event loop."""

    def folders(self) -> Mapping[str, Path]:
        """Return the folders by name: those that were named, then those in `--models`.

        A turn of the event loop looks once: a request asks several times, and hundreds of folders take a millisecond.
        """
        if (seen := self._seen) is None:
            listed = tuple(folder for models in self._settings.models_dirs for folder in _listed(models))
            seen = dict(_named(tuple(map(os.path.realpath, self._settings.folders)), listed))
            with contextlib.suppress(RuntimeError):  # There is no loop.
                asyncio.get_running_loop().call_soon(self._look_again)
                self._seen = seen
        return seen

    def _look_again(self) -> None:
        self._seen = None

    def folder(self, name: str) -> Path:
        """Return a folder by its name. Raises `SourceError` if none of that name is served."""
        folders = self.folders()
        if name not in folders:
            raise SourceError(f"no model {name!r} is served; {did_you_mean(name, folders, 'models')}")
        return folders[name]

    def models(self, loaded: Collection[str]) -> list[ModelView]:
        """Return all folders; `loaded` are those that are open."""
        views = (self._view(name, folder) for name, folder in self.folders().items())
        return [view.model_copy(update={"loaded": view.name in loaded}) for view in views]

    def model(self, name: str) -> ModelView | None:
        """Return a folder by what it is called: its name, or else its title or hash; `loaded` is left out.

        All folders are looked at only where none has the name, or the name of a title.
        """
        folders = self.folders()
        if name in folders:
            return self._view(name, folders[name])
        of_title, bracket, _ = name.rpartition(" [")
        if bracket and of_title in folders and (view := self._view(of_title, folders[of_title])).title == name:
            return view
        views = (self._view(one, folder) for one, folder in folders.items())
        return next((view for view in views if name in (view.title, view.hash, view.sha256)), None)

    def _view(self, name: str, folder: Path) -> ModelView:
        """Return what is told of a folder, made anew where one of its files came, went or changed."""
        try:
            opened = open_folder(folder)
            # Parts without which it is opened, too.
            there = opened.has("vae_encoder"), opened.has("safety_checker"), opened.has_shallow_denoiser
            known = self._views.get(name)
            if known is None or known[0] is not opened or known[1] != there:
                known = self._views[name] = opened, there, _model(name, opened)
        except OlivelikeError:
            return ModelView(
                name=name, title=name, family="", default_size=(512, 512), size_unit=64, scheduler=None, hash=None,
                sha256=None, inpaints=False, takes_pictures=False, takes_negative_prompt=True, has_safety_checker=False,
                loaded=False, state="missing",
            )  # fmt: skip
        return known[2]

    def usual(self, name: str) -> Mapping[str, float]:
        """Return what an order has that names no steps or guidance; nothing of a folder that is not there."""
        folder = self.folder(name)
        try:
            return open_folder(folder).family.usual
        except OlivelikeError:
            return {}

    def begins_with(self, name: str) -> Json:
        """Return what the form begins with for a folder that is distilled to few steps; nothing for another."""
        folder = open_folder(self.folder(name))
        if few_steps_of(folder, ()) is None:
            return {}
        suited, _ = sped_up(Request(("",)), (), folder, ())
        return {"fast": True, "steps": suited.steps, "guidance_scale": suited.guidance_scale}

    def shift(self, name: str) -> float | None:
        """Return the shift of a folder's scheduler, if it is of flow matching and has one for all sizes."""
        config = open_folder(self.folder(name)).scheduler
        shift = config.get("shift")
        return float(shift) if isinstance(shift, int | float) and not config.get("use_dynamic_shifting") else None

    def names_of(self, folders: Collection[str]) -> list[str]:
        """Return the names of folders, given by their paths."""
        return [name for name, folder in self.folders().items() if str(folder) in folders]

    def lora_files(self) -> dict[str, Path]:
        """Return LoRAs by their path below their folder, without suffix; of two with the same one, the first."""
        places = self.folders().values() or [Path("models/none")]
        folders = dict.fromkeys(one for place in places for one in lora_folders(self._settings.lora_dirs, place))
        found: dict[str, Path] = {}
        for folder in folders:
            for path, place in files_below(folder, SUFFIXES):
                if has_utf8(place) and os.path.isfile(path):  # noqa: PTH113  (there may be thousands)
                    found.setdefault(place, Path(path))
        return found

    def loras(self) -> list[LoraView]:
        """Return the LoRAs that prompts may name."""
        return [view for view, _ in self._loras()]

    def loras_with_metadata(self) -> list[tuple[LoraView, Mapping[str, str]]]:
        """Return the LoRAs that prompts may name, each with what its trainer wrote into it."""
        return [(view, json.loads(zlib.decompress(packed))) for view, packed in self._loras()]

    def _loras(self) -> Iterator[tuple[LoraView, bytes]]:
        files, pickled = self.lora_files(), self._settings.allow_pickle
        for place, (name, path) in zip(files, lora_names(files).items(), strict=True):
            yield _lora(name, place, path, identity_at(path), pickled)

    def thumbnail(self, lora: str) -> Path:
        """Return the picture beside a LoRA. Raises `SourceError` if there is none."""
        for place, path in self.lora_files().items():
            if lora in (place, path.stem) and (found := _thumbnail(path)) is not None:
                return found
        raise SourceError(f"there is no picture of a LoRA {lora!r}")

    def embeddings(self, model: str | None) -> list[Embedding]:
        """Return the textual inversions that a folder knows; none of a folder that is not there."""
        folder = self.folders().get(model or "")
        if folder is None:
            return []
        try:
            opened = open_folder(folder)
            part = opened.texts[0]
            file = folder / part.tokenizer / "tokenizer.json"
            width = int(opened.config(part.component).get("hidden_size", 0))
            return list(_embeddings(file, identity_at(file), width))
        except (OSError, ValueError, KeyError, TypeError, OlivelikeError):
            return []  # A tokenizer of another form has none that could be named here.

    def samplers(self, name: str) -> Json:
        """Return what a folder is drawn with: what people call its `own` sampler, and the `list` of all.

        Raises `SourceError` if none of that name is served.
        """
        return listed_samplers(open_folder(self.folder(name)).scheduler)

    def upscalers(self) -> dict[str, Path]:
        """Return the files of networks that enlarge pictures, by name without suffix; of two with one, the first."""
        return upscaler_files(self._settings.upscaler_dirs)

    def wildcards(self) -> list[str]:
        """Return the names of files that prompts may choose from."""
        return sorted(Wildcards(self._settings.wildcard_dirs or [Path("wildcards")]).files)


def lora_names(files: Mapping[str, Path]) -> dict[str, Path]:
    """Return what `lora_files` does by the names that LoRAs are told by: without the folder, where no two have one."""
    names = Counter(path.stem for path in files.values())
    return {place if names[path.stem] > 1 else path.stem: path for place, path in files.items()}


def _listed(models: Path) -> list[str]:
    """Return the folders below one, in the order of their names; each request asks, and there may be hundreds."""
    with contextlib.suppress(OSError), os.scandir(os.path.realpath(models)) as entries:
        found = sorted((one.name, one) for one in entries if os.path.exists(f"{one.path}/{INDEX_FILE}"))  # noqa: PTH110
        return [os.path.realpath(one.path) if one.is_symlink() else one.path for _, one in found]
    return []


@lru_cache(maxsize=4)
def _named(folders: tuple[str, ...], listed: tuple[str, ...]) -> tuple[tuple[str, Path], ...]:
    """Return folders that were named and those that were found, each once, with names that no two of them have."""
    found: dict[str, Path] = {}
    # Answers could not tell a name that is no UTF-8, nor those beside it.
    told = (one for one in map(Path, listed) if has_utf8(one.name))
    for folder in dict.fromkeys((*map(Path, folders), *told)):
        number, name = 1, folder.name
        while name in found:
            number += 1
            name = f"{folder.name}-{number}"
        found[name] = folder
    return tuple(found.items())


def _model(name: str, opened: PipelineFolder) -> ModelView:
    sha256 = opened.recorded.sha256
    short = sha256[:HASH_DIGITS]
    guides: dict[str, Any] = dict(zip(LISTED_GUIDES, (tuple(opened.leading), opened.prompt_guide), strict=True))
    return ModelView(
        name=name,
        title=f"{name} [{short}]" if short else name,
        family=opened.family.name,
        text_width=width if isinstance(width := opened.denoiser.get("cross_attention_dim"), int) else None,
        default_size=opened.default_size,
        size_unit=opened.least_unit,
        scheduler=opened.scheduler.get("_class_name"),
        hash=short or None,
        sha256=sha256 or None,
        inpaints=opened.inpaints,
        takes_pictures=opened.has("vae_encoder"),
        takes_negative_prompt=opened.takes_negative_prompt,
        usual=opened.family.usual,
        absent=absent_fields(opened),
        most_references=opened.family.most_references if opened.has("vae_encoder") else 0,
        has_safety_checker=opened.has("safety_checker"),
        **guides,
        made_for=opened.recorded.made_for,
        size=opened.recorded.size,
        examples=opened.examples,
        loaded=False,
        state="ready",
    )


@lru_cache(maxsize=4096)
def _lora(name: str, place: str, path: Path, _changed: object, allow_pickle: bool) -> tuple[LoraView, bytes]:
    """Return what is told of a LoRA, and its metadata packed: trainers count each word of each picture's text."""
    family, families, few, width, metadata, broken = None, tuple[str, ...](), None, None, dict[str, str](), True
    with contextlib.suppress(OlivelikeError):
        opened = open_lora(path, read_pickle=read_pickle_table if allow_pickle else None)
        family, width, metadata = opened.family, opened.cross_attention_dim, dict(opened.metadata)
        families, few = tuple(sorted(denoisers_of(opened))), opened.few_steps
        broken = False
    has_picture = _thumbnail(path) is not None
    suited = None
    if few is not None:
        steps, recipe = few.steps or few.recipe.steps, few.recipe
        suited = {"steps": steps, "guidance_scale": recipe.guidance, "scheduler": recipe.scheduler}
    view = LoraView(
        name=name, alias=metadata.get("ss_output_name") or path.stem, path=place + path.suffix, family=family,
        families=families, few_steps=suited, text_width=width, broken=broken,
        card=card_of(path, metadata), size=path.stat().st_size,
        thumbnail=f"/api/loras/{name}/thumbnail" if has_picture else None,
    )  # fmt: skip
    return view, zlib.compress(json.dumps(metadata).encode(), 1)


def _thumbnail(lora: Path) -> Path | None:
    beside = (lora.with_name(lora.stem + suffix) for suffix in _PICTURES)
    return next((path for path in beside if path.is_file()), None)


@lru_cache(maxsize=64)
def _embeddings(tokenizer: Path, _changed: object, width: int) -> tuple[Embedding, ...]:
    listed = read_json(tokenizer, _MOST_TOKENIZER)["added_tokens"]
    return tuple(_with_vectors({token["content"] for token in listed if not token["special"]}, width))


def _with_vectors(names: Collection[str], width: int) -> Iterator[Embedding]:
    """Put the vectors of one inversion, `NAME`, `NAME_1` and so on, together."""
    for name in sorted(names):
        first, _, number = name.rpartition("_")
        if number.isdecimal() and first in names:
            continue
        vectors = 1
        while f"{name}_{vectors}" in names:
            vectors += 1
        yield Embedding(name, vectors, width)
