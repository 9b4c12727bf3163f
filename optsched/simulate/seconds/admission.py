"""Admission as in `unit`, with batches that take seconds: one worker, run to the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.arrays import ranks_in
from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import ZERO, compiled
from optsched.simulate.seconds.batches import new_log, timing
from optsched.simulate.seconds.worker import Limits, advance, new_queues, place

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import IntArray
    from optsched.clock import Clock
    from optsched.policies.base import BatchSelector
    from optsched.simulate.seconds.batches import BatchLog, Requests
    from optsched.simulate.seconds.worker import Queues


def admit_on_clock(
    requests: Requests,
    order: IntArray | BatchSelector,
    clock: Clock,
    *,
    limits: tuple[float, int] = (1.0, 1),
    until: float = np.inf,
) -> tuple[IntArray, BatchLog]:
    """Admit requests in order, or as a selector chooses; return their starts, and the batches."""
    count, ordered = len(requests.prompts), isinstance(order, np.ndarray)
    ranked = order if isinstance(order, np.ndarray) else np.arange(count)
    # Many that arrive at once are quick to add in their order.
    coming = np.lexsort((ranks_in(ranked), requests.arrivals))[: count if ordered else 0]
    queues = new_queues(
        requests, np.array([requests.memory]), np.array([0]), lambda _: ranked, coming
    )
    go_on = interruptible_kernel(advance, len(coming))
    rule, log = Limits(*limits, until, logged=True), new_log()

    with timing(clock) as timer:

        def run(pause: float, hungry: bool) -> bool:
            """Run as `advance` does, with as many rows as it takes."""
            nonlocal log
            while not go_on(queues, 0, pause, hungry, rule, log, timer):
                if log.state[0] < len(log.usage):
                    return False
                log = log.doubled()
            return True

        if isinstance(order, np.ndarray):
            run(until, hungry=False)
        else:
            queues.ranks[:] = -1
            _run_chosen(requests, order, queues, until, run)
    ranks = queues.ranks[0]
    return np.where(ranks < 0, -1, queues.rows[0].start[ranks]), log.finished()


def _run_chosen(
    requests: Requests,
    selector: BatchSelector,
    queues: Queues,
    until: float,
    run: Callable[[float, bool], bool],
) -> None:
    """Let batches come that a selector chooses, each when the one before is used up."""
    arrivals, now = requests.arrivals, queues.now
    released = chosen = 0
    while now[0] < until:
        there = int(np.searchsorted(arrivals, now[0], side="right"))
        hungry = there > chosen
        pause = until
        if hungry:
            if there > released:
                selector.release(np.arange(released, there))
                released = there
            batch = selector.next_batch()
            _place_chosen(queues, requests, batch, chosen)
            chosen += len(batch)
        elif there < len(arrivals):
            pause = min(arrivals[there], until)
        if not run(pause, hungry):
            return
        if not hungry:
            if there == len(arrivals):
                return
            now[0] = max(now[0], pause)


@compiled
def _place_chosen(queues: Queues, requests: Requests, batch: IntArray, rank: int) -> None:
    """Let a batch come, the first of which has a rank."""
    for request in batch:
        queues.ranks[0, request] = rank
        row = queues.rows[0, rank]
        row.prompt, row.output = requests.prompts[request], requests.outputs[request]
        place(queues, ZERO, request, queues.now[0])
        rank += 1
