"""Picture files: what made them is in them, and none is ever overwritten unasked."""

from olivelike.runtime.pictures.names import NamePattern, parse_output
from olivelike.runtime.pictures.pixels import contact_sheet, to_pictures
from olivelike.runtime.pictures.reading import PictureFile, is_picture, read_picture, read_picture_record
from olivelike.runtime.pictures.record import PictureRecord, UsedFile
from olivelike.runtime.pictures.writer import PictureWriter

__all__ = [
    "NamePattern",
    "PictureFile",
    "PictureRecord",
    "PictureWriter",
    "UsedFile",
    "contact_sheet",
    "is_picture",
    "parse_output",
    "read_picture",
    "read_picture_record",
    "to_pictures",
]
