"""A distribution of ours that is not installed is told as such, with the command that installs it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from olivelike._extras import needed
from olivelike._installed import lacking
from olivelike.cli.app import run_command_line
from olivelike.errors import MissingError, UsageError

WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "diffusers", "transformers", "peft", "accelerate"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def olivelike(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run olivelike, and its workers, where neither torch is installed nor what is built on it."""
    (tmp_path / "site").mkdir(exist_ok=True)
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "olivelike", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("torch", "pip install 'torch<2.14,>=2.11'"),
        ("diffusers.utils", "pip install 'diffusers<0.43,>=0.36'"),
        ("cv2", "pip install 'olivelike[canny]'"),
        ("yaml", "pip install 'pyyaml<7,>=6.0.2'"),
    ],
)
def test_what_is_not_installed_is_told_with_the_command_that_installs_it(module, command):
    error = lacking(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert isinstance(error, MissingError)
    assert str(error).endswith(f"is not installed; run `{command}`")


def test_what_olivelike_runtime_lacks_is_told_where_it_is_installed_alone(monkeypatch, capsys):
    error = ModuleNotFoundError("No module named 'olivelike.engine.run'", name="olivelike.engine.run")
    assert lacking(error) is None

    def requires(name):
        if name == "olivelike":
            raise PackageNotFoundError(name)
        return ["onnxruntime>=1.23,<1.32; extra == 'cpu'", "numpy>=2.0,<3"]

    monkeypatch.setattr("importlib.metadata.requires", requires)
    with pytest.raises(MissingError, match="--paint takes an extra of olivelike, and olivelike-runtime alone is inst"):
        needed("KINDS", "no such", "--paint")
    assert run_command_line(["no-such-command"]) == UsageError.exit_code
    assert capsys.readouterr().err.endswith(
        "; for more, olivelike-runtime alone is installed; run `pip install olivelike`\n"
    )
    assert str(lacking(error)).endswith("olivelike-runtime alone is installed; run `pip install olivelike`")
    for module, wanted in {"onnxruntime": "olivelike-runtime[cpu]", "numpy": "numpy>=2.0,<3"}.items():
        assert str(lacking(ModuleNotFoundError("x", name=module))).endswith(f"run `pip install '{wanted}'`")


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("x", name="a_plugin"), ModuleNotFoundError("x"), ImportError("x", name="torch")]
)
def test_other_errors_are_left_alone(error):
    assert lacking(error) is None


def test_a_published_architecture_needs_no_torch_and_what_does_says_so(tmp_path):
    layer = "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn1_to_q"
    factors = {"lora_down": np.ones((2, 64), np.float32), "lora_up": np.ones((64, 2), np.float32)}
    save_file({f"{layer}.{role}.weight": factor for role, factor in factors.items()}, tmp_path / "plain.safetensors")
    factors = {f"hada_{name}": np.ones((64, 2) if name[-1] == "a" else (2, 64), np.float32)
               for name in ("w1_a", "w1_b", "w2_a", "w2_b")}  # fmt: skip
    save_file({f"{layer}.{role}": factor for role, factor in factors.items()}, tmp_path / "hadamard.safetensors")
    (tmp_path / "one.yaml").write_text(
        "name: one\nsource: demo\ntarget: cpu\ncomponents: {unet: [merge_lora, convert, fuse]}\noutput: out\n"
        "loras: [plain.safetensors, hadamard.safetensors]\n"
    )
    workflow = ("run", "one.yaml", "--cache-dir", "cache", "--workers", "1")
    done = olivelike(tmp_path, *workflow)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "unet" / "model.onnx").is_file()
    failed = olivelike(
        tmp_path, *workflow, "--output", "other", "--set", "components.unet=[merge_lora, {convert: {fresh: true}}]"
    )
    assert failed.returncode == MissingError.exit_code
    assert "which is not installed; run `pip install '" in failed.stderr
    assert not (tmp_path / "other").exists()


def test_a_pickled_file_is_told_to_need_torch(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.bin", "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02}.")
    done = olivelike(tmp_path, "info", "x.bin", "--allow-pickle")
    assert done.returncode == MissingError.exit_code
    assert "x.bin: is a pickled file; this needs torch, which is not installed; run `pip install 'torch" in done.stderr
