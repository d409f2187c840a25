"""Picture files: what made them is in them, and none is ever overwritten unasked."""

from olivelike.runtime.pictures.encoding import to_pictures
from olivelike.runtime.pictures.picture_names import NamePattern, parse_output
from olivelike.runtime.pictures.picture_reading import (
    PictureFile,
    is_picture,
    read_picture,
    read_picture_record,
)
from olivelike.runtime.pictures.picture_record import PictureRecord, UsedFile
from olivelike.runtime.pictures.sheet import SheetPicture, picture_sheet
from olivelike.runtime.pictures.writer import PictureWriter

__all__ = [
    "NamePattern",
    "PictureFile",
    "PictureRecord",
    "PictureWriter",
    "SheetPicture",
    "UsedFile",
    "is_picture",
    "parse_output",
    "picture_sheet",
    "read_picture",
    "read_picture_record",
    "to_pictures",
]
