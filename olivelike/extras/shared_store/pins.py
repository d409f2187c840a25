"""Results of a shared store that stay whatever its cap and their age: each pin is a file with a name and keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from olivelike.errors import StoreError
from olivelike.store.folder import checked_digest, file_name, is_digest, seal, unseal

if TYPE_CHECKING:
    from olivelike.extras.shared_store.remote_folder import RemoteFolder

FOLDER: Final = "pins"
_KIND: Final = "pin/1"


def put_pin(folder: RemoteFolder, name: str, keys: Iterable[str]) -> None:
    """Keep these results until the pin is removed; one of the same name is replaced."""
    folder.put(_path(name), seal(_KIND, {"name": name, "keys": sorted(map(checked_digest, keys))}))


def remove_pin(folder: RemoteFolder, name: str) -> None:
    """Forget a pin; one that does not exist is no error."""
    folder.remove([_path(name)])


def read_pins(folder: RemoteFolder) -> dict[str, list[str]]:
    """Return the keys of each pin, by its name.

    Raises `StoreError` if one is damaged, for nobody knows then what it keeps.
    """
    found: dict[str, list[str]] = {}
    for file in folder.files(FOLDER):
        match unseal(_KIND, folder.read(file.name)):
            case {"name": str(name), "keys": list(keys)}:
                found[name] = [key for key in keys if isinstance(key, str) and is_digest(key)]
            case _:
                raise StoreError(f"the pin {file.name} there is damaged; pin its workflow again, or remove that file")
    return found


def _path(name: str) -> str:
    return f"{FOLDER}/{file_name(name)}.json"
