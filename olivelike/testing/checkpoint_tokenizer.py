"""A byte-level BPE vocabulary for the real `CLIPTokenizer`, of any size, made without training data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

_PUBLISHED = Path(__file__).parents[1] / "data" / "published" / "tokenizer"

START, END = "<|startoftext|>", "<|endoftext|>"
_WORD_END = "</w>"

# Words of everyday prompts: their prefixes become tokens, so that prompts are about as long as with CLIP.
_WORDS = """
a an the of in on at with and by to for from photo photograph picture image painting drawing sketch
portrait landscape illustration watercolor oil pencil digital art artwork render style color colour
black white red green blue yellow orange purple pink gold silver dark light bright night day sunset
sunrise morning evening sky cloud sun moon star stars sea ocean river lake mountain mountains forest
tree trees flower flowers garden field city street house castle tower bridge room window door car train
ship boat plane astronaut riding horse cat dog bird fish dragon robot knight wizard king queen man woman
boy girl child face eyes hair hand hat dress suit beautiful highly detailed sharp focus cinematic
lighting soft studio background trending realistic fantasy anime low quality blurry bad ugly worst best
masterpiece high resolution 4k 8k circle square triangle small large big
"""


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write `vocab.json`, `merges.txt` and the two config files as the hub holds them.

    Args:
        folder: the `tokenizer` folder; made if absent.
        vocab_size: number of tokens; the last two are the start and the end of a text, as in CLIP.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary, merges = make_vocabulary(vocab_size)
    _write_json(folder / "vocab.json", vocabulary, indent=None)
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    _write_settings(folder, "pad_end")


def write_clip_tokenizer(folder: Path, settings: str) -> None:
    """Write CLIP's own tokenizer of 49,408 tokens, whose merges are part of the package.

    Args:
        folder: the tokenizer's folder; made if absent.
        settings: folder of the published settings: `pad_end`, or `pad_exclamation` as in SD 2 and in SDXL's second
            tokenizer, after what fills short prompts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    merges = (_PUBLISHED / "merges.txt").read_bytes()
    (folder / "merges.txt").write_bytes(merges)
    letters = _byte_letters()
    joined = [line.replace(" ", "") for line in merges.decode().splitlines()[1:]]
    tokens = [*letters, *(letter + _WORD_END for letter in letters), *joined, START, END]
    _write_json(folder / "vocab.json", {token: index for index, token in enumerate(tokens)}, indent=None)
    _write_settings(folder, settings)


def _write_settings(folder: Path, settings: str) -> None:
    """Write the published settings, with what only folders of a library have in them."""
    special = json.loads((_PUBLISHED / settings / "special_tokens_map.json").read_bytes())
    config = json.loads((_PUBLISHED / settings / "tokenizer_config.json").read_bytes())
    config |= {"name_or_path": "openai/clip-vit-large-patch14", "special_tokens_map_file": "./special_tokens_map.json"}
    _write_json(folder / "special_tokens_map.json", special)
    _write_json(folder / "tokenizer_config.json", dict(sorted(config.items())))


def make_vocabulary(size: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return token ids and merges of a BPE vocabulary with `size` tokens.

    Raises:
        ValueError: if `size` has no room for the 512 byte tokens and the two special ones.
    """
    letters = _byte_letters()
    tokens = [*letters, *(letter + _WORD_END for letter in letters)]
    if size < len(tokens) + 2:
        raise ValueError(f"a vocabulary needs at least {len(tokens) + 2} tokens, not {size}")
    known, merges = set(tokens), []
    for left, right in _candidate_merges(letters):
        if len(tokens) == size - 2:
            break
        if left + right not in known:
            known.add(left + right)
            tokens.append(left + right)
            merges.append((left, right))
    tokens += [START, END]
    return {token: index for index, token in enumerate(tokens)}, merges


def _candidate_merges(letters: list[str]) -> Iterator[tuple[str, str]]:
    for word in _WORDS.split():
        pieces = [*word[:-1], word[-1] + _WORD_END]
        joined = pieces[0]
        for piece in pieces[1:]:
            yield joined, piece
            joined += piece
    # A vocabulary as large as CLIP's is filled with pairs of letters that no prompt holds.
    yield from product(reversed(letters), letters)


def _byte_letters() -> list[str]:
    """Return a printable letter for each byte value, as GPT-2's byte-level BPE assigns them."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(others))]


def _write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
