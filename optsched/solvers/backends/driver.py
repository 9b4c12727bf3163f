"""Which back end solves a model, in which process, until when."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import itertools
import math
import os
import pickle
import signal
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, Queue, SimpleQueue
from typing import TYPE_CHECKING, NoReturn

from optsched._internal import aside
from optsched._internal.arrays import FloatArray, require_nonzeros
from optsched._internal.aside import stopwatch
from optsched._internal.children import Child, listen
from optsched.errors import SolverError, nearest
from optsched.models.program import Solution, Stopped
from optsched.solvers.backends import base, cpsat, highs, pyomo

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    import numpy.typing as npt

    from optsched.models.hindsight import EventProgram
    from optsched.models.linear import LinearModel


Message = base.Progress | base.Answer | BaseException

#: Seconds that a solver has beyond its time limit, or after Ctrl-C, before its child is killed.
GRACE = 0.5
_STOP = b"stop "  # before the number of a job
_BEGUN = "begun"  # news of a job whose back end is imported
_STARTS = 30.0  # seconds within which a child has to begin a job


@dataclass(frozen=True)
class Job:
    """What to solve, in a form that another process can read."""

    back_end: str
    solver: str
    model: object
    options: base.Options
    start: FloatArray | None = None

    def solve(
        self, send: Callable[[base.Progress], None], stop: threading.Event, began: float
    ) -> base.Answer:
        """Solve in this thread; running out of memory is an answer, too."""
        reporter = base.Reporter(self.solver, send, stop, began)
        try:
            module = importlib.import_module(self.back_end)
            answer: base.Answer = module.solve(self.model, self.options, self.start, reporter)
        except MemoryError:
            return base.Answer(Stopped.MEMORY_LIMIT, self.solver, "out of memory")
        except RuntimeError as error:
            if "can't start new thread" not in str(error):  # which needs memory for its stack
                raise
            return base.Answer(Stopped.MEMORY_LIMIT, self.solver, "out of memory for a thread")
        return answer


class ThreadChannel:
    """A job in a thread of this process: no start-up, but only programs can be ended if deaf."""

    def __init__(self, job: Job, began: float) -> None:
        # Ctrl-C as time is up would block a SimpleQueue for ever (CPython 3.11).
        self._messages: Queue[Message] = Queue()
        self._stop, self._answered = threading.Event(), False
        self._thread = threading.Thread(target=self._run, args=(job, began), daemon=True)
        self._thread.start()

    def _run(self, job: Job, began: float) -> None:
        try:
            self._messages.put(job.solve(self._messages.put, self._stop, began))
        except BaseException as error:
            self._messages.put(error)

    def stop(self) -> None:
        """Ask the solver to stop, and end the programs that it runs, as Pyomo's do."""
        self._stop.set()
        with contextlib.suppress(OSError):
            for program in (
                Path(f"/proc/self/task/{self._thread.native_id}/children").read_text().split()
            ):
                os.kill(int(program), signal.SIGKILL)

    def end(self, *, interrupted: bool) -> None:
        """Ask the solver to stop, and end programs that it starts later, too."""
        self.stop()
        if not self._answered:
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """End programs for as long as there is a thread that nobody waits for any more."""
        while self._thread.is_alive():
            self.stop()
            self._thread.join(_LOOK_EVERY)

    def receive(self, timeout: float | None) -> Message | None:
        """Wait for a message; None if none came in time."""
        with contextlib.suppress(Empty):
            message = self._messages.get(timeout=timeout)
            self._answered = not isinstance(message, base.Progress)
            return message
        return None


class _Child(Child):
    """A child that does one job after another, and keeps what it imported."""

    def __init__(self) -> None:
        super().__init__(serve_jobs)
        self.owner, self.jobs, self.started = os.getpid(), 0, time.perf_counter()
        self._sending = threading.Lock()

    def send(self, message: bytes) -> None:
        """Send from a thread: a child that does not read must not keep us from the clock."""

        def sending() -> None:
            # `receive` will notice its death; a connection that is closed meanwhile has no handle.
            with self._sending, contextlib.suppress(OSError, TypeError):
                self.connection.send_bytes(message)

        threading.Thread(target=sending, daemon=True).start()


_idle: list[_Child] = []


def _take() -> _Child:
    """Return an idle child that lives, or a new one."""
    while True:
        try:
            child = _idle.pop()
        except IndexError:
            return _Child()
        if child.owner == os.getpid() and child.process.poll() is None:
            return child
        child.connection.close()


def prepare() -> None:
    """Start a child early: its imports take about a second."""
    _idle.append(_take())


@atexit.register
def end_idle() -> None:
    """End all children that wait for a job."""
    while _idle:
        if (child := _idle.pop()).owner == os.getpid():
            child.ended(kill=True)


class ChildChannel:
    """A job in a child process; the clock stands still while one starts, for `_STARTS` at most."""

    def __init__(self, job: Job, began: float) -> None:
        self._solver, self._limit = job.solver, job.options.memory_limit
        self._keep, self._begun, self._answered = self._limit is None, False, False
        message = pickle.dumps((job, stopwatch() - began))
        # Where memory is limited, what earlier jobs held must not count.
        self._child = _take() if self._keep else _Child()
        self._child.jobs += 1
        self._child.send(message)
        self._starting = True
        aside.begin()

    def receive(self, timeout: float | None) -> Message | None:
        """Wait for a message; None if none came in time."""
        if self._starting:
            timeout = _LOOK_EVERY
            if time.perf_counter() > self._child.started + _STARTS:
                self._has_started()
        try:
            if not self._child.connection.poll(timeout):
                return None
            number, message = self._child.connection.recv()
        except (EOFError, OSError):
            return self._exit_status()
        if number != self._child.jobs:  # late news of another job
            return None
        if message == _BEGUN:
            self._begun = True
            self._has_started()
            return None
        answer: Message = message
        self._answered = not isinstance(answer, base.Progress)
        return answer

    def _has_started(self) -> None:
        """Let the clock go on."""
        if self._starting:
            aside.end()
        self._starting = False

    def stop(self) -> None:
        """Ask the solver to stop."""
        self._has_started()  # so that it is not waited for
        self._child.send(_STOP + str(self._child.jobs).encode())

    def end(self, *, interrupted: bool) -> None:
        """Keep a child for the next job that has answered or is about to start; kill another.

        After Ctrl-C there may be no next one.
        """
        self._has_started()
        self._keep = self._keep and not interrupted
        # On a busy machine the next one would again take all of its time to start.
        young = time.perf_counter() - self._child.started < _STARTS
        starting = not self._begun and young and self._child.process.poll() is None
        if self._keep and (self._answered or starting):
            if starting:
                self.stop()
            _idle.append(self._child)
        elif self._child.process.returncode is None:
            self._child.ended(kill=True)

    @property
    def pid(self) -> int:
        """Process number of the child."""
        return self._child.process.pid

    def _exit_status(self) -> base.Answer:
        """Say how a child ended that gave no answer."""
        status, kilobytes = self._child.ended(kill=False)
        code = os.waitstatus_to_exitcode(status)
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        raw_status = f"its process ended by {how}, holding up to {kilobytes / 1024:,.0f} MB"
        # Solvers that cannot get memory abort; a process never holds all that it has reserved.
        near = self._limit is not None and kilobytes * 1024 > self._limit / 2
        stopped = Stopped.MEMORY_LIMIT if near and code != 0 else Stopped.ERROR
        return base.Answer(stopped, self._solver, raw_status)


def serve_jobs(fd: int) -> NoReturn:
    """Do jobs until the user's process closes the connection: what a child process runs."""
    connection, sending = Connection(fd), threading.Lock()
    jobs: SimpleQueue[tuple[threading.Event, bytes]] = SimpleQueue()
    stops: list[threading.Event] = []  # of each job

    def take(message: bytes) -> None:
        if message.startswith(_STOP):
            stops[int(message.removeprefix(_STOP)) - 1].set()
        else:
            stops.append(threading.Event())
            jobs.put((stops[-1], message))

    listen(connection, take)
    for number in itertools.count(1):
        stop, message = jobs.get()
        if stop.is_set():  # nobody waits for it any more
            continue

        def send(news: Message | str, number: int = number) -> None:
            with sending:
                connection.send((number, news))

        try:
            job, elapsed = pickle.loads(message)
            importlib.import_module(job.back_end).load()  # which takes most of a start
            send(_BEGUN)
            began = stopwatch() - elapsed
            _limit_memory(job.options.memory_limit)
            send(job.solve(send, stop, began))
        except MemoryError:
            send(base.Answer(Stopped.MEMORY_LIMIT, "child process", "out of memory"))
        except Exception as error:
            try:
                send(error)
            except Exception:  # some exceptions cannot be pickled
                send(SolverError(f"{type(error).__name__}: {error}"))
    raise AssertionError


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


PLAIN = base.Options()
_SETTLE = 5.0  # seconds beyond those of another solver for CP-SAT to prove what it found
_LOOK_EVERY = 0.05  # seconds between two looks at a stop token
_DEAF = 50_000  # nonzeros from which presolve of HiGHS takes seconds, and hears nothing meanwhile
_LONGEST_WAIT = 1e6  # seconds that the operating system waits for a message

#: Back ends by name: modules, with what each can do as `CAPABILITIES`.
BACK_ENDS: dict[str, ModuleType] = {module.CAPABILITIES.name: module for module in (highs, cpsat)}


def capabilities(solver: str) -> base.Capabilities:
    """Return what a back end, or a solver that Pyomo knows, can do and how it is installed."""
    if solver in BACK_ENDS:
        able: base.Capabilities = BACK_ENDS[solver].CAPABILITIES
        return able
    if (found := pyomo.capabilities(solver)) is not None:
        return found
    raise SolverError(f"unknown solver {solver!r}: {nearest(solver, BACK_ENDS)}, or any of Pyomo's")


def solve_linear(
    model: LinearModel,
    solver: str = "highs",
    options: base.Options = PLAIN,
    *,
    start: npt.ArrayLike | None = None,
    on_progress: base.OnProgress | None = None,
    stop: threading.Event | None = None,
    in_child: bool = False,
    settle: bool = True,
) -> Solution:
    """Solve a linear model, mixed-integer where marked, by a back end's or Pyomo's name.

    What is optimal up to a tolerance goes to CP-SAT for a proof, unless that would prove nothing.
    """
    began = stopwatch()
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
    task: object = model
    if solver not in BACK_ENDS:
        pyomo.refuse(solver, options)
        task = pyomo.PyomoTask(model, solver)
    module = BACK_ENDS.get(solver, pyomo).__name__
    job = Job(module, able.title, task, options, base.check_start(model, start))
    if (answer := base.solved_alone(model)) is not None:
        return base.conclude(model, answer, stopwatch() - began)
    deaf = solver == "highs" and model.matrix.nnz >= _DEAF and bool(model.integer.any())
    found = run(job, model, on_progress, stop, in_child=in_child or deaf, began=began)
    if found.status is not Stopped.WITHIN_TOLERANCE or solver == "cp-sat" or not settle:
        return found
    again = partial(solve_linear, model, "cp-sat", on_progress=on_progress, stop=stop)
    return _settle(model, found, options, partial(again, in_child=in_child))


def _settle(
    model: LinearModel, found: Solution, options: base.Options, solve: Callable[..., Solution]
) -> Solution:
    """Let CP-SAT, which computes in whole numbers, prove what is optimal up to a tolerance."""
    try:
        cpsat.refuse(model)
    except SolverError:
        return found
    left = math.inf if options.time_limit is None else options.time_limit - found.seconds
    limited = replace(options, time_limit=max(min(left, _SETTLE + found.seconds), _LOOK_EVERY))
    exact = solve(limited, start=found.values)
    if not exact.proven_optimal:
        return found
    return replace(
        exact, solver=f"{found.solver}, {exact.solver}", seconds=found.seconds + exact.seconds
    )


def solve_events(
    program: EventProgram,
    solver: str = "cp-sat",
    options: base.Options = PLAIN,
    *,
    start: npt.ArrayLike | None = None,
    bound: float | None = None,
    on_progress: base.OnProgress | None = None,
    stop: threading.Event | None = None,
    in_child: bool = False,
) -> Solution:
    """Solve an event program from start steps; a proven bound need not be proven again."""
    began = stopwatch()
    able = capabilities(solver)
    if not able.events:
        raise SolverError(
            f"{able.title} does not take event programs; use 'cp-sat', or a HindsightProgram"
        )
    model = base.EventModel(program, bound)
    job = Job(cpsat.__name__, able.title, model, options, base.check_start(model, start))
    return run(job, model, on_progress, stop, in_child=in_child, began=began)


def run(
    job: Job,
    model: LinearModel | base.EventModel,
    on_progress: base.OnProgress | None = None,
    stop: threading.Event | None = None,
    *,
    in_child: bool = False,
    began: float | None = None,
) -> Solution:
    """Run a job, watch clock, keyboard and stop token, and keep everything found."""
    began = stopwatch() if began is None else began
    if job.options.memory_limit is not None and not in_child:
        raise SolverError(
            f"memory_limit is {job.options.memory_limit}, but only a child process can be limited; "
            "add in_child=True"
        )
    limit = job.options.time_limit
    deadline = began + limit + GRACE if in_child and limit is not None else math.inf
    with aside.heard() as struck:
        channel = ChildChannel(job, began) if in_child else ThreadChannel(job, began)
        watch = _Watch(job, channel, on_progress, stop, deadline, struck)
        try:
            answer = watch.listen()
        finally:
            channel.end(interrupted=bool(struck))
            if struck:
                end_idle()
    if answer.bound is None and watch.bound is not None:
        answer = replace(answer, bound=watch.bound)
    others = [values for values in (watch.values, job.start) if values is not None]
    found = base.conclude(model, answer, stopwatch() - began, others)
    if found.status is Stopped.WITHIN_TOLERANCE and job.options.gap_limit:
        return replace(found, status=Stopped.GAP_LIMIT)
    return found


@dataclass
class _Watch:
    """What happens while a job runs; it keeps the last answer and bound that came."""

    job: Job
    channel: ThreadChannel | ChildChannel
    on_progress: base.OnProgress | None
    stop: threading.Event | None
    deadline: float
    struck: list[int]  # by Ctrl-C
    interrupted: bool = False
    values: FloatArray | None = None
    bound: float | None = None

    def listen(self) -> base.Answer:
        """Take messages until the answer comes or there is no more reason to wait."""
        while True:
            try:
                message = self.channel.receive(self._patience())
                if isinstance(message, base.Progress):
                    self._note(message)
            except KeyboardInterrupt:  # by a handler of the caller's
                if self.interrupted:
                    raise
                self._interrupt()
                continue
            # From a terminal Ctrl-C reaches programs that solve, too, which may be gone before us.
            ending = self.interrupted or bool(self.struck)
            if isinstance(message, BaseException):
                if not ending:
                    raise message
                return base.Answer(Stopped.INTERRUPTED, self.job.solver, "ended")
            if isinstance(message, base.Answer):
                # Some solvers have one word for an interrupt and other causes.
                unclear = ending and message.status is Stopped.UNKNOWN
                return replace(message, status=Stopped.INTERRUPTED) if unclear else message
            asked = self.struck or (self.stop is not None and self.stop.is_set())
            if asked and not self.interrupted:
                self._interrupt()
            # Beyond the deadline only what has arrived already is taken, and not for ever.
            late = stopwatch() - self.deadline
            if late >= (0 if message is None else GRACE):
                status = Stopped.INTERRUPTED if self.interrupted else Stopped.TIME_LIMIT
                raw_status = f"did not stop when asked, nor within {GRACE} s"
                return base.Answer(status, self.job.solver, raw_status)

    def _interrupt(self) -> None:
        self.interrupted = True
        self.channel.stop()
        self.deadline = min(self.deadline, stopwatch() + GRACE)

    def _patience(self) -> float | None:
        """Return the seconds to wait for a message; Ctrl-C and a token have to be looked at."""
        left = self.deadline - stopwatch()
        return max(0.0, min(left, _LONGEST_WAIT if self.interrupted else _LOOK_EVERY))

    def _note(self, progress: base.Progress) -> None:
        self.values = self.values if progress.values is None else progress.values
        self.bound = self.bound if progress.bound is None else progress.bound
        if self.on_progress is not None and not self.interrupted:
            self.on_progress(progress)
