"""Picture files: what made them is in them, and none is ever overwritten unasked."""

from typing import TYPE_CHECKING

from olivelike._lazy import names_from

if TYPE_CHECKING:
    from olivelike.runtime.pictures.picture_reading import PictureFile, is_picture, read_picture, read_picture_record
    from olivelike.runtime.pictures.picture_record import PictureRecord, UsedFile
    from olivelike.runtime.pictures.writer import PictureWriter

__all__ = [
    "PictureFile", "PictureRecord", "PictureWriter", "UsedFile", "is_picture", "read_picture", "read_picture_record",
]  # fmt: skip

__getattr__ = names_from(__name__, __file__)
