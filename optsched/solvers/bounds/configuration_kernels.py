r"""Kernels of the configuration-size bound: costs of starts, largest sets, subgradient ascent.

`optsched.certificates.configurations` states what is computed here, and why it is a bound.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled
from optsched.certificates.configurations import items
from optsched.errors import OptschedError

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.instance import Instance

_CELLS = 100_000_000  # of one dynamic program
_LAST_STEP = 0.005  # what is left of the lengths of the steps in the end
_MEAN, _SQUARE = 0.9, 0.999  # Adam's memories


class Problem(NamedTuple):
    """The requests as the kernels see them: groups of equal requests, and items."""

    limit: int
    width: int  # at least the number of items that can run together
    tokens: IntArray  # of each item
    left: IntArray
    outputs: IntArray  # of each group
    arrivals: IntArray
    counts: IntArray
    first: IntArray
    place: IntArray

    @classmethod
    def of(cls, instance: Instance) -> Problem:
        """Group the requests of an instance."""
        rows = np.column_stack([instance.prompts, instance.outputs, instance.arrivals])
        groups, counts = np.unique(rows, axis=0, return_counts=True)
        prompts, outputs, arrivals = groups.T.copy()
        if outputs.sum() * (instance.memory + 1) > _CELLS:
            raise too_large(instance)
        pairs = items(instance)
        first = np.cumsum(outputs) - outputs
        token = np.arange(outputs.sum()) - np.repeat(first, outputs) + 1
        left = np.repeat(outputs, outputs) - token
        # Rows of `pairs` go by decreasing steps left, then by tokens.
        key = (pairs[:, 1].max() - pairs[:, 1]) * (instance.memory + 1) + pairs[:, 0]
        wanted = (pairs[:, 1].max() - left) * (instance.memory + 1)
        place = np.searchsorted(key, wanted + np.repeat(prompts, outputs) + token)
        # No more run together than the lightest requests at their first step.
        lightest = np.cumsum(np.sort(instance.prompts + 1))
        width = max(1, int(np.searchsorted(lightest, instance.memory, side="right")))
        if len(pairs) * (width + 1) * (instance.memory + 1) > _CELLS:
            raise too_large(instance)
        tokens, left = pairs.T.copy()
        return cls(instance.memory, width, tokens, left, outputs, arrivals, counts, first, place)

    def copies(self, ends: IntArray) -> IntArray:
        """Count how many requests can be each item by the end of each phase, or fit as such."""
        return self.available(np.repeat(self.arrivals, self.outputs) + self.token, ends)

    @property
    def token(self) -> IntArray:
        """Number of the step in which a request is the item of `place`."""
        token: IntArray = np.arange(len(self.place)) - np.repeat(self.first, self.outputs) + 1
        return token

    def available(self, reached: IntArray, ends: IntArray) -> IntArray:
        """Count how many requests can be each item if their states are reached at given steps."""
        counts = np.zeros((len(ends), len(self.tokens)), dtype=np.int64)
        for phase, end in enumerate(ends.tolist()):
            there = np.repeat(self.counts, self.outputs) * (reached <= end)
            np.add.at(counts[phase], self.place, there)
        fitting: IntArray = np.minimum(counts, self.limit // (self.tokens + self.left))
        return fitting


def too_large(instance: Instance) -> OptschedError:
    """Say that the dynamic program is out of reach."""
    return OptschedError(
        f"a memory of {instance.memory:,} and {int(instance.outputs.sum()):,} output tokens are "
        "too much for the dynamic program of the configuration bound; use bound(instance)"
    )


class State(NamedTuple):
    """Where the ascent is, Adam's means, and the best point met."""

    prices: FloatArray
    sizes: FloatArray
    price_mean: FloatArray
    price_square: FloatArray
    size_mean: FloatArray
    size_square: FloatArray
    best_prices: FloatArray
    best_sizes: FloatArray
    best: FloatArray  # (1,)

    @classmethod
    def at(cls, prices: FloatArray, sizes: FloatArray) -> State:
        """Begin at a point."""
        return cls(
            prices.copy(),
            sizes.copy(),
            np.zeros_like(prices),
            np.zeros_like(prices),
            np.zeros_like(sizes),
            np.zeros_like(sizes),
            prices.copy(),
            sizes.copy(),
            np.full(1, -np.inf),
        )


def largest_sets(problem: Problem, sizes: IntArray, copies: IntArray) -> IntArray:
    """Return the largest total size of items that can run together in each phase, exactly."""
    chosen = np.zeros(problem.width, dtype=np.int64)
    return np.array(
        [
            largest_set(problem, row, times, chosen)
            for row, times in zip(sizes, copies, strict=True)
        ],
        dtype=np.int64,
    )


@compiled
def start_costs(
    problem: Problem, prices: IntArray, phase: IntArray, sizes: IntArray, unit: int
) -> IntArray:
    """Return latency times unit plus price paid, by group and start 0 .. max(T, last arrival)."""
    horizon = len(prices)
    last = max(horizon, problem.arrivals.max())
    costs = np.full((len(problem.outputs), last + 1), np.iinfo(np.int64).max)
    for group in range(len(problem.outputs)):
        output, arrival = problem.outputs[group], problem.arrivals[group]
        items_of = problem.place[problem.first[group] : problem.first[group] + output]
        for start in range(arrival, last + 1):
            cost = unit * (start + output - arrival)
            for step in range(start, min(start + output, horizon)):
                cost += prices[step] * sizes[phase[step], items_of[step - start]]
            costs[group, start] = cost
    return costs


@compiled
def largest_set(
    problem: Problem, sizes: npt.NDArray[Any], copies: IntArray, chosen: IntArray
) -> Any:
    """Return the largest total size of items that can run together, in integers or doubles."""
    limit, width = problem.limit, problem.width
    tries = 0
    for item in range(len(sizes)):
        if sizes[item] > 0:
            tries += copies[item]
    best = np.full((width + 1, limit + 1), -1, dtype=sizes.dtype)
    best[0, 0] = 0
    taken = np.zeros((tries, width + 1, limit + 1), dtype=np.bool_)
    fullest = np.full(width + 1, -1)  # most tokens that are held by so many items
    fullest[0] = 0
    attempt = 0
    for item in range(len(sizes)):
        size, tokens, left = sizes[item], problem.tokens[item], problem.left[item]
        if size <= 0:
            continue
        for _ in range(copies[item]):
            for count in range(min(width - 1, attempt), -1, -1):
                for held in range(min(limit - tokens - (count + 1) * left, fullest[count]), -1, -1):
                    old = best[count, held]
                    if old >= 0 and old + size > best[count + 1, held + tokens]:
                        best[count + 1, held + tokens] = old + size
                        taken[attempt, count + 1, held + tokens] = True
                        fullest[count + 1] = max(fullest[count + 1], held + tokens)
            attempt += 1
    count = held = 0
    for some in range(width + 1):
        for amount in range(fullest[some] + 1):
            if best[some, amount] > best[count, held]:
                count, held = some, amount
    value = best[count, held]
    chosen[:] = -1
    for item in range(len(sizes) - 1, -1, -1):
        if sizes[item] <= 0:
            continue
        for _ in range(copies[item]):
            attempt -= 1
            if taken[attempt, count, held]:
                count -= 1
                held -= problem.tokens[item]
                chosen[count] = item
    return value


@compiled
def ascend(
    problem: Problem,
    ends: IntArray,
    copies: IntArray,
    state: State,
    done: int,
    chunk: int,
    planned: int,
    price_step: float,
    size_step: float,
) -> float:
    """Take some steps of projected ascent from the state on; give the best value met so far."""
    prices, sizes = state.prices, state.sizes
    horizon, phases = len(prices), len(ends)
    phase = np.searchsorted(ends, np.arange(1, horizon + 1))
    chosen = np.zeros(problem.width, dtype=np.int64)
    sold = np.zeros(horizon)  # what requests pay at a step beyond what is for sale, per unit
    pushed = np.zeros_like(sizes)
    for iteration in range(done, done + chunk):
        pushed[:] = 0
        value = 0.0
        for number in range(phases):
            begin = 0 if number == 0 else ends[number - 1]
            mass = prices[begin : ends[number]].sum()
            capacity = largest_set(problem, sizes[number], copies[number], chosen)
            for item in chosen:
                if item >= 0:
                    pushed[number, item] -= mass
            sold[begin : ends[number]] = -capacity
            value -= mass * capacity
        for group in range(len(problem.outputs)):
            output, arrival = problem.outputs[group], problem.arrivals[group]
            items_of = problem.place[problem.first[group] : problem.first[group] + output]
            count = problem.counts[group]
            cheapest, at = np.inf, 0
            for start in range(arrival, max(horizon, arrival) + 1):
                cost = float(start + output - arrival)
                if cost >= cheapest:
                    break  # prices are not negative
                for step in range(start, min(start + output, horizon)):
                    cost += prices[step] * sizes[phase[step], items_of[step - start]]
                if cost < cheapest:
                    cheapest, at = cost, start
            value += count * cheapest
            for step in range(at, min(at + output, horizon)):
                item = items_of[step - at]
                sold[step] += count * sizes[phase[step], item]
                pushed[phase[step], item] += count * prices[step]
        if value > state.best[0]:
            state.best[0] = value
            state.best_prices[:] = prices
            state.best_sizes[:] = sizes
        shrink = _LAST_STEP ** (iteration / planned)
        _move(prices, state.price_mean, state.price_square, sold, iteration, price_step * shrink)
        _move(
            sizes.ravel(),
            state.size_mean.ravel(),
            state.size_square.ravel(),
            pushed.ravel(),
            iteration,
            size_step * shrink,
        )
    return float(state.best[0])


@compiled
def _move(
    values: FloatArray,
    mean: FloatArray,
    square: FloatArray,
    slope: FloatArray,
    iteration: int,
    length: float,
) -> None:
    # Adam's step, uphill, kept non-negative. What never had a slope stays where it is.
    one, two = 1 - _MEAN ** (iteration + 1), 1 - _SQUARE ** (iteration + 1)
    for index in range(len(values)):
        mean[index] = _MEAN * mean[index] + (1 - _MEAN) * slope[index]
        square[index] = _SQUARE * square[index] + (1 - _SQUARE) * slope[index] ** 2
        if square[index] > 0:
            move = length * (mean[index] / one) / (math.sqrt(square[index] / two) + 1e-9)
            values[index] = max(0.0, values[index] + move)
