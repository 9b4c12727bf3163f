r"""Methods that select a batch (Sorted-F, Section 5 and Alg. 2-5).

**Swap** (Alg. 4). Members before the last swap need no second look unless it freed memory: if
`out` was swapped for `in` and could serve an earlier member :math:`e` that had found nothing, then
:math:`P_{out} - P_e \le slack - P_{in} + P_{out}`, so that `in` was in reach of :math:`e`; then
:math:`o_{in} \ge o_e`, and :math:`o_{out} > o_{in}`.

**Scaled** (Alg. 3). Rounding peaks lacks the factor :math:`1 + \varepsilon` that the paper states.
Here outputs are rounded, :math:`v_i = \lfloor o_i / \delta \rfloor`, and peaks stay exact: if
:math:`X` of :math:`k` requests has the least :math:`\sum v_i` that fits and :math:`X^*` is best,
:math:`\sum_{i \in X} o_i \le \sum_{i \in X^*} o_i + k \delta`, within the factor where
:math:`\delta \le \varepsilon L_k / k` for a lower bound :math:`L_k` on the outputs of :math:`k`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from optsched._internal.arrays import ranks_in
from optsched._internal.aside import stopwatch
from optsched._internal.compiled import allocating, compiled
from optsched._internal.numbers import round_down
from optsched._internal.small_kernels import ABSENT, leftmost_below, new_tree, put
from optsched.errors import InfeasibleError, SolverError, require_known
from optsched.models.program import Solution, Stopped
from optsched.problem.instance import Instance
from optsched.problem.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.models.batch import BatchSelection, Fit
    from optsched.models.linear import LinearModel


_FILL = -1  # in place of a number of members


class LocalSwap:
    """Batch selection by Alg. 4 (swap) among the requests released so far."""

    def __init__(self, instance: Instance) -> None:
        self._by_peak = np.argsort(instance.peaks, kind="stable")
        self._rank = ranks_in(self._by_peak)
        self._peaks = instance.peaks[self._by_peak]
        self._outputs = instance.outputs[self._by_peak]
        self._memory = instance.memory
        self._tree = new_tree(len(instance))
        self._members = np.empty(len(instance), dtype=np.int64)

    def release(self, requests: IntArray) -> None:
        """Learn of requests that have arrived, given by index."""
        _insert(self._tree, self._outputs, self._rank[requests])

    def next_batch(self) -> IntArray:
        """Take the next batch out of those waiting, by ascending output."""
        return self._swapped(self._members, _FILL)

    def take(self, members: IntArray) -> IntArray:
        """Take a batch, given by ranks, out of those waiting."""
        for rank in members:
            put(self._tree, rank, ABSENT)
        return members

    def improve(self, members: IntArray) -> IntArray:
        """Swap members of a batch, ranks by ascending peak; gives requests by ascending output."""
        return self._swapped(members, len(members))

    def _swapped(self, members: IntArray, count: int) -> IntArray:
        given = self._peaks, self._outputs, self._memory, members, count
        members = members[: _swap_kernel(self._tree, *given)]
        order = np.argsort(self._outputs[members], kind="stable")
        return self._by_peak[members[order]]


@compiled
def _insert(tree: IntArray, outputs: IntArray, ranks: IntArray) -> None:
    for place in range(len(ranks)):
        put(tree, ranks[place], outputs[ranks[place]])


@compiled
def _swap_kernel(
    tree: IntArray, peaks: IntArray, outputs: IntArray, memory: int, members: IntArray, count: int
) -> int:
    """Swap in place, maybe fill before; `members` stays ascending. Return how many there are."""
    slack = memory
    for position in range(count):
        slack -= peaks[members[position]]
    if count == _FILL:  # by ascending peak: once one does not fit, no later one does
        count, rank = 0, leftmost_below(tree, ABSENT)
        while rank >= 0 and peaks[rank] <= slack:
            members[count] = rank
            count += 1
            slack -= peaks[rank]
            put(tree, rank, ABSENT)
            rank = leftmost_below(tree, ABSENT)
    position = 0
    while position < count:
        leaving = members[position]
        entering = leftmost_below(tree, outputs[leaving])
        if entering < 0 or peaks[entering] > peaks[leaving] + slack:
            position += 1
            continue
        slack += peaks[leaving] - peaks[entering]
        put(tree, entering, ABSENT)
        put(tree, leaving, outputs[leaving])
        place = position
        while place > 0 and members[place - 1] > entering:
            members[place] = members[place - 1]
            place -= 1
        while place + 1 < count and members[place + 1] < entering:
            members[place] = members[place + 1]
            place += 1
        members[place] = entering
        freed = peaks[entering] < peaks[leaving]  # then any member may have found a partner
        if freed:
            position = 0
        elif place < position:
            position = place
    return count


BatchMethod = Literal["auto", "dp", "scaled-dp", "swap", "quantile", "highs", "cp-sat"]
BATCH_METHODS: tuple[BatchMethod, ...] = get_args(BatchMethod)
#: Methods of this room, with the parameters of `SolveParams` that each of them uses.
OWN_METHODS = {"dp": (), "scaled-dp": ("epsilon",), "swap": (), "quantile": ("seed",)}
Bits = npt.NDArray[np.uint8]

_TABLE_BYTES = 2**30
_SMALL_TABLE = 10**9  # cells, which take about a second
_NEVER = 2**62
_SAMPLE, _QUANTILE = 0.5, 0.3  # of Alg. 5


@dataclass(frozen=True, eq=False)
class Batch:
    """Requests by ascending output, their F, and a proven bound on the F of all batches."""

    requests: IntArray
    ratio: Fraction
    method: str
    bound: Fraction | None = None
    selection: BatchSelection | None = field(default=None, repr=False)

    @property
    def factor(self) -> float | None:
        """The factor by which a better batch is ruled out; None where nothing is proven."""
        return -round_down(-self.ratio / self.bound) if self.bound else None

    def __len__(self) -> int:
        return len(self.requests)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the tokens that its requests hold if all start together, and the memory."""
        asked = cast("BatchSelection", self.selection)
        members = Instance(asked.prompts[self.requests], asked.outputs[self.requests], asked.memory)
        starts = np.zeros(len(members), dtype=np.int64)
        return Schedule(members, starts, f"batch by {self.method}").plot(ax)


def select_batch(
    instance: Instance,
    method: BatchMethod = "auto",
    fit: Fit = "peak",
    *,
    size: int | None = None,
    epsilon: float = 0.1,
    seed: int = 0,
    time_limit: float | None = None,
) -> Batch:
    """Select the batch of least F, or one that is nearly so; arrivals do not count."""
    from optsched.models.batch import BatchSelection
    from optsched.solvers.backends.base import Options
    from optsched.solvers.backends.driver import solve_linear

    require_known("method", method, BATCH_METHODS, SolverError)
    selection = BatchSelection(instance.prompts, instance.outputs, instance.memory, fit, size)
    if (chosen := suited(selection, method)) in OWN_METHODS:
        return select_here(selection, chosen, epsilon, seed)
    return select_by_programs(
        selection,
        chosen,
        lambda model, left: solve_linear(model, chosen, Options(left)),
        time_limit,
    )


def suited(selection: BatchSelection, method: str) -> str:
    """Return what "auto" stands for: a table that is not large, for the fit that it knows."""
    if method != "auto":
        return method
    width = min(selection.memory, int(_peaks(selection).sum()))
    small = len(selection) * _largest(selection) * width <= _SMALL_TABLE
    return "dp" if small and selection.fit == "peak" and not selection.own else "highs"


def select_here(selection: BatchSelection, method: str, epsilon: float, seed: int) -> Batch:
    """Select a batch by a method of this room."""
    if selection.fit != "peak":
        raise SolverError(
            f"method {method!r} knows only fit='peak'; use 'highs' or 'cp-sat' for "
            f"{selection.fit!r}"
        )
    if selection.own:
        raise SolverError(f"method {method!r} takes no rows of your own; use 'highs' or 'cp-sat'")
    if selection.size is not None and method != "dp":
        raise SolverError(
            f"method {method!r} chooses the size of the batch itself; leave size out, or use 'dp', "
            "'highs' or 'cp-sat'"
        )
    factor: float | None = None
    if method == "dp":
        members, factor = _exact(selection), 1.0
    elif method == "scaled-dp":
        members, factor = _scaled(selection, epsilon)
    elif method == "swap":
        members = _swap(selection)
    else:
        members = _quantile(selection, np.random.default_rng(seed))
    members = members[np.argsort(selection.outputs[members], kind="stable")]
    ratio = selection.ratio(members)
    proven = None if factor is None else ratio / Fraction(factor)
    return Batch(members, ratio, method, proven, selection)


def select_by_programs(
    selection: BatchSelection,
    method: str,
    solve: Callable[[LinearModel, float | None], Solution],
    time_limit: float | None,
) -> Batch:
    """Select a batch by the linear programs of its sizes; `solve` gets what is left of the time."""
    began = stopwatch()

    def solved(model: LinearModel) -> Solution:
        left = None
        if time_limit is not None:
            left = max(1e-3, time_limit - (stopwatch() - began))
        found = solve(model, left)
        if found.status is Stopped.ERROR:
            found.require(optimal=True)
        return found

    members, bound = selection.best(solved)
    if not len(members):  # out of time: some request fits alone
        if selection.own:
            raise SolverError(f"{method} found no batch in time that keeps the rows of your own")
        members = np.array([np.argmin(selection.outputs)])
    return Batch(members, selection.ratio(members), method, bound, selection)


def _peaks(selection: BatchSelection) -> IntArray:
    return selection.prompts + selection.outputs


def _largest(selection: BatchSelection) -> int:
    """Return the largest number of requests that fit together by their peaks."""
    return int((np.cumsum(np.sort(_peaks(selection))) <= selection.memory).sum())


def _table(requests: int, sizes: int, width: int, remedy: str) -> Bits:
    """Allocate one bit per request, batch size and column of a table."""
    shape = (requests, sizes + 1, width // 8 + 1)
    if (size := shape[0] * shape[1] * shape[2]) > _TABLE_BYTES:
        raise SolverError(
            f"the table for {requests} requests in batches of up to {sizes} would take "
            f"{size / 2**30:.1f} GB; {remedy}"
        )
    return np.zeros(shape, dtype=np.uint8)


def _exact(selection: BatchSelection) -> IntArray:
    peaks, outputs = _peaks(selection), selection.outputs
    largest, size = _largest(selection), selection.size
    if size is not None and size > largest:
        raise InfeasibleError(
            f"no batch of {size} requests fits into the memory of {selection.memory} tokens; the "
            f"largest has {largest}"
        )
    width = min(selection.memory, int(peaks.sum()))
    taken = _table(len(selection), size or largest, width + 1, "use 'scaled-dp', 'swap' or 'highs'")
    least = _tabulate(peaks, outputs, size or largest, width, taken)[:, width]
    if size is None:
        size = -min((Fraction(int(least[k]), k * k), -k) for k in range(1, largest + 1))[1]
    return _trace(peaks, taken, size, width)


def _scaled(selection: BatchSelection, epsilon: float) -> tuple[IntArray, float]:
    if not 0 < epsilon < float("inf"):
        raise SolverError(f"epsilon is {epsilon!r}, but must be a positive number")
    peaks, outputs, memory = _peaks(selection), selection.outputs, selection.memory
    best = _swap(selection)
    known = selection.ratio(best)
    largest = _largest(selection)
    least = _least_sums(selection, largest)
    sizes = np.arange(1, largest + 1)
    sizes = sizes[least <= float(known) * sizes**2 * (1 + 1e-9)]
    delta = max(1, int(epsilon * float((least[sizes - 1] / sizes).min())))
    values = outputs // delta
    width = int(known * int(sizes[-1]) ** 2) // delta
    remedy = "use a larger epsilon, 'swap' or 'highs'"
    taken = _table(len(selection), int(sizes[-1]), width + 1, remedy)
    held = _tabulate(values, peaks, int(sizes[-1]), width, taken)
    for size in sizes.tolist():
        fitting = np.flatnonzero(held[size] <= memory)
        if len(fitting):
            members = _trace(values, taken, size, int(fitting[0]))
            key = (selection.ratio(members), -size)
            if key < (selection.ratio(best), -len(best)):
                best = members
    return best, 1.0 if delta == 1 else 1.0 + epsilon


def _least_sums(selection: BatchSelection, largest: int) -> FloatArray:
    r"""Bound the sum of outputs of k requests that fit from below, for k = 1, ..., largest."""
    scale = float(selection.outputs.max()) / float(_peaks(selection).min())
    prices = np.concatenate([[0.0], scale * np.geomspace(1e-4, 10, 40)])
    costs = np.sort(selection.outputs + prices[:, None] * _peaks(selection), axis=1)
    sums = np.cumsum(costs, axis=1)[:, :largest] - prices[:, None] * selection.memory
    rounding = 1e-9 * (np.abs(sums) + prices[:, None] * selection.memory)
    return np.asarray(np.maximum((sums - rounding).max(axis=0), np.arange(1, largest + 1)))


def _swap(selection: BatchSelection) -> IntArray:
    selector = LocalSwap(Instance(selection.prompts, selection.outputs, selection.memory))
    selector.release(np.arange(len(selection)))
    return selector.next_batch()


def _quantile(selection: BatchSelection, generator: np.random.Generator) -> IntArray:
    """Select by Alg. 5; ties are broken by index, quantiles interpolated linearly."""
    peaks, outputs = _peaks(selection), selection.outputs
    size = max(1, int(_SAMPLE * len(selection)))
    sample = generator.choice(len(selection), size, replace=False)
    core = (peaks <= np.quantile(peaks[sample], _QUANTILE)) & (
        outputs <= np.quantile(outputs[sample], _QUANTILE)
    )
    by_output = np.argsort(outputs, kind="stable")
    taken = np.zeros(len(selection), dtype=bool)
    spare = fill(peaks, by_output[core[by_output]], selection.memory, taken)
    rest = np.flatnonzero(~taken)
    by_share = rest[np.argsort(outputs[rest] / peaks[rest], kind="stable")]
    fill(peaks, by_share, spare, taken)
    return np.flatnonzero(taken)


@allocating
def _tabulate(
    weights: IntArray, costs: IntArray, largest: int, width: int, taken: Bits
) -> IntArray:
    """Find the least cost of k requests whose weights sum to at most w, for all k and w."""
    least = np.full((largest + 1, width + 1), _NEVER)
    least[0] = 0
    for i in range(len(weights)):
        weight, cost = weights[i], costs[i]
        for size in range(min(largest, i + 1), 0, -1):
            before, now, bits = least[size - 1], least[size], taken[i, size]
            for w in range(weight, width + 1):
                value = before[w - weight] + cost
                if value < now[w]:
                    now[w] = value
                    bits[w >> 3] |= np.uint8(1 << (w & 7))
    return least


@allocating
def _trace(weights: IntArray, taken: Bits, size: int, width: int) -> IntArray:
    members = np.empty(size, dtype=np.int64)
    for i in range(len(weights) - 1, -1, -1):
        if size > 0 and (taken[i, size, width >> 3] >> (width & 7)) & 1:
            size -= 1
            width -= weights[i]
            members[size] = i
    return members


@compiled
def fill(peaks: IntArray, order: IntArray, spare: int, taken: BoolArray) -> int:
    """Take the requests that fit, in order, and return the tokens left."""
    for request in order:
        if peaks[request] <= spare:
            taken[request] = True
            spare -= peaks[request]
    return spare
