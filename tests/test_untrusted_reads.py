"""Files that a user or a file names are opened by `_untrusted` alone: devices, pipes and endless files do no harm."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from olivelike.digest import digest_file
from olivelike.errors import UsageError
from olivelike.workflow.calibration_prompts import read_prompts
from tests.fixtures.own_code import nodes_of, own_files

ROOT = Path(__file__).parents[1]
PACKAGE = "it is shipped with the package"
OWN = "this process, or one that it started, has written it where others do not write"
SYSTEM = "the system writes it"
STORE = "the store's own file, checked by size and hash"
NO_FILE = "no file is opened: it is a method of ours"
ALLOWED = {
    "olivelike/_files.py": (2, STORE),
    "olivelike/_installed.py": (1, "pip has written it, as it has the code that runs"),
    "olivelike/_json_child.py": (1, OWN),
    "olivelike/_lazy.py": (1, PACKAGE),
    "olivelike/cli/receipt.py": (1, OWN),
    "olivelike/extras/cluster/cluster_site.py": (1, OWN),
    "olivelike/engine/execute/weight_makers.py": (1, STORE),
    "olivelike/engine/kinds/asset_nodes.py": (1, STORE),
    "olivelike/engine/kinds/materialize_node.py": (1, STORE),
    "olivelike/engine/kinds/model_node.py": (1, STORE),
    "olivelike/engine/output/fallback_assets.py": (1, OWN),
    "olivelike/model/scheduler_settings.py": (1, PACKAGE),
    "olivelike/extras/deploy/web_page.py": (2, PACKAGE),
    "olivelike/graphs/shelf/network_forms.py": (1, PACKAGE),
    "olivelike/measure/contest/contest.py": (1, OWN),
    "olivelike/measure/contest/memory.py": (1, SYSTEM),
    "olivelike/extras/bench/whole_pictures.py": (1, SYSTEM),
    "olivelike/measure/profiling.py": (1, OWN),
    "olivelike/measure/report/page.py": (2, PACKAGE),
    "olivelike/runtime/jobs/prompt_lines.py": (1, "the user has named it, and means a pipe where it is one; bounded"),
    "olivelike/runtime/prompts/syntax.py": (1, NO_FILE),
    "olivelike/runtime/sessions/compiled.py": (1, OWN),
    "olivelike/runtime/sessions/devices.py": (1, SYSTEM),
    "olivelike/runtime/sessions/resident.py": (1, SYSTEM),
    "olivelike/serve/api/page_routes.py": (1, PACKAGE),
    "olivelike/serve/languages.py": (1, PACKAGE),
    "olivelike/extras/cluster/painting_site.py": (1, OWN),
    "olivelike/serve/gallery/database.py": (1, OWN),
    "olivelike/serve/remote/client.py": (1, "an address, whose answer is read in bounds"),
    "olivelike/serve/runs/workflow_jobs.py": (2, OWN),
    "olivelike/sources/beside.py": (2, NO_FILE),
    "olivelike/families/family.py": (1, PACKAGE),
    "olivelike/sources/opened_source.py": (2, NO_FILE),
    "olivelike/sources/vae_override.py": (1, NO_FILE),
    "olivelike/store/objects.py": (3, STORE),
    "olivelike/extras/shared_store/collection.py": (1, OWN),
    "olivelike/extras/shared_store/remote_folder.py": (1, OWN),
    "olivelike/workflow/passes/allowed_plugins.py": (1, "the user's own record, checked to be no other's"),
    "olivelike/workflow/places.py": (1, PACKAGE),
    "olivelike/workflow/scaffold.py": (1, PACKAGE),
}
"""How many such calls a file has, and why they may be there. Add to it only what no user, workflow or model names."""
ELSEWHERE = {"Image", "SingleFile", "Store", "os", "tarfile", "webbrowser"}
"""What has an `open` that is no `Path`'s."""


def reads(call):
    """Tell a call that reads a file by its path: `open` for writing alone is none."""
    if isinstance(call.func, ast.Name):
        name = call.func.id if call.func.id == "open" else ""
        modes = call.args[1:2]
    elif isinstance(call.func, ast.Attribute):
        owner = call.func.value.id if isinstance(call.func.value, ast.Name) else ""
        name = "" if owner in ELSEWHERE else call.func.attr
        modes = call.args[:1]
        if name == "fromfile":
            return isinstance(call.args[0], ast.Name) and call.args[0].id != "file"
    else:
        return False
    modes += [word.value for word in call.keywords if word.arg == "mode"]
    written = [mode.value for mode in modes if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
    return name in ("read_text", "read_bytes") or (name == "open" and not (written and not set(written[0]) & set("r+")))


def test_files_that_others_name_are_read_in_one_place():
    found = Counter()
    for path in own_files():
        if path.name != "_untrusted.py" and "testing" not in path.parts:  # Tests read what tests wrote.
            calls = (node for node in nodes_of(path) if isinstance(node, ast.Call))
            found[path.relative_to(ROOT).as_posix()] = sum(map(reads, calls))
    assert {name: count for name, count in found.items() if count} == {
        name: n for name, (n, _) in ALLOWED.items() if "/extras/" not in name or (ROOT / name).exists()
    }, "read files by `olivelike._untrusted`, which refuses devices, pipes and files without end"


@pytest.mark.parametrize(
    "text",
    [
        "path.open()",
        "path.open('rb')",
        "open(name)",
        "path.read_text('utf-8')",
        "np.fromfile(path)",
        "x.open(mode='r+')",
    ],
)
def test_calls_that_read_are_found(text):
    assert reads(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize("text", ["path.open('wb')", "open(name, 'x')", "read_bytes(path)", "os.open(path, 0)"])
def test_others_are_not(text):
    assert not reads(ast.parse(text, mode="eval").body)


@pytest.mark.skipif(os.name != "posix", reason="has no devices and pipes as files")
def test_calibration_prompts_are_no_device_and_no_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/zero"), tmp_path / "pipe"):
        with pytest.raises(UsageError, match="only regular files are read"):
            read_prompts(path)
    with pytest.raises(OSError, match="only regular files are read"):
        digest_file(tmp_path / "pipe")


@pytest.mark.skipif(os.name != "posix", reason="has no devices and pipes as files")
def test_a_strangers_workflow_with_prompts_without_end_is_refused_at_once(tmp_path):
    import resource

    workflow = tmp_path / "workflow.yaml"
    workflow.write_text(
        "source: demo\ntarget: cpu\ncalibration: {prompts: /dev/zero}\n"
        "components:\n  unet: [convert, {quantise: {activations: static}}]\noutput: out\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "olivelike", "validate", workflow], capture_output=True, text=True, check=False,
        timeout=60, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)),
    )  # fmt: skip
    assert done.returncode == 2
    assert "/dev/zero: prompts can't be read from it" in done.stderr + done.stdout


def test_a_mark_of_byte_order_is_no_part_of_the_first_prompt(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffa cat\r\n\r\na dog\r\n".encode())
    assert read_prompts(path) == ("a cat", "a dog")
