"""Orders and plans inside vLLM's scheduler: keys that change, and what fits to the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched._internal.compiled import ZERO, compiled

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray, Records


@compiled
def _before(keys: FloatArray, of_turn: IntArray, one: int, other: int) -> bool:
    """Whether one turn comes before the other: by the keys of their requests, then by number."""
    a, b = keys[of_turn[one]], keys[of_turn[other]]
    return bool(a < b or (a == b and one < other))


@compiled
def push_by_key(heap: IntArray, size: int, turn: int, keys: FloatArray, of_turn: IntArray) -> int:
    """Add a turn to the first `size` entries, of which the first comes first; return the size."""
    place = size
    while place > 0 and _before(keys, of_turn, turn, heap[(place - 1) // 2]):
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = turn
    return size + 1


@compiled
def pop_by_key(heap: IntArray, size: int, keys: FloatArray, of_turn: IntArray) -> int:
    """Take the first turn away; return the new size."""
    size -= 1
    turn = heap[size]
    place = ZERO
    while True:
        child = 2 * place + 1
        if child + 1 < size and _before(keys, of_turn, heap[child + 1], heap[child]):
            child += 1
        if child >= size or not _before(keys, of_turn, heap[child], turn):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = turn
    return size


@compiled
def expected_left(lower: int, upper: int, made: int) -> int:
    """Return the mean of the tokens that are still to come, one at least, rounded up."""
    low, high = max(lower, made + 1), max(upper, made + 1)
    return (low + high + 1) // 2 - made


@compiled
def fits_to_the_end(
    requests: Records,
    running: IntArray,
    count: int,
    intervals: tuple[IntArray, IntArray],
    limits: tuple[int, int, int],
) -> bool:
    """Whether the first `count` requests keep to the blocks until all are complete, as expected.

    Each makes a token per batch; until blocks are given up, usage only grows. The limits are
    the blocks, their size, and for how many batches a request that is complete keeps its own.
    """
    usable, block_size, lag = limits
    lower, upper = intervals
    for at in range(count):
        index = running[at]
        made = requests[index].made + requests[index].in_flight
        ahead = expected_left(lower[index], upper[index], made) + lag
        blocks = ZERO
        for other in range(count):
            index = running[other]
            made = requests[index].made + requests[index].in_flight
            left = expected_left(lower[index], upper[index], made)
            if left + lag >= ahead:
                stored = requests[index].prompt + made + min(left, ahead) - 1
                blocks += (stored + block_size - 1) // block_size
        if blocks > usable:
            return False
    return True
