"""`solve`: stages around one interval."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, overload

from optsched._internal.arguments import checked, refuse_turns
from optsched._internal.aside import watched
from optsched.errors import OptschedError, SolverError, require_known
from optsched.optimum.plan import find_first, go_through
from optsched.optimum.programs import WATCHED, kind_of
from optsched.optimum.state import Optimum, SolveParams, SolveState
from optsched.problem.costs import SCHEDULE_OBJECTIVES, check_due
from optsched.problem.instance import Instance
from optsched.problem.schedule import Schedule
from optsched.problem.workers import Workers, as_workers

if TYPE_CHECKING:
    from optsched.bounds.bound import SomeWorkers
    from optsched.models.program import Solution
    from optsched.problem.costs import ScheduleObjective


METHODS = ("auto", "highs", "cp-sat", "search", "exact")
PLAIN = SolveParams()

_USED_BY_SEVERAL = (
    *("threads", "seed", "work", "memory_limit", "start", "lateness", "penalty"),
    *WATCHED,
)
_USED = (*_USED_BY_SEVERAL, "horizon")


@overload
def solve(
    problem: Instance,
    *,
    time_limit: float | None = ...,
    objective: ScheduleObjective = ...,
    method: str = ...,
    params: SolveParams = ...,
    workers: SomeWorkers | None = ...,
) -> Optimum: ...
@overload
def solve(
    problem: object,
    *,
    time_limit: float | None = ...,
    objective: ScheduleObjective = ...,
    method: str = ...,
    params: SolveParams = ...,
) -> Solution: ...
@checked(SolverError)
def solve(
    problem: object,
    *,
    time_limit: float | None = 60.0,
    objective: ScheduleObjective = "total-latency",
    method: str = "auto",
    params: SolveParams = PLAIN,
    workers: SomeWorkers | None = None,
) -> Solution:
    """Find the best answer to a problem and prove how good it is.

    Whatever happens - time out, Ctrl-C, a solver that crashes - the best answer and the best
    proven bound so far are returned.

    Parameters
    ----------
    problem
        An `Instance`, deadlines being hard unless `params.lateness` says otherwise; a program of
        `optsched.models`, or whatever has its methods `to_linear`, `read` and `write_point`; a
        `LinearModel`; or a Pyomo model, whose variables take the values of the answer.
    time_limit
        Seconds for everything but the compilation of kernels. None for no limit: solvers go on to
        their proof, and searches, which have no end of their own, do a minute's work. Where there
        is one, how far they get depends on the machine; limit `params.work` instead.
    objective
        Of an instance: "total-latency", "weighted-latency", "makespan" or "late-requests": as few
        of them as possible, by weights where there are any. Programs have their own.
    method
        "auto": what suits the problem. Instances: "highs", "cp-sat", "exact" (branch and bound) or
        "search" (any size). Programs and models: "highs", "cp-sat" or a solver of Pyomo's, such as
        "gurobi"; `BalanceProgram` also "swap" and "greedy"; `BatchSelection` "dp", "scaled-dp",
        "swap" and "quantile".
    params
        Everything else: threads, seed, start, limits, progress.
    workers
        Of an instance: independent workers, as a number, their memories, or `Workers`.

    Returns
    -------
    Solution
        An `Optimum` for an instance. `answer` is in the terms of the problem: a `Schedule`, an
        array, an `Assignment`, a `Batch`, a point, or the Pyomo model.

    Raises
    ------
    InfeasibleError, OptschedError
        If it is proven that no schedule meets deadlines or horizon; if an argument is invalid, a
        solver is missing or cannot represent the model, or no schedule was found in time.

    Examples
    --------
    >>> from optsched import Instance, solve
    >>> instance = Instance([63] + 21 * [1], [1] + 21 * [2], memory=64)
    >>> result = solve(instance)
    >>> result.objective, result.proven_optimal
    (45.0, True)
    """
    if isinstance(problem, Instance):
        refuse_turns(problem, "solve")
        with watched(params.on_progress) as tell:
            params = replace(params, on_progress=tell)
            return _solve_instance(problem, objective, method, time_limit, params, workers)
    if workers is not None:
        raise OptschedError(f"workers are {workers}, but only an Instance is placed on workers")
    kind = kind_of(problem)
    params.check_used(kind.used, kind.title)
    if objective != "total-latency":
        raise OptschedError(
            f"objective is {objective!r}, but {kind.title} has its own; leave it out"
        )
    with watched(params.on_progress) as tell:
        return kind.solve(problem, method, time_limit, replace(params, on_progress=tell))


def _solve_instance(
    instance: Instance,
    objective: ScheduleObjective,
    method: str,
    time_limit: float | None,
    params: SolveParams,
    workers: SomeWorkers | None,
) -> Optimum:
    """Go through the stages that suit the instance."""
    given = as_workers(1 if workers is None else workers, instance)
    alone = len(given) == 1
    if alone:
        instance, given = instance.replace(memory=given.total), Workers([given.total])
    used, whose = (_USED, "an Instance") if alone else (_USED_BY_SEVERAL, "several workers")
    params.check_used(used, whose)
    require_known("objective", objective, SCHEDULE_OBJECTIVES, OptschedError)
    require_known("method", method, METHODS, OptschedError)
    params.check_method(method)
    options = params.options(time_limit)
    state = SolveState(instance, objective, method, options, params, given)
    (_check_alone if alone else _check_several)(state)
    check_due(instance, objective, params.lateness, OptschedError)
    if params.lateness != "forbidden" and instance.deadlines is None:
        raise OptschedError(
            f"lateness is {params.lateness!r}, but the requests have no deadlines; add them, or "
            "leave lateness and penalty out"
        )
    if params.start is not None:
        _begin_from(state, params.start)
    go_through(state)
    return state.result()


def _check_alone(state: SolveState) -> None:
    """Refuse what no stage for one worker does."""
    method, objective = state.method, state.objective
    if method == "exact" and not state.plain:
        raise OptschedError(
            "exact minimises latency without deadlines or a horizon; use highs or cp-sat"
        )
    if method == "exact" and objective != "total-latency":
        raise OptschedError(f"exact minimises total latency, not {objective}; use highs or cp-sat")


def _check_several(state: SolveState) -> None:
    """Refuse what no stage for several workers does."""
    latency = state.objective == "total-latency"
    if state.method == "exact" and not (state.workers.equal and latency):
        raise OptschedError(
            "exact minimises total latency on equal workers; use highs, cp-sat or search"
        )


def _begin_from(state: SolveState, start: object) -> None:
    if not isinstance(start, Schedule) or (start.instance, start.workers) != (
        state.instance,
        state.workers,
    ):
        raise OptschedError(
            f"start is {start!r}, but must be a Schedule of the instance that is solved, on the "
            "same workers"
        )
    state.offer(start)
    if state.best is None:
        why = next(map(str, start.check()), "it completes after the horizon")
        raise OptschedError(f"the start is infeasible: {why}; correct it or solve without a start")


def proven_horizon(
    instance: Instance,
    objective: ScheduleObjective = "total-latency",
    workers: Workers | None = None,
) -> int:
    """Return a step within which some optimal schedule completes, from a schedule and a bound."""
    state = SolveState(instance, objective, workers=workers or Workers([instance.memory]))
    find_first(state)
    return int((state.latest_starts() + instance.outputs).max())
