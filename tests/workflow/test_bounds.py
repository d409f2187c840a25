"""Workflow files that would take memory or time, or give away other files."""

from __future__ import annotations

import os

import pytest

from olivelike.errors import WorkflowError
from olivelike.workflow import load_workflow


def message_of(ref, overrides=()):
    with pytest.raises(WorkflowError) as raised:
        load_workflow(ref, overrides)
    return str(raised.value)


BASE = "source: owner/model\ntarget: cpu\ncomponents: {unet: [convert]}\noutput: models/x\n"


def test_a_base_that_is_a_device_or_a_pipe_is_refused_at_once(write, project):
    os.mkfifo(project / "pipe")
    for name in ("/dev/zero", str(project / "pipe")):
        assert "only regular files are read" in message_of(write(f"{BASE}extends: {name}\n"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x" * 600_000, "600,000 bytes, and at most 524,288"),
        ("k: 1\n" * 30_000, "more than 20000 values"),
        ("a: &a " + "[" * 40 + "]" * 40 + "\nb: " + "[" * 40 + "*a" + "]" * 40, "50 levels once aliases"),
        ('name: "\\U00110000"\n', "stands for nothing"),
        ("? !!str {a: b}\n: 1\n", "a key must be text"),
        ("".join(f"k{i}: 1\n" for i in range(5000)), "there may be more"),
    ],
)
def test_what_is_too_much_or_makes_no_sense_is_an_error_with_a_place(write, text, why):
    message = message_of(write(text))
    assert why in message
    assert "mine.yaml:" in message
    assert len(message) < 60_000


def test_a_long_chain_of_bases_is_refused(write):
    for number in range(30):
        write(f"extends: ./w{number + 1}.yaml\n", f"w{number}.yaml")
    assert "more than 20 files" in message_of(write(f"{BASE}extends: ./w0.yaml\n"))


@pytest.mark.parametrize("secret", ["root:x:0:0:word\n", "token: hunter2\n", "- hunter2\n", "a: *hunter2\n"])
def test_a_base_that_is_no_workflow_is_not_quoted(write, project, secret):
    (project / "secret").write_text(secret)
    message = message_of(write(f"{BASE}extends: {project}/secret\n"))
    assert "is no workflow file; correct `extends`" in message
    assert not {"hunter2", "word", "token"} & set(message.replace(":", " ").split())


def test_long_lines_and_names_are_cut_in_messages(write):
    assert len(message_of(write(f"{BASE}{'x' * 90_000}: 1\n"))) < 5000


def test_a_bracket_without_its_partner_is_pointed_at(write):
    message = message_of(write("components:\n  unet: [convert, fuse\noutput: x\n"))
    assert "mine.yaml:2:9: YAML syntax error: `[` is not closed" in message
    assert "on line 3, column 7; add `]`" in message


def test_an_option_beside_its_pass_is_to_be_indented(write):
    text = BASE.replace("{unet: [convert]}", "\n  unet:\n  - float16:\n    keep_io: true")
    assert "`keep_io` is an option of float16: indent it" in message_of(write(text))


def test_overrides_of_many_keys_or_digits_are_refused(write):
    ref = write(BASE)
    assert "expected KEY.PATH=VALUE" in message_of(ref, [".".join("a" * 5000) + "=1"])
    assert "use a number from" in message_of(ref, [f"components.unet.{'9' * 5000}=x"])


def test_thousands_of_outputs_are_compared_in_no_time(write):
    outputs = "".join(f"  - {{path: o/{number}}}\n" for number in range(3000))
    text = BASE.replace("output: models/x", f"outputs:\n{outputs}  - {{path: o}}")
    assert "lies inside another" in message_of(write(text))
