"""The project in the environment of the Python that runs this, editable, with what contributors need.

uv installs it in a sixth of pip's time, from the places that pip is set up to take packages from, and pip with it. A
new environment has no pip, since to install the one that comes with Python takes three seconds: it is run from its
wheel to bring uv. Where uv can't be had or does not manage, this says so, and pip does the work.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

WHAT = ("--editable", f"{Path(__file__).parents[1]}[dev]")
SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
    "trusted-host": "UV_INSECURE_HOST",
}
"""Settings of pip that uv doesn't read, and its own variables for them."""


def main() -> int:
    """Install, and return the exit status of the installer."""
    with tempfile.TemporaryDirectory() as folder:
        if find_spec("pip") is None:
            lend_pip(Path(folder))
        if pip("install", "-qq", "--no-compile", "uv") == 0:
            command = [
                sys.executable,
                "-m",
                "uv",
                "pip",
                "install",
                "--quiet",
                "--python",
                sys.executable,
                "pip",
                *WHAT,
            ]
            if subprocess.run(command, check=False, env={**settings(), **os.environ}).returncode == 0:
                return 0
        print("uv did not install olivelike; pip does it now", file=sys.stderr)
        pip("install", "-qq", "--upgrade", "pip")  # An old one takes a minute to choose releases.
        return pip("install", "--quiet", "--no-compile", *WHAT)


def lend_pip(folder: Path) -> None:
    """Unpack the pip that comes with Python, for this process and its children."""
    try:
        import ensurepip
    except ModuleNotFoundError:
        sys.exit("this Python comes without pip; install its modules `ensurepip` and `venv` (Debian: python3-venv)")
    wheels = Path(sysconfig.get_config_var("WHEEL_PKG_DIR") or Path(ensurepip.__file__).with_name("_bundled"))
    with zipfile.ZipFile(next(wheels.glob("pip-*.whl"))) as wheel:
        wheel.extractall(folder)
    os.environ["PYTHONPATH"] = str(folder)


def settings() -> dict[str, str]:
    """Return the variables that let uv take what pip would take."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True).stdout
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # The newest of all places, as pip does.
    for line in sorted(listed.splitlines(), reverse=True):  # `:env:` comes last, since variables go before files.
        name, _, value = line.partition("=")
        variable = SETTINGS.get(name.rpartition(".")[2])
        if variable:
            separator = "," if variable == "UV_FIND_LINKS" else " "
            found[variable] = separator.join(ast.literal_eval(value).split())
    return found


PIP = (sys.executable, "-m", "pip")


def pip(*arguments: str) -> int:
    """Run pip, and return its exit status."""
    return subprocess.run([*PIP, *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
