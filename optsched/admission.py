r"""Admission on one worker where every batch takes one step.

The admission rule (MC-SF, Sorted-F phase 2; problem conventions in docs/conventions.md): at each
step walk the waiting requests in the policy's order, admit while the memory holds at every future
completion, and stop at the first request that does not fit.

Between completions usage only grows, so step by step simulation would look at the same usage again
and again. The kernels jump instead. A request with :math:`s` prompt and :math:`o` output tokens,
tried at :math:`k`, is feasible iff :math:`m_t + s + t - k \le M` for all :math:`t \in (k, k + o]`,
where :math:`m_t` is the usage of the requests admitted so far. Hence no start before
:math:`\min(m_t + s + t - M, t)` is feasible: waiting until then either shrinks the request's own
part at :math:`t` or lets :math:`t` pass. The largest of these over the steps of the window is the
next start to try, and each step needs to be looked at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import ZERO, compiled
from optsched._internal.small_kernels import pop, push

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.instance import Instance


def admit_by_priority(instance: Instance, priority: IntArray) -> IntArray:
    """Admit requests in a fixed order of priority among those that have arrived."""
    prompts, outputs, arrivals = instance.prompts, instance.outputs, instance.arrivals
    usage, window = empty_worker(int(outputs.max()))
    starts = np.zeros(len(instance), dtype=np.int64)
    if arrivals[-1] == arrivals[0]:
        first = int(arrivals[0])
        admit = interruptible_kernel(admit_in_order, len(instance))
        admit(prompts, outputs, instance.memory, priority, first, starts, usage, window)
    else:
        arriving = interruptible_kernel(admit_arriving, len(instance))
        arriving(prompts, outputs, arrivals, instance.memory, priority, starts, usage, window)
    return starts


def empty_worker(longest: int) -> tuple[IntArray, IntArray]:
    """Make the state of an empty worker: usage of a window of future steps, and where it lies."""
    return np.zeros(4 * longest + 64, dtype=np.int64), np.zeros(2, dtype=np.int64)


new_usage = compiled(empty_worker)


@compiled
def earliest_start(
    usage: IntArray, window: IntArray, memory: int, prompt: int, output: int, clock: int
) -> int:
    """Find the first step from `clock` on at which a request can start."""
    base, end = window[0], window[1]
    seen = clock
    while True:
        stop = clock + output if clock + output < end else end
        if seen < clock:
            seen = clock
        jump = clock
        shift = prompt + base - memory
        for index in range(seen + 1 - base, stop + 1 - base):
            jump = max(jump, min(usage[index] + shift + index, index + base))
        if jump == clock:
            return clock
        if seen < stop:
            seen = stop
        clock = jump


@compiled
def slide(usage: IntArray, window: IntArray, now: int) -> None:
    """Let the window begin now: what was held before is past."""
    past = now - window[0]
    kept = 1
    while kept <= window[1] - now:
        usage[kept] = usage[past + kept]
        kept += 1
    for token in range(kept, len(usage)):
        usage[token] = 0
    window[0] = now


@compiled
def occupy(usage: IntArray, window: IntArray, prompt: int, output: int, start: int) -> None:
    """Add a request to the usage; starts never decrease from one call to the next."""
    if start + output - window[0] >= len(usage):
        slide(usage, window, start)
    base = window[0]
    for token in range(1, output + 1):
        usage[start - base + token] += prompt + token
    if window[1] < start + output:
        window[1] = start + output


@compiled
def admit_in_order(
    prompts: IntArray,
    outputs: IntArray,
    memory: int,
    order: IntArray,
    clock: int,
    starts: IntArray,
    usage: IntArray,
    window: IntArray,
) -> int:
    """Admit requests in the given order from the step `clock` on; return the last start."""
    for place in range(len(order)):
        request = order[place]
        prompt, output = prompts[request], outputs[request]
        clock = earliest_start(usage, window, memory, prompt, output, clock)
        occupy(usage, window, prompt, output, clock)
        starts[request] = clock
    return clock


@compiled
def admit_arriving(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    memory: int,
    priority: IntArray,
    starts: IntArray,
    usage: IntArray,
    window: IntArray,
) -> None:
    """Admit requests by ascending arrival on a worker that may hold something already."""
    spent, count = np.empty(0), len(priority)
    admit_on_budget(
        prompts, outputs, arrivals, memory, priority, spent, count, starts, usage, window
    )


@compiled
def admit_on_budget(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    memory: int,
    priority: IntArray,
    spent: FloatArray,
    free: int,
    starts: IntArray,
    usage: IntArray,
    window: IntArray,
) -> None:
    """Admit as `admit_arriving` does, but let all save the first `free` wait for a budget."""
    count = len(priority)
    rank = np.empty(count, dtype=np.int64)
    for place in range(count):
        rank[priority[place]] = place
    not_before = arrivals.copy()  # proven by earlier tries: usage only grows while one waits
    waiting, size = np.empty(count, dtype=np.int64), ZERO
    released = 0
    clock = arrivals[0]
    paid = float(clock)  # when all starts so far are paid for
    for _ in range(count):
        if size == 0:
            clock = max(clock, arrivals[released])
        while True:
            while released < count and arrivals[released] <= clock:
                size = push(waiting, size, rank[released])
                released += 1
            request = priority[waiting[0]]
            earliest = max(clock, not_before[request])
            if waiting[0] >= free:
                earliest = max(earliest, int(paid))
            start = earliest_start(
                usage, window, memory, prompts[request], outputs[request], earliest
            )
            not_before[request] = start
            if released == count or start < arrivals[released]:
                break
            clock = arrivals[released]  # a more urgent one may arrive before this start
        size = pop(waiting, size)
        occupy(usage, window, prompts[request], outputs[request], start)
        starts[request] = start
        clock = start
        if free < count:
            paid = max(paid, float(start)) + spent[request]
