"""The table of schedulers' defaults against diffusers itself."""

from __future__ import annotations

import json
import random
import tomllib
from pathlib import Path

import diffusers
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from olivelike.engine.output import scheduler_defaults
from olivelike.engine.output.fallback_assets import scheduler_with_defaults
from olivelike.engine.output.scheduler_defaults import with_defaults
from olivelike.model.scheduler_settings import TABLE
from tests.fixtures.published_schedulers import PUBLISHED_SCHEDULERS
from tools import make_assets_shelf
from tools.make_assets_shelf import BEFORE, RELEASES, ask_release, rows, to_text

CLASSES = json.loads(TABLE.read_bytes())["classes"]


def rows_for(release):
    found = {}
    for name, all_of in CLASSES.items():
        for row in all_of:
            if release in SpecifierSet(row["diffusers"]):
                assert name not in found
                found[name] = {key: value for key, value in row.items() if key != "diffusers"}
    return found


def same(ours, theirs):
    return json.dumps(ours) == json.dumps(theirs)


@pytest.mark.slow  # What it fills in is compared with the installed release below, class by class.
@pytest.mark.filterwarnings("ignore")  # settings that make no sense together, or are deprecated
def test_the_table_is_what_the_installed_release_answers():
    assert rows_for(diffusers.__version__) == rows(), "python tools/make_assets_shelf.py writes it anew"


@pytest.mark.slow
@pytest.mark.parametrize("release", [RELEASES[0], RELEASES[1]])
def test_the_table_is_what_an_older_release_answers(release, tmp_path):
    assert rows_for(release) == ask_release(release, tmp_path)


def test_the_table_is_for_the_releases_that_are_supported():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (needed,) = [need for need in map(Requirement, project["dependencies"]) if need.name == "diffusers"]
    oldest = RELEASES[0].removesuffix(".0")
    assert needed.specifier == SpecifierSet(f">={oldest},<{BEFORE}")
    assert all(rows_for(release) for release in RELEASES)
    table = json.loads(TABLE.read_bytes())
    assert to_text(table) == TABLE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PUBLISHED_SCHEDULERS)
def test_a_published_config_is_filled_in_as_diffusers_does(name):
    class_name, config = PUBLISHED_SCHEDULERS[name]
    ours = with_defaults(class_name, config)
    assert ours is not None
    assert same(ours, scheduler_with_defaults(class_name, config))


@pytest.mark.parametrize("class_name", CLASSES)
def test_every_class_takes_every_published_config_as_diffusers_does(class_name):
    known = 0
    for _, published in PUBLISHED_SCHEDULERS.values():
        config = {**published, "num_train_timesteps": 20}
        ours = with_defaults(class_name, config)
        if ours is not None:
            assert same(ours, scheduler_with_defaults(class_name, config))
        known += ours is not None
    assert known


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("class_name", CLASSES)
def test_random_configs_of_known_values_come_out_as_diffusers_writes_them(class_name):
    choose = random.Random(class_name)
    row = rows_for(diffusers.__version__)[class_name]
    known = 0
    for _ in range(10):
        config = {"num_train_timesteps": choose.choice([20, 100]), "beta_start": 0.001, "beta_end": 0.03}
        for key, default in row["defaults"].items():
            if choose.random() < 0.4 and key not in config:
                numbers = [0, 1, 3] if isinstance(default, int) else [0, 1, 0.25, 7.5]
                numeric = isinstance(default, int | float)
                config[key] = choose.choice(row["values"].get(key, numbers if numeric else [default]))
        ours = with_defaults(class_name, config)
        if ours is not None:
            assert same(ours, scheduler_with_defaults(class_name, config)), config
        known += ours is not None
    assert known


@pytest.mark.parametrize(
    ("class_name", "config"),
    [
        ("FlowMatchHeunDiscreteScheduler", {}),
        ("NoSuchScheduler", {}),
        ("DDIMScheduler", {"no_such_key": 1}),
        ("DDIMScheduler", {"_use_default_values": ["beta_start"]}),
        ("DDIMScheduler", {"_class_name": 1}),
        ("DDIMScheduler", {"beta_schedule": "exp"}),
        ("DDIMScheduler", {"beta_start": "0.1"}),
        ("DDIMScheduler", {"beta_start": float("nan")}),
        ("DDIMScheduler", {"clip_sample": 1}),
        ("DDIMScheduler", {"num_train_timesteps": 1000.0}),
        ("DDIMScheduler", {"num_train_timesteps": True}),
        ("DDIMScheduler", {"trained_betas": [0.1, 0.2]}),
        ("PNDMScheduler", {"num_train_timesteps": 0}),
        ("DEISMultistepScheduler", {"solver_type": "midpoint"}),
        ("DPMSolverMultistepScheduler", {"algorithm_type": "dpmsolver"}),
        ("DPMSolverSinglestepScheduler", {"solver_order": 4}),
        ("EulerDiscreteScheduler", {"use_karras_sigmas": True, "use_beta_sigmas": True}),
    ],
)
def test_what_diffusers_might_change_or_refuse_is_left_to_it(class_name, config):
    assert with_defaults(class_name, config) is None


@pytest.mark.parametrize(("release", "known"), [("0.35.2", False), ("0.36.0", True), ("0.43.0", False)])
def test_another_release_is_asked_itself(monkeypatch, release, known):
    monkeypatch.setattr(scheduler_defaults, "version", lambda name: release)
    found = with_defaults("PNDMScheduler", {})
    assert (found is not None) is known
    assert found is None or found["_diffusers_version"] == release


def test_defaults_are_those_of_the_release(monkeypatch):
    monkeypatch.setattr(scheduler_defaults, "version", lambda name: "0.36.0")
    old = with_defaults("UniPCMultistepScheduler", {})
    monkeypatch.setattr(scheduler_defaults, "version", lambda name: "0.42.1")
    new = with_defaults("UniPCMultistepScheduler", {})
    assert new.keys() - old.keys() == {"shift_terminal", "sigma_max", "sigma_min"}


def test_a_class_that_comes_later_or_changes_has_rows_of_its_own():
    one, two = {"A": {"defaults": {"a": 1}}}, {"A": {"defaults": {"a": 2}}, "B": {"defaults": {}}}
    asked = dict(zip(RELEASES, [one, one, *([two] * (len(RELEASES) - 2))], strict=True))
    classes = make_assets_shelf.merged(asked)["classes"]
    assert classes == {
        "A": [
            {"diffusers": f">={RELEASES[0]},<{RELEASES[2]}", "defaults": {"a": 1}},
            {"diffusers": f">={RELEASES[2]},<{BEFORE}", "defaults": {"a": 2}},
        ],
        "B": [{"diffusers": f">={RELEASES[2]},<{BEFORE}", "defaults": {}}],
    }
