"""Drawing what is planned, and writing each batch as soon as it is there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from olivelike.cli import collect_as_usual
from olivelike.cli.commands.generate_record import of_picture
from olivelike.cli.commands.live_loras import merged
from olivelike.cli.display.text import count
from olivelike.cli.engine_signals import signals_end_engines
from olivelike.cli.stdout import write_error
from olivelike.cli.uninterrupted import uninterrupted
from olivelike.errors import Interrupted
from olivelike.runtime import open_pipeline, require_safe

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from olivelike.cli.commands.generate_work import Work
    from olivelike.cli.display.generate_display import Display
    from olivelike.runtime import Pipeline, SessionSettings, Step
    from olivelike.runtime.pictures import PictureRecord, PictureWriter, SheetPicture


def draw(
    folder: Path,
    settings: SessionSettings,
    works: Sequence[Work],
    records: Sequence[PictureRecord],
    writer: PictureWriter,
    display: Display,
    *,
    safety: bool,
    sheet: bool,
) -> None:
    """Open the networks, once for each set of LoRAs, and make all pictures.

    Args:
        folder: the pipeline.
        settings: of its sessions.
        works: what to make.
        records: what the pictures of each work have in common.
        writer: where they go.
        display: who is told.
        safety: whether pictures are checked.
        sheet: whether all come on one sheet too.

    Raises:
        Interrupted: at a signal; the pictures that are done are written.
        SafetyError: if pictures are flagged in all attempts.
    """
    collect_as_usual()
    drawing = _Drawing(works, writer, display, sheet=sheet)
    pipeline: Pipeline | None = None
    loras: tuple[object, ...] = ()  # Those that the pipeline has.

    def last_words() -> None:
        error = drawing.interrupted()
        display.__exit__(type(error), error, None)
        write_error(f"error: {error}")

    try:
        with signals_end_engines(last_words):
            for work, record in zip(works, records, strict=True):
                if pipeline is None or loras != work.merging:
                    pipeline, loras = None, work.merging  # The old one goes before the next takes memory.
                    display.opening(folder, work.loras)
                    pipeline = open_pipeline(
                        folder, settings, safety=safety, initializers=merged(work.loras, folder)
                    )
                    display.started(pipeline, work.request, safety, drawing.total)
                drawing.make(pipeline, work, replace(record, provider=pipeline.unet.session.provider))
    except (KeyboardInterrupt, Interrupted):
        raise drawing.interrupted() from None
    drawing.finish()


class _Drawing:
    """What is drawn so far."""

    def __init__(
        self, works: Sequence[Work], writer: PictureWriter, display: Display, *, sheet: bool
    ) -> None:
        self.total = sum(len(work.request.jobs) for work in works)
        self._batches = sum(work.batches for work in works)
        self._begun = 0
        self._written = 0
        self._flagged: list[int] = []
        self._retries = works[0].request.retry_unsafe
        self._writer = writer
        self._display = display
        self._sheet: list[SheetPicture] | None = [] if sheet else None
        self._first: PictureRecord | None = None

    def interrupted(self) -> Interrupted:
        return Interrupted(f"interrupted; {self._written} of {count(self.total, 'picture')} written")

    def make(self, pipeline: Pipeline, work: Work, record: PictureRecord) -> None:
        """Make the pictures of one work and write them."""
        from olivelike.runtime.pictures import SheetPicture

        before = self._begun

        def on_step(step: Step) -> None:
            placed = replace(step, batch=before + step.batch, batches=self._batches)
            self._display.step(placed, work.request, work.prompts(step.batch))

        for batch in pipeline.batches(work.request, on_step=on_step):
            for picture in batch.pictures:
                made = of_picture(record, picture, work.shown[picture.prompt])
                self._first = self._first or made
                with uninterrupted():
                    path = self._writer.save(picture.image, made)
                    self._display.picture(picture, made.prompt, path)
                    self._written += 1
                if picture.flagged:
                    self._flagged.append(picture.first_seed)
                if self._sheet is not None:  # Without one, pictures are held for their batch alone.
                    self._sheet.append(SheetPicture(picture.image, made.prompt, f"seed {picture.seed}"))
            self._begun += 1
            self._display.batch(replace(batch, number=self._begun, total=self._batches))

    def finish(self) -> None:
        """Write the sheet, and refuse what the safety checker flagged in all attempts."""
        if self._sheet and self._first is not None:
            self._display.sheet(self._writer.save_sheet(self._sheet, self._first))
        require_safe(self._written, self._flagged, self._retries)
