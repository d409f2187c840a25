"""Schedulers and tokenizers by diffusers and transformers themselves: for what is not known without them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from olivelike._light_diffusers import light_diffusers

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from olivelike._untrusted import Json


def scheduler_with_defaults(class_name: str, config: Json) -> Json:
    """Return a scheduler's config with the defaults of its class; as it is, if diffusers has no such class."""
    with light_diffusers():
        import diffusers

        scheduler = getattr(diffusers, class_name, None)
        if scheduler is None:
            return config
        made = scheduler.from_config(config)  # It imports all classes that take the config, too.
    filled: Json = json.loads(made.to_json_string())
    return filled


class LibraryTokenizer:
    """A CLIP tokenizer as the installed transformers reads and writes it."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """Load a folder. Raises `OSError` or `ValueError` or `TypeError` or `KeyError` if transformers can't.

        Args:
            files: Content by name.
        """
        from transformers import CLIPTokenizer

        with tempfile.TemporaryDirectory() as scratch:
            for name, data in files.items():
                (Path(scratch) / name).write_bytes(data)
            self._loaded = CLIPTokenizer.from_pretrained(scratch, local_files_only=True)
        self.tokenizer: Tokenizer = self._loaded.backend_tokenizer

    def files(self) -> dict[str, bytes]:
        """Return what transformers saves."""
        with tempfile.TemporaryDirectory() as scratch:
            self._loaded.save_pretrained(scratch)
            return {path.name: path.read_bytes() for path in Path(scratch).iterdir()}
