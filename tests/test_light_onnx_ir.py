"""onnx_ir is imported without sympy, and has it where it computes with sizes that are names."""

from __future__ import annotations

import subprocess
import sys


def test_sympy_is_imported_when_sizes_that_are_names_are_computed_with():
    code = (
        "import sys, olivelike, onnx_ir as ir\n"
        "width = ir.SymbolicDim('width')\n"
        "print(sorted({'sympy', 'onnx_ir._symbolic_shapes'} & set(sys.modules)))\n"
        "print((width + 1).value, ir.SymbolicDim('max(a, 2)').evaluate({'a': 5}), 'sympy.core' in sys.modules)\n"
        "import sympy\n"
        "print(sympy is sys.modules['sympy'], sympy.Integer(3) // 2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nwidth + 1 5 True\nTrue 1\n"
