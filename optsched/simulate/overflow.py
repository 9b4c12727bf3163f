r"""Runs that fill the memory to a threshold and clear it when it overflows (Jaillet Section 7).

**Loops.** When the greedy policy overflows, the worker becomes empty, and everybody who has arrived
and is not complete waits in order of arrival. If it was empty before with no completion and no
arrival since, the two states are equal, and the run from one to the other repeats: two counts that
are equal make a full comparison of states. Later arrivals do not free the requests of the loop.
These stand first in the queue, so that each round admits all of them at its beginning; the others
only make a round end sooner, and it was too short for any of them. Conversely a run that completes
nobody any more overflows again and again, so no loop stays hidden once all have arrived.

A request that is alone above the threshold is never admitted, and nobody after it is: a loop whose
period is one step.

**Stalls.** Random clearing repeats a state without repeating itself, so that nothing proves that it
will not complete anybody. It is given up after `patience` steps without a completion or an arrival.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from optsched._compiled import compiled
from optsched.simulate.eviction import log_attempt, random_rank

if TYPE_CHECKING:
    from optsched.instance import IntArray

COMPLETE, LOOPS, STALLED = 0, 1, 2


@compiled
def run_to_threshold(
    prompts: IntArray,
    arrivals: IntArray,
    outputs: IntArray,
    memory: int,
    threshold: int,
    clears: float,
    patience: int,
    seed: int,
) -> tuple[IntArray, int, int, int, IntArray]:
    """Run all requests, or until it is certain or likely that they will never complete.

    Parameters
    ----------
    prompts, arrivals, outputs, memory
        The instance; an output is only looked at to see whether a request is complete.
    threshold
        Tokens held at the next step up to which requests are admitted.
    clears
        Probability with which an overflow sends each running request back, drawn again until the
        next step fits; 1 sends all back.
    patience
        Steps and draws without a completion or an arrival after which a run is given up.
    seed
        Of the draws.

    Returns
    -------
    tuple
        Attempts, shape (3, attempts): request, start, tokens made, by end; COMPLETE, LOOPS or
        STALLED; the step at which the state was there for the first time, or at which the run was
        given up; the period, or the steps without a completion; the requests of the loop.
    """
    count = len(prompts)
    starts = np.zeros(count, dtype=np.int64)
    running = np.empty(count, dtype=np.int64)
    log = np.empty((3, count + 16), dtype=np.int64)
    nobody = np.empty(0, dtype=np.int64)
    waiting = [0]  # a heap of indices, which ascend with the arrivals
    waiting.pop()
    released = logged = active = held = done = draws = 0
    clock = progress = arrivals[0]
    before = (-1, -1, -1)  # step, completions and arrivals when the worker was empty last
    while True:
        while released < count and arrivals[released] <= clock:
            heapq.heappush(waiting, released)
            released += 1
            progress = clock
        overflowing = np.sort(running[:active]) if held + active > memory else nobody
        while held + active > memory:
            kept = 0
            for position in range(active):
                request = running[position]
                share = random_rank(seed, request, draws, 0) * 2.0**-63
                if clears < 1.0 and share >= clears:
                    running[kept] = request
                    kept += 1
                    continue
                made = clock - starts[request]
                log = log_attempt(log, logged, request, starts[request], made)
                logged += 1
                held -= prompts[request] + made
                heapq.heappush(waiting, request)
            active = kept
            draws += 1
            progress -= 1  # a draw counts as a step, lest tiny probabilities take forever
            if clock - progress > patience:
                break
        if active == 0 and clears >= 1.0:
            if len(overflowing) > 0 and before[1] == done and before[2] == released:
                return log[:, :logged].copy(), LOOPS, before[0], clock - before[0], overflowing
            before = (clock, done, released)
        if clock - progress > patience:
            return log[:, :logged].copy(), STALLED, clock, clock - progress, nobody
        while len(waiting) > 0:
            request = waiting[0]
            if held + active + prompts[request] + 1 > threshold:
                break
            heapq.heappop(waiting)
            starts[request] = clock
            running[active] = request
            active += 1
            held += prompts[request]
        if active == 0:
            if len(waiting) > 0:
                first = np.array([waiting[0]])
                return log[:, :logged].copy(), LOOPS, clock, 1, first
            if released == count:
                return log[:, :logged].copy(), COMPLETE, clock, 0, nobody
            clock = arrivals[released]
            continue
        clock += 1
        held += active
        kept = 0
        for position in range(active):
            request = running[position]
            if clock - starts[request] < outputs[request]:
                running[kept] = request
                kept += 1
                continue
            log = log_attempt(log, logged, request, starts[request], outputs[request])
            logged += 1
            done += 1
            progress = clock
            held -= prompts[request] + outputs[request]
        active = kept
