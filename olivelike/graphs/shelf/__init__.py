"""Graphs and tables of names that are known already: those of published architectures ship with the package.

A shelf answers `load` and `convert` for what it knows, with the bytes that they would make and without their
libraries: a binary cache, never another way of computing. Folders of a team's own stand behind the one that ships.

| module | holds |
| --- | --- |
| `forms` | what of a config and of stored names decides an answer |
| `folder` | the files of a shelf: written whole, read with their digest |
| `shelf` | the questions, asked of all folders in turn |
| `filling` | what puts answers on a shelf; it needs the libraries |
"""

from olivelike.graphs.shelf.shelf_folder import VERSION, Damage, Entry, ShelfFolder
from olivelike.graphs.shelf.shelves import BUILT_IN, Answer, Shelf, folders, open_shelf, own_folder

__all__ = [
    "BUILT_IN", "VERSION", "Answer", "Damage", "Entry", "Shelf", "ShelfFolder", "folders", "open_shelf", "own_folder",
]  # fmt: skip
