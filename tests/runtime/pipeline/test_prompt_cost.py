"""Prompts of 20 KB are drawn in the memory of short ones, or refused before anything is encoded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from olivelike.errors import UsageError
from olivelike.runtime import Request
from olivelike.runtime.jobs.job_plan import plan_jobs
from olivelike.runtime.jobs.prompt_lines import PromptLine

_LONG = 20_000
_REFUSED = {
    "breaks": ("BREAK " * 3300, "3,300 chunks of 75 tokens"),
    "letters": ("😀" * _LONG, "chunks of 75 tokens"),
    "parts": ("AND " * 4900, "4,901 parts"),
    "parts of chunks": (" AND ".join(["BREAK " * 10] * 7), "10 chunks of 75 tokens in each of 7 parts"),
    "editing": ("".join(f"[a{i}:b:{i % 50}]" for i in range(1400)), "chunks of 75 tokens"),
    "changes": ("BREAK BREAK [" + "|".join(f"a{i}" for i in range(200)) + "]", "it changes 200 times"),
    "brackets": ("(" * 9000 + "a" + ")" * 9000, "open at once"),
}
_DRAWN = {
    "words": "a red circle " * 700,
    "weights": "(a:1.2) " * 900,
    "breaks": "BREAK " * 63,
    "parts": " AND ".join(["BREAK " * 7] * 8),
    "changes": "[" + "|".join(f"a{i}" for i in range(200)) + "]",
}


@pytest.mark.parametrize("kind", _REFUSED)
def test_a_prompt_that_costs_too_much_is_refused_as_it_is_planned_and_as_it_is_drawn(kind, little_folder, pipeline):
    prompt, said = _REFUSED[kind]
    with pytest.raises(UsageError, match=said):
        plan_jobs(little_folder, [PromptLine(prompt)], {"steps": 200, "seed": 1})
    with pytest.raises(UsageError, match=said):
        pipeline.generate(Request((prompt,), steps=200, seed=1))


def test_a_negative_prompt_is_bounded_too(little_folder):
    with pytest.raises(UsageError, match="negative prompt: it has 3,300 chunks"):
        plan_jobs(little_folder, [PromptLine("a")], {"negative_prompt": "BREAK " * 3300, "seed": 1})


def test_a_short_prompt_may_not_make_the_long_ones_beside_it_wide(little_folder):
    lines = [PromptLine("BREAK " * 60), PromptLine(" AND ".join("abcdefgh"))]
    with pytest.raises(UsageError, match="in each of 9 parts.*batch_size"):
        plan_jobs(little_folder, lines, {"batch_size": 2, "seed": 1})
    assert plan_jobs(little_folder, lines, {"seed": 1}).pictures == 2


@pytest.mark.parametrize("kind", _DRAWN)
def test_long_prompts_within_the_bounds_are_planned(kind, little_folder):
    assert plan_jobs(little_folder, [PromptLine(_DRAWN[kind])], {"steps": 200, "seed": 1}).pictures == 1


_PROGRAM = """
import sys
from pathlib import Path
from olivelike.errors import UsageError
from olivelike.runtime import Request, open_pipeline

def memory(which):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(which))

pipeline = open_pipeline(Path(sys.argv[1]))
pipeline.generate(Request(("a red circle",), steps=2, seed=1))
at_rest = memory("VmRSS")
for prompt in sys.argv[2:]:
    try:
        pipeline.generate(Request((prompt,), steps=2, seed=1))
    except UsageError:
        pass
print(memory("VmHWM") / at_rest)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_prompts_of_20_kb_of_any_kind_leave_the_memory_below_twice_what_it_is_at_rest(little_folder):
    prompts = [*(prompt[:_LONG] for prompt, _ in _REFUSED.values()), *_DRAWN.values(), "a red circle " * 1500]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, little_folder, *prompts], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 2
