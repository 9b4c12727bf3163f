r"""How many requests of each type to wait for before a batch takes them in (WAIT, Fluid Eq. 9)."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.arrays import MAX_SUM, as_integers, checked_memory
from optsched._internal.views import draw
from optsched.clock import get_clock
from optsched.errors import InfeasibleError, InstanceError, ModelError, require_known
from optsched.models.fluid.equilibrium import (
    Equilibrium,
    constant_of,
    equilibrium,
    exact_terms,
)
from optsched.models.linear.model import Family, LinearModel, Rows, Variables, whole_numbers
from optsched.models.program import Program
from optsched.problem.request_types import decimal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock
    from optsched.problem.request_types import RequestTypes

Objective = Literal["memory", "slack"]
OBJECTIVES: tuple[Objective, ...] = ("memory", "slack")


@checked(ModelError)
@dataclass(frozen=True, eq=False, repr=False)
class WaitThresholds(Program):
    r"""Thresholds :math:`n_j` of WAIT that keep up with the arrivals.

    A batch takes at most :math:`n_j` requests of type :math:`j` at each of its stages. It holds
    :math:`M(n) = \sum_j n_j w_j` tokens, with :math:`w_j = (l'_j + 1)(l_j + l'_j / 2)`, and takes
    :math:`T(n) = c_0 + \sum_j n_j a_j`, for an affine clock :math:`d_0 + d_1 M(n)`. No type falls
    behind if no more than :math:`n_j` of it arrive in that time:

    .. math::

        \min \quad & M(n) \quad \text{or} \quad \max \; \sigma && \text{objective} \\
        \text{s.t.} \quad & n_j - \lambda_j \Bigl(\sum_i a_i n_i + \sigma\Bigr) \ge \lambda_j c_0
            && \forall j \quad \text{(9), time} \\
        & \sum_j w_j n_j \le C && \text{memory} \\
        & \sum_j (l'_j + 1) n_j \le B && \text{batch} \\
        & n_j \ge 1 \text{ whole}, \quad \sigma \ge \underline\sigma

    The slack :math:`\sigma` is the time by which the :math:`n_j` arrivals that fill a batch take
    longer than the batch, for the type where that is least. With a slack above 0 the backlog stays
    bounded; without, it grows like the square root of time (Theorem 1).

    Parameters
    ----------
    types
        The types that arrive.
    clock
        How long a batch takes: a weighted sum, or its name.
    memory
        Tokens :math:`C` that the worker can hold; None for no limit.
    batch_limit
        Requests :math:`B` in a batch, at all stages together; None for no limit.
    minimum_slack
        Seconds :math:`\underline\sigma \ge 0`.
    objective
        "memory": the least memory; "slack": the largest slack, which needs a limit.

    Raises
    ------
    InfeasibleError
        If the load is 1 or more; it names the type that contributes most.
    InstanceError, ModelError
        If the memory is below one request, or a limit is out of range.

    Examples
    --------
    The low-demand setting of the paper's Section 6.1:

    >>> from optsched import RequestTypes, solve
    >>> from optsched.models import WaitThresholds
    >>> types = RequestTypes([10, 10], [10, 20], [1000, 1000])
    >>> program = WaitThresholds(types, "affine:0.0085,2.7e-7")
    >>> print(program.to_linear())
    WAIT thresholds: min over 2 columns (2 integer), 2 rows, 4 nonzeros
      column  threshold[type]          2  integer, 1..inf
      row     time[type]               2  4 nonzeros
    >>> print(program.plan(solve(program).answer))
    a batch takes 0.0102375 s and holds 6,435 tokens in 352 requests
      type       threshold  tokens   slack (s)
      1                 11   1,815    0.000763
      2                 11   4,620    0.000763
    """

    types: RequestTypes
    clock: Clock
    memory: int | None = None
    batch_limit: int | None = None
    minimum_slack: float = 0.0
    objective: Objective = "memory"

    def __post_init__(self) -> None:
        object.__setattr__(self, "clock", get_clock(self.clock))
        require_known("objective", self.objective, OBJECTIVES)
        check_limits(self.types, self.memory, self.batch_limit, self.minimum_slack)
        self.equilibrium.require_stable()

    def __repr__(self) -> str:
        return f"<WaitThresholds of {len(self.types)} types, {self.clock.name}>"

    @property
    def equilibrium(self) -> Equilibrium:
        """The fluid equilibrium that the thresholds round up."""
        return equilibrium(self.types, self.clock)

    def to_linear(self) -> LinearModel:
        """Write the program as arrays; a slack without a limit is refused.

        Columns are ``threshold[type]`` and for the slack ``slack``; rows ``time[type]`` and, with
        limits, ``memory`` and ``batch``. Types are counted from 0.
        """
        slack = self.objective == "slack"
        if slack and not limits_of(self):
            raise ModelError(
                "the slack grows without end unless memory or batch limit is given; pass one"
            )
        rates, start = self.types.rates, constant_of(self.clock)
        blocks = {"threshold": np.eye(len(rates)) - np.outer(rates, self.types.work(self.clock))}
        columns = []
        if slack:
            columns = [Variables(Family.of("slack"), 1, lower=self.minimum_slack)]
            blocks["slack"] = -rates[:, None]
        else:
            start += decimal(self.minimum_slack)
        return threshold_model(self, blocks, rates * float(start), columns)

    def read(self, values: npt.ArrayLike, /) -> IntArray:
        """Turn a point of the linear model into thresholds, shape (m,); fractions are refused."""
        names = Family.of("threshold", type=np.arange(len(self.types)))
        return whole_numbers(values, names)

    def write_point(self, thresholds: npt.ArrayLike, /) -> FloatArray:
        """Turn one threshold per type into a point of the linear model."""
        chosen = as_integers("thresholds", thresholds)
        slack = [self.exact_slack(chosen)] if self.objective == "slack" else []
        return np.array([*chosen.tolist(), *slack], dtype=np.float64)

    def least_fixed_point(self) -> IntArray:
        r"""Find the thresholds of least memory without a solver, in exact arithmetic.

        They are the least solution of :math:`n_j = \lceil \lambda_j (T(n) + \underline\sigma)
        \rceil` in every coordinate, so if they break a limit, all do: an `InfeasibleError` then
        names the type that takes most. Rates and coefficients count as the decimals they are
        written as.
        """
        rates, work, start = exact_terms(self.types, self.clock)
        start += decimal(self.minimum_slack)
        # Of the solution in fractions, which is below any whole one.
        time = start / (1 - exact_sum(rates, work))
        thresholds = least_counts(
            time,
            lambda time: [-(-rate * time // 1) for rate in rates],
            start,
            work,
            self.types.held_tokens,
        )
        self._check_limits(thresholds, "the least thresholds there are")
        return thresholds

    def plan(self, thresholds: npt.ArrayLike) -> WaitPlan:
        """Check one threshold per type in exact arithmetic, and say what they lead to.

        Thresholds that break (9) or a limit are refused with an `InfeasibleError` that says by how
        much, and for which type.
        """
        chosen = checked_thresholds(thresholds, self.types.held_tokens, "type")
        slacks = self._exact_slacks(chosen)
        worst = min(range(len(slacks)), key=slacks.__getitem__)
        if slacks[worst] < decimal(self.minimum_slack):
            needed = f" and the slack {self.minimum_slack:g} s" if self.minimum_slack else ""
            name, count = self.types.names[worst], int(chosen[worst])
            raise InfeasibleError(
                f"the thresholds break (9) for type {name}: {count} of it arrive in "
                f"{count / self.types.rates[worst]:.6g} s, but a batch{needed} takes "
                f"{float(decimal(self.minimum_slack) - slacks[worst]):.3g} s longer; raise its "
                "threshold or lower others"
            )
        self._check_limits(chosen, "the thresholds")
        return WaitPlan(self, chosen, np.array([float(slack) for slack in slacks]))

    def exact_slack(self, thresholds: npt.ArrayLike) -> Fraction:
        """Return the least number of seconds by which batches are shorter than (9) allows."""
        return min(self._exact_slacks(as_integers("thresholds", thresholds)))

    def _exact_slacks(self, thresholds: IntArray) -> list[Fraction]:
        rates, work, start = exact_terms(self.types, self.clock)
        counts = thresholds.tolist()
        time = start + exact_sum(work, counts)
        return [count / rate - time for count, rate in zip(counts, rates, strict=True)]

    def _check_limits(self, thresholds: IntArray, what: str) -> None:
        for name, unit, uses, limit in limits_of(self):
            shares = uses * thresholds
            if shares.sum() > limit:
                most = int(np.argmax(shares))
                limited = "the batch limit" if name == "batch" else "the memory"
                raise InfeasibleError(
                    f"{what} need {shares.sum():,} {unit}, but {limited} is {limit:,}; type "
                    f"{self.types.names[most]} needs most, {shares[most]:,}: raise the limit or "
                    "lower the rates"
                )


@dataclass(frozen=True, eq=False, repr=False)
class WaitPlan:
    """Thresholds of WAIT that hold (9), and what they lead to.

    Attributes
    ----------
    thresholds
        Requests per stage and batch of each type, shape (m,).
    slacks
        Seconds by which the arrivals that fill a batch take longer than the batch, shape (m,).
    """

    program: WaitThresholds
    thresholds: IntArray
    slacks: FloatArray

    @property
    def iteration_time(self) -> float:
        """Seconds of a full batch."""
        work = self.program.types.work(self.program.clock)
        return float(constant_of(self.program.clock)) + float(work @ self.thresholds)

    @property
    def memories(self) -> IntArray:
        """Tokens that a full batch holds of each type, shape (m,)."""
        return self.program.types.held_tokens * self.thresholds

    @property
    def memory(self) -> int:
        """Tokens that a full batch holds."""
        return int(self.memories.sum())

    @property
    def batch_size(self) -> int:
        """Requests in a full batch, at all stages."""
        return int(self.program.types.stages @ self.thresholds)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the slack of each type; see `optsched.report.fluid.plot_slacks`."""
        return draw("plot_slacks", self, ax)

    def __repr__(self) -> str:
        return f"<WaitPlan {self.thresholds.tolist()}: {self.memory:,} tokens>"

    def __str__(self) -> str:
        lines = [
            f"a batch takes {self.iteration_time:.6g} s and holds {self.memory:,} tokens in "
            f"{self.batch_size:,} requests",
            "  type       threshold  tokens   slack (s)",
        ]
        names = self.program.types.names
        for j in range(min(len(names), 20)):
            lines.append(
                f"  {names[j]:<10.10}{self.thresholds[j]:>10,}{self.memories[j]:>8,}"
                f"{self.slacks[j]:>12.3g}"
            )
        return "\n".join(lines)


def limits_of(program: WaitThresholds) -> list[tuple[str, str, IntArray, int]]:
    """Return name, unit, use of a request of each type and value of each limit that is given."""
    types = program.types
    limits = (
        ("memory", "tokens", types.held_tokens, program.memory),
        ("batch", "requests per batch", types.stages, program.batch_limit),
    )
    return [(name, unit, uses, limit) for name, unit, uses, limit in limits if limit is not None]


def threshold_model(
    program: WaitThresholds,
    time: dict[str, npt.NDArray[Any]],
    least_time: npt.ArrayLike,
    slack: list[Variables],
    most: npt.ArrayLike = np.inf,
) -> LinearModel:
    """Write the program from the entries of (9) and its right side, in floats or whole numbers."""
    maximised, index = program.objective == "slack", np.arange(len(program.types))
    thresholds = Variables(
        Family.of("threshold", type=index),
        0 if maximised else program.types.held_tokens,
        lower=1,
        upper=most,
        integer=True,
    )
    rows = [Rows(Family.of("time", type=index), time, lower=least_time)]
    for name, _, uses, limit in limits_of(program):
        rows.append(Rows(Family.of(name), {"threshold": uses[None, :]}, upper=limit))
    return LinearModel.build(
        "WAIT thresholds", [thresholds, *slack], rows, sense="max" if maximised else "min"
    )


def exact_sum(values: Sequence[Fraction], counts: Sequence[Fraction | int]) -> Fraction:
    """Sum products exactly; over one denominator, since adding fractions one by one is slow."""
    common = math.lcm(*(value.denominator for value in values))
    whole = (value.numerator * (common // value.denominator) for value in values)
    return Fraction(sum(a * b for a, b in zip(whole, counts, strict=True))) / common


def least_counts(
    time: Fraction,
    arriving: Callable[[Fraction], Sequence[int]],
    start: Fraction,
    work: Sequence[Fraction],
    tokens: IntArray,
) -> IntArray:
    """Find the least counts from 1 on that arrive while a batch of them lasts."""
    chosen: list[int] = []
    while (larger := [max(1, count) for count in arriving(time)]) != chosen:
        _require_countable(larger, tokens)
        chosen, time = larger, start + exact_sum(work, larger)
    return np.array(chosen, dtype=np.int64)


def checked_thresholds(thresholds: npt.ArrayLike, tokens: IntArray, each: str) -> IntArray:
    """Turn thresholds into an array; there must be a positive one for each type or segment."""
    chosen = as_integers("thresholds", thresholds)
    if chosen.shape != tokens.shape or (chosen < 1).any():
        raise ModelError(
            f"thresholds are {chosen.tolist()}, but must be {len(tokens)} numbers of at least 1, "
            f"one per {each}"
        )
    _require_countable(chosen.tolist(), tokens)
    return chosen


def _require_countable(counts: Sequence[int], tokens: IntArray) -> None:
    """Refuse thresholds whose tokens 64-bit integers cannot count."""
    if sum(map(operator.mul, counts, tokens.tolist())) > MAX_SUM:
        raise InfeasibleError(
            f"the thresholds hold more than {MAX_SUM:.1e} tokens; lower them, the minimum slack or "
            "the rates"
        )


def check_limits(
    types: RequestTypes, memory: int | None, batch_limit: int | None, slack: float
) -> None:
    """Reject limits that make no sense, and a memory below one request."""
    if memory is not None:
        checked_memory(memory)
        peaks = types.prompts + types.outputs
        if (largest := int(peaks.max())) > memory:
            raise InstanceError(
                f"memory is {memory:,}, but one request of type "
                f"{types.names[int(np.argmax(peaks))]} needs {largest:,} tokens; raise the memory "
                "or leave the type out"
            )
    if batch_limit is not None and batch_limit < 1:
        raise ModelError(f"the batch limit is {batch_limit}, but must be at least 1")
    if not 0 <= slack < np.inf:
        raise ModelError(f"the slack is {slack} s, but must be a number of at least 0")
