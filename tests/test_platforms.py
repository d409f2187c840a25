"""What would not run on Windows or macOS, as far as Linux can tell; `docs/platforms.md` has what it can't."""

from __future__ import annotations

import ast
import ntpath
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from olivelike.errors import UsageError
from olivelike.model.records.output import is_device, is_plain
from olivelike.runtime.jobs.prompt_lines import read_prompts
from olivelike.workflow import places
from tests.fixtures.own_code import ROOT, nodes_of, own_files

LONGEST_PATH = 120
"""Of a file in the tree. Windows takes 260 by default, of which a user's `site-packages` has about 90."""
MODULES = {"fcntl", "grp", "pty", "pwd", "posix", "resource", "syslog", "termios", "tty", "crypt", "spwd", "nis"}
"""Modules that Python does not have on Windows."""
NAMES = {
    "os": """fork forkpty geteuid getegid getuid getgid getgroups getpgid getpgrp getsid setsid setpgid killpg
        sched_getaffinity sched_setaffinity sysconf confstr statvfs fstatvfs uname mkfifo mknod pread pwrite preadv
        pwritev readv writev posix_fadvise posix_fallocate posix_spawn sendfile copy_file_range chown lchown fchown
        chroot wait wait3 wait4 waitid getloadavg sync fdatasync nice openpty ttyname ctermid register_at_fork
        memfd_create pipe2 lockf O_NONBLOCK O_NOFOLLOW O_DIRECTORY O_CLOEXEC O_SYNC O_DSYNC O_DIRECT O_TMPFILE
        O_PATH WNOHANG EX_OK getrandom initgroups""",
    "signal": """SIGKILL SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGPIPE SIGWINCH alarm
        setitimer pause sigwait pthread_kill pthread_sigmask""",
    "socket": "AF_UNIX SO_REUSEPORT fromfd socketpair_unix sethostname",
    "select": "poll epoll kqueue",
    "mmap": """MADV_DONTNEED MADV_WILLNEED MADV_SEQUENTIAL MADV_RANDOM MADV_FREE MAP_PRIVATE MAP_SHARED MAP_ANONYMOUS
        MAP_POPULATE PROT_READ PROT_WRITE PROT_EXEC""",
    "time": "tzset clock_gettime clock_settime CLOCK_MONOTONIC CLOCK_REALTIME pthread_getcpuclockid",
    "multiprocessing": "fork get_context set_start_method",
}
"""Names of the standard library that Windows or macOS lack."""
GUARDED = {
    ("olivelike/_json_child.py", "os.killpg"): "os.name",
    ("olivelike/_json_child.py", "select.poll"): "hasattr",
    ("olivelike/_json_child.py", "signal.SIGKILL"): "os.name",
    ("olivelike/engine/output/data_files.py", "os.posix_fadvise"): "hasattr",
    ("olivelike/measure/contest/memory.py", "resource"): "sys.platform",
    ("olivelike/runtime/sessions/mapped_weights.py", "mmap.MADV_DONTNEED"): "hasattr",
    ("olivelike/runtime/sessions/resident.py", "mmap.MADV_DONTNEED"): "sys.platform",  # Of files found on Linux alone.
    ("olivelike/serve/gallery/upload_reader.py", "signal.SIGKILL"): "os.name",
    ("olivelike/serve/runs/workflow_jobs.py", "os.killpg"): "os.name",
    ("olivelike/serve/runs/workflow_jobs.py", "signal.SIGKILL"): "os.name",
    ("olivelike/workflow/passes/allowed_plugins.py", "os.geteuid"): "os.name",
}
"""Where such a name stands, and what asks first whether it is there."""


def lacking_elsewhere(path: Path) -> list[str]:
    lacked = {f"{module}.{name}" for module, names in NAMES.items() for name in names.split()}
    found = []
    for node in nodes_of(path):
        match node:
            case ast.Import(names=names):
                found += [one.name for one in names if one.name.partition(".")[0] in MODULES]
            case ast.ImportFrom(module=str(module), names=names):
                found += [module] if module.partition(".")[0] in MODULES else []
                found += [full for one in names if (full := f"{module}.{one.name}") in lacked]
            case ast.Attribute(value=ast.Name(id=module), attr=name) if f"{module}.{name}" in lacked:
                found.append(f"{module}.{name}")
    return found


def test_what_some_systems_lack_is_used_behind_a_question() -> None:
    found = {(path.relative_to(ROOT).as_posix(), name) for path in own_files() for name in lacking_elsewhere(path)}
    assert found == {place for place in GUARDED if (ROOT / place[0]).exists()}
    assert [place for place in found if GUARDED[place] not in (ROOT / place[0]).read_text(encoding="utf-8")] == []


def test_no_process_is_forked_so_that_spawn_is_all_that_runs() -> None:
    forking = {"multiprocessing", "concurrent.futures.process"}
    for path in own_files():
        nodes = nodes_of(path)
        imports = {one.name for node in nodes if isinstance(node, ast.Import) for one in node.names}
        imports |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
        assert not forking & imports, path
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        assert not {"ProcessPoolExecutor", "preexec_fn"} & names, path


def test_every_text_names_its_encoding() -> None:
    """Windows' default is a code page: PLW1514 is a rule of ruff's preview; the rest is what it does not look at."""
    command = [Path(sys.executable).with_name("ruff"), "check", "--isolated", "--preview", "--select", "PLW1514"]
    done = subprocess.run(
        [*command, "--quiet", "--no-cache", "olivelike", "passes", "tools", "benchmarks"],
        cwd=ROOT, check=False, capture_output=True, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for path in own_files():
        for node in nodes_of(path):
            match node:
                case ast.Call(func=ast.Attribute(attr="run" | "Popen" | "check_output"), keywords=given):
                    assert not {"text", "universal_newlines"} & {one.arg for one in given}, f"{path}:{node.lineno}"


def test_every_file_of_the_tree_can_be_checked_out_and_installed_on_windows() -> None:
    listed = subprocess.run(["git", "ls-files", "-s", "-z"], cwd=ROOT, check=True, capture_output=True)
    entries = [line.split("\t", 1) for line in listed.stdout.decode().split("\0") if line]
    names = [name for _, name in entries]
    assert [name for name in names if not is_plain(name) or len(name) > LONGEST_PATH] == []
    folded = Counter(name.casefold() for name in names)
    assert [name for name, count in folded.items() if count > 1] == [], "names that differ by case alone"
    assert [name for fields, name in entries if fields.startswith("120000")] == [], "links, which need a right there"


def test_no_checkout_changes_bytes_of_data_or_line_endings_of_scripts() -> None:
    def asked(attribute: str, *paths: str) -> set[str]:
        command = ["git", "check-attr", "-z", attribute, "--", *paths]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        return {*done.stdout.decode().split("\0")[2::3]}

    listed = subprocess.run(["git", "ls-files", "-z", "olivelike/data"], cwd=ROOT, check=True, capture_output=True)
    assert asked("text", *filter(None, listed.stdout.decode().split("\0"))) == {"unset"}
    assert asked("eol", ".ci/run", "Makefile", "deploy/Dockerfile") == {"lf"}


@pytest.mark.parametrize("name", ["con", "CON.png", "nul.tar.gz", "Com1", "lpt9.txt", "aux ", "conin$", "com¹.x"])
def test_names_of_devices_are_known_whatever_their_case_and_suffix(name: str) -> None:
    assert is_device(name)
    assert not is_plain(f"unet/{name}")
    assert not is_device(f"a{name}")


@pytest.fixture
def windows_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let places join and compare paths as on Windows."""
    monkeypatch.setattr(places, "os", SimpleNamespace(path=ntpath, fsencode=os.fsencode))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"ink.safetensors", r"C:\work\ink.safetensors"),
        (r"..\loras\ink.safetensors", r"C:\loras\ink.safetensors"),
        ("../loras/./ink.safetensors", r"C:\loras\ink.safetensors"),
        (r"D:\ink.safetensors", r"D:\ink.safetensors"),
        ("D:/models/ink.safetensors", r"D:\models\ink.safetensors"),
        (r"\\server\share\ink.safetensors", r"\\server\share\ink.safetensors"),
        (r"\ink.safetensors", r"C:\ink.safetensors"),
    ],
)
def test_paths_of_windows_in_a_workflow_become_absolute(windows_paths: None, text: str, expected: str) -> None:
    folder: object = "C:\\work"
    assert str(places.absolute(text, folder)) == expected
    assert places.is_path(text, Path("/nowhere"))
    for written, weight in ((text, 1.0), (f"{text}:0.8", 0.8)):
        found, read = places.weighted_file(written, folder)
        assert (str(found.path), read) == (expected, weight)


@pytest.mark.parametrize("text", [r"C:\models\painter", "C:/models", r"models\painter", r"..\painter", r"\\server\s\p"])
def test_folders_of_windows_are_no_hub_ids(text: str) -> None:
    assert places.is_path(text, Path("/nowhere"))
    assert places.is_path("models/painter", Path("/nowhere")) is False


def test_children_print_any_letter_into_logs_in_utf_8(tmp_path: Path) -> None:
    """As on Windows, where a pipe has a code page."""
    code = "import os\nfrom olivelike._json_child import serve\n"
    code += "def handle(message, answer):\n    print('\\u2192 \\xfc')\n    answer({'said': message})\n"
    code += "serve(handle)\n"
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        env=os.environ | {"PYTHONIOENCODING": "cp1252", "PYTHONUNBUFFERED": "1"},
    ) as child:  # fmt: skip
        assert child.stdin
        assert child.stdout
        child.stdin.write(b'{"a": "\\u2192"}\n')
        child.stdin.flush()
        assert (
            child.stdout.readline() == b'{"said": {"a": "\\u2192"}}\n'
        )  # Before its input ends: that ends it at once.
    assert (tmp_path / "log").read_text(encoding="utf-8") == "→ ü\n"


def test_prompts_are_text_also_where_the_locale_knows_no_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = "ein Kreis → ü".encode().decode("ascii", "surrogateescape")
    assert [line.prompt for line in read_prompts([sent])] == ["ein Kreis → ü"]
    with pytest.raises(UsageError, match=r"'a\\udcff' is no text in UTF-8"):
        read_prompts(["a\udcff"])


def test_without_the_right_to_make_links_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = pytest.importorskip("olivelike.extras.cluster.cluster_site")
    (tmp_path / "file").write_text("here", encoding="utf-8")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(1314, "A required privilege is not held by the client")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    made = site._linked(tmp_path / "root", r"C:\models\..\a.safetensors", tmp_path / "file")
    assert made.read_text(encoding="utf-8") == "here"
    assert made.is_relative_to(tmp_path / "root")
    assert not made.is_symlink()


PLUGIN = '''
"""`says`."""
from typing import ClassVar
from olivelike.pass_api import Context, Model, Pass


class Says(Pass):
    """Print → ü."""

    reads: ClassVar = ("graph",)
    writes: ClassVar = ("graph",)

    def run(self, model: Model, context: Context) -> Model:
        print("→ ü")
        context.logger.info("→ ü")
        context.report(wörter="→")
        return model
'''
CHAINS = "  text_encoder: [convert, says]\n  unet: [convert]\n  vae_decoder: [convert]\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "settings"),
    [
        ("Bücher →", {"PYTHONIOENCODING": "cp1252"}),
        ("plain", {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"}),
    ],
    ids=["a code page", "no locale"],
)
def test_a_run_and_a_picture_with_other_encodings(folder: str, settings: dict[str, str], tmp_path: Path) -> None:
    place, word = tmp_path / folder, folder[:4]
    place.mkdir()
    (place / f"{word}.py").write_text(PLUGIN, encoding="utf-8")
    workflow = f"name: größe\nsource: demo\ntarget: cpu\nplugins: [{word}.py]\ncomponents:\n{CHAINS}output: {word}\n"
    (place / "w.yaml").write_text(workflow, encoding="utf-8")
    for words in (
        ["run", "w.yaml", "--allow-plugins", "--cache-dir", word + "cache"],
        ["generate", word, "ein Kreis → ü", "--negative-prompt", "✓", "--steps", "1", "-o", f"{word}.png"],
        ["info", f"{word}.png"],
        ["verify", word, "--card"],
        ["report", "-o", f"{word}.html", "--cache-dir", word + "cache"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "olivelike", *words], cwd=place, env=os.environ | settings, check=False,
            capture_output=True, encoding="cp1252" if "PYTHONIOENCODING" in settings else "ascii",
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    assert "größe" in (place / f"{word}.html").read_text(encoding="utf-8")
