"""The iteration time of most throughput (Fluid, Section 4), by intervals that are halved."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from optsched.errors import ModelError, SolverError
from optsched.models.fluid.equilibrium import constant_of, equilibrium
from optsched.models.fluid.wait import WAITING, ThroughputProgram
from optsched.solvers.backends.driver import solve_linear

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.clock import Clock
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
