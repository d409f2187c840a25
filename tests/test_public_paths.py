"""Whatever of the public names takes a path takes it as text and as `Path`, and does the same with both."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import olivelike
from tests.fixtures.sample_records import run_record
from tests.test_public_names import ASKED_FOR

CALLS: dict[str, Callable[[Any], object]] = {
    "BenchSettings": getattr(olivelike, "BenchSettings", str),
    "ConvertRequest": lambda path: olivelike.ConvertRequest("demo", "cpu", path),
    "Options": lambda path: olivelike.Options(cache_dir=path, output=path),
    "Request": lambda path: olivelike.Request(("a",), upscaler=path),
    "SessionSettings": lambda path: olivelike.SessionSettings(profile=path, weights=path),
    "Store.open": lambda path: olivelike.Store.open(path, create=False).root,
    "ablate": getattr(olivelike, "ablate", str),
    "check_client": lambda path: olivelike.check_client(path, "diffusers"),
    "combinations": olivelike.combinations,
    "create_project": lambda path: olivelike.create_project(path, "demo", "no such target"),
    "describe_folder": olivelike.describe_folder,
    "describe_weight_file": olivelike.describe_weight_file,
    "diagnose": lambda path: [one.path for one in olivelike.diagnose(path).folders],
    "explain": olivelike.explain,
    "explain_fleet": olivelike.explain_fleet,
    "export_web": lambda path: olivelike.export_web(path, path, onnxruntime_web=path),
    "inspect_model": olivelike.inspect_model,
    "last_writer": lambda path: olivelike.last_writer(olivelike.Store.open("no store", create=False), path),
    "load_workflow": olivelike.load_workflow,
    "new_pass": lambda path: olivelike.new_pass("No Name", path),
    "open_lora": olivelike.open_lora,
    "open_pipeline": olivelike.open_pipeline,
    "package_outputs": lambda path: olivelike.package_outputs([path], path),
    "pin": olivelike.pin,
    "pin_fleet": olivelike.pin_fleet,
    "plan": olivelike.plan,
    "plan_fleet": olivelike.plan_fleet,
    "profile_folder": olivelike.profile_folder,
    "read_picture": olivelike.read_picture,
    "run": olivelike.run,
    "run_fleet": olivelike.run_fleet,
    "swap_loras": lambda path: olivelike.swap_loras(path, []),
    "validate": olivelike.validate,
    "validate_fleet": olivelike.validate_fleet,
    "verify_folder": lambda path: olivelike.verify_folder(path, save=path),
    "write_report": lambda path: olivelike.write_report(run_record(), path, path),
}
"""How each is called with a path that does not exist."""
CALLS = {name: call for name, call in CALLS.items() if hasattr(olivelike, name.partition(".")[0])}


def annotations(value: object) -> dict[str, str]:
    found = inspect.signature(value).parameters.values()  # type: ignore[arg-type]
    return {one.name: str(one.annotation) for one in found if "Path" in str(one.annotation)}


def test_each_public_name_with_a_path_is_among_them() -> None:
    takers = {name for name in dir(olivelike) if name != "__version__"}
    takers = {name for name in takers if not isinstance(getattr(olivelike, name), type) or name in ASKED_FOR}
    assert {name for name in takers if annotations(getattr(olivelike, name))} | {"Store.open"} == CALLS.keys()


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ASKED_FOR and name != "Store.open"])
def test_its_types_say_so(name: str) -> None:
    told = annotations(getattr(olivelike, name)).values()
    assert all("str | Path" in one for one in told), told


@pytest.mark.parametrize("name", CALLS)
def test_text_does_what_a_path_does(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "diagnose":
        monkeypatch.setattr("olivelike.measure.doctor.diagnosis.listed_providers", lambda _: [])
        monkeypatch.setattr("olivelike.measure.doctor.diagnosis.find_spec", lambda _: None)

    def outcome(path: str | Path) -> object:
        try:
            found = CALLS[name](path)
        except (olivelike.OlivelikeError, OSError) as error:
            return type(error), str(error)
        return dataclasses.asdict(found) if name in ASKED_FOR else str(found)  # type: ignore[call-overload]

    (tmp_path / "written").mkdir()
    text = "written/there" if name == "write_report" else "nowhere/there"
    assert outcome(text) == outcome(Path(text))
