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

from optsched._internal.compiled import compiled, compiled_inside
from optsched.simulate.seconds.batches import add_batch, with_room
from optsched.simulate.steps.decisions import RUNS, WAITS, log_attempt, random_rank

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.simulate.seconds.batches import BatchLog, EngineRequests

# As of `IntervalPolicy`.
OUTLIVED = ("ends-next", "holds-nothing", "restarts", "doubles")
_ENDS_NEXT, _HOLDS_NOTHING, _RESTARTS, _DOUBLES = range(4)
PREEMPT = ("bound", "tokens")
_BY_BOUND, _BY_TOKENS = range(2)


@compiled_inside
def _urgency(rates: IntArray, request: int, planned: int, upper: int, mean: int) -> int:
    """Return a + b o + c o^2 at the planned output, or 6 times its mean from there to the upper."""
    a, b, c = rates[0, request], rates[1, request], rates[2, request]
    upper = max(upper, planned)
    urgency: int = a + b * planned + c * planned * planned
    if mean:
        squares = 2 * (planned * planned + upper * upper + planned * upper) + upper - planned
        urgency = 6 * a + 3 * b * (planned + upper) + c * squares
    return urgency


@compiled_inside
def _change_plan(plan: IntArray, prompt: int, start: int, first: int, last: int, sign: int) -> None:
    for step in range(first, last + 1):
        plan[step & (len(plan) - 1)] += sign * (prompt + step - start)


@compiled_inside
def _obstacle(
    plan: IntArray, room: int, prompt: int, planned: int, clock: int, suspect: int
) -> int:
    """Find a step at which a request started now does not fit; 0 if there is none."""
    mask = len(plan) - 1
    if clock < suspect <= clock + planned and (
        plan[suspect & mask] + prompt + suspect - clock > room
    ):
        return suspect
    for step in range(clock + 1, clock + planned + 1):
        if plan[step & mask] + prompt + step - clock > room:
            return step
    return 0


class Rules(NamedTuple):
    """How a policy plans and preempts."""

    mean: int  # whether urgencies are means over an interval
    outlived: int  # places in the tuples above
    preempt: int
    reserve: int  # tokens that admission leaves free unless the worker is idle
    seed: int  # of the ties


@compiled
def run_planned(
    requests: EngineRequests,
    lower: IntArray,
    upper: IntArray,
    rates: IntArray,
    rules: Rules,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    until: float,
) -> tuple[IntArray, int, BatchLog]:
    """Run all requests to completion, or until a time; `rates` are as of `_urgency`."""
    prompts, arrivals, outputs, memory = requests
    mean, outlived, preempt, reserve, seed = rules
    count = len(prompts)
    planned = lower.copy()
    attempts = np.zeros(count, dtype=np.int64)
    starts = np.zeros(count, dtype=np.int64)
    running = np.empty(count, dtype=np.int64)
    at_once = outlived in (_RESTARTS, _DOUBLES)
    longest = 0
    for request in range(count):
        longest = max(longest, planned[request], outputs[request])
        if at_once:
            longest = max(longest, upper[request])
            if outputs[request] > upper[request]:
                longest = max(longest, 2 * outputs[request])
    size = 1
    while size < longest + 2:
        size *= 2
    plan = np.zeros(size, dtype=np.int64)  # usage by step, as planned; a ring
    ended = np.empty((3, count + 16), dtype=np.int64)
    waiting = [(0, 0, 0)]  # urgency, random rank, request
    waiting.pop()
    released = logged = active = held = suspect = clock = 0  # the clock counts batches
    while True:
        while released < count and arrivals[released] <= log.now[0]:
            key = _urgency(rates, released, planned[released], upper[released], mean)
            heapq.heappush(
                waiting, (key, random_rank(seed, released, attempts[released], WAITS), released)
            )
            released += 1
        entered = prefill = squares = 0
        for phase in range(3):
            if phase == 1:
                # Admit in order; a heap, whose top is the next.
                while len(waiting) > 0:
                    request = waiting[0][2]
                    prompt = prompts[request]
                    room = memory - reserve if active > 0 else memory
                    if outlived != _HOLDS_NOTHING and held + active + prompt + 1 > room:
                        break
                    suspect = _obstacle(plan, room, prompt, planned[request], clock, suspect)
                    if suspect > 0:
                        break
                    heapq.heappop(waiting)
                    _change_plan(plan, prompt, clock, clock + 1, clock + planned[request], 1)
                    starts[request] = clock
                    running[active] = request
                    active += 1
                    held += prompt
                    entered += prompt > 0
                    prefill += prompt
                    squares += prompt * prompt
                continue
            # Preempt before admission; after it only where admission counted some as nothing.
            if (outlived == _HOLDS_NOTHING) != (phase == 2):
                continue
            if at_once:
                preempted = [
                    request
                    for request in running[:active]
                    if clock - starts[request] >= planned[request]
                ]
            elif held + active > memory:
                # Fewest tokens first, until there is room.
                order = [(0, 0, request) for request in running[:active]]
                for position in range(active):
                    request = running[position]
                    value = planned[request]
                    if preempt == _BY_TOKENS:
                        value = max(value, clock - starts[request])
                    rank = random_rank(seed, request, attempts[request], RUNS)
                    order[position] = (value, rank, request)
                heapq.heapify(order)
                preempted = [0 for _ in range(0)]
                excess = held + active - memory
                while excess > 0:
                    request = heapq.heappop(order)[2]
                    excess -= prompts[request] + clock - starts[request] + 1
                    preempted.append(request)
            else:
                continue
            for request in preempted:
                start, prompt = starts[request], prompts[request]
                made = clock - start
                _change_plan(plan, prompt, start, clock + 1, start + planned[request], -1)
                held -= prompt + made
                if made == 0:  # it was admitted just now
                    entered -= prompt > 0
                    prefill -= prompt
                    squares -= prompt * prompt
                else:
                    ended = log_attempt(ended, logged, request, start, made)
                    logged += 1
                if at_once and planned[request] >= upper[request]:  # its interval missed
                    planned[request] = min(memory - prompt, 2 * planned[request])
                elif outlived == _RESTARTS:
                    planned[request] = upper[request]
                elif outlived == _DOUBLES:
                    planned[request] = min(upper[request], 2 * planned[request])
                else:
                    planned[request] = max(planned[request], made)
                starts[request] = -1
                attempts[request] += 1
                key = _urgency(rates, request, planned[request], upper[request], mean)
                rank = random_rank(seed, request, attempts[request], WAITS)
                heapq.heappush(waiting, (key, rank, request))
            if len(preempted) > 0:
                kept = 0
                for request in running[:active]:
                    if starts[request] >= 0:
                        running[kept] = request
                        kept += 1
                active = kept
        if active == 0:
            if released == count:
                return ended[:, :logged].copy(), 0, log
            log.now[0] = arrivals[released]
            continue
        log = with_room(log)
        usage = held + active
        content = (prefill, active - entered, held - prefill, squares, usage)
        if log.now[0] >= until or not add_batch(log, timer, content, usage):
            for request in running[:active]:  # those that are still running last
                start = starts[request]
                ended = log_attempt(ended, logged, request, start, clock - start)
                logged += 1
            return ended[:, :logged].copy(), active, log
        clock += 1
        plan[clock & (size - 1)] = 0
        held += active
        position = 0
        while position < active:
            request = running[position]
            made = clock - starts[request]
            if made < outputs[request]:
                position += 1
                continue
            start, prompt = starts[request], prompts[request]
            ended = log_attempt(ended, logged, request, start, made)
            logged += 1
            _change_plan(plan, prompt, start, clock + 1, start + planned[request], -1)
            held -= prompt + made
            active -= 1
            running[position] = running[active]
