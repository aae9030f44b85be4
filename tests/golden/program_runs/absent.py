"""Packages that a writer imports and does not use: modules in which every name is an empty class.

A program's writer is a few modules of it; what these import on the way (Ray, data sets, inference
servers) need not be installed to write a checkpoint.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class _Absent(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda *_, **__: None})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        is_ours = fullname.split(".")[0] in self.names
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if is_ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []


def pretend(*names: str) -> None:
    """Those of `names` that are not installed can be imported from now on."""
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    sys.meta_path.append(_Finder(absent))
