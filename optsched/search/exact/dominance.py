"""Dominated nodes: kernels of the exact search.

Of nodes of one clock that have started the same requests, A dominates B if it costs no more and
holds no more at any step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.compiled import compiled

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import IntArray
    from optsched.search.exact.growth import Layer


@compiled
def undominated(layer: Layer, order: IntArray) -> npt.NDArray[np.bool_]:
    """Mark the nodes, ordered by key and cost, that no other of the same set dominates."""
    starts, profiles, keys, costs = layer.starts, layer.profile, layer.key, layer.cost
    count, longest = len(order), layer.profile.shape[1]
    keep = np.ones(count, dtype=np.bool_)
    # What is compared lies together: the nodes kept so far of the group at hand.
    nodes = np.empty(count, dtype=np.int64)
    ends = np.empty(count, dtype=np.int64)
    packed = np.empty((count, longest), dtype=profiles.dtype)
    kept = 0
    for place in range(count):
        node = order[place]
        if place == 0 or keys[node] != keys[order[place - 1]]:
            kept = 0
        end = longest
        while end > 0 and profiles[node, end - 1] == 0:
            end -= 1
        for index in range(kept):
            if (
                ends[index] <= end
                and costs[nodes[index]] <= costs[node]
                and _covers(packed, index, ends[index], profiles, node)
                and _same_set(starts, nodes[index], node)
            ):
                keep[place] = False
                break
        if keep[place]:
            nodes[kept], ends[kept] = node, end
            for ahead in range(longest):
                packed[kept, ahead] = profiles[node, ahead]
            kept += 1
    return keep


@compiled
def _covers(
    packed: npt.NDArray[Any], index: int, end: int, profiles: npt.NDArray[Any], node: int
) -> bool:
    """Tell whether one profile is nowhere above the other."""
    for ahead in range(end):  # noqa: SIM110
        if packed[index, ahead] > profiles[node, ahead]:
            return False
    return True


@compiled
def _same_set(starts: npt.NDArray[Any], some: int, other: int) -> bool:
    for slot in range(starts.shape[1]):
        if (starts[some, slot] < 0) != (starts[other, slot] < 0):
            return False
    return True
