"""A tree over positions that finds the first one below a bound; kernels of admission share it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from optsched._internal.compiled import compiled, compiled_inside

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray

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
