r"""Runs with planned outputs that may be too short: requests are preempted and start again.

Robust Algorithms 1, 2, 5 and 6 are one loop with different rules. At each step a policy (1)
preempts running requests, if it must, (2) admits waiting ones in order while the plan fits, and
(3) lets all make a token. The plan holds request :math:`i` with its planned output
:math:`\tilde o_i`, a bound that a preemption raises to the tokens made until then.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled
from optsched.simulate.seconds.batches import add_batch, next_batch, with_room
from optsched.simulate.steps.decisions import (
    RUNS,
    WAITS,
    admit,
    all_attempts,
    end,
    random_rank,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.simulate.seconds.batches import BatchLog, Requests
    from optsched.simulate.steps.decisions import Worker

# As of `IntervalPolicy`.
OUTLIVED = ("ends-next", "holds-nothing", "restarts", "doubles")
_ENDS_NEXT, _HOLDS_NOTHING, _RESTARTS, _DOUBLES = range(4)
PREEMPT = ("bound", "tokens")
_BY_BOUND, _BY_TOKENS = range(2)


class Rules(NamedTuple):
    """How a policy plans and preempts."""

    mean: int  # whether urgencies are means over an interval
    outlived: int  # places in the tuples above
    preempt: int
    reserve: int  # tokens that admission leaves free unless the worker is idle
    seed: int  # of the ties


class Plan(NamedTuple):
    """Planned outputs, and the memory that they take."""

    rates: IntArray  # a, b and c of each request, shape (3, n)
    upper: IntArray
    outputs: IntArray
    usage: IntArray  # by step, as planned; a ring


@compiled
def _new_plan(
    rates: IntArray, lower: IntArray, upper: IntArray, outputs: IntArray, outlived: int
) -> Plan:
    """Plan with the lower bounds of outputs."""
    planned, longest, size = lower.copy(), 0, 1
    for request in range(len(planned)):
        longest = max(longest, planned[request], outputs[request])
        if outlived in (_RESTARTS, _DOUBLES):
            longest = max(longest, upper[request])
            if outputs[request] > upper[request]:
                longest = max(longest, 2 * outputs[request])
    while size < longest + 2:
        size *= 2
    return Plan(rates, upper, planned, np.zeros(size, dtype=np.int64))


@compiled
def _let_wait(
    worker: Worker, plan: Plan, rules: Rules, waiting: list[tuple[int, int, int]], request: int
) -> None:
    """Put a request into the heap of those that wait.

    Its urgency is a + b o + c o^2 at the planned output, or 6 times the mean of that from there to
    the upper bound.
    """
    rates, planned = plan.rates, plan.outputs[request]
    a, b, c = rates[0, request], rates[1, request], rates[2, request]
    upper = max(plan.upper[request], planned)
    urgency = a + b * planned + c * planned * planned
    if rules.mean:
        squares = 2 * (planned * planned + upper * upper + planned * upper) + upper - planned
        urgency = 6 * a + 3 * b * (planned + upper) + c * squares
    rank = random_rank(rules.seed, request, worker.attempts[request], WAITS)
    heapq.heappush(waiting, (urgency, rank, request))


@compiled
def _change_plan(plan: Plan, request: int, prompt: int, start: int, first: int, sign: int) -> None:
    """Add what a request will hold from a step on, or take it away."""
    usage = plan.usage
    for step in range(first, start + plan.outputs[request] + 1):
        usage[step & (len(usage) - 1)] += sign * (prompt + step - start)


@compiled
def _obstacle(
    usage: IntArray, room: int, prompt: int, planned: int, clock: int, suspect: int
) -> int:
    """Find a step at which a request started now does not fit; 0 if there is none."""
    mask = len(usage) - 1
    if clock < suspect <= clock + planned and (
        usage[suspect & mask] + prompt + suspect - clock > room
    ):
        return suspect
    for step in range(clock + 1, clock + planned + 1):
        if usage[step & mask] + prompt + step - clock > room:
            return step
    return 0


@compiled
def run_planned(
    requests: Requests,
    lower: IntArray,
    upper: IntArray,
    rates: IntArray,
    rules: Rules,
    worker: Worker,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    until: float,
) -> tuple[IntArray, BatchLog]:
    """Run all requests to completion, or until a time; `rates` are as of `Plan`."""
    prompts, arrivals, outputs, memory = requests
    count, now, running, starts = len(prompts), worker.now[0], worker.running, worker.starts
    plan = _new_plan(rates, lower, upper, outputs, rules.outlived)
    planned, usage = plan.outputs, plan.usage
    ended = np.empty((3, count + 16), dtype=np.int64)
    waiting = [(0, 0, 0)]  # urgency, random rank, request
    waiting.pop()
    released, suspect, overdue = 0, 0, False
    at_once = rules.outlived in (_RESTARTS, _DOUBLES)
    admits_first = rules.outlived == _HOLDS_NOTHING  # as admission counts some as nothing
    while True:
        while released < count and arrivals[released] <= log.now[0]:
            _let_wait(worker, plan, rules, waiting, released)
            released += 1
        for phase in range(2):
            if (phase == 0) != admits_first:
                if overdue if at_once else now.tokens + now.active > memory:
                    ended = _preempt(prompts, memory, worker, plan, rules, waiting, ended)
                continue
            while len(waiting) > 0:
                request = waiting[0][2]
                prompt, room = prompts[request], memory - rules.reserve * (now.active > 0)
                if not admits_first and now.tokens + now.active + prompt + 1 > room:
                    break
                suspect = _obstacle(usage, room, prompt, planned[request], now.batch, suspect)
                if suspect > 0:
                    break
                heapq.heappop(waiting)
                admit(worker, request, prompt)
                _change_plan(plan, request, prompt, now.batch, now.batch + 1, 1)
        if now.active == 0:
            if released == count:
                return all_attempts(worker, ended), log
            log.now[0] = arrivals[released]
            continue
        log = with_room(log)
        if log.now[0] >= until or not add_batch(log, timer, next_batch(now), now.tokens):
            return all_attempts(worker, ended), log
        place, active, batch, overdue = 0, now.active, now.batch, False
        usage[batch & (len(usage) - 1)] = 0
        while place < active:
            request = running[place]
            if batch - starts[request] < outputs[request]:
                overdue |= batch - starts[request] >= planned[request]
                place += 1
                continue
            start, prompt = starts[request], prompts[request]
            ended = end(worker, ended, request, prompt)
            _change_plan(plan, request, prompt, start, batch + 1, -1)
            active -= 1
            running[place] = running[active]


@compiled
def _victims(prompts: IntArray, memory: int, worker: Worker, plan: Plan, rules: Rules) -> list[int]:
    """Return the requests that outlive what is planned, or of too many those to be preempted."""
    now, running, starts = worker.now[0], worker.running, worker.starts
    chosen = [0 for _ in range(0)]
    if rules.outlived in (_RESTARTS, _DOUBLES):
        batch, planned = now.batch, plan.outputs
        for request in running[: now.active]:
            if batch - starts[request] >= planned[request]:
                chosen.append(request)
    elif now.tokens + now.active > memory:
        # Fewest tokens first, until there is room.
        order = [(0, 0, 0) for _ in range(now.active)]
        for place in range(now.active):
            request = running[place]
            value = plan.outputs[request]
            if rules.preempt == _BY_TOKENS:
                value = max(value, now.batch - starts[request])
            rank = random_rank(rules.seed, request, worker.attempts[request], RUNS)
            order[place] = (value, rank, request)
        heapq.heapify(order)
        excess = now.tokens + now.active - memory
        while excess > 0:
            request = heapq.heappop(order)[2]
            excess -= prompts[request] + now.batch - starts[request] + 1
            chosen.append(request)
    return chosen


@compiled
def _preempt(
    prompts: IntArray,
    memory: int,
    worker: Worker,
    plan: Plan,
    rules: Rules,
    waiting: list[tuple[int, int, int]],
    ended: IntArray,
) -> IntArray:
    """Preempt running requests, if it must be, and plan them anew; return the log of attempts."""
    now, running, starts = worker.now[0], worker.running, worker.starts
    planned, upper, before, outlived = plan.outputs, plan.upper, now.active, rules.outlived
    for request in _victims(prompts, memory, worker, plan, rules):
        start, prompt = starts[request], prompts[request]
        made = now.batch - start
        _change_plan(plan, request, prompt, start, now.batch + 1, -1)
        if made > 0:
            ended = end(worker, ended, request, prompt)
        else:  # it was admitted just now
            now.active -= 1
            now.tokens -= prompt
            now.entered -= prompt > 0
            now.prefill -= prompt
            now.squares -= prompt * prompt
        if outlived in (_RESTARTS, _DOUBLES) and planned[request] >= upper[request]:
            planned[request] = min(memory - prompt, 2 * planned[request])  # its interval missed
        elif outlived == _RESTARTS:
            planned[request] = upper[request]
        elif outlived == _DOUBLES:
            planned[request] = min(upper[request], 2 * planned[request])
        else:
            planned[request] = max(planned[request], made)
        starts[request] = -1
        worker.attempts[request] += 1
        _let_wait(worker, plan, rules, waiting, request)
    if now.active < before:
        kept = 0
        for request in running[:before]:
            if starts[request] >= 0:
                running[kept] = request
                kept += 1
    return ended
