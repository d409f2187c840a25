"""What a run asks of its output folders: to lie apart from its inputs, to hold this pipeline, to have room."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from olivelike.errors import MissingError, UsageError
from olivelike.testing.lora_files import make_lora
from tests.fixtures.inline_executor import InlineExecutor

from .conftest import Project


def lines(project: Project) -> list[str]:
    return [event.data["message"] for event in project.events if event.name == "warning"]


@pytest.mark.parametrize(
    "output", ["checkpoint", "checkpoint/onnx", ".", "cache/objects", "link/onnx", "checkpoint/../checkpoint"]
)
def test_an_output_that_meets_the_source_or_the_store_is_refused_before_anything_runs(
    project: Project, output: str
) -> None:
    (project.folder / "link").symlink_to(project.folder / "checkpoint")
    before = {path: path.stat().st_mtime_ns for path in (project.folder / "checkpoint").rglob("*")}
    with pytest.raises(UsageError, match="overlaps the source|lies in the store"):
        project.run(output=project.folder / output)
    assert project.events == []
    assert {path: path.stat().st_mtime_ns for path in (project.folder / "checkpoint").rglob("*")} == before


def test_an_output_is_no_source_of_itself_however_it_is_spelled(project: Project) -> None:
    (project.folder / "again").symlink_to(project.output)
    chains = ("components.text_encoder=[fuse]", "components.vae_decoder=[fuse]")
    for source in ("./models/small", "./again", "./models/../again"):
        with pytest.raises(UsageError, match="would replace what it reads"):
            project.run(f"source={source}", *chains, overwrite=True)


@pytest.mark.parametrize("what", ["VAE", "LoRA"])
def test_a_vae_or_a_lora_inside_the_output_is_refused(project: Project, what: str) -> None:
    if what == "VAE":
        shutil.copytree(project.folder / "checkpoint" / "vae", project.output / "vae")
        overrides, loras = ["vae=./models/small/vae"], ()
    else:
        base = project.folder / "checkpoint"
        path = make_lora(project.output / "style.safetensors", "kohya", base=base, components=("text_encoder",))
        overrides = ["components.text_encoder=[merge_lora, convert, float16]"]
        loras = (str(path),)
    with pytest.raises(UsageError, match=f"overlaps the {what} ".replace("vae", "VAE").replace("lora", "LoRA")):
        project.run(*overrides, loras=loras)


def test_outputs_that_meet_through_a_link_are_refused(project: Project) -> None:
    (project.folder / "models" / "other").symlink_to(project.output)
    project.edit("output: models/small\n", "outputs: [{path: models/small}, {path: models/other}]\n")
    with pytest.raises(UsageError, match="give each a folder of its own"):
        project.run()


def test_a_folder_that_holds_another_pipeline_is_replaced_only_when_asked(project: Project) -> None:
    before = project.files()
    shutil.move(project.folder / "checkpoint", project.folder / "painter")
    with pytest.raises(UsageError) as refused:
        project.run("source=./painter")
    assert "holds another pipeline, made from" in str(refused.value)
    assert "checkpoint for cuda by the workflow small (text_encoder, vae_decoder)" in str(refused.value)
    assert str(refused.value).endswith("or replace it with --overwrite")
    assert project.files() == before
    assert project.run("source=./painter", overwrite=True).executed == 0
    assert project.run("source=./painter").executed == 0


def test_another_file_of_the_same_name_is_another_pipeline(project: Project) -> None:
    project.run("target.device_id=1")
    (project.folder / "other").mkdir()
    shutil.copytree(project.folder / "checkpoint", project.folder / "other" / "checkpoint")
    with pytest.raises(UsageError, match="holds another pipeline, made from .*/project/checkpoint for"):
        project.run("source=./other/checkpoint")
    assert project.run().executed == 0
    project.run("source=./other/checkpoint", overwrite=True)
    assert project.run("source=./other/checkpoint").executed == 0
    with pytest.raises(UsageError, match="made from .*/other/checkpoint for"):
        project.run()


def test_a_moved_checkout_goes_on_with_its_output(project: Project, tmp_path: Path) -> None:
    project.run("target.device_id=1")
    project.folder.rename(tmp_path / "moved")
    moved = Project(tmp_path / "moved")
    assert moved.run("target.device_id=2").executed == 0


def test_a_moved_checkout_goes_on_with_an_output_that_stayed(project: Project, tmp_path: Path) -> None:
    project.run(output=tmp_path / "models")
    project.folder.rename(tmp_path / "moved")
    assert Project(tmp_path / "moved").run("target.device_id=2", output=tmp_path / "models").executed == 0


def test_a_changed_file_of_a_dropped_component_stays_and_is_named(project: Project) -> None:
    config = project.output / "vae_decoder" / "config.json"
    config.write_text("{}", encoding="utf-8")
    project.edit("  vae_decoder: [convert, float16]\n", "")
    project.run()
    assert config.read_text(encoding="utf-8") == "{}"
    assert not (project.output / "vae_decoder" / "model.onnx").exists()
    assert "since they were changed: vae_decoder/config.json" in "\n".join(lines(project))


def test_a_file_of_the_user_where_one_of_ours_must_go_stops_the_run_first(project: Project) -> None:
    text = project.workflow.read_text(encoding="utf-8")
    project.edit("  vae_decoder: [convert, float16]\n", "")
    project.run()
    theirs = project.output / "vae_decoder" / "model.onnx"
    theirs.parent.mkdir()
    theirs.write_bytes(b"mine")
    project.workflow.write_text(text, encoding="utf-8")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="did not make .* vae_decoder/model.onnx; move them away"):
            project.run(overwrite=overwrite)
        assert project.executed() == set()
        assert theirs.read_bytes() == b"mine"
    theirs.unlink()
    project.run()
    assert project.executed() == {"vae_decoder.materialize"}


def test_a_source_whose_index_leads_out_of_a_folder_is_refused(project: Project) -> None:
    index = project.folder / "checkpoint" / "model_index.json"
    content = json.loads(index.read_bytes())
    index.write_text(json.dumps(content | {"../mine": ["transformers", "CLIPImageProcessor"]}))
    (project.folder / "mine").mkdir()
    (project.folder / "mine" / "preprocessor_config.json").write_text('{"mine": 1}', encoding="utf-8")
    with pytest.raises(Exception, match=r"\.\./mine/preprocessor_config\.json.*can't be one in an output") as error:
        project.run(output=project.folder / "models" / "new")
    assert error.value.exit_code == 3
    assert not (project.folder / "models" / "new").exists()


def test_a_bug_ends_a_run_with_its_event_and_its_record(project: Project) -> None:
    (project.output / "tokenizer" / "merges.txt").unlink()
    seen = []

    def broken(event: object) -> None:
        seen.append(event)
        if event.name == "output_published":
            raise RuntimeError("a bug of the listener")

    from olivelike.engine.prepared import Options
    from olivelike.engine.run import run

    with pytest.raises(RuntimeError, match="a bug of the listener"):
        run(str(project.workflow), Options(), broken)
    assert (seen[-1].name, seen[-1].data["status"]) == ("run_finished", "failed")
    record = json.loads(sorted((project.folder / "cache" / "runs").glob("*.json"))[-1].read_bytes())
    assert "a bug: RuntimeError" in json.dumps(record)


def test_a_record_that_goes_away_during_a_run_is_told(project: Project) -> None:
    from olivelike.engine.prepared import Options
    from olivelike.engine.run import run

    def listen(event: object) -> None:
        if event.name == "node_finished":
            (project.output / "olivelike.json").unlink(missing_ok=True)

    with pytest.raises(MissingError, match="its record went away during the run"):
        run(str(project.workflow), Options(overrides=("components.vae_decoder=[convert]",)), listen)


def test_a_collection_that_fails_is_told(project: Project) -> None:
    (project.output / "tokenizer" / "merges.txt").unlink()
    lock = project.folder / "cache" / "locks" / "gc.lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()
    project.run()
    assert "can't clean the store" in "\n".join(lines(project))


READ_ONLY = """
import json, sys
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.errors import OlivelikeError
from pathlib import Path
from tests.fixtures.inline_executor import InlineExecutor

for output, overrides in json.loads(sys.argv[2]):
    try:
        run(sys.argv[1], Options(output=Path(output), overrides=overrides), executor=InlineExecutor)
        print("ended")
    except OlivelikeError as error:
        print(f"{error.exit_code} {error}")
"""


@pytest.fixture
def sealed(project: Project) -> Project:
    """The project with a store that nobody may write."""
    cache = project.folder / "cache"
    for path in (*cache.rglob("*"), cache):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield project
    for path in (cache, *cache.rglob("*")):
        path.chmod(0o755)


def run_sealed(project: Project, *runs: tuple[str, list[str]]) -> list[str]:
    """Run into outputs, with overrides, without the privilege to write everywhere; return what each prints."""
    as_others = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    asked = json.dumps([(str(project.folder / "models" / output), overrides) for output, overrides in runs])
    command = [sys.executable, "-c", READ_ONLY, project.workflow, asked]
    done = subprocess.run([*as_others, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(
    sys.platform == "win32" or (os.geteuid() == 0 and shutil.which("setpriv") is None), reason="may write anywhere"
)
def test_a_read_only_store_serves_a_new_output_and_says_what_it_lacks(sealed: Project) -> None:
    before = {path: path.stat().st_mtime_ns for path in (sealed.folder / "cache").rglob("*")}
    others = ["components.vae_decoder=[convert]", "components.text_encoder=[convert, fuse, float16]"]
    served, refused = run_sealed(sealed, ("new", []), ("other", others))
    assert served == "ended"
    assert (sealed.folder / "models" / "new" / "text_encoder" / "weights.pb").is_file()
    assert refused.startswith(f"3 the store {sealed.folder / 'cache'} is read-only and lacks text_encoder.fuse")
    assert "make it writable, or put the store elsewhere with --cache-dir" in refused
    assert not (sealed.folder / "models" / "other").exists()
    assert {path: path.stat().st_mtime_ns for path in (sealed.folder / "cache").rglob("*")} == before


KILLED = """
import os, signal, sys
from pathlib import Path
from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from tests.fixtures.inline_executor import InlineExecutor
from olivelike.model.records.output import JOURNAL_FILE

left = int(sys.argv[2])

def hook(event, arguments):
    global left
    if event not in {"os.rename", "os.remove", "os.rmdir"} or not JOURNAL.exists():
        return
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

JOURNAL = Path(sys.argv[3]) / JOURNAL_FILE
sys.addaudithook(hook)
options = Options(overrides=("components={text_encoder: [convert, float16]}",))
run(sys.argv[1], options, executor=InlineExecutor)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no such signal")
def test_a_run_that_is_killed_under_its_journal_is_completed_with_another_store_too(project: Project) -> None:
    notes = project.output / "vae_decoder" / "notes.txt"
    notes.write_text("mine", encoding="utf-8")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, project.workflow, "3", project.output], check=False, capture_output=True
    )
    assert killed.returncode == -9, killed.stderr
    assert (project.output / ".olivelike-journal.json").exists()
    shutil.copytree(project.folder / "cache", project.folder / "other")
    project.edit("  vae_decoder: [convert, float16]\n", "")
    project.run(cache_dir=project.folder / "other")
    assert project.executed() == set()
    assert sorted(path.name for path in (project.output / "vae_decoder").iterdir()) == ["notes.txt"]
    assert project.run().executed == 0
    assert project.leftovers() == []


def test_two_spellings_of_one_output_exclude_each_other(project: Project) -> None:
    from olivelike.engine.prepared import Options
    from olivelike.engine.run import run

    (project.folder / "linked").symlink_to(project.folder / "models")
    inner = []

    def listen(event: object) -> None:
        if event.name == "node_hit" and not inner:
            inner.append(subprocess.Popen(
                [sys.executable, "-c", WAITS, project.workflow, project.folder / "linked" / "small"],
                stdout=subprocess.PIPE, text=True,
            ))  # fmt: skip
            assert inner[0].stdout.readline().startswith("waiting for another run")

    (project.output / "tokenizer" / "merges.txt").unlink()
    run(str(project.workflow), Options(overrides=("target.device_id=1",)), listen, executor=InlineExecutor)
    inner[0].communicate(timeout=60)
    assert inner[0].returncode == 0


WAITS = """
import sys
from pathlib import Path
from olivelike.engine.prepared import Options
from olivelike.engine.run import run

def listen(event):
    if event.name == "warning":
        print(event.data["message"], flush=True)

run(sys.argv[1], Options(output=Path(sys.argv[2])), listen)
"""
