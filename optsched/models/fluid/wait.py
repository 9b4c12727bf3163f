"""WAIT: thresholds, queues and whole numbers."""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.arrays import MAX_SUM, FloatArray, IntArray, as_integers, checked_memory
from optsched._internal.numbers import in_units
from optsched._internal.views import draw
from optsched.clock import Clock, get_clock
from optsched.errors import InfeasibleError, InstanceError, ModelError, require_known
from optsched.models.fluid.equilibrium import Equilibrium, constant_of, equilibrium, exact_terms
from optsched.models.linear import Family, LinearModel, Rows, Variables, as_point, whole_numbers
from optsched.models.program import Program
from optsched.problem.request_types import RequestTypes, decimal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt
    from matplotlib.axes import Axes


def queue_decay(
    previous: npt.ArrayLike, threshold: npt.ArrayLike, share: npt.ArrayLike
) -> FloatArray:
    r"""Compute :math:`\theta` of the queue in front of a segment, at which (16) holds (Lemma 8)."""
    # Each batch of the segment before sends Binomial(n', p) requests on, and n leave the queue
    # once as many wait. At least n + c wait after a given batch with probability exp(-theta c) at
    # most, where theta > 0 is the root of exp(-theta n) (1 - p + p exp(theta))^n' = 1 (16), which
    # exists if p n' < n < n'.
    before, here, going = np.broadcast_arrays(
        *(np.asarray(values, dtype=np.float64) for values in (previous, threshold, share))
    )
    decay = np.where(here >= before, np.inf, 0.0)
    # What rounding of the share may make of equality is equality.
    inside = (here < before) & (here - going * before > 1e-9 * before)
    n, size, p = here[inside], before[inside], going[inside]
    # (16) in logarithms is convex and linear in the end: its root lies below that of the line,
    # and Newton's steps from there only go down, to the root.
    theta = -size * np.log(p) / (size - n)
    for _ in range(200):
        tail = (1 - p) * np.exp(-theta)
        value = np.where(
            theta > 0.5,
            theta * (size - n) + size * np.log(p + tail),
            size * np.log1p(p * np.expm1(np.minimum(theta, 1))) - theta * n,
        )
        step = value / (size * p / (p + tail) - n)
        theta = theta - step
        if (np.abs(step) <= 1e-14 * theta).all():
            break
    decay[inside] = theta
    return decay


def events_logarithm(segments: int, iterations: int, delta: float) -> float:
    r"""Return :math:`\ln((L - 1) S / \delta)` of (12), for the queues between L segments."""
    return math.log((segments - 1) * iterations / delta) if segments > 1 else 0.0


def reject_growth(thresholds: IntArray, shares: FloatArray, decays: FloatArray) -> None:
    """Reject thresholds that break (10) or hold it with equality, so that a queue has no decay."""
    for i in np.flatnonzero(decays == 0).tolist():
        before, here, share = int(thresholds[i - 1]), int(thresholds[i]), float(shares[i - 1])
        how, why = "is broken", "the queue in front of it grows without end"
        if abs(here - share * before) <= 1e-9 * before:
            how = "holds with equality"
            why = "theta is 0 and no finite stock covers the queue in front of it"
        raise InfeasibleError(
            f"(10) {how} for segment {i + 1}: {before} * {share:.6g} requests reach it per batch, "
            f"its threshold is {here}, so {why}; it must be at least "
            f"{math.floor(before * share * (1 + 1e-9)) + 1}"
        )


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
        """Plot the slack of each type; see `optsched.report.runs.plot_slacks`."""
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
    time: Mapping[str, FloatArray | IntArray],
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


_LARGEST = 2**53  # up to here arrays of floats hold every whole number
_SUMS = MAX_SUM // _LARGEST


@dataclass(frozen=True, eq=False, repr=False)
class WholeThresholds(Program):
    r"""`WaitThresholds` with whole coefficients, whole columns and finite bounds.

    Rates and coefficients count as the decimals they are written as, so (9) divided by
    :math:`\lambda_j` has rational coefficients. Over their common denominator :math:`1 / u` they
    are whole, and the slack is a whole number of units :math:`u`, since the largest slack is
    :math:`\min_j n_j / \lambda_j - T(n)` at whole :math:`n`. Where the slack is given, each row
    has a denominator of its own. A threshold is at most what the limits leave beside one request of
    each other type; without limits, what the memory of the least fixed point leaves, which no
    optimum exceeds. Where the whole numbers are too large, `to_linear` raises a `ModelError`.

    Examples
    --------
    >>> from optsched import RequestTypes
    >>> from optsched.models import WaitThresholds
    >>> types = RequestTypes([10, 10], [10, 20], [1000, 1000])
    >>> program = WaitThresholds(types, "affine:0.0085,2.7e-7", memory=8000, objective="slack")
    >>> print(WholeThresholds(program).to_linear())
    WAIT thresholds: max over 3 columns (3 integer), 3 rows, 8 nonzeros
      column  threshold[type]          2  integer, 1..45
      column  slack                    1  integer, 0..186841
      row     time[type]               2  6 nonzeros
      row     memory                   1  2 nonzeros
    """

    program: WaitThresholds

    @functools.cached_property
    def unit(self) -> Fraction:
        """Unit in seconds of which the slack is a whole multiple; 1 where the slack is given."""
        if self.program.objective == "memory":
            return Fraction(1)
        inverse, work, start = self._seconds
        return in_units(np.array([*inverse, *work, start]))[0]

    @property
    def _seconds(self) -> tuple[list[Fraction], list[Fraction], Fraction]:
        """Seconds between arrivals of each type, of a request in all its batches, of no request."""
        rates, work, start = exact_terms(self.program.types, self.program.clock)
        return [1 / rate for rate in rates], work, start

    @property
    def most(self) -> IntArray:
        """Thresholds that no optimum exceeds, at least 1, shape (m,)."""
        limits = [(uses, limit) for _, _, uses, limit in limits_of(self.program)]
        if not limits:  # the objective is then memory: a slack without limit has no model
            uses = self.program.types.held_tokens
            limits = [(uses, int(uses @ self.program.least_fixed_point()))]
        left = [(most - (uses.sum() - uses)) // uses for uses, most in limits]
        return np.asarray(np.maximum(np.min(left, axis=0), 1))

    def to_linear(self) -> LinearModel:
        """Write the program as arrays: the columns and rows of `WaitThresholds`, whole."""
        self.program.to_linear()  # refuses a slack without limit
        most, slack = self.most, []
        entries, lower = self._time_rows()
        blocks = {"threshold": entries}
        if self.program.objective == "slack":
            least = math.ceil(decimal(self.program.minimum_slack) / self.unit)
            slack = [self._slack(least, most)]
            blocks["slack"] = -np.ones((len(most), 1), dtype=np.int64)
        return threshold_model(self.program, blocks, lower, slack, most)

    def _slack(self, least: int, most: IntArray) -> Variables:
        """Return the column of the slack, up to where the largest thresholds would leave it."""
        inverse, work, start = self._seconds
        between = min(count * gap for count, gap in zip(most.tolist(), inverse, strict=True))
        upper = max((between - start - sum(work)) // self.unit, least)
        self._require_small([upper], "the slack")
        return Variables(Family.of("slack"), 1, lower=least, upper=upper, integer=True)

    def _time_rows(self) -> tuple[IntArray, IntArray]:
        """Return coefficients of the thresholds in (9) and its right side, all whole."""
        inverse, work, start = self._seconds
        given = self.program.objective == "memory"
        if given:
            start += decimal(self.program.minimum_slack)
        entries, lower, most = [], [], self.most.tolist()
        for j, gap in enumerate(inverse):
            row = [(gap if i == j else 0) - seconds for i, seconds in enumerate(work)]
            unit = in_units(np.array([*row, start]))[0] if given else self.unit
            whole = [int(value / unit) for value in row]
            right = int(start / unit)
            # A row's sum may be larger than its parts: MAX_SUM is exact in a solver of integers.
            reach = sum(abs(a) * b for a, b in zip(whole, most, strict=True)) // _SUMS
            self._require_small([*whole, right, reach], f"type {self.program.types.names[j]}")
            entries.append(whole)
            lower.append(right)
        return np.array(entries, dtype=np.int64), np.array(lower, dtype=np.int64)

    @staticmethod
    def _require_small(numbers: list[int], what: str) -> None:
        """Refuse whole numbers that are not exact in arrays of floats."""
        largest = max(map(abs, numbers))
        if largest > _LARGEST:
            raise ModelError(
                f"WAIT thresholds: in whole numbers (9) has one of {len(str(largest))} digits for "
                f"{what}, and at most 15 are exact; round the rates and the clock to fewer digits, "
                "or take method highs"
            )

    def read(self, values: npt.ArrayLike, /) -> IntArray:
        """Turn a point into thresholds, as `WaitThresholds.read` does."""
        return self.program.read(values)

    def write_point(self, thresholds: npt.ArrayLike, /) -> FloatArray:
        """Turn thresholds into a point; the slack is counted in units."""
        point = self.program.write_point(thresholds)
        if self.program.objective == "slack":
            point[-1] = self.program.exact_slack(thresholds) // self.unit
        return point


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
    types, clock, memory
        As of `WaitThresholds`.
    iteration_s
        Seconds :math:`T` of an iteration.
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
