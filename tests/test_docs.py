"""The pages of `docs/`: links, decisions, and the site made of them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from olivelike.testing import make_checkpoint, make_lora, make_single_file

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
EXAMPLES = {"plugin-example", "target-example"}
"""Folders of pages that are distributions."""
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def test_what_pages_link_to_exists() -> None:
    links = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
    found = [(page, link) for page in PAGES for link in links.findall(page.read_text(encoding="utf-8"))]
    assert [f"{page}: {link}" for page, link in found if not (page.parent / link).exists()] == []


NAMED = re.compile(r"`((?:[\w-]+/)+(?:[\w-]+\.\w+)?)`")
"""A file or folder in backticks."""


def test_what_pages_name_of_the_tree_exists() -> None:
    rooms = {path.name for path in (ROOT / "olivelike").iterdir() if path.is_dir()}
    missing = []
    for page in PAGES:
        if page in DECISIONS or EXAMPLES & {*page.parts}:
            continue  # Decisions are history, and each example is a tree of its own.
        for path in NAMED.findall(page.read_text(encoding="utf-8")):
            first, *rest = path.split("/")
            if rest[0] == "extras" and not (ROOT / "olivelike" / "extras" / rest[1]).is_dir():
                continue  # What belongs to an extra may be gone with it.
            if first in {"olivelike", "passes", "tests", "tools", "benchmarks"}:
                places = [ROOT / path]
            elif first in rooms:
                places = [ROOT / "olivelike" / path, ROOT / "tests" / path]
            else:
                continue
            if not any(place.exists() for place in places):
                missing.append(f"{page}: {path}")
    assert missing == []


def test_each_decision_says_why_what_and_what_follows_and_is_listed() -> None:
    index = (ROOT / "docs" / "decisions" / "index.md").read_text(encoding="utf-8")
    # Numbers are given out before decisions are written down, so that some may be free.
    numbers = [int(page.name.partition("-")[0]) for page in DECISIONS]
    assert numbers == sorted(set(numbers))
    for number, page in zip(numbers, DECISIONS, strict=True):
        text = page.read_text(encoding="utf-8")
        title = text.splitlines()[0].removeprefix("# ")
        status = re.search(r"^Status: (accepted|replaced by \d{3}) · \d{4}-\d\d-\d\d$", text, re.MULTILINE)
        assert status, page
        assert re.findall(r"^## (.+)", text, re.MULTILINE) == ["Context", "Decision", "Consequences"], page
        replaced = "" if status[1] == "accepted" else f": {status[1]}"
        assert index.count(f"* {number:03d} [{title}]({page.name}){replaced}\n") == 1, page


def test_every_page_has_a_place_in_the_site_and_in_its_index() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    listed = set(re.findall(r"- ([\w/-]+\.md)$", navigation, re.MULTILINE))
    assert listed == {page for page in pages if not re.match(r"decisions/\d", page)}
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w/-]+\.md)", index)) | {"index.md"}
    assert sorted(page for page in listed - linked if page.split("/")[0] not in EXAMPLES) == []


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    command = [Path(sys.executable).with_name("zensical"), "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "architecture" / "index.html").is_file()


COMMANDS = ("olivelike ", "python ", "pip ", "cd ", "OLIVELIKE_")
ELSEWHERE = re.compile(r"pip install|#.* needs |in a checkout|python -m pytest tests/|--size full")
"""Commands that no test runs: `.ci/run` installs and tests; the rest names what it needs."""


def commands_of(page: Path) -> list[str]:
    """Return the commands in a page's blocks of shell, in their order."""
    blocks = re.findall(r"^```(.*)\n((?s:.*?))^```$", page.read_text(encoding="utf-8"), re.MULTILINE)
    shell = (block.replace("\\\n", "") for language, block in blocks if language in {"", "sh"})
    lines = [line for block in shell for line in block.splitlines()]
    return [line for line in lines if line.startswith(COMMANDS) and not ELSEWHERE.search(line)]


PAGES_WITH_COMMANDS = [page for page in PAGES if commands_of(page) and not EXAMPLES & {*page.parts}]


def test_commands_behind_a_block_of_another_language_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```yaml\na: 1\n```\nolivelike plan a\n```sh\nolivelike run a \\\n  --x\n```\n```\npython b\n```\n")
    assert commands_of(page) == ["olivelike run a   --x", "python b"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the pages name: checkpoints, LoRAs, pictures, keys, workflows, outputs."""
    folder = tmp_path_factory.mktemp("docs")
    make_checkpoint(folder / "checkpoint", size="small")
    for name in ("painter", "checkpoint", "better"):
        make_single_file(folder / "checkpoint", folder / f"{name}.safetensors")
    make_checkpoint(folder / "my-checkpoint", size="tiny")
    for name in ("other", "PIPELINE"):
        (folder / name).symlink_to(folder / "checkpoint")
    make_lora(folder / "style.safetensors", "kohya", base=folder / "checkpoint")
    workflow = "source: ./checkpoint\ntarget: cpu\ncomponents:\n  unet: [merge_lora, convert, fuse, float16]\n"
    workflow += "  text_encoder: [merge_lora, convert]\n"
    rest = "".join(f"  {name}: [convert]\n" for name in ("vae_encoder", "vae_decoder"))
    for name in ("mine", "my_workflow"):
        (folder / f"{name}.yaml").write_text(f"{workflow}{rest}output: models/mine\n")
    shutil.copytree(ROOT / "workflows", folder / "workflows")
    (folder / "docs").mkdir()
    for picture in ("docs/demo-edges.png", "edges.png", "photo.png"):
        shutil.copy(ROOT / "docs" / "demo-edges.png", folder / picture)
    pytest.importorskip("cryptography")
    from tests.fixtures.certificates import EMAIL, certificate, write_key

    keys = {name: write_key(folder, name, PASSWORD.encode() if name == "studio" else None)[2] for name in SIGNERS}
    for name, issuer in zip(SIGNERS, (SIGNERS[0], *SIGNERS), strict=False):
        root = name != "studio"
        made = certificate(name, keys[name], issuer, keys[issuer], root=root, uses=() if root else (EMAIL,))
        (folder / f"{name}.pem").write_bytes(made)
    return folder


MODELS = {
    "demo": "olivelike run demo",
    "mine": "olivelike run mine.yaml",
    "painter": "olivelike run demo_edges --output models/painter",
    "painter_cpu": "olivelike convert demo -t cpu -o models/painter_cpu",
    "painter_cuda": "olivelike convert demo -t cuda -o models/painter_cuda",
    "styled": "olivelike run mine.yaml --lora style.safetensors:0.8 --output models/styled",
    "sd15_cuda": "olivelike run sd15_cuda --set source=./my-checkpoint",
}
"""What makes the optimised folders that pages begin with."""
SIGNERS = ("root", "between", "studio")
PASSWORD = "…"
"""That of the page on signatures."""


def run(line: str, cwd: Path, files: Path) -> None:
    """Run a command, with results that all pages share, away from what the user of this machine has."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"OLIVELIKE_CACHE_DIR": files / "cache", "XDG_STATE_HOME": files / "state", "PYTHONPATH": ROOT}
    settings = {"PATH": path, "HF_HUB_OFFLINE": "1", **{name: str(place) for name, place in own.items()}}
    words = shlex.split(line, comments=True)
    while "=" in words[0]:
        name, _, settings[name] = words.pop(0).partition("=")
    done = subprocess.run(
        words, cwd=cwd, env=os.environ | settings, check=False, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def in_short(line: str) -> str:
    """Return a command that measures with less to measure: the words are the page's, and minutes are seconds."""
    if line.startswith("python -m tools.train_demo.captions "):
        return f"{line} --captions 1 --steps 2"
    if not line.startswith("olivelike bench "):
        return line
    engines = "" if "--engine " in line or "--method " in line else " --engine onnxruntime"
    return f"{line.partition(' #')[0]} --steps 4 --num-prompts 1 --batch-count 1{engines}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_commands_of_a_page_run(page: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page begins with the same folder; optimised ones that it makes itself are not there."""
    monkeypatch.setenv("OLIVELIKE_KEY_PASSWORD", PASSWORD)
    lines = commands_of(page)
    made = set(re.findall(r"(?:-o |--output |output=)models/(\w+)", "\n".join(lines)))
    named = set(re.findall(r"\bmodels/(\w+)", "\n".join(lines))) - made
    for name in sorted(named & MODELS.keys()):
        if not (files / "models" / name).exists():
            run(MODELS[name], files, files)
    start = tmp_path / "files"
    left_out = shutil.ignore_patterns("cache", "state")
    shutil.copytree(files, start, symlinks=True, ignore=left_out, copy_function=os.link)
    reported = {name for line in lines if " --report" in line for name in MODELS if f"models/{name} " in line}
    for name in made | reported:
        shutil.rmtree(start / "models" / name, ignore_errors=True)
    for name in sorted(reported - made):  # A report is of the run that wrote the folder in this place.
        run(MODELS[name], start, files)
    cwd = start
    for line in lines:
        if line.startswith("cd "):
            cwd = start if line == "cd .." else cwd / line.removeprefix("cd ")
            continue
        run(in_short(line), cwd, files)
