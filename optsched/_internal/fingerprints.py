"""Fingerprints: one canonical way of writing whatever was asked, which tells it from all else.

A dataclass is written field by field, an array by type, shape and bytes, code of the user's by what
it runs and reads, and any other object by what a pickler would keep of it. What none of this
describes is refused. Nothing depends on the process, the order of a set or where code stands.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

import numpy as np

from optsched._version import __version__

_SCHEME = "optsched fingerprint 1"
_PLAIN: dict[type, Any] = {
    type(None): repr,
    bool: repr,
    int: hex,
    float: float.hex,
    str: str,
    bytes: bytes.hex,
    type(...): repr,
}
#: Of code: where it stands, which does not count.
_PLACES = ("co_filename", "co_firstlineno", "co_linetable", "co_lnotab")
_METHODS = (staticmethod, classmethod, property, cached_property)
_INNER = ("__func__", "fget", "fset", "fdel", "func")


def fingerprint(value: Any) -> str:
    """Return a SHA-256 of a question: equal in every process, and another for any other."""
    return Identity().of(value)


class Identity:
    """Writes one object down."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256(_SCHEME.encode())
        self._ordered = False  # whether the order of a dictionary may decide, as in code
        self._seen: dict[int, tuple[int, Any]] = {}  # which keeps them alive
        self.modules: list[ModuleType] = []  # the top ones of those that are not installed

    def of(self, value: Any) -> str:
        """Return the fingerprint of an object."""
        self._write(value)
        return self._digest.hexdigest()

    def _put(self, kind: str, text: str | int = "") -> None:
        content = str(text).encode("utf-8", "surrogatepass")
        self._digest.update(f"{kind} {len(content)} ".encode() + content)

    def _write(self, value: Any) -> None:
        kind = type(value)
        if kind in _PLAIN:
            self._put(kind.__name__, _PLAIN[kind](value))
        elif kind in (list, tuple):
            self._several(kind.__name__, value)
        elif kind in (set, frozenset):
            self._several(kind.__name__, sorted(map(fingerprint, value)))
        elif kind is dict:
            keys = list(value) if self._ordered else sorted(value, key=fingerprint)
            self._several("dict", [part for key in keys for part in (key, value[key])])
        elif isinstance(value, np.generic) and value.dtype.kind in "biuf" and value.nbytes <= 8:
            self._write(value.item())
        elif kind is np.ndarray:
            self._put("array", f"{value.dtype!r} {value.shape}")
            if value.dtype.hasobject:
                self._write(value.tolist())
            else:
                self._digest.update(np.ascontiguousarray(value).data.cast("B"))
        elif isinstance(value, Enum):
            self._several("enum", (kind, value.name))
        elif kind is CodeType:
            names = [each for each in dir(value) if each.startswith("co_") and each not in _PLACES]
            parts = [(name, getattr(value, name)) for name in names]
            self._several("code", [part for part in parts if not callable(part[1])])
        elif isinstance(value, FunctionType | ModuleType | type):
            self._code(value)
        elif is_dataclass(value) and _installed(kind.__module__) is not None:
            names = [each.name for each in fields(value) if each.compare]
            self._several("object", [kind, *((name, getattr(value, name)) for name in names)])
        elif isinstance(function := getattr(value, "py_func", None), FunctionType):  # by numba
            self._several("compiled", (function, value.targetoptions))
        else:
            self._reduced(value)

    def _several(self, kind: str, parts: Any, *, code: bool = False) -> None:
        self._put(kind, len(parts))
        outside, self._ordered = self._ordered, self._ordered or code
        for part in parts:
            self._write(part)
        self._ordered = outside

    def _reduced(self, value: Any) -> None:
        """Write what a pickler keeps of an object; of what it only names, the code behind it."""
        parts = value.__reduce_ex__(4)
        if not isinstance(parts, str):
            listed = [list(each) if hasattr(each, "__next__") else each for each in parts]
            self._several("reduced", listed, code=True)
            return
        home = getattr(value, "__module__", None)
        self._put("name", f"{home}:{parts} {_installed(home)}")
        if _installed(home) is None:
            self._write(getattr(value, "__wrapped__", None) or sys.modules[str(home)])

    def _code(self, value: Any) -> None:
        """Write a function, a class or a module: installed code by its name and version."""
        home = value.__name__ if isinstance(value, ModuleType) else value.__module__
        version = _installed(home)
        self._put("name", f"{home}:{getattr(value, '__qualname__', '')} {version}")
        if version is not None:
            return
        if id(value) in self._seen:
            self._put("seen", self._seen[id(value)][0])
            return
        self._seen[id(value)] = len(self._seen), value
        top = sys.modules.get(str(home).partition(".")[0])
        if top is not None and top.__name__ != "__main__" and top not in self.modules:
            self.modules.append(top)
        self._several("code of", _parts(value), code=True)


def _installed(module: str | None) -> str | None:
    """Return the version of installed code, which its name stands for; None for all other code."""
    top = str(module).partition(".")[0]
    if top == "optsched" or top in sys.stdlib_module_names:
        return __version__
    found = sys.modules.get(top)
    if {"site-packages", "dist-packages"} & set(Path(getattr(found, "__file__", None) or "").parts):
        return str(getattr(found, "__version__", ""))
    return None


def _parts(value: Any) -> Any:
    """Return what a function, a class or a module consists of."""
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        names, known = sorted(_names_in(value.__code__)), value.__globals__
        used = [(name, known[name]) for name in names if name in known]
        for module in [each for _, each in used if isinstance(each, ModuleType)]:
            if _installed(module.__name__) is None:  # its values now, whatever its file says
                used += [(name, vars(module)[name]) for name in names if name in vars(module)]
        defaults = value.__defaults__, value.__kwdefaults__
        return value.__code__, *defaults, vars(value), cells, used
    if isinstance(value, ModuleType):
        file = Path(value.__file__ or "")
        code = (FunctionType, ModuleType, type)
        inside = [each for each in vars(value).values() if isinstance(each, code)]
        return file.read_bytes() if file.is_file() else b"", inside
    members: list[Any] = []
    for name, member in vars(value).items():
        if isinstance(member, _METHODS):
            inner = [getattr(member, each, None) for each in _INNER]
            members.append((name, type(member), inner))
        elif isinstance(member, GetSetDescriptorType | MemberDescriptorType):
            members.append((name, "slot"))
        elif callable(member) or not (name.startswith("__") or name == "_abc_impl"):
            members.append((name, member))
    return type(value), value.__bases__, members


def _names_in(code: CodeType) -> set[str]:
    """Return the names that code reads, those of inner functions included."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))
