"""Programs of your own: solved, and explained where no schedule exists."""

from __future__ import annotations

import math
import sys
import threading
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from optsched._internal.aside import stopwatch
from optsched._internal.numbers import round_down
from optsched._version import __version__
from optsched.admission import admit_by_priority, require_steps
from optsched.bounds.bound import bound
from optsched.errors import InfeasibleError, ModelError, OptschedError, SolverError, require_known
from optsched.models.balance import BalanceProgram
from optsched.models.batch import BatchSelection
from optsched.models.fluid.wait import WaitThresholds, WholeThresholds
from optsched.models.hindsight import EventProgram, HindsightProgram, LatencyRelaxation
from optsched.models.linear import LinearModel
from optsched.models.program import (
    NOTHING_RUNNING,
    RowConflict,
    Running,
    Solution,
    Stopped,
    Windows,
)
from optsched.optimum import stages
from optsched.optimum.plan import first_of, go_through
from optsched.optimum.state import TOO_LARGE, SolveParams, SolveState
from optsched.problem.instance import Instance
from optsched.problem.schedule import Schedule
from optsched.solvers import selection
from optsched.solvers.backends import base, cpsat, pyomo
from optsched.solvers.backends.base import Options, Progress
from optsched.solvers.backends.driver import solve_events, solve_linear
from optsched.solvers.backends.words import INFEASIBLE
from optsched.solvers.balance import assign_balanced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.models.program import Conflict, Program


WATCHED = ("on_progress", "stop")
_BACK_END = ("threads", "seed", "memory_limit", "gap_limit", "start", "in_child", *WATCHED)

#: Of a batch: each size has a program of its own, whose progress is not that of the whole.
_OF_SIZES = ("threads", "seed", "memory_limit", "gap_limit", "in_child", "stop")

_LEAST = 1e-3  # seconds that a solver is left with


class Kind(NamedTuple):
    """A kind of problem: what to call it, which parameters it uses, and what solves it."""

    title: str
    used: tuple[str, ...]
    solve: Callable[[Any, str, float | None, SolveParams], Solution]


def kind_of(problem: object) -> Kind:
    """Return the kind of a problem, by what it is or by the methods that it has."""
    for known, kind in _KINDS.items():
        if isinstance(problem, known):
            return kind
    if all(hasattr(problem, method) for method in ("to_linear", "read", "write_point")):
        return _PROGRAM
    if "pyomo" in sys.modules and hasattr(problem, "component_data_objects"):
        return _PYOMO
    raise OptschedError(
        f"cannot solve a {type(problem).__name__}; give an Instance, a program of optsched.models, "
        "a LinearModel or a Pyomo model"
    )


def as_linear(problem: object) -> LinearModel:
    """Return the rows and columns of a problem."""
    kind = kind_of(problem)
    if isinstance(problem, LinearModel):
        return problem
    if kind is _PYOMO:
        return pyomo.compile_pyomo(problem)[0]
    if not hasattr(problem, "to_linear"):
        raise OptschedError(f"{kind.title} has no rows; give a program with to_linear")
    model: LinearModel = problem.to_linear()
    return model


def _watched(params: SolveParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in (*WATCHED, "in_child")}


def _solve_model(
    model: LinearModel, method: str, time_limit: float | None, params: SolveParams
) -> Solution:
    options = params.options(time_limit)
    program = model.program
    if method == "auto" and isinstance(program, HindsightProgram) and _limited(model, program):
        return _look_and_solve(model, program, options, params)
    solver = "highs" if method == "auto" else method
    return solve_linear(model, solver, options, start=params.start, **_watched(params))


def _limited(model: LinearModel, program: HindsightProgram) -> bool:
    """Return whether there are rows, deadlines or a horizon to leave out, and an instance then."""
    instance = program.instance
    beside = len(program.running.tokens) or program.now > instance.arrivals[0]
    if beside or program.memory_prices is not None or not program.whole:
        return False
    due = instance.deadlines is not None and not program.soft
    return program.has_more(model) or due or not program.horizon_is_safe


def _look_and_solve(
    model: LinearModel, program: HindsightProgram, options: Options, params: SolveParams
) -> Solution:
    """Solve the instance of a program, first without rows that were added; its bound holds."""
    began, start = stopwatch(), base.check_start(model, params.start)
    state = SolveState(
        program.instance,
        program.objective,
        options=options,
        params=replace(
            params,
            start=None if start is None else program.read(start),
            horizon=None if program.horizon_is_safe else program.horizon,
            lateness=program.lateness,
            penalty=program.penalty,
        ),
        workers=program.workers,
        rows=model if program.has_more(model) else None,
    )
    if start is not None:
        state.offer(state.params.start)
    solver, why = f"optsched {__version__}", Stopped.TIME_LIMIT
    try:
        go_through(state)
    except InfeasibleError as error:
        answer = base.Answer(Stopped.INFEASIBLE, solver, str(error))
        return base.conclude(model, answer, stopwatch() - began)
    except (OptschedError, MemoryError):  # what comes next may do without
        pass
    known = start if state.best is None else program.write_point(state.best)
    left, seconds = options.time_limit, stopwatch() - began
    if state.proven or state.near:
        why = Stopped.OPTIMAL if state.proven else Stopped.GAP_LIMIT
    elif state.stop.is_set():
        why = Stopped.INTERRUPTED
    elif left is None or left - seconds > _LEAST:
        found = solve_linear(
            stages.without_dear_starts(state, model),
            options=replace(options, time_limit=None if left is None else left - seconds),
            start=known,
            **_watched(params),
        )
        if found.status in INFEASIBLE or Fraction(found.bound or 0.0) >= state.floor:
            return replace(found, seconds=stopwatch() - began)
        known, solver, why = found.values, f"{solver}, {found.solver}", Stopped(found.status)
    answer = base.Answer(why, solver, "", known, state.floor)
    found = base.conclude(model, answer, stopwatch() - began)
    return replace(found, status=Stopped.OPTIMAL) if found.proven_optimal else found


def _solve_program(
    program: Program, method: str, time_limit: float | None, params: SolveParams
) -> Solution:
    if params.start is not None:
        params = replace(params, start=program.write_point(params.start))
    found = _solve_model(program.to_linear(), method, time_limit, params)
    if isinstance(program, LatencyRelaxation):
        found = program.judged(found)
    return found.with_answer(program.read)


def _solve_hindsight(
    program: HindsightProgram, method: str, time_limit: float | None, params: SolveParams
) -> Solution:
    """Solve from the start that there is, or from what policies do: an answer in any case."""
    began = stopwatch()
    params.options(time_limit)
    try:
        model = program.to_linear()
    except (ModelError, MemoryError) as error:
        known = first_of(program) if method == "auto" else None
        if known is None:
            raise
        lowest, objective = 0.0, program.objective
        if objective != "late-requests":
            lowest = bound(program.instance, "auto", objective, workers=program.workers).value
        return Solution(
            TOO_LARGE,
            known.policy,
            stopwatch() - began,
            objective=program.cost(known),
            bound=lowest,
            raw_status=str(error) or "out of memory",
            model=program.objective,
            answer=known,
        )
    start = program.start if params.start is None else params.start
    if start is None and method == "auto" and not _limited(model, program):
        start = first_of(program)
    params = replace(params, start=None if start is None else program.write_point(start))
    left = None if time_limit is None else max(time_limit - (stopwatch() - began), _LEAST)
    found = program.judged(_solve_model(model, method, left, params)).with_answer(program.read)
    if found.status is Stopped.OPTIMAL and not program.horizon_is_safe:
        return replace(found, status=f"optimal within horizon {program.horizon}")
    return found


def _solve_thresholds(
    program: WaitThresholds, method: str, time_limit: float | None, params: SolveParams
) -> Solution:
    """Solve a program of WAIT; for CP-SAT in whole numbers, whose slack counts units."""
    if method != "cp-sat":
        return _solve_program(program, method, time_limit, params)
    whole = WholeThresholds(program)
    found = _solve_program(whole, method, time_limit, params)
    if program.objective == "memory":
        return found
    values = None if found.values is None else program.write_point(found.answer)
    bound = None if found.bound is None else -round_down(-Fraction(found.bound) * whole.unit)
    distance = None if found.distance is None else found.distance * whole.unit
    objective = None if values is None else float(values[-1])
    return replace(
        found, values=values, objective=objective, bound=bound, distance=distance, step=None
    )


def _solve_pyomo(
    native: Any, method: str, time_limit: float | None, params: SolveParams
) -> Solution:
    """Solve a Pyomo model and put the answer into its variables."""
    model, variables = pyomo.compile_pyomo(native)

    def write(values: FloatArray) -> Any:
        for variable, value in zip(variables, values.tolist(), strict=True):
            variable.set_value(value, skip_validation=True)
        return native

    return _solve_model(model, method, time_limit, params).with_answer(write)


def _solve_events(
    program: EventProgram, method: str, time_limit: float | None, params: SolveParams
) -> Solution:
    options, start = params.options(time_limit), params.start
    if start is None and method == "auto" and (first := first_of(program)) is not None:
        start = first if (first.starts <= program.latest).all() else None
    found = solve_events(
        program,
        "cp-sat" if method == "auto" else method,
        options,
        start=None if start is None else program.write_point(start),
        bound=params.bound,
        **_watched(params),
    )
    return found.with_answer(program.read)


def _solve_balance(
    program: BalanceProgram, method: str, time_limit: float | None, params: SolveParams
) -> Solution:
    watched = {name: getattr(params, name) for name in WATCHED}
    return assign_balanced(program, method, params.options(time_limit), **watched)


def _solve_batch(
    program: BatchSelection, method: str, time_limit: float | None, params: SolveParams
) -> Solution:
    began = stopwatch()
    method = selection.suited(program, method)
    used = selection.OWN_METHODS.get(method, _OF_SIZES)
    params.check_used((*used, "on_progress"), f"the method {method!r}")  # a bar of a notebook
    if method not in selection.BATCH_METHODS and pyomo.capabilities(method) is None:
        require_known("method", method, selection.BATCH_METHODS, SolverError)
    if program.size is not None and method not in selection.OWN_METHODS:
        found = _solve_model(program.to_linear(), method, time_limit, params)

        def read(values: FloatArray) -> selection.Batch:
            members = program.read(values)
            return selection.Batch(members, program.ratio(members), method, selection=program)

        return found.with_answer(read)
    options = params.options(time_limit)
    try:
        batch = (
            selection.select_here(program, method, params.epsilon, params.seed)
            if method in selection.OWN_METHODS
            else selection.select_by_programs(
                program,
                method,
                lambda model, left: _solve_model(model, method, left, params),
                options.time_limit,
            )
        )
    except InfeasibleError as error:
        return Solution(
            Stopped.INFEASIBLE, method, stopwatch() - began, raw_status=str(error), model="batch"
        )
    # Of one size the objective is the sum of outputs, as of its linear program.
    unit = 1 if program.size is None else program.size**2
    floor = None if batch.bound is None else batch.bound * unit
    return Solution(
        Stopped.OPTIMAL if batch.bound == batch.ratio else Stopped.UNKNOWN,
        batch.method,
        stopwatch() - began,
        objective=float(batch.ratio * unit),
        bound=None if floor is None else round_down(floor),
        distance=None if floor is None else batch.ratio * unit - floor,
        model="batch",
        answer=batch,
    )


_PROGRAM = Kind("a program", _BACK_END, _solve_program)
_PYOMO = Kind("a Pyomo model", tuple(n for n in _BACK_END if n != "start"), _solve_pyomo)
_KINDS: dict[type, Kind] = {
    LatencyRelaxation: _PROGRAM,
    HindsightProgram: Kind("a program", _BACK_END, _solve_hindsight),
    WaitThresholds: Kind("a WaitThresholds", _BACK_END, _solve_thresholds),
    LinearModel: Kind("a LinearModel", _BACK_END, _solve_model),
    EventProgram: Kind("an EventProgram", (*_BACK_END, "bound"), _solve_events),
    BalanceProgram: Kind("a BalanceProgram", ("threads", "seed", *WATCHED), _solve_balance),
    BatchSelection: Kind("a BatchSelection", (*_OF_SIZES, "epsilon"), _solve_batch),
}


_EVENTS = 100  # requests; event models grow with the square of their number
_SIZES = (4, 16, 64)  # of groups of requests, tried where all are too many
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
    >>> instance = Instance([3, 3, 3, 9], [3, 3, 3, 1], memory=12, labels=["a", "b", "c", "d"])
    >>> print(explain_infeasibility(instance, horizon=5))
    requests a, b and c cannot all complete in time: whatever their starts, they hold more than the
    memory of 12 tokens at one of the steps 3, 5; no smaller set of requests conflicts
    >>> explain_infeasibility(instance, horizon=9) is None
    True
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
        """Stop at the first answer."""
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
    if (verdict := clock.some_point(model, rows, share=0.75)) is None:
        raise SolverError(
            f"{model.name}: whether a point satisfies all rows is not decided after "
            f"{clock.seconds:.1f} s; allow more time"
        )
    if verdict:
        return None
    needed, known = reduce(rows, lambda part: clock.some_point(model, part))
    names = tuple(model.row_name(row) for row in rows if row in needed)
    return RowConflict(names, known, " and ".join(sorted(clock.solvers)))


class _Clock:
    """How much time is left, and what solvers find within it."""

    def __init__(self, time_limit: float | None) -> None:
        self.solvers: set[str] = set()  # that were asked
        self._began = stopwatch()
        self._limit = math.inf if time_limit is None else time_limit

    @property
    def seconds(self) -> float:
        """Wall time since the search began."""
        return stopwatch() - self._began

    @property
    def left(self) -> float:
        """Seconds of the time limit that are left."""
        return self._limit - self.seconds

    def ask(self, solve: Callable[[Options], Solution], share: float = 0.25) -> bool | None:
        """Return whether there is an answer; a question takes at most a share of the time left."""
        solution = solve(Options(max(share * self.left, _LEAST)))
        self.solvers.add(solution.solver)
        if solution.has_answer:
            return True
        if solution.status is Stopped.INTERRUPTED:  # Ctrl-C ends the whole search, not one solve
            self._limit = 0
        return False if solution.status in INFEASIBLE else None

    def some_point(self, model: LinearModel, rows: list[int], share: float = 0.25) -> bool | None:
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
        relaxed = part.relax()  # tells at once where fractions conflict already
        ask_it = part.integer.any()
        if ask_it and self.ask(lambda given: solve_linear(relaxed, "highs", given)) is False:
            return False
        return self.ask(lambda options: solve_linear(part, solver, options), share)
