r"""Search for the starts of a window of waiting requests, beside whoever runs.

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

from optsched.solvers.search.search import WORK_PER_SECOND
from optsched.solvers.search.window_kernels import (
    add_all,
    move_priced_starts,
    place_in_order,
    priced_cost,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.solvers.search.shared_kernels import Usage

_SHARE = 0.1  # of the time is work enough for: the rest is for whatever else the machine does
_CHUNKS = 20  # looks at the clock
_HOT, _COLD = 0.15, 0.01  # temperatures, in mean outputs


def search_window(
    prompts: IntArray,
    outputs: IntArray,
    memory: int,
    usage: Usage,
    price_sums: tuple[FloatArray, FloatArray],
    order: IntArray,
    hint: IntArray,
    *,
    seconds: float,
    seed: int = 0,
) -> tuple[IntArray, bool]:
    """Find starts of small cost.

    Parameters
    ----------
    prompts, outputs
        Tokens of each request, shape (n,).
    memory
        Tokens that the worker holds.
    usage
        Tokens held from step 0 on by those that run, with room for all outputs; it is changed.
    price_sums
        Sums of prices, and of step times price, over the steps up to each one from 0 on.
    order
        Requests in the order of the fallback, shape (n,).
    hint
        Starts in the last plan, shape (n,); -1 where it had none.
    seconds
        Time limit; the work is a tenth of what a core does in this time.
    seed
        Same seed and no lack of time: same starts.

    Returns
    -------
    starts
        Shape (n,); never dearer than the fallback's.
    cut
        Whether the time was up before the work was done.
    """
    deadline = time.perf_counter() + seconds
    last = np.lexsort((np.argsort(order), hint))
    plans = [(order, True), (order, False)] + [(last, False)] * bool((hint >= 0).any())
    best, least = np.zeros(0, dtype=np.int64), np.inf
    for ordered, prefix in plans:
        starts = np.zeros(len(prompts), dtype=np.int64)
        place_in_order(prompts, outputs, memory, usage, ordered, prefix, starts)
        add_all(prompts, outputs, usage, starts, -1)
        cost = priced_cost(prompts, outputs, *price_sums, starts)
        if cost < least:
            best, least = starts, cost
    if len(prompts) < 2 or least == 0:  # nothing to exchange, or all start now for nothing
        return best, False
    add_all(prompts, outputs, usage, best, 1)
    starts, costs = best.copy(), np.array([least, least])
    ranked = np.argsort(starts, kind="stable")
    position = np.empty_like(ranked)
    position[ranked] = np.arange(len(ranked))
    random = np.array([seed + 1], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    scale, cooling = float(outputs.mean()), _COLD / _HOT
    for chunk in range(_CHUNKS):
        if time.perf_counter() >= deadline:
            return best, True
        move_priced_starts(
            prompts,
            outputs,
            memory,
            *price_sums,
            starts,
            ranked,
            position,
            usage,
            best,
            costs,
            random,
            _SHARE * seconds * WORK_PER_SECOND / _CHUNKS,
            scale * _HOT * cooling ** (chunk / _CHUNKS),
            scale * _HOT * cooling ** ((chunk + 1) / _CHUNKS),
            int(outputs.max()),
        )
    return best, False
