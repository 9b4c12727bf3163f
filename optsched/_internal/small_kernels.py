"""Small routines for kernels: numba's own take seconds to compile."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np

from optsched._internal.arrays import Array, FloatArray, IntArray, prefix_sums
from optsched._internal.compiled import allocating, allocating_inside, compiled, compiled_inside


@compiled_inside
def copy(
    source: IntArray | FloatArray, target: IntArray | FloatArray, first: int, last: int
) -> None:
    """Copy entries `first` .. `last - 1`, from the left, to another array or the same one."""
    for index in range(first, last):
        target[index] = source[index]


@allocating_inside
def repeated(value: int, count: int) -> IntArray:
    """Return an array of so many equal entries."""
    values = np.empty(count, dtype=np.int64)
    for place in range(count):
        values[place] = value
    return values


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


@allocating_inside
def ascending(sizes: IntArray) -> IntArray:
    """Sort places by size, equal sizes in their order: by bytes, as comparisons take longer."""
    count = len(sizes)
    order, sorted_so_far = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    for place in range(count):
        order[place] = place
    begins = np.empty(257, dtype=np.int64)
    longest, shift = largest(sizes), 0
    while longest >> shift > 0:
        for byte in range(257):
            begins[byte] = 0
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


@allocating_inside
def descending(sizes: IntArray) -> IntArray:
    """Sort places by size, the largest first, equal sizes in their order."""
    most, lacking = largest(sizes), np.empty(len(sizes), dtype=np.int64)
    for place in range(len(sizes)):
        lacking[place] = most - sizes[place]
    return ascending(lacking)


#: Value of a position that is not there.
ABSENT = cast("int", np.int64(np.iinfo(np.int64).max))


def new_tree(positions: int) -> IntArray:
    """Make a tree in which every position is absent."""
    leaves = 1 << max(0, (positions - 1).bit_length())
    return np.full(2 * leaves, ABSENT)


@compiled
def put(tree: IntArray, position: int, value: int) -> None:
    """Set the value at a position; `ABSENT` takes it away."""
    node = len(tree) // 2 + position
    tree[node] = value
    while node > 1:
        node //= 2
        left, right = tree[2 * node], tree[2 * node + 1]
        tree[node] = left if left < right else right


@compiled_inside
def leftmost_below(tree: IntArray, bound: int) -> int:
    """Find the first position with a value below `bound`, or -1."""
    if tree[1] >= bound:
        return -1
    node = 1
    leaves = len(tree) // 2
    while node < leaves:
        node *= 2
        if tree[node] >= bound:
            node += 1
    return node - leaves


class PriceSums(NamedTuple):
    """Sums over steps 1 to t of the prices, and of step times price; integers or doubles."""

    total: Array  # (T + 1,)
    moment: Array  # (T + 1,)

    @classmethod
    def of(cls, prices: Array) -> PriceSums:
        """Add up the prices of steps 1 to T; later steps are free."""
        return cls(prefix_sums(prices), prefix_sums(prices * np.arange(1, len(prices) + 1)))


@compiled_inside
def price_of_start(prompt: int, output: int, start: int, total: Array, moment: Array) -> Any:
    """Return what the memory of a request costs that starts at a step, from both `PriceSums`."""
    last = len(total) - 1
    if start >= last:
        return total[0]  # zero, of the type of the prices
    end = start + output
    if end > last:
        end = last
    return (prompt - start) * (total[end] - total[start]) + moment[end] - moment[start]


def prices_of_starts(
    prompts: IntArray, outputs: IntArray, starts: IntArray, sums: PriceSums
) -> Array:
    """Return what the memory of each request costs, shape (n,)."""
    paid: Array = np.empty(len(starts), dtype=sums.total.dtype)
    _price_starts(prompts, outputs, starts, sums, paid)
    return paid


@compiled
def _price_starts(
    prompts: IntArray, outputs: IntArray, starts: IntArray, sums: PriceSums, paid: Array
) -> None:
    total, moment = sums
    for request in range(len(starts)):
        paid[request] = price_of_start(
            prompts[request], outputs[request], starts[request], total, moment
        )


_REACH = 5.0  # bandwidths, beyond which a kernel is below a hundred-thousandth of its peak


@allocating
def smooth(values: IntArray, counts: IntArray, bandwidth: float, total: FloatArray) -> None:
    """Spread each value over those near it; rows of counts become rows of chances of 1, 2, ..."""
    longest = total.shape[1]
    near = np.empty(longest)
    factor = np.exp(_REACH * bandwidth)
    for at in range(len(values)):
        value = values[at]
        first, last = int(value / factor) + 1, min(int(value * factor), longest)
        whole = 0.0
        for output in range(first, last + 1):
            distance = np.log(output / value) / bandwidth
            near[output - 1] = np.exp(-0.5 * distance * distance) / output
            whole += near[output - 1]
        for row in range(len(counts)):
            if counts[row, at] == 0:
                continue
            for output in range(first, last + 1):
                total[row, output - 1] += counts[row, at] / whole * near[output - 1]
