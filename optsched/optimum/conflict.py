"""Irreducible conflicts: which requests, at which steps, make hard deadlines impossible."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, overload

import numpy as np

from optsched.admission import admit_by_priority, require_steps
from optsched.errors import ModelError, SolverError
from optsched.models.conflict import RowConflict, Windows
from optsched.models.events import EventProgram
from optsched.models.hindsight import HindsightProgram
from optsched.models.running import NOTHING_RUNNING, Running
from optsched.models.solution import Stopped
from optsched.optimum.programs import as_linear
from optsched.problem.instance import Instance
from optsched.problem.schedule import Schedule
from optsched.solvers.backends import cpsat, highs
from optsched.solvers.backends.base import INFEASIBLE, Options
from optsched.solvers.backends.driver import solve_events, solve_linear

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from optsched._internal.arrays import IntArray
    from optsched.models.conflict import Conflict
    from optsched.models.linear.model import LinearModel
    from optsched.models.program import Program
    from optsched.models.solution import Solution
    from optsched.solvers.backends.base import Progress

_EVENTS = 100  # requests; event models grow with the square of their number
_SIZES = (4, 16, 64)  # of groups of requests, tried where all are too many
_LEAST = 1e-3  # seconds that a solver is left with
_NONZEROS = 1_000_000  # of a time-indexed model


@overload
def explain_infeasibility(
    problem: Instance,
    horizon: int | None = ...,
    *,
    now: int = ...,
    running: Running = ...,
    time_limit: float | None = ...,
) -> Conflict | None: ...
@overload
def explain_infeasibility(
    problem: LinearModel | Program, *, time_limit: float | None = ...
) -> RowConflict | None: ...
def explain_infeasibility(
    problem: Instance | LinearModel | Program,
    horizon: int | None = None,
    *,
    now: int = 0,
    running: Running = NOTHING_RUNNING,
    time_limit: float | None = 10.0,
) -> Conflict | RowConflict | None:
    """Find requests, or rows, that conflict, and do not if any one of them is left out.

    Parameters
    ----------
    problem
        Requests that cannot all complete in time, deadlines being hard. Or a `LinearModel`, or a
        program that becomes one: then rows are found that contradict each other.
    horizon
        Step by which all have to complete; None leaves the deadlines alone.
    now
        Step before which none of them can start.
    running
        Requests that are running at step `now` already, and are part of the conflict where it needs
        them. When they complete does not matter.
    time_limit
        Seconds of wall time; None for no limit. When they are over, the conflict is what is known
        by then, and says so.

    Returns
    -------
    Conflict, RowConflict or None
        None if all requests can complete in time, or a point satisfies all rows.

    Raises
    ------
    SolverError
        If the time was too short to tell whether they can.
    ModelError
        If `horizon` or `now` is not a step, or the running requests do not fit.

    Examples
    --------
    >>> from optsched import Instance, explain_infeasibility
    >>> from optsched.models import Running
    >>> instance = Instance([3, 3, 3, 9], [3, 3, 3, 1], memory=12, labels=["a", "b", "c", "d"])
    >>> print(explain_infeasibility(instance, horizon=5))
    requests a, b and c cannot all complete in time: whatever their starts, they hold more than the
    memory of 12 tokens at one of the steps 3, 5; no smaller set of requests conflicts
    >>> explain_infeasibility(instance, horizon=9) is None
    True
    >>> print(explain_infeasibility(instance, 9, running=Running(tokens=[2, 1], remaining=[9, 4])))
    request d cannot complete in time beside running request 0: whatever its start, they hold more
    than the memory of 12 tokens at one of the steps 1..9; no smaller set of requests conflicts
    """
    Options(time_limit)
    if not isinstance(problem, Instance):
        if horizon is not None or now or running is not NOTHING_RUNNING:
            raise ModelError("horizon, now and running go with an Instance; leave them out")
        return _rows_in_conflict(as_linear(problem), _Clock(time_limit))
    if horizon is None and problem.deadlines is None:
        return None
    windows = Windows.beside(problem, horizon, now, running)
    late = np.flatnonzero(windows.latest < windows.instance.arrivals).tolist()
    if late:
        return windows.describe(late[:1], (), irreducible=True, tight=True)
    if _some_policy_can(windows):
        return None
    clock, known = _Clock(time_limit), True
    found = windows.clashing_pair()
    if found is None:
        if (conflict := _conflicting(windows, clock)) is None:
            return None
        # Those of most memory-time come first, so that the filter tries to do with them alone.
        heavy = conflict[np.argsort(-windows.instance.areas[conflict], kind="stable")].tolist()
        found, known = reduce(heavy, lambda part: _can_complete(windows, part, clock))
    steps, tight = _needed_steps(windows, np.sort(found), clock)
    return windows.describe(found, steps, irreducible=known, tight=tight)


def _some_policy_can(windows: Windows) -> bool:
    """Return whether serving the most urgent first, or the smallest, is in time."""
    require_steps(windows.instance.outputs)
    for key in (windows.due, windows.latest, windows.instance.areas):
        starts = admit_by_priority(windows.instance, np.argsort(key, kind="stable"))
        if not Schedule(windows.instance, starts).check():
            return True
    return False


def _conflicting(windows: Windows, clock: _Clock) -> IntArray | None:
    """Return requests that conflict: all, or if that is hard to tell, some due close together."""
    everyone = np.arange(len(windows.instance))
    if (overload := windows.overload(everyone)) is not None:
        return overload
    if (verdict := _can_complete(windows, everyone, clock)) is not None:
        return None if verdict else everyone
    by_due = np.argsort(windows.due, kind="stable")
    for size in _SIZES:
        for begin in range(0, len(by_due), size // 2):
            if _can_complete(windows, part := by_due[begin : begin + size], clock) is False:
                return part
    raise SolverError(
        f"{windows.instance.name}: whether all requests can complete in time is not decided after "
        f"{clock.seconds:.1f} s; allow more time"
    )


def _can_complete(windows: Windows, requests: npt.ArrayLike, clock: _Clock) -> bool | None:
    """Return whether requests can all complete in time; None if it is not known."""
    members = np.sort(np.asarray(requests, dtype=np.int64))
    if not len(members):
        return True
    if clock.left <= 0:
        return None
    if windows.overload(members) is not None:
        return False
    if len(members) > _EVENTS:
        return None
    program = EventProgram(windows.instance.take(members), "makespan")
    stop = threading.Event()

    def look(progress: Progress) -> None:
        """Any answer is enough."""
        if progress.values is not None:
            stop.set()

    return clock.ask(
        lambda options: solve_events(program, options=options, on_progress=look, stop=stop)
    )


def _needed_steps(
    windows: Windows, requests: IntArray, clock: _Clock
) -> tuple[tuple[range, ...], bool]:
    """Find few steps at which the memory must be limited, and whether none can be spared."""
    begin, end = int(windows.instance.arrivals[requests].min()), int(windows.due[requests].max())
    program = HindsightProgram(windows.instance.take(requests), horizon=end, now=begin)
    if program.nonzeros > _NONZEROS:
        return (range(begin + 1, end + 1),), False
    model = program.to_linear()
    once, memory = model.rows_of("once").tolist(), model.rows_of("memory")[::-1]
    needed, known = reduce(memory.tolist(), lambda rest: clock.some_point(model, once + rest))
    steps = np.sort(needed) - int(memory[-1]) + begin + 1
    runs = np.split(steps, np.flatnonzero(np.diff(steps) > 1) + 1)
    return tuple(range(int(run[0]), int(run[-1]) + 1) for run in runs), known


def reduce(
    conflict: Sequence[int], feasible: Callable[[list[int]], bool | None]
) -> tuple[list[int], bool]:
    """Keep members without any one of which a conflict vanishes; False if that is not known."""
    needed: list[int] = []
    rest, known = list(conflict), True
    while rest:
        # Beside those that are needed the first `high` conflict, and the first `low` do not.
        low, high, sure = -1, len(rest), True
        while high - low > 1:
            verdict = feasible(needed + rest[: (middle := (low + high) // 2)])
            if verdict is False:
                high = middle
            else:
                low, sure = (middle, True) if verdict else (high - 1, False)
        needed, rest, known = needed + rest[:high][-1:], rest[:high][:-1], known and sure
    return needed, known


def _rows_in_conflict(model: LinearModel, clock: _Clock) -> RowConflict | None:
    """Find rows that conflict, preferably of small families and of the user, which come last."""
    families = sorted((model.rows_of(each.name) for each in reversed(model.rows)), key=len)
    rows = [row for family in families for row in family.tolist()]
    if (verdict := clock.some_point(model, rows)) is None:
        raise SolverError(
            f"{model.name}: whether a point satisfies all rows is not decided after "
            f"{clock.seconds:.1f} s; allow more time"
        )
    if verdict:
        return None
    needed, known = reduce(rows, lambda part: clock.some_point(model, part))
    names = tuple(model.row_name(row) for row in rows if row in needed)
    return RowConflict(names, known, clock.solver)


class _Clock:
    """How much time is left, and what solvers find within it."""

    solver = ""  # the last one

    def __init__(self, time_limit: float | None) -> None:
        highs.load()
        cpsat.load()  # which takes seconds on a busy machine
        self._began = time.perf_counter()
        self._limit = math.inf if time_limit is None else time_limit

    @property
    def seconds(self) -> float:
        """Wall time since the search began."""
        return time.perf_counter() - self._began

    @property
    def left(self) -> float:
        """Seconds of the time limit that are left."""
        return self._limit - self.seconds

    def ask(self, solve: Callable[[Options], Solution]) -> bool | None:
        """Return whether there is an answer; no question takes more than a quarter of the time."""
        solution = solve(Options(max(self.left / 4, _LEAST)))
        self.solver = solution.solver
        if solution.has_answer:
            return True
        if solution.status is Stopped.INTERRUPTED:  # Ctrl-C ends the whole search, not one solve
            self._limit = 0
        return False if solution.status in INFEASIBLE else None

    def some_point(self, model: LinearModel, rows: list[int]) -> bool | None:
        """Return whether a point satisfies some of the rows; None if it is not known."""
        if self.left <= 0:
            return None
        try:
            cpsat.refuse(model)
            solver = "cp-sat"
        except SolverError:
            solver = "highs"
        kept = {name: getattr(model, name)[rows] for name in ("matrix", "row_lower", "row_upper")}
        part = replace(model.with_objective(0), rows=(), **kept)
        return self.ask(lambda options: solve_linear(part, solver, options))
