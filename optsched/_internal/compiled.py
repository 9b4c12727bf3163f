"""Compilation of kernels to machine code, kept on disk between runs.

Where nothing can be kept - folders that are read-only, a full disk - every process compiles again.

Arrays come out of a named tuple once, before the loops of a kernel: inside them every access counts
references, which took up to twice the time. And a kernel with such arrays has no comprehension:
where numba inlines one, it drops writes to them that it holds to be unused.

Compilation takes a tenth of a second per kernel and more, and `benchmarks/cold.py --kernels` says
where it goes. Costly is

- what brings in much of numba: a slice assigned from a slice or an array, `max` of an array, `sum`,
  `cumsum`, `concatenate`, `sort`, `heapq` (see `small_kernels`), and the first `zeros` or `full` of
  a process; `empty` and a loop, or an array that the caller made, take next to nothing;
- a kernel that is called with two types: an array that is read-only here and not there, or of
  another layout, or a Python number (see `ZERO`);
- a chain of kernels, each of which is optimised again with all that it calls: large ones, and those
  that several kernels call, are `compiled_apart`;
- a tuple of many arrays, which is handed on piece by piece: records take half.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import pickle
import signal
import threading
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags
from numba.core.dispatcher import Dispatcher
from numba.core.environment import lookup_environment

from optsched._internal.loading import loading, tell

if TYPE_CHECKING:
    from collections.abc import Callable


F = TypeVar("F", bound="Callable[..., Any]")

#: Numbers for kernels to hand on: numba compiles the callee once more for a Python number.
ZERO, ONE, MINUS_ONE = (cast("int", np.int64(value)) for value in (0, 1, -1))


def compiled(function: F) -> F:
    """Compile a kernel with numba; the machine code is cached beside the source file."""
    return _compiled(function, apart=False)


def compiled_apart(function: F) -> F:
    """Compile a kernel that others do not take in; a call takes some nanoseconds longer."""
    return _compiled(function, apart=True)


def _compiled(function: F, apart: bool) -> F:
    kernel = numba.njit(nogil=True, no_cfunc_wrapper=True, pipeline_class=_Entered)(function)
    kernel._compiler._customize_flags = _Flags  # noqa: SLF001
    kernel.compile = _uninterrupted(kernel.compile)
    # numba raises RuntimeError where there is no folder that it may write to.
    with contextlib.suppress(RuntimeError):
        kernel._cache = _Cache(function, apart=apart)  # noqa: SLF001
    _Inside(kernel).replace_calls()
    return cast("F", kernel)


class _Inside:
    """A kernel as other kernels call it: without its entrance from Python, which takes a while.

    It is a dispatcher of its own that Python code cannot reach: a call would end the process. What
    is compiled with an entrance already is used as it is.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._call_template, self._overload = kernel.get_call_template, kernel.get_overload
        kernel.inside = self

    def replace_calls(self) -> None:
        """Let calls in kernels come here."""
        self._kernel.get_call_template = self._typed
        self._kernel.get_overload = self._compiled

    @cached_property
    def dispatcher(self) -> Any:
        """The kernel that others call."""
        function, cache = self._kernel.py_func, self._kernel._cache  # noqa: SLF001
        apart = isinstance(cache, _Cache) and cache.apart
        dispatcher = numba.njit(
            no_cpython_wrapper=True,
            no_cfunc_wrapper=True,
            pipeline_class=_Entered if apart else _Inner,
        )(function)
        dispatcher._compiler._customize_flags = _Flags  # noqa: SLF001
        if isinstance(cache, _Cache):
            dispatcher._cache = _Cache(function, cache)  # noqa: SLF001
        return dispatcher

    def _typed(self, args: Any, kws: Any) -> Any:
        _, types = self._kernel.fold_argument_types(args, kws)
        there = tuple(types) in self._kernel.overloads
        return (self._call_template if there else self.dispatcher.get_call_template)(args, kws)

    def _compiled(self, types: Any) -> Any:
        there = tuple(types) in self._kernel.overloads
        return (self._overload if there else self.dispatcher.get_overload)(types)


class _Flags(Flags):  # type: ignore[misc]
    """Options of a kernel; numba compares all of them at each call that it looks up."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Flags):
            return bool(self._values == other._values)
        return bool(super().__eq__(other))

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._values)))


class _Library(JITCodeLibrary):  # type: ignore[misc]
    """A kernel with all that it takes in; functions are not optimised one by one before that."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout  # noqa: SLF001

    def _finalize_specific(self) -> None:
        super()._finalize_specific()
        # Kernels that are linked in are nowhere else in the process.
        for variable in self._final_module.global_variables:
            if variable.name.startswith("_ZN08NumbaEnv"):
                environment = lookup_environment(variable.name)
                if environment is not None:
                    self._codegen.set_env(variable.name, environment)


class _Linked(_Library):
    """A kernel to be linked into others; no machine code is made of it alone."""

    @property
    def codegen(self) -> Any:
        """What sets the environment of a kernel in machine code."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Leave that to the kernels that this one is linked into."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def serialize_using_object_code(self) -> Any:
        """Return what is kept on disk."""
        return self.serialize_using_bitcode()


class _Entered(Compiler):  # type: ignore[misc]
    """numba's passes, with a library of ours."""

    _library: type[_Library] = _Library

    def define_pipelines(self) -> Any:
        """Return the passes."""
        state = self.state
        state.library = self._library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super().define_pipelines()


class _Inner(_Entered):
    _library = _Linked


def _uninterrupted(compilation: Callable[..., Any]) -> Callable[..., Any]:
    """Let Ctrl-C wait until a kernel is compiled: LLVM's objects, half made, end the process."""

    def timed(*arguments: Any) -> Any:
        # Looking for garbage among what numba makes takes a seventh of the time.
        collects = gc.isenabled()
        gc.disable()
        try:
            with loading():
                return compilation(*arguments)
        finally:
            if collects:
                gc.enable()

    def waiting(*arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return timed(*arguments)
        came: list[int] = []
        before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
        try:
            return timed(*arguments)
        finally:
            signal.signal(signal.SIGINT, before)
            if came:
                signal.raise_signal(signal.SIGINT)

    return waiting


class _Cache(FunctionCache):  # type: ignore[misc]
    """Machine code of a kernel on disk; a disk that is full or damaged only costs time."""

    _cache_file: Any
    apart: bool

    def __init__(
        self, function: Callable[..., Any], entered: _Cache | None = None, *, apart: bool = False
    ) -> None:
        super().__init__(function)
        self._function = function
        self._entered = entered  # with an entrance from Python
        self.apart = apart if entered is None else entered.apart
        stamp = self._cache_file._source_stamp  # noqa: SLF001
        if stamps := _imported(function):
            # numba looks at the file of the kernel alone, but machine code holds what it calls too.
            source = Path(function.__code__.co_filename).read_bytes()
            stamp = hashlib.sha256(source + b"".join(stamps)).digest()
        name = self._impl.filename_base
        name = name if entered is None else f"inside-{name}"
        self._cache_file = _CacheFile(self.cache_path, name, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what is kept; code with an entrance serves kernels as well."""
        found = None
        with contextlib.suppress(_NotThereError):
            found = super().load_overload(sig, target_context)
        if found is None:
            if self._entered is not None:
                found = self._entered.load_overload(sig, target_context)
            if found is None:
                tell()
            return found
        found.library._reload_init.update(found.reload_init)  # noqa: SLF001
        self._set_apart(found)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep machine code, if that can be done."""
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)
        self._set_apart(data)

    def _set_apart(self, result: Any) -> None:
        """Let kernels that call this one find its machine code, not its text."""
        if not self.apart:
            return
        library, description = result.library, result.fndesc
        empty = library.codegen.create_library(library.name)
        library._shared_module = empty._final_module  # noqa: SLF001
        library._reload_init.add(  # noqa: SLF001
            _Callee(
                self._function.__module__,
                self._function.__name__,
                self._entered is not None,
                result.signature.args,
                description.llvm_func_name,
            )
        )


class _NotThereError(Exception):
    """Machine code refers to other machine code that has been replaced since."""


class _Callee(NamedTuple):
    """A kernel with machine code apart, to be loaded before that of a kernel that calls it."""

    module: str
    name: str
    inside: bool
    types: tuple[Any, ...]
    symbol: str

    def __call__(self) -> None:
        """Load it."""
        kernel = getattr(importlib.import_module(self.module), self.name)
        dispatcher = kernel.inside.dispatcher if self.inside else kernel
        dispatcher.compile(self.types)
        if dispatcher.overloads[self.types].fndesc.llvm_func_name != self.symbol:
            raise _NotThereError(self.name)


#: What reading raises where a file is damaged, or names types that have moved since it was written.
_UNREADABLE = (EOFError, pickle.UnpicklingError, ImportError, AttributeError)


class _CacheFile(IndexDataCacheFile):  # type: ignore[misc]
    """The files of one kernel, named after what is in them."""

    def save(self, key: Any, data: Any) -> None:
        """Keep machine code."""
        base = self._index_name.removesuffix(".nbi")
        known = self._load_index()
        if not known:  # what is there is of an older source
            for old in Path(self._cache_path).glob(f"{base}.*.nbc"):
                old.unlink(missing_ok=True)
        digest = hashlib.sha256(repr((self._source_stamp, key)).encode()).hexdigest()[:16]
        name = f"{base}.{digest}.nbc"
        self._save_data(name, data)
        self._save_index(known | {key: name})

    def load(self, key: Any) -> Any:
        """Return what was stored, or None if nothing can be read."""
        with contextlib.suppress(OSError, *_UNREADABLE):
            return super().load(key)
        return None

    def _load_index(self) -> dict[Any, str]:
        try:
            known: dict[Any, str] = super()._load_index()
        except _UNREADABLE:
            return {}
        return known


def _imported(function: Callable[..., Any]) -> list[bytes]:
    """Return a stamp of each kernel, and of each number beside them, that a module has imported."""
    names = function.__globals__
    kernels = {
        name: value
        for name, value in names.items()
        if isinstance(value, Dispatcher) and value.py_func.__module__ != function.__module__
    }
    if not kernels:
        return []
    stamps = [
        f"{name} {value.py_func.__name__}".encode() + _stamp(value)
        for name, value in sorted(kernels.items())
    ]
    numbers = [
        f"{name} {value!r}".encode()
        for name, value in sorted(names.items())
        if isinstance(value, (int, float, np.integer))
    ]
    return stamps + numbers


def _stamp(kernel: Any) -> bytes:
    if not isinstance(kernel._cache, _Cache):  # noqa: SLF001
        raise RuntimeError("machine code that holds uncached machine code cannot be cached")
    return repr(kernel._cache._cache_file._source_stamp).encode()  # noqa: SLF001
