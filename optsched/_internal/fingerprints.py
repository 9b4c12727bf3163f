"""Fingerprints: one canonical way of writing whatever was asked, equal in every process.

Dataclasses are written by fields, code of the user's by what it runs and reads.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from optsched._version import __version__

#: Of code: where it stands, which does not count.
_PLACES = ("co_filename", "co_firstlineno", "co_linetable", "co_lnotab")


def fingerprint(value: object) -> str:
    """Return a SHA-256 of a question: equal in every process, and another for any other."""
    return Identity().of(value)


class Identity(pickle.Pickler):
    """Writes one object down; `ordered` where the order of a dictionary may decide, as in code."""

    def __init__(self, *, ordered: bool = False) -> None:
        self._digest = hashlib.sha256(b"optsched 1")
        super().__init__(SimpleNamespace(write=self._digest.update), protocol=4)
        self.fast = True  # equal texts are written alike, whether or not they are one object
        self._ordered = ordered
        self._seen: dict[int, tuple[int, Any]] = {}  # which keeps them alive
        self.modules: list[ModuleType] = []  # the top ones of those that are not installed

    def of(self, value: object) -> str:
        """Return the fingerprint of an object."""
        self.dump(value)
        return self._digest.hexdigest()

    def persistent_id(self, value: Any) -> Any:
        """Return what is written in place of an object; None: the object as usual."""
        kind = type(value)
        if kind is dict and not self._ordered:
            return "dict", [(key, value[key]) for key in sorted(value, key=fingerprint)]
        if kind in (set, frozenset):
            return kind, sorted(map(fingerprint, value))
        if kind is np.ndarray:
            held = value.tolist() if value.dtype.hasobject else value.tobytes()
            return "array", repr(value.dtype), value.shape, held
        if kind is CodeType:
            names = [each for each in dir(value) if each.startswith("co_") and each not in _PLACES]
            held = [(name, getattr(value, name)) for name in names]
            return "code", [each for each in held if not callable(each[1])]
        if kind in (property, cached_property):
            return [getattr(value, each, None) for each in ("fget", "fset", "fdel", "func")]
        if isinstance(value, FunctionType | ModuleType | type):
            return self._code(value)
        if is_dataclass(value) and _installed(kind.__module__) is not None:
            names = [each.name for each in fields(value) if each.compare]
            return kind, [(name, getattr(value, name)) for name in names]
        inner = getattr(value, "py_func", getattr(value, "__wrapped__", None))
        around = "around", inner, getattr(value, "targetoptions", None)  # of numba
        return around if isinstance(inner, FunctionType) else None

    def _code(self, value: object) -> Any:
        """Return what a function, class or module is: if installed, its name and version."""
        home = value.__name__ if isinstance(value, ModuleType) else value.__module__
        name = f"{home}:{getattr(value, '__qualname__', '')}"
        if (version := _installed(home)) is not None:
            return name, version
        if id(value) in self._seen:
            return "seen", self._seen[id(value)][0]
        self._seen[id(value)] = len(self._seen), value
        top = sys.modules.get(str(home).partition(".")[0])
        if top is not None and top.__name__ != "__main__" and top not in self.modules:
            self.modules.append(top)
        return name, _parts(value)


@cache
def _code() -> str:
    """Return a hash of all code and data of optsched: a version may stand for more than one."""
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted((*root.rglob("*.py"), *root.rglob("data/**/*.json"))):
        digest.update(f"{path.relative_to(root)}".encode() + path.read_bytes())
    return digest.hexdigest()


def _installed(module: str | None) -> str | None:
    """Return the version of installed code, which its name stands for; None for all other code."""
    top = str(module).partition(".")[0]
    if top == "optsched":
        return f"{__version__} {_code()}"
    if top in sys.stdlib_module_names:
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
        defaults = value.__defaults__, list((value.__kwdefaults__ or {}).items())
        return value.__code__, *defaults, list(vars(value).items()), cells, used
    if isinstance(value, ModuleType):
        file = Path(value.__file__ or "")
        code = (FunctionType, ModuleType, type)
        inside = [each for each in vars(value).values() if isinstance(each, code)]
        return file.read_bytes() if file.is_file() else b"", inside
    members = [
        (name, each)
        for name, each in vars(value).items()
        if callable(each)
        or isinstance(each, classmethod)
        or not (name.startswith("__") or name == "_abc_impl")
    ]
    return type(value), value.__bases__, members


def _names_in(code: CodeType) -> set[str]:
    """Return the names that code reads, those of inner functions included."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))
