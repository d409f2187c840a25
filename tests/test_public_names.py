"""What `import olivelike` gives: names, signatures, and nothing heavy before one is used.

`python tests/test_public_names.py` writes the list anew.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import olivelike

GOLDEN = Path(__file__).with_name("public_names.txt")
ROOT = Path(__file__).parents[1]
ASKED_FOR = ("BenchSettings", "ConvertRequest", "Options", "Request", "SessionSettings")
"""Classes whose fields a script writes."""


def _default(value: object) -> str:
    plain = value is None or isinstance(value, (bool, int, float, str, tuple))
    return f" = {value!r}" if plain else " = ..."


def _arguments(callable_: object) -> list[str]:
    shown, starred = [], False
    for parameter in inspect.signature(callable_).parameters.values():  # type: ignore[arg-type]
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        default = "" if parameter.default is parameter.empty else _default(parameter.default)
        shown.append(f"{parameter.name}: {parameter.annotation}{default}")
    return shown


def golden() -> str:
    """Return what was listed, without the names of extras whose folder is gone."""
    tree = ast.parse(Path(olivelike.__file__).read_text(encoding="utf-8"))
    gone = _seen(tree) - set(dir(olivelike))
    blocks = re.findall(r"^\S.*\n(?:    .*\n)*", GOLDEN.read_text(encoding="utf-8"), re.MULTILINE)
    return "".join(block for block in blocks if not gone & set(re.findall(r"\A(?:def |class )?(\w+)", block)))


def _seen(tree: ast.Module) -> set[str]:
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {str(alias.asname) for node in imports for alias in node.names}


def listed() -> str:
    lines = []
    for name in dir(olivelike):
        value = getattr(olivelike, name)
        if name in ASKED_FOR:
            assert dataclasses.is_dataclass(value)
            lines += [f"class {name}:", *(f"    {part}" for part in _arguments(value))]
        elif isinstance(value, type):
            lines.append(f"class {name}")
        elif callable(value):
            lines.append(f"def {name}({', '.join(_arguments(value))}) -> {inspect.signature(value).return_annotation}")
        else:
            lines.append(name)
    return "\n".join(lines) + "\n"


def test_names_and_signatures_are_as_they_were() -> None:
    assert listed() == golden(), "if that is meant: python tests/test_public_names.py"


def test_each_has_a_docstring_and_functions_have_types() -> None:
    for name in dir(olivelike):
        value = getattr(olivelike, name)
        if name == "__version__":
            continue
        assert inspect.getdoc(value), name
        if not isinstance(value, type):
            annotations = [one.annotation for one in inspect.signature(value).parameters.values()]
            assert inspect.Signature.empty not in [*annotations, inspect.signature(value).return_annotation], name


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(olivelike.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    gone = _seen(tree) - set(dir(olivelike))
    assert _seen(tree) - gone == set(dir(olivelike)) - {"__version__"}
    assert all(node.module.startswith("olivelike.extras.") for node in imports if gone & {a.name for a in node.names})
    for node in imports:
        for alias in node.names if not gone & {one.name for one in node.names} else ():
            scope: dict[str, object] = {}
            exec(f"from {node.module} import {alias.name}", scope)
            assert scope[alias.name] is getattr(olivelike, alias.name)


def test_the_import_alone_brings_nothing_heavy() -> None:
    heavy = "('torch', 'onnx', 'onnx_ir', 'pydantic', 'numpy', 'onnxruntime', 'typer', 'rich', 'yaml')"
    code = f"import olivelike, sys; dir(olivelike); print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_an_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'rnu'"):
        olivelike.rnu  # noqa: B018


def test_the_guide_names_each_of_them() -> None:
    guide = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    parts_of_a_pass = {"Architecture", "Graph", "Tensor", "Weights"}
    functions = {name for name in dir(olivelike) if name[0] != "_"} - parts_of_a_pass
    assert not {name for name in functions if f"`{name}`" not in guide and f"olivelike.{name}" not in guide}


if __name__ == "__main__":
    GOLDEN.write_text(listed(), encoding="utf-8")
