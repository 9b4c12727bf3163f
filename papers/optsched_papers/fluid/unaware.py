"""Fluid Prop. 5: what a policy unaware of types misses at C = M*, as a decision process."""

# The instance of Appendix A.4, in iterations: a request holds one token in stage 0, two in stage 1,
# and half of the requests, the long ones, hold three in stage 2. Which ones are long shows after
# stage 1. A request that pauses keeps the tokens of its last stage; a preempted one starts anew.

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from optsched._internal.compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched._internal.arrays import IntArray

FLUID = 5  # tokens per iteration with the prefill, Eq. (8): both types have one arrival
_UNIT = 2**30  # values are rounded to its inverse, so that integers can check them


class _State(NamedTuple):
    """Requests that hold cache between iterations, by what is known of them."""

    started: int  # after stage 0, of either type: a token each
    restarted: int  # after stage 0, known to be long: a token each
    long: int  # after stage 1: two tokens each

    @property
    def held(self) -> int:
        return self.started + self.restarted + 2 * self.long


class _Batch(NamedTuple):
    """What one iteration takes in, and where it leads."""

    before: _State
    second: int  # in stage 1, of either type
    last: int  # in stage 2
    again: int  # long ones that were preempted, in stage 0
    held: int  # tokens of the batch, without those of requests that pause
    after: tuple[_State, ...]  # by how many of `second` are long, from none on

    @property
    def tokens(self) -> int:
        """Twice the expected tokens completed: two for a short request, three for a long one."""
        return 2 * self.second + 6 * self.last


def _states(memory: int) -> list[_State]:
    """List the states by what they hold, the least first."""
    most = range(memory + 1)
    every = (_State(a, b, c) for a in most for b in most for c in range(memory // 2 + 1))
    return sorted((state for state in every if state.held <= memory), key=lambda each: each.held)


def _batches(state: _State, memory: int) -> Iterator[_Batch]:
    """Yield every batch that fits, beside the requests that pause."""
    for second in range(state.started + 1):
        for resumed in range(state.restarted + 1):
            for last in range(state.long + 1):
                free = memory - state.held - second - resumed - last
                for fresh in range(free + 1):
                    for again in range(free + 1 - fresh):
                        started = state.started - second + fresh
                        restarted = state.restarted - resumed + again
                        long = state.long - last + resumed
                        after = (_State(started, restarted, long + n) for n in range(second + 1))
                        held = 2 * (second + resumed) + 3 * last + fresh + again
                        yield _Batch(state, second, last, again, held, tuple(after))


def _preempted(state: _State) -> Iterator[tuple[_State, int]]:
    """Yield the states after a preemption, and whether the request is known to be long."""
    for place, field in enumerate(_State._fields):
        if state[place]:
            yield state._replace(**{field: state[place] - 1}), int(place > 0)


@functools.cache
def least_gap(memory: int, per_token: Fraction = Fraction(0)) -> Fraction:
    """Prove how many of the fluid's tokens per second any policy unaware of types must miss."""
    # A batch takes T(b): one second where it fills the memory, and `per_token` less for each token
    # that is missing. Requests of unknown type always wait, which can only help. Then tokens per
    # second are at most any g for which there are values h of states and a price pi >= 0 of a
    # preempted long request such that
    #     g T(b) + h(s) >= r(b) - pi k(b) + E[h(s')]  and  h(s) >= h(s-) + pi k
    # for every batch b in state s, which takes k such requests in, and for every preemption. A
    # linear program finds them; rounded, they are checked in integers.
    states = _states(memory)
    batches = [batch for state in states for batch in _batches(state, memory)]
    times = [1 - per_token * (memory - batch.held) for batch in batches]
    values, price = _rounded(states, batches, times)
    for state in states:  # ascending: what is left after a preemption comes first
        least = [values[other] + price * known for other, known in _preempted(state)]
        values[state] = max([values[state], *least])
    best = max(
        _surplus(batch, values, price) / time for batch, time in zip(batches, times, strict=True)
    )
    return FLUID - best / (2 * _UNIT)


def _surplus(batch: _Batch, values: dict[_State, int], price: int) -> Fraction:
    """Return what a batch is worth beyond its state, in halves of `_UNIT`, exactly."""
    flips = len(batch.after) - 1
    later = sum(math.comb(flips, n) * values[state] for n, state in enumerate(batch.after))
    now = batch.tokens * _UNIT - 2 * price * batch.again - 2 * values[batch.before]
    return now + Fraction(2 * later, 2**flips)


def _rounded(
    states: list[_State], batches: list[_Batch], times: list[Fraction]
) -> tuple[dict[_State, int], int]:
    """Solve the linear program; return values and price in whole multiples of 1 / `_UNIT`."""
    from scipy.optimize import linprog

    place = {state: n for n, state in enumerate(states)}
    gain, price = len(states), len(states) + 1
    entries: list[tuple[int, int, float]] = []
    for row, batch in enumerate(batches):
        entries += [(row, gain, -float(times[row])), (row, price, -batch.again)]
        entries.append((row, place[batch.before], -1))
        flips = len(batch.after) - 1
        for n, state in enumerate(batch.after):
            entries.append((row, place[state], math.comb(flips, n) / 2**flips))
    upper = [-batch.tokens / 2 for batch in batches]
    for state in states:
        for other, known in _preempted(state):
            row = len(upper)
            entries += [(row, place[state], -1), (row, place[other], 1), (row, price, known)]
            upper.append(0)
    rows, columns, data = zip(*entries, strict=True)
    matrix: Any = sparse.csr_array((data, (rows, columns)), shape=(len(upper), price + 1))
    bounds: Any = [(0, 0)] + [(None, None)] * len(states) + [(0, None)]  # the first value is 0
    cost, limits = np.eye(price + 1)[gain], np.array(upper)
    found: Any = linprog(cost, matrix, limits, bounds=bounds, method="highs")
    whole = np.rint(found.x * _UNIT).astype(np.int64).tolist()
    return dict(zip(states, whole, strict=False)), max(whole[price], 0)


def safe_batches(memory: int) -> list[tuple[int, int, int]]:
    """List full batches, by stage, that complete what arrives and surely do not overflow next."""
    return [
        (first, second, last)
        for last in range(memory // 3 + 1)
        for second in range((memory - 3 * last) // 2 + 1)
        for first in [memory - 3 * last - 2 * second]
        if second + 2 * last >= 4 and 2 * first + 3 * second <= memory
    ]


@compiled
def serve_batches(arrived: IntArray, longs: IntArray, memory: int, left: IntArray) -> None:
    """Serve the latest stage first where only the batch counts; fill in twice the tokens left."""
    waiting = started = long = 0
    for t in range(len(arrived)):
        last = min(long, memory // 3)
        free = memory - 3 * last
        second = min(started, free // 2)
        first = min(waiting, free - 2 * second)
        waiting += arrived[t] - first
        started += first - second
        long += longs[t, second] - last
        left[t] = 5 * (waiting + started) + 6 * long


def gaps_by_batch(memory: int, horizons: list[int], seed: int) -> list[dict[str, float]]:
    """Return the tokens missing per iteration where requests outside the batch hold none."""
    rng = np.random.default_rng(seed)
    arrived = rng.poisson(2, max(horizons))
    flips = rng.integers(0, 2, (len(arrived), memory // 2))
    longs = np.zeros((len(arrived), memory // 2 + 1), dtype=np.int64)
    np.cumsum(flips, axis=1, out=longs[:, 1:])
    left = np.empty(len(arrived), dtype=np.int64)
    serve_batches(arrived, longs, memory, left)
    return [
        {"horizon": horizon, "gap": float(left[horizon - 1]) / (2 * horizon)}
        for horizon in horizons
    ]
