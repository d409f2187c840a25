"""Interfaces of libraries that are not public and are used all the same: here each is named, and seen to be there.

A version that changes one fails here, with its name, and not somewhere in a run.
"""

from __future__ import annotations

import ast
import inspect
import sqlite3
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PRIVATE_MODULES = {"torch._subclasses.fake_tensor", "torch.utils._python_dispatch"}
PRIVATE_NAMES = {"_parameters", "_cdata", "_checkpoint_offset", "_fix_state_dict_keys_on_load"}
"""Of torch and diffusers; each has its test below."""


def sources() -> list[Path]:
    return [path for folder in ("olivelike", "passes") for path in (ROOT / folder).rglob("*.py")]


def test_no_other_private_module_of_a_library_is_imported():
    found = set()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module if isinstance(node, ast.ImportFrom) and not node.level else None
            parts = module.split(".") if module and not module.startswith(("olivelike", "__")) else []
            if any(part.startswith("_") for part in parts):
                found.add(module)
    assert found == PRIVATE_MODULES


def test_no_other_private_name_of_a_library_is_used():
    """Each such use is marked for the linter; the marks are counted here."""
    marked = [
        line
        for path in sources()
        for line in path.read_text(encoding="utf-8").splitlines()
        if "noqa: SLF001" in line
    ]
    assert all(any(name in line for name in PRIVATE_NAMES) for line in marked), marked


def test_torch_has_fake_tensors_that_mix_with_real_ones():
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    assert "allow_non_fake_inputs" in inspect.signature(FakeTensorMode).parameters
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(torch.empty(2), FakeTensor)


def test_torch_modules_keep_parameters_in_a_dict():
    import torch

    linear = torch.nn.Linear(2, 2)
    other = torch.nn.Parameter(torch.empty(2, 2, device="meta"))
    linear._parameters["weight"] = other
    assert linear.weight is other


def test_torch_storages_have_an_identity_that_views_share():
    import torch

    tensor = torch.empty(4, device="meta")
    assert tensor.untyped_storage()._cdata == tensor[1:].untyped_storage()._cdata
    assert tensor.untyped_storage()._cdata != torch.empty(4, device="meta").untyped_storage()._cdata


def test_torch_tells_where_the_tensors_of_a_pickle_lie(tmp_path):
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    file = tmp_path / "tensor.pt"
    tensor = torch.tensor([1.0, 2.0, 3.0])
    torch.save({"x": tensor}, file)
    with FakeTensorMode():
        start = torch.load(file)["x"].untyped_storage()._checkpoint_offset
    assert file.read_bytes()[start : start + 12] == tensor.numpy().tobytes()


def test_torch_dispatch_modes_see_copies():
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    tensor = torch.empty(2, device="meta")
    with Watch():
        tensor.clone()
    assert torch.ops.aten.clone.default in seen


def test_diffusers_networks_rename_keys_of_older_files_by_one_method():
    from diffusers import AutoencoderKL, UNet2DConditionModel

    for network in (AutoencoderKL, UNet2DConditionModel):
        parameters = list(inspect.signature(network._fix_state_dict_keys_on_load).parameters)
        assert len(parameters) == 2, parameters


@pytest.mark.parametrize(
    "name",
    [
        "convert_ldm_unet_checkpoint", "convert_ldm_vae_checkpoint", "convert_ldm_clip_checkpoint",
        "convert_open_clip_checkpoint",
    ],
)  # fmt: skip
def test_diffusers_has_converters_for_original_names(name):
    from diffusers.loaders import single_file_utils

    assert "checkpoint" in inspect.signature(getattr(single_file_utils, name)).parameters


def test_the_hubs_errors_have_the_http_librarys_root():
    from huggingface_hub.errors import HfHubHTTPError

    root = HfHubHTTPError.__bases__[0]
    library = sys.modules[root.__module__.partition(".")[0]]
    no_connection = getattr(library, "ConnectError", None) or library.ConnectionError
    assert issubclass(no_connection, root)


def test_onnxruntime_raises_exceptions_of_its_own_by_these_names():
    from olivelike.runtime.sessions.session_failures import onnxruntime_errors

    assert all(issubclass(error, Exception) for error in onnxruntime_errors())


def test_onnxruntimes_libraries_lie_in_the_folder_capi():
    import onnxruntime

    names = {path.name for path in (Path(onnxruntime.__file__).parent / "capi").iterdir()}
    assert any(name.startswith("onnxruntime_pybind11_state") for name in names)
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        prefix, suffix = ("", ".dll") if sys.platform == "win32" else ("lib", ".so")
        assert {
            f"{prefix}onnxruntime_providers_{kind}{suffix}" for kind in ("shared", "cuda", "tensorrt")
        } <= names


def test_namespace_packages_tell_their_folders_without_being_imported(tmp_path, monkeypatch):
    from importlib.machinery import PathFinder

    (tmp_path / "spaced").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    search = PathFinder.find_spec("spaced").submodule_search_locations
    assert search._path == [str(tmp_path / "spaced")]


def test_typers_groups_keep_commands_in_a_dict():
    import typer
    from typer.core import TyperGroup

    group = TyperGroup(name="x", commands={"one": typer.main.get_command(_app())})
    assert list(group.commands) == ["one"]
    assert {"ctx", "cmd_name"} <= set(inspect.signature(TyperGroup.get_command).parameters)


def _app():
    import typer

    app = typer.Typer()
    app.command()(lambda: None)
    return app


def test_diskcache_keeps_text_in_the_columns_that_are_read_without_it(tmp_path):
    from diskcache import Cache
    from olivelike.store.json_disk import JsonDisk

    from olivelike.store.index import _QUERY

    with Cache(str(tmp_path), disk=JsonDisk) as cache:
        cache.set("key", ["value"])
    connection = sqlite3.connect(tmp_path / "cache.db")
    (key,) = connection.execute("SELECT key FROM Cache").fetchone()
    assert isinstance(connection.execute(_QUERY, (key,)).fetchone()[0], str)
    connection.close()
