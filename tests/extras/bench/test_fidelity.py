"""`olivelike bench --method`: time against fidelity, on networks of a few nodes."""

from __future__ import annotations

import json

import pytest

from olivelike.cli.app import run_command_line
from olivelike.errors import UsageError
from olivelike.extras.bench.bench_tables import method_lines
from olivelike.extras.bench.fidelity import Method, compare_methods, read_method
from olivelike.store import Store
from tests.fixtures.bench_samples import STEPS
from tools.train_demo.captions.__main__ import main as count_captions


def test_each_method_stands_beside_fewer_steps_of_the_same_folder(small_pipeline, capsys, tmp_path):
    saved = tmp_path / "methods.json"
    arguments = ["bench", str(small_pipeline), "--steps", "20", "--size", "64x64", "--threads", "1"]
    arguments += [
        "--method",
        "--steps 10",
        "--method",
        f"{small_pipeline} --guidance-scale 1",
        "--num-prompts",
        "3",
        "--batch-count",
        "1",
    ]
    store = Store.open(tmp_path / "cache", create=True)
    known = {"run_id": "known", "status": "ok", "output": str(small_pipeline), "nodes": []}
    store.put_run(known | {"workflow": "small", "target": {"name": "cpu"}, "source": {"kind": "folder", "name": "s"}})
    arguments += ["--report", "--cache-dir", str(tmp_path / "cache")]
    status = run_command_line([*arguments, "--json-file", str(saved)])
    table = capsys.readouterr().out
    assert status == 0, table
    report = json.loads(saved.read_bytes())
    assert report["kind"] == "fidelity/1"
    assert [row["role"] for row in report["rows"]] == ["reference", "method", "control", "method", "control"]
    reference, fewer, control, *_ = report["rows"]
    assert (reference["steps"], reference["speed"], reference["psnr"], fewer["steps"]) == (20, 1.0, None, 10)
    assert 1 <= control["steps"] <= 20
    for row in report["rows"]:
        assert row["pictures"] == 3
        assert row["method"] in table
    page = (store.run_folder("known") / "report.html").read_text(encoding="utf-8")
    assert "Time against fidelity" in page
    assert f"{fewer['ssim']:.3f}" in page
    assert fewer["psnr"] > 0
    assert -1 <= fewer["ssim"] <= 1


def test_a_method_that_changes_nothing_draws_equal_pictures(small_pipeline):
    report = compare_methods(small_pipeline, [Method("same", small_pipeline)], steps=STEPS, size=(64, 64), pictures=1)
    same = report.rows[1]
    assert (same.psnr, same.ssim) == (None, pytest.approx(1.0))


def test_a_judge_says_which_share_of_given_prompts_is_drawn_right(small_pipeline):
    asked = []

    def judge(texts, images):
        asked.append((texts, len(images)))
        return 0.25

    prompts = ["a red circle", "a blue star"]
    report = compare_methods(small_pipeline, [], steps=STEPS, size=(64, 64), prompts=prompts, judge=judge)
    assert asked == [(prompts, 2)]
    assert list(method_lines(report))[-1].endswith("25.0%")


def test_the_demos_captions_are_drawn_and_counted_beside_time_and_likeness(small_pipeline, capsys, tmp_path):
    saved = tmp_path / "captions.json"
    status = count_captions([str(small_pipeline), "--captions", "2", "--steps", "3", "--json-file", str(saved)])
    assert status == 0
    (row,) = json.loads(saved.read_bytes())["rows"]
    assert row["captions_right"] in {0, 0.5, 1}
    assert f"{row['captions_right']:.1%}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "asks for nothing"),
        ("--seed 3", "the same for all methods"),
        ("--stepz 3", "--steps"),
        ("--prompt hello", "leave --prompt out"),
    ],
)
def test_a_method_that_can_not_be_compared_is_refused(text, told, small_pipeline):
    with pytest.raises(UsageError, match=told):
        read_method(text, small_pipeline)


def test_options_of_engines_are_refused_beside_methods(small_pipeline, capsys):
    status = run_command_line(["bench", str(small_pipeline), "--method", "--steps 5", "--engine", "torch"])
    assert status == 2
    assert "--engine" in capsys.readouterr().err
