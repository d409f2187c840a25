"""The file that each part without weights can't do without, by the name of its class."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_TOKENIZER = re.compile(r"Tokenizer(Fast)?$")
_MAIN_FILES = {
    re.compile(r"Scheduler$"): "scheduler_config.json",
    re.compile(r"(FeatureExtractor|ImageProcessor)(Fast)?$"): "preprocessor_config.json",
}


def missing_main_file(class_name: str, names: Collection[str]) -> str | None:
    """Return the main file that a tokenizer, scheduler or image processor lacks; `None` if it lacks none.

    Args:
        class_name: as the index has it; a network's has no main file here.
        names: the files in its folder; empty if there is no folder.
    """
    if _TOKENIZER.search(class_name):
        return _missing_vocabulary(names)
    for pattern, main_file in _MAIN_FILES.items():
        if pattern.search(class_name) and main_file not in names:
            return main_file
    return None


def _missing_vocabulary(names: Collection[str]) -> str | None:
    # A `.model` file is the vocabulary of a SentencePiece tokenizer, such as T5's.
    if "tokenizer.json" in names or any(name.endswith(".model") for name in names):
        return None
    if "vocab.json" not in names:
        return "vocab.json (or tokenizer.json)"
    return "merges.txt" if "merges.txt" not in names else None
