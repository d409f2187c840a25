"""No absolute path is in a report, so that it can be sent to someone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from example_run import BENCH, PREVIOUS, PROFILE

from olivelike.measure.report.page import without_absolute_paths
from olivelike.model.records.origin import Origin
from olivelike.model.records.run_record import RunRecord
from olivelike.model.targets import TargetChoice

RECORD = RunRecord(
    run_id="x",
    workflow="a",
    status="ok",
    target=TargetChoice("cpu"),
    source=Origin("file", "painter.safetensors", "/disk of Jane/models/painter.safetensors"),
    project="/art/my project",
    file="/art/my project/workflows/a.yaml",
    output_files={"/art/my project/models/a b": {}},
)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("/art/my project/workflows/a.yaml", "workflows/a.yaml"),
        ("/art/my project", "."),
        ("in /art/my project/models/a b: gone", "in models/a b: gone"),
        ("/disk of Jane/models/painter.safetensors: no weights", "…/painter.safetensors: no weights"),
        ("'/home/Jane Doe/x/pass.py', line 3", "'…/pass.py', line 3"),
        ("read /home/jane/x/pass.py:7:3", "read …/pass.py:7:3"),
        (r"read C:\Users\jane\pass.py now", "read …/pass.py now"),
        (r"C:\Users\jane\pass.py", "…/pass.py"),
        (r"\\server\share\pass.py", "…/pass.py"),
        ("/art/my projects/b/c.txt", "…/my projects/b/c.txt"),
        ("--output=/srv/models/x", "--output=…/x"),
        ("https://example.com/a/b and models/a/b, 3 it/s, 1/2", "https://example.com/a/b and models/a/b, 3 it/s, 1/2"),
        ("unet/model.onnx", "unet/model.onnx"),
        ("", ""),
    ],
)
def test_a_path_is_relative_to_the_project_or_the_name_alone(said, shown):
    _, (other,) = without_absolute_paths(RECORD, [{"text": [said], said: 1}])
    assert other == {"text": [shown], shown: 1}


def test_a_project_is_found_by_the_file_of_an_earlier_record():
    earlier = replace(RECORD, project=None, file="/a/workflows/b.yaml", outputs=("/a/models/b",))
    record, _ = without_absolute_paths(earlier, [])
    assert (record.file, record.outputs) == ("workflows/b.yaml", ("models/b",))


def test_no_text_of_a_report_has_an_absolute_path(record, report):
    record["nodes"][1] |= {
        "status": "failed", "reason": "/art/my project/passes/a.py changed", "log": "/var/store/logs/x.log",
        "error": "FileNotFoundError: '/home/jane doe/secret/x.bin' (at /usr/lib/python3/x.py:3)",
    }  # fmt: skip
    record["nodes"][1]["facts"]["seen"] = {"/art/my project/x/y": ["/data/private/z"]}
    made = report(
        {**record, "previous": PREVIOUS, "command": "olivelike convert /mnt/big/x.safetensors"},
        {**PROFILE, "path": "/art/my project/models/demo"},
        verification={"folder": "/art/my project/models/demo", "against": {"path": "/mnt/big/x"}},
        bench=BENCH,
    )
    for private in ("/art/", "/home", "jane", "/var", "/usr", "/data", "/mnt", "/loras", "of mine"):
        assert private not in made.text, private
