"""The report in a real browser, where there is one: `chromium`, or what `$CHROMIUM` names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from example_run import PROFILE

from olivelike.measure.report import write_report
from olivelike.measure.report.page import PROFILE_FILE

CHROMIUM = shutil.which(os.environ.get("CHROMIUM", "chromium"))

QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-extensions", "--enable-logging=stderr", "--dump-dom",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")]


def test_it_opens_without_console_messages_or_requests(record, tmp_path):
    record["nodes"][0]["reason"] = "<script>console.error('run')</script><img src=https://example.com/x.png>"
    (tmp_path / PROFILE_FILE).write_text(json.dumps(PROFILE))
    report = write_report(record, tmp_path)
    done = subprocess.run(
        [
            CHROMIUM,
            *QUIET,
            f"--user-data-dir={tmp_path}/profile",
            f"--log-net-log={tmp_path}/net.json",
            report.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    assert "unet.verify" in done.stdout
    assert "<script" not in done.stdout
    log = (tmp_path / "net.json").read_text(encoding="utf-8")
    assert "example.com" not in log
