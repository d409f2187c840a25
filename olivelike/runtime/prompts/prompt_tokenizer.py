"""The tokenizer of a pipeline's folder, as far as prompts need it.

`tokenizer.json` is read by the `tokenizers` library itself: its ids are those of transformers' `CLIPTokenizer`, which
is a shell around it and takes a second to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike._untrusted import CONFIG_BYTES, parse_json, read_bytes
from olivelike.errors import SourceError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CLIP_LENGTH = 77
_MOST_BYTES = 32 << 20
"""Of a vocabulary; CLIP's has 2 MB."""
_MOST_TOKENS = 300_000
"""CLIP has 49,408, and some vectors of textual inversions."""


@dataclass(frozen=True)
class PromptTokenizer:
    """Text → token ids, with what a text encoder expects around them."""

    backend: Tokenizer
    start: int
    """Id before each text."""
    end: int
    """Id after each text."""
    pad: int
    """Id that fills up the rest: `end` in SD 1, that of `!` in SD 2 and in SDXL's second tokenizer."""
    length: int = _CLIP_LENGTH
    """Ids that the text encoder takes at once, `start` and `end` included."""
    comma: int | None = None
    """Id of a comma that ends a word."""
    followers: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Id of a textual inversion's token → ids of its further vectors (`TOKEN_1`, …)."""

    def ids(self, text: str) -> list[tuple[int, ...]]:
        """Return the ids of a text; a tuple for each token, since the vectors of one token stay together."""
        ids = self.backend.encode(text, add_special_tokens=False).ids
        return [(token, *self.followers.get(token, ())) for token in ids]


def open_tokenizer(folder: Path) -> PromptTokenizer:
    """Open `tokenizer/` or `tokenizer_2/` of a pipeline's folder.

    Raises:
        SourceError: if files are absent or damaged, or it is no tokenizer of CLIP's kind.
    """
    if not folder.is_dir():
        raise SourceError(f"{folder} is no folder; a pipeline needs its tokenizer: make the folder again")
    settings = _read_json(folder / "tokenizer_config.json")
    special = {**_read_json(folder / "special_tokens_map.json"), **settings}
    backend = _open_backend(folder)
    backend.no_padding()
    backend.no_truncation()
    vocabulary = backend.get_vocab(with_added_tokens=True)

    def find(role: str, otherwise: str) -> int:
        token = special.get(role) or otherwise
        content = token.get("content") if isinstance(token, dict) else token
        if content not in vocabulary:
            raise SourceError(f"{folder}: its {role} {content!r} is not in its vocabulary; fetch its files again")
        return vocabulary[content]

    end = "<|endoftext|>"
    length = settings.get("model_max_length")
    return PromptTokenizer(
        backend,
        find("bos_token", "<|startoftext|>"),
        find("eos_token", end),
        find("pad_token", end),
        # Files without a limit have a number of thirty digits here.
        length if isinstance(length, int) and 2 < length < 10_000 else _CLIP_LENGTH,
        vocabulary.get(",</w>"),
        _followers(vocabulary, {token.content for token in backend.get_added_tokens_decoder().values()}),
    )


def _open_backend(folder: Path) -> Tokenizer:
    whole = folder / "tokenizer.json"
    if whole.is_file():
        from tokenizers import Tokenizer

        text = _checked(whole)
        try:
            return Tokenizer.from_str(text)
        except Exception as error:
            raise SourceError(f"{whole} can't be loaded: {error}; fetch it again") from error
    for name in ("vocab.json", "merges.txt"):
        if not (folder / name).is_file():
            raise SourceError(f"{folder} has neither tokenizer.json nor {name}; fetch its files again")
        _read(folder / name, _MOST_BYTES)
    from transformers import CLIPTokenizer

    try:
        backend: Tokenizer = CLIPTokenizer.from_pretrained(folder, local_files_only=True).backend_tokenizer
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SourceError(f"{folder} can't be loaded as a tokenizer: {error!r}; fetch its files again") from error
    return backend


def _checked(path: Path) -> str:
    """Return a `tokenizer.json` whose merges fit its vocabulary, of which the library's own error says little."""
    model = _read_json(path, _MOST_BYTES).get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    merges = model.get("merges") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict) or not isinstance(merges, list):
        raise SourceError(f"{path} is no byte-pair tokenizer; fetch it again")
    if max(len(vocabulary), len(merges)) > _MOST_TOKENS:
        raise SourceError(f"{path} has more than {_MOST_TOKENS:,} tokens, too many for CLIP; fetch it again")
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    if not all(isinstance(pair, list) and all(isinstance(part, str) for part in pair) for pair in pairs):
        raise SourceError(f"{path} has merges that are no pairs of texts; fetch it again")
    unknown = {*map("".join, pairs), *chain.from_iterable(pairs)} - vocabulary.keys()
    if unknown:
        raise SourceError(f"{path} has merges of {min(unknown)!r}, which its vocabulary lacks; fetch it again")
    return _read(path, _MOST_BYTES).decode("utf-8-sig")


def _followers(vocabulary: Mapping[str, int], added: set[str]) -> dict[int, tuple[int, ...]]:
    """Find the further vectors of each added token: diffusers names them `TOKEN_1`, `TOKEN_2`."""
    found = {}
    for token in added:
        ids: list[int] = []
        while (following := f"{token}_{len(ids) + 1}") in added:
            ids.append(vocabulary[following])
        if ids:
            found[vocabulary[token]] = tuple(ids)
    return found


def _read(path: Path, most: int) -> bytes:
    try:
        return read_bytes(path, most)
    except OSError as error:
        raise SourceError(f"{path} can't be read: {error.strerror}; fetch the file again") from error


def _read_json(path: Path, most: int = CONFIG_BYTES) -> dict[str, Any]:
    """Return a file's object; an empty one if there is no such file, since older folders lack one or the other."""
    if not path.exists():
        return {}
    try:
        value = parse_json(_read(path, most))
    except ValueError as error:
        raise SourceError(f"{path} is no JSON: {error}; fetch the file again") from error
    if not isinstance(value, dict):
        raise SourceError(f"{path} is no JSON object; fetch the file again")
    return value
