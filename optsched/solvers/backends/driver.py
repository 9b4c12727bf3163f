"""Which back end solves a model, in which process, until when."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import math
import multiprocessing.connection
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

from optsched._internal.room import require_nonzeros
from optsched.errors import SolverError, nearest
from optsched.models.solution import Solution, Stopped
from optsched.solvers.backends import cpsat, cpsat_events, highs
from optsched.solvers.backends import pyomo as pyomo_models
from optsched.solvers.backends.base import (
    Answer,
    Capabilities,
    EventModel,
    OnProgress,
    Options,
    Progress,
    Reporter,
    check_start,
    conclude,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray
    from optsched.models.events import EventProgram
    from optsched.models.linear.model import LinearModel


Message = Progress | Answer | BaseException

#: Seconds that a solver has beyond its time limit, or after Ctrl-C, before its child is killed.
GRACE = 0.5
_ENDED = struct.Struct("=qqq")  # process number, wait status, largest resident kilobytes
_NAME = 128  # bytes of a module's name in a message to the fork server


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


class ThreadChannel:
    """A job in a thread of this process: no start-up, but nothing can end a deaf solver."""

    def __init__(self, job: Job, began: float) -> None:
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self._stop = threading.Event()
        self.stop = self.end = self._stop.set
        threading.Thread(target=self._run, args=(job, began), daemon=True).start()

    def _run(self, job: Job, began: float) -> None:
        try:
            self._messages.put(job.solve(self._messages.put, self._stop, began))
        except BaseException as error:
            self._messages.put(error)

    def receive(self, timeout: float | None) -> Message | None:
        """Wait for a message; None if none came in time."""
        with contextlib.suppress(Empty):
            return self._messages.get(timeout=timeout)
        return None


class ChildChannel:
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
            try:
                self._connection.send(message)
            except TypeError:  # one that is closed meanwhile has no handle
                if not self._connection.closed:
                    raise

    def receive(self, timeout: float | None) -> Message | None:
        """Wait for a message; None if none came in time."""
        try:
            if not self._connection.poll(timeout):
                return None
            message: Message = self._connection.recv()
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
        """Process number of the child, once it has started."""
        there = self._pid is None and multiprocessing.connection.wait([self._status], 1.0)
        if there and (message := os.read(self._status, _ENDED.size)):
            self._pid = _ENDED.unpack(message)[0]
        return self._pid

    def _exit_status(self) -> Answer:
        """Say how a child ended that gave no answer."""
        pid = self.pid
        message = b""
        if pid is not None and multiprocessing.connection.wait([self._status], 5.0):
            message = os.read(self._status, _ENDED.size)
        if len(message) < _ENDED.size:
            return Answer(Stopped.ERROR, self._solver, "its process ended for an unknown reason")
        _, status, kilobytes = _ENDED.unpack(message)
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


def _serve(fd: int) -> None:
    """Do one job: what a child process runs."""
    connection = Connection(fd)
    began = time.perf_counter()
    stop = threading.Event()
    sending = threading.Lock()

    def send(message: Message) -> None:
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
    """Let this process take at most so many bytes beyond its present address space."""
    if limit is None:
        return
    import resource

    pages = 0
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    total = pages * resource.getpagesize() + int(limit)
    resource.setrlimit(resource.RLIMIT_AS, (total, total))


def serve_jobs(control_fd: int) -> NoReturn:
    """Be the fork server, until the user's process closes the control socket."""
    # Not a fork of the user's process, which may have threads, but a fresh interpreter that imports
    # a back end once, never solves anything itself, and never imports the user's script, as
    # `multiprocessing` would. Per job it gets the job's connection, and a pipe on which it writes
    # the child's number and, when the child has ended, how.
    control = socket.socket(fileno=control_fd)
    wakeup, rouse = os.pipe()
    for fd in (wakeup, rouse):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the user's process decides what Ctrl-C means
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(rouse, warn_on_full_buffer=False)
    children: dict[int, int] = {}  # process number -> where to write how it ended
    import optsched.models.events  # what jobs consist of, which children would import each
    import optsched.models.linear.model  # noqa: F401

    while True:
        ready, _, _ = select.select([control_fd, wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 4096)
            _reap(children)
        if control_fd in ready:
            message, fds, _, _ = socket.recv_fds(control, _NAME, 2)
            if not message:
                break
            _fork(message.decode().strip(), fds, children, [control_fd, wakeup, rouse])
    for pid in children:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    os._exit(0)


def _fork(module: str, fds: list[int], children: dict[int, int], own: list[int]) -> None:
    """Import a back end and fork a child that does one job with it."""
    connection, status = fds
    with contextlib.suppress(Exception):  # the child will meet the same error and report it
        importlib.import_module(module).load()
    pid = os.fork()
    if pid:
        os.close(connection)
        children[pid] = status
        _tell(status, pid, 0, 0)
        return
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()  # whatever it starts can be ended with it
        for fd in (*own, status, *children.values()):
            os.close(fd)
        _serve(connection)
        code = 0
    finally:
        os._exit(code)


def _reap(children: dict[int, int]) -> None:
    for pid in list(children):
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            fd = children.pop(pid)
            _tell(fd, pid, status, usage.ru_maxrss)
            os.close(fd)


def _tell(fd: int, pid: int, status: int, kilobytes: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # no reader is left
        os.write(fd, _ENDED.pack(pid, status, kilobytes))


class _ForkServer:
    """The process that children are forked from, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def prepare(self) -> None:
        """Start the process early: its imports take about a second."""
        with self._lock:
            self._started()

    def begin(self, back_end: str, connection: int, status: int) -> None:
        """Fork a child for a job of a back end, with its connection and a pipe for its end."""
        message, fds = [back_end.encode().ljust(_NAME)], [connection, status]
        with self._lock:
            try:
                socket.send_fds(self._started(), message, fds)
            except OSError:  # it was killed
                self.close(0)
                socket.send_fds(self._started(), message, fds)

    def _started(self) -> socket.socket:
        if self._control is not None and self._owner == os.getpid():
            return self._control
        ours, theirs = socket.socketpair()
        # A fresh interpreter finds the same modules. Its only threads are those of solvers.
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve_jobs; "
        threads = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"{code}serve_jobs({theirs.fileno()})"],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | dict.fromkeys(threads, "1"),
        )
        theirs.close()
        self._control, self._owner = ours, os.getpid()
        return ours

    def close(self, patience: float = 2.0) -> None:
        """End the process and all children, by force where its patience is over."""
        if self._control is not None:
            self._control.close()
        if self._process is not None and self._owner == os.getpid():
            try:
                self._process.wait(patience)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._control = self._process = None


_fork_server = _ForkServer()
prepare = _fork_server.prepare
atexit.register(_fork_server.close)


PLAIN = Options()
_SETTLE = 5.0  # seconds beyond those of another solver for CP-SAT to prove what it found
_LOOK_EVERY = 0.05  # seconds between two looks at a stop token
_LONGEST_WAIT = 1e6  # seconds that the operating system waits for a message

#: Back ends by name: modules, with what each can do as `CAPABILITIES`.
BACK_ENDS: dict[str, ModuleType] = {module.CAPABILITIES.name: module for module in (highs, cpsat)}


def capabilities(solver: str) -> Capabilities:
    """Return what a back end, or a solver that Pyomo knows, can do and how it is installed."""
    if solver in BACK_ENDS:
        able: Capabilities = BACK_ENDS[solver].CAPABILITIES
        return able
    if (found := pyomo_models.capabilities(solver)) is not None:
        return found
    raise SolverError(f"unknown solver {solver!r}: {nearest(solver, BACK_ENDS)}, or any of Pyomo's")


def solve_linear(
    model: LinearModel,
    solver: str = "highs",
    options: Options = PLAIN,
    *,
    start: npt.ArrayLike | None = None,
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
    in_child: bool = False,
    settle: bool = True,
) -> Solution:
    """Solve a linear model, mixed-integer where marked, by a back end's or Pyomo's name.

    What is optimal up to a tolerance goes to CP-SAT for a proof, unless that would prove nothing.
    """
    began = time.perf_counter()
    able = capabilities(solver)
    require_nonzeros(model.matrix.nnz, "to solve", SolverError)
    if (refuse := getattr(BACK_ENDS.get(solver), "refuse", None)) is not None:
        refuse(model)
    if start is not None and not able.starts:
        others = [repr(name) for name, module in BACK_ENDS.items() if module.CAPABILITIES.starts]
        raise SolverError(
            f"{able.title} cannot start from a given answer; leave it out or use "
            f"{' or '.join(others)}"
        )
    task: Any = model
    if solver not in BACK_ENDS:
        pyomo_models.refuse(solver, options)
        task = pyomo_models.PyomoTask(model, solver)
    module = BACK_ENDS.get(solver, pyomo_models).__name__
    job = Job(module, able.title, task, options, check_start(model, start))
    found = run(job, model, on_progress, stop, in_child=in_child, began=began)
    if found.status is not Stopped.WITHIN_TOLERANCE or solver == "cp-sat" or not settle:
        return found
    return _settle(model, found, options, on_progress, stop, in_child=in_child)


def _settle(
    model: LinearModel,
    found: Solution,
    options: Options,
    on_progress: OnProgress | None,
    stop: threading.Event | None,
    *,
    in_child: bool,
) -> Solution:
    """Let CP-SAT, which computes in whole numbers, prove what is optimal up to a tolerance."""
    try:
        cpsat.refuse(model)
    except SolverError:
        return found
    left = math.inf if options.time_limit is None else options.time_limit - found.seconds
    limited = replace(options, time_limit=max(min(left, _SETTLE + found.seconds), _LOOK_EVERY))
    exact = solve_linear(
        model,
        "cp-sat",
        limited,
        start=found.values,
        on_progress=on_progress,
        stop=stop,
        in_child=in_child,
    )
    if not exact.proven_optimal:
        return found
    return replace(
        exact, solver=f"{found.solver}, {exact.solver}", seconds=found.seconds + exact.seconds
    )


def solve_events(
    program: EventProgram,
    solver: str = "cp-sat",
    options: Options = PLAIN,
    *,
    start: npt.ArrayLike | None = None,
    bound: float | None = None,
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
    in_child: bool = False,
) -> Solution:
    """Solve an event program from start steps; a proven bound need not be proven again."""
    began = time.perf_counter()
    able = capabilities(solver)
    if not able.events:
        raise SolverError(
            f"{able.title} does not take event programs; use 'cp-sat', or a HindsightProgram"
        )
    model = EventModel(program, bound)
    job = Job(cpsat_events.__name__, able.title, model, options, check_start(model, start))
    return run(job, model, on_progress, stop, in_child=in_child, began=began)


def run(
    job: Job,
    model: LinearModel | EventModel,
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
    *,
    in_child: bool = False,
    began: float | None = None,
) -> Solution:
    """Run a job, watch clock, keyboard and stop token, and keep everything found."""
    began = time.perf_counter() if began is None else began
    if job.options.memory_limit is not None and not in_child:
        raise SolverError(
            f"memory_limit is {job.options.memory_limit}, but only a child process can be limited; "
            "add in_child=True"
        )
    channel = ChildChannel(job, began) if in_child else ThreadChannel(job, began)
    limit = job.options.time_limit
    deadline = began + limit + GRACE if in_child and limit is not None else math.inf
    watch = _Watch(job, channel, on_progress, stop, deadline)
    try:
        answer = watch.listen()
    finally:
        channel.end()
    if answer.bound is None and watch.bound is not None:
        answer = replace(answer, bound=watch.bound)
    others = [values for values in (watch.values, job.start) if values is not None]
    found = conclude(model, answer, time.perf_counter() - began, others)
    if found.status is Stopped.WITHIN_TOLERANCE and job.options.gap_limit:
        return replace(found, status=Stopped.GAP_LIMIT)
    return found


@dataclass
class _Watch:
    """What happens while a job runs; it keeps the last answer and bound that came."""

    job: Job
    channel: ThreadChannel | ChildChannel
    on_progress: OnProgress | None
    stop: threading.Event | None
    deadline: float
    interrupted: bool = False
    values: FloatArray | None = None
    bound: float | None = None

    def listen(self) -> Answer:
        """Take messages until the answer comes or there is no more reason to wait."""
        while True:
            try:
                message = self.channel.receive(self._patience())
                if isinstance(message, Progress):
                    self._note(message)
            except KeyboardInterrupt:
                if self.interrupted:
                    raise
                self._interrupt()
                continue
            if isinstance(message, BaseException):
                raise message
            if isinstance(message, Answer):
                # Some solvers have one word for an interrupt and other causes.
                unclear = self.interrupted and message.status is Stopped.UNKNOWN
                return replace(message, status=Stopped.INTERRUPTED) if unclear else message
            if self.stop is not None and self.stop.is_set() and not self.interrupted:
                self._interrupt()
            # Beyond the deadline only what has arrived already is taken, and not for ever.
            late = time.perf_counter() - self.deadline
            if late >= (0 if message is None else GRACE):
                status = Stopped.INTERRUPTED if self.interrupted else Stopped.TIME_LIMIT
                raw_status = f"did not stop when asked; its process was ended {GRACE} s later"
                return Answer(status, self.job.solver, raw_status)

    def _interrupt(self) -> None:
        self.interrupted = True
        self.channel.stop()
        if isinstance(self.channel, ChildChannel):  # nothing can end a thread
            self.deadline = min(self.deadline, time.perf_counter() + GRACE)

    def _patience(self) -> float | None:
        """Return the seconds to wait for a message; a stop token has to be looked at."""
        left = self.deadline - time.perf_counter()
        if self.stop is not None and not self.interrupted:
            left = min(left, _LOOK_EVERY)
        return None if left == math.inf else max(0.0, min(left, _LONGEST_WAIT))

    def _note(self, progress: Progress) -> None:
        self.values = self.values if progress.values is None else progress.values
        self.bound = self.bound if progress.bound is None else progress.bound
        if self.on_progress is not None and not self.interrupted:
            self.on_progress(progress)
