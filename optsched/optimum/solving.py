"""The best schedule in hindsight: the best that was found, and a bound that was proven."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, overload

from optsched.errors import OptschedError, nearest
from optsched.instance import Instance
from optsched.optimum.params import SolveParams
from optsched.optimum.programs import kind_of
from optsched.optimum.stages import Task
from optsched.solvers.bounds.bound import OBJECTIVES

if TYPE_CHECKING:
    from optsched.models.objectives import ScheduleObjective
    from optsched.optimum.result import Optimum
    from optsched.solution import Solution

METHODS = ("auto", "highs", "cp-sat", "search", "exact")
PLAIN = SolveParams()

_USED = (
    "threads",
    "seed",
    "memory_limit",
    "horizon",
    "lateness",
    "penalty",
    "on_progress",
)

_EXACT_MOST = 24  # requests up to which branch and bound is worth the time


@overload
def solve(
    problem: Instance,
    *,
    time_limit: float | None = ...,
    objective: ScheduleObjective = ...,
    method: str = ...,
    params: SolveParams = ...,
) -> Optimum: ...
@overload
def solve(
    problem: Any,
    *,
    time_limit: float | None = ...,
    objective: ScheduleObjective = ...,
    method: str = ...,
    params: SolveParams = ...,
) -> Solution: ...
def solve(
    problem: Any,
    *,
    time_limit: float | None = 60.0,
    objective: ScheduleObjective = "total-latency",
    method: str = "auto",
    params: SolveParams = PLAIN,
) -> Solution:
    """Find the best answer to a problem and prove how good it is.

    Whatever happens - time out, Ctrl-C, a solver that crashes - the best answer and the best
    proven bound so far are returned.

    Parameters
    ----------
    problem
        An `Instance`: the best schedule, deadlines being hard unless `params.lateness` says
        otherwise. Or a program of `optsched.models`, or whatever has its methods `to_linear`,
        `read` and `write_point`; a `LinearModel`; or a Pyomo model, whose variables take the
        values of the answer.
    time_limit
        Seconds for everything; None for no limit.
    objective
        Of an instance: "total-latency", "weighted-latency" or "makespan". Programs have their own.
    method
        "auto": what suits the problem.

        Instances: "highs", the time-indexed program; "cp-sat", the event program, or the
        time-indexed one for more requests; "exact", the configuration bound, then branch and
        bound; "search", no proof beyond the bound, any size.

        Programs and models: "highs", "cp-sat", or what Pyomo calls one of its solvers, such as
        "glpk" or "gurobi". `EventProgram`: "cp-sat".

        `BalanceProgram`: "swap" and "greedy" (searches), "deficit" (exact without lookahead),
        "highs" or "cp-sat".

        `BatchSelection`: "dp" (Alg. 2, exact), "scaled-dp" (within 1 + epsilon), "swap" (Alg. 4),
        "quantile" (Alg. 5) or "mip".
    params
        Everything else: threads, seed, start, limits, progress.

    Returns
    -------
    Solution
        An `Optimum` for an instance. `answer` is in the terms of the problem: a `Schedule`, an
        array, an `Assignment`, a `Batch`, a point, or the Pyomo model.

    Raises
    ------
    InfeasibleError
        If it is proven that no schedule meets the deadlines or the horizon.
    OptschedError
        If an argument is invalid, a solver is unknown, not installed or cannot represent the
        model, the start is infeasible, or no schedule was found in time.

    Examples
    --------
    >>> from optsched import Instance, HindsightProgram, solve
    >>> instance = Instance([63] + 21 * [1], [1] + 21 * [2], memory=64)
    >>> result = solve(instance)
    >>> result.objective, result.proven_optimal
    (45.0, True)
    >>> solve(HindsightProgram(instance), method="highs").answer == result.schedule
    True
    """
    if not isinstance(params, SolveParams):
        raise OptschedError(f"params is {params!r}, but must be SolveParams(...)")
    if isinstance(problem, Instance):
        params.check_used(_USED, "an Instance")
        return _solve_instance(problem, objective, method, time_limit, params)
    kind = kind_of(problem)
    params.check_used(kind.used, kind.title)
    if objective != "total-latency":
        raise OptschedError(
            f"objective is {objective!r}, but {kind.title} has its own; leave it out"
        )
    return kind.solve(problem, method, time_limit, params)


def _solve_instance(
    instance: Instance,
    objective: ScheduleObjective,
    method: str,
    time_limit: float | None,
    params: SolveParams,
) -> Optimum:
    """Go through the stages that suit the instance."""
    for name, value, known in (("objective", objective, OBJECTIVES), ("method", method, METHODS)):
        if value not in known:
            raise OptschedError(f"unknown {name} {value!r}: {nearest(str(value), known)}")
    options, horizon = params.options(time_limit), params.horizon
    limit = math.inf if options.time_limit is None else options.time_limit
    seed = params.seed
    plain = objective != "makespan" and instance.deadlines is None and horizon is None
    if method in ("search", "exact") and not plain:
        raise OptschedError(
            f"{method} minimises latency without deadlines or a horizon; use highs or cp-sat"
        )
    if method == "exact" and objective != "total-latency":
        raise OptschedError(f"exact minimises total latency, not {objective}; use highs or cp-sat")
    task = Task(
        instance,
        objective,
        params.lateness,
        params.penalty,
        horizon,
        limit,
        params.threads,
        params.on_progress,
    )
    try:
        task.begin()
        small = len(instance) <= _EXACT_MOST and objective == "total-latency"
        if small and plain and method in ("auto", "exact"):
            task.prove_small(method, seed, options)
        if not task.proven and plain and method in ("auto", "search", "exact"):
            task.improve_prices()
            task.delay_large(seed)
            task.search(seed, share=1.0 if method == "search" else 0.1)
        if not task.proven and plain and (method == "exact" or (method == "auto" and task.large)):
            task.price_configurations(seed + 2)
        # Where sizes gained on prices, a time-indexed program would not get as far.
        priced = task.sizes is not None
        if not task.proven and priced and (method == "exact" or len(instance) <= _EXACT_MOST):
            task.branch_and_bound(options.memory_limit)
        if not task.proven and not priced and method in ("auto", "highs", "cp-sat"):
            task.solve_exactly(method, options)
        if not task.proven and plain and method == "auto":
            task.search(seed + 1, share=1.0)
    except KeyboardInterrupt:
        task.status = "interrupted"
    return task.result()


def proven_horizon(instance: Instance, objective: ScheduleObjective = "total-latency") -> int:
    """Find a step within which some optimal schedule completes, from a schedule and a bound.

    Parameters
    ----------
    instance
        The requests.
    objective
        What is minimised.

    Returns
    -------
    int
        Usually much smaller than `optsched.models.safe_horizon`, which needs no schedule.

    Examples
    --------
    >>> from optsched import Instance
    >>> proven_horizon(Instance([63, 1, 1], [1, 2, 2], memory=64))
    3
    """
    task = Task(instance, objective, "forbidden", 0.0, None, math.inf, 1, None)
    task.begin()
    return int((task.latest_starts() + instance.outputs).max())
