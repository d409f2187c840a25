"""Pictures that lead, as they are named: `NAME=FILE:STRENGTH` on a command line, files of one that is made again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, Literal

from olivelike.errors import UsageError
from olivelike.runtime.pictures.picture_reading import find_used, open_image
from olivelike.runtime.pictures.picture_record import PictureRecord, UsedControl, UsedFile
from olivelike.runtime.pipeline.request import Control

if TYPE_CHECKING:
    from PIL.Image import Image

    UsedImage = tuple[Image, UsedFile]

_WEIGHTS: Final = (".safetensors", ".bin", ".ckpt", ".pt", ".pth")


@dataclass(frozen=True, eq=False)
class ControlFile:
    """A picture that is to lead; the other fields are those of a `Control`."""

    image: Path | UsedImage
    """A file, or a picture with what records say of it."""
    net: str | None = None
    strength: float = 1.0
    start: float = 0.0
    end: float = 1.0
    preprocessor: Literal["none", "canny"] = "none"

    def open(self) -> tuple[Control, UsedFile]:
        """Read the picture; return what leads, and what records say of the file.

        Raises `SourceError` if it is missing or damaged.
        """
        image, used = open_image(self.image) if isinstance(self.image, Path) else self.image
        return Control(image, self.net, self.strength, self.start, self.end, self.preprocessor), used


def parse_control(text: str, *, start: float = 0.0, end: float = 1.0, canny: bool = False) -> ControlFile:
    """Read `IMAGE`, `NAME=IMAGE`, and either of them with `:STRENGTH`, `:canny`, or both behind it.

    Raises `UsageError` if it names no picture.

    Args:
        text: `NAME` may be the ControlNet's file, as a workflow names it.
        start: share of the steps from which it leads.
        end: share of the steps up to which it leads.
        canny: take the edges of the picture.
    """
    strength, rest = 1.0, text
    given: set[str] = set()
    while ":" in rest and not Path(rest).exists():
        before, _, last = rest.rpartition(":")
        if last == "canny" and last not in given:
            canny = True
        elif (number := _number(last)) is not None and "strength" not in given:
            strength, last = number, "strength"
        else:
            break
        given.add(last)
        rest = before
    name, equals, file = _split(rest)
    if not equals or Path(rest).exists():
        name, file = "", rest
    if not file.strip() or (equals and not name.strip() and file != rest):
        raise UsageError(
            f"--control {text!r}: no picture is named; write IMAGE, NAME=IMAGE or NAME=IMAGE:STRENGTH, such as "
            "edges.png:0.8"
        )
    return ControlFile(Path(file), _plain(name) or None, strength, start, end, "canny" if canny else "none")


def recorded_controls(record: PictureRecord, made: Path) -> list[ControlFile]:
    """Return the pictures that led one that is made again, found by their content.

    Raises `UsageError` if one of them is not found.
    """
    found = []
    for control in record.controls:
        path = find_used(control.image, made)
        if path is None:
            raise UsageError(
                f"the picture was led by {control.image.name}, which is not in it, and no picture beside it or here "
                "has the same content; give it with --control"
            )
        found.append(ControlFile(path, control.net, control.strength, control.start, control.end, control.preprocessor))
    return found


def parse_image_prompt(texts: Sequence[str]) -> tuple[list[Path], float | None]:
    """Read `IMAGE` or `IMAGE:SCALE`, once or several times: the pictures, and how strongly they lead.

    Raises `UsageError` if no picture is named, or two scales are given: there is one for all.
    """
    images: list[Path] = []
    scales: set[float] = set()
    for text in texts:
        file, colon, last = text.rpartition(":")
        scale = _number(last) if colon and not Path(text).exists() else None
        if not (text if scale is None else file).strip():
            raise UsageError(
                f"--ip-adapter {text!r}: no picture is named; write IMAGE or IMAGE:SCALE, such as cat.png:0.6"
            )
        images.append(Path(text if scale is None else file))
        scales |= set() if scale is None else {scale}
    if len(scales) > 1:
        raise UsageError(f"--ip-adapter: there is one scale for all pictures, and {len(scales)} are given; keep one")
    return images, next(iter(scales), None)


def recorded_image_prompt(record: PictureRecord, made: Path) -> list[Path]:
    """Return the pictures that were a prompt of one that is made again, found by their content.

    Raises `UsageError` if one of them is not found.
    """
    found = []
    for used in record.ip_adapter_images:
        path = find_used(used, made)
        if path is None:
            raise UsageError(
                f"the picture had {used.name} as a prompt, which is not in it, and no picture beside it or here "
                "has the same content; give it with --ip-adapter"
            )
        found.append(path)
    return found


def used_controls(controls: Sequence[Control], files: Sequence[UsedFile]) -> tuple[UsedControl, ...]:
    """Return what records say of the pictures that lead."""
    return tuple(
        UsedControl(file, one.net, one.strength, one.start, one.end, one.preprocessor)
        for one, file in zip(controls, files, strict=True)
    )


def _split(text: str) -> tuple[str, str, str]:
    """Part a name from a file at the first `=` with a file behind it: both may have some of their own."""
    places = [place for place, letter in enumerate(text) if letter == "="]
    place = next((place for place in places if Path(text[place + 1 :]).is_file()), None)
    return text.partition("=") if place is None else (text[:place], "=", text[place + 1 :])


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _plain(name: str) -> str:
    path = PurePath(name.strip())
    return path.stem if path.suffix in _WEIGHTS else path.name
