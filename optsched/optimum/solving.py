"""`solve`: stages around one interval; the iteration time of most throughput."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, overload

from optsched._internal.arguments import checked, refuse_turns
from optsched._internal.aside import watched
from optsched.bounds.bound import OBJECTIVES
from optsched.errors import ModelError, OptschedError, SolverError, require_known
from optsched.models.fluid.equilibrium import constant_of, equilibrium
from optsched.models.fluid.wait import WAITING, ThroughputProgram
from optsched.optimum.plan import find_first, go_through
from optsched.optimum.programs import WATCHED, kind_of
from optsched.optimum.state import Optimum, SolveParams, SolveState
from optsched.problem.instance import Instance
from optsched.problem.schedule import Schedule
from optsched.problem.workers import Workers, as_workers
from optsched.solvers.backends.driver import solve_linear

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.bounds.bound import SomeWorkers
    from optsched.clock import Clock
    from optsched.models.hindsight import ScheduleObjective
    from optsched.models.program import Solution
    from optsched.problem.request_types import RequestTypes


_ROUNDING = 1e-6  # by how much a linear program's floating-point value may be off, relatively
_MAX_PROGRAMS = 20_000


@dataclass(frozen=True, eq=False)
class ThroughputPlan:
    """The best iteration time found, and what no other can surpass."""

    program: ThroughputProgram
    rates: FloatArray  # requests per second admitted of each type, shape (m,)
    throughput: float  # stages per second, as (8) counts them
    bound: float  # an upper bound over all iteration times

    @property
    def iteration_s(self) -> float:
        """Seconds of an iteration."""
        return self.program.iteration_s

    @property
    def gap(self) -> float:
        """How far the throughput may be from the best, as a share of the bound."""
        return 1 - self.throughput / self.bound if self.bound > 0 else 0.0

    @property
    def latency_s(self) -> float:
        """Mean seconds from arrival to the last token of the requests admitted."""
        stages = self.program.types.stages + WAITING
        return float(self.iteration_s * (stages @ self.rates) / self.rates.sum())

    @property
    def ttft_s(self) -> float:
        """Mean seconds from arrival to the first token."""
        return self.iteration_s * (1 + WAITING)

    @property
    def memory(self) -> float:
        """Tokens that an iteration holds."""
        return float(self.iteration_s * (self.program.types.held_tokens @ self.rates))

    def __str__(self) -> str:
        lines = [
            f"throughput      {self.throughput:,.1f} stages per second, at most "
            f"{math.ceil(10 * self.bound) / 10:,.1f} by any iteration time",
            f"iteration time  {self.iteration_s:.6g} s",
            f"latency         {self.latency_s:.6g} s on average, to the first token "
            f"{self.ttft_s:.6g} s",
            f"memory          {self.memory:,.1f} tokens",
            "  type          arrive/s  admitted/s",
        ]
        types = self.program.types
        lines += [
            f"  {name:<10.10}{arriving:>12,.5g}{admitted:>12,.5g}"
            for name, arriving, admitted in zip(types.names, types.rates, self.rates, strict=True)
        ]
        return "\n".join(lines)


def best_throughput(
    types: RequestTypes,
    clock: str | Clock,
    *,
    memory: int | None = None,
    latency_s: float | None = None,
    ttft_s: float | None = None,
    gap: float = 1e-4,
) -> ThroughputPlan:
    """Find the iteration time and the rates of most throughput, within a proven gap."""
    # Intervals of iteration times are halved, the most promising first; the relaxation of
    # `ThroughputProgram` bounds each.
    if not 0 < gap < 1:
        raise ModelError(f"gap is {gap}, but must be a share between 0 and 1")
    limits = {"memory": memory, "latency_s": latency_s, "ttft_s": ttft_s}
    first = ThroughputProgram(types, clock, 1.0, **limits)  # type: ignore[arg-type]
    shortest, longest = _range(first)
    ends = (_solved(replace(first, iteration_s=end, longest_s=None)) for end in (shortest, longest))
    best = max(ends, key=attrgetter("throughput"))
    heap = [(-math.inf, shortest, longest)]
    bound, programs = math.inf, 2
    while heap:
        least, low, high = heapq.heappop(heap)
        bound = -least
        if best.throughput >= (1 - gap) * bound or programs > _MAX_PROGRAMS:
            break
        middle = math.sqrt(low * high)
        for one, other in ((low, middle), (middle, high)):
            relaxed = _value(replace(first, iteration_s=one, longest_s=other))
            programs += 1
            if relaxed > best.throughput:
                heapq.heappush(heap, (-relaxed, one, other))
        programs += 1
        tried = _solved(replace(first, iteration_s=middle, longest_s=None))
        best = max(best, tried, key=attrgetter("throughput"))
    else:
        bound = best.throughput * (1 + _ROUNDING)
    return replace(best, bound=max(bound, best.throughput))


def _range(program: ThroughputProgram) -> tuple[float, float]:
    """Return iteration times between which there is a best one, whose iterations are not idle."""
    types, constant = program.types, float(constant_of(program.clock))
    if constant <= 0:
        raise ModelError("the clock has no constant: any throughput needs no batches; use another")
    work, balance = types.work(program.clock), equilibrium(types, program.clock)
    limits = [balance.iteration_time] if balance.stable else []
    if program.memory is not None:
        limits.append(constant + float((work / types.held_tokens).max()) * program.memory)
    if program.latency_s is not None:
        limits.append(program.latency_s / float(types.stages.min() + WAITING))
    if program.ttft_s is not None:
        limits.append(program.ttft_s / (1 + WAITING))
    if not limits:
        raise ModelError(
            f"the load is {balance.load:.4g}, so that throughput grows with the iteration time "
            "without end; limit memory, latency or TTFT"
        )
    longest = min(limits)
    if longest <= constant:
        raise ModelError(
            f"an iteration takes {constant:g} s at least, and the limits leave {longest:.6g} s; "
            "raise them or use a faster clock"
        )
    return constant, longest


def _value(program: ThroughputProgram) -> float:
    """Bound the throughput from above."""
    found = solve_linear(program.to_linear(), "highs")
    if found.objective is None:
        raise SolverError(f"HiGHS found no bound on the throughput: {found.status}")
    return found.objective * (1 + _ROUNDING)


def _solved(program: ThroughputProgram) -> ThroughputPlan:
    """Return the best rates at an iteration time."""
    found = solve_linear(program.to_linear(), "highs")
    if found.values is None:
        raise SolverError(f"HiGHS found no rates: {found.status}")
    rates = program.read(found.values)
    return ThroughputPlan(program, rates, float(program.types.stages @ rates), math.inf)


METHODS = ("auto", "highs", "cp-sat", "search", "exact")
PLAIN = SolveParams()

_USED_BY_SEVERAL = ("threads", "seed", "work", "memory_limit", "start", *WATCHED)
_USED = (*_USED_BY_SEVERAL, "horizon", "lateness", "penalty")


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
        Of an instance: "total-latency", "weighted-latency" or "makespan". Programs have their own.
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
    require_known("objective", objective, OBJECTIVES, OptschedError)
    require_known("method", method, METHODS, OptschedError)
    params.check_method(method)
    options = params.options(time_limit)
    state = SolveState(instance, objective, method, options, params, given)
    (_check_alone if alone else _check_several)(state)
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
    if method == "search" and not state.hard:
        raise OptschedError("search keeps all deadlines; use highs or cp-sat to miss some")
    if method == "exact" and objective != "total-latency":
        raise OptschedError(f"exact minimises total latency, not {objective}; use highs or cp-sat")
    if (lateness := state.params.lateness) != "forbidden" and state.instance.deadlines is None:
        raise OptschedError(
            f"lateness is {lateness!r}, but the requests have no deadlines; add them, or leave "
            "lateness and penalty out"
        )


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
