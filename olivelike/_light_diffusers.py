"""Diffusers imported without what it rarely uses.

Its modules import `torch._dynamo` for one decorator of networks, `scipy.stats` for Beta schedules and `requests` for
pictures by URL, and look through the files of every installed package for those that optimum, flashinfer and modelopt
come in: more time than the demo's picture takes. Diffusers has no setting for it. So while its modules are imported,
others stand in for these, and import the real ones, or look, as soon as anything of them is used.
"""

from __future__ import annotations

import importlib.metadata
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any, Final

_PUT_OFF: Final[Mapping[str, Callable[[], ModuleType]]] = {
    "torch._dynamo": lambda: import_module("torch._dynamo"),
    "scipy.stats": lambda: import_module("scipy.stats"),
    "requests": lambda: import_module("requests"),
}
"""Import of each module, by its name; the names are literal for what follows imports to know the code of a node."""


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
        return _PUT_OFF[self.__name__]()


class _Distributions(Mapping[str, list[str]]):
    """Distributions of each top-level package: what `importlib.metadata` says, once it is asked for."""

    @cached_property
    def _found(self) -> Mapping[str, list[str]]:
        return _look_for_distributions()

    def __getitem__(self, package: str) -> list[str]:
        return self._found[package]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


_look_for_distributions: Final = importlib.metadata.packages_distributions
_IMPORTING: Final = threading.RLock()
"""Two threads that import at once would find each other's stand-ins half way."""


@contextmanager
def light_diffusers() -> Iterator[None]:
    """Import from diffusers in here; what it would decorate with `torch._dynamo` later is decorated all the same."""
    with _IMPORTING, _stand_ins():
        yield


@contextmanager
def _stand_ins() -> Iterator[None]:
    stand_ins = [_PutOff(name) for name in _PUT_OFF if name not in sys.modules]
    for module in stand_ins:
        sys.modules[module.__name__] = module
        if module.__name__ == "torch._dynamo":
            _put_off_decorator(module)
    before = importlib.metadata.packages_distributions
    importlib.metadata.packages_distributions = _Distributions
    try:
        yield
    finally:
        importlib.metadata.packages_distributions = before
        for module in stand_ins:
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]


def _put_off_decorator(dynamo: _PutOff) -> None:
    """Let `from torch._dynamo import allow_in_graph` have a decorator without having the module."""

    def allow_in_graph(decorated: Any) -> Any:
        return dynamo.really().allow_in_graph(decorated)

    dynamo.__dict__["allow_in_graph"] = allow_in_graph
