"""The memory-time relaxation: its value in closed form, and its prices (docs/bounds.md).

Request :math:`i` is indifferent between the steps that serve it, so the dual prices fall by
:math:`1 / A_i` per step while it is served, to zero where the worker runs empty.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.arrays import ranks_in
from optsched._internal.compiled import ZERO, compiled
from optsched._internal.small_kernels import pop, push
from optsched.errors import OptschedError

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem.instance import Instance

_EXACT = 2**62


class Relaxation(NamedTuple):
    """When each request is served, in token-steps: M per step, so all numbers are whole."""

    request: IntArray
    begin: IntArray
    end: IntArray
    successor: IntArray

    def horizon(self, memory: int) -> int:
        """Return the last step in use."""
        return -(-int(self.end[-1]) // memory)

    def last_starts(self, instance: Instance) -> IntArray:
        """Return the starts that complete each request when the relaxation does."""
        completions = np.zeros(len(instance), dtype=np.int64)
        completions[self.request] = -(-self.end // instance.memory)  # the last piece decides
        starts: IntArray = np.maximum(completions - instance.outputs, instance.arrivals)
        return starts


def relax(instance: Instance, weights: FloatArray) -> Relaxation:
    """Solve the relaxation: serve the smallest area over weight of those that have arrived."""
    areas = instance.areas
    extent = instance.memory * (int(instance.arrivals[-1]) + 1) + areas.sum(dtype=np.float64)
    if extent >= _EXACT:
        raise OptschedError(
            "the arrivals or outputs are too large to be counted in token-steps of 64 bits; "
            "use longer steps"
        )
    priority = np.argsort(areas / weights, kind="stable")
    return serve(areas, instance.arrivals * instance.memory, priority)


def serve(areas: IntArray, arrivals: IntArray, priority: IntArray) -> Relaxation:
    """Serve one request at a time, the first in priority of those that have arrived."""
    return Relaxation(*_serve_smallest(areas, arrivals, priority, ranks_in(priority)))


def closed_form(instance: Instance, weights: FloatArray, relaxation: Relaxation) -> float:
    """Return the value of the relaxation as a lower bound on the weighted latency."""
    memory, begin, end = instance.memory, relaxation.begin, relaxation.end
    first, last = begin // memory + 1, (end - 1) // memory + 1
    # Sum over the token-steps of a piece of the step they are at: whole numbers, then products.
    head, tail, whole = first * memory - begin, end - (last - 1) * memory, last - first - 1
    steps = np.where(
        whole < 0,  # the piece lies within one step
        (end - begin) * first.astype(np.float64),
        head * first.astype(np.float64)
        + memory * whole.astype(np.float64) * (first + last) / 2
        + tail * last.astype(np.float64),
    )
    areas = instance.areas.astype(np.float64)
    prompts, outputs = instance.prompts.astype(np.float64), instance.outputs.astype(np.float64)
    offset = outputs * (outputs + 1) * (prompts / 2 + (2 * outputs + 1) / 6) / areas
    terms = [
        math.fsum(weights[relaxation.request] * steps / areas[relaxation.request]),
        -math.fsum(weights * offset),
        math.fsum(weights * outputs),
        -math.fsum(weights * instance.arrivals),
    ]
    # Sums of numbers of one sign, each made by fewer than 16 roundings of relative size 2**-53.
    value = math.fsum(terms) - 2**-49 * math.fsum(map(abs, terms))
    return max(value, terms[2] * (1 - 2**-49))


def dual_prices(instance: Instance, weights: FloatArray, relaxation: Relaxation) -> FloatArray:
    """Return optimal prices of the memory-time relaxation for the steps up to its end."""
    return prices_of(instance.areas / weights, relaxation, instance.memory)


@compiled
def _serve_smallest(
    areas: IntArray, arrivals: IntArray, priority: IntArray, rank: IntArray
) -> IntArray:
    """Serve the smallest first; return the rows of `Relaxation`."""
    count, remaining = len(areas), areas.copy()
    waiting, pieces = np.empty(count, dtype=np.int64), np.empty((4, 2 * count), dtype=np.int64)
    size = ZERO
    released = 0
    now = arrivals[0]
    piece = 0
    while size > 0 or released < count:
        if size == 0 and arrivals[released] > now:
            now = arrivals[released]
        while released < count and arrivals[released] <= now:
            size = push(waiting, size, rank[released])
            released += 1
        served = priority[waiting[0]]
        stop = now + remaining[served]
        if released < count and arrivals[released] < stop:
            stop = arrivals[released]
        else:
            size = pop(waiting, size)
        left = remaining[served] - (stop - now)
        remaining[served] = left
        pieces[0, piece] = served
        pieces[1, piece] = now
        pieces[2, piece] = stop
        pieces[3, piece] = priority[waiting[0]] if left == 0 and size > 0 else -1
        piece += 1
        now = stop
    return pieces[:, :piece]


@compiled
def prices_of(areas: FloatArray, relaxation: Relaxation, memory: int) -> FloatArray:
    """Return optimal prices of so many units of area at each step; areas are over weights."""
    request, begin, end, successor = relaxation
    level = np.full(len(areas), -1.0)
    prices = np.zeros(-(-end[-1] // memory))
    # A request served at several steps is indifferent between them: t / A_i + price[t] is the same
    # number, its level, at all of them. Sweep backwards. A request completes at the price at which
    # the next waiting request would be served, which is zero if none waits.
    for piece in range(len(request) - 1, -1, -1):
        served = request[piece]
        area = areas[served]
        last = (end[piece] - 1) // memory + 1
        if level[served] < 0:
            level[served] = last / area
            follower = successor[piece]
            if follower >= 0:
                level[served] += level[follower] - last / areas[follower]
        highest = level[served]
        for step in range(begin[piece] // memory + 1, last + 1):
            price = highest - step / area
            prices[step - 1] = price if price > 0 else 0.0
    return prices
