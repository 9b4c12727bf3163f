r"""Bounds on a clock by prices over time: what a batch costs those who stand still meanwhile.

`optsched.certificates.on_clock` has the argument and what is charged. Here the prices are found, by
projected supergradient ascent: a price rises where requests would take part in more than fits into
its bin, and falls elsewhere. Below saturation taking part has the larger prices, above it memory.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import ZERO, compiled
from optsched.clock_work import arrival_times
from optsched.solvers.bounds.on_clock import least_work, prices_of_machine

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.certificates.on_clock import ClockCertificate
    from optsched.clock import LinearClock
    from optsched.instance import Instance

_SAFE = 2.0**-36  # relative allowance for the roundings of all sums over bins and requests
_GRAIN = 2**20  # prices are whole multiples of 1 / _GRAIN
_WIDTHS = 14.0  # bins in which the mean request could be served alone, about
_REACH, _BEYOND = 3.0, 20.0  # taking part has a price for so many latencies alone and bins more
_MAX_BINS = 2**20
_MAX_PRICES = 2**23
_IDLE_PRICE = 0.5  # of taking part, where memory has none
_BUSY_PRICE = 0.25  # where it has
_STEEP = 3.0  # largest slope that counts
_FIRST_STEP, _SHRINKS = 0.2, 10.0  # divided by the root of 1 + rounds / _SHRINKS
_WORK = 4e9  # bins looked at by all sweeps together


class Priced(NamedTuple):
    """Requests as the sweep sees them, shape (n,); times in the clock's unit."""

    arrivals: FloatArray
    weights: FloatArray
    alone: FloatArray
    least: FloatArray  # least own seconds of any of its batches
    held: FloatArray  # share of memory that it holds with its first token
    batches: FloatArray
    decoding: FloatArray  # what all tokens but the first take
    prefill: FloatArray  # own seconds of the first batch beyond the least
    tokens: FloatArray  # and of all others
    ahead: FloatArray  # share of memory that they hold beyond the first's, summed over batches


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


def priced(instance: Instance, clock: LinearClock, weights: FloatArray) -> Priced:
    """Return what a sweep needs of the requests."""
    work = least_work(instance, clock)
    d, second = work.decodes, work.decode + work.growth
    least = np.where(d > 0, np.minimum(work.first, second), work.first)
    own = second * d + work.growth * d * (d - 1) / 2
    return Priced(
        arrival_times(instance, clock),
        weights,
        work.own * (1 - _SAFE),  # rounded down, as no price may be missed
        least,
        work.held / instance.memory,
        d + 1,
        (own + clock.constant * d) * (1 - _SAFE),
        work.first - least,
        (second - least) * d + work.growth * d * (d - 1) / 2,
        d * (d + 1) / 2 / instance.memory,
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
    """Return what all requests pay at least and the bins looked at; add to the slopes.

    `every` is the price of memory and of all that take part, by bins.
    """
    (arrivals, weights, alone, least, held, batches, decoding, prefill, tokens, ahead) = requests
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
            price = (price + constant * held[request] * memory[place]) / batch
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
            by_memory[place] += active * held[request]
            by_work[place] += taken - active
            if begin <= place < begin + count:
                by_taking[row + place - begin] += active
        by_work[best_low] += tokens[request]
        by_work[best_before] += prefill[request]
        by_memory[best_held] += constant * ahead[request]
    return total, looked


def price_on_clock(
    instance: Instance,
    clock: LinearClock,
    certificate: ClockCertificate,
    weights: FloatArray,
    rounds: int,
) -> ClockCertificate | None:
    """Find prices that prove much, in the form of a certificate without any; None if too many."""
    requests = priced(instance, clock, weights)
    width = 2.0 ** round(math.log2(float(requests.alone.mean()) / _WIDTHS))
    machine = prices_of_machine(instance, clock, weights, certificate.workers, width)
    begins = (requests.arrivals / width).astype(np.int64)
    counts = np.ceil(_REACH * requests.alone / width + _BEYOND).astype(np.int64)
    bins = max(len(machine) + 1, int((begins + counts).max()))
    if bins > _MAX_BINS or counts.sum() > _MAX_PRICES:
        return None
    rows = np.append(0, np.cumsum(counts))
    place = np.arange(rows[-1]) - np.repeat(rows[:-1], counts)
    bin_of = np.repeat(begins, counts) + place
    memory = np.append(machine, np.zeros(bins - len(machine)))
    scale = np.repeat(weights, counts)
    taking = scale * (place * width <= np.repeat(requests.alone, counts))
    room = certificate.workers * width
    looked = 0

    def look(at: tuple[FloatArray, FloatArray]) -> tuple[float, Slopes]:
        """Return the bound by prices of memory and of taking part, and its slopes."""
        nonlocal looked
        slopes = Slopes(*map(np.zeros_like, (*at, memory)))
        prices = Prices(at[0], begins, rows, at[1])
        every = at[0] + np.bincount(bin_of, at[1], bins)
        paid, more = sweep(requests, prices, every, slopes, clock.constant, width)
        looked += more
        return paid - room * (math.fsum(at[0]) + math.fsum(at[1])), slopes

    starts = [
        (np.zeros(bins), _IDLE_PRICE * taking),
        (memory, np.zeros(len(taking))),
        (memory, _BUSY_PRICE * taking),
    ]
    values = [look(start)[0] for start in starts]
    at = best = starts[int(np.argmax(values))]
    highest = max(values)
    for done in range(1, rounds + 1):
        value, slopes = look(at)
        if value > highest:
            highest, best = value, at
        if looked >= _WORK:
            break
        step = _FIRST_STEP / math.sqrt(1 + done / _SHRINKS)
        held = np.minimum(_STEEP, (slopes.memory + slopes.work) / room - 1)
        shared = np.minimum(_STEEP, (slopes.taking + slopes.work[bin_of]) / room - 1)
        at = np.maximum(0.0, at[0] + step * held), np.maximum(0.0, at[1] + step * scale * shared)
    whole = [np.floor(prices * _GRAIN) for prices in best]
    value, _ = look((whole[0] / _GRAIN, whole[1] / _GRAIN))
    paid = room * sum(math.fsum(prices) for prices in whole) / _GRAIN
    late = float(weights @ requests.arrivals)  # from which latencies were subtracted
    claim = value - _SAFE * (abs(value) + 2 * paid + late)
    parts = np.split(whole[1].astype(np.int64), rows[1:-1])
    return replace(
        certificate,
        width=width,
        denominator=_GRAIN,
        memory_prices=tuple(whole[0].astype(np.int64).tolist()),
        begins=tuple(begins.tolist()),
        prices=tuple(tuple(np.trim_zeros(part, "b").tolist()) for part in parts),
        value=Fraction(claim),
    )
