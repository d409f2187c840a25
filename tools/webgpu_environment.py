"""Make an environment that runs ONNX Runtime's WebGPU provider on the CPU, through a software driver for Vulkan.

`python tools/webgpu_environment.py DIR` makes it, beside the environment of the Python that runs this, whose packages
it shares. `DIR/bin/with-webgpu COMMAND…` runs a command in it. Without Debian's apt there is no driver, and without a
driver nothing but a line that says so: tests for WebGPU are skipped then.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

RUNTIME = "onnxruntime-webgpu==1.27.0"
DRIVER = "mesa-vulkan-drivers=25.0.7-2~bpo12+1"
"""Lavapipe. That of Debian 12 itself, 22.3.6, lacks what Dawn asks for (`shaderUniform*ArrayDynamicIndexing`)."""
LOADER = "libvulkan1"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_SUITES = ("bookworm", "bookworm-backports")
_OPTIONS = ("--reinstall", "--no-install-recommends", "--yes", "--target-release=bookworm-backports")


def main() -> int:
    """Make the environment, or what is missing of it; return an exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="where it goes; made if absent")
    folder: Path = parser.parse_args().folder.resolve()
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    if not (packages / "onnxruntime").exists():
        # Without dependencies: all of them are in the other environment, and one of them brings another onnxruntime.
        pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", packages, RUNTIME]
        subprocess.run(pip, check=True)
    others = [sysconfig.get_path("purelib")]
    (packages / "others.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in others))
    driver = folder / "driver"
    if not list(driver.rglob("libvulkan_lvp.so")) and (reason := _fetch_driver(driver)):
        sys.stderr.write(f"no software driver for Vulkan: {reason}\n")
    _write_runner(folder, driver)
    return 0


def _fetch_driver(driver: Path) -> str | None:
    """Unpack the driver and the libraries that this machine lacks; return why not, or `None` if they are there."""
    if shutil.which("apt-get") is None or not _KEYRING.exists():
        return "this is no Debian; install lavapipe of Mesa 25 or newer, and set VK_ICD_FILENAMES"
    state = driver.with_name("apt")
    for name in ("lists/partial", "archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    sources = state / "sources.list"
    lines = [f"deb [signed-by={_KEYRING}] http://deb.debian.org/debian {suite} main\n" for suite in _SUITES]
    sources.write_text("".join(lines))
    settings = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": state / "lists",
        "Dir::Cache": state,
        "Debug::NoLocking": 1,  # Nothing is installed, so that no one need be root.
    }
    apt = ["apt-get", "--quiet", "--quiet", *(f"-o={key}={value}" for key, value in settings.items())]
    fetch = [*apt, "install", "--download-only", *_OPTIONS, DRIVER, LOADER]
    for command in ([*apt, "update"], fetch):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            return f"{' '.join(command[:1] + command[-2:])}: {done.stderr.strip()}"
    for package in sorted((state / "archives").glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, driver], check=True)
    shutil.rmtree(state)
    return None


def _write_runner(folder: Path, driver: Path) -> None:
    """Write `with-webgpu`, which names the driver to the loader of Vulkan and keeps compiled shaders."""
    lines = ["#!/bin/sh"]
    for library in driver.rglob("libvulkan_lvp.so"):
        manifest = driver / "lavapipe.json"
        icd = {"library_path": str(library), "api_version": "1.4.305"}
        manifest.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}, indent=2) + "\n")
        lines += [
            f"export VK_ICD_FILENAMES='{manifest}' MESA_SHADER_CACHE_DIR='{folder / 'shaders'}'",
            f"export LD_LIBRARY_PATH='{library.parent}'${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}",
        ]
    runner = folder / "bin" / "with-webgpu"
    runner.write_text("\n".join([*lines, f"PATH='{runner.parent}':$PATH", 'exec "$@"', ""]))
    runner.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
