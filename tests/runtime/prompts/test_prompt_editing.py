from __future__ import annotations

import pytest

from olivelike.runtime.prompts.syntax import read_terms, texts_of_steps


def schedule(text, steps=10):
    """Return `[last step, text]` for each stretch, as A1111's doc tests print it."""
    found: list[list[object]] = []
    for step, said in enumerate(texts_of_steps(text, steps), 1):
        if found and found[-1][1] == said:
            found[-1][0] = step
        else:
            found.append([step, said])
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("test", [[10, "test"]]),
        ("a [b:3]", [[3, "a "], [10, "a b"]]),
        ("a [b: 3]", [[3, "a "], [10, "a b"]]),
        ("a [[[b]]:2]", [[2, "a "], [10, "a [[b]]"]]),
        ("[(a:2):3]", [[3, ""], [10, "(a:2)"]]),
        ("a [b : c : 1] d", [[1, "a b  d"], [10, "a  c  d"]]),
        ("a[b:[c:d:2]:1]e", [[1, "abe"], [2, "ace"], [10, "ade"]]),
        ("a [unbalanced", [[10, "a [unbalanced"]]),
        ("a [b:.5] c", [[5, "a  c"], [10, "a b c"]]),
        ("a [{b|d{:.5] c", [[5, "a  c"], [10, "a {b|d{ c"]]),
        ("((a][:b:c [d:3]", [[3, "((a][:b:c "], [10, "((a][:b:c d"]]),
        ("a [b::0.5]", [[5, "a b"], [10, "a "]]),
        ("a [b:1.5] c", [[10, "a  c"]]),
        ("a [b:1e999] c", [[10, "a  c"]]),
        ("a [b:c:-3]", [[10, "a c"]]),
    ],
)
def test_editing_gives_the_schedules_of_a1111_s_own_doc_tests(text, expected):
    assert schedule(text) == expected


def test_alternation_takes_one_word_per_step_in_turn():
    assert schedule("[cow|horse] in a field", 3) == [
        [1, "cow in a field"], [2, "horse in a field"], [3, "cow in a field"],
    ]  # fmt: skip
    assert schedule("[fe|]male", 4) == [[1, "female"], [2, "male"], [3, "female"], [4, "male"]]
    assert schedule("[fe|||]male", 6) == [[1, "female"], [4, "male"], [5, "female"], [6, "male"]]


def test_a1111_s_example_changes_when_its_guide_says():
    text = (
        "fantasy landscape with a [mountain:lake:0.25] and [an oak:a christmas tree:0.75][ in foreground::0.6]"
        "[ in background:0.25] [shoddy:masterful:0.5]"
    )
    assert schedule(text, 100) == [
        [25, "fantasy landscape with a mountain and an oak in foreground shoddy"],
        [50, "fantasy landscape with a lake and an oak in foreground in background shoddy"],
        [60, "fantasy landscape with a lake and an oak in foreground in background masterful"],
        [75, "fantasy landscape with a lake and an oak in background masterful"],
        [100, "fantasy landscape with a lake and a christmas tree in background masterful"],
    ]


@pytest.mark.parametrize(
    "text", ["(a:1.2) [b] c", r"\[a:b:3\]", "[a:b]", "[a:b:c:5]", ":) :( [x] :[", "16:9 | 4:3", "", "[]", "\\"]
)
def test_other_brackets_stay_as_they_are(text):
    assert texts_of_steps(text, 3) == (text,) * 3


def test_brackets_by_the_thousand_are_read():
    assert len(texts_of_steps("[" * 20_000, 2)) == 2
    assert texts_of_steps("[" * 3_000 + "a" + ":1]" * 3_000, 2) == ("", "a")


def terms(text, **options):
    return [(term.texts[0], term.weight) for term in read_terms(text, 1, **options)]


def test_and_parts_a_prompt_into_terms_with_weights():
    assert terms("a cat :1.2 AND a dog AND a penguin:-.5") == [
        ("a cat ", 1.2), (" a dog ", 1.0), (" a penguin", -0.5),
    ]  # fmt: skip
    assert terms("SAND and BRAND") == [("SAND and BRAND", 1.0)]
    assert terms("a AND b", prompt_weights=False) == [("a AND b", 1.0)]


def test_a_number_after_a_colon_is_no_weight_without_and():
    assert terms("a photo, 16:9") == [("a photo, 16:9", 1.0)]
    assert terms("(a:1.2) AND (b:0.5)") == [("(a:1.2) ", 1.0), (" (b:0.5)", 1.0)]


def test_each_term_is_edited_by_itself():
    first, second = read_terms("[a:b:1] AND [c|d] :0.5", 2)
    assert (first.texts, second.texts, second.weight) == (("a ", "b "), (" c ", " d "), 0.5)
