"""What the cheapest start of each request costs, as verifiers find it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from optsched._internal.arrays import IntArray
    from optsched.problem.instance import Instance

_CHUNK = 8192


def least_costs(
    instance: Instance,
    prices: Sequence[int],
    denominator: int,
    objective: str,
    charges: Sequence[int] = (),
    size: int = 0,
    credited: Sequence[int] = (0,),
) -> int:
    """Add up what the cheapest start of each request costs, times the denominator.

    The first `size` tokens of a request may be charged for beside the prices, and completing at a
    step be credited; what is credited falls beyond the last price.
    """
    horizon, spent = len(prices), sum(prices) + sum(charges)
    weights = [1.0] * len(instance)
    if objective == "weighted-latency" and instance.weights is not None:
        weights = instance.weights.tolist()
    # A step of latency costs its weight times the denominator, rounded down.
    steps = [math.floor(Fraction(weight) * denominator) for weight in weights]
    most = max(credited)
    # Everything below stays under `limit`; beyond 64 bits numpy computes with Python's integers.
    limit = (instance.memory + size + horizon + 1) * (spent * 2 + max(steps)) + most
    kind: npt.DTypeLike = np.int64 if limit < 2**62 else object
    tokens = _Sums.of(prices, kind)
    counted = _Sums.of(charges or [0] * horizon, kind)
    credit = np.array(credited, dtype=kind)
    total = 0
    rows = np.column_stack([instance.prompts, instance.outputs, instance.arrivals]).tolist()
    for (prompt, output, arrival), step in zip(rows, steps, strict=True):
        # From the horizon on nothing is paid and credits fall, so that no later start is cheaper.
        last = max(horizon, arrival)
        best = step * (last + output - arrival) - credited[min(last + output, len(credited) - 1)]
        for first in range(arrival, horizon, _CHUNK):
            if step * (first + output - arrival) - most >= best:
                break  # prices are not negative
            start = np.arange(first, min(first + _CHUNK, horizon))
            latency = (start + output - arrival).astype(kind)
            cost = step * latency + tokens.paid(prompt, start, start + output)
            if charges:
                full = start + min(max(size - prompt, 0), output)  # then it has `size` tokens
                cost += counted.paid(prompt, start, full)
                cost += size * counted.between(full, start + output)
            cost -= credit[np.minimum(start + output, len(credit) - 1)]
            best = min(best, int(cost.min()))
        total += best
    return total


class _Sums(NamedTuple):
    """Sums of prices by which costs of starts are found; steps beyond the last price are free."""

    before: npt.NDArray[Any]  # of steps 1..t
    twice: npt.NDArray[Any]  # of `before`

    @classmethod
    def of(cls, prices: Sequence[int], kind: npt.DTypeLike) -> _Sums:
        before = np.zeros(len(prices) + 1, dtype=kind)
        before[1:] = np.cumsum(np.array(prices, dtype=kind))
        twice = np.zeros(len(prices) + 2, dtype=kind)
        twice[1:] = np.cumsum(before)
        return cls(before, twice)

    def between(self, start: IntArray, end: IntArray) -> npt.NDArray[Any]:
        """Return the price of a token at the steps after each start up to each end."""
        last = len(self.before) - 1
        ends, starts = self.before[np.minimum(end, last)], self.before[np.minimum(start, last)]
        return np.asarray(ends - starts)

    def paid(self, prompt: int, start: IntArray, end: IntArray) -> npt.NDArray[Any]:
        """Return what a request pays that holds a token more at each step."""
        end = np.minimum(end, len(self.before) - 1)
        # sum of u * p[start + u] by parts: end * before[end] minus the sums in between
        ramp = (end - start) * self.before[end] - (self.twice[end] - self.twice[start])
        return np.asarray(prompt * self.between(start, end) + ramp)
