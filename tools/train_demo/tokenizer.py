"""The demo's tokenizer: every byte, and one token for each word of the captions."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from olivelike.testing.checkpoint_configs import END, START, make_vocabulary, write_tokenizer
from tools.train_demo.captions.captions import WORDS

if TYPE_CHECKING:
    from pathlib import Path

_WORD_END = "</w>"
_BYTE_TOKENS = 2 * 256


def write_demo_tokenizer(folder: Path) -> int:
    """Write a CLIP tokenizer's files; any text can be split by it, captions into whole words.

    Returns:
        The number of tokens.
    """
    write_tokenizer(folder, _BYTE_TOKENS + 2)
    bytes_only, _ = make_vocabulary(_BYTE_TOKENS + 2)
    tokens = list(bytes_only)[:_BYTE_TOKENS]
    merges = word_merges([[*word[:-1], word[-1] + _WORD_END] for word in WORDS])
    tokens += [left + right for left, right in merges]
    tokens += [START, END]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    text = json.dumps(vocabulary, ensure_ascii=False) + "\n"
    (folder / "vocab.json").write_text(text, encoding="utf-8", newline="\n")
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    config_file = folder / "tokenizer_config.json"
    config = json.loads(config_file.read_text(encoding="utf-8"))
    config["name_or_path"] = "olivelike-demo"
    config_file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8", newline="\n")
    return len(vocabulary)


def word_merges(words: list[list[str]]) -> list[tuple[str, str]]:
    """Merge the pair that most words hold, again and again, until every word is one token (BPE's own rule).

    Args:
        words: pieces of each word, its characters at first.
    """
    merges: list[tuple[str, str]] = []
    while pairs := Counter(pair for word in words for pair in pairwise(word)):
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        words = [_merged(word, best) for word in words]
    return merges


def _merged(word: list[str], pair: tuple[str, str]) -> list[str]:
    pieces: list[str] = []
    for piece in word:
        if pieces and (pieces[-1], piece) == pair:
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return pieces
