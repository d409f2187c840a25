"""Sources whose scheduler or tokenizer is none, where pictures are made with diffusers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from olivelike.errors import SourceError
from olivelike.families import FAMILIES
from olivelike.measure.verify import picture_comparison


@pytest.mark.parametrize("entry", [None, [], ["diffusers"], ["diffusers", 5], ["diffusers", "logging"]])
def test_an_entry_that_is_no_scheduler_is_refused(tmp_path, entry):
    path = tmp_path / "scheduler_config.json"
    path.write_text("{}")
    source = SimpleNamespace(extras={f"scheduler/{path.name}": path}, index={"scheduler": entry}, few_steps=None)
    with pytest.raises(SourceError, match="names no scheduler of diffusers"):
        picture_comparison._scheduler(SimpleNamespace(source=source))


def test_files_that_are_no_tokenizer_are_refused(tmp_path):
    extras = {}
    for name, text in (("vocab.json", "[]"), ("merges.txt", "#version\n")):
        (tmp_path / name).write_text(text)
        extras[f"tokenizer/{name}"] = tmp_path / name
    source = SimpleNamespace(extras=extras, index={})
    with pytest.raises(SourceError, match="the source's tokenizer can't be read, so its pictures can't be made: "):
        picture_comparison._tokenizer(SimpleNamespace(source=source), FAMILIES["sd1"].texts[0])
