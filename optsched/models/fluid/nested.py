r"""Thresholds of Nested WAIT, and memory that suffices with high probability (Fluid Eq. 10-12)."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.arrays import as_integers
from optsched.clock import get_clock
from optsched.errors import InfeasibleError, ModelError
from optsched.models.fluid.equilibrium import equilibrium
from optsched.models.fluid.nested_plan import NestedWaitPlan
from optsched.models.fluid.queues import queue_decay
from optsched.models.fluid.wait import check_limits, constant_of, exact_sum
from optsched.models.linear.model import Family, LinearModel, Rows, Variables, whole_numbers
from optsched.models.program import Program
from optsched.workloads.request_types import decimal, stage_tokens, stage_work

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock
    from optsched.workloads.request_types import RequestTypes

#: Requests by which the first threshold exceeds the arrivals of an iteration: (10) is strict.
STRICT = Fraction(1, 10**6)

_MARGINS = np.geomspace(0.002, 0.6, 60)


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

    >>> from optsched import NestedWaitThresholds, RequestTypes
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
        object.__setattr__(self, "borders", borders)
        self._check_borders(outputs)
        equilibrium(self.types, self.clock).require_stable()

    def _check_borders(self, outputs: IntArray) -> None:
        borders = self.last_stages
        longest = int(outputs[-1])
        if len(borders) == 0 or borders[-1] != longest:
            raise ModelError(
                f"the borders {borders.tolist()} must end at the longest output, {longest}"
            )
        ends = np.unique(np.searchsorted(borders, outputs))
        if (np.diff(borders) <= 0).any() or len(ends) < len(borders):
            raise ModelError(
                f"the borders {borders.tolist()} must ascend, and an output must end in each "
                f"segment; choose some of {outputs.tolist()[:20]}"
            )

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
        reach = np.cumsum(np.array(ending[::-1], dtype=object))[::-1]
        return list(reach)

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
        held: IntArray = stage_tokens(
            int(self.types.prompts[0]), self.first_stages, self.last_stages
        )
        return held

    @property
    def queue_tokens(self) -> IntArray:
        """Tokens held by a request that waits in front of each segment, shape (L,).

        None in front of the first: its prompt is not yet prefilled.
        """
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

    def to_linear(self) -> LinearModel:
        """Write the program as arrays.

        Returns
        -------
        LinearModel
            Columns ``threshold[segment]``; rows ``time`` and ``ratio[segment]``, and with a limit
            ``memory``, for the batch and the queues at their thresholds: the rest of the bound is
            not linear, and `plan` checks it. Segments are counted from 0.
        """
        count = len(self.last_stages)
        index = np.arange(count)
        rate = self._exact_rates[0]
        time = np.array([float(-rate * each) for each in self._work])
        time[0] += 1
        start = rate * (constant_of(self.clock) + decimal(self.minimum_slack)) + STRICT
        ratio = np.eye(count)[1:]
        ratio[np.arange(count - 1), np.arange(count - 1)] = -self.ratios
        thresholds = Variables(
            Family.of("threshold", segment=index), self.held_tokens, lower=1, integer=True
        )
        rows = [
            Rows(Family.of("time"), {"threshold": time[None, :]}, lower=float(start)),
            Rows(Family.of("ratio", segment=index[1:]), {"threshold": ratio}, lower=0),
        ]
        if self.memory is not None:
            use = (self.held_tokens + self.queue_tokens)[None, :]
            rows.append(Rows(Family.of("memory"), {"threshold": use}, upper=self.memory))
        return LinearModel.build("Nested WAIT thresholds", [thresholds], rows)

    def read(self, values: npt.ArrayLike, /) -> IntArray:
        """Turn a point of the linear model into thresholds, shape (L,).

        Raises
        ------
        ModelError
            If the point has another length or is fractional.
        """
        return whole_numbers(
            values, Family.of("threshold", segment=np.arange(len(self.last_stages)))
        )

    def write_point(self, thresholds: npt.ArrayLike, /) -> FloatArray:
        """Turn thresholds into a point of the linear model."""
        return as_integers("thresholds", thresholds).astype(np.float64)

    def least_fixed_point(self) -> IntArray:
        r"""Find the thresholds of least memory for this margin without a solver.

        Returns
        -------
        IntArray
            The least solution of :math:`n_1 = \lceil \Lambda_1 T(n) \rceil`,
            :math:`n_{i+1} = \lceil p_i^{1 - \varepsilon} n_i \rceil` in every coordinate, shape
            (L,).

        Raises
        ------
        InfeasibleError
            If no thresholds keep this margin.
        """
        rate, work = self._exact_rates[0], self._work
        start = constant_of(self.clock) + decimal(self.minimum_slack)
        ratios = [Fraction(ratio) for ratio in self.ratios.tolist()]
        relative = np.cumprod([1.0, *self.ratios])
        load = float(rate) * sum(
            float(each) * part for each, part in zip(work, relative, strict=True)
        )
        if load >= 1:
            raise InfeasibleError(
                f"with these segments and the margin {self.margin:g} the load is "
                f"{load:.4g}, but must be below 1; lower the margin, cut more segments or "
                "lower the rates"
            )
        time = start * Fraction((1 - 1e-9) / (1 - load))  # below that of any solution
        chosen: list[int] = []
        while True:
            larger = [max(1, -(-(rate * time + STRICT) // 1))]
            for ratio in ratios:
                larger.append(max(1, -(-ratio * larger[-1] // 1)))
            time = start + exact_sum(work, larger)
            if larger == chosen:
                return np.array(chosen, dtype=np.int64)
            chosen = larger

    def plan(
        self, thresholds: npt.ArrayLike, *, delta: float = 0.01, iterations: int = 10_000
    ) -> NestedWaitPlan:
        r"""Check thresholds and bound the memory they need.

        Parameters
        ----------
        thresholds
            One per segment.
        delta
            Probability :math:`\delta` that more memory is needed at some time.
        iterations
            Iterations :math:`S` for which that shall hold.

        Returns
        -------
        NestedWaitPlan
            Iteration time, and memory by its parts.

        Raises
        ------
        InfeasibleError
            If (10) is broken or holds with equality, or the memory does not suffice.
        ModelError
            If there is not one positive threshold per segment, or a number is out of range.
        """
        chosen = as_integers("thresholds", thresholds)
        if chosen.shape != self.last_stages.shape or (chosen < 1).any():
            raise ModelError(
                f"thresholds are {chosen.tolist()}, but must be {len(self.last_stages)} numbers of "
                "at least 1, one per segment"
            )
        if not (0 < delta < 1 and iterations >= 1):
            raise ModelError(
                f"delta is {delta} and iterations is {iterations}, but delta must lie between 0 "
                "and 1 and there must be at least one iteration"
            )
        slack = self._exact_slack(chosen)
        if slack <= 0 or slack < decimal(self.minimum_slack):
            raise InfeasibleError(
                f"the thresholds break (10): {chosen[0]} requests arrive in "
                f"{chosen[0] / self.rates[0]:.6g} s, and a batch takes "
                f"{float(chosen[0] / self._exact_rates[0] - slack):.6g} s, which is not "
                f"{max(self.minimum_slack, 0):g} s shorter; raise the first threshold or lower "
                "others"
            )
        decays = np.append(np.nan, queue_decay(chosen[:-1], chosen[1:], self.shares))
        self._check_ratios(chosen, decays)
        plan = NestedWaitPlan(self, chosen, decays, float(slack), delta, iterations)
        if self.memory is not None and plan.memory_bound > self.memory:
            raise InfeasibleError(
                f"the thresholds need {plan.memory_bound:,} tokens, {plan.memory:,} of them for a "
                f"full batch, but the memory is {self.memory:,}; change the margin or the "
                "segments, raise the memory or lower the rates"
            )
        return plan

    def iteration_time(self, thresholds: npt.ArrayLike) -> float:
        """Return the time of a batch with so many requests per stage, also if (10) is broken."""
        counts = as_integers("thresholds", thresholds).tolist()
        return float(constant_of(self.clock) + exact_sum(self._work, counts))

    def _exact_slack(self, thresholds: IntArray) -> Fraction:
        counts = thresholds.tolist()
        batch = exact_sum(self._work, counts)
        gathering: Fraction = counts[0] / self._exact_rates[0]
        return gathering - constant_of(self.clock) - batch

    def _check_ratios(self, thresholds: IntArray, decays: FloatArray) -> None:
        for i in np.flatnonzero(decays == 0).tolist():
            before, here = int(thresholds[i - 1]), int(thresholds[i])
            share = float(self.shares[i - 1])
            needed = math.floor(before * share * (1 + 1e-9)) + 1
            equal = abs(here - share * before) <= 1e-9 * before
            how = "holds with equality" if equal else "is broken"
            why = (
                "theta is 0 and no finite stock covers the queue in front of it"
                if equal
                else "the queue in front of it grows without end"
            )
            raise InfeasibleError(
                f"(10) {how} for segment {i + 1}: {before} * {share:.6g} requests reach it per "
                f"batch, its threshold is {here}, so {why}; it must be at least {needed}"
            )

    def best_margin(self, *, delta: float = 0.01, iterations: int = 10_000) -> NestedWaitPlan:
        """Try margins, each with its least thresholds, and keep the least bound on the memory.

        The bound is not convex in the margin: this is the best of 60 margins from 0.002 to 0.6,
        not a proven optimum.

        Parameters
        ----------
        delta, iterations
            As for `plan`.

        Returns
        -------
        NestedWaitPlan
            The best found; its program has the margin.

        Raises
        ------
        InfeasibleError
            If none of them fits.
        """
        best: NestedWaitPlan | None = None
        refusal = InfeasibleError("no margin was tried")
        for margin in _MARGINS.tolist():
            program = replace(self, margin=margin, memory=None)
            try:
                thresholds = program.least_fixed_point()
            except InfeasibleError as error:
                refusal = error if best is None else refusal
                break  # larger margins only make larger batches
            plan = program.plan(thresholds, delta=delta, iterations=iterations)
            if best is None or plan.memory_bound < best.memory_bound:
                best = plan
        if best is None:
            raise refusal
        program = replace(best.program, memory=self.memory)
        return program.plan(best.thresholds, delta=delta, iterations=iterations)
