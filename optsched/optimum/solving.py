"""The best schedule in hindsight: the best that was found, and a bound that was proven."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from optsched.errors import OptschedError, nearest
from optsched.models.objectives import LATENESS
from optsched.optimum.stages import Method, Task
from optsched.solvers import Options, Progress
from optsched.solvers.bounds.bound import OBJECTIVES

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.instance import Instance
    from optsched.models.objectives import Lateness, ScheduleObjective
    from optsched.optimum.result import Hindsight

METHODS: tuple[Method, ...] = ("auto", "highs", "cp-sat", "search", "exact")

_EXACT_MOST = 24  # requests up to which branch and bound is worth the time


def solve(
    instance: Instance,
    objective: ScheduleObjective = "total-latency",
    method: Method = "auto",
    time_limit: float = 60.0,
    *,
    horizon: int | None = None,
    lateness: Lateness = "forbidden",
    penalty: float = 0.0,
    threads: int = 1,
    seed: int = 0,
    memory_limit: int | None = None,
    on_progress: Callable[[Progress], object] | None = None,
) -> Hindsight:
    """Find the best schedule in hindsight and prove how good it is.

    Whatever happens - time out, Ctrl-C, a solver that crashes - the best schedule and the best
    proven bound so far are returned.

    Parameters
    ----------
    instance
        The requests. Deadlines, if there are any, are hard unless `lateness` says otherwise.
    objective
        "total-latency", "weighted-latency" or "makespan".
    method
        "highs": the time-indexed program. "cp-sat": the event program, or the time-indexed one
        for more requests. "exact": the configuration bound, then branch and bound. "search": no
        proof beyond the bound, any size. "auto": what suits size and gap.
    time_limit
        Seconds for everything.
    horizon
        Consider only schedules that complete by this step. None considers all: the steps that
        have to be modelled are then proven, not guessed.
    lateness, penalty
        With "per-step" or "per-request" a deadline may be missed at this price.
    threads, seed
        For the solvers.
    memory_limit
        Bytes a solver's process may take.
    on_progress
        Called with what is known, now and then.

    Returns
    -------
    Hindsight
        Schedule, bound, and how they came about.

    Raises
    ------
    InfeasibleError
        If it is proven that no schedule meets the deadlines or the horizon.
    OptschedError
        If an argument makes no sense, or no schedule was found in time.

    Examples
    --------
    >>> from optsched import Instance, solve
    >>> result = solve(Instance([63] + 21 * [1], [1] + 21 * [2], memory=64))
    >>> result.cost, result.proven_optimal
    (45.0, True)
    """
    for name, value, known in (
        ("objective", objective, OBJECTIVES),
        ("method", method, METHODS),
        ("lateness", lateness, LATENESS),
    ):
        if value not in known:
            raise OptschedError(f"unknown {name} {value!r}: {nearest(str(value), known)}")
    if not penalty >= 0:
        raise OptschedError(f"penalty is {penalty}, but cannot be negative")
    Options(time_limit, threads, seed, memory_limit=memory_limit)  # refuses what makes no sense
    plain = objective != "makespan" and instance.deadlines is None and horizon is None
    if method in ("search", "exact") and not plain:
        raise OptschedError(
            f"{method} minimises latency without deadlines or a horizon; use highs or cp-sat"
        )
    if method == "exact" and objective != "total-latency":
        raise OptschedError(f"exact minimises total latency, not {objective}; use highs or cp-sat")
    task = Task(instance, objective, lateness, penalty, horizon, time_limit, threads, on_progress)
    options = {"threads": threads, "seed": seed, "memory_limit": memory_limit}
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
            task.branch_and_bound(memory_limit)
        if not task.proven and not priced and method in ("auto", "highs", "cp-sat"):
            task.solve_exactly(method, options)
        if not task.proven and plain and method == "auto":
            task.search(seed + 1, share=1.0)
    except KeyboardInterrupt:
        task.status = "interrupted"
    return task.result()


def hindsight(
    instance: Instance,
    time_limit: float = 60.0,
    objective: ScheduleObjective = "total-latency",
    *,
    threads: int = 1,
    seed: int = 0,
    memory_limit: int | None = None,
    on_progress: Callable[[Progress], object] | None = None,
) -> Hindsight:
    """Close in on the hindsight optimum from both sides, at any size.

    The interval is proven: what is known of the requests afterwards allows no schedule below its
    bound. It starts from what takes milliseconds, then goes where the gap is.

    Parameters
    ----------
    instance
        The requests.
    time_limit
        Seconds for everything.
    objective
        "total-latency", "weighted-latency" or "makespan".
    threads
        Searches side by side, and beside the bound. The same seed and number of threads give the
        same answer unless the time limit cuts a stage off.
    seed
        Of the searches.
    memory_limit
        Bytes that an exact search, or a solver's process, may take.
    on_progress
        Called with what is known, now and then.

    Returns
    -------
    Hindsight
        The interval with its `history`, which `plot` shows; `steps` says what was done and what it
        gained, and `explain` which requests and steps the gap comes from.

    Raises
    ------
    OptschedError
        If an argument makes no sense.

    Examples
    --------
    >>> import optsched
    >>> instance = optsched.family("chat-and-summaries", n=300, seed=1)
    >>> result = optsched.hindsight(instance, time_limit=2)
    >>> result.bound <= result.cost <= optsched.run(instance, "area").total_latency
    True
    >>> abs(result.explain().gap - (result.cost - result.bound)) < 1
    True
    """
    return solve(
        instance,
        objective,
        "auto",
        time_limit,
        threads=threads,
        seed=seed,
        memory_limit=memory_limit,
        on_progress=on_progress,
    )


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
