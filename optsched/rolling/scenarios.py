"""Whether a plan of a window is worth carrying out, by simulation of what may arrive.

Plan and fallback are simulated on the same few draws of requests from those that have arrived so
far; both admit by the prefix rule, the plan in the order of its starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.aside import stopwatch
from optsched._internal.compiled import allocating, compiled
from optsched.admission import admit_arriving, occupy

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.rolling.window import Window

    Plan = tuple[IntArray, bool]


ARRIVALS = 64  # of each scenario
_SURE = 2.0  # standard errors beyond which the fallback is taken to be better


class Past(NamedTuple):
    """Requests that arrived so far: tokens, keys of the fallback's order, and their rate."""

    prompts: IntArray
    outputs: IntArray
    keys: FloatArray
    rate: float


def plan_is_worse(
    window: Window,
    keys: FloatArray,
    plan: IntArray,
    fallback: IntArray,
    past: Past,
    count: int,
    deadline: float,
) -> bool:
    """Return whether the fallback does better than a plan on scenarios, beyond chance."""
    if np.array_equal(plan == 0, fallback == 0) and np.array_equal(
        np.argsort(plan, kind="stable"), np.argsort(fallback, kind="stable")
    ):
        return False
    planned = _keys_of(plan, keys)
    rng = np.random.default_rng((window.seed, ARRIVALS))
    differences = np.empty(count)
    for scenario in range(count):
        if stopwatch() >= deadline:
            return False
        drawn = rng.integers(0, len(past.prompts), ARRIVALS)
        arrivals = 1 + np.cumsum(rng.exponential(1 / past.rate, ARRIVALS)).astype(np.int64)
        prompts = np.concatenate([window.prompts, past.prompts[drawn]])
        outputs = np.concatenate([window.outputs, past.outputs[drawn]])
        sums = []
        for chosen, urgency in ((plan, planned), (fallback, keys)):
            order = np.argsort(np.concatenate([urgency, past.keys[drawn]]), kind="stable")
            sums.append(
                _sum_of_starts(
                    prompts, outputs, arrivals, window.memory, window.load, chosen == 0, order
                )
            )
        differences[scenario] = sums[0] - sums[1]
    error = float(differences.std(ddof=1)) / np.sqrt(count)
    return bool(differences.mean() > _SURE * error)


def _keys_of(starts: IntArray, keys: FloatArray) -> FloatArray:
    """Return keys that order the window by its starts, comparable to later requests."""
    order = np.lexsort((keys, starts))
    raised = np.empty(len(starts))
    raised[order] = np.maximum.accumulate(keys[order])
    # Equal keys keep the plan's order: the least difference that numbers of this size can have.
    return _increasing(raised, order)


@compiled
def _increasing(keys: FloatArray, order: IntArray) -> FloatArray:
    for place in range(1, len(order)):
        if keys[order[place]] <= keys[order[place - 1]]:
            keys[order[place]] = np.nextafter(keys[order[place - 1]], np.inf)
    return keys


@allocating
def _sum_of_starts(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    memory: int,
    load: IntArray,
    now: IntArray,
    order: IntArray,
) -> int:
    """Start some of the first requests now and admit all the others; give the sum of starts."""
    longest = max(outputs.max(), len(load))
    usage = np.zeros(4 * longest + 64, dtype=np.int64)
    window = np.zeros(2, dtype=np.int64)
    usage[1 : len(load) + 1] = load
    window[1] = len(load)
    here = len(now)
    place = np.empty(len(prompts), dtype=np.int64)
    rest = 0
    for request in range(len(prompts)):
        if request < here and now[request]:
            occupy(usage, window, prompts[request], outputs[request], 0)
            place[request] = -1
        else:
            place[request] = rest
            rest += 1
    s, o, a = np.empty((3, rest), dtype=np.int64)
    priority = np.empty(rest, dtype=np.int64)
    count = 0
    for request in order:
        at = place[request]
        if at >= 0:
            s[at], o[at] = prompts[request], outputs[request]
            a[at] = arrivals[request - here] if request >= here else 0
            priority[count] = at
            count += 1
    starts = np.zeros(rest, dtype=np.int64)
    worker, scratch = (usage, window), np.zeros((3, rest), dtype=np.int64)
    admit_arriving(s, o, a, memory, priority, np.empty(0), rest, starts, worker, scratch)
    total: int = starts.sum()
    return total
