r"""The most throughput under limits on latency and TTFT, in the fluid (Fluid Section 2.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.clock import get_clock
from optsched.errors import ModelError
from optsched.models.fluid.equilibrium import constant_of
from optsched.models.fluid.wait import check_limits
from optsched.models.linear.model import Family, LinearModel, Rows, Variables, as_point
from optsched.models.program import Program

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray
    from optsched.clock import Clock
    from optsched.problem.request_types import RequestTypes

WAITING = 0.5  # iterations that arrivals wait on average until the next one takes them in


@dataclass(frozen=True, eq=False, repr=False)
class ThroughputProgram(Program):
    r"""Rates to admit, of those that arrive, for the most throughput at an iteration time.

    In the fluid an iteration of :math:`T` seconds holds :math:`x_j T` requests of type :math:`j` in
    each of its :math:`k_j` stages. An arrival waits :math:`T / 2` on average and takes :math:`k_j`
    iterations, its first token one.

    .. math::

        \max \quad & \sum_j k_j x_j && \text{throughput (8)} \\
        \text{s.t.} \quad & \sum_j a_j x_j \le 1 - c_0 / T && \text{time} \\
        & T \sum_j w_j x_j \le C && \text{memory} \\
        & T \sum_j (k_j + \tfrac12) x_j \le L \sum_j x_j && \text{latency} \\
        & \tfrac32 T \le F && \text{TTFT} \\
        & 0 \le x_j \le \lambda_j

    with :math:`a_j` the seconds and :math:`w_j` the tokens that a request adds to its iterations,
    and :math:`c_0` the clock's constant. Latency and TTFT are means over the requests admitted.
    `optsched.optimum.throughput.best_throughput` finds the iteration time.

    Parameters
    ----------
    types
        The types that arrive.
    clock
        How long an iteration takes: a weighted sum, or its name.
    iteration_s
        Seconds :math:`T` of an iteration.
    memory
        Tokens :math:`C`; None for no limit.
    latency_s, ttft_s
        Limits :math:`L` and :math:`F` in seconds; None for none.
    longest_s
        With it, a relaxation for all iteration times from `iteration_s` to this one: the time is
        that of the longest, the limits are those of the shortest.

    Examples
    --------
    >>> from optsched import RequestTypes, solve
    >>> from optsched.models import ThroughputProgram
    >>> types = RequestTypes([10, 10], [10, 20], [1000, 1000])
    >>> program = ThroughputProgram(types, "affine:0.0085,2.7e-7", 0.0095, latency_s=0.15)
    >>> solve(program).answer.round(1)
    array([1000. ,  535.4])
    """

    types: RequestTypes
    clock: Clock
    iteration_s: float
    memory: int | None = None
    latency_s: float | None = None
    ttft_s: float | None = None
    longest_s: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "clock", get_clock(self.clock))
        check_limits(self.types, self.memory, None, 0.0)
        for name in ("iteration_s", "latency_s", "ttft_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ModelError(f"{name} is {value}, but must be a positive number of seconds")
        if self.longest_s is None:
            object.__setattr__(self, "longest_s", self.iteration_s)
        elif not self.longest_s >= self.iteration_s:
            raise ModelError(
                f"longest_s is {self.longest_s}, but must be at least iteration_s "
                f"{self.iteration_s}"
            )

    def __repr__(self) -> str:
        return f"<ThroughputProgram of {len(self.types)} types, {self.iteration_s:g} s>"

    def to_linear(self) -> LinearModel:
        """Write the program as arrays.

        Columns are ``share[type]`` of the arrivals that are admitted; rows ``time``, and with
        limits ``memory``, ``latency`` and ``ttft``. Types are counted from 0.
        """
        types, shortest = self.types, self.iteration_s
        family = Family.of("share", type=np.arange(len(types)))
        columns = Variables(family, types.rates * types.stages, upper=1)
        longest = shortest if self.longest_s is None else self.longest_s
        left = 1 - float(constant_of(self.clock)) / longest
        rows = [self._row("time", types.rates * types.work(self.clock), left)]
        if self.memory is not None:
            # Both sides over the limit, so that rows are of one size.
            held = shortest * types.rates * types.held_tokens / self.memory
            rows.append(self._row("memory", held, 1.0))
        if self.latency_s is not None:
            late = shortest * (types.stages + WAITING) / self.latency_s - 1
            rows.append(self._row("latency", types.rates * late / types.rates.sum(), 0.0))
        if self.ttft_s is not None:
            first = shortest * (1 + WAITING)
            rows.append(self._row("ttft", np.zeros(len(types)), self.ttft_s / first - 1))
        return LinearModel.build("throughput", [columns], rows, sense="max")

    def _row(self, name: str, entries: FloatArray, upper: float) -> Rows:
        return Rows(Family.of(name), {"share": entries[None, :]}, upper=upper)

    def read(self, values: npt.ArrayLike, /) -> FloatArray:
        """Turn one share per type into requests per second that are admitted, shape (m,)."""
        return np.asarray(self.types.rates * np.clip(as_point(values, len(self.types)), 0, 1))

    def write_point(self, rates: npt.ArrayLike, /) -> FloatArray:
        """Turn requests per second of each type into a point of the linear model."""
        return np.asarray(np.asarray(rates, dtype=np.float64) / self.types.rates)
