"""Prompts that a stranger sends to hold a server: each takes time by its length, not by the square of it."""

from __future__ import annotations

import time

import pytest

from olivelike.errors import UsageError
from olivelike.runtime.jobs.job_notes import unread
from olivelike.runtime.prompts.syntax import parse_prompt, texts_of_steps
from olivelike.runtime.prompts.wildcards import Wildcards

_LONG = 20_000


@pytest.mark.parametrize(
    "prompt",
    [
        "_" * (_LONG - 1) + "a",
        "[a:" + "1" * (_LONG - 5) + "x]",
        ":" + "1" * (_LONG - 1),
        "(" * (_LONG // 2) + ")" * (_LONG // 2),
        "[" * (_LONG // 2) + "]" * (_LONG // 2),
        "(" * 200 + ":a" * 9_000 + ")" * 200,
        "{" + "|" * (_LONG - 1),
    ],
    ids=lambda prompt: prompt[:4],
)
def test_a_long_prompt_is_read_in_moments(prompt):
    began = time.process_time()
    try:
        parse_prompt(prompt)
    except UsageError as error:
        assert "open at once" in str(error) or "beyond" in str(error)
    texts_of_steps(prompt, 1)
    unread(prompt, Wildcards(()), negative=True)
    Wildcards(()).resolve(prompt, 1)
    assert time.process_time() - began < 5  # It took 10 to 50 s.
