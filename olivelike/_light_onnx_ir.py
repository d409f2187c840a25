"""onnx_ir imported without sympy, which is most of its time.

It uses sympy for arithmetic with sizes that are names, and olivelike has formulas of its own for these. onnx_ir has no
setting for it. So while it is imported, others stand in for sympy and for its reader of formulas, and import the real
ones as soon as anything of them is used.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final

_PUT_OFF: Final = ("sympy", "onnx_ir._symbolic_shapes")


class _PutOff(ModuleType):
    """A module that is imported when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        # What looks through all modules, as `inspect` does, asks for these.
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


class _LightLoader(Loader):
    """The loader of onnx_ir, with the stand-ins in place while it works."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        stand_ins = [_PutOff(name) for name in _PUT_OFF if name not in sys.modules]
        sys.modules.update({one.__name__: one for one in stand_ins})
        try:
            self._loader.exec_module(module)
        finally:
            for one in stand_ins:
                if sys.modules.get(one.__name__) is one:
                    del sys.modules[one.__name__]


class LightOnnxIr:
    """Finds onnx_ir, and nothing else, for `sys.meta_path`."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return where onnx_ir is, with a loader that puts off what it rarely uses."""
        if name != "onnx_ir":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LightLoader(spec.loader)
        return spec
