"""The pass `convert`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from olivelike.errors import PassError
from olivelike.model import Architecture, Model
from olivelike.testing import run_pass, tiny_model
from olivelike.workflow.code.code_digest import code_digest
from olivelike.workflow.passes import Registry

CONVERT = Registry.built_in().get("convert").cls


def test_an_architecture_alone_becomes_a_graph():
    config = tiny_model("text_encoder").architecture.config | {"num_hidden_layers": 1}
    architecture = Architecture("text_encoder", "transformers", "CLIPTextModel", config)
    result = run_pass(CONVERT, Model("text_encoder", architecture))
    graph = result.graph.to_ir().graph
    assert [value.name for value in graph.outputs][2:] == ["hidden_states.0", "hidden_states.1"]
    assert result.architecture is architecture
    assert result.weights is None


def test_its_key_holds_the_architecture_and_the_libraries_that_decide_the_graph():
    assert (CONVERT.reads, CONVERT.writes) == (("architecture",), ("graph",))
    tools = code_digest(Registry.built_in().get("convert")).tools
    assert {"torch", "diffusers", "transformers", "onnxscript", "onnx", "accelerate"} <= set(tools)


def test_a_config_that_the_library_refuses_fails_the_pass():
    config = tiny_model("unet").architecture.config | {"down_block_types": ["NoSuchBlock"] * 4}
    architecture = Architecture("unet", "diffusers", "UNet2DConditionModel", config)
    with pytest.raises(PassError, match="UNet2DConditionModel refuses its config"):
        run_pass(CONVERT, Model("unet", architecture))


def test_loading_the_built_in_passes_imports_no_heavy_library():
    code = """
import sys
from olivelike.workflow.code.code_digest import code_digest
from olivelike.workflow.passes import Registry
Registry.built_in()
print(*{"torch", "onnx", "onnx_ir", "numpy", "diffusers", "transformers"} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_folder_of_passes_cannot_be_imported_under_a_second_name(monkeypatch):
    from pathlib import Path

    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    with pytest.raises(ImportError, match="import olivelike.passes"):
        __import__("passes")
