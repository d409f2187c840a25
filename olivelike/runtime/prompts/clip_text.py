"""Texts as CLIP reads them: tokenized in chunks of 75, encoded to equal length, weighted.

Chunks are those of A1111's `TextConditionalModel.tokenize_line` (`modules/sd_hijack_clip.py`), each with a start and an
end of its own: the vectors of one textual inversion stay in one chunk, and where a comma stands among the last 20
tokens of a full chunk, what follows it moves on.

Weights are those of A1111's emphasis "Original" (`modules/sd_emphasis.py`): states times weights, then scaled back to
the mean that they had, chunk by chunk. A1111 takes the mean over a batch of prompts; here it is each prompt's own, so
that a picture does not depend on its neighbours.

Tokenizers are read by the `tokenizers` library itself: its ids are those of transformers' `CLIPTokenizer`, which is a
shell around it and takes a second to import. Only a vocabulary with settings of an unknown form is left to that class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike._untrusted import CONFIG_BYTES, Json, parse_json, read_bytes
from olivelike.errors import SourceError, UsageError
from olivelike.families.denoiser_forms import EncodedText
from olivelike.runtime.prompts.syntax import Fragment, PromptPart, parse_prompt

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from olivelike.families.denoiser_forms import Array

    TextEncoder = Callable[..., EncodedText]
    """Encodes ids, integers of shape (rows, length) that all differ; a mask of that shape may follow them."""


def weighted(hidden: Array, weights: Sequence[Sequence[float]]) -> Array:
    """Weigh the chunks of one prompt and lay them one after the other.

    Returns embeddings of shape (1, chunks · length, width), of the dtype of `hidden`; a chunk whose weights are all 1
    keeps its bits. Raises `UsageError` if the weights leave no finite numbers.

    Args:
        hidden: hidden states of the chunks, of shape (chunks, length, width), in any floating dtype.
        weights: a weight per token, (chunks, length).
    """
    import numpy as np

    chunks = []
    for states, own in zip(hidden, weights, strict=True):
        if all(weight == 1.0 for weight in own):
            chunks.append(states)
            continue
        whole = states.astype(np.float32)
        with np.errstate(all="ignore"):  # It is looked at what comes out.
            scaled = whole * np.array(own).astype(np.float32)[:, None]
            share = np.float32(whole.mean(dtype=np.float64) / scaled.mean(dtype=np.float64))
            restored = (scaled * share).astype(hidden.dtype)
        if not np.isfinite(restored).all():
            raise UsageError("prompt: with these weights the text's embedding has no finite values; use smaller ones")
        chunks.append(restored)
    return np.concatenate(chunks)[None]


_COMMA_REACH = 20
"""A1111's default for `comma_padding_backtrack`."""

Token = tuple[int, float]


@dataclass(frozen=True)
class Chunks:
    """A tokenized prompt."""

    ids: tuple[tuple[int, ...], ...]
    """Rows of `length` ids, with start, end and padding."""
    weights: tuple[tuple[float, ...], ...]
    """A weight for each id; 1 for start, end and padding."""
    tokens: int
    """Number of ids that stand for the prompt's text."""

    @property
    def chunks(self) -> int:
        """Number of rows."""
        return len(self.ids)

    def padded(self, count: int, tokenizer: PromptTokenizer) -> Chunks:
        """Return as many chunks as asked for, the further ones being those of an empty prompt."""
        missing = count - len(self.ids)
        empty = _row([], tokenizer)
        return Chunks(self.ids + (empty[0],) * missing, self.weights + (empty[1],) * missing, self.tokens)


def chunk_prompt(tokenizer: PromptTokenizer, parts: Sequence[PromptPart]) -> Chunks:
    """Tokenize the parts of a prompt and deal them out to chunks; there is always one."""
    deal = _Deal(tokenizer.room, tokenizer.comma)
    for part in parts:
        if not isinstance(part, Fragment):
            deal.end_chunk()
            continue
        for ids in tokenizer.ids(part.text):
            # A token with more vectors than a whole chunk has room for has to be parted.
            for start in range(0, len(ids), deal.room):
                deal.add([(token, part.weight) for token in ids[start : start + deal.room]])
    if deal.current or not deal.full:
        deal.end_chunk()
    rows = [_row(tokens, tokenizer) for tokens in deal.full]
    return Chunks(
        tuple(ids for ids, _ in rows), tuple(weights for _, weights in rows), sum(len(tokens) for tokens in deal.full)
    )


class _Deal:
    """Chunks as they fill up."""

    def __init__(self, room: int, comma: int | None) -> None:
        self.room = room
        self.full: list[list[Token]] = []
        self.current: list[Token] = []
        self._comma = comma
        self._last_comma: int | None = None

    def add(self, group: list[Token]) -> None:
        """Add vectors that stay together."""
        if group[0][0] == self._comma:
            self._last_comma = len(self.current)
        elif (
            len(self.current) == self.room
            and self._last_comma is not None
            and self.room - self._last_comma <= _COMMA_REACH
        ):
            moved = self.current[self._last_comma + 1 :]
            del self.current[self._last_comma + 1 :]
            self.end_chunk()
            self.current = moved
        if len(self.current) + len(group) > self.room:
            self.end_chunk()
        self.current += group

    def end_chunk(self) -> None:
        """Begin the next chunk."""
        self.full.append(self.current)
        self.current, self._last_comma = [], None


def _row(tokens: Sequence[Token], tokenizer: PromptTokenizer) -> tuple[tuple[int, ...], tuple[float, ...]]:
    padding = tokenizer.length - 2 - len(tokens)
    ids = (tokenizer.start, *(token for token, _ in tokens), tokenizer.end, *(tokenizer.pad,) * padding)
    return ids, (1.0, *(weight for _, weight in tokens), 1.0, *(1.0,) * padding)


_ROWS = 64
"""Most rows that an encoder takes in a call."""
_CLIP_LENGTH = 77
_MOST_BYTES = 32 << 20
"""Most bytes of a vocabulary; CLIP's has 2 MB."""
_MOST_TOKENS = 300_000
"""CLIP has 49,408, and some vectors of textual inversions."""
_MOST_GROWTH = 1024
"""Letters that replacements may make of one; T5's make two."""


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
    cut: bool = False
    """Whether all behind the first chunk is left out, as where the pooled output alone is taken."""

    def ids(self, text: str) -> list[tuple[int, ...]]:
        """Return the ids of a text; a tuple for each token, since the vectors of one token stay together."""
        ids = self.backend.encode(text, add_special_tokens=False).ids
        return [(token, *self.followers.get(token, ())) for token in ids]

    @property
    def room(self) -> int:
        """Tokens of a text that fit into a chunk."""
        return self.length - 2

    @property
    def words(self) -> Collection[str]:
        """Names of the textual inversions that it knows."""
        return {token.content for token in self.backend.get_added_tokens_decoder().values() if not token.special}

    def read(self, text: str, *, prompt_weights: bool = True) -> Chunks:
        """Tokenize a text, whose brackets are weights or, without `prompt_weights`, text."""
        found = chunk_prompt(self, parse_prompt(text, prompt_weights=prompt_weights))
        if not self.cut:
            return found
        return Chunks(found.ids[:1], found.weights[:1], min(found.tokens, self.room))

    def encode(self, texts: Sequence[Chunks], chunks: int, encoder: TextEncoder) -> EncodedText:
        """Encode texts to the length of so many chunks; every distinct row of ids once, 64 in a call.

        Returns hidden states of shape (texts, chunks · length, width), and the pooled output of each first chunk.
        Raises `UsageError` if weights can't be applied.
        """
        return encode_chunks([text.padded(chunks, self) for text in texts], encoder)


def encode_chunks(texts: Sequence[Chunks], encoder: TextEncoder) -> EncodedText:
    """Encode texts of as many chunks each, as `PromptTokenizer.encode` returns them."""
    import numpy as np

    rows = list(dict.fromkeys(row for text in texts for row in text.ids))
    number = {row: index for index, row in enumerate(rows)}
    output = _in_turn(np.array(rows, np.int32), encoder)
    places = [[number[row] for row in text.ids] for text in texts]
    hidden = [weighted(output.hidden[own], text.weights) for own, text in zip(places, texts, strict=True)]
    pooled = None if output.pooled is None else output.pooled[[own[0] for own in places]]
    return EncodedText(np.concatenate(hidden), pooled)


def _in_turn(ids: Array, encoder: TextEncoder) -> EncodedText:
    import numpy as np

    if len(ids) <= _ROWS:
        return encoder(ids)
    outputs = [encoder(ids[first : first + _ROWS]) for first in range(0, len(ids), _ROWS)]
    pooled = [output.pooled for output in outputs if output.pooled is not None]
    hidden = np.concatenate([output.hidden for output in outputs])
    return EncodedText(hidden, np.concatenate(pooled) if pooled else None)


def open_tokenizer(folder: Path, *, cut: bool = False) -> PromptTokenizer:
    """Open `tokenizer/` or `tokenizer_2/` of a pipeline's folder; `cut` ends texts with their first chunk.

    Raises `SourceError` if files are absent or damaged, or it is no tokenizer of CLIP's kind.
    """
    if not folder.is_dir():
        raise SourceError(f"{folder} is no folder; a pipeline needs its tokenizer: make the folder again")
    settings = _read_json(folder / "tokenizer_config.json")
    backend = _open_backend(folder)
    backend.no_padding()
    backend.no_truncation()
    vocabulary = backend.get_vocab(with_added_tokens=True)
    end = "<|endoftext|>"
    special = read_special(folder, backend, {"bos_token": "<|startoftext|>", "eos_token": end, "pad_token": end})
    length = settings.get("model_max_length")
    return PromptTokenizer(
        backend,
        special["bos_token"],
        special["eos_token"],
        special["pad_token"],
        # Files without a limit have a number of thirty digits here.
        length if isinstance(length, int) and 2 < length < 10_000 else _CLIP_LENGTH,
        None if cut else vocabulary.get(",</w>"),
        _followers(vocabulary, {token.content for token in backend.get_added_tokens_decoder().values()}),
        cut,
    )


def read_special(folder: Path, backend: Tokenizer, otherwise: Mapping[str, str]) -> dict[str, int]:
    """Return the ids of special tokens by what they are for, as the folder of a tokenizer says.

    Raises `SourceError` if one is not in the vocabulary. `otherwise` has the tokens for a folder that says nothing.
    """
    said = {**_read_json(folder / "special_tokens_map.json"), **_read_json(folder / "tokenizer_config.json")}
    found = {}
    for role, usual in otherwise.items():
        token = said.get(role) or usual
        content = token.get("content") if isinstance(token, dict) else token
        number = backend.token_to_id(content) if isinstance(content, str) else None
        if number is None:
            raise SourceError(f"{folder}: its {role} {content!r} is not in its vocabulary; fetch its files again")
        found[role] = number
    return found


def read_tokenizer(folder: Path, count: Callable[[Any], int | None]) -> str:
    """Return a `tokenizer.json` with a model of one kind, as text.

    Raises `SourceError` if it is absent, damaged, too large or of another kind. `count` returns the number of a model's
    tokens; `None` for one of another kind.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise SourceError(f"{folder} has no tokenizer.json; fetch its files again")
    whole = _read_json(path, _MOST_BYTES)
    _check_growth(path, whole)
    number = count(whole.get("model"))
    if number is None:
        raise SourceError(f"{path} has a vocabulary of another kind than its text encoder; fetch it again")
    if number > _MOST_TOKENS:
        raise SourceError(f"{path} has more than {_MOST_TOKENS:,} tokens; fetch it again")
    return _read(path, _MOST_BYTES).decode("utf-8-sig")


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
    from olivelike.runtime.prompts.clip_tokenizer import FILES

    files = {name: _read(folder / name, _MOST_BYTES) for name in FILES if (folder / name).is_file()}
    try:
        return _from_vocabulary(folder, files)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SourceError(f"{folder} can't be loaded as a tokenizer: {error!r}; fetch its files again") from error


def _from_vocabulary(folder: Path, files: Mapping[str, bytes]) -> Tokenizer:
    from olivelike.runtime.prompts.clip_tokenizer import ClipTokenizer, UnknownFormError

    try:
        return ClipTokenizer(files).tokenizer
    except UnknownFormError:
        from transformers import CLIPTokenizer

        backend: Tokenizer = CLIPTokenizer.from_pretrained(folder, local_files_only=True).backend_tokenizer
        return backend


def _checked(path: Path) -> str:
    """Return a `tokenizer.json` whose merges fit its vocabulary, of which the library's own error says little."""
    whole = _read_json(path, _MOST_BYTES)
    _check_growth(path, whole)
    model = whole.get("model")
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


def _check_growth(path: Path, whole: Json) -> None:
    """Refuse a tokenizer whose replacements, one behind the other, make a text very much longer.

    Each may put its content between any two letters.
    """
    growth, left = 1, [whole.get("normalizer"), whole.get("pre_tokenizer")]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += part
        elif isinstance(part, dict):
            left += [one for one in part.values() if isinstance(one, dict | list)]
            content = part.get("content") if part.get("type") == "Replace" else None
            growth *= len(content) + 1 if isinstance(content, str) else 1
        if growth > _MOST_GROWTH:
            raise SourceError(f"{path} makes a text more than {_MOST_GROWTH:,} times as long; fetch it again")


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


def _read_json(path: Path, most: int = CONFIG_BYTES) -> Json:
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
