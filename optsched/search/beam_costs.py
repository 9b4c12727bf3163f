"""Kernels of the beam: what starts of large requests cost, at once and from a slice on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from optsched._internal.compiled import compiled
from optsched._internal.start_prices import price_of_start

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.search.annealing import Usage

    Hashes = npt.NDArray[np.uint64]
    Singles = npt.NDArray[np.float32]

_LOOKS = 8  # steps of a slice at which starts are priced at most
_FINE = 64  # and of an output


class Large(NamedTuple):
    """Large requests by arrival, what holds memory beside them, and prices of memory."""

    prompts: IntArray
    outputs: IntArray
    arrivals: IntArray
    weights: FloatArray
    memory: int
    background: Usage  # tokens held at each step by all that is not large
    total: FloatArray  # sums of prices, and of step times price
    moment: FloatArray
    later: Singles  # least cost of a start from each slice of a chunk on, shape (slices + 1, n)
    begins: IntArray  # of the slices, and the end of the last; later ones are as long as that
    keys: Hashes  # a random number for each request


@compiled
def begin_of(begins: IntArray, row: int) -> int:
    """Return the step at which a slice begins."""
    last = len(begins) - 1
    if row <= last:
        return int(begins[row])
    return int(begins[last] + (row - last) * (begins[last] - begins[last - 1]))


@compiled
def cost_from(large: Large, request: int, start: int, paid: int) -> float:
    """Return the weighted latency, and the price of what is held after step `paid`."""
    output, total, moment = large.outputs[request], large.total, large.moment
    latency = large.weights[request] * (start + output - large.arrivals[request])
    last = len(total) - 1
    end, begin = min(start + output, last), min(max(start, paid), last)
    if end <= begin:
        return float(latency)
    held = (large.prompts[request] - start) * (total[end] - total[begin])
    return float(latency + held + moment[end] - moment[begin])


@compiled
def tabulate(large: Large, requests: IntArray, chunk: int, best: FloatArray) -> None:
    """Tabulate the least costs of starts of some requests from each slice of a chunk on."""
    # `best` holds those from the end of the chunk on, and afterwards those from its begin on.
    prompts, outputs, arrivals, weights, _, _, total, moment, later, begins, _ = large
    rows = len(later) - 1
    first = chunk * rows
    for request in requests:
        prompt, output, arrival = prompts[request], outputs[request], arrivals[request]
        weight, least = weights[request], best[request]
        later[rows, request] = least
        for row in range(min(first + rows, len(begins) - 1) - 1, first - 1, -1):
            begin, end = begins[row], begins[row + 1]
            if end > arrival:
                stride = max(1, max((end - begin) // _LOOKS, output // _FINE))
                for step in range(begin, end, stride):
                    start = max(step, arrival)
                    cost = weight * (start + output - arrival)
                    cost += price_of_start(prompt, output, start, total, moment)
                    least = min(least, cost)
            later[row - first, request] = least
        best[request] = least


@compiled
def least_from(large: Large, request: int, row: int, chunk: int) -> float:
    """Return the least cost of a start from a slice of a chunk on, or from its end."""
    if row < len(large.begins) - 1:
        return float(large.later[row - chunk * (len(large.later) - 1), request])
    begin = max(begin_of(large.begins, row), large.arrivals[request])
    return float(
        large.weights[request] * (begin + large.outputs[request] - large.arrivals[request])
    )


@compiled
def gain_of(large: Large, request: int, start: int, row: int, end: int) -> float:
    """Return what a start in a slice gains on the cheapest one after it."""
    later = least_from(large, request, row + 1, row // (len(large.later) - 1))
    return later - cost_from(large, request, start, end)
