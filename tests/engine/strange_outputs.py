"""Output folders as nobody should have them: forged, damaged, full of links and of other people's files.

Each trait changes a world, in which a real output of a project lies among files that are not to be touched.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olivelike.digest import digest_bytes, digest_file
from olivelike.model.records.output import JOURNAL_FILE

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class World:
    """A folder with an output in it, and how it is to be run."""

    root: Path
    overrides: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def output(self) -> Path:
        return self.root / "models" / "small"

    @property
    def victim(self) -> Path:
        return self.root / "mine" / "thesis.tex"

    def write(self, path: Path | str, text: str = "mine") -> None:
        """Write a file; a relative path is one in the output."""
        path = self.output / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def record(self) -> dict[str, Any]:
        return json.loads((self.output / "olivelike.json").read_bytes())

    def forge(self, **changes: Any) -> None:
        """Change keys of the record."""
        self.write("olivelike.json", json.dumps(self.record() | changes))

    def claim(self, *paths: str, data: bytes = b"mine") -> None:
        """Let the record say that files are ours."""
        facts = {"size": len(data), "sha256": digest_bytes(data)}
        self.forge(files=self.record()["files"] | dict.fromkeys(paths, facts))

    def journal(self, content: Any) -> None:
        self.write(JOURNAL_FILE, content if isinstance(content, str) else json.dumps(content))

    def link(self, name: str, to: Path) -> None:
        """Put a link into the output, in place of what there is."""
        path = self.output / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(to)


def snapshot(world: World, recorded: set[str]) -> dict[str, str]:
    """Return everything that is not the output's own, by path: digests of files, targets of links.

    Args:
        world: The world.
        recorded: Files that the output really had when it was made.
    """
    found: dict[str, str] = {}
    for parent, folders, names in os.walk(world.root):
        for name in (*folders, *names):
            path = Path(parent, name)
            relative = path.relative_to(world.root).as_posix()
            if path.is_symlink():
                found[relative] = f"link to {path.readlink()}"
            elif path.is_file():
                found[relative] = digest_file(path)
            elif name in names:
                found[relative] = "special"
    own = {f"models/small/{name}" for name in (*recorded, "olivelike.json", JOURNAL_FILE)}
    return {path: content for path, content in found.items() if path not in own}


def lost(before: dict[str, str], after: dict[str, str], made: set[str]) -> list[str]:
    """Return what a run lost, changed, or wrote outside of the output."""
    outside = {path for path in after.keys() - before.keys() if not path.startswith("models/small/")}
    inside = {path.removeprefix("models/small/") for path in after.keys() - before.keys() - outside}
    changed = {path for path in before if after.get(path) != before[path]}
    return sorted(changed | outside | (inside - made))


def _moved(*paths: str) -> dict[str, Any]:
    return {"staging": ".small.staging-publishing-0123abcd", "moved": list(paths), "gone": []}


def _forged_journal(world: World) -> None:
    """A journal of today's form, with a staging folder that came with it."""
    staging = world.output.parent / ".small.staging-999999999-0123abcd"
    (staging / "files").mkdir(parents=True)
    (staging / "files" / "model_index.json").write_text("forged")
    (staging / ".olivelike-staging-12345").touch()
    facts = {"size": 6, "sha256": digest_bytes(b"forged")}
    world.journal({
        "kind": "journal/1", "output": world.output.stat().st_ino, "staging": staging.name,
        "proof": [12345, 0], "moved": {"model_index.json": facts}, "replaced": {}, "gone": {},
    })  # fmt: skip


def _true_mark_journal(world: World) -> None:
    """The same, with a staging folder that really is marked as one of ours, by luck."""
    staging = world.output.parent / ".small.staging-999999998-0123abcd"
    (staging / "files").mkdir(parents=True)
    mark = staging / f".olivelike-staging-{staging.stat().st_ino}"
    mark.touch()
    facts = {"size": 4, "sha256": digest_bytes(b"mine")}
    world.journal({
        "kind": "journal/1", "output": world.output.stat().st_ino, "staging": staging.name,
        "proof": [mark.stat().st_ino, 0], "moved": {}, "replaced": {}, "gone": {"../../mine/thesis.tex": facts},
    })  # fmt: skip
    world.write("olivelike.json.bak")


def _old_journal(world: World, *gone: str) -> None:
    (world.root / "mine" / "staging").mkdir()
    (world.root / "mine" / "staging" / "photo.png").write_text("mine")
    world.journal({"staging": str(world.root / "mine" / "staging"), "moved": [], "gone": list(gone)})


def _staging_like(world: World, name: str) -> None:
    (world.output.parent / name).mkdir()
    (world.output.parent / name / "notes").write_text("mine")


def _drop_decoder(world: World) -> None:
    world.overrides.append("components={text_encoder: [convert, float16]}")


def _hard_link(world: World) -> None:
    (world.output / "tokenizer" / "vocab.json").unlink()
    os.link(world.victim, world.output / "tokenizer" / "vocab.json")


JOURNALS: dict[str, Callable[[World], None]] = {
    "no journal": lambda w: None,
    "empty journal": lambda w: w.journal(""),
    "journal is an object": lambda w: w.journal({}),
    "journal is a list": lambda w: w.journal([]),
    "journal is null": lambda w: w.journal("null"),
    "journal is cut off": lambda w: w.journal('{"staging": "x", "moved": ['),
    "journal is deep": lambda w: w.journal("[" * 100_000),
    "journal is binary": lambda w: (w.output / JOURNAL_FILE).write_bytes(b"\xff\xfe\0"),
    "journal removes a folder": _old_journal,
    "journal removes a file outside": lambda w: _old_journal(w, "../../mine/thesis.tex"),
    "journal removes an absolute file": lambda w: _old_journal(w, str(w.victim)),
    "journal writes outside": lambda w: w.journal(_moved("../../mine/thesis.tex")),
    "journal of today's form": _forged_journal,
    "journal with a marked staging": _true_mark_journal,
    "journal with wrong types": lambda w: w.journal({"kind": "journal/1", "output": "x", "staging": 3}),
    "journal is a link": lambda w: w.link(JOURNAL_FILE, w.victim),
    "journal is a dangling link": lambda w: w.link(JOURNAL_FILE, w.root / "nowhere"),
    "journal is a folder": lambda w: w.write(f"{JOURNAL_FILE}/notes"),
    "journal is a pipe": lambda w: os.mkfifo(w.output / JOURNAL_FILE),
}
RECORDS: dict[str, Callable[[World], None]] = {
    "own record": lambda w: None,
    "record of a file outside": lambda w: w.claim("../../mine/thesis.tex"),
    "record of an absolute file": lambda w: w.claim(str(w.victim)),
    "record with backslashes": lambda w: w.claim("..\\..\\mine\\thesis.tex"),
    "record of a drive": lambda w: w.claim("C:/thesis.tex"),
    "record with a null": lambda w: w.claim("a\0b"),
    "record of a device": lambda w: w.claim("unet/nul"),
    "record of a dot": lambda w: w.claim("./notes.txt", "unet/./x"),
    "record of half a letter": lambda w: w.forge(files=w.record()["files"] | {"\udcff": {"size": 4, "sha256": "0"}}),
    "record of the user's changed file": lambda w: (w.write("notes.txt", "mine!"), w.claim("notes.txt")),
    "record of a file behind a link": lambda w: (w.link("out", w.root / "mine"), w.claim("out/thesis.tex")),
    "record is a list": lambda w: w.write("olivelike.json", "[]"),
    "record is cut off": lambda w: w.write("olivelike.json", '{"kind": "output/1", "files"'),
    "record is deep": lambda w: w.write("olivelike.json", "[" * 100_000),
    "record with wrong types": lambda w: w.forge(files=[], components=3),
    "record with wrong facts": lambda w: w.forge(files={"unet/model.onnx": {"size": "4", "sha256": None}}),
    "record of another source": lambda w: w.forge(source={"kind": "file", "name": "other.safetensors"}),
    "record without a source": lambda w: w.forge(source={}),
    "record is a link": lambda w: w.link("olivelike.json", w.victim),
    "record is a pipe": lambda w: ((w.output / "olivelike.json").unlink(), os.mkfifo(w.output / "olivelike.json")),
    "no record": lambda w: (w.output / "olivelike.json").unlink(),
}
FILES: dict[str, Callable[[World], None]] = {
    "nothing else": lambda w: None,
    "the user's notes": lambda w: (w.write("notes.txt"), w.write("text_encoder/notes.txt")),
    "a changed config": lambda w: w.write("scheduler/scheduler_config.json", '{"mine": 1}'),
    "a changed model": lambda w: w.write("vae_decoder/model.onnx"),
    "a file for the index": lambda w: ((w.output / "model_index.json").unlink(), w.write("model_index.json/notes")),
    "a file for a folder": lambda w: (shutil.rmtree(w.output / "tokenizer"), w.write("tokenizer")),
    "a link for a component": lambda w: w.link("vae_decoder", w.root / "mine"),
    "a link for an asset's folder": lambda w: w.link("tokenizer", w.root / "mine"),
    "a link for a file": lambda w: w.link("scheduler/scheduler_config.json", w.victim),
    "a dangling link": lambda w: w.link("model_index.json", w.root / "nowhere"),
    "a hard link": _hard_link,
    "the user's component": lambda w: w.write("unet/model.onnx"),
    "a pipe": lambda w: ((w.output / "model_index.json").unlink(), os.mkfifo(w.output / "model_index.json")),
}
BESIDE: dict[str, Callable[[World], None]] = {
    "nobody beside": lambda w: None,
    "staging of notes": lambda w: _staging_like(w, ".small.staging-notes"),
    "staging of a dead process": lambda w: _staging_like(w, ".small.staging-999999999-89abcdef"),
    "staging that publishes": lambda w: _staging_like(w, ".small.staging-publishing-89abcdef"),
    "staging that is a link": lambda w: (w.output.parent / ".small.staging-999999997-89abcdef").symlink_to(
        w.root / "mine"
    ),
}
RUNS: dict[str, Callable[[World], None]] = {
    "a lost tokenizer": lambda w: (w.output / "tokenizer" / "merges.txt").unlink(missing_ok=True),
    "a dropped component": _drop_decoder,
    "another device": lambda w: w.overrides.append("target.device_id=1"),
    "overwriting": lambda w: (w.options.update(overwrite=True), _drop_decoder(w)),
}
