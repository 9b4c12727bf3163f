r"""Runs that fill the memory to a threshold and clear it when it overflows (Jaillet Section 7).

**Loops.** When the greedy policy overflows, the worker becomes empty, and every request that has
arrived and is not complete waits in order of arrival. If it was empty before with no completion
and no arrival since, the two states are equal, and the run from one to the other repeats: two
counts that are equal make a full comparison of states. Later arrivals do not free the requests of
the loop. These stand first in the queue, so that each round admits all of them at its beginning;
the others only make a round end sooner, and it was too short for any of them. Conversely a run
that completes none overflows again and again, so no loop stays hidden once all have arrived.

A request that is alone above the threshold is never admitted, nor is any after it: a loop whose
period is one step.

**Stalls.** Random clearing repeats a state without repeating itself, so nothing proves that it
will never complete a request. It is given up after `patience` steps without a completion or an
arrival.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled
from optsched.simulate.seconds.batches import add_batch, with_room
from optsched.simulate.steps.preemption import log_attempt, random_rank, with_running

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.simulate.seconds.batches import BatchLog, Requests

COMPLETE, LOOPS, STALLED, STOPPED = 0, 1, 2, 3


class Thresholds(NamedTuple):
    """How a policy admits and clears."""

    threshold: int  # tokens held after the next batch up to which requests are admitted
    clears: float  # probability of each running request's preemption, drawn until the batch fits
    patience: int  # batches and draws without a completion or an arrival before giving up
    seed: int  # of the draws


@compiled
def run_to_threshold(
    requests: Requests,
    rules: Thresholds,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    until: float,
) -> tuple[IntArray, int, BatchLog, int, float, float, IntArray]:
    """Run all requests, or until it is certain or likely that they will never complete."""
    prompts, arrivals, outputs, memory = requests
    threshold, clears, patience, seed = rules
    count = len(prompts)
    starts = np.zeros(count, dtype=np.int64)
    running = np.empty(count, dtype=np.int64)
    attempts = np.empty((3, count + 16), dtype=np.int64)
    none = np.empty(0, dtype=np.int64)
    waiting = [0]  # a heap of indices, which ascend with the arrivals
    waiting.pop()
    released = logged = active = held = done = draws = step = progress = 0
    before = (-1, -1)  # completions and arrivals when the worker was empty last
    emptied = 0.0
    while True:
        now = log.now[0]
        while released < count and arrivals[released] <= now:
            heapq.heappush(waiting, released)
            released += 1
            progress = step
        overflowing = np.sort(running[:active]) if held + active > memory else none
        while held + active > memory:
            kept = 0
            for position in range(active):
                request = running[position]
                share = random_rank(seed, request, draws, 0) * 2.0**-63
                if clears < 1.0 and share >= clears:
                    running[kept] = request
                    kept += 1
                    continue
                made = step - starts[request]
                attempts = log_attempt(attempts, logged, request, starts[request], made)
                logged += 1
                held -= prompts[request] + made
                heapq.heappush(waiting, request)
            active = kept
            draws += 1
            progress -= 1  # a draw counts as a batch, lest tiny probabilities take forever
            if step - progress > patience:
                break
        if active == 0 and clears >= 1.0:
            if len(overflowing) > 0 and before[0] == done and before[1] == released:
                period = now - emptied
                return attempts[:, :logged].copy(), 0, log, LOOPS, emptied, period, overflowing
            before = (done, released)
            emptied = now
        if step - progress > patience:
            idle = float(step - progress)
            return attempts[:, :logged].copy(), 0, log, STALLED, now, idle, none
        entered = prefill = squares = 0
        while len(waiting) > 0:
            request = waiting[0]
            if held + active + prompts[request] + 1 > threshold:
                break
            heapq.heappop(waiting)
            starts[request] = step
            running[active] = request
            active += 1
            held += prompts[request]
            entered += prompts[request] > 0
            prefill += prompts[request]
            squares += prompts[request] ** 2
        if active == 0:
            if len(waiting) > 0:
                first = np.array([waiting[0]])
                return attempts[:, :logged].copy(), 0, log, LOOPS, now, 0.0, first
            if released == count:
                return attempts[:, :logged].copy(), 0, log, COMPLETE, now, 0.0, none
            log.now[0] = arrivals[released]
            continue
        log = with_room(log)
        usage = held + active
        decodes, resident = active - entered, held - prefill
        if now >= until or not add_batch(
            log, timer, prefill, decodes, resident, squares, usage, usage
        ):
            attempts = with_running(attempts, logged, running, starts, active, step)
            return attempts, active, log, STOPPED, now, 0.0, none
        step += 1
        held += active
        kept = 0
        for position in range(active):
            request = running[position]
            if step - starts[request] < outputs[request]:
                running[kept] = request
                kept += 1
                continue
            attempts = log_attempt(attempts, logged, request, starts[request], outputs[request])
            logged += 1
            done += 1
            progress = step
            held -= prompts[request] + outputs[request]
        active = kept
