"""Policies, routers and clocks of one's own: what they are, and how other processes get them."""

from __future__ import annotations

import dis
import hashlib
import io
import pickle
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from optsched._version import __version__
from optsched.errors import OptschedError, PolicyError
from optsched.instance import Instance
from optsched.policies import get_policy, is_shipped
from optsched.simulate import run
from optsched.workers import Workers, get_router, routers

if TYPE_CHECKING:
    from optsched.policies import Policy

_REHEARSED = 8  # requests that a policy is tried on
_PLAIN = (str, int, float, list, dict, type(None))


@dataclass(frozen=True)
class Own:
    """An object of the user's, as it is sent to other processes."""

    name: str
    fingerprint: str  # of its code and its data: the same in every process
    content: bytes = field(repr=False, compare=False)

    def load(self) -> Any:
        """Return a copy of the object, so that no run sees what another has left in it."""
        return pickle.loads(self.content)

    def __str__(self) -> str:
        return self.name


def carried(policy: Policy) -> str | Own:
    """Return a policy as it is sent: by its name where that means the same in every process."""
    with suppress(PolicyError, ValueError):  # ValueError: arrays are compared
        if is_shipped(policy.name) and get_policy(policy.name) == policy:
            return policy.name
    return portable(policy)


def carried_option(name: str, value: Any) -> Any:
    """Return a setting of a run as it is sent: plain data as it is, memories as text."""
    if name == "workers" and not isinstance(value, int | str | None):
        several = value if isinstance(value, Workers) else Workers(value)
        if several.eligible is None:
            return str(several) if len(several) > 1 else f"{several.total}x1"
    if name == "router" and value is not None:
        if routers.is_shipped(value):
            return value
        value = get_router(value)
    return value if isinstance(value, _PLAIN) else portable(value)


def loaded(value: Any) -> Any:
    """Return what was carried."""
    return value.load() if isinstance(value, Own) else value


def fingerprint_of(value: Any) -> str:
    """Return what tells a carried object from all others."""
    return f"{value} {value.fingerprint}" if isinstance(value, Own) else str(value)


def rehearse(policy: str | Own, instance: Instance, **options: Any) -> None:
    """Run a policy of one's own on a few requests, so that what it cannot do is said at once."""
    few = instance.take(range(min(_REHEARSED, len(instance))))
    try:
        run(few, loaded(policy), **{name: loaded(value) for name, value in options.items()})
    except Exception as error:  # whatever code of the user's raises becomes a sentence
        kind = "" if isinstance(error, OptschedError) else f"{type(error).__name__}: "
        reason = " ".join(f"{kind}{error}".split())
        raise PolicyError(
            f"policy {str(policy)!r} fails on the first {len(few)} requests of {instance.name}: "
            f"{reason}; correct it"
        ) from error


def name_of(value: Any) -> str:
    """Return what an object is called."""
    return str(getattr(value, "name", None) or getattr(value, "__name__", type(value).__name__))


def portable(value: Any) -> Own:
    """Make an object ready for other processes, with all code that is not installed there."""
    import cloudpickle

    name, identity = name_of(value), _Identity()
    registered: list[ModuleType] = []
    try:
        fingerprint = identity.of(value)
        for module in identity.modules:
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
        content = cloudpickle.dumps(value)
        pickle.loads(content)
    except Exception as error:  # a pickler raises anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise PolicyError(
            f"{name!r} cannot be sent to other processes or told from others: {reason}; make it of "
            "functions and plain data"
        ) from None
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)
    return Own(name, fingerprint, content)


class _Identity(pickle.Pickler):
    """Writes down what an object does: the code that it runs and its data, not where they are."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file, protocol=4)
        self.fast = True  # equal texts are written alike, whether or not they are one object
        self._seen: dict[int, tuple[int, Any]] = {}  # which keeps them alive
        self.modules: list[ModuleType] = []  # the top ones of those that are not installed

    def of(self, value: Any) -> str:
        """Return the fingerprint of an object."""
        self.dump(value)
        return hashlib.sha256(self._file.getvalue()).hexdigest()[:16]

    def persistent_id(self, value: Any) -> Any:
        """Return what is written in place of an object; None: the object as usual."""
        if isinstance(value, Instance):
            return "instance", value.fingerprint
        if isinstance(value, CodeType):
            return value.co_code, value.co_consts, value.co_names, value.co_varnames
        if isinstance(value, set | frozenset):
            return "set", sorted(map(repr, value))
        if isinstance(function := getattr(value, "py_func", None), FunctionType):
            return "compiled", function
        if not isinstance(value, FunctionType | ModuleType | type):
            return None
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
        names, known = sorted(_globals_of(value.__code__)), value.__globals__
        used = [(name, known[name]) for name in names if name in known]
        return value.__code__, value.__defaults__, value.__kwdefaults__, cells, used
    if isinstance(value, ModuleType):
        file = Path(value.__file__ or "")
        code = (FunctionType, ModuleType, type)
        held = [each for each in vars(value).values() if isinstance(each, code)]
        return file.read_bytes() if file.is_file() else b"", held
    members = []
    for name, member in vars(value).items():
        wrapped = (getattr(member, each, None) for each in ("__func__", "fget", "func"))
        inner = next(filter(None, wrapped), member)
        if isinstance(inner, FunctionType) or not (name.startswith("__") or name == "_abc_impl"):
            members.append((name, inner))
    return value.__bases__, members


def _globals_of(code: CodeType) -> set[str]:
    """Return the global names that code reads, that of inner functions included."""
    reads = ("LOAD_GLOBAL", "LOAD_NAME")
    names = {each.argval for each in dis.get_instructions(code) if each.opname in reads}
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return names.union(*map(_globals_of, inner))
