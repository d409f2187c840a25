"""Kinds of errors, and the words by which processes tell them."""

from __future__ import annotations

import pytest

from olivelike import errors
from olivelike.errors import OlivelikeError, PassError, error_of

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OlivelikeError)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not OlivelikeError])
def test_a_word_stands_for_one_kind(kind):
    assert error_of(kind.word) is kind


def test_an_unknown_word_is_an_error_of_a_pass():
    assert error_of("nonsense") is PassError
