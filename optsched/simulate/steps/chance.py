r"""Runs by chance: what is likely to fit.

A request of :math:`s` prompt tokens that has made :math:`k` tokens holds :math:`m(t) = s + k + t`
after :math:`t` more steps if it still runs then, with probability :math:`p(t)` by the belief about
its output. At each step waiting requests are tried by ascending expected cost, and one starts while
:math:`\sum m p + z \sqrt{\sum m^2 p (1 - p)} \le M` at steps ahead, close at first and then further
and further apart; a few may be passed over, and an idle worker always takes the first. Where the
memory runs out, requests that have made the fewest tokens in their attempt are preempted; their
output is known to be more than that.

Beliefs can be learned: every few completions the chance to end with each token is estimated anew
for each row, from completed and running requests (Kaplan and Meier, the first belief as a prior).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled, compiled_inside
from optsched._internal.small_kernels import pop_by_key, push_by_key, sink_by_key
from optsched.simulate.seconds.batches import add_batch, next_batch, with_room
from optsched.simulate.steps.decisions import (
    WAITS,
    admit,
    all_attempts,
    end,
    least_made,
    random_rank,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem import forecasts
    from optsched.simulate.seconds.batches import BatchLog, EngineRequests
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


class _Rows(NamedTuple):
    """What has become of the requests."""

    state: IntArray
    seen: IntArray  # tokens that it made at most in an attempt before
    keys: FloatArray  # expected cost
    ranks: IntArray  # among equal ones
    heap: IntArray  # those that wait; the first is the next


class Moments(NamedTuple):
    """Sums over the outputs beyond 0, 1, ... times their chances, a row for alike requests."""

    once: FloatArray  # of the outputs
    squares: FloatArray


@compiled_inside
def _set_moments(beliefs: ChanceTable, moments: Moments, row: int) -> None:
    """Sum up the outputs beyond each number and their squares."""
    beyond, once, squares = beliefs.beyond, moments.once, moments.squares
    last = beyond.shape[1] - 1
    once[row, last] = squares[row, last] = 0.0
    for output in range(last, 0, -1):
        chance = beyond[row, output - 1] - beyond[row, output]
        once[row, output - 1] = once[row, output] + chance * output
        squares[row, output - 1] = squares[row, output] + chance * output * output


@compiled_inside
def _expected_cost(
    beliefs: ChanceTable, moments: Moments, chance: Chance, request: int, seen: int
) -> float:
    """Return the expected cost of a request whose output is more than what was seen."""
    row, most = beliefs.row[request], beliefs.most[request]
    least = beliefs.least[request]
    if seen > least:
        least = seen
    mass = once = squares = 0.0
    if least < most:  # beyond it the table has nothing to say
        mass = beliefs.beyond[row, least] - beliefs.beyond[row, most]
    if mass > 0.0:
        once = (moments.once[row, least] - moments.once[row, most]) / mass
        squares = (moments.squares[row, least] - moments.squares[row, most]) / mass
    else:
        once = least + 1.0
        squares = once * once
    cost = chance.fixed[request] + chance.linear[request] * once
    return float(cost + chance.square[request] * squares)


@compiled_inside
def _add_load(
    beliefs: ChanceTable, ahead: IntArray, request: int, prompt: int, made: int, seen: int,
    mean: FloatArray, variance: FloatArray,
) -> None:  # fmt: skip
    """Add what a request will hold at steps ahead: the mean, and the variance."""
    if made > seen:
        seen = made
    for place in range(len(ahead)):
        last = made + ahead[place] - 1
        runs = chance_of_more(beliefs, request, last, seen)
        if runs == 0.0:
            break
        held = prompt + last + 1
        mean[place] += held * runs
        variance[place] += held * held * runs * (1.0 - runs)


@compiled_inside
def _let_wait(
    worker: Worker,
    beliefs: ChanceTable,
    moments: Moments,
    chance: Chance,
    rows: _Rows,
    request: int,
) -> None:
    now = worker.now[0]
    rows.state[request] = _WAITS
    rows.keys[request] = _expected_cost(beliefs, moments, chance, request, rows.seen[request])
    rows.ranks[request] = random_rank(chance.seed, request, worker.attempts[request], WAITS)
    now.waiting = push_by_key(rows.heap, now.waiting, request, rows.keys, rows.ranks)


@compiled_inside
def _admit(
    prompts: IntArray,
    memory: int,
    worker: Worker,
    beliefs: ChanceTable,
    chance: Chance,
    rows: _Rows,
    ahead: IntArray,
    load: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
    passed: IntArray,
) -> None:
    """Start what is likely to fit."""
    now, running = worker.now[0], worker.running
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
                    made, seen = now.batch - worker.starts[other], rows.seen[other]
                    _add_load(beliefs, ahead, other, prompts[other], made, seen, mean, variance)
            for place in range(len(ahead)):
                new_mean[place], new_variance[place] = mean[place], variance[place]
            seen = rows.seen[request]
            _add_load(beliefs, ahead, request, prompt, 0, seen, new_mean, new_variance)
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


@compiled_inside
def _learn(
    beliefs: ChanceTable,
    moments: Moments,
    first: FloatArray,
    complete: IntArray,
    worker: Worker,
    rows: _Rows,
    chance: Chance,
) -> None:
    """Estimate the chances of each row anew from what was seen so far."""
    now, beyond, row = worker.now[0], beliefs.beyond, beliefs.row
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
        share = chance.prior / count
        common[output] = common[output - 1] * _staying(share * ends + ended, share * before + there)
    for place in range(count):
        for output in range(1, last + 1):
            ends = _SHARED * (common[output - 1] - common[output]) + complete[place, output]
            seen = _SHARED * common[output - 1] + gone[place, output]
            beyond[place, output] = beyond[place, output - 1] * _staying(ends, seen)
        _set_moments(beliefs, moments, place)
    for place in range(now.waiting):
        request = rows.heap[place]
        rows.keys[request] = _expected_cost(beliefs, moments, chance, request, rows.seen[request])
    for place in range(now.waiting // 2 - 1, -1, -1):
        sink_by_key(rows.heap, now.waiting, place, rows.keys, rows.ranks)


@compiled
def run_by_chance(
    requests: EngineRequests,
    beliefs: ChanceTable,
    moments: Moments,
    chance: Chance,
    ahead: IntArray,
    worker: Worker,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    until: float,
) -> tuple[IntArray, BatchLog]:
    """Run all requests to completion, or until a time."""
    prompts, arrivals, outputs, memory = requests
    count, tables, size = len(prompts), beliefs.beyond, len(ahead)
    state, seen, ranks, heap = np.zeros((4, count), dtype=np.int64)
    now, running, starts = worker.now[0], worker.running, worker.starts
    rows = _Rows(state, seen, np.zeros(count), ranks, heap)
    complete = np.zeros(tables.shape, dtype=np.int64)
    first = tables.copy()
    for row in range(len(tables)):
        _set_moments(beliefs, moments, row)
    load = (np.empty(size), np.empty(size), np.empty(size), np.empty(size))
    passed = np.empty(chance.passed + 1, dtype=np.int64)
    ended = np.empty((3, count + 16), dtype=np.int64)
    learn_at = 0
    while True:
        while now.released < count and arrivals[now.released] <= log.now[0]:
            _let_wait(worker, beliefs, moments, chance, rows, now.released)
            now.released += 1
        if chance.prior > 0.0 and now.done >= learn_at:
            _learn(beliefs, moments, first, complete, worker, rows, chance)
            learn_at = now.done + max(_REFIT_COMPLETIONS, now.done // _REFIT_SHARE)
        while now.tokens + now.active > memory:
            place = least_made(worker, chance.seed)
            request = running[place]
            seen[request] = max(seen[request], now.batch - worker.starts[request])
            worker.attempts[request] += 1
            ended = end(worker, ended, request, prompts[request])
            running[place] = running[now.active]
            _let_wait(worker, beliefs, moments, chance, rows, request)
        if now.waiting > 0:
            _admit(prompts, memory, worker, beliefs, chance, rows, ahead, load, passed)
        if now.active == 0:
            if now.released == count:
                return all_attempts(worker, ended), log
            log.now[0] = arrivals[now.released]
            continue
        log = with_room(log)
        if log.now[0] >= until or not add_batch(log, timer, next_batch(now), now.tokens):
            return all_attempts(worker, ended), log
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
            if made < tables.shape[1]:  # longer ones say no more than those that go on
                complete[beliefs.row[request], made] += 1
                state[request] = _DONE
