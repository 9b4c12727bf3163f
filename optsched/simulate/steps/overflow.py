"""Runs that fill the memory to a threshold and clear it when it overflows (Jaillet Section 7).

When the greedy policy overflows, the worker becomes empty. If it was empty before with no
completion and no arrival since, the two states are equal, and the run repeats in a loop. Later
arrivals do not free its requests: these stand first in the queue, so that each round admits all of
them at its beginning, and others only make a round end sooner. A request that is alone above the
threshold is never admitted, nor is any after it: a loop whose period is one step. Random clearing
repeats a state without repeating itself; such a run is given up after `patience` steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled
from optsched._internal.small_kernels import pop, push
from optsched.simulate.seconds.batches import add_batch, next_batch, with_room
from optsched.simulate.steps.attempts import admit, all_attempts, end, random_rank

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.simulate.seconds.batches import BatchLog, Requests
    from optsched.simulate.steps.attempts import Worker

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
    worker: Worker,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    until: float,
) -> tuple[IntArray, BatchLog, int, float, float, IntArray]:
    """Run all requests, or until it is certain or likely that they will never complete."""
    prompts, arrivals, outputs, memory = requests
    threshold, clears, patience, seed = rules
    count, now, running, starts = len(prompts), worker.now[0], worker.running, worker.starts
    attempts = np.empty((3, count + 16), dtype=np.int64)
    none = np.empty(0, dtype=np.int64)
    waiting = np.empty(count, dtype=np.int64)  # a heap of indices, which ascend with the arrivals
    draws = progress = 0
    before = (-1, -1)  # completions and arrivals when the worker was empty last
    emptied = 0.0
    while True:
        time = log.now[0]
        while now.released < count and arrivals[now.released] <= time:
            now.waiting = push(waiting, now.waiting, now.released)
            now.released += 1
            progress = now.batch
        overflows = now.tokens + now.active > memory
        overflowing = np.sort(running[: now.active]) if overflows else none
        while now.tokens + now.active > memory:
            kept = 0
            for place in range(now.active):
                request = running[place]
                share = random_rank(seed, request, draws, 0) * 2.0**-63
                if clears < 1.0 and share >= clears:
                    running[kept] = request
                    kept += 1
                    continue
                attempts = end(worker, attempts, request, prompts[request])
                now.waiting = push(waiting, now.waiting, request)
            draws += 1
            progress -= 1  # a draw counts as a batch, lest tiny probabilities take forever
            if now.batch - progress > patience:
                break
        if now.active == 0 and clears >= 1.0:
            if overflows and before[0] == now.done and before[1] == now.released:
                ended = all_attempts(worker, attempts)
                return ended, log, LOOPS, emptied, time - emptied, overflowing
            before = (now.done, now.released)
            emptied = time
        idle = now.batch - progress
        if idle > patience:
            now.active = 0
            return all_attempts(worker, attempts), log, STALLED, time, float(idle), none
        while now.waiting > 0:
            request = waiting[0]
            if now.tokens + now.active + prompts[request] + 1 > threshold:
                break
            now.waiting = pop(waiting, now.waiting)
            admit(worker, request, prompts[request])
        if now.active == 0:
            ended = all_attempts(worker, attempts)
            if now.waiting > 0:
                return ended, log, LOOPS, time, 0.0, waiting[:1].copy()
            if now.released == count:
                return ended, log, COMPLETE, time, 0.0, none
            log.now[0] = arrivals[now.released]
            continue
        log = with_room(log)
        if time >= until or not add_batch(log, timer, next_batch(now), now.tokens):
            return all_attempts(worker, attempts), log, STOPPED, time, 0.0, none
        kept = 0
        for place in range(now.active):
            request = running[place]
            if now.batch - starts[request] < outputs[request]:
                running[kept] = request
                kept += 1
                continue
            attempts = end(worker, attempts, request, prompts[request])
            now.done += 1
            progress = now.batch
