"""What all requests pay at least at prices over time, and what other prices would bring."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import ZERO, compiled
from optsched.bounds.on_clock import least_work
from optsched.problem.work import times_since_first

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.bounds.on_clock import Share
    from optsched.clock import LinearClock
    from optsched.problem.instance import Instance

SAFE = 2.0**-36  # relative allowance for the roundings of all sums over bins and requests


class Priced(NamedTuple):
    """Requests as the sweep sees them, shape (n,); times in the clock's unit."""

    arrivals: FloatArray
    weights: FloatArray
    alone: FloatArray
    least: FloatArray  # least own seconds of any of its batches
    share: FloatArray  # of the constant with its first token
    batches: FloatArray
    decoding: FloatArray  # what all tokens but the first take
    prefill: FloatArray  # own seconds of the first batch beyond the least
    tokens: FloatArray  # and of all others
    ahead: FloatArray  # and of all further tokens beyond the first's


class Prices(NamedTuple):
    """Prices by bins: of memory, and of taking part for each request from a bin on."""

    memory: FloatArray
    begins: IntArray
    rows: IntArray  # where the prices of each request are among all, shape (n + 1,)
    taking: FloatArray


class Slopes(NamedTuple):
    """How much each price would bring, beside what it costs."""

    memory: FloatArray
    taking: FloatArray
    work: FloatArray


def priced(instance: Instance, clock: LinearClock, weights: FloatArray, share: Share) -> Priced:
    """Return what a sweep needs of the requests."""
    work = least_work(instance, clock)
    d, second = work.decodes, work.decode + work.growth
    least = np.where(d > 0, np.minimum(work.first, second), work.first)
    own = second * d + work.growth * d * (d - 1) / 2
    return Priced(
        times_since_first(instance, clock),
        weights,
        work.own * (1 - SAFE),  # rounded down, as no price may be missed
        least,
        share.first,
        d + 1,
        (own + clock.constant * d) * (1 - SAFE),
        work.first - least,
        (second - least) * d + work.growth * d * (d - 1) / 2,
        d * (d + 1) / 2 * share.growth,
    )


@compiled
def sweep(
    requests: Priced,
    prices: Prices,
    every: FloatArray,
    slopes: Slopes,
    constant: float,
    width: float,
) -> tuple[float, int]:
    """Return what all requests pay at least and the bins looked at; add to the slopes."""
    (arrivals, weights, alone, least, share, batches, decoding, prefill, tokens, ahead) = requests
    memory, begins, rows, taking = prices
    by_memory, by_taking, by_work = slopes
    bins = len(memory)
    cost, length, best_length = np.empty(bins), np.empty(bins), np.empty(bins)
    where, best_where = np.empty(bins, dtype=np.int64), np.empty(bins, dtype=np.int64)
    total, looked = 0.0, ZERO
    for request in range(len(arrivals)):
        arrival, batch = arrivals[request], constant + least[request]
        need = batch * batches[request]
        first = math.floor(arrival / width)
        begin, row = begins[request], rows[request]
        count = rows[request + 1] - row
        size = served = 0
        earliest, free = arrival + alone[request], bins * width
        best = weights[request] * ((free if free > earliest else earliest) - arrival)
        best_place = -1
        # Bins of the least prices, up to the one at hand.
        low, low_held, low_before, reached = first, first, first, first - 1
        best_low, best_held, best_before = low, low, low
        for place in range(first, bins):
            mine = taking[row + place - begin] if begin <= place < begin + count else 0.0
            price = constant * mine + least[request] * every[place]
            price = (price + constant * share[request] * memory[place]) / batch
            at = size
            while at > 0 and cost[at - 1] > price:
                cost[at], length[at], where[at] = cost[at - 1], length[at - 1], where[at - 1]
                at -= 1
            cost[at], where[at] = price, place
            begun = place * width
            length[at] = begun + width - (begun if begun > arrival else arrival)
            size += 1
            looked += 8 + size - at
            if every[place] < every[low]:
                low = place
            if memory[place] < memory[low_held]:
                low_held = place
            if begun + width < earliest:
                continue
            latency = weights[request] * ((begun if begun > earliest else earliest) - arrival)
            if latency >= best:
                break
            before = begun + width - decoding[request]
            while reached < place and (reached + 1) * width <= before:
                reached += 1
                if every[reached] < every[low_before]:
                    low_before = reached
            found = latency + tokens[request] * every[low] + prefill[request] * every[low_before]
            found += constant * ahead[request] * memory[low_held]
            left = need
            at = 0
            for at in range(size):
                taken = left if left < length[at] else length[at]
                found += taken * cost[at]
                left -= taken
                if left <= 0:
                    size = at + 1  # what comes later can only be cheaper
                    break
                if found >= best:
                    break
            looked += at
            if found < best:
                best, best_place = found, place
                best_low, best_held, best_before = low, low_held, low_before
                served = at + 1
                for at in range(served):
                    best_where[at], best_length[at] = where[at], length[at]
        total += best
        if best_place < 0:
            continue
        left = need
        for at in range(served):
            place = best_where[at]
            taken = left if left < best_length[at] else best_length[at]
            left -= taken
            active = taken * constant / batch
            by_memory[place] += active * share[request]
            by_work[place] += taken - active
            if begin <= place < begin + count:
                by_taking[row + place - begin] += active
        by_work[best_low] += tokens[request]
        by_work[best_before] += prefill[request]
        by_memory[best_held] += constant * ahead[request]
    return total, looked
