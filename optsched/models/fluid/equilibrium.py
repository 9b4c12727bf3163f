r"""The fluid equilibrium: where arrivals and completions of each type balance (Fluid Eq. 2-8)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.views import draw
from optsched.clock import Clock, LinearClock, get_clock
from optsched.errors import InfeasibleError
from optsched.problem.request_types import RequestTypes, decimal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray

_SHOWN = 20  # types in the text of an equilibrium


@dataclass(frozen=True, eq=False, repr=False)
class Equilibrium:
    r"""Where arrivals and completions balance (Fluid Eq. 2-8), or why they cannot.

    Attributes
    ----------
    loads
        Share of the time that each type needs, :math:`\lambda_j a_j`, shape (m,), where
        :math:`a_j` is its `RequestTypes.work`.
    load
        Their sum :math:`\rho`.
    iteration_time
        :math:`T^* = c_0 / (1 - \rho)`, with :math:`c_0` the clock's constant; infinite if not
        stable.
    requests_per_stage
        :math:`\lambda_j T^*`, shape (m,).
    active_requests
        Requests in a batch, shape (m,).
    memories
        Tokens held by each type, shape (m,).
    memory
        Their sum :math:`M^*`.
    """

    types: RequestTypes
    clock: Clock
    loads: FloatArray
    load: float
    iteration_time: float
    requests_per_stage: FloatArray
    active_requests: FloatArray
    memories: FloatArray
    memory: float

    @property
    def stable(self) -> bool:
        """Whether the load is below 1, so that no backlog grows."""
        return self.load < 1

    @property
    def throughputs(self) -> FloatArray:
        r"""Stages per second that each type passes, :math:`\lambda_j (l'_j + 1)`, shape (m,)."""
        return np.asarray(self.types.rates * self.types.stages, dtype=np.float64)

    @property
    def throughput(self) -> float:
        """Stages per second: Eq. (8), where each prefill counts like a token."""
        return float(self.throughputs.sum())

    @property
    def output_throughput(self) -> float:
        r"""Output tokens per second, :math:`\sum_j \lambda_j l'_j`, as Section 2.3 counts."""
        return float(self.types.rates @ self.types.outputs)

    @property
    def service_times(self) -> FloatArray:
        """Seconds that a request of each type spends in batches, shape (m,)."""
        return np.asarray(self.iteration_time * self.types.stages, dtype=np.float64)

    @property
    def overload(self) -> str:
        """By how much the load is too high, and the type that contributes most; else empty."""
        if self.stable:
            return ""
        heaviest = int(np.argmax(self.loads))
        return (
            f"the load is {self.load:.4g}, {self.load - 1:.3g} above 1, where any policy falls "
            f"behind; type {self.types.names[heaviest]} contributes most, "
            f"{self.loads[heaviest]:.4g}"
        )

    def require_stable(self) -> None:
        """Reject a load of 1 or more."""
        if not self.stable:
            raise InfeasibleError(f"{self.overload}: lower the rates or use a faster clock")

    def plot(self, memory: int | None = None, ax: Axes | None = None) -> Axes:
        """Plot memory against load; see `optsched.report.runs.plot_equilibrium`."""
        return draw("plot_equilibrium", self, memory, ax)

    def __repr__(self) -> str:
        return f"<Equilibrium: load {self.load:.4g}, memory {self.memory:,.0f} tokens>"

    def __str__(self) -> str:
        if not self.stable:
            return f"no equilibrium: {self.overload}"
        lines = [
            f"load            {self.load:.4g} of 1",
            f"iteration time  {self.iteration_time:.6g} {self.clock.unit}",
            f"memory          {self.memory:,.1f} tokens",
            f"throughput      {self.throughput:,.1f} stages, {self.output_throughput:,.1f} output "
            "tokens per second",
            "  type            load   requests  per stage     tokens  seconds in batches",
        ]
        for j in range(min(len(self.types), _SHOWN)):
            lines.append(
                f"  {self.types.names[j]:<10.10}{self.loads[j]:>10.4g}"
                f"{self.active_requests[j]:>11.4g}{self.requests_per_stage[j]:>11.4g}"
                f"{self.memories[j]:>11,.1f}{self.service_times[j]:>20.4g}"
            )
        if len(self.types) > _SHOWN:
            lines.append(f"  and {len(self.types) - _SHOWN:,} more")
        return "\n".join(lines)


@checked()
def equilibrium(types: RequestTypes, clock: str | Clock) -> Equilibrium:
    r"""Compute the fluid equilibrium.

    In balance each iteration of :math:`T` seconds completes :math:`\lambda_j T` requests of type
    :math:`j`, and so holds as many in each stage. A batch with :math:`n_j` requests per stage takes
    :math:`c_0 + \sum_j n_j a_j`, which is solved by :math:`T^* = c_0 / (1 - \rho)` with
    :math:`\rho = \sum_j \lambda_j a_j`. For an affine clock these are Eq. (2)-(8) with
    :math:`a_j = d_1 (l'_j + 1)(l_j + l'_j / 2)`; Proposition 1 prints :math:`d_0` there, and below
    Eq. (5) a factor :math:`1 / (l'_j + 1)` is missing.

    Parameters
    ----------
    types
        The types that arrive.
    clock
        A weighted sum, or its name; a function is refused with a `ClockError`.

    Returns
    -------
    Equilibrium
        Its `stable` is false where there is no balance.

    Examples
    --------
    The low-demand setting of the paper's Section 6.1:

    >>> from optsched import RequestTypes
    >>> types = RequestTypes([10, 10], [10, 20], [1000, 1000])
    >>> print(equilibrium(types, "affine:0.0085,2.7e-7"))
    load            0.158 of 1
    iteration time  0.0100944 s
    memory          5,905.2 tokens
    throughput      32,000.0 stages, 30,000.0 output tokens per second
      type            load   requests  per stage     tokens  seconds in batches
      1            0.04455        111      10.09    1,665.6               0.111
      2             0.1134        212      10.09    4,239.7               0.212
    """
    clock = get_clock(clock)
    rates, work, constant = exact_terms(types, clock)
    shares = [rate * seconds for rate, seconds in zip(rates, work, strict=True)]
    load = sum(shares, Fraction(0))
    time = float(constant / (1 - load)) if load < 1 else np.inf
    per_stage = types.rates * time
    memories = per_stage * types.held_tokens
    return Equilibrium(
        types=types,
        clock=clock,
        loads=np.array([float(share) for share in shares]),
        # A load just below 1 must not be rounded up to it.
        load=min(float(load), float(np.nextafter(1, 0))) if load < 1 else float(load),
        iteration_time=time,
        requests_per_stage=per_stage,
        active_requests=per_stage * types.stages,
        memories=memories,
        memory=float(memories.sum()),
    )


def exact_terms(
    types: RequestTypes, clock: Clock
) -> tuple[list[Fraction], list[Fraction], Fraction]:
    """Return rates and work of the types and the clock's constant, as the decimals written."""
    work = types.exact_work(clock)  # refuses clocks that are no weighted sums
    return [decimal(rate) for rate in types.rates.tolist()], work, constant_of(clock)


def constant_of(clock: Clock) -> Fraction:
    """Return the constant of a weighted sum, as the decimal it is written as."""
    assert isinstance(clock, LinearClock)  # others are refused where the work is computed
    return decimal(clock.constant)
