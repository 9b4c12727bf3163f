r"""Thresholds of Nested WAIT, and memory that suffices with high probability (Fluid Eq. 10-12)."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.arrays import as_integers
from optsched._internal.views import draw
from optsched.clock import get_clock
from optsched.errors import InfeasibleError, ModelError
from optsched.models.fluid.equilibrium import constant_of, equilibrium
from optsched.models.fluid.queues import events_logarithm, queue_decay, reject_growth
from optsched.models.fluid.wait import (
    check_limits,
    checked_thresholds,
    exact_sum,
    least_counts,
)
from optsched.models.linear.model import Family, LinearModel, Rows, Variables, whole_numbers
from optsched.models.program import Program
from optsched.problem.request_types import decimal, stage_tokens, stage_work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt
    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock
    from optsched.problem.request_types import RequestTypes

#: Requests by which the first threshold exceeds the arrivals of an iteration: (10) is strict.
STRICT = Fraction(1, 10**6)

_MARGINS = np.geomspace(0.002, 0.6, 60)


@checked(ModelError)
@dataclass(frozen=True, eq=False, repr=False)
class NestedWaitThresholds(Program):
    r"""Thresholds :math:`n_i` of Nested WAIT, for outputs that are not known in advance.

    The stages are cut into segments. Segment :math:`i` has those from the one after border
    :math:`b_{i-1}` to border :math:`b_i`; requests that are longer go on to the next. All requests
    reach segment 1, at the rate :math:`\Lambda_1 = \sum_j \lambda_j`, and those with
    :math:`l'_j > b_{i-1}` segment :math:`i`, at the rate :math:`\Lambda_i`; so
    :math:`p_i = \Lambda_{i+1} / \Lambda_i` of them go on. A batch takes at most :math:`n_i`
    requests at each stage of segment :math:`i`. It holds :math:`M(n) = \sum_i n_i w_i` tokens and
    takes :math:`T(n) = c_0 + \sum_i a_i n_i`, where :math:`w_i` sums :math:`l + k` over the stages
    :math:`k` of segment :math:`i`.

    .. math::

        \min \quad & \sum_i w_i n_i && \text{memory} \\
        \text{s.t.} \quad & n_1 - \Lambda_1 \Bigl(\sum_i a_i n_i + \sigma\Bigr) > \Lambda_1 c_0
            && \text{(10), time} \\
        & n_{i+1} \ge p_i^{1 - \varepsilon} n_i && \forall i < L \quad \text{(10), ratio} \\
        & n_i \ge 1 \text{ whole}

    Eq. (10) asks for :math:`n_{i+1} > p_i n_i`, strictly: at equality the queue in front of the
    segment grows without end. The margin :math:`\varepsilon > 0` keeps away from that. (11) and
    (14) print closed forms of the memory that are not the sum over stages; here it is the sum.

    Parameters
    ----------
    types
        The types that arrive; all of one prompt (see `RequestTypes.with_one_prompt`).
    clock
        How long a batch takes: a weighted sum, or its name.
    borders
        Last stage of each segment, ascending, the last at the longest output; None for one at
        each output length.
    margin
        :math:`\varepsilon`, above 0 and at most 1. A small one needs large stock, a large one large
        batches.
    minimum_slack
        Seconds :math:`\sigma \ge 0` by which :math:`n_1` arrivals take longer than a batch.
    memory
        Tokens that the worker holds; None for no limit.

    Raises
    ------
    InfeasibleError
        If the load is 1 or more, at the margin or even without.
    ModelError
        If prompts differ or a border or the margin is invalid.
    InstanceError
        If the memory is below one request.

    Examples
    --------
    The synthetic setting of the paper's Section 6.2, with strict thresholds:

    >>> from optsched import RequestTypes
    >>> from optsched.models import NestedWaitThresholds
    >>> types = RequestTypes([10] * 4, [20, 40, 80, 160], [20, 40, 80, 160])
    >>> program = NestedWaitThresholds(types, "affine:0.0085,2.7e-7")
    >>> print(program.plan([60, 57, 50, 34], delta=0.01, iterations=242))
    memory that suffices for 242 iterations with probability 0.99: 584,971 tokens
      full batch   567,330
      queues         7,270
      rare queues   10,371
      segment  stages     rate  threshold    tokens   decay
      1          0-20      300         60    25,200
      2         21-40      280         57    46,170  0.6415
      3         41-80      240         50   141,000  0.3567
      4        81-160      160         34   354,960  0.1217
    """

    types: RequestTypes
    clock: Clock
    borders: IntArray | None = None
    margin: float = 0.05
    minimum_slack: float = 0.0
    memory: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "clock", get_clock(self.clock))
        check_limits(self.types, self.memory, None, self.minimum_slack)
        if len(set(self.types.prompts.tolist())) > 1:
            raise ModelError(
                "Nested WAIT needs types of one prompt; use types.with_one_prompt(), or plan for "
                "each prompt apart"
            )
        if not 0 < self.margin <= 1:
            raise ModelError(
                f"the margin is {self.margin}, but must be above 0 and at most 1: at 0 the "
                "thresholds stand at equality in (10), where the queues grow without end"
            )
        outputs = np.unique(self.types.outputs)
        borders = outputs if self.borders is None else as_integers("borders", self.borders)
        if len(borders) == 0 or borders[-1] != outputs[-1]:
            raise ModelError(
                f"the borders {borders.tolist()} must end at the longest output, {outputs[-1]}"
            )
        ends = np.unique(np.searchsorted(borders, outputs))
        if (np.diff(borders) <= 0).any() or len(ends) < len(borders):
            raise ModelError(
                f"the borders {borders.tolist()} must ascend, and an output must end in each "
                f"segment; choose some of {outputs.tolist()[:20]}"
            )
        object.__setattr__(self, "borders", borders)
        equilibrium(self.types, self.clock).require_stable()

    def __repr__(self) -> str:
        return f"<NestedWaitThresholds: {len(self.last_stages)} segments, {self.clock.name}>"

    @property
    def last_stages(self) -> IntArray:
        """Last stage of each segment: its border, shape (L,)."""
        assert self.borders is not None
        return self.borders

    @property
    def first_stages(self) -> IntArray:
        """First stage of each segment, shape (L,)."""
        return np.concatenate(([self.types.first_stage], self.last_stages[:-1] + 1))

    @functools.cached_property
    def rates(self) -> FloatArray:
        r"""Requests per second that reach each segment, :math:`\Lambda_i`, shape (L,)."""
        return np.array([float(rate) for rate in self._exact_rates])

    @functools.cached_property
    def _exact_rates(self) -> list[Fraction]:
        segments = np.searchsorted(self.last_stages, self.types.outputs)
        ending = [Fraction(0)] * len(self.last_stages)
        for segment, rate in zip(segments.tolist(), self.types.rates.tolist(), strict=True):
            ending[segment] += decimal(rate)
        return list(itertools.accumulate(reversed(ending)))[::-1]

    @property
    def shares(self) -> FloatArray:
        r"""Share :math:`p_i` of the requests that go on to the next segment, shape (L - 1,)."""
        reach = self._exact_rates
        return np.array([float(b / a) for a, b in itertools.pairwise(reach)])

    @property
    def ratios(self) -> FloatArray:
        r"""The least :math:`n_{i+1} / n_i` allowed, :math:`p_i^{1 - \varepsilon}`."""
        return np.asarray(self.shares ** (1 - self.margin), dtype=np.float64)

    @property
    def held_tokens(self) -> IntArray:
        """Tokens that one request per stage holds in each segment, shape (L,)."""
        prompt = int(self.types.prompts[0])
        return np.asarray(stage_tokens(prompt, self.first_stages, self.last_stages))

    @property
    def queue_tokens(self) -> IntArray:
        """Tokens of a request that waits in front of each segment, 0 at the first; shape (L,)."""
        waiting = int(self.types.prompts[0]) + self.last_stages[:-1]
        return np.concatenate((np.zeros(1, dtype=np.int64), waiting))

    @functools.cached_property
    def _work(self) -> list[Fraction]:
        prompt = int(self.types.prompts[0])
        edges = zip(self.first_stages.tolist(), self.last_stages.tolist(), strict=True)
        return [
            stage_work(self.clock, prompt, first, last, prefill=segment == 0)
            for segment, (first, last) in enumerate(edges)
        ]

    @property
    def _family(self) -> Family:
        return Family.of("threshold", segment=np.arange(len(self.last_stages)))

    def to_linear(self) -> LinearModel:
        """Write the program as arrays.

        Columns are ``threshold[segment]``; rows ``time`` and ``ratio[segment]``, and with a limit
        ``memory``, for the batch and the queues at their thresholds: the rest of the bound is not
        linear, and `plan` checks it. Segments are counted from 0.
        """
        index, rate = np.arange(len(self.last_stages)), self._exact_rates[0]
        time = np.array([float(-rate * each) for each in self._work])
        time[0] += 1
        start = rate * (constant_of(self.clock) + decimal(self.minimum_slack)) + STRICT
        ratio = np.eye(len(index))[1:]
        ratio[index[:-1], index[:-1]] = -self.ratios
        thresholds = Variables(self._family, self.held_tokens, lower=1, integer=True)
        rows = [
            Rows(Family.of("time"), {"threshold": time[None, :]}, lower=float(start)),
            Rows(Family.of("ratio", segment=index[1:]), {"threshold": ratio}, lower=0),
        ]
        if self.memory is not None:
            use = (self.held_tokens + self.queue_tokens)[None, :]
            rows.append(Rows(Family.of("memory"), {"threshold": use}, upper=self.memory))
        return LinearModel.build("Nested WAIT thresholds", [thresholds], rows)

    def read(self, values: npt.ArrayLike, /) -> IntArray:
        """Turn a point of the linear model into thresholds, shape (L,); fractions are refused."""
        return whole_numbers(values, self._family)

    def write_point(self, thresholds: npt.ArrayLike, /) -> FloatArray:
        """Turn thresholds into a point of the linear model."""
        return as_integers("thresholds", thresholds).astype(np.float64)

    def least_fixed_point(self) -> IntArray:
        r"""Find the thresholds of least memory for this margin without a solver, shape (L,).

        They are the least solution of :math:`n_1 = \lceil \Lambda_1 T(n) \rceil`,
        :math:`n_{i+1} = \lceil p_i^{1 - \varepsilon} n_i \rceil` in every coordinate.
        """
        rate, work = self._exact_rates[0], self._work
        ratios = [Fraction(ratio) for ratio in self.ratios.tolist()]
        relative = np.cumprod([1.0, *self.ratios])
        load = float(rate) * sum(
            float(each) * part for each, part in zip(work, relative, strict=True)
        )
        if load >= 1:
            raise InfeasibleError(
                f"with these segments and the margin {self.margin:g} the load is {load:.4g}, but "
                "must be below 1; lower the margin, cut more segments or lower the rates"
            )

        def arriving(time: Fraction) -> list[int]:
            counts = [-(-(rate * time + STRICT) // 1)]
            for ratio in ratios:
                counts.append(-(-ratio * counts[-1] // 1))
            return counts

        start = constant_of(self.clock) + decimal(self.minimum_slack)
        time = start * Fraction((1 - 1e-9) / (1 - load))  # below that of any solution
        return least_counts(time, arriving, start, work, self.held_tokens + self.queue_tokens)

    def plan(
        self, thresholds: npt.ArrayLike, *, delta: float = 0.01, iterations: int = 10_000
    ) -> NestedWaitPlan:
        """Check one threshold per segment, and bound the memory they need.

        With probability 1 - delta the bound holds for the number of iterations. Thresholds that
        break (10), hold it with equality, or need more memory than there is raise an
        `InfeasibleError`.
        """
        tokens = self.held_tokens + self.queue_tokens
        chosen = checked_thresholds(thresholds, tokens, "segment")
        if not (0 < delta < 1 and iterations >= 1):
            raise ModelError(
                f"delta is {delta} and iterations is {iterations}, but delta must lie between 0 "
                "and 1 and there must be at least one iteration"
            )
        batch = constant_of(self.clock) + exact_sum(self._work, chosen.tolist())
        slack = int(chosen[0]) / self._exact_rates[0] - batch
        if slack <= 0 or slack < decimal(self.minimum_slack):
            raise InfeasibleError(
                f"the thresholds break (10): {chosen[0]} requests arrive in "
                f"{chosen[0] / self.rates[0]:.6g} s, and a batch takes {float(batch):.6g} s, which "
                f"is not {self.minimum_slack:g} s shorter; raise the first threshold or lower "
                "others"
            )
        decays = np.append(np.nan, queue_decay(chosen[:-1], chosen[1:], self.shares))
        reject_growth(chosen, self.shares, decays)
        plan = NestedWaitPlan(self, chosen, decays, float(slack), delta, iterations)
        if self.memory is not None and plan.memory_bound > self.memory:
            raise InfeasibleError(
                f"the thresholds need {plan.memory_bound:,} tokens, {plan.memory:,} of them for a "
                f"full batch, but the memory is {self.memory:,}; change the margin or the "
                "segments, raise the memory or lower the rates"
            )
        return plan

    def iteration_time(self, thresholds: npt.ArrayLike) -> float:
        """Return the time of a batch of these requests per stage, even if (10) is broken."""
        counts = as_integers("thresholds", thresholds).tolist()
        return float(constant_of(self.clock) + exact_sum(self._work, counts))

    def best_margin(self, *, delta: float = 0.01, iterations: int = 10_000) -> NestedWaitPlan:
        """Return the plan of least memory bound over 60 margins; it is not proven optimal."""

        def plan(margin: float) -> NestedWaitPlan:
            program = replace(self, margin=margin, memory=None)
            return program.plan(program.least_fixed_point(), delta=delta, iterations=iterations)

        return best_plan(_MARGINS.tolist(), plan, self.memory)


def best_plan(
    margins: Iterable[float], plan: Callable[[float], NestedWaitPlan], memory: int | None
) -> NestedWaitPlan:
    """Return the plan of the least bound among those of ascending margins, within the memory."""
    plans: list[NestedWaitPlan] = []
    for margin in margins:
        try:
            plans.append(plan(margin))
        except InfeasibleError:
            if not plans:
                raise
            break  # larger margins only make larger batches
    best = min(plans, key=lambda plan: plan.memory_bound)
    program = replace(best.program, memory=memory)
    return program.plan(best.thresholds, delta=best.delta, iterations=best.iterations)


@dataclass(frozen=True, eq=False, repr=False)
class NestedWaitPlan:
    r"""Thresholds of Nested WAIT that hold (10), and the memory they need (12).

    Attributes
    ----------
    thresholds
        Requests per stage and batch in each segment, shape (L,).
    decays
        :math:`\theta_i` of the queue in front of each segment, shape (L,); NaN for the first,
        infinite where no queue can grow.
    slack
        Seconds by which the arrivals that fill the first segment take longer than a batch.
    delta, iterations
        Probability that the memory does not suffice at some time within these iterations.
    """

    program: NestedWaitThresholds
    thresholds: IntArray
    decays: FloatArray
    slack: float
    delta: float
    iterations: int

    @property
    def iteration_time(self) -> float:
        """Seconds of a full batch."""
        return float(self.thresholds[0] / self.program.rates[0]) - self.slack

    @property
    def memories(self) -> IntArray:
        """Tokens that a full batch holds in each segment, shape (L,)."""
        return self.program.held_tokens * self.thresholds

    @property
    def memory(self) -> int:
        """Tokens that a full batch holds: the first term of (12)."""
        return int(self.memories.sum())

    @property
    def queue_memory(self) -> int:
        """Tokens of queues as long as the thresholds: the second term of (12)."""
        return int(self.program.queue_tokens @ self.thresholds)

    @property
    def parts_by_segment(self) -> FloatArray:
        """Tokens of a full batch, of queues and of rare queues in each segment, shape (3, L)."""
        queues = self.program.queue_tokens
        rare = np.zeros(len(queues))
        logarithm = events_logarithm(len(queues), self.iterations, self.delta)
        rare[1:] = logarithm * queues[1:] / self.decays[1:]
        return np.array([self.memories, queues * self.thresholds, rare], dtype=np.float64)

    @property
    def rare_memory(self) -> int:
        """Tokens of longer queues: the last term of (12), with L - 1 as in the proof, not m."""
        return math.ceil(float(self.parts_by_segment[2].sum()) - 1e-9)

    @property
    def safety_stock(self) -> int:
        """Tokens beyond a full batch: what queues between segments may hold."""
        return self.queue_memory + self.rare_memory

    @property
    def memory_bound(self) -> int:
        r"""Tokens that suffice in all iterations with probability :math:`1 - \delta` (12)."""
        return self.memory + self.safety_stock

    @property
    def batch_size(self) -> int:
        """Requests in a full batch, at all stages."""
        stages = self.program.last_stages - self.program.first_stages + 1
        return int(stages @ self.thresholds)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the memory by segment; see `optsched.report.fluid.plot_nested_memory`."""
        return draw("plot_nested_memory", self, ax)

    def __repr__(self) -> str:
        return f"<NestedWaitPlan {self.thresholds.tolist()}: {self.memory_bound:,} tokens>"

    def __str__(self) -> str:
        lines = [
            f"memory that suffices for {self.iterations:,} iterations with probability "
            f"{1 - self.delta:.10g}: {self.memory_bound:,} tokens",
            f"  full batch  {self.memory:>8,}",
            f"  queues      {self.queue_memory:>8,}",
            f"  rare queues {self.rare_memory:>8,}",
            "  segment  stages     rate  threshold    tokens   decay",
        ]
        program, memories = self.program, self.memories
        for i, threshold in enumerate(self.thresholds):
            stages = f"{program.first_stages[i]}-{program.last_stages[i]}"
            decay = f"{self.decays[i]:>8.4g}" if i else ""
            rate = f"{program.rates[i]:>9.5g}"
            lines.append(f"  {i + 1:<5}{stages:>10}{rate}{threshold:>11,}{memories[i]:>10,}{decay}")
        return "\n".join(lines)
