"""Nested WAIT: segments of unknown outputs."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.arrays import FloatArray, IntArray, as_integers
from optsched._internal.views import draw
from optsched.clock import Clock, get_clock
from optsched.errors import InfeasibleError, ModelError
from optsched.models.fluid import wait
from optsched.models.fluid.equilibrium import Equilibrium, constant_of, equilibrium
from optsched.models.linear import Family, LinearModel, Rows, Variables, whole_numbers
from optsched.models.program import Program
from optsched.problem.request_types import RequestTypes, decimal, stage_tokens, stage_work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt
    from matplotlib.axes import Axes


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
    clock, memory
        As of `WaitThresholds`.
    borders
        Last stage of each segment, ascending, the last at the longest output; None for one at
        each output length.
    margin
        :math:`\varepsilon`, above 0 and at most 1. A small one needs large stock, a large one large
        batches.
    minimum_slack
        Seconds :math:`\sigma \ge 0` by which :math:`n_1` arrivals take longer than a batch.

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
        wait.check_limits(self.types, self.memory, None, self.minimum_slack)
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
        return wait.least_counts(time, arriving, start, work, self.held_tokens + self.queue_tokens)

    def plan(
        self, thresholds: npt.ArrayLike, *, delta: float = 0.01, iterations: int = 10_000
    ) -> NestedWaitPlan:
        """Check one threshold per segment, and bound the memory they need.

        With probability 1 - delta the bound holds for the number of iterations. Thresholds that
        break (10), hold it with equality, or need more memory than there is raise an
        `InfeasibleError`.
        """
        tokens = self.held_tokens + self.queue_tokens
        chosen = wait.checked_thresholds(thresholds, tokens, "segment")
        if not (0 < delta < 1 and iterations >= 1):
            raise ModelError(
                f"delta is {delta} and iterations is {iterations}, but delta must lie between 0 "
                "and 1 and there must be at least one iteration"
            )
        batch = constant_of(self.clock) + wait.exact_sum(self._work, chosen.tolist())
        slack = int(chosen[0]) / self._exact_rates[0] - batch
        if slack <= 0 or slack < decimal(self.minimum_slack):
            raise InfeasibleError(
                f"the thresholds break (10): {chosen[0]} requests arrive in "
                f"{chosen[0] / self.rates[0]:.6g} s, and a batch takes {float(batch):.6g} s, which "
                f"is not {self.minimum_slack:g} s shorter; raise the first threshold or lower "
                "others"
            )
        decays = np.append(np.nan, wait.queue_decay(chosen[:-1], chosen[1:], self.shares))
        wait.reject_growth(chosen, self.shares, decays)
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
        return float(constant_of(self.clock) + wait.exact_sum(self._work, counts))

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
        logarithm = wait.events_logarithm(len(queues), self.iterations, self.delta)
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
        """Plot the memory by segment; see `optsched.report.runs.plot_nested_memory`."""
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


_MAX_BORDERS = 150  # candidates: their pairs are all looked at
_SEGMENT_MARGINS = (0.02, 0.05, 0.1, 0.2, 0.3)
_LARGEST_THRESHOLD = 10**6


@dataclass(frozen=True, eq=False, repr=False)
class SegmentDesign:
    r"""Number and borders of the segments that minimise the memory bound (12) of Nested WAIT.

    Few segments hold short requests at too many stages, many have many queues. With a border at
    :math:`b`, requests go on at the rate :math:`\Lambda(b) = \sum_{l'_j > b} \lambda_j`, and the
    threshold of the segment that begins there is

    .. math:: n(b) = \bigl\lceil n_1 (\Lambda(b) / \Lambda(0))^{1 - \varepsilon} \bigr\rceil

    which keeps (10) with the margin :math:`\varepsilon`. So the bound on the memory is a sum over
    the segments from border :math:`u` to border :math:`v`,

    .. math:: n(u) \sum_{k = u + 1}^{v} (l + k) + (l + v) \bigl( n(v) +
        \tfrac{1}{\theta(u, v)} \ln \tfrac{(L - 1) S}{\delta} \bigr)

    where nothing waits behind the last, and the best borders of :math:`L` segments are a shortest
    path of :math:`L` arcs from the first stage to the longest output. Only output lengths are tried
    as borders: all of them, or 150 spread over them if there are more.

    Parameters
    ----------
    types, margin
        As of `NestedWaitThresholds`.
    first_threshold
        :math:`n_1`.
    delta, iterations
        The bound holds for this number of iterations with probability 1 - delta.

    Examples
    --------
    >>> from optsched import RequestTypes
    >>> from optsched.models import SegmentDesign
    >>> types = RequestTypes([10] * 4, [20, 40, 80, 160], [20, 40, 80, 160])
    >>> design = SegmentDesign(types, first_threshold=60)
    >>> borders, bound = design.best()
    >>> borders, bound
    (array([ 40,  80, 160]), 591626)
    """

    types: RequestTypes
    first_threshold: int
    margin: float = 0.1
    delta: float = 0.01
    iterations: int = 10_000

    def __post_init__(self) -> None:
        if len(set(self.types.prompts.tolist())) > 1:
            raise ModelError("segments need types of one prompt; use types.with_one_prompt()")
        for name, good, rule in (
            ("first_threshold", self.first_threshold >= 1, "at least 1"),
            ("margin", 0 < self.margin <= 1, "above 0 and at most 1"),
            ("delta", 0 < self.delta < 1, "between 0 and 1"),
            ("iterations", self.iterations >= 1, "at least 1"),
        ):
            if not good:
                raise ModelError(f"{name} is {getattr(self, name)}, but must be {rule}")

    def plot(self, numbers: Iterable[int] | None = None, ax: Axes | None = None) -> Axes:
        """Plot memory against segments; see `optsched.report.runs.plot_segments`."""
        return draw("plot_segments", self, numbers, ax)

    def __repr__(self) -> str:
        count = len(self.candidates)
        return f"<SegmentDesign: {count} borders, first threshold {self.first_threshold}>"

    @functools.cached_property
    def candidates(self) -> IntArray:
        """Borders to choose from, ascending, shape (B,)."""
        outputs = np.unique(self.types.outputs)
        places = np.linspace(0, len(outputs) - 1, min(len(outputs), _MAX_BORDERS))
        return np.asarray(outputs[np.unique(np.rint(places).astype(np.int64))])

    @functools.cached_property
    def thresholds(self) -> IntArray:
        """Threshold of the segment that begins after each node, shape (B,)."""
        reach = self._rates / self._rates[0]
        exact = self.first_threshold * reach ** (1 - self.margin)
        thresholds: IntArray = np.maximum(np.ceil(exact - 1e-9), 1).astype(np.int64)
        return thresholds

    @functools.cached_property
    def _rates(self) -> FloatArray:
        starts = np.append(-1, self.candidates[:-1])
        order = np.argsort(self.types.outputs)
        below = np.searchsorted(self.types.outputs[order], starts, side="right")
        tails = np.append(np.cumsum(self.types.rates[order][::-1])[::-1], 0.0)
        return np.asarray(tails[below], dtype=np.float64)

    @functools.cached_property
    def _costs(self) -> tuple[FloatArray, FloatArray]:
        """Cost of a segment from node u to candidate v, and the part that the logarithm scales."""
        prompt, ends, count = int(self.types.prompts[0]), self.candidates, len(self.candidates)
        firsts = np.append(self.types.first_stage, ends[:-1] + 1)
        forward = np.arange(count)[:, None] <= np.arange(count)
        held = stage_tokens(prompt, firsts[:, None], ends[None, :])
        plain = np.where(forward, self.thresholds[:, None] * held, np.inf).astype(np.float64)
        scaled = np.zeros((count, count))
        after, rates = self.thresholds[1:], self._rates
        plain[:, :-1] += (prompt + ends[:-1]) * after
        u, v = np.nonzero(forward[:, :-1])
        decay = wait.queue_decay(self.thresholds[u], after[v], rates[v + 1] / rates[u])
        with np.errstate(divide="ignore"):
            scaled[u, v] = (prompt + ends[v]) / decay
        plain[np.isinf(scaled)] = np.inf  # rounding has brought a threshold to equality in (10)
        scaled[np.isinf(scaled)] = 0
        return plain, scaled

    def _costs_in(self, segments: int) -> FloatArray:
        """Cost of a segment from node u to candidate v where there are so many segments."""
        plain, scaled = self._costs
        return plain + wait.events_logarithm(segments, self.iterations, self.delta) * scaled

    def best(self, segments: int | None = None) -> tuple[IntArray, int]:
        """Find the borders of least bound, by shortest path.

        Numbers of segments are tried from 1 on, until the shortest path with the logarithm of the
        next number, which is a bound for all larger numbers, is no shorter than the best found.
        """
        if segments is not None:
            found = self._path(segments)
            if not np.isfinite(found[1]):
                raise InfeasibleError(
                    f"no borders of {segments} segments keep (10) with whole thresholds: the "
                    f"first threshold, {self.first_threshold}, is too small"
                )
            return found[0], math.ceil(found[1] - 1e-6)
        best = self._path(1)
        for number in range(2, len(self.candidates) + 1):
            if self._shortest(self._costs_in(number)) >= best[1]:
                break
            best = min(best, self._path(number), key=lambda path: path[1])
        return best[0], math.ceil(best[1] - 1e-6)

    def bounds(self, numbers: Iterable[int]) -> list[int | None]:
        """Return the least bound for each number of segments; None where none keeps (10)."""
        values = [self._path(number)[1] for number in numbers]
        return [math.ceil(value - 1e-6) if np.isfinite(value) else None for value in values]

    def parts(self, number: int) -> tuple[float, float, float] | None:
        """Split the least bound for a number of segments into its terms; None if (10) is broken."""
        borders, bound = self._path(number)
        if not np.isfinite(bound):
            return None
        starts, ends = self._nodes(borders)
        logarithm = wait.events_logarithm(number, self.iterations, self.delta)
        rare = logarithm * float(self._costs[1][starts, ends].sum())
        waiting = int(self.types.prompts[0]) + borders[:-1]
        queues = float(waiting @ self.thresholds[starts[1:]])
        return self.cost(borders) - queues - rare, queues, rare

    def cost(self, borders: npt.ArrayLike) -> float:
        """Return the bound in tokens for given borders; infinite if they do not keep (10)."""
        chosen = as_integers("borders", borders)
        if not np.isin(chosen, self.candidates).all() or (np.diff(chosen) <= 0).any():
            raise ModelError(f"the borders {chosen.tolist()} must ascend and be candidates")
        if chosen.size == 0 or chosen[-1] != self.candidates[-1]:
            raise ModelError(f"the last border must be the longest output, {self.candidates[-1]}")
        starts, ends = self._nodes(chosen)
        return float(self._costs_in(len(chosen))[starts, ends].sum())

    def thresholds_of(self, borders: npt.ArrayLike) -> IntArray:
        """Return the thresholds of segments with these borders, shape (L,)."""
        return self.thresholds[self._nodes(as_integers("borders", borders))[0]]

    def _nodes(self, borders: IntArray) -> tuple[IntArray, IntArray]:
        ends = np.searchsorted(self.candidates, borders)
        return np.append(0, ends[:-1] + 1), ends

    def _path(self, segments: int) -> tuple[IntArray, float]:
        count = len(self.candidates)
        if not 1 <= segments <= count:
            raise ModelError(f"there are {count} borders to choose from, not {segments}")
        cost = self._costs_in(segments)
        reached = np.full(count + 1, np.inf)
        reached[0] = 0
        before = np.zeros((segments, count), dtype=np.int64)
        for layer in range(segments):
            lengths = reached[:-1, None] + cost
            before[layer] = np.argmin(lengths, axis=0)
            reached = np.append(np.inf, lengths.min(axis=0))
        borders = np.zeros(segments, dtype=np.int64)
        node = count
        for layer in reversed(range(segments)):
            borders[layer] = self.candidates[node - 1]
            node = int(before[layer, node - 1])
        return borders, float(reached[-1])

    @staticmethod
    def _shortest(cost: FloatArray) -> float:
        reached = np.zeros(len(cost) + 1)
        for end in range(len(cost)):
            reached[end + 1] = (reached[: end + 1] + cost[: end + 1, end]).min()
        return float(reached[-1])


def design_segments(
    types: RequestTypes,
    clock: str | Clock,
    *,
    segments: int | None = None,
    margin: float | None = None,
    delta: float = 0.01,
    iterations: int = 10_000,
    memory: int | None = None,
) -> NestedWaitPlan:
    """Design segments together with a first threshold that keeps up with the arrivals.

    Arguments are those of `SegmentDesign` and `NestedWaitThresholds`; a number of segments or a
    margin that is None is chosen for the least bound.
    """
    found = equilibrium(types, clock)
    found.require_stable()
    return best_plan(
        _SEGMENT_MARGINS if margin is None else (margin,),
        lambda margin: _design(found, segments, margin, delta, iterations),
        memory,
    )


def _design(
    found: Equilibrium, segments: int | None, margin: float, delta: float, iterations: int
) -> NestedWaitPlan:
    types = found.types
    rate = float(types.rates.sum())
    first = max(1, math.ceil(rate * found.iteration_time))
    while first <= _LARGEST_THRESHOLD:
        design = SegmentDesign(types, first, margin, delta, iterations)
        try:
            borders, _ = design.best(segments)
        except InfeasibleError:  # whole thresholds are too coarse for so many segments
            first += max(1, first // 10)
            continue
        program = NestedWaitThresholds(types, found.clock, borders, margin=margin)
        thresholds = design.thresholds_of(borders)
        needed = math.ceil(rate * program.iteration_time(thresholds) + float(STRICT))
        if needed <= first:
            return program.plan(thresholds, delta=delta, iterations=iterations)
        alone = rate * float(constant_of(found.clock))
        load = (needed - alone) / first
        # Up to rounding these segments keep up from alone / (1 - load) on, or not at all; larger
        # batches make more segments worth their queues. Small steps find a small threshold.
        step = first + first // 10
        first = max(needed, step if load >= 1 else min(step, math.floor(alone / (1 - load))))
    raise InfeasibleError(
        f"no first threshold up to {_LARGEST_THRESHOLD:,} keeps up with the arrivals with the "
        f"margin {margin:g}{f' and {segments} segments' if segments else ''}; lower the margin, "
        "allow more segments or lower the rates"
    )
