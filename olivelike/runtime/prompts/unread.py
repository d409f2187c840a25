"""What other programs read in a prompt and this one takes as words."""

from __future__ import annotations

import re
from typing import Final

from olivelike.runtime.prompts.wildcards import Wildcards

_NO_CHOICES: Final = "choices are made in prompts alone"
_NO_FILE: Final = "no such file in wildcards/; --wildcard-dir names another folder"
_UNREAD: Final = (
    (re.compile(r"(?<!\\)<(?!lora:|lyco:)[a-zA-Z_]+:[^<>\s][^<>]*>"), "there is no such extra network here"),
    (re.compile(r"(?<![\w\\])embedding:[\w./-]+"), "write a textual inversion as its token alone"),
    (re.compile(r"(?<!\\)\$\{[^{}]*\}"), "variables are not read"),
    (
        re.compile(r"(?<!\S)--(?:prompt|negative[-_]prompt|seed|steps|cfg[-_]scale|sampler[-_]name|scheduler|width|height|size|n[-_]iter|batch[-_]size)\b"),
        "in a file a line of options begins with --prompt",
    ),
)  # fmt: skip
_NEGATIVE: Final = (
    (re.compile(r"(?<!\\)<(?:lora|lyco):[^<>]+>"), "a LoRA is named in the prompt"),
    (re.compile(r"(?<!\\)\bAND\b"), "only prompts are composed; `and` in small letters is the word"),
    (re.compile(r"(?<!\\)\{[^{}]*\|[^{}]*\}"), _NO_CHOICES),
)


def unread(prompt: str, wildcards: Wildcards, *, negative: bool = False) -> str | None:
    """Return one line on what in a prompt looks like syntax and is taken as words; `None` if there is nothing.

    Args:
        prompt: as the user wrote it.
        wildcards: that it may name.
        negative: whether it is a negative prompt, which has less syntax.
    """
    found = []
    for pattern, why in (*_UNREAD, *(_NEGATIVE if negative else ())):
        found += [f"{match[0]} ({why})" for match in pattern.finditer(prompt)]
    unknown = Wildcards(()).unknown(prompt) if negative else wildcards.unknown(prompt)
    found += [f"{name} ({_NO_CHOICES if negative else _NO_FILE})" for name in unknown]
    if not found:
        return None
    what = "the negative prompt" if negative else f"the prompt '{shortened(prompt)}'"
    return f"{what}: taken as words: {', '.join(dict.fromkeys(found))}; a backslash before it says that it is meant so"


def shortened(prompt: str, longest: int = 60) -> str:
    """Return a prompt on one line of so many characters at most."""
    line = " ".join(prompt.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
