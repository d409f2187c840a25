"""Diffusers without libraries that its import brings and that few drawings use.

Its modules import `torch._dynamo` for one decorator of networks, `scipy.stats` for Beta schedules and `requests` for
pictures by URL: more time than the demo's picture takes. Diffusers has no setting for it. So while its modules are
imported, others stand in for these, and import the real ones as soon as anything of them is used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, Final

_PUT_OFF: Final = ("torch._dynamo", "scipy.stats", "requests")


class _PutOff(ModuleType):
    """A module that is imported when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        # What looks through all modules, as `inspect` does, asks for these.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.really(), name)

    def really(self) -> ModuleType:
        """Return the module itself, from now on in its own place."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return import_module(self.__name__)


@contextmanager
def light_diffusers() -> Iterator[None]:
    """Import from diffusers in here; what it would decorate with `torch._dynamo` later is decorated all the same."""
    stand_ins = [_PutOff(name) for name in _PUT_OFF if name not in sys.modules]
    for module in stand_ins:
        sys.modules[module.__name__] = module
        if module.__name__ == "torch._dynamo":
            _put_off_decorator(module)
    try:
        yield
    finally:
        for module in stand_ins:
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]


def _put_off_decorator(dynamo: _PutOff) -> None:
    """Let `from torch._dynamo import allow_in_graph` have a decorator without having the module."""

    def allow_in_graph(decorated: Any) -> Any:
        return dynamo.really().allow_in_graph(decorated)

    dynamo.__dict__["allow_in_graph"] = allow_in_graph
