r"""An order that waits where prefilling now would hold up requests that are about to finish.

While a prompt is prefilled, all that run stand still. So the next request waits while, for some
number of batches :math:`T`, the requests that finish within them are delayed by more in sum than
:math:`\gamma` times what the batches' constants take:
:math:`|\{j : r_j \le T\}| \, (c_1 s + c_4 s^2) > \gamma \, T c_0`, where :math:`r_j` are the
batches that running requests still need. Admission is the prefix rule otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arrays import ranks_in, records
from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import ZERO, compiled
from optsched._internal.small_kernels import pop, push
from optsched.simulate.seconds.batches import (
    BATCH,
    add_batch,
    new_log,
    next_batch,
    start,
    timing,
    with_room,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray, Records
    from optsched.clock import LinearClock
    from optsched.simulate.seconds.batches import BatchLog, Requests


def admit_with_delay(
    requests: Requests, order: IntArray, clock: LinearClock, gamma: float, until: float
) -> tuple[IntArray, BatchLog]:
    """Admit requests by an order that waits; return their starts in batches, and the batches."""
    prompts = requests.prompts.astype(np.float64)
    prefill = clock.prefill_tokens * prompts + clock.squared_prompts * prompts**2
    worker = records(1, BATCH)
    patience = gamma * clock.constant
    with timing(clock) as timer:
        starts, log = interruptible_kernel(_run, len(order))(
            requests,
            order.copy(),
            ranks_in(order),
            prefill,
            patience,
            worker,
            new_log(),
            timer,
            until,
        )
    return starts, log.finished()


@compiled
def _run(
    requests: Requests,
    order: IntArray,
    ranks: IntArray,
    prefill: FloatArray,
    patience: float,
    workers: Records,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    until: float,
) -> tuple[IntArray, BatchLog]:
    prompts, arrivals, outputs, memory = requests
    count, worker = len(prompts), workers[0]
    starts = np.full(count, -1)
    waiting = np.empty(count, dtype=np.int64)  # ranks, the least first
    # Of those that run, by their last batch: it, and what they hold after batch t, less t.
    ends, bases = np.empty(count + 1, dtype=np.int64), np.empty(count + 1, dtype=np.int64)
    released = waits = first = last = ZERO
    while True:
        while released < count and arrivals[released] <= log.now[0]:
            waits = push(waiting, waits, ranks[released])
            released += 1
        while waits > 0:
            request = order[waiting[0]]
            step = worker.batch
            prompt, end = prompts[request], step + outputs[request]
            if _holds_up(ends, first, last, step, prefill[request], patience):
                break
            place = _insert(ends, bases, first, last, end, prompt - step)
            if not _fits(ends, bases, first, last + 1, memory):
                _remove(ends, bases, place, last)
                break
            last += 1
            waits = pop(waiting, waits)
            starts[request] = step
            start(worker, prompt)
        if worker.active == 0:
            if released == count:
                return starts, log
            log.now[0] = arrivals[released]
            continue
        log = with_room(log)
        if log.now[0] >= until or not add_batch(log, timer, next_batch(worker), worker.tokens):
            return starts, log
        while first < last and ends[first] == worker.batch:
            worker.active -= 1
            worker.tokens -= bases[first] + worker.batch
            first += 1


@compiled
def _holds_up(
    ends: IntArray, first: int, last: int, step: int, prefill: float, patience: float
) -> bool:
    """Whether too many that run are too near to their end."""
    for place in range(first, last):
        if (place + 1 - first) * prefill > patience * (ends[place] - step):
            return True
    return False


@compiled
def _insert(ends: IntArray, bases: IntArray, first: int, last: int, end: int, base: int) -> int:
    """Put a request in by its last batch; return its place."""
    place = last
    while place > first and ends[place - 1] > end:
        ends[place], bases[place] = ends[place - 1], bases[place - 1]
        place -= 1
    ends[place], bases[place] = end, base
    return place


@compiled
def _remove(ends: IntArray, bases: IntArray, place: int, last: int) -> None:
    """Take out what was put in last."""
    for at in range(place, last):
        ends[at], bases[at] = ends[at + 1], bases[at + 1]


@compiled
def _fits(ends: IntArray, bases: IntArray, first: int, last: int, memory: int) -> bool:
    """Whether all fit to their end: usage is largest where some of them end."""
    held = ZERO
    for place in range(last - 1, first - 1, -1):
        held += bases[place]
        if held + (last - place) * ends[place] > memory:
            return False
    return True
