"""CLIP's vocabulary, which follows from its merges.

The rule is that of OpenAI's tokenizer (https://github.com/openai/CLIP, `simple_tokenizer.py`): the 256 byte
symbols, the same at the end of a word, each pair that merges joins, start and end of a text; ids in that order.
"""

from __future__ import annotations

from olivelike.errors import SourceError

_WORD_END = "</w>"
_SPECIAL = ("<|startoftext|>", "<|endoftext|>")


def clip_vocabulary(merges: bytes, where: str) -> dict[str, int]:
    """Return token → id for the `merges.txt` of a CLIP tokenizer.

    Args:
        merges: a first line `#version: …`, then a pair of symbols per line.
        where: the file, for messages.

    Raises:
        SourceError: if a line is no pair of symbols that came before it, so that no vocabulary follows.
    """
    symbols = _byte_symbols()
    tokens = dict.fromkeys([*symbols, *(symbol + _WORD_END for symbol in symbols)])
    for line in merges.decode(errors="replace").splitlines():
        if not line or line.startswith("#version"):
            continue
        left, _, right = line.partition(" ")
        if left not in tokens or right not in tokens or left + right in tokens:
            raise SourceError(
                f"{where}: {line!r} is no merge of CLIP, so vocab.json can't be made from it; fetch both files again"
            )
        tokens[left + right] = None
    return {token: index for index, token in enumerate([*tokens, *_SPECIAL])}


def _byte_symbols() -> list[str]:
    """Return a printable symbol for each byte, as GPT-2 assigns them: printable bytes first, as themselves."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = 256 - len(printable)
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(others)]
