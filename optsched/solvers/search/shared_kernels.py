"""Kernels that all searches share: random numbers, memory by step, and orders by start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.compiled import compiled

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import IntArray

    Usage = npt.NDArray[np.int32]
    RandomState = npt.NDArray[np.uint64]


@compiled
def uniform(random: RandomState) -> float:
    """Draw from [0, 1) by xorshift64*: a state of its own makes runs repeatable."""
    x = random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    random[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * 2.0**-53


@compiled
def draw(
    order: IntArray, low: int, high: int, wanted: int, taken: IntArray, random: RandomState
) -> int:
    """Draw some distinct requests from positions low to high; give their number."""
    wanted = min(wanted, high - low + 1)
    number = 0
    while number < wanted:
        request = order[low + int(uniform(random) * (high - low + 1))]
        fresh = True
        for rank in range(number):
            fresh = fresh and taken[rank] != request
        if fresh:
            taken[number] = request
            number += 1
    return number


@compiled
def add_usage(usage: Usage, prompt: int, output: int, start: int, sign: int) -> None:
    """Take the memory of a request that starts so, or with the sign -1 give it back."""
    held = prompt - start
    for step in range(start + 1, start + output + 1):
        usage[step] += sign * (held + step)


@compiled
def earliest_fit(
    usage: Usage, memory: int, prompt: int, output: int, start: int, latest: int
) -> int:
    """Find the first feasible start from `start` to `latest`, or -1 (see simulate.unit)."""
    shift = prompt - memory
    seen = start
    while start <= latest:
        jump = start
        for step in range(max(seen, start) + 1, start + output + 1):
            jump = max(jump, min(usage[step] + shift + step, step))
        if jump == start:
            return start
        seen = start + output
        start = jump
    return -1


@compiled
def resort(order: IntArray, position: IntArray, starts: IntArray, request: int) -> None:
    """Put a request, whose start has changed, where it belongs in the order by start."""
    place, start = position[request], starts[request]
    while place > 0 and starts[order[place - 1]] > start:
        order[place] = order[place - 1]
        position[order[place]] = place
        place -= 1
    while place < len(order) - 1 and starts[order[place + 1]] < start:
        order[place] = order[place + 1]
        position[order[place]] = place
        place += 1
    order[place] = request
    position[request] = place


@compiled
def put_back(
    usage: Usage,
    prompts: IntArray,
    outputs: IntArray,
    taken: IntArray,
    new: IntArray,
    placed: int,
    old: IntArray,
    number: int,
) -> None:
    """Give the memory of the requests placed so far back, and all taken out theirs again."""
    for rank in range(placed):
        request = taken[rank]
        add_usage(usage, prompts[request], outputs[request], new[rank], -1)
    for rank in range(number):
        request = taken[rank]
        add_usage(usage, prompts[request], outputs[request], old[rank], 1)
