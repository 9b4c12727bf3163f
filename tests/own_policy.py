"""A decision policy as one file: smallest bound of memory-time first, some memory kept free.

The file is all that a new policy takes beside its line in the registry; `test_own_policy` adds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.policies import DecisionPolicy, State

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray

_KEPT = 0.1  # share of the memory that is kept free while requests run


def _smallest_first(state: State) -> IntArray:
    """Start waiting requests by ascending memory-time at their lower bound while they fit."""
    prompts, least = state.forecast.prompts[state.waiting], state.lower[state.waiting]
    order = np.argsort(prompts * least + least * (least + 1) // 2, kind="stable")
    room = state.free
    if len(state.running):
        room -= int(_KEPT * state.forecast.memory)
    count = int(np.searchsorted(np.cumsum(prompts[order] + 1), room, side="right"))
    return state.waiting[order[:count]]


CAUTIOUS = DecisionPolicy(
    "cautious",
    "smallest memory-time at the lower bound first, a tenth of the memory kept free",
    _smallest_first,
    source="this test",
)
