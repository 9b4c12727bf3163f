"""Small routines for kernels: numba's own take seconds to compile.

`copy` stands for assigning a slice to a slice, which can fail and therefore brings in all that puts
a message together; `push` and `pop` stand for `heapq`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched._internal.compiled import compiled

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray


@compiled
def copy(
    source: IntArray | FloatArray, target: IntArray | FloatArray, first: int, last: int
) -> None:
    """Copy entries `first` .. `last - 1` from one array to the other."""
    for index in range(first, last):
        target[index] = source[index]


@compiled
def push(heap: IntArray, size: int, value: int) -> int:
    """Add a value to the first `size` entries, of which the first is least; return the new size."""
    place = size
    while place > 0 and heap[(place - 1) // 2] > value:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = value
    return size + 1


@compiled
def pop(heap: IntArray, size: int) -> int:
    """Take the least value away; return the new size."""
    size -= 1
    value = heap[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if child >= size or heap[child] >= value:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = value
    return size
