r"""Admission as in `unit`, with batches that take seconds.

Memory grows by batches, not by seconds, so the admission rule is that of the unit clock with
batches as its steps; only the end of a batch, and what has arrived by then, depends on the clock.
The kernel goes from batch to batch; what a batch holds follows from the usage of memory, which is
kept anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.arrays import ranks_in
from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import ZERO, compiled
from optsched._internal.min_tree import ABSENT, leftmost_below, new_tree, put
from optsched.admission import earliest_start, new_usage, occupy
from optsched.simulate.seconds.batches import (
    BatchLog,
    Requests,
    add_batch,
    new_log,
    timing,
    with_room,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock
    from optsched.policies.base import BatchSelector

# Counters of a worker: batches so far, requests released, admitted and active, and what was
# admitted since the last batch: requests, their tokens and the squares of these.
_STEP, _RELEASED, _ADMITTED, _ACTIVE, _ENTERED, _PREFILL, _SQUARES = range(7)


class Worker(NamedTuple):
    """State of a worker between two batches."""

    requests: Requests
    rank: IntArray  # of each request in the order of admission
    request: IntArray  # of each rank
    waiting: IntArray  # tree over ranks: batches that must end before the request can start
    usage: IntArray
    window: IntArray
    finishing: IntArray  # requests that complete at a batch, modulo the longest output
    starts: IntArray
    counters: IntArray


def admit_on_clock(
    requests: Requests,
    order: IntArray | BatchSelector,
    clock: Clock,
    *,
    skip: bool = False,
    until: float = np.inf,
) -> tuple[IntArray, BatchLog]:
    """Admit requests at the boundaries between batches; return their starts, and the batches.

    Their order is fixed, or a selector chooses the next ones when those before are used up.
    """
    count = len(requests.prompts)
    selector = None if isinstance(order, np.ndarray) else order
    fixed = order if isinstance(order, np.ndarray) else np.arange(count)
    worker = _new_worker(requests, fixed)
    advance = _advance if selector else interruptible_kernel(_advance, count)
    log = new_log()
    released = chosen = 0
    done = False
    with timing(clock) as timer:
        while True:
            log, done = advance(worker, log, timer, until, skip, selector is not None)
            if done:
                break
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
    return worker.starts, log.finished()


def _new_worker(requests: Requests, order: IntArray) -> Worker:
    count, longest = len(order), int(requests.outputs.max())
    usage, window = new_usage(longest)
    return Worker(
        requests,
        rank=ranks_in(order),
        request=np.array(order, dtype=np.int64),
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
    until: float,
    skip: bool,
    chosen_outside: bool,
) -> tuple[BatchLog, bool]:
    """Run until all is done, or until requests wait and a batch of them has to be chosen."""
    counters, waiting, arrivals = worker.counters, worker.waiting, worker.requests.arrivals
    while True:
        released = counters[_RELEASED]
        while released < len(arrivals) and arrivals[released] <= log.now[0]:
            if not chosen_outside:
                put(waiting, worker.rank[released], ZERO)
            released += 1
        counters[_RELEASED] = released
        _admit(worker, skip)
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
        log = with_room(log)
        if not add_batch(log, timer, prefill, decodes, resident, squares, held, held):
            return log, True
        counters[_ENTERED] = counters[_PREFILL] = counters[_SQUARES] = 0
        counters[_STEP] += 1
        slot = counters[_STEP] % len(worker.finishing)
        counters[_ACTIVE] -= worker.finishing[slot]
        worker.finishing[slot] = 0


@compiled
def _admit(worker: Worker, skip: bool) -> None:
    counters, waiting = worker.counters, worker.waiting
    prompts, _, outputs, memory = worker.requests
    step = counters[_STEP]
    while True:
        # Requests that cannot start yet were tried before; usage has only grown since.
        rank = leftmost_below(waiting, step + 1 if skip else ABSENT)
        if rank < 0 or waiting[len(waiting) // 2 + rank] > step:
            return
        request = worker.request[rank]
        prompt, output = prompts[request], outputs[request]
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
