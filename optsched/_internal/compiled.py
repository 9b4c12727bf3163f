"""Compilation of kernels by numba, kept on disk between runs.

Machine code holds what a kernel calls too, but numba looks at the file of the kernel alone. So it
is kept under a stamp of all that the code can reach: a change compiles what it touches.

Arrays come out of a named tuple once, before the loops of a kernel: inside them every access counts
references, which took up to twice the time. And a kernel with such arrays has no comprehension:
where numba inlines one, it drops writes to them that it holds to be unused. A kernel is compiled
once more for each other type: a read-only array, another layout, a number written out.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import functools
import hashlib
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba
import numba.cpython.hashing  # whose symbols machine code may use
import numba.extending
import numpy as np
from numba.core import caching, compiler, event, serialize, types
from numba.core.runtime import rtsys

from optsched._internal import aside
from optsched._internal.parts import PartCompiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

F = TypeVar("F", bound="Callable[..., Any]")

_KEPT = 40  # files of a kernel, those that were used last
_FREE = 100_000_000  # bytes that a disk must have left; what all kernels take is a fifth
_PATIENCE = 60.0  # seconds for another process that compiles the same kernel, and may be suspended


def allocating(function: F) -> F:
    """Compile a kernel with numba, or load it from disk; it may make arrays."""
    kernel = numba.njit(nogil=True, no_cfunc_wrapper=True)(function)
    kernel._cache = _Kept(kernel)  # noqa: SLF001
    return cast("F", kernel)


def compiled(function: F) -> F:
    """Compile a kernel that makes no arrays: it counts no references, and compiles sooner."""
    kernel = allocating(function)
    kernel.targetoptions["_nrt"] = False  # type: ignore[attr-defined]
    return kernel


def allocating_inside(function: F, **options: Any) -> F:
    """Compile what only kernels call, as part of them; called from Python, it runs uncompiled."""
    options |= {"nogil": True, "pipeline_class": PartCompiler}
    return cast("F", numba.extending.register_jitable(**options)(function))


def compiled_inside(function: F) -> F:
    """Do as `allocating_inside` for what neither makes arrays nor returns them."""
    return allocating_inside(function, _nrt=False)


def _reached(value: Any, seen: set[int]) -> Iterator[str]:
    """Describe a value that a kernel uses, and all that it reaches from there."""
    if numba.extending.is_jitted(value):
        value = value.py_func
    if isinstance(value, FunctionType):
        if id(value) not in seen:
            seen.add(id(value))
            yield from _reached(value.__code__, seen)
            yield repr(value.__defaults__)
            for cell in value.__closure__ or ():
                yield from _reached(cell.cell_contents, seen)
            yield from _named(value.__code__, value.__globals__, seen)
    elif isinstance(value, CodeType):
        arguments = value.co_varnames[: value.co_argcount]
        yield f"{value.co_code.hex()} {value.co_exceptiontable.hex()} {value.co_names} {arguments}"
        yield from _reached(value.co_consts, seen)
    elif isinstance(value, tuple):
        for item in value:
            yield from _reached(item, seen)
    elif isinstance(value, frozenset):
        yield repr(sorted(value, key=repr))
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    elif isinstance(value, type):
        members = list(value) if issubclass(value, enum.Enum) else getattr(value, "_fields", "")
        yield f"{value.__module__}.{value.__qualname__} {members!r}"
    elif hasattr(value, "__qualname__") or isinstance(value, ModuleType):  # of numpy, numba, Python
        yield f"{getattr(value, '__module__', '')}.{value.__name__}"
    else:
        yield repr(value)


def _named(code: CodeType, names: dict[str, Any], seen: set[int]) -> Iterator[str]:
    """Describe what stands behind the names in a function, also in modules of ours."""
    for name in code.co_names:
        if name in names:
            yield from _reached(names[name], seen)
        if isinstance(module := names.get(name), ModuleType) and "optsched" in module.__name__:
            yield from _named(code, vars(module), seen)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named(constant, names, seen)


def _typed(kind: Any) -> Iterator[str]:
    """Describe the type of an argument; the name of a named tuple's says nothing of its fields."""
    yield str(kind)
    if isinstance(kind, types.containers.BaseTuple):
        yield f"{getattr(kind, 'instance_class', '')} {getattr(kind, 'fields', '')}"
        for each in kind:
            yield from _typed(each)


@functools.cache
def _root() -> Path | None:
    """Return the folder of machine code, or None where there is no home."""
    with contextlib.suppress(RuntimeError):
        caches = numba.config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME")
        return Path(caches or Path.home() / ".cache") / "optsched"
    return None


class _Kept(caching.NullCache):  # type: ignore[misc]
    """Machine code of a kernel on disk, a file for each types of arguments.

    Who finds none compiles it, while others that want the same wait for it.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        function = kernel.py_func
        self._name = f"{function.__module__}.{function.__qualname__}".replace(".<locals>", "")

    def _digest(self, signature: Any, context: Any) -> str:
        """Return the stamp of the code for these types."""
        described = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
        described.update(repr(self._kernel.targetoptions).encode())
        for each in (*signature, self._kernel):
            for part in _typed(each) if isinstance(each, types.Type) else _reached(each, set()):
                described.update(part.encode() + b"\n")
        described.update(repr(context.codegen().magic_tuple()).encode())
        return described.hexdigest()[:16]

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Return machine code for these types, or None if it is for the caller to compile."""
        if (root := _root()) is None:
            return None
        digest = self._digest(signature, target_context)
        file = root / f"{self._name}-{digest}.code"
        code = self._load(file, target_context)
        if code is None:
            _compiling.wait_for_turn(root, int(digest, 16) >> 2)
            code = self._load(file, target_context)  # which another process may have compiled
        return code

    def _load(self, file: Path, context: Any) -> Any:
        try:
            reduced = pickle.loads(file.read_bytes())
            os.utime(file)  # it was used
        except (OSError, EOFError, pickle.UnpicklingError):  # cut off where a machine stopped
            return None
        # What machine code calls must be there; what numba itself does first takes half a second.
        if self._kernel.targetoptions.get("_nrt", True):
            rtsys.initialize(context)
        return compiler.CompileResult._rebuild(context, *reduced)  # noqa: SLF001

    def save_overload(self, signature: Any, code: Any) -> None:
        """Keep machine code for these types, if it is this process's turn."""
        root = _root()
        if root is None or not _compiling.has_turn() or code.library.has_dynamic_globals:
            return
        digest = self._digest(signature, code.target_context)
        with contextlib.suppress(OSError):
            if shutil.disk_usage(root).free < _FREE:
                return
            with tempfile.NamedTemporaryFile(dir=root, delete=False) as written:
                written.write(serialize.dumps(code._reduce()))  # noqa: SLF001
            os.replace(written.name, root / f"{self._name}-{digest}.code")
            for old in sorted(root.glob(f"{self._name}-*"), key=os.path.getmtime)[:-_KEPT]:
                old.unlink()


class _Compiling(event.Listener):  # type: ignore[misc]
    """While numba compiles or loads a kernel the clock stops, and Ctrl-C waits.

    LLVM's objects, half made, would end the process.
    """

    def __init__(self) -> None:
        self._depth = 0  # of the main thread, which alone hears Ctrl-C
        self._heard: list[int] = []
        self._before: Any = None
        self._turns: int | None = None  # a file of which each kernel has a byte to lock
        self._here = threading.local()

    def wait_for_turn(self, root: Path, byte: int) -> None:
        """Wait while another process compiles what belongs to this byte."""
        waits_until = time.monotonic() + _PATIENCE
        with contextlib.suppress(OSError):  # a folder in which nothing can be kept
            if self._turns is None:
                root.mkdir(parents=True, exist_ok=True)
                self._turns = os.open(root / "turns", os.O_CREAT | os.O_RDWR)
            while time.monotonic() < waits_until:
                with contextlib.suppress(BlockingIOError, PermissionError):
                    fcntl.lockf(self._turns, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
                    self._here.turns[-1].append(byte)
                    return
                if self._heard and threading.current_thread() is threading.main_thread():
                    raise KeyboardInterrupt  # nothing is half made yet
                time.sleep(0.01)

    def has_turn(self) -> bool:
        """Tell whether what is compiled is this thread's alone, and may be kept."""
        return bool(self._here.turns[-1])

    def on_start(self, event: Any) -> None:
        """Stop the clock, hold Ctrl-C back, and say that it takes long."""
        if event.kind == "numba:compile":
            if event.data["dispatcher"].__module__.startswith("optsched"):  # not a user's own
                aside.tell()
            return
        if threading.current_thread() is threading.main_thread():
            if not self._depth and callable(before := signal.getsignal(signal.SIGINT)):
                # It raises where Ctrl-C came just before; then nothing is held back.
                signal.signal(signal.SIGINT, lambda number, _: self._heard.append(number))
                self._before = before
            self._depth += 1
        self._here.__dict__.setdefault("turns", []).append([])
        aside.begin()

    def on_end(self, event: Any) -> None:
        """Let others have their turn, the clock go on, and Ctrl-C be heard."""
        if event.kind == "numba:compile":
            return
        for byte in self._here.turns.pop():
            assert self._turns is not None
            fcntl.lockf(self._turns, fcntl.LOCK_UN, 1, byte)
        aside.end()
        if threading.current_thread() is threading.main_thread():
            self._depth -= 1
            if not self._depth and self._before:
                signal.signal(signal.SIGINT, self._before)
                self._before = None
                if self._heard:
                    self._heard.clear()
                    signal.raise_signal(signal.SIGINT)


_compiling = _Compiling()
event.register("numba:compile", _compiling)
event.register("numba:compiler_lock", _compiling)
