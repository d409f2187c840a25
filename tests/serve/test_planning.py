"""Plans of orders: which are made of the last one's, and which pictures are opened for one, how often."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from olivelike._untrusted import Json
from olivelike.errors import UsageError
from olivelike.runtime.jobs import job_plan
from olivelike.runtime.pipeline import resolve_defaults
from olivelike.serve.drawing import planning
from olivelike.serve.drawing.planning import Files, is_repeatable, plan_order, repeated
from olivelike.serve.orders import Order


@pytest.fixture
def files(little: Path, tmp_path: Path) -> Files:
    (tmp_path / "colour.txt").write_text("red\n")
    return Files({"little": little}, tmp_path, (), (tmp_path,), False)


def order(seed: int, **more: object) -> Order:
    return Order.model_validate({"model": "little", "prompt": "a red circle", "seed": seed, "steps": 3, **more})


@pytest.mark.parametrize("more", [{}, {"scheduler": "Euler a", "negative_prompt": "blue"}, {"fast": True, "hires": 2}])
def test_a_plan_of_another_seed_is_what_planning_anew_makes(files: Files, more: Json) -> None:
    last, fresh = plan_order(order(1, **more), files), plan_order(order(7, **more), files)
    assert is_repeatable(last)
    again = repeated(last, order(7, **more), files)
    assert again is not None
    assert (again.cells, again.notes) == (fresh.cells, fresh.notes)
    assert [vars(job) for job in again.jobs] == [vars(job) for job in fresh.jobs]
    assert again.jobs[0].request.resolved_for is fresh.jobs[0].request.resolved_for


@pytest.mark.parametrize("more", [
    {"prompt": "a blue circle"}, {"steps": 4}, {"num_images": 2}, {"guidance_scale": 7.5},
    {"variation_strength": 0.5, "variation_seed": 3},
    {"x": {"field": "steps", "values": [3, 4]}},
])  # fmt: skip
def test_an_order_that_asks_for_more_is_planned_anew(files: Files, more: Json) -> None:
    assert repeated(plan_order(order(1), files), order(7, **more), files) is None


def test_a_plan_that_memory_decides_is_made_anew_where_that_has_changed(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, exceeds = {"width": 256, "height": 256}, []
    monkeypatch.setattr(resolve_defaults, "_exceeds_memory", lambda *_: exceeds[-1])
    for before, now in ((False, True), (True, False)):
        exceeds.append(before)
        last = plan_order(order(1, **large), files)
        assert repeated(last, order(7, **large), files) is not None
        exceeds.append(now)
        assert repeated(last, order(7, **large), files) is None


def test_a_plan_is_made_anew_where_a_file_of_choices_may_have_come(files: Files) -> None:
    without = replace(files, wildcards=())
    assert not is_repeatable(plan_order(order(1, prompt="a __colour__ circle"), without))


@pytest.mark.parametrize("more", [
    {"prompt": "a __colour__ circle"}, {"prompt": "a {red|blue} circle"}, {"num_images": 2},
    {"variation_strength": 0.5, "variation_seed": 3},
    {"x": {"field": "steps", "values": [3, 4]}},
])  # fmt: skip
def test_a_plan_that_its_seed_or_files_decide_is_none_to_repeat(files: Files, more: Json) -> None:
    assert not is_repeatable(plan_order(order(1, **more), files))


@pytest.mark.parametrize("name", ["model_index.json", "olivelike.json"])
def test_a_folder_that_was_made_again_is_planned_anew(files: Files, name: str) -> None:
    last = plan_order(order(1), files)
    made = files.models["little"] / name
    before = made.stat()
    os.utime(made)
    try:
        assert repeated(last, order(7), files) is None
    finally:
        os.utime(made, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_pictures_of_all_cells_are_opened_once_and_others_until_they_are_too_many(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, opened = [f"{number:064}" for number in range(6)], []
    for name in names:
        Image.new("L", (64, 64)).save(files.uploads / f"{name}.png")
    monkeypatch.setattr(planning, "open_image", lambda path: (opened.append(path.stem), job_plan.open_image(path))[1])
    painted = order(1, init_images=names[:5], mask=names[5])
    plan_order(painted, files)
    assert sorted(opened) == names
    opened.clear()
    monkeypatch.setattr(job_plan, "_MOST_HELD", 2 * 64 * 64)
    with pytest.raises(UsageError, match=r"3 initial pictures have 12,288 pixels together"):
        plan_order(painted, files)
    assert len(opened) == 4
    assert set(painted.uploads) == set(names)
