"""Writes `olivelike/data/published/schedulers.json`: what diffusers' schedulers fill in and accept, by release.

Each supported release is asked itself, in a process of its own: `python tools/make_assets_shelf.py` installs those that
are not there into a temporary folder, without their dependencies.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
import warnings
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "olivelike" / "data" / "published" / "schedulers.json"

RELEASES = ("0.36.0", "0.37.0", "0.37.1", "0.38.0", "0.39.0", "0.40.0", "0.41.0", "0.42.0", "0.42.1")
"""The releases of diffusers that `pyproject.toml` allows; the first is the oldest."""
BEFORE = "0.43"
"""The first release that it does not."""

VALUES: dict[str, tuple[Any, ...]] = {
    "algorithm_type": ("dpmsolver", "dpmsolver++", "sde-dpmsolver", "sde-dpmsolver++", "deis", "data_prediction"),
    "beta_schedule": ("linear", "scaled_linear", "squaredcos_cap_v2", "sigmoid", "laplace", "exp"),
    "final_sigmas_type": ("zero", "sigma_min"),
    "interpolation_type": ("linear", "log_linear"),
    "prediction_type": ("epsilon", "sample", "v_prediction", "flow_prediction"),
    "solver_order": (1, 2, 3),
    "solver_type": ("midpoint", "heun", "logrho", "bh1", "bh2"),
    "time_shift_type": ("exponential", "linear"),
    "timestep_spacing": ("linspace", "leading", "trailing"),
    "timestep_type": ("discrete", "continuous"),
    "variance_type": (
        "fixed_small", "fixed_small_log", "fixed_large", "fixed_large_log", "learned", "learned_range",
    ),
}  # fmt: skip
"""What a config may say where it is no number and no switch: each class is asked which of them it keeps."""

STRAYS: dict[str, Any] = {"predict_epsilon": True, "tensor_format": "pt", "timestep_values": None}
"""Keys of configs of 2022 that no class has today; each class keeps them as they are."""

_FEW = {"num_train_timesteps": 10}
"""Makes a scheduler in no time; what it keeps does not depend on it."""


def write() -> None:
    """Write the table from all releases."""
    with tempfile.TemporaryDirectory() as scratch:
        asked = {release: ask_release(release, Path(scratch)) for release in RELEASES}
    TABLE.write_text(to_text(merged(asked)), encoding="utf-8", newline="\n")


def ask_release(release: str, scratch: Path) -> dict[str, Any]:
    """Return the rows of a release, which is installed below `scratch` if it is not the one at hand."""
    environment = dict(os.environ)
    if release != version("diffusers"):
        folder = scratch / release
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*pip, f"diffusers=={release}"], check=True)
        environment["PYTHONPATH"] = str(folder)
    command = [sys.executable, "-W", "ignore", __file__, "--rows"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["diffusers"] == release, f"asked {release}, and {answer['diffusers']} answered"
    rows: dict[str, Any] = answer["rows"]
    return rows


def merged(asked: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the table: of each class its rows, each with the releases that it is right for."""
    classes: dict[str, list[dict[str, Any]]] = {}
    for place, (release, rows) in enumerate(asked.items()):
        upper = [*RELEASES, BEFORE][place + 1]
        for name, row in rows.items():
            spans = classes.setdefault(name, [])
            if spans and spans[-1]["before"] == release and spans[-1]["row"] == row:
                spans[-1]["before"] = upper
            else:
                spans.append({"from": release, "before": upper, "row": row})
    return {
        "strays": sorted(STRAYS),
        "classes": {
            name: [{"diffusers": f">={span['from']},<{span['before']}", **span["row"]} for span in spans]
            for name, spans in sorted(classes.items())
        },
    }


def rows() -> dict[str, dict[str, Any]]:
    """Return a row for each scheduler of the installed diffusers that is told how betas grow, and for that of flows."""
    import diffusers

    found = {}
    for name in sorted(name for name in dir(diffusers) if name.endswith("Scheduler")):
        cls = getattr(diffusers, name)
        if isinstance(cls, type) and (_is_told_betas(cls) or name == "FlowMatchEulerDiscreteScheduler"):
            found[name] = _row(cls)
    return found


def _is_told_betas(cls: type) -> bool:
    return {"beta_start", "beta_end", "beta_schedule", "num_train_timesteps"} <= inspect.signature(
        cls
    ).parameters.keys()


def _row(cls: type) -> dict[str, Any]:
    """Return defaults of a class, the values that it keeps, and pairs of such values that it does not keep."""
    told = _kept(cls, {})
    assert told is not None, f"{cls.__name__} has no defaults"
    assert _kept(cls, STRAYS) == {**told, **STRAYS}, f"{cls.__name__} does not keep old keys"
    defaults = {key: value for key, value in told.items() if not key.startswith("_")}
    few = _kept(cls, _FEW)
    values: dict[str, list[Any]] = {}
    for key, default in defaults.items():
        tried = (True, False) if isinstance(default, bool) else VALUES.get(key, ())
        accepted = [value for value in tried if value == default or _keeps(cls, few, {key: value})]
        if tried:
            values[key] = accepted
    settings = [(key, value) for key, all_of in values.items() for value in all_of if value != defaults[key]]
    pairs = [(a, b) for a, b in combinations(settings, 2) if a[0] != b[0]]
    conflicts = [[list(a), list(b)] for a, b in pairs if not _keeps(cls, few, dict([a, b]))]
    return {"defaults": defaults, "values": values, "conflicts": conflicts}


def _keeps(cls: type, told: dict[str, Any] | None, settings: dict[str, Any]) -> bool:
    return told is not None and _kept(cls, {**_FEW, **settings}) == {**told, **settings}


def _kept(cls: Any, config: dict[str, Any]) -> dict[str, Any] | None:
    """Return what a class makes of a config; nothing if it refuses it."""
    try:
        kept: dict[str, Any] = json.loads(cls.from_config(config).to_json_string())
    except (ArithmeticError, ImportError, LookupError, NotImplementedError, TypeError, ValueError):
        return None
    del kept["_diffusers_version"]
    return kept


def to_text(table: dict[str, Any]) -> str:
    """Return the table as JSON, a line for each part of a row."""
    lines = []
    for name, spans in table["classes"].items():
        parts = [",\n   ".join(f"{json.dumps(key)}: {json.dumps(span[key])}" for key in span) for span in spans]
        lines.append(f"  {json.dumps(name)}: [" + ", ".join(f"{{\n   {part}\n  }}" for part in parts) + "]")
    classes = ",\n".join(lines)
    return f'{{\n "strays": {json.dumps(table["strays"])},\n "classes": {{\n{classes}\n }}\n}}\n'


if __name__ == "__main__":
    if sys.argv[1:] == ["--rows"]:
        import diffusers

        warnings.simplefilter("ignore")
        diffusers.utils.logging.set_verbosity_error()
        sys.stdout.write(json.dumps({"diffusers": diffusers.__version__, "rows": rows()}))
    else:
        write()
