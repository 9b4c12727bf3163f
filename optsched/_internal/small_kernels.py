"""Small routines for kernels: numba's own take seconds to compile.

The heaps `..._by_key` order entries by their keys, and those of equal keys by their ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.compiled import compiled_inside

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray


@compiled_inside
def copy(
    source: IntArray | FloatArray, target: IntArray | FloatArray, first: int, last: int
) -> None:
    """Copy entries `first` .. `last - 1` from one array to the other."""
    for index in range(first, last):
        target[index] = source[index]


@compiled_inside
def push(heap: IntArray, size: int, value: int) -> int:
    """Add a value to the first `size` entries, of which the first is least; return the new size."""
    place = size
    while place > 0 and heap[(place - 1) // 2] > value:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = value
    return size + 1


@compiled_inside
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


@compiled_inside
def precedes(
    keys: FloatArray | IntArray, ranks: IntArray | FloatArray, one: int, other: int
) -> bool:
    """Whether one entry comes before another."""
    return bool(keys[one] < keys[other] or (keys[one] == keys[other] and ranks[one] < ranks[other]))


@compiled_inside
def sink_by_key(
    heap: IntArray, size: int, place: int, keys: FloatArray | IntArray, ranks: IntArray | FloatArray
) -> None:
    """Move the entry at a place of the heap down to where it belongs."""
    entry = heap[place]
    while True:
        child = 2 * place + 1
        if child + 1 < size and precedes(keys, ranks, heap[child + 1], heap[child]):
            child += 1
        if child >= size or not precedes(keys, ranks, heap[child], entry):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = entry


@compiled_inside
def push_by_key(
    heap: IntArray, size: int, entry: int, keys: FloatArray | IntArray, ranks: IntArray | FloatArray
) -> int:
    """Add an entry to the first `size` ones, of which the first is next; return the new size."""
    place = size
    while place > 0 and precedes(keys, ranks, entry, heap[(place - 1) // 2]):
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = entry
    return size + 1


@compiled_inside
def pop_by_key(
    heap: IntArray, size: int, keys: FloatArray | IntArray, ranks: IntArray | FloatArray
) -> int:
    """Take the next entry away; return the new size."""
    heap[0] = heap[size - 1]
    sink_by_key(heap, size - 1, 0, keys, ranks)
    return size - 1


@compiled_inside
def total(values: IntArray) -> int:
    """Return the sum; `values.sum()` takes seconds to compile, with its error messages."""
    result = 0
    for place in range(len(values)):
        result += values[place]
    return result


@compiled_inside
def largest(values: IntArray) -> int:
    """Return the largest value from 0 on."""
    result = 0
    for place in range(len(values)):
        result = max(result, values[place])
    return result


@compiled_inside
def ascending(sizes: IntArray) -> IntArray:
    """Sort places by size, equal sizes in their order: by bytes, as comparisons take longer."""
    count = len(sizes)
    order, sorted_so_far = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    for place in range(count):
        order[place] = place
    begins = np.empty(257, dtype=np.int64)
    longest, shift = largest(sizes), 0
    while longest >> shift > 0:
        begins[:] = 0
        for place in range(count):
            begins[((sizes[place] >> shift) & 255) + 1] += 1
        for byte in range(256):
            begins[byte + 1] += begins[byte]
        for rank in range(count):
            place = order[rank]
            byte = (sizes[place] >> shift) & 255
            sorted_so_far[begins[byte]] = place
            begins[byte] += 1
        order, sorted_so_far = sorted_so_far, order
        shift += 8
    return order
