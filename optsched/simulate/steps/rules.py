"""Admission beyond the prefix rule: go on past a request that does not fit, or plan around it.

While no request arrives, a backfill plan stays the same: what runs by then was part of it, and less
room makes no start earlier. So a new one is made at arrivals only, and only as far as it decides
what starts before the next one. Offline the plan is made once (serial schedule generation).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.arrays import ranks_in
from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import compiled
from optsched.admission import (
    NEVER,
    admit_by_priority,
    admit_in_order,
    admit_in_window,
    admit_window,
    earliest_start,
    empty_worker,
    new_queue,
    slide,
)
from optsched.policies.base import window_of
from optsched.problem.execution import Execution, unpreempted

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import IntArray
    from optsched.policies.base import BatchPolicy, BatchSelector, PriorityPolicy, Rule
    from optsched.problem.instance import Instance
    from optsched.simulate.task import Task


def admit_in_order_of(task: Task) -> Execution:
    """Run an order of requests under its rule."""
    return _executed(task, _ordered(task.instance, task.policy))


def admit_chosen(task: Task) -> Execution:
    """Run a choice of batches under its rule."""
    instance, policy = task.instance, task.policy
    if policy.rule == "prefix":
        return _executed(task, admit_batches(instance, policy.batches(instance)))
    order = _batch_order(instance, policy)
    return _executed(task, _admit_by_plan(instance, order, policy.rule))


def _executed(task: Task, starts: IntArray) -> Execution:
    """Return the run of a policy that preempts nothing."""
    return unpreempted(task.instance, task.policy.name, starts, task.intervals)


def _ordered(instance: Instance, policy: PriorityPolicy) -> IntArray:
    priority = policy.order(instance)
    if policy.rule == "prefix":
        return admit_by_priority(instance, priority)
    if policy.rule != "backfill":
        return admit_in_window(instance, priority, *window_of(policy.rule))
    rank = ranks_in(priority)
    return _admit_by_plan(instance, lambda waiting: waiting[np.argsort(rank[waiting])], policy.rule)


def admit_batches(instance: Instance, selector: BatchSelector) -> IntArray:
    """Admit requests batch by batch; a batch is chosen when the one before is used up."""
    arrivals = instance.arrivals
    starts = np.zeros(len(instance), dtype=np.int64)
    usage = empty_worker(int(instance.outputs.max()))
    released = waiting = clock = 0
    while True:
        if not waiting:
            if released == len(instance):
                return starts
            clock = max(clock, int(arrivals[released]))
        there = int(np.searchsorted(arrivals, clock, side="right"))
        if there > released:
            selector.release(np.arange(released, there))
            waiting += there - released
            released = there
        batch = selector.next_batch()
        waiting -= len(batch)
        clock = admit_in_order(
            instance.prompts, instance.outputs, instance.memory, batch, clock, starts, *usage
        )


def _lengths(instance: Instance) -> tuple[IntArray, IntArray, int]:
    return instance.prompts, instance.outputs, instance.memory


def _batch_order(instance: Instance, policy: BatchPolicy) -> Callable[[IntArray], IntArray]:
    def order(waiting: IntArray) -> IntArray:
        # The selector sees no others.
        selector = policy.batches(instance.take(waiting))
        selector.release(np.arange(len(waiting)))
        batches: list[IntArray] = []
        chosen = 0
        while chosen < len(waiting):
            batches.append(selector.next_batch())
            chosen += len(batches[-1])
        return waiting[np.concatenate(batches)]

    return order


def _admit_by_plan(
    instance: Instance, order: Callable[[IntArray], IntArray], rule: Rule
) -> IntArray:
    """Order the waiting requests whenever some arrive, and admit until the next arrival."""
    starts = np.full(len(instance), -1)
    usage, window = empty_worker(int(instance.outputs.max()))
    waiting = np.zeros(0, dtype=np.int64)
    steps, first = np.unique(instance.arrivals, return_index=True)
    ends = [*first[1:].tolist(), len(instance)]
    for at, step in enumerate(steps.tolist()):
        until = int(steps[at + 1]) if at + 1 < len(steps) else NEVER
        waiting = order(np.concatenate([waiting, np.arange(first[at], ends[at])]))
        if rule == "backfill":
            plan = interruptible_kernel(_backfill, len(waiting))
            usage = plan(*_lengths(instance), waiting, step, until, starts, usage, window)
        else:
            count, memory = len(waiting), instance.memory
            lengths = instance.prompts[waiting], instance.outputs[waiting]
            queue = new_queue(*lengths, np.full(count, step), memory, np.arange(count))
            admit = interruptible_kernel(admit_window, count)
            admit(queue, memory, *window_of(rule), step, until, usage, window)
            starts[waiting] = queue.requests.start
        waiting = np.sort(waiting[starts[waiting] < 0])
    return starts


@compiled
def _backfill(
    prompts: IntArray,
    outputs: IntArray,
    memory: int,
    order: IntArray,
    clock: int,
    until: int,
    starts: IntArray,
    usage: IntArray,
    window: IntArray,
) -> IntArray:
    """Plan in order and start what is planned before a step; return the usage, perhaps longer."""
    if clock - window[0] > len(usage) // 2:
        slide(usage, window, clock)
    base, running_end = window[0], window[1]
    planned = np.empty(len(order), dtype=np.int64)
    count = 0
    least = prompts[order]  # of this and later ones
    for place in range(len(order) - 2, -1, -1):
        least[place] = min(least[place], least[place + 1])
    free = clock  # none of them fits at a step before
    for request in order:
        prompt, output = prompts[request], outputs[request]
        while free < window[1] and usage[free + 1 - base] + least[count] + 1 > memory:
            free += 1
        if free >= until:
            break
        start = earliest_start(usage, window, memory, prompt, output, free)
        planned[count] = start
        count += 1
        if start + output - base >= len(usage):
            longer = np.zeros(max(2 * len(usage), start + output - base + 64), dtype=np.int64)
            longer[: len(usage)] = usage
            usage = longer
        for token in range(1, output + 1):
            usage[start - base + token] += prompt + token
        window[1] = max(window[1], start + output)
    for place in range(count):
        request, start = order[place], planned[place]
        if start < until:
            starts[request] = start
            running_end = max(running_end, start + outputs[request])
            continue
        for token in range(1, outputs[request] + 1):
            usage[start - base + token] -= prompts[request] + token
    window[1] = running_end
    return usage
