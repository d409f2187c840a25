"""Several runs at once, killed runs, cancelled runs."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from olivelike.engine.execute.process_executor import ProcessExecutor

from .conftest import Project

SLOW_PASS = """
import time
from olivelike.pass_api import Pass

class Slow(Pass):
    "A pass that takes a while and notes that it ran."
    files = ()
    reads = ("graph",)
    writes = ("graph",)
    seconds: float = 1.0
    notes: str = ""

    def run(self, model, context):
        with open(self.notes, "a") as file:
            file.write(model.component + "\\n")
        context.progress(1, 2)
        time.sleep(self.seconds)
        return model
"""

RUN = """
import json, sys
from pathlib import Path
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from tests.fixtures.inline_executor import InlineExecutor
from olivelike.errors import OlivelikeError

def show(event):
    print(json.dumps(event.to_json()), flush=True)

try:
    output = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    run(sys.argv[1], Options(output=output), show, executor=InlineExecutor if sys.argv[2] == "alone" else None)
except OlivelikeError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def start(project: Project, *arguments: str, alone: bool = False) -> subprocess.Popen[str]:
    """Start a run; with `alone`, one without workers, where those are not the point."""
    command = [sys.executable, "-c", RUN, str(project.workflow), "alone" if alone else "", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(process: subprocess.Popen[str], event: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == event:
            return
    raise AssertionError(f"no {event}: {process.stderr.read() if process.stderr else ''}")


def add_slow_pass(project: Project, seconds: float) -> Path:
    notes = project.folder / "notes.txt"
    notes.touch()
    (project.folder / "plugins").mkdir()
    (project.folder / "plugins" / "slow.py").write_text(SLOW_PASS, encoding="utf-8")
    project.edit("name: small", "name: small\nplugins: [../plugins/slow.py]")
    step = f"slow: {{seconds: {seconds}, notes: {json.dumps(str(notes))}}}"
    project.edit("text_encoder: [convert, float16]", f"text_encoder: [convert, {step}, float16]")
    return notes


def test_two_runs_on_one_store_run_common_nodes_once(project: Project, tmp_path: Path) -> None:
    notes = add_slow_pass(project, 1.0)
    runs = [start(project, str(tmp_path / name), alone=True) for name in ("a", "b")]
    printed = [process.communicate(timeout=120) for process in runs]
    assert [process.returncode for process in runs] == [0, 0], printed
    assert notes.read_text(encoding="utf-8") == "text_encoder\n"
    one, two = (tmp_path / name / "text_encoder" / "model.onnx" for name in ("a", "b"))
    assert one.read_bytes() == two.read_bytes() == (project.output / "text_encoder" / "model.onnx").read_bytes()


@pytest.mark.slow  # In `test_outputs.py` one of two runs into one output waits for the other.
def test_two_runs_into_one_output_both_end_right(project: Project) -> None:
    add_slow_pass(project, 1.0)
    project.edit("vae_decoder: [convert, float16]", "vae_decoder: [convert, float16: {keep_io: true}]")
    runs = [start(project, alone=True) for _ in range(2)]
    printed = [process.communicate(timeout=120) for process in runs]
    assert [process.returncode for process in runs] == [0, 0], printed
    assert project.run().executed == 0
    assert project.leftovers() == []


def test_an_interrupt_stops_the_children_and_leaves_nothing(project: Project) -> None:
    add_slow_pass(project, 60.0)
    before = project.files()
    process = start(project)
    wait_for(process, "node_progress")
    children = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=20)
    assert process.returncode == 130, error
    assert json.loads(out.splitlines()[-1])["status"] == "interrupted"
    assert not any(child.is_running() for child in children)
    assert project.files() == before
    assert project.leftovers() == []


def test_children_end_when_the_run_is_killed(project: Project) -> None:
    add_slow_pass(project, 60.0)
    process = start(project)
    wait_for(process, "node_progress")
    children = psutil.Process(process.pid).children()
    process.kill()
    process.communicate(timeout=20)
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_a_run_killed_at_any_moment_ends_right_when_repeated(project: Project, seed: int) -> None:
    expected = project.files()
    project.edit("output: models/small", "output: models/again")
    moment = random.Random(seed)
    for _ in range(2):
        process = start(project)
        time.sleep(moment.uniform(0.2, 1.6))
        process.kill()
        process.communicate(timeout=20)
    output = project.folder / "models" / "again"
    shown = Project(project.folder)
    assert not output.exists() or (output / "olivelike.json").is_file()
    shown.run()
    made = {path.relative_to(output).as_posix(): path.read_bytes() for path in output.rglob("*") if path.is_file()}
    made.pop("olivelike.json")
    assert made == expected
    assert project.leftovers() == []
    assert shown.run().executed == 0


def test_a_small_memory_limit_runs_one_node_at_a_time(project: Project) -> None:
    project.executor = ProcessExecutor
    project.run("components.vae_decoder.1.float16.keep_io=true", memory_limit=1, clean_cache=False)
    running = most = 0
    for event in project.events:
        running += {"node_started": 1, "node_finished": -1}.get(event.name, 0)
        most = max(most, running)
    assert most == 1
