"""The table of assets: the files beside the networks, as a node makes it and every reader takes it."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from olivelike._untrusted import one_line, parse_json
from olivelike.engine.output.file_names import wrong_name
from olivelike.errors import DamagedError
from olivelike.sources.checkpoint import TOKENIZER_SUFFIXES

SCHEDULER_MODEL: Final = "scheduler/model.onnx"
"""Schedules as a graph, which workflows may ask for."""
_KEPT: Final = {"merges.txt", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.json"}
"""Files of a tokenizer that stay if the source has them; others go into one of these."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


def read_assets(data: bytes) -> dict[str, str]:
    """Return the digest of each file, by relative path.

    Raises `DamagedError` if it is no such table, or has a name that no file of an output may have.
    """
    try:
        table = parse_json(data)
    except ValueError as error:
        raise DamagedError(f"the table of assets is damaged: {error}; run again to remake it") from None
    if not isinstance(table, dict) or not all(isinstance(d, str) and _DIGEST.fullmatch(d) for d in table.values()):
        raise DamagedError("the table of assets is no table of files and their digests; run again to remake it")
    if (wrong := wrong_name(table)) is not None:
        raise DamagedError(f"the table of assets is wrong: {wrong}; run again to remake it")
    return table


def not_of_source(table: Collection[str], extras: Collection[str]) -> str | None:
    """Return a name in a table of assets that those files of a source don't lead to, `None` if there is none.

    Nothing is renamed: each file is one of the source's, or lies in the folder of one of its tokenizers.
    """
    tokenizers = {name.partition("/")[0] for name in extras if name.startswith("tokenizer")}
    for name in table:
        folder, _, file = name.partition("/")
        saved = folder in tokenizers and "/" not in file and file.endswith(TOKENIZER_SUFFIXES)
        if name not in extras and not saved:
            return f"{one_line(name)[:100]} is made of no file of the source"
    kept = [name for name in extras if name.partition("/")[0] not in tokenizers or name.partition("/")[2] in _KEPT]
    absent = sorted({*kept} - {*table}) + sorted(tokenizers - {name.partition("/")[0] for name in table})
    return f"{absent[0]} is missing" if absent else None
