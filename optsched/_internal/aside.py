"""Long calls: the time they take, bars in notebooks, and threads, so that Ctrl-C is heard at once.

Kernels do not hear Ctrl-C, so those that take seconds are called piece by piece.
"""

from __future__ import annotations

import gc
import html
import math
import signal
import sys
import threading
import time
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    F = TypeVar("F", bound="Callable[..., Any]")

COMPILING = "compiling kernels, which takes a while once on this machine"


class _Loading:
    """What is being loaded in this process, and who is told of it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth, self.since, self.spent = 0, 0.0, 0.0
        self.collects = self.told = False
        self.show: Callable[[], None] = self.print

    def print(self) -> None:
        """Say once on standard error why it takes long; notebooks show it too."""
        if not self.told:
            print(f"optsched: {COMPILING}", file=sys.stderr, flush=True)
        self.told = True


_loading = _Loading()


def stopwatch() -> float:
    """Return seconds for measuring: it stands still while kernels are compiled or loaded."""
    with _loading.lock:
        now = _loading.since if _loading.depth else time.perf_counter()
        return now - _loading.spent


def begin() -> None:
    """Stop the clock, and the search for garbage, a seventh of the time among what numba makes."""
    with _loading.lock:
        if not _loading.depth:
            _loading.since, _loading.collects = time.perf_counter(), gc.isenabled()
            gc.disable()
        _loading.depth += 1


def end() -> None:
    """Let the clock go on where no other thread and no outer kernel holds it."""
    with _loading.lock:
        _loading.depth -= 1
        if not _loading.depth:
            _loading.spent += time.perf_counter() - _loading.since
            if _loading.collects:
                gc.enable()


@contextmanager
def untimed() -> Iterator[None]:
    """Stop the clock while modules come in; Ctrl-C, which leaves them half imported, waits."""
    begin()
    try:
        with heard() as struck:
            yield
    finally:
        end()
    if struck:
        raise KeyboardInterrupt


def tell() -> None:
    """Tell that a kernel is compiled."""
    _loading.show()


@contextmanager
def shown_by(show: Callable[[], None]) -> Iterator[None]:
    """Tell another one that kernels are compiled."""
    before, _loading.show = _loading.show, show
    try:
        yield
    finally:
        _loading.show = before


_AFTER, _EVERY = 1.0, 0.2  # seconds to the first look, and between two
_busy = False  # whether a call is watched already: those that it makes are not
_shown: _Bar | None = None


@contextmanager
def watched(on_progress: Callable[..., Any] | None) -> Iterator[Callable[..., Any] | None]:
    """Yield who is told of progress: whom the caller named, or a bar in a notebook, or nobody."""
    global _busy, _shown
    outer, _busy = _busy, True
    bar = None if on_progress is not None or outer or not _in_notebook() else _Bar()
    _shown = bar or _shown
    try:
        yield on_progress if bar is None else bar
    finally:
        _busy = outer
        if bar is not None:
            bar.close()
            _shown = None


class _Still:
    """News without numbers."""

    def __str__(self) -> str:
        return "at work"


def still_at_work() -> None:
    """Let a bar move that has no numbers, as long kernels tell none."""
    if _shown is not None and not _shown.told:
        _shown(_Still())


def _in_notebook() -> bool:
    found: Any = sys.modules.get("IPython")
    return getattr(found and found.get_ipython(), "kernel", None) is not None


class _Bar:
    """A bar that is redrawn in its place, and goes away at the end."""

    def __init__(self) -> None:
        self._handle: Any = None
        self.told = False  # whether there were numbers, which stay until there are others
        self._next = time.monotonic() + _AFTER

    def __call__(self, *news: object) -> None:
        if (now := time.monotonic()) < self._next:
            return
        self._next = now + _EVERY
        counts = news if len(news) > 1 else [getattr(news[0], key, 0) for key in ("done", "count")]
        text = str(news[0]) if len(news) == 1 else f"{news[0]:,} of {news[1]:,}"
        self.told = self.told or bool(counts[1])
        share = f' value="{counts[0]}" max="{counts[1]}"' if counts[1] else ""  # else it moves
        self._show(text, f"<progress{share}></progress> {html.escape(text)}")

    def _show(self, text: str, page: str) -> None:
        display: Any = import_module("IPython.display").display
        content = {"text/plain": text, "text/html": page}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def close(self) -> None:
        """Take the bar away, if there is one."""
        if self._handle is not None:
            self._show("", "")


T = TypeVar("T")

_here = threading.local()  # in a thread of ours: its call

_LONG = 10_000  # requests from which a kernel may take a second
_LOOK_EVERY = 0.1  # seconds between two looks for Ctrl-C, and signs of life in a notebook


class Token(threading.Event):
    """A token that is set as soon as another one is."""

    def __init__(self, other: threading.Event | None = None) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        """Whether this one or the other is set."""
        return super().is_set() or (self._other is not None and self._other.is_set())


class Budget(NamedTuple):
    """Limits of a search: work in token-steps, an instant of `stopwatch`, a token; who is told."""

    work: float = math.inf
    deadline: float = math.inf
    stop: threading.Event | None = None
    report: Callable[[float], None] | None = None

    @property
    def over(self) -> bool:
        """Whether time is up or the token is set."""
        return stopwatch() >= self.deadline or (self.stop is not None and self.stop.is_set())

    def tell(self, value: float) -> None:
        """Report the best value so far."""
        if self.report is not None:
            self.report(value)


UNLIMITED = Budget()


class _GivenUpError(BaseException):
    """Nobody waits for the result any more."""


# Of locks of modules and of weak references: callbacks, out of which no exception comes. So it is
# with `abc.register`, which compiled modules call as they are imported, and whose errors they drop,
# and with what NumPy calls from C: it says that types cannot be compared.
_DEAF = (
    *("<frozen importlib._bootstrap>", "<frozen abc>", "numpy/_core/_internal.py"),
    *("_weakrefset.py", "weakref.py"),
)
_MOMENT = 0.005  # seconds that such a callback may take


def raise_soon(_: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, or do so in a moment where Python would lose it."""
    if frame is None or not frame.f_code.co_filename.endswith(_DEAF):
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, _strike)  # a thread, started just here, may deadlock
    signal.setitimer(signal.ITIMER_REAL, _MOMENT)


def _strike(_: int, frame: FrameType | None) -> None:
    """Do what Ctrl-C does now."""
    if callable(handler := signal.getsignal(signal.SIGINT)):
        handler(signal.SIGINT, frame)


@contextmanager
def heard() -> Iterator[list[int]]:
    """Yield a list that Ctrl-C is noted in, which strikes nowhere then; a second one does as ever.

    A thread that is started inside is ended inside, wherever Ctrl-C came.
    """
    struck: list[int] = []
    usual: Any = signal.getsignal(signal.SIGINT)

    def note(number: int, _: object) -> None:
        struck.append(number)
        signal.signal(signal.SIGINT, usual)

    here = threading.current_thread() is threading.main_thread()
    if not here or usual not in (signal.default_int_handler, raise_soon):
        yield struck
        return
    try:
        signal.signal(signal.SIGINT, note)
        yield struck
    finally:
        signal.signal(signal.SIGINT, usual)


class Aside(Generic[T]):
    """A call that goes on in a thread of its own."""

    def __init__(self, function: Callable[..., T], *arguments: object) -> None:
        self._found: list[T] = []
        self._error: BaseException | None = None
        self._done, self._given_up = threading.Event(), threading.Event()
        call = (function, arguments)
        name = f"optsched {getattr(function, '__name__', '')}"
        threading.Thread(target=self._run, args=call, name=name, daemon=True).start()

    def _run(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> None:
        _here.given_up = self._given_up
        try:
            self._found.append(function(*arguments))
        except BaseException as error:  # it is raised where the result is asked for
            self._error = error
        finally:
            self._done.set()

    def give_up(self) -> None:
        """Let the call end where it next asks for a piece of its work."""
        self._given_up.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the call; return whether it has come."""
        return self._done.wait(seconds)

    def result(self, struck: Sequence[int] = ()) -> T:
        """Wait for the result, or raise what the call has raised."""
        try:
            while not self.wait(_LOOK_EVERY):
                if struck:
                    raise KeyboardInterrupt
                still_at_work()
        except BaseException:
            self.give_up()
            raise
        if self._error is not None:
            raise self._error
        return self._found[0]


def pieces(count: int, most: int) -> Iterator[slice]:
    """Split work into pieces of so much at most, until the call is given up that it is part of."""
    given_up: threading.Event | None = getattr(_here, "given_up", None)
    for begin in range(0, count, most):
        if given_up is not None and given_up.is_set():
            raise _GivenUpError
        yield slice(begin, begin + most)


def interruptible(function: Callable[..., T], *arguments: object) -> T:
    """Call a function that is long in kernels, so that Ctrl-C is heard at once."""
    if threading.current_thread() is not threading.main_thread():
        return function(*arguments)  # the main thread hears it
    with heard() as struck:
        found = Aside(function, *arguments).result(struck)
    if struck:  # just before the end, or all of it was shorter than a look
        raise KeyboardInterrupt
    return found


def interruptible_kernel(kernel: F, requests: int) -> F:
    """Return a kernel as Ctrl-C can end it, where there are many requests."""
    if requests < _LONG:
        return kernel
    dispatcher: Any = kernel

    def call(*arguments: object) -> Any:
        # The compiler must not be given up, so the kernel is compiled before.
        dispatcher.compile(tuple(map(dispatcher.typeof_pyval, arguments)))
        return interruptible(kernel, *arguments)

    return call  # type: ignore[return-value]
