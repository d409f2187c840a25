"""Pipelines that stay open from job to job, as far as memory goes, each with the LoRAs of its last job."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike._files import identity_at
from olivelike.model.components import INDEX_FILE
from olivelike.model.records.output import RECORD_FILE
from olivelike.runtime.pipeline.networks import least_memory_limit
from olivelike.runtime.pipeline.pipeline import Pipeline, open_pipeline
from olivelike.runtime.pipeline.pipeline_folder import check_folder, open_folder, read_folder_target, target_settings
from olivelike.runtime.sessions.session_settings import (
    SessionSettings,
    choose_providers,
    parse_device,
    parse_pairs,
    set_options,
)

if TYPE_CHECKING:
    from olivelike.runtime.jobs.fast import Lora
    from olivelike.runtime.jobs.job_plan import LoraFiles


@dataclass(frozen=True)
class SessionChoice:
    """Options of sessions, as texts of the command line."""

    providers: tuple[str, ...] = ()
    provider_options: tuple[str, ...] = ()
    device: str | None = None
    session_options: tuple[str, ...] = ()
    threads: int = 0
    keep_compiled: bool = False

    def settings(self, folder: Path | None) -> SessionSettings:
        """Return the settings for a folder, or none: what its target asks for, and on top what is said here."""
        from olivelike.runtime.sessions.compiled import compiled_folder

        own = SessionSettings() if folder is None else target_settings(read_folder_target(folder))
        base = choose_providers(own, self.providers)
        base = set_options(base, parse_pairs(self.provider_options, "--provider-option"))
        return replace(
            base,
            compiled=compiled_folder(),
            device=base.device if self.device is None else parse_device(self.device),
            session_config={**base.session_config, **parse_pairs(self.session_options, "--session-option")},
            intra_threads=self.threads,
            keep_compiled=self.keep_compiled,
        )


@dataclass
class _Warm:
    pipeline: Pipeline
    loras: tuple[Lora, ...]
    stamp: list[tuple[int, ...] | None]
    bytes: int


class WarmPipelines:
    """The open pipelines, the one that was used last at the end."""

    def __init__(self, sessions: SessionChoice, limit: int) -> None:
        self._sessions = sessions
        self._limit = limit
        self._open: dict[tuple[Path, bool], _Warm] = {}

    @property
    def folders(self) -> list[str]:
        """The folders that are open."""
        return list(dict.fromkeys(str(folder) for folder, _ in self._open))

    @property
    def bytes(self) -> int:
        """Size of the files of folders that are open."""
        return sum(warm.bytes for warm in self._open.values())

    def get(
        self,
        folder: Path,
        loras: tuple[Lora, ...],
        lora_files: LoraFiles | None,
        *,
        safety: bool,
        on_opening: Callable[[], None] = lambda: None,
    ) -> Pipeline:
        """Return a folder's pipeline with LoRAs merged into it, opened as far as it is not.

        Raises what `open_pipeline` and `LiveLoras.merge` raise.
        """
        key, stamp = (folder, safety), [identity_at(folder / name) for name in (INDEX_FILE, RECORD_FILE)]
        warm = self._open.pop(key, None)
        if warm is not None and warm.stamp != stamp:
            warm = None  # The folder was made again.
        if warm is None:
            on_opening()
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            self._make_room(size)
            settings = self._sessions.settings(folder)
            if size > self._limit:  # Its networks are open in turns, then, each of them in any case.
                least, _ = least_memory_limit(open_folder(folder), safety=safety)
                settings = replace(settings, memory_limit=max(self._limit, least))
            check_folder(folder, settings)
            merged = lora_files.merge(loras, folder) if loras and lora_files else None
            warm = _Warm(open_pipeline(folder, settings, safety=safety, initializers=merged), loras, stamp, size)
        elif warm.loras != loras:
            on_opening()
            merged = lora_files.merge(loras, folder) if loras and lora_files else None
            warm.pipeline = warm.pipeline.with_initializers(merged or {})
            warm.loras = loras
        self._open[key] = warm
        return warm.pipeline

    def settings(self, folder: Path | None) -> SessionSettings:
        """Return the settings of sessions for a folder, or none."""
        return self._sessions.settings(folder)

    def close(self) -> None:
        """Close all of them."""
        self._open.clear()
        gc.collect()

    def _make_room(self, wanted: int) -> None:
        """Close what was not used for the longest time, until so many bytes more are within the limit."""
        while self._open and wanted + self.bytes > self._limit:
            del self._open[next(iter(self._open))]
            gc.collect()
