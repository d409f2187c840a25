"""What decides a result and is not seen in import statements: it is followed, or the pass is not cached."""

from __future__ import annotations

import pytest

from olivelike.workflow.code.code_digest import code_digest
from olivelike.workflow.passes import Registry


def digest_of(plugin):
    return code_digest(Registry.load([str(plugin)]).get("sharpen"))


FOLLOWED = {
    "star import of a submodule in __all__": (
        "from pkg import *\n",
        {"pkg/__init__.py": "__all__ = ['impl']\n", "pkg/impl.py": "V = 1\n"},
        "pkg/impl.py",
    ),
    "star import with a computed __all__": (
        "from pkg import *\n",
        {"pkg/__init__.py": "__all__ = []\n__all__ += ['impl']\n", "pkg/impl.py": "V = 1\n"},
        "pkg/impl.py",
    ),
    "lazy import in a package whose submodule is imported": (
        "import pkg.mod\n",
        {
            "pkg/__init__.py": "def f():\n    from pkg import late\n    return late.V\n",
            "pkg/mod.py": "",
            "pkg/late.py": "V = 1\n",
        },
        "pkg/late.py",
    ),
    "a submodule reached as an attribute": (
        "import pkg\nVALUE = lambda: pkg.impl.V\n",
        {"pkg/__init__.py": "", "pkg/impl.py": "V = 1\n"},
        "pkg/impl.py",
    ),
    "a TYPE_CHECKING of its own": (
        "TYPE_CHECKING = True\nif TYPE_CHECKING:\n    import tint\n",
        {"tint.py": "V = 1\n"},
        "tint.py",
    ),
    "a TYPE_CHECKING that is changed": (
        "from typing import TYPE_CHECKING\nglobals()['TYPE_CHECKING'] = True\nif TYPE_CHECKING:\n    import tint\n",
        {"tint.py": "V = 1\n"},
        "tint.py",
    ),
    "a TYPE_CHECKING from elsewhere": (
        "from flags import *\nif TYPE_CHECKING:\n    import tint\n",
        {"flags.py": "TYPE_CHECKING = True\n", "tint.py": "V = 1\n"},
        "tint.py",
    ),
    "import_module with a name": (
        "from importlib import import_module\ntint = import_module('tint')\n",
        {"tint.py": "V = 1\n"},
        "tint.py",
    ),
    "the built-in function behind import": ("tint = __import__('tint')\n", {"tint.py": "V = 1\n"}, "tint.py"),
}


@pytest.mark.parametrize("case", FOLLOWED)
def test_what_a_run_would_import_changes_the_digest(write, write_pass, case):
    imports, files, changed = FOLLOWED[case]
    for name, text in files.items():
        write(name, text)
    plugin = write_pass("sharpen.py", "Sharpen", imports)
    before = digest_of(plugin)
    assert before.digest is not None, before.uncacheable
    write(changed, "V = 2\n")
    assert digest_of(plugin).digest != before.digest


LOADING = [
    "import importlib\nload = lambda name: importlib.import_module(name)",
    "from importlib import import_module as load",
    "import importlib as i\nload = getattr(i, 'import_' + 'module')",
    "import importlib\nother = importlib",
    "from importlib.util import spec_from_file_location\nspec = spec_from_file_location('x', 'y')",
    "from importlib.machinery import SourceFileLoader",
    "import importlib.machinery\nload = importlib.machinery.SourceFileLoader('x', 'y')",
    "import runpy\nrun = runpy.run_path",
    "import pkgutil\nload = lambda: pkgutil.resolve_name('tint:V')",
    "from pkgutil import resolve_name",
    "import builtins\nload = builtins.__dict__['__imp' + 'ort__']",
    "load = globals()['__builtins__']",
    "load = lambda name: __import__(name)",
    "load = lambda: __import__(name='tint')",
    "load = __import__",
    "load = lambda text: exec(text)",
    "load = lambda text: eval(text)",
    "import sys\nload = lambda: sys.modules['tint']",
    "import sys\nsys.path.insert(0, '/elsewhere')",
    "from sys import modules",
    "from os import *",
    "import os as o\nread = lambda: vars(o)",
    "from importlib import *",
    "import importlib.metadata\nload = lambda: importlib.metadata.entry_points(group='x')",
]


@pytest.mark.parametrize("imports", LOADING)
def test_code_that_only_a_run_knows_makes_the_pass_uncacheable(write_pass, imports):
    found = digest_of(write_pass("sharpen.py", "Sharpen", imports))
    assert found.digest is None
    assert "sharpen.py:" in found.uncacheable
    assert "name the module in an import statement" in found.uncacheable


@pytest.mark.parametrize(
    "imports",
    ["import subprocess", "import os\nrun = os.system", "import ctypes", "import urllib.request", "import fetch"],
)
def test_programs_and_the_network_make_the_pass_uncacheable(write, write_pass, imports):
    write("fetch.py", "import socket\n")
    assert "result can't be kept" in digest_of(write_pass("sharpen.py", "Sharpen", imports)).uncacheable


FILES = [
    "read = lambda: open('table.txt').read()",
    "from pathlib import Path\nread = lambda: Path('table.txt').read_text()",
    "import io\nread = lambda: io.FileIO('table.txt').read()",
    "HERE = __file__",
    "import importlib.resources\nread = lambda: importlib.resources.files('x')",
    "from importlib import resources",
    "import pkgutil\nread = lambda: pkgutil.get_data('x', 'y')",
    "import numpy as np\nread = lambda: np.load('table.npy')",
    "from numpy import loadtxt",
    "import torch\nread = lambda: torch.load('x')",
]
ENVIRONMENT = [
    "import os\nread = lambda: os.environ['X']",
    "import os\nread = lambda: os.getenv('X')",
    "from os import environ as e",
]


@pytest.mark.parametrize("imports", FILES)
def test_a_pass_that_reads_files_and_names_none_is_uncacheable_until_it_says_that_none_decides(write_pass, imports):
    plugin = write_pass("sharpen.py", "Sharpen", imports)
    assert "`files = ()`" in digest_of(plugin).uncacheable
    plugin.write_text(plugin.read_text().replace("    reads =", "    files = ()\n    reads ="))
    assert digest_of(plugin).uncacheable is None


@pytest.mark.parametrize("imports", ENVIRONMENT)
def test_a_pass_that_reads_the_environment_is_uncacheable_until_it_says_what_decides(write_pass, imports):
    plugin = write_pass("sharpen.py", "Sharpen", imports)
    assert "`environment = ()`" in digest_of(plugin).uncacheable
    plugin.write_text(plugin.read_text().replace("    reads =", "    environment = ('X',)\n    reads ="))
    assert digest_of(plugin).uncacheable is None


@pytest.mark.parametrize(
    "imports",
    [
        "import re\nPATTERN = re.compile('x')",
        "import os.path\njoin = os.path.join",
        "import sys\nBIG = sys.byteorder == 'big'",
        "import numpy as np\nZERO = np.zeros(3)",
        "def late(network):\n    return network.eval()",
        "from importlib.metadata import version",
        "import torch\nLOADED = torch.nn.Module.load_state_dict",
    ],
)
def test_ordinary_code_is_cached(write_pass, imports):
    assert digest_of(write_pass("sharpen.py", "Sharpen", imports)).uncacheable is None


def test_what_a_helper_hides_counts_as_what_the_pass_hides(write, write_pass):
    write("tint.py", "\n\nimport runpy\n")
    found = digest_of(write_pass("sharpen.py", "Sharpen", "import tint"))
    assert "tint.py:3: runpy" in found.uncacheable


NEIGHBOUR = """
class Neighbour:
    def run(self, model, context):
        import os
        return os.environ["X"] + open("table").read()
"""


def test_what_another_class_of_the_file_does_is_not_what_the_pass_does(write_pass):
    assert digest_of(write_pass("sharpen.py", "Sharpen", NEIGHBOUR)).uncacheable is None


@pytest.mark.parametrize(
    "more",
    [
        "USED = Neighbour",
        "KIND = globals()['Neighbour']",
        "class Other(Neighbour):\n    pass",
        "class Base:\n    def __init_subclass__(cls):\n        FOUND.append(cls)",
        "import helper",
    ],
)
def test_a_class_that_the_pass_may_reach_counts(write, write_pass, more):
    write("helper.py", "def late():\n    from sharpen import Neighbour\n    return Neighbour\n")
    found = digest_of(write_pass("sharpen.py", "Sharpen", f"{NEIGHBOUR}\n{more}\n"))
    assert "environ: it reads the environment" in found.uncacheable
    assert "`environment = ()` into class Sharpen" in found.uncacheable


@pytest.mark.parametrize(
    "change",
    [
        ("class Neighbour:", "import functools\n@functools.cache\nclass Neighbour:"),
        (
            "    def run(self, model, context):\n        import os\n        return",
            "    import os\n    X = os.environ.get('X')\n    Y = lambda: ",
        ),
        ("    def run(self, model, context):", "    @staticmethod\n    def run(model, context):"),
    ],
    ids=["decorated", "as it is defined", "decorated method"],
)
def test_what_runs_as_a_class_is_defined_counts(write_pass, change):
    assert change[0] in NEIGHBOUR
    assert digest_of(write_pass("sharpen.py", "Sharpen", NEIGHBOUR.replace(*change))).uncacheable is not None
