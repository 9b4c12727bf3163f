r"""Runs that preempt: by plans of outputs that may be too short, and by chance.

**Plans** (Robust Algorithms 1, 2, 5 and 6) hold each request with its planned output, a bound that
a preemption raises to the tokens made until then.

**Chance.** A request of :math:`s` prompt tokens that has made :math:`k` tokens holds
:math:`m(t) = s + k + t` after :math:`t` more steps with probability :math:`p(t)`. Requests start by
ascending expected cost while :math:`\sum m p + z \sqrt{\sum m^2 p (1 - p)} \le M` at steps ahead.
Beliefs are learned from completed and running requests (Kaplan and Meier, the first as a prior).
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import allocating, allocating_inside, compiled_inside
from optsched._internal.small_kernels import pop_by_key, push_by_key, sink_by_key
from optsched.simulate.seconds.batches import add_batch, apart, next_batch, with_room
from optsched.simulate.steps.decisions import (
    RUNS,
    WAITS,
    admit,
    all_attempts,
    end,
    enqueue,
    least_made,
    log_attempt,
    random_rank,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem import forecasts
    from optsched.simulate.seconds.batches import BatchLog, EngineRequests, LogArrays, Timer
    from optsched.simulate.steps.decisions import Worker

TOLERANCE = 1e-6  # tokens: what rounding may add to a sum that fits exactly


class ChanceTable(NamedTuple):
    """Which outputs are likely: a row of chances for each request, cut to its interval."""

    beyond: FloatArray  # chance that an output is more than 0, 1, ..., a row for alike requests
    row: IntArray
    least: IntArray  # one less than the output is at least
    most: IntArray


def tables(beliefs: forecasts.Beliefs, known: forecasts.Forecast) -> ChanceTable:
    """Return beliefs in the form in which kernels look them up."""
    rows, longest = beliefs.chances.shape
    beyond = np.zeros((rows, longest + 1))
    beyond[:, :-1] = np.cumsum(beliefs.chances[:, ::-1], axis=1)[:, ::-1]
    return ChanceTable(
        beyond,
        beliefs.rows.copy(),
        np.minimum(known.lower - 1, longest),
        np.minimum(known.upper, longest),
    )


@compiled_inside
def chance_of_more(beliefs: ChanceTable, request: int, tokens: int, seen: int) -> float:
    """Return the chance of an output of more than some tokens, where it is more than was seen."""
    beyond, row, most = beliefs.beyond, beliefs.row[request], beliefs.most[request]
    least = beliefs.least[request]
    if seen > least:
        least = seen
    if tokens <= least:
        return 1.0
    if tokens >= most:  # and what is beyond the table
        return 0.0
    rest = beyond[row, most]
    mass = beyond[row, least] - rest
    if mass <= 0.0:
        return 0.0
    return float((beyond[row, tokens] - rest) / mass)


_SHARED = 10.0  # requests that what is seen of all rows is worth in each of them
_REFIT_COMPLETIONS, _REFIT_SHARE = 5, 50  # completions between two fits: so many, or this share
_, _WAITS, _RUNS, _DONE = range(4)


class Chance(NamedTuple):
    """How a policy orders and admits."""

    fixed: FloatArray  # what a request costs: this,
    linear: FloatArray  # and this times its output,
    square: FloatArray  # and this times its square
    deviations: float  # z
    passed: int  # requests passed over at a step
    prior: float  # requests that the first belief is worth while it learns; 0: it does not
    seed: int


class Rows(NamedTuple):
    """What is believed of the requests, and what has become of them."""

    beliefs: ChanceTable
    chance: Chance
    ahead: IntArray  # steps at which the memory is looked at
    once: FloatArray  # sums over the outputs beyond 0, 1, ... times their chances, as `beyond`
    squares: FloatArray  # the same of their squares
    first: FloatArray  # `beyond` as it was believed at first
    complete: IntArray  # requests with each output
    state: IntArray
    seen: IntArray  # tokens that it made at most in an attempt before
    keys: FloatArray  # expected cost
    ranks: IntArray  # among equal ones
    heap: IntArray  # those that wait; the first is the next


def new_rows(beliefs: ChanceTable, chance: Chance, ahead: IntArray) -> Rows:
    """Make the rows of requests of which none has come."""
    beyond, count = beliefs.beyond, len(beliefs.row)
    once, squares = np.zeros((2, *beyond.shape))
    state, seen, ranks, heap = np.zeros((4, count), dtype=np.int64)
    tables = once, squares, beyond.copy(), np.zeros(beyond.shape, dtype=np.int64)
    return Rows(beliefs, chance, ahead, *tables, state, seen, np.zeros(count), ranks, heap)


@compiled_inside
def _set_moments(rows: Rows, row: int) -> None:
    """Sum up the outputs beyond each number and their squares."""
    beyond, once, squares = rows.beliefs.beyond, rows.once, rows.squares
    last = beyond.shape[1] - 1
    once[row, last] = squares[row, last] = 0.0
    for output in range(last, 0, -1):
        chance = beyond[row, output - 1] - beyond[row, output]
        once[row, output - 1] = once[row, output] + chance * output
        squares[row, output - 1] = squares[row, output] + chance * output * output


@compiled_inside
def _expected_cost(rows: Rows, request: int) -> float:
    """Return the expected cost of a request whose output is more than what was seen."""
    beliefs, chance = rows.beliefs, rows.chance
    row, most = beliefs.row[request], beliefs.most[request]
    least = max(beliefs.least[request], rows.seen[request])
    mass = once = squares = 0.0
    if least < most:  # beyond it the table has nothing to say
        mass = beliefs.beyond[row, least] - beliefs.beyond[row, most]
    if mass > 0.0:
        once = (rows.once[row, least] - rows.once[row, most]) / mass
        squares = (rows.squares[row, least] - rows.squares[row, most]) / mass
    else:
        once = least + 1.0
        squares = once * once
    cost = chance.fixed[request] + chance.linear[request] * once
    return float(cost + chance.square[request] * squares)


@compiled_inside
def _add_load(
    rows: Rows, request: int, prompt: int, made: int, mean: FloatArray, variance: FloatArray
) -> None:
    """Add what a request will hold at steps ahead: the mean, and the variance."""
    beliefs, ahead, seen = rows.beliefs, rows.ahead, max(made, rows.seen[request])
    for place in range(len(ahead)):
        last = made + ahead[place] - 1
        runs = chance_of_more(beliefs, request, last, seen)
        if runs == 0.0:
            break
        held = prompt + last + 1
        mean[place] += held * runs
        variance[place] += held * held * runs * (1.0 - runs)


@compiled_inside
def _let_wait(worker: Worker, rows: Rows, request: int) -> None:
    """Let a request wait at its expected cost."""
    rows.state[request] = _WAITS
    rows.keys[request] = _expected_cost(rows, request)
    enqueue(worker, rows.heap, rows.keys, rows.ranks, request, rows.chance.seed)


@compiled_inside
def _admit(
    requests: EngineRequests, worker: Worker, rows: Rows, load: FloatArray, passed: IntArray
) -> None:
    """Start what is likely to fit."""
    now, running, prompts = worker.now[0], worker.running, requests.prompts
    memory, chance, ahead = requests.memory, rows.chance, rows.ahead
    mean, variance, new_mean, new_variance = load
    over = 0
    known = False
    while now.waiting > 0 and over <= chance.passed:
        request = rows.heap[0]
        prompt = prompts[request]
        fits = now.active == 0
        if not fits and now.tokens + now.active + prompt + 1 <= memory:
            if not known:
                known = True
                for place in range(len(ahead)):
                    mean[place] = variance[place] = 0.0
                for place in range(now.active):
                    other = running[place]
                    made = now.batch - worker.starts[other]
                    _add_load(rows, other, prompts[other], made, mean, variance)
            for place in range(len(ahead)):
                new_mean[place], new_variance[place] = mean[place], variance[place]
            _add_load(rows, request, prompt, 0, new_mean, new_variance)
            fits = True
            for place in range(len(ahead)):
                room = memory - new_mean[place]
                allowed = chance.deviations * np.sqrt(new_variance[place])
                if allowed > room + TOLERANCE:
                    fits = False
                    break
        now.waiting = pop_by_key(rows.heap, now.waiting, rows.keys, rows.ranks)
        if not fits:
            passed[over] = request
            over += 1
            continue
        if known:
            for place in range(len(ahead)):
                mean[place], variance[place] = new_mean[place], new_variance[place]
        rows.state[request] = _RUNS
        admit(worker, request, prompt)
    for place in range(over):
        now.waiting = push_by_key(rows.heap, now.waiting, passed[place], rows.keys, rows.ranks)


@compiled_inside
def _staying(ends: float, there: float) -> float:
    """Return the share of those that go on among those that are there."""
    return 1.0 - ends / there if there > ends else 0.0


@allocating_inside
def _learn(worker: Worker, rows: Rows) -> None:
    """Estimate the chances of each row anew from what was seen so far."""
    now, beyond, row = worker.now[0], rows.beliefs.beyond, rows.beliefs.row
    first, complete = rows.first, rows.complete
    count, last = len(beyond), beyond.shape[1] - 1
    gone = np.empty((count, last + 1), dtype=np.int64)  # complete or not yet, by tokens made
    for place in range(count):
        for output in range(last + 1):
            gone[place, output] = complete[place, output]
    for request in range(now.released):
        made = rows.seen[request]
        if rows.state[request] == _DONE:
            continue
        if rows.state[request] == _RUNS:
            made = max(made, now.batch - worker.starts[request])
        gone[row[request], made if made < last else last] += 1
    for place in range(count):
        there = 0
        for output in range(last, -1, -1):
            there += gone[place, output]
            gone[place, output] = there  # that made so many tokens at least
    common = np.empty(last + 1)  # of all rows
    common[0] = 1.0
    for output in range(1, last + 1):
        before = ends = 0.0
        there = ended = 0
        for place in range(count):
            before += first[place, output - 1]
            ends += first[place, output - 1] - first[place, output]
            there += gone[place, output]
            ended += complete[place, output]
        share = rows.chance.prior / count
        common[output] = common[output - 1] * _staying(share * ends + ended, share * before + there)
    for place in range(count):
        for output in range(1, last + 1):
            ends = _SHARED * (common[output - 1] - common[output]) + complete[place, output]
            seen = _SHARED * common[output - 1] + gone[place, output]
            beyond[place, output] = beyond[place, output - 1] * _staying(ends, seen)
        _set_moments(rows, place)
    for place in range(now.waiting):
        request = rows.heap[place]
        rows.keys[request] = _expected_cost(rows, request)
    for place in range(now.waiting // 2 - 1, -1, -1):
        sink_by_key(rows.heap, now.waiting, place, rows.keys, rows.ranks)


@allocating
def run_by_chance(
    requests: EngineRequests, rows: Rows, worker: Worker, log: BatchLog, timer: Timer, until: float
) -> tuple[IntArray, LogArrays]:
    """Run all requests to completion, or until a time."""
    prompts, arrivals, outputs, memory = requests
    count, last, chance = len(prompts), rows.beliefs.beyond.shape[1] - 1, rows.chance
    now, running, starts, seen = worker.now[0], worker.running, worker.starts, rows.seen
    for row in range(len(rows.first)):
        _set_moments(rows, row)
    load = np.empty((4, len(rows.ahead)))
    passed = np.empty(chance.passed + 1, dtype=np.int64)
    ended = np.empty((3, count + 16), dtype=np.int64)
    learn_at = 0
    while True:
        while now.released < count and arrivals[now.released] <= log.now[0]:
            _let_wait(worker, rows, now.released)
            now.released += 1
        if chance.prior > 0.0 and now.done >= learn_at:
            _learn(worker, rows)
            learn_at = now.done + max(_REFIT_COMPLETIONS, now.done // _REFIT_SHARE)
        while now.tokens + now.active > memory:
            place = least_made(worker, chance.seed)
            request = running[place]
            seen[request] = max(seen[request], now.batch - starts[request])
            worker.attempts[request] += 1
            ended = end(worker, ended, request, prompts[request])
            running[place] = running[now.active]
            _let_wait(worker, rows, request)
        if now.waiting > 0:
            _admit(requests, worker, rows, load, passed)
        if now.active == 0:
            if now.released == count:
                return all_attempts(worker, ended), apart(log)
            log.now[0] = arrivals[now.released]
            continue
        log = with_room(log)
        if log.now[0] >= until or not add_batch(log, timer, next_batch(now), now.tokens):
            return all_attempts(worker, ended), apart(log)
        place, batch = 0, now.batch
        while place < now.active:
            request = running[place]
            made = batch - starts[request]
            if made < outputs[request]:
                place += 1
                continue
            ended = end(worker, ended, request, prompts[request])
            running[place] = running[now.active]
            now.done += 1
            seen[request] = made
            if made <= last:  # longer ones say no more than those that go on
                rows.complete[rows.beliefs.row[request], made] += 1
                rows.state[request] = _DONE


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


@allocating
def run_planned(
    requests: EngineRequests,
    lower: IntArray,
    upper: IntArray,
    rates: IntArray,
    rules: Rules,
    log: BatchLog,
    timer: Timer,
    until: float,
) -> tuple[IntArray, int, LogArrays]:
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
                return ended[:, :logged].copy(), 0, apart(log)
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
            return ended[:, :logged].copy(), active, apart(log)
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
