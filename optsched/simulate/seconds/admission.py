r"""Admission as in `unit`, with batches that take seconds.

Memory grows by batches, not by seconds, so the admission rule is that of the unit clock with
batches as its steps; only the end of a batch, and what has arrived by then, depends on the clock.
The kernel goes from batch to batch; what a batch holds follows from the usage of memory, which is
kept anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.compiled import ZERO, compiled
from optsched._internal.min_tree import ABSENT, leftmost_below, new_tree, put
from optsched.admission import earliest_start, new_usage, occupy
from optsched.simulate.seconds.batches import BatchLog, Timer, add_batch, enlarged, is_full, new_log

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock
    from optsched.policies.base import BatchSelector

# Counters of a worker: batches so far, requests released, admitted and active, and what was
# admitted since the last batch: requests, their tokens and the squares of these.
_STEP, _RELEASED, _ADMITTED, _ACTIVE, _ENTERED, _PREFILL, _SQUARES = range(7)


class Worker(NamedTuple):
    """State of a worker between two batches."""

    arrivals: FloatArray
    prompts: IntArray
    outputs: IntArray
    rank: IntArray  # of each request in the order of admission
    request: IntArray  # of each rank
    waiting: IntArray  # tree over ranks: batches that must end before the request can start
    usage: IntArray
    window: IntArray
    finishing: IntArray  # requests that complete at a batch, modulo the longest output
    starts: IntArray
    counters: IntArray


def run_by_priority(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: FloatArray,
    memory: int,
    priority: IntArray,
    clock: Clock,
    *,
    skip: bool = False,
    until: float = np.inf,
) -> tuple[IntArray, BatchLog]:
    """Admit requests in a fixed order of priority, at the boundaries between batches."""
    worker = _new_worker(prompts, outputs, arrivals, priority)
    return worker.starts, _run(worker, memory, clock, until, skip, None)


def run_batches(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: FloatArray,
    memory: int,
    selector: BatchSelector,
    clock: Clock,
    *,
    until: float = np.inf,
) -> tuple[IntArray, BatchLog]:
    """Admit requests batch by batch; a batch is chosen when the one before is used up."""
    worker = _new_worker(prompts, outputs, arrivals, np.arange(len(prompts)))
    return worker.starts, _run(worker, memory, clock, until, False, selector)


def _run(
    worker: Worker,
    memory: int,
    clock: Clock,
    until: float,
    skip: bool,
    selector: BatchSelector | None,
) -> BatchLog:
    timer = Timer(clock)
    log = new_log()
    released = chosen = 0
    while True:
        arguments = (log, timer.handle, memory, until, skip, selector is not None)
        log, done = _advance(worker, *arguments)
        timer.reraise()
        if done:
            return log.finished()
        assert selector is not None
        there = int(worker.counters[_RELEASED])
        if there > released:
            selector.release(np.arange(released, there))
            released = there
        batch = selector.next_batch()
        worker.request[chosen : chosen + len(batch)] = batch
        for rank in range(chosen, chosen + len(batch)):
            put(worker.waiting, rank, ZERO)
        chosen += len(batch)


def _new_worker(
    prompts: IntArray, outputs: IntArray, arrivals: FloatArray, priority: IntArray
) -> Worker:
    count = len(prompts)
    longest = int(outputs.max())
    rank = np.empty(count, dtype=np.int64)
    rank[priority] = np.arange(count)
    usage, window = new_usage(longest)
    return Worker(
        arrivals=arrivals,
        prompts=prompts,
        outputs=outputs,
        rank=rank,
        request=np.array(priority, dtype=np.int64),
        waiting=new_tree(count),
        usage=usage,
        window=window,
        finishing=np.zeros(longest + 1, dtype=np.int64),
        starts=np.full(count, -1, dtype=np.int64),
        counters=np.zeros(_SQUARES + 1, dtype=np.int64),
    )


@compiled
def _advance(
    worker: Worker,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    memory: int,
    until: float,
    skip: bool,
    chosen_outside: bool,
) -> tuple[BatchLog, bool]:
    """Run until all is done, or until requests wait and a batch of them has to be chosen."""
    counters, arrivals, waiting = worker.counters, worker.arrivals, worker.waiting
    while True:
        released = counters[_RELEASED]
        while released < len(arrivals) and arrivals[released] <= log.now[0]:
            if not chosen_outside:
                put(waiting, worker.rank[released], ZERO)
            released += 1
        counters[_RELEASED] = released
        _admit(worker, memory, skip)
        if chosen_outside and waiting[1] == ABSENT and counters[_ADMITTED] < released:
            return log, False
        if counters[_ACTIVE] == 0:  # then none waits either: every request fits alone
            if released == len(arrivals):
                return log, True
            log.now[0] = arrivals[released]
            continue
        if log.now[0] >= until:
            return log, True
        entered, prefill = counters[_ENTERED], counters[_PREFILL]
        held = worker.usage[counters[_STEP] + 1 - worker.window[0]]
        decodes = counters[_ACTIVE] - entered
        resident = held - prefill - entered - decodes  # at its end each has one token more
        squares = counters[_SQUARES]
        if is_full(log):
            log = enlarged(log)
        if not add_batch(log, timer, prefill, decodes, resident, squares, held, held):
            return log, True
        counters[_ENTERED] = counters[_PREFILL] = counters[_SQUARES] = 0
        counters[_STEP] += 1
        slot = counters[_STEP] % len(worker.finishing)
        counters[_ACTIVE] -= worker.finishing[slot]
        worker.finishing[slot] = 0


@compiled
def _admit(worker: Worker, memory: int, skip: bool) -> None:
    counters, waiting = worker.counters, worker.waiting
    step = counters[_STEP]
    while True:
        # Requests that cannot start yet were tried before; usage has only grown since.
        rank = leftmost_below(waiting, step + 1 if skip else ABSENT)
        if rank < 0 or waiting[len(waiting) // 2 + rank] > step:
            return
        request = worker.request[rank]
        prompt, output = worker.prompts[request], worker.outputs[request]
        start = earliest_start(worker.usage, worker.window, memory, prompt, output, step)
        if start > step:
            put(waiting, rank, start)
            continue  # under the prefix rule it stays the leftmost, and ends the walk
        put(waiting, rank, ABSENT)
        occupy(worker.usage, worker.window, prompt, output, step)
        worker.finishing[(step + output) % len(worker.finishing)] += 1
        worker.starts[request] = step
        counters[_ADMITTED] += 1
        counters[_ACTIVE] += 1
        counters[_ENTERED] += prompt > 0  # else its first token is as good as a decode
        counters[_PREFILL] += prompt
        counters[_SQUARES] += prompt * prompt
