r"""A bound where all prompts are equal: the worker as so many machines.

A running request holds at least :math:`s + 1` tokens, so no more than
:math:`K = \lfloor M / (s + 1) \rfloor` run at any step. One machine that makes K tokens per step,
one after the other, and may interrupt requests completes none later; on it the shortest remaining
output first minimises the sum of completions (Schrage, 1968). The bound is strong where age makes
no difference, :math:`\lfloor M / (s + \max_i o_i) \rfloor = K`.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.compiled import compiled
from optsched.errors import InstanceError

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.problem.instance import Instance


def machines_bound(instance: Instance) -> float:
    """Bound the total latency of every schedule of equal prompts from below."""
    prompts = instance.prompts
    if prompts.min() != prompts.max():
        raise InstanceError(
            f"prompts lie between {prompts.min()} and {prompts.max()}, but this bound needs them "
            "equal"
        )
    machines = int(instance.memory // (prompts[0] + 1))
    ends = _shortest_remaining(instance.outputs, instance.arrivals * machines)
    total = float(ends.sum() / machines - instance.arrivals.sum())  # ends count 1 / K steps
    return max(total, float(instance.outputs.sum()))


@compiled
def _shortest_remaining(lengths: IntArray, arrivals: IntArray) -> IntArray:
    """Return the ends on one machine that always runs the least remaining length."""
    count = len(lengths)
    ends = np.zeros(count, dtype=np.int64)
    waiting = [(lengths[0], 0)]
    released, now = 1, arrivals[0]
    while len(waiting) > 0 or released < count:
        if len(waiting) == 0:
            now = arrivals[released]
        while released < count and arrivals[released] <= now:
            heapq.heappush(waiting, (lengths[released], released))
            released += 1
        left, request = heapq.heappop(waiting)
        until = now + left
        if released < count and arrivals[released] < until:
            heapq.heappush(waiting, (until - arrivals[released], request))
            now = arrivals[released]
        else:
            ends[request] = until
            now = until
    return ends
