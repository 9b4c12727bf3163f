r"""Admission as in `unit`, with batches that take seconds.

Memory grows by batches, not by seconds, so the admission rule is that of the unit clock with
batches as its steps; only the end of a batch, and what has arrived by then, depends on the clock.
The kernel goes from batch to batch; what a batch holds follows from the usage of memory, which is
kept anyway.

The prefix rule is a window of one request, and skip is one of all under no ratio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import compiled
from optsched.admission import (
    BEGIN,
    DUE,
    END,
    NEVER,
    RELEASED,
    STARTED,
    Queue,
    admit_window,
    empty_worker,
    new_queue,
)
from optsched.simulate.seconds.batches import BatchLog, Requests, add_batch, new_log, timing

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.clock import Clock
    from optsched.policies.base import BatchSelector

# Counters of a worker: batches so far, requests released, admitted and active, and what was
# admitted since the last batch: requests, their tokens and the squares of these.
_STEP, _RELEASED, _ADMITTED, _ACTIVE, _ENTERED, _PREFILL, _SQUARES = range(7)


_DONE, _CHOOSE, _FULL = range(3)  # why the kernel returns


class Worker(NamedTuple):
    """State of a worker between two batches."""

    arrivals: FloatArray
    memory: int
    queue: Queue  # its arrivals are in batches, and set when they have come
    usage: IntArray
    window: IntArray
    finishing: IntArray  # requests that complete at a batch, modulo the longest output
    counters: IntArray


def admit_on_clock(
    requests: Requests,
    order: IntArray | BatchSelector,
    clock: Clock,
    *,
    limits: tuple[float, int] = (1.0, 1),
    until: float = np.inf,
) -> tuple[IntArray, BatchLog]:
    """Admit requests at the boundaries between batches; return their starts, and the batches.

    Their order is fixed, or a selector chooses the next ones when those before are used up; that
    is for the prefix rule. The limits are the ratio and the length of the window.
    """
    count = len(requests.prompts)
    selector = None if isinstance(order, np.ndarray) else order
    fixed = order.copy() if isinstance(order, np.ndarray) else np.arange(count)
    worker = _new_worker(requests, fixed)
    queue = worker.queue.requests
    prompts, outputs, arrivals = queue.prompt, queue.output, queue.arrival
    advance = _advance if selector else interruptible_kernel(_advance, count)
    log = new_log()
    released = chosen = 0
    with timing(clock) as timer:
        while True:
            why = advance(worker, log, timer, until, *limits, selector is not None)
            if why == _DONE:
                break
            if why == _FULL:
                log = log.doubled()
                continue
            assert selector is not None
            there = int(worker.counters[_RELEASED])
            if there > released:
                selector.release(np.arange(released, there))
                released = there
            batch = selector.next_batch()
            ranks = slice(chosen, chosen + len(batch))
            fixed[ranks] = batch
            prompts[ranks], outputs[ranks] = requests.prompts[batch], requests.outputs[batch]
            arrivals[ranks] = worker.counters[_STEP]
            chosen += len(batch)
    starts, begun = np.full(count, -1), queue.start >= 0  # others may not have been chosen
    starts[fixed[begun]] = queue.start[begun]
    return starts, log.finished()


def _new_worker(requests: Requests, order: IntArray) -> Worker:
    prompts, arrivals, outputs, memory = requests
    longest = int(outputs.max())
    usage, window = empty_worker(longest)
    queue = new_queue(prompts, outputs, arrivals, memory, order)
    queue.requests.arrival = NEVER
    return Worker(
        arrivals,
        memory,
        queue,
        usage=usage,
        window=window,
        finishing=np.zeros(longest + 1, dtype=np.int64),
        counters=np.zeros(_SQUARES + 1, dtype=np.int64),
    )


@compiled
def _advance(
    worker: Worker,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    until: float,
    ratio: float,
    length: int,
    chosen_outside: bool,
) -> int:
    """Run until all is done, the log is full, or a batch of those that wait has to be chosen."""
    counters, finishing, now = worker.counters, worker.finishing, log.now
    queue, arrivals = worker.queue, worker.arrivals
    rows, counts = queue.requests, queue.counts
    while log.state[0] < len(log.usage):
        released = counters[_RELEASED]
        while released < len(arrivals) and arrivals[released] <= now[0]:
            if not chosen_outside:
                rows[released].arrival = counters[_STEP]
            released += 1
        counters[_RELEASED] = released
        joined = counts[RELEASED]
        if counters[_STEP] >= counts[DUE] or (joined < len(rows) and rows[joined].arrival < NEVER):
            step = counters[_STEP]
            usage, window = worker.usage, worker.window
            admit_window(queue, worker.memory, ratio, length, step, step + 1, usage, window)
            for index in range(counts[STARTED]):
                request = rows[rows[index].started]
                finishing[(step + request.output) % len(finishing)] += 1
                counters[_ADMITTED] += 1
                counters[_ACTIVE] += 1
                # Without a prompt its first token is as good as a decode.
                counters[_ENTERED] += request.prompt > 0
                counters[_PREFILL] += request.prompt
                counters[_SQUARES] += request.prompt * request.prompt
        if chosen_outside and counts[BEGIN] == counts[END] and counters[_ADMITTED] < released:
            return _CHOOSE
        if counters[_ACTIVE] == 0:  # then none waits either: every request fits alone
            if released == len(arrivals):
                return _DONE
            now[0] = arrivals[released]
            continue
        if now[0] >= until:
            return _DONE
        entered, prefill = counters[_ENTERED], counters[_PREFILL]
        held = worker.usage[counters[_STEP] + 1 - worker.window[0]]
        decodes = counters[_ACTIVE] - entered
        resident = held - prefill - entered - decodes  # at its end each has one token more
        if not add_batch(log, timer, prefill, decodes, resident, counters[_SQUARES], held, held):
            return _DONE
        counters[_ENTERED] = counters[_PREFILL] = counters[_SQUARES] = 0
        counters[_STEP] += 1
        slot = counters[_STEP] % len(finishing)
        counters[_ACTIVE] -= finishing[slot]
        finishing[slot] = 0
    return _FULL
