"""Irreducible conflicts: which requests, at which steps, make hard deadlines impossible."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, overload

import numpy as np

from optsched._internal.room import require_room
from optsched.admission import admit_by_priority, require_steps
from optsched.errors import ModelError, SolverError
from optsched.instance import Instance
from optsched.models.conflict import RowConflict, Windows
from optsched.models.events import EventProgram
from optsched.models.running import NOTHING_RUNNING, Running
from optsched.models.solution import Stopped
from optsched.optimum.programs import as_linear
from optsched.schedule import Schedule
from optsched.solvers.backends import cpsat, highs
from optsched.solvers.backends.base import INFEASIBLE, Options
from optsched.solvers.backends.driver import solve_events, solve_linear

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched._internal.arrays import IntArray
    from optsched.models.conflict import Conflict
    from optsched.models.linear.model import LinearModel
    from optsched.models.program import Program
    from optsched.models.solution import Solution
    from optsched.solvers.backends.base import Progress

Member = TypeVar("Member")

_NO_ROWS = np.zeros(0, dtype=np.int64)
_EVENTS = 100  # requests; event models grow with the square of their number
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
    if len(narrow := windows.too_narrow):
        no_steps = np.zeros(0, dtype=np.int64)
        return windows.describe(narrow[:1].tolist(), no_steps)
    contested = windows.contested()
    if not len(contested) or _policies_can(windows, contested):
        return None
    search = _Search(windows, time_limit)
    if (found := _conflict(windows, contested, search)) is None:
        return None
    conflict, irreducible = found
    steps, all_needed = search.needed_steps(conflict)
    return windows.describe(conflict, steps, irreducible=irreducible, tight=all_needed)


def _policies_can(windows: Windows, requests: IntArray) -> bool:
    """Return whether serving the most urgent first, or the smallest, is in time."""
    due = windows.due[requests]
    part = windows.instance.take(requests).replace(deadlines=None)
    require_steps(part.outputs)
    for key in (due, windows.latest[requests], part.areas):
        starts = admit_by_priority(part, np.argsort(key, kind="stable").astype(np.int64))
        schedule = Schedule(part, starts)
        if not schedule.check() and (schedule.completions <= due).all():
            return True
    return False


def _conflict(
    windows: Windows, contested: IntArray, search: _Search
) -> tuple[list[int], bool] | None:
    """Find a conflict, and whether it is known to be irreducible."""
    if (pair := windows.clashing_pair(contested)) is not None:
        return list(pair), True
    # Those of most memory-time come last, so that the filter tries to do without the others first.
    ascending = contested[np.argsort(windows.instance.areas[contested], kind="stable")].tolist()
    overload = windows.overload(contested)
    found = _neighbours_that_conflict(windows, contested, search) if overload is None else overload
    if found is None:
        return None
    return reduce([request for request in ascending if request in found], search.can_complete)


def _neighbours_that_conflict(
    windows: Windows, contested: IntArray, search: _Search
) -> IntArray | None:
    """Return all if they conflict; if that is hard to tell, some that are due one after another."""
    verdict = search.can_complete(contested.tolist())
    if verdict is not None:
        return None if verdict else contested
    by_due = contested[np.argsort(windows.due[contested], kind="stable")]
    size = 4
    while size < len(by_due):
        for begin in range(0, len(by_due) - size // 2, size // 2):
            part = by_due[begin : begin + size]
            if search.can_complete(part.tolist()) is False:
                return part
        size *= 2
    raise SolverError(
        f"{windows.instance.name}: whether all requests can complete in time is not decided after "
        f"{search.seconds:.1f} s; allow more time"
    )


def reduce(
    conflict: Sequence[Member], feasible: Callable[[list[Member]], bool | None]
) -> tuple[list[Member], bool]:
    """Take members out of a conflict, in chunks, until it vanishes without any one of them."""
    needed: list[Member] = []
    rest = list(conflict)
    known, size = True, max(1, len(rest) // 2)
    while rest:
        verdict = feasible(needed + rest[size:])
        if verdict is not False and size > 1:
            size //= 2
            continue
        if verdict is False:
            rest = rest[size:]
        else:
            needed.append(rest.pop(0))
            known = known and verdict is True
        size = max(1, min(2 * size, len(rest) // 2))
    return needed, known


def _rows_in_conflict(model: LinearModel, clock: _Clock) -> RowConflict | None:
    """Find rows that conflict: which families, then which rows, of small families first."""

    def feasible(parts: list[IntArray]) -> bool | None:
        return clock.some_point(model, np.concatenate([_NO_ROWS, *parts]))

    families = [model.rows_of(family.name) for family in model.rows]
    if (verdict := feasible(families)) is None:
        raise SolverError(
            f"{model.name}: whether a point satisfies all rows is not decided after "
            f"{clock.seconds:.1f} s; allow more time"
        )
    if verdict:
        return None
    needed, known = reduce(families, feasible)
    needed.reverse()
    needed.sort(key=len)  # rows of the user come first
    for at, family in enumerate(needed):
        others = needed[:at] + needed[at + 1 :]
        singles, sure = reduce(list(family[:, None]), lambda rows: feasible([*others, *rows]))
        needed[at] = np.concatenate([_NO_ROWS, *singles])
        known = known and sure
    names = [model.row_name(row) for family in needed for row in family.tolist()]
    return RowConflict(tuple(names), known, clock.solver)


class _Clock:
    """How much time is left, and what solvers find within it."""

    solver = ""  # the last one

    def __init__(self, time_limit: float | None) -> None:
        highs.load()
        cpsat.load()  # which takes seconds on a busy machine
        self._began = time.perf_counter()
        self._end = None if time_limit is None else self._began + time_limit
        self._interrupted = False

    @property
    def seconds(self) -> float:
        """Wall time since the search began."""
        return time.perf_counter() - self._began

    @property
    def share(self) -> float | None:
        """A quarter of the seconds left, as a hard question must not take all; None: no limit."""
        if self._interrupted:
            return 0.0
        return None if self._end is None else max(0.0, self._end - time.perf_counter()) / 4

    def verdict(self, solution: Solution) -> bool | None:
        """Return whether there is an answer; Ctrl-C ends the whole search, not one solve."""
        if solution.has_answer:
            return True
        self._interrupted = self._interrupted or solution.status is Stopped.INTERRUPTED
        return False if solution.status in INFEASIBLE else None

    def some_point(self, model: LinearModel, rows: IntArray) -> bool | None:
        """Return whether a point satisfies some of the rows; None if it is not known."""
        if (limit := self.share) == 0:
            return None
        try:
            cpsat.refuse(model)
            solver = "cp-sat"
        except SolverError:
            solver = "highs"
        chosen = np.sort(rows)
        kept = {name: getattr(model, name)[chosen] for name in ("matrix", "row_lower", "row_upper")}
        part = replace(model.with_objective(0), rows=(), **kept)
        solution = solve_linear(part, solver, Options(limit))
        self.solver = solution.solver
        return self.verdict(solution)


class _Search(_Clock):
    """Feasibility of sets of requests, with what is known already kept."""

    def __init__(self, windows: Windows, time_limit: float | None) -> None:
        super().__init__(time_limit)
        self._windows = windows
        self._feasible: list[set[int]] = []

    def can_complete(self, requests: list[int]) -> bool | None:
        """Return whether requests can all complete in time; None if it is not known."""
        windows, chosen = self._windows, set(requests)
        if not chosen or any(chosen <= known for known in self._feasible):
            return True
        members = np.sort(np.array(requests, dtype=np.int64))
        if windows.overload(members) is not None:
            return False
        if (limit := self.share) == 0:
            return None
        program = windows.program(members)
        if len(members) <= _EVENTS:  # several times as fast as the other one
            events = EventProgram(program.instance, "makespan")
            verdict = self.verdict(_first_answer(events, Options(limit)))
        elif program.nonzeros <= _NONZEROS:
            model = program.to_linear()
            verdict = self.some_point(model, np.arange(len(model.row_lower)))
        else:
            return None
        if verdict:
            self._feasible.append(chosen)
        return verdict

    def needed_steps(self, conflict: list[int]) -> tuple[IntArray, bool]:
        """Find few steps at which the memory must be limited, and whether none can be spared."""
        windows, members = self._windows, np.sort(np.array(conflict, dtype=np.int64))
        begins, ends = windows.earliest[members], windows.due[members]
        span = ends.max() - begins.min()
        advice = "use longer steps"
        require_room(span, 8 * len(members) + 64, "steps of a conflict", advice, ModelError)
        span = np.arange(begins.min(), ends.max() + 1)
        inside = ((begins < span[:, None]) & (span[:, None] <= ends)).any(axis=1)
        steps = span[inside]
        program = windows.program(members)
        if program.nonzeros > _NONZEROS:
            return steps, False
        model = program.to_linear()
        once, row_of_step_0 = model.rows_of("once"), model.rows_of("memory")[0] - program.now - 1

        def feasible(rest: list[int]) -> bool | None:
            return self.some_point(model, np.concatenate([once, rest]).astype(np.int64))

        needed, known = reduce((row_of_step_0 + steps).tolist(), feasible)
        return np.sort(np.array(needed, dtype=np.int64)) - row_of_step_0, known


def _first_answer(program: EventProgram, options: Options) -> Solution:
    """Solve until there is any answer."""
    stop = threading.Event()

    def look(progress: Progress) -> None:
        if progress.values is not None:
            stop.set()

    return solve_events(program, options=options, on_progress=look, stop=stop)
