"""Pictures that lead, as they are named: `NAME=FILE:STRENGTH` on a command line, files of one that is made again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, TypeVar, cast, get_args

from olivelike.errors import UsageError
from olivelike.model.components import WEIGHT_FILE_SUFFIXES
from olivelike.runtime.pictures.picture_reading import find_used, is_picture
from olivelike.runtime.pipeline.request import Control, Pictures, PreprocessorName

if TYPE_CHECKING:
    from PIL.Image import Image

    from olivelike.runtime.pictures.picture_record import PictureRecord, UsedFile

    UsedImage = tuple[Image, UsedFile]
    Named = Path | UsedImage
    """A picture that is asked for: a file, or opened, with what records say of it."""

Given = TypeVar("Given", bound="Named")


def parse_control(
    text: str, *, start: float = 0.0, end: float = 1.0, preprocessor: PreprocessorName = "none"
) -> Control[Path]:
    """Read `IMAGE`, `NAME=IMAGE`, and either with `:STRENGTH`, a preprocessor such as `:canny`, or both behind it.

    Raises `UsageError` if it names no picture.

    Args:
        text: `NAME` may be the network's file, as a workflow names it.
        start: share of the steps from which it leads.
        end: share of the steps up to which it leads.
        preprocessor: the one that is not named, of `PREPROCESSORS`, or `none`.
    """
    strength, rest = 1.0, text
    given: set[str] = set()
    while ":" in rest and not Path(rest).exists():
        before, _, last = rest.rpartition(":")
        if last in get_args(PreprocessorName) and "preprocessor" not in given:
            preprocessor, last = cast("PreprocessorName", last), "preprocessor"
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
    return Control(Path(file), _plain(name) or None, strength, start, end, preprocessor)


def initial_pictures(given: Sequence[Path]) -> list[Path]:
    """Return the files that `--init-image` names: itself, the pictures of a folder, or those of a pattern, by name.

    Raises `UsageError` if a folder or a pattern has none, can't be looked through, or is none.
    """
    found: list[Path] = []
    for path in given:
        try:
            those = _named(path)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(
                f"--init-image {path}: {why}; name a picture, a folder, or a pattern such as 'in/*.png'"
            ) from error
        if not those:
            raise UsageError(f"--init-image {path}: there is no PNG, JPEG or WebP; name a picture, or a folder of some")
        found += those
    return found


def _named(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(one for one in path.iterdir() if one.is_file() and is_picture(one))
    if path.exists() or not set("*?[") & set(str(path)):
        return [path]
    pattern = str(path.relative_to(path.anchor))
    return sorted(one for one in Path(path.anchor).glob(pattern) if is_picture(one))


def found_again(given: Pictures[Given], record: PictureRecord, made: Path) -> Pictures[Given | Path]:
    """Return pictures, and where a field has none, those that a picture was made of, found by their content.

    Raises `UsageError` if one that led it, or was a prompt, is not found.
    """
    found: Pictures[Given | Path] = given
    for one in fields(Pictures):
        if not getattr(given, one.name):
            again = Pictures(**{one.name: getattr(record, one.name)}).map(partial(_found, one.metadata, made))
            found = replace(found, **{one.name: getattr(again, one.name)})
    return found


def _found(told: Mapping[str, str], made: Path, used: UsedFile) -> Path | None:
    path = find_used(used, made)
    if path is None and told:
        raise UsageError(
            f"the picture {told['lost'].format(used.name)} not in it, and no picture beside it or here has the same "
            f"content; give it with {told['option']}"
        )
    return path


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
    return path.stem if path.suffix in WEIGHT_FILE_SUFFIXES else path.name
