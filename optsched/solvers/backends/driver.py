"""Solving with any back end by name: in a thread or in a child process, with nothing lost."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

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
    check_start,
    conclude,
)
from optsched.solvers.backends.child import GRACE, ChildChannel, Job, ThreadChannel

if TYPE_CHECKING:
    import threading
    from types import ModuleType

    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray
    from optsched.models.events import EventProgram
    from optsched.models.linear.model import LinearModel

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
