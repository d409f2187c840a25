"""Runs into folders that come from anywhere: no file is lost, and none written outside of the output."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import pytest

from olivelike.engine.prepared import Options
from olivelike.engine.run import run
from olivelike.errors import OlivelikeError
from olivelike.model.records.output import OutputRecord

from .conftest import Project
from .strange_outputs import BESIDE, FILES, JOURNALS, RECORDS, RUNS, World, lost, snapshot

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no pipes, and links for administrators alone")

TABLES = (RUNS, JOURNALS, RECORDS, FILES, BESIDE)
PLAIN = tuple(next(iter(table)) for table in TABLES)


def each_alone() -> list[tuple[str, ...]]:
    """Return each trait with nothing else strange, and with each way to run that changes something."""
    cases = []
    for place, table in enumerate(TABLES):
        for trait in table:
            for way in RUNS if place else [trait]:
                cases.append((way, *(trait if place == other else PLAIN[other] for other in range(1, len(TABLES)))))
    return list(dict.fromkeys(cases))


def mixed(count: int) -> list[tuple[str, ...]]:
    """Return traits put together at random; most of the time only some are strange."""
    choose = random.Random(20)
    return [
        tuple(choose.choice([PLAIN[place], *table]) if choose.random() < 0.6 else PLAIN[place]
              for place, table in enumerate(TABLES))
        for _ in range(count)
    ]  # fmt: skip


def few() -> list[tuple[str, ...]]:
    """Return the cases that once lost something, and some of each table."""
    ways = list(RUNS)
    strange = [
        (JOURNALS, 1, "journal removes a folder"), (JOURNALS, 1, "journal removes a file outside"),
        (JOURNALS, 1, "journal writes outside"), (JOURNALS, 1, "journal of today's form"),
        (JOURNALS, 1, "journal with a marked staging"), (JOURNALS, 1, "journal is a list"),
        (RECORDS, 2, "record of a file outside"), (RECORDS, 2, "record of the user's changed file"),
        (RECORDS, 2, "record of another source"), (RECORDS, 2, "record is deep"),
        (FILES, 3, "a changed model"), (FILES, 3, "a link for a component"),
        (FILES, 3, "a link for a file"), (BESIDE, 4, "staging of notes"), (BESIDE, 4, "staging that publishes"),
    ]  # fmt: skip
    return [
        (ways[number % 2], *(trait if place == other else PLAIN[other] for other in range(1, len(TABLES))))
        for number, (_, place, trait) in enumerate(strange)
    ]


@pytest.fixture(scope="module")
def whole(template: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy of the project whose store all worlds share."""
    folder = tmp_path_factory.mktemp("strange") / "project"
    shutil.copytree(template.folder, folder)
    return Project(folder)


def run_in(world: World, project: Project) -> OlivelikeError | None:
    """Run the project's workflow into the world's output; return what it was refused with."""
    options = Options(
        overrides=tuple(world.overrides), cache_dir=project.folder / "cache", output=world.output, **world.options
    )
    try:
        run(str(project.workflow), options, lambda event: None)
    except OlivelikeError as error:
        return error
    return None


@pytest.mark.parametrize(
    "traits",
    [
        *(pytest.param(traits, id=", ".join(traits)) for traits in few()),
        *(
            pytest.param(traits, id=", ".join(traits), marks=pytest.mark.slow)
            for traits in dict.fromkeys([*each_alone(), *mixed(120)])
            if traits not in few()
        ),
    ],
)
def test_no_file_is_lost_or_written_outside(whole: Project, tmp_path: Path, traits: tuple[str, ...]) -> None:
    world = World(tmp_path / "world")
    shutil.copytree(whole.output, world.output)
    world.write(world.victim)
    record = OutputRecord.read(world.output)
    assert record is not None
    recorded = set(record.files)
    for table, trait in reversed(list(zip(TABLES, traits, strict=True))):
        try:
            table[trait](world)
        except (OSError, ValueError):  # Two traits want one place: the first has it.
            continue
    # A file of ours that was changed is the user's.
    changed = {path for path in recorded if not _holds(world, record, path)}
    before = snapshot(world, recorded - changed)
    error = run_in(world, whole)
    after = snapshot(world, recorded - changed)
    replaced = changed if world.options.get("overwrite") else set()
    found = lost(before, after, recorded)
    assert [path for path in found if path.removeprefix("models/small/") not in replaced] == []
    if error is not None:
        assert error.exit_code == 2, error
        assert len(str(error)) < 1500
    else:
        now = OutputRecord.read(world.output)
        assert now is not None
        assert run_in(world, whole) is None


def _holds(world: World, record: OutputRecord, path: str) -> bool:
    from olivelike.engine.output.output_files import holds, obstacle

    absent = not (world.output / path).exists() and not (world.output / path).is_symlink()
    return absent or (obstacle(world.output, path) is None and holds(world.output / path, record.files[path]))
