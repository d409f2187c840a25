"""A new project folder: a workflow, written as a person would, a plugin with its test, a store."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from olivelike._text import did_you_mean
from olivelike._untrusted import Json, JsonView
from olivelike.errors import UsageError
from olivelike.model.targets import find_target
from olivelike.workflow import json_schema, shipped_names
from olivelike.workflow.passes import Registry, new_pass
from olivelike.workflow.workflow_file import LISTS

PLUGIN = "name_graph"
"""The pass that a new project begins with."""

_README = """\
# {name}

Optimises a Stable Diffusion pipeline for ONNX Runtime with olivelike, as `workflows/{name}.yaml` says.

```
olivelike plan workflows/{name}.yaml    # what would run, and why
olivelike run workflows/{name}.yaml     # writes models/{name}
python -m pytest plugins                # tests of this project's own passes
```

| folder | holds |
| --- | --- |
| `workflows/` | what to do, and the schema that tells editors what may be written |
| `plugins/` | passes of this project; `olivelike passes new NAME` adds one |
| `models/` | results |
| `cache/` | what was computed already; may be removed at any time |

After adding a pass: `olivelike schema --plugin plugins --output workflows/workflow.schema.json`
"""


@dataclass(frozen=True)
class Project:
    """Files of a new project."""

    workflow: Path
    plugins: Path
    files: tuple[Path, ...]


def create_project(folder: str | Path, source: str, target: str) -> Project:
    """Make a project in `folder`, which is made if needed.

    Args:
        folder: Its name becomes the workflow's.
        source: Hub id, or folder relative to `folder`.
        target: Name of a target that a Stable Diffusion 1.5 workflow is shipped for.

    Raises:
        UsageError: if a file exists that would be written, or for an unknown target; nothing is written then.
    """
    folder = Path(folder).absolute()
    name = re.sub(r"[^a-z0-9]+", "_", folder.name.lower()).strip("_") or "project"
    workflow = folder / "workflows" / f"{name}.yaml"
    schema = folder / "workflows" / "workflow.schema.json"
    plugins = folder / "plugins"
    texts = {
        workflow: _workflow_text(name, source, target),
        folder / "README.md": _README.format(name=name),
        folder / ".gitignore": "/models/\n__pycache__/\n",
        folder / "cache" / ".gitignore": "*\n!.gitignore\n",
    }
    passes = (plugins / f"{PLUGIN}.py", plugins / f"test_{PLUGIN}.py")
    files = (*texts, *passes, schema)
    for file in files:
        if file.exists() or file.is_symlink():
            raise UsageError(f"{file} exists already; choose another folder, nothing was written")
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        new_pass(PLUGIN, plugins)
        registry = Registry.load([str(plugins)])
        schema.write_text(json.dumps(json_schema(registry), indent=2) + "\n", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"{error.filename or folder} can't be written: {error.strerror}") from error
    return Project(workflow, plugins, files)


def _workflow_text(name: str, source: str, target: str) -> str:
    """Return the shipped workflow of a target with another source, and the plugin at the end of one chain."""
    shipped = _shipped(target)
    chains = {component: list(chain) for component, chain in shipped["components"].items()}
    chains["text_encoder"].append(PLUGIN)
    content = {
        "name": name,
        "source": source,
        "target": shipped["target"],
        "plugins": ["../plugins"],
        "components": chains,
        "output": f"models/{name}",
    }
    return f"# yaml-language-server: $schema=workflow.schema.json\n{workflow_text(content)}"


def _shipped(target: str) -> Json:
    from importlib.resources import files

    import yaml

    prefix = "sd15_"
    name = find_target(target).name
    known = [shipped.removeprefix(prefix) for shipped in shipped_names() if shipped.startswith(prefix)]
    if name not in known:
        raise UsageError(f"no workflow is shipped for {target!r}; {did_you_mean(name, known, 'targets')}")
    text = files("olivelike.workflows").joinpath(f"{prefix}{name}.yaml").read_text(encoding="utf-8")
    shipped: Json = yaml.safe_load(text)
    return shipped


_PLAIN = re.compile(r"[A-Za-z./~_][\w./~@+-]*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"})
"""Read as something else than text, by this or another YAML reader."""


def workflow_text(content: JsonView) -> str:
    """Return a workflow file, YAML, with these keys in their order; what is `None` or an empty list is left out."""
    lines: list[str] = []
    for key, value in content.items():
        if key == "components":
            width = max(map(len, value)) + 1
            chains = (f"  {f'{component}:':<{width}} {_flow(chain)}" for component, chain in value.items())
            lines += [f"{key}:", *chains]
        elif key in LISTS:
            lines += [f"{key}:", *(f"  - {_flow(item)}" for item in value)] if value else []
        elif value is not None:
            lines.append(f"{key}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    """Return a value on one line; text in quotes where it needs them."""
    match value:
        case dict():
            return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
        case list():
            return f"[{', '.join(map(_flow, value))}]"
        case str() if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        case str() | bool():
            return json.dumps(value, ensure_ascii=False)
    return f"{value:g}"
