"""The Lagrangian where many requests are alike: one sweep per kind in place of a search for each.

Requests of equal prompt and output differ in their arrivals only. What a start at each step costs
is the same for all of them, so the cheapest start from each step on is found once, backwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.compiled import compiled
from optsched._internal.start_prices import price_of_start

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched._internal.start_prices import PriceSums
    from optsched.instance import Instance

_FEWEST = 4096  # requests from which on a look for kinds pays
_STEPS_PER_REQUEST = 64  # that a sweep may take; a search looks at about as many


def kinds_of(instance: Instance, horizon: int) -> IntArray | None:
    """Return the requests kind by kind, if there are few enough kinds to sweep over the steps."""
    count = len(instance)
    if count < _FEWEST:
        return None
    prompts = instance.prompts - instance.prompts.min()
    outputs = instance.outputs - instance.outputs.min()
    width = int(outputs.max()) + 1
    if (int(prompts.max()) + 1) * width > count:
        return None
    kinds = prompts * width + outputs
    if np.count_nonzero(np.bincount(kinds)) * horizon > _STEPS_PER_REQUEST * count:
        return None
    return np.argsort(kinds, kind="stable")


@compiled
def cheapest_by_kind(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    weight: int,
    order: IntArray,
    sums: PriceSums,
) -> tuple[IntArray, IntArray]:
    """Find the cheapest starts; arguments as in `lagrangian`, and `kinds_of`."""
    total, moment = sums
    horizon = len(total) - 1
    starts = np.empty(len(prompts), dtype=np.int64)
    costs = np.empty(len(prompts), dtype=np.int64)
    best_start = np.empty(horizon + 1, dtype=np.int64)
    best_cost = np.empty(horizon + 1, dtype=np.int64)
    prompt = output = np.int64(-1)
    for request in order:
        if prompts[request] != prompt or outputs[request] != output:
            prompt, output = prompts[request], outputs[request]
            # At the horizon nothing is paid any more, so that no later start is cheaper.
            best_start[horizon] = horizon
            best_cost[horizon] = weight * (horizon + output)
            for start in range(horizon - 1, -1, -1):
                cost = weight * (start + output) + price_of_start(
                    prompt, output, start, total, moment
                )
                later = best_cost[start + 1]
                best_start[start] = start if cost <= later else best_start[start + 1]
                best_cost[start] = min(cost, later)
        arrival = arrivals[request]
        if arrival >= horizon:
            starts[request], costs[request] = arrival, weight * output
        else:
            starts[request] = best_start[arrival]
            costs[request] = best_cost[arrival] - weight * arrival
    return starts, costs
