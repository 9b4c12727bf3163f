"""Solving in a child process, which can be ended whatever the solver is doing.

HiGHS' presolve hears neither its time limit nor an interrupt, and a solver may crash or run out of
memory. In a child none of that is lost on the user: answers and bounds come back as they are
found, and how the child ended is part of the `Solution`.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import multiprocessing.connection
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Protocol

from optsched.errors import SolverError
from optsched.solution import Stopped
from optsched.solvers.backends.base import Answer, Options, Progress, Reporter

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds that a solver has beyond its time limit, or after Ctrl-C, before its child is killed.
GRACE = 0.5
ENDED = struct.Struct("=qqq")  # process number, wait status, largest resident kilobytes
NAME = 128  # bytes of a module's name in a message to the fork server


@dataclass(frozen=True)
class Job:
    """What to solve, in a form that another process can read."""

    back_end: str
    solver: str
    model: Any
    options: Options
    start: Any = None

    def solve(
        self, send: Callable[[Progress], None], stop: threading.Event, began: float
    ) -> Answer:
        """Solve in this thread; running out of memory is an answer, too."""
        reporter = Reporter(self.solver, send, stop, began)
        try:
            module = importlib.import_module(self.back_end)
            answer: Answer = module.solve(self.model, self.options, self.start, reporter)
        except MemoryError:
            return Answer(Stopped.MEMORY_LIMIT, self.solver, "out of memory")
        except RuntimeError as error:
            if "can't start new thread" not in str(error):  # which needs memory for its stack
                raise
            return Answer(Stopped.MEMORY_LIMIT, self.solver, "out of memory for a thread")
        return answer


class Channel(Protocol):
    """The connection to a running job, in a thread or in a child process."""

    def receive(self, timeout: float | None) -> Progress | Answer | BaseException | None:
        """Wait for a message; None if none came in time."""
        ...

    def stop(self) -> None:
        """Ask the solver to stop."""
        ...

    def end(self) -> None:
        """Leave: nothing more is received."""
        ...


class ThreadChannel(Channel):
    """A job in a thread of this process: no start-up, but nothing can end a deaf solver."""

    def __init__(self, job: Job, began: float) -> None:
        self._messages: list[Progress | Answer | BaseException] = []
        self._arrived = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(job, began), daemon=True)
        self._thread.start()

    def _run(self, job: Job, began: float) -> None:
        try:
            self._send(job.solve(self._send, self._stop, began))
        except BaseException as error:
            self._send(error)

    def _send(self, message: Progress | Answer | BaseException) -> None:
        with self._arrived:
            self._messages.append(message)
            self._arrived.notify()

    def receive(self, timeout: float | None) -> Progress | Answer | BaseException | None:
        """Wait for a message; None if none came in time."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._messages, timeout)
            return self._messages.pop(0) if self._messages else None

    def stop(self) -> None:
        """Ask the solver to stop."""
        self._stop.set()

    def end(self) -> None:
        """Let the thread run out if it has not ended."""
        self._stop.set()


class ChildChannel(Channel):
    """A job in a child process forked from the fork server."""

    def __init__(self, job: Job, began: float) -> None:
        ours, theirs = socket.socketpair()
        self._status, status = os.pipe()
        self._connection = Connection(ours.detach())
        self._solver, self._limit = job.solver, job.options.memory_limit
        self._pid: int | None = None
        try:
            _fork_server.begin(job.back_end, theirs.fileno(), status)
        finally:
            theirs.close()
            os.close(status)
        # A child that does not read must not keep us from watching the clock.
        elapsed = time.perf_counter() - began
        self._sending = threading.Lock()
        self._sender = threading.Thread(target=self._send, args=((job, elapsed),), daemon=True)
        self._sender.start()

    def _send(self, message: object) -> None:
        with self._sending, contextlib.suppress(OSError):  # `receive` will notice its death
            self._connection.send(message)

    def receive(self, timeout: float | None) -> Progress | Answer | BaseException | None:
        """Wait for a message; None if none came in time."""
        try:
            if not self._connection.poll(timeout):
                return None
            message: Progress | Answer | BaseException = self._connection.recv()
        except (EOFError, OSError):
            return self._exit_status()
        return message

    def stop(self) -> None:
        """Ask the solver to stop."""
        threading.Thread(target=self._send, args=("stop",), daemon=True).start()

    def end(self) -> None:
        """Kill the child if it has not ended."""
        if (pid := self.pid) is not None and not multiprocessing.connection.wait([self._status], 0):
            # It may have ended just now, or have no group of its own yet: then it sees us leave.
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        self._sender.join(1.0)
        self._connection.close()
        os.close(self._status)

    @property
    def pid(self) -> int | None:
        """Number of the child's process, once it is there."""
        there = self._pid is None and multiprocessing.connection.wait([self._status], 1.0)
        if there and (message := os.read(self._status, ENDED.size)):
            self._pid = ENDED.unpack(message)[0]
        return self._pid

    def _exit_status(self) -> Answer:
        """Say how a child ended that gave no answer."""
        pid = self.pid
        message = b""
        if pid is not None and multiprocessing.connection.wait([self._status], 5.0):
            message = os.read(self._status, ENDED.size)
        if len(message) < ENDED.size:
            return Answer(Stopped.ERROR, self._solver, "its process ended for an unknown reason")
        _, status, kilobytes = ENDED.unpack(message)
        code = os.waitstatus_to_exitcode(status)
        how = f"exit code {code}"
        if code < 0:
            how = f"signal {-code} ({signal.Signals(-code).name})"
        megabytes = kilobytes / 1024
        raw_status = f"its process ended by {how}, holding up to {megabytes:,.0f} MB"
        # Solvers that cannot get memory abort; a process never holds all that it has reserved.
        near = self._limit is not None and kilobytes * 1024 > self._limit / 2
        status = Stopped.MEMORY_LIMIT if near and code != 0 else Stopped.ERROR
        return Answer(status, self._solver, raw_status)


def serve(fd: int) -> None:
    """Do one job: what a child process runs."""
    connection = Connection(fd)
    began = time.perf_counter()
    stop = threading.Event()
    sending = threading.Lock()

    def send(message: Progress | Answer | BaseException) -> None:
        with sending:
            connection.send(message)

    def listen() -> None:
        try:
            while True:
                connection.recv()
                stop.set()
        except (EOFError, OSError):
            os._exit(1)  # the caller no longer waits

    try:
        job, elapsed = connection.recv()
        threading.Thread(target=listen, daemon=True).start()
        _limit_memory(job.options.memory_limit)
        send(job.solve(send, stop, began - elapsed))
    except MemoryError:
        send(Answer(Stopped.MEMORY_LIMIT, "child process", "out of memory"))
    except Exception as error:
        try:
            send(error)
        except Exception:  # some exceptions cannot be pickled
            send(SolverError(f"{type(error).__name__}: {error}"))


def _limit_memory(limit: int | None) -> None:
    """Let this process take so many bytes beyond the address space it has."""
    if limit is None:
        return
    import resource

    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[0])
    except OSError:
        pages = 0
    total = pages * resource.getpagesize() + int(limit)
    resource.setrlimit(resource.RLIMIT_AS, (total, total))


def prepare() -> None:
    """Start the process that children come from, while something else is going on.

    The first child waits for its imports, about a second; later ones start within 0.05 s.
    """
    _fork_server.prepare()


class _ForkServer:
    """The fork server of this process, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def prepare(self) -> None:
        """Start the process."""
        with self._lock:
            self._started()

    def begin(self, back_end: str, connection: int, status: int) -> None:
        """Fork a child for a job of a back end, with its connection and a pipe for its end."""
        with self._lock:
            for attempt in (0, 1):
                control = self._started()
                try:
                    socket.send_fds(control, [back_end.encode().ljust(NAME)], [connection, status])
                except OSError:  # it was killed
                    self._forget()
                    if attempt:
                        raise
                else:
                    return

    def _started(self) -> socket.socket:
        if self._control is not None and self._owner == os.getpid():
            return self._control
        ours, theirs = socket.socketpair()
        # A fresh interpreter finds the same modules. Its only threads are those of solvers.
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "from optsched.solvers.backends import fork_server; "
            f"fork_server.main({theirs.fileno()})"
        )
        threads = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | dict.fromkeys(threads, "1"),
        )
        theirs.close()
        self._control, self._owner = ours, os.getpid()
        return ours

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
        self._control = self._process = None

    def close(self) -> None:
        """End the fork server and all children."""
        if self._owner != os.getpid() or self._control is None or self._process is None:
            return
        self._control.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._control = self._process = None


_fork_server = _ForkServer()
atexit.register(_fork_server.close)
