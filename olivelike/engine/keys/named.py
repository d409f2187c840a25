"""What a pass names as deciding its result beside model and options: data files, environment variables."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from olivelike.digest import digest_file, digest_json
from olivelike.errors import PluginError

if TYPE_CHECKING:
    from olivelike.workflow.passes import PassEntry


def named_inputs(entry: PassEntry) -> dict[str, str]:
    """Return the digest of each file's content and each variable's value; values themselves are kept nowhere.

    Raises:
        PluginError: if a file is missing or can't be read, or Python does not say where the pass lies.
    """
    found: dict[str, str] = {}
    for name in entry.cls.files or ():
        if entry.module_file is None:
            raise PluginError(f"pass {entry.name}: its data files can't be found, since its module is no file")
        path = entry.module_file.parent / name
        try:
            if not path.is_file():
                raise PluginError(_refused(entry, name, f"there is no file {path}"))
            found[f"data file {name}"] = digest_file(path)
        except OSError as error:
            raise PluginError(_refused(entry, name, f"{path} can't be read: {error.strerror}")) from error
    for name in entry.cls.environment or ():
        found[f"environment variable {name}"] = digest_json(["environment/1", name, os.environ.get(name)])
    return found


def _refused(entry: PassEntry, name: str, reason: str) -> str:
    return (
        f"{entry.module_file}: pass {entry.name} names the data file {name!r} in `files`, but {reason}; "
        "put it there, or correct the name"
    )
