r"""Search for the starts of a window of waiting requests, beside those that run.

It minimises the sum of the starts and of the memory that they take at given prices, from the best
of three plans: the fallback's order by the prefix rule, the same order with every gap filled, and
the order of the last plan. Then a few requests at a time are taken out and put back, as in
`optsched.solvers.search.search`, which may let requests wait although they would fit.

Work is counted in token-steps touched, so that the plan depends on the seed alone, unless the time
is up before.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.arrays import ranks_in
from optsched.solvers.search.annealing import WORK_PER_SECOND, Cooling
from optsched.solvers.search.shared_kernels import new_random
from optsched.solvers.search.window_kernels import (
    PricedStarts,
    add_all,
    move_priced_starts,
    place_in_order,
    priced_cost,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched._internal.start_prices import PriceSums
    from optsched.solvers.search.shared_kernels import Usage

_SHARE = 0.1  # of the time is work enough for: the rest is for whatever else the machine does
_CHUNKS = 20  # looks at the clock
_HOT, _COLD = 0.15, 0.01  # temperatures, in mean outputs


def search_window(
    prompts: IntArray,
    outputs: IntArray,
    memory: int,
    usage: Usage,
    prices: PriceSums,
    order: IntArray,
    hint: IntArray,
    *,
    seconds: float,
    seed: int = 0,
) -> tuple[IntArray, bool]:
    """Find starts of small cost, and whether the time was up before the work was done."""
    deadline = time.perf_counter() + seconds
    last = np.lexsort((np.argsort(order), hint))
    plans = [(order, True), (order, False)] + [(last, False)] * bool((hint >= 0).any())
    best, least = np.zeros(0, dtype=np.int64), np.inf
    for ordered, prefix in plans:
        starts = np.zeros(len(prompts), dtype=np.int64)
        place_in_order(prompts, outputs, memory, usage, ordered, prefix, starts)
        add_all(prompts, outputs, usage, starts, -1)
        cost = priced_cost(prompts, outputs, prices, starts)
        if cost < least:
            best, least = starts, cost
    if len(prompts) < 2 or least == 0:  # nothing to exchange, or all start now for nothing
        return best, False
    add_all(prompts, outputs, usage, best, 1)
    ranked = np.argsort(best, kind="stable")
    window = PricedStarts(
        prompts,
        outputs,
        memory,
        prices,
        starts=best.copy(),
        order=ranked,
        position=ranks_in(ranked),
        usage=usage,
        best=best,
        costs=np.array([least, least]),
    )
    random, longest = new_random(seed), int(outputs.max())
    cooling = Cooling(float(outputs.mean()), _HOT, _COLD)
    work = _SHARE * seconds * WORK_PER_SECOND / _CHUNKS
    for chunk in range(_CHUNKS):
        if time.perf_counter() >= deadline:
            return best, True
        leg = cooling.leg(work, chunk / _CHUNKS, (chunk + 1) / _CHUNKS)
        move_priced_starts(window, longest, random, leg)
    return best, False
