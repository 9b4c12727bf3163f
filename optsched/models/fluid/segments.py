r"""Where to cut the stages of Nested WAIT into segments (Fluid, Section 7.2), by shortest path."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.arrays import as_integers
from optsched._internal.views import draw
from optsched.errors import InfeasibleError, ModelError
from optsched.models.fluid.equilibrium import constant_of, equilibrium
from optsched.models.fluid.nested import STRICT, NestedWaitThresholds, best_plan
from optsched.models.fluid.queues import events_logarithm, queue_decay
from optsched.problem.request_types import stage_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt
    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock
    from optsched.models.fluid.equilibrium import Equilibrium
    from optsched.models.fluid.nested import NestedWaitPlan
    from optsched.problem.request_types import RequestTypes

_MAX_BORDERS = 150  # candidates: their pairs are all looked at
_MARGINS = (0.02, 0.05, 0.1, 0.2, 0.3)
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
        """Plot memory against segments; see `optsched.report.fluid.plot_segments`."""
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
        decay = queue_decay(self.thresholds[u], after[v], rates[v + 1] / rates[u])
        with np.errstate(divide="ignore"):
            scaled[u, v] = (prompt + ends[v]) / decay
        plain[np.isinf(scaled)] = np.inf  # rounding has brought a threshold to equality in (10)
        scaled[np.isinf(scaled)] = 0
        return plain, scaled

    def _costs_in(self, segments: int) -> FloatArray:
        """Cost of a segment from node u to candidate v where there are so many segments."""
        plain, scaled = self._costs
        return plain + events_logarithm(segments, self.iterations, self.delta) * scaled

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
        logarithm = events_logarithm(number, self.iterations, self.delta)
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
        _MARGINS if margin is None else (margin,),
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
