"""Solving with any back end by name: in a thread or in a child process, with nothing lost."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from optsched.errors import SolverError, nearest
from optsched.solution import Solution, Stopped
from optsched.solvers.backends import cpsat, cpsat_events, highs
from optsched.solvers.backends import pyomo as pyomo_models
from optsched.solvers.backends.base import (
    Answer,
    Capabilities,
    Model,
    OnProgress,
    Options,
    Progress,
    check_start,
    conclude,
)
from optsched.solvers.backends.child import GRACE, ChildLine, Job, Line, ThreadLine

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray
    from optsched.models.events import EventProgram
    from optsched.models.linear.model import LinearModel

BACK_ENDS: dict[str, Capabilities] = {
    capabilities.name: capabilities for capabilities in (highs.CAPABILITIES, cpsat.CAPABILITIES)
}


def capabilities(solver: str) -> Capabilities:
    """Say what a solver can do.

    Parameters
    ----------
    solver
        "highs", "cp-sat", or what Pyomo calls one of its solvers, such as "glpk" or "gurobi".

    Returns
    -------
    Capabilities
        What it can do and the line that installs it.

    Raises
    ------
    SolverError
        If Pyomo does not know it either.

    Examples
    --------
    >>> capabilities("cp-sat").fractions
    False
    """
    if solver in BACK_ENDS:
        return BACK_ENDS[solver]
    if (found := pyomo_models.capabilities(solver)) is not None:
        return found
    raise SolverError(f"unknown solver {solver!r}: {nearest(solver, BACK_ENDS)}, or any of Pyomo's")


def solve_linear(
    model: LinearModel,
    solver: str = "highs",
    *,
    start: npt.ArrayLike | None = None,
    time_limit: float | None = None,
    threads: int = 1,
    seed: int = 0,
    gap_limit: float = 0.0,
    memory_limit: int | None = None,
    on_progress: OnProgress | None = None,
    in_child: bool = False,
) -> Solution:
    """Solve a linear model, mixed-integer where marked.

    Ctrl-C stops the solver and returns what is known; so does raising StopIteration in
    `on_progress`.

    Parameters
    ----------
    model
        The model.
    solver
        "highs", "cp-sat", or what Pyomo calls one of its solvers, such as "glpk" or "gurobi".
    start
        A feasible point to begin from, one value per column.
    time_limit
        Seconds of wall time; None for no limit.
    threads
        Number of threads.
    seed
        Seed of the solver's random numbers; one thread and one seed give one answer.
    gap_limit
        Gap at which to stop, as a share of the objective.
    memory_limit
        Bytes that the solver may take; needs `in_child`.
    on_progress
        Is called with a `Progress` now and then and for each new answer.
    in_child
        Whether to solve in a child process, which ends with the time limit whatever the solver is
        doing, and whose death costs no more than the proof.

    Returns
    -------
    Solution
        What is known at the end, checked.

    Raises
    ------
    SolverError
        If an option makes no sense, the solver is unknown or not installed or cannot represent the
        model, or the start is infeasible.

    Examples
    --------
    >>> from optsched.models.linear.model import Family, LinearModel, Rows, Variables
    >>> take = Variables(Family.of("take", item=[0, 1, 2]), [5, 4, 3], upper=1, integer=True)
    >>> weight = Rows(Family.of("weight"), {"take": [[4, 3, 2]]}, upper=5)
    >>> model = LinearModel.build("knapsack", [take], [weight], sense="max")
    >>> solution = solve_linear(model)
    >>> solution.values, solution.objective, solution.proven_optimal
    (array([0., 1., 1.]), 7.0, True)
    >>> solve_linear(model, start=[1, 1, 0])
    Traceback (most recent call last):
        ...
    optsched.errors.SolverError: knapsack: the start is infeasible: weight is 7, but must be at most
    5; correct it or solve without a start
    """
    began = time.perf_counter()
    able = capabilities(solver)
    options = Options(time_limit, threads, seed, gap_limit, memory_limit)
    if not able.fractions:
        cpsat.refuse(model)
    if start is not None and not able.starts:
        raise SolverError(
            f"{able.title} cannot begin from a start; leave it out or use "
            f"{_alternatives(lambda other: other.starts)}"
        )
    known = check_start(model, start)
    if solver in BACK_ENDS:
        back_end = {"highs": highs, "cp-sat": cpsat}[solver].__name__
        job = Job(back_end, able.title, model, options, known)
    else:
        pyomo_models.refuse(solver, options)
        task = pyomo_models.PyomoTask(model, solver)
        job = Job(pyomo_models.__name__, able.title, task, options, known)
    return run(job, model, on_progress, in_child=in_child, began=began)


def solve_events(
    program: EventProgram,
    solver: str = "cp-sat",
    *,
    start: npt.ArrayLike | None = None,
    bound: float | None = None,
    time_limit: float | None = None,
    threads: int = 1,
    seed: int = 0,
    gap_limit: float = 0.0,
    memory_limit: int | None = None,
    on_progress: OnProgress | None = None,
    in_child: bool = False,
) -> Solution:
    """Solve an event program, whose answer is the start step of each request.

    Parameters
    ----------
    program
        The program. "Optimal" means among the starts it allows.
    solver
        "cp-sat" is the only one that can.
    start
        Start steps of a feasible schedule to begin from; they may lie beyond `program.latest`.
    bound
        A proven lower bound on the objective, which saves the solver from proving it again.
    time_limit, threads, seed, gap_limit, memory_limit, on_progress, in_child
        As for `solve_linear`.

    Returns
    -------
    Solution
        With the start steps as values.

    Raises
    ------
    SolverError
        If an option makes no sense, the solver cannot take event programs, or the start is
        infeasible.

    Examples
    --------
    >>> from optsched import Instance
    >>> from optsched.models import EventProgram
    >>> solution = solve_events(EventProgram(Instance([63, 1, 1], [1, 2, 2], memory=64)))
    >>> solution.values, solution.objective, solution.proven_optimal
    (array([2., 0., 0.]), 7.0, True)
    """
    began = time.perf_counter()
    able = capabilities(solver)
    options = Options(time_limit, threads, seed, gap_limit, memory_limit)
    if not able.events:
        raise SolverError(
            f"{able.title} does not take event programs; use "
            f"{_alternatives(lambda other: other.events)}, or a HindsightProgram"
        )
    model = cpsat_events.EventModel(program, bound)
    known = check_start(model, start)
    job = Job(cpsat_events.__name__, able.title, model, options, known)
    return run(job, model, on_progress, in_child=in_child, began=began)


def run(
    job: Job,
    model: Model,
    on_progress: OnProgress | None = None,
    *,
    in_child: bool = False,
    began: float | None = None,
) -> Solution:
    """Run a job, watch the clock and the keyboard, and keep whatever is found.

    Parameters
    ----------
    job
        What to solve.
    model
        What answers are checked against.
    on_progress
        Is called in this thread with each message.
    in_child
        Whether to solve in a child process.
    began
        When the solve began, on the clock of `time.perf_counter`; None for now.

    Returns
    -------
    Solution
        What is known at the end, checked.
    """
    began = time.perf_counter() if began is None else began
    if job.options.memory_limit is not None and not in_child:
        raise SolverError(
            f"memory_limit is {job.options.memory_limit}, but only a child process can be limited; "
            "add in_child=True"
        )
    line: Line = ChildLine(job, began) if in_child else ThreadLine(job, began)
    watch = _Watch(job, on_progress, began, deaf_is_final=in_child)
    try:
        answer = watch.listen(line)
    finally:
        line.end()
    if answer.bound is None and watch.bound is not None:
        answer = replace(answer, bound=watch.bound)
    others = [values for values in (watch.values, job.start) if values is not None]
    return conclude(model, answer, time.perf_counter() - began, others)


class _Watch:
    """What happens while a job runs; it keeps the last answer and bound that came."""

    def __init__(
        self, job: Job, on_progress: OnProgress | None, began: float, *, deaf_is_final: bool
    ) -> None:
        self._job, self._on_progress = job, on_progress
        self._deadline = math.inf
        if deaf_is_final and job.options.time_limit is not None:
            self._deadline = began + job.options.time_limit + GRACE
        self._deaf_is_final = deaf_is_final
        self._interrupted = False
        self.values: FloatArray | None = None
        self.bound: float | None = None

    def listen(self, line: Line) -> Answer:
        """Take messages until the answer comes or there is no more reason to wait."""
        while True:
            try:
                left = self._deadline - time.perf_counter()
                message = line.receive(None if left == math.inf else max(0.0, left))
            except KeyboardInterrupt:
                if self._interrupted:
                    raise
                self._interrupt(line)
                continue
            if isinstance(message, BaseException):
                raise message
            if isinstance(message, Answer):
                return self._final(message)
            if message is not None:
                self._note(message, line)
            # Beyond the deadline only what has arrived already is taken, and not for ever.
            late = time.perf_counter() - self._deadline
            if late >= (0 if message is None else GRACE):
                stopped = Stopped.INTERRUPTED if self._interrupted else Stopped.TIME_LIMIT
                words = f"did not stop when asked; its process was ended {GRACE} s later"
                return Answer(stopped, self._job.solver, words)

    def _interrupt(self, line: Line) -> None:
        self._interrupted = True
        line.stop()
        if self._deaf_is_final:
            self._deadline = min(self._deadline, time.perf_counter() + GRACE)

    def _note(self, progress: Progress, line: Line) -> None:
        if progress.values is not None:
            self.values = progress.values
        if progress.bound is not None:
            self.bound = progress.bound
        if self._on_progress is not None and not self._interrupted:
            try:
                self._on_progress(progress)
            except (KeyboardInterrupt, StopIteration):
                self._interrupt(line)

    def _final(self, answer: Answer) -> Answer:
        """Call an interrupt by its name, where the solver has one word for several causes."""
        if self._interrupted and answer.stopped is Stopped.UNKNOWN:
            return replace(answer, stopped=Stopped.INTERRUPTED)
        return answer


def _alternatives(able: Any) -> str:
    names = [repr(name) for name, capabilities in BACK_ENDS.items() if able(capabilities)]
    return " or ".join(names)
