r"""Runs that admit by what is likely: mean and deviation of the memory that will be held.

A request of :math:`s` prompt tokens that has made :math:`k` tokens holds :math:`m(t) = s + k + t`
after :math:`t` more steps if it still runs then, with probability :math:`p(t)` by the belief about
its output. At each step waiting requests are tried by ascending expected cost, and one starts while

.. math:: \sum m p + z \sqrt{\sum m^2 p (1 - p)} \le M

at steps ahead that are close at first and further and further apart; a few may be passed over, and
an idle worker always takes the first. Where the memory runs out, requests that have made the fewest
tokens in their attempt are preempted. What a request was seen to make is not forgotten: its output
is more than that.

Beliefs can be learned: every few completions the chance to end with each token is estimated anew
for each row of requests, from those that are complete and those that are not yet (Kaplan and Meier,
with the first belief as a prior that is worth a few requests).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.compiled import ZERO, compiled
from optsched.simulate.likely import TOLERANCE, chance_of_more
from optsched.simulate.seconds.batches import add_batch, with_room
from optsched.simulate.steps.preemption import RUNS, WAITS, log_attempt, random_rank, with_running

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.simulate.likely import Beliefs
    from optsched.simulate.seconds.batches import BatchLog, Requests

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
    """What has become of the requests."""

    state: IntArray
    seen: IntArray  # tokens that it made at most in an attempt before
    start: IntArray  # of the present attempt
    attempts: IntArray
    key: FloatArray  # expected cost
    rank: IntArray  # among equal ones
    heap: IntArray  # those that wait; the first is the next
    running: IntArray
    counts: IntArray  # waiting, running, held tokens, completions at which to learn anew


_WAITING, _ACTIVE, _HELD, _LEARN_AT = range(4)


class Moments(NamedTuple):
    """Sums over the outputs beyond 0, 1, ... times their chances, a row for alike requests."""

    once: FloatArray  # of the outputs
    squares: FloatArray


@compiled
def _set_moments(beliefs: Beliefs, moments: Moments, row: int) -> None:
    """Sum up the outputs beyond each number and their squares."""
    beyond, once, squares = beliefs.beyond, moments.once, moments.squares
    last = beyond.shape[1] - 1
    once[row, last] = squares[row, last] = 0.0
    for output in range(last, 0, -1):
        chance = beyond[row, output - 1] - beyond[row, output]
        once[row, output - 1] = once[row, output] + chance * output
        squares[row, output - 1] = squares[row, output] + chance * output * output


@compiled
def _expected_cost(
    beliefs: Beliefs, moments: Moments, chance: Chance, request: int, seen: int
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


@compiled
def _add_load(
    beliefs: Beliefs, ahead: IntArray, request: int, prompt: int, made: int, seen: int,
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


@compiled
def _precedes(rows: Rows, first: int, second: int) -> bool:
    if rows.key[first] != rows.key[second]:
        return bool(rows.key[first] < rows.key[second])
    return bool(rows.rank[first] < rows.rank[second])


@compiled
def _sink(rows: Rows, place: int) -> None:
    """Move what is at a place of the heap down to where it belongs."""
    heap, count = rows.heap, rows.counts[_WAITING]
    request = heap[place]
    while True:
        child = 2 * place + 1
        if child >= count:
            break
        if child + 1 < count and _precedes(rows, heap[child + 1], heap[child]):
            child += 1
        if not _precedes(rows, heap[child], request):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = request


@compiled
def _push(rows: Rows, request: int) -> None:
    """Let a request wait."""
    heap, place = rows.heap, rows.counts[_WAITING]
    rows.counts[_WAITING] += 1
    while place > 0:
        parent = (place - 1) // 2
        if not _precedes(rows, request, heap[parent]):
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = request


@compiled
def _pop(rows: Rows) -> int:
    """Take the next request out of those that wait."""
    request: int = rows.heap[0]
    rows.counts[_WAITING] -= 1
    rows.heap[0] = rows.heap[rows.counts[_WAITING]]
    if rows.counts[_WAITING] > 0:
        _sink(rows, ZERO)
    return request


@compiled
def _let_wait(beliefs: Beliefs, moments: Moments, chance: Chance, rows: Rows, request: int) -> None:
    rows.state[request] = _WAITS
    rows.key[request] = _expected_cost(beliefs, moments, chance, request, rows.seen[request])
    rows.rank[request] = random_rank(chance.seed, request, rows.attempts[request], WAITS)
    _push(rows, request)


@compiled
def _least_made(rows: Rows, clock: int, seed: int) -> int:
    """Return the place of the running request to preempt first."""
    chosen, fewest, lowest = 0, -1, 0
    for place in range(rows.counts[_ACTIVE]):
        request = rows.running[place]
        made = clock - rows.start[request]
        if fewest >= 0 and made > fewest:
            continue
        rank = random_rank(seed, request, rows.attempts[request], RUNS)
        if fewest < 0 or made < fewest or rank < lowest:
            chosen, fewest, lowest = place, made, rank
    return chosen


@compiled
def _admit(
    prompts: IntArray,
    memory: int,
    beliefs: Beliefs,
    chance: Chance,
    rows: Rows,
    ahead: IntArray,
    load: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
    passed: IntArray,
    clock: int,
) -> tuple[int, int, int]:
    """Start what is likely to fit; return how many have prompts, their tokens, and the squares."""
    mean, variance, new_mean, new_variance = load
    counts, running = rows.counts, rows.running
    entered = prefill = squares = over = ZERO
    known = False
    while counts[_WAITING] > 0 and over <= chance.passed:
        request = rows.heap[0]
        prompt = prompts[request]
        fits = counts[_ACTIVE] == 0
        if not fits and counts[_HELD] + counts[_ACTIVE] + prompt + 1 <= memory:
            if not known:
                known = True
                for place in range(len(ahead)):
                    mean[place] = variance[place] = 0.0
                for place in range(counts[_ACTIVE]):
                    other = running[place]
                    made = clock - rows.start[other]
                    _add_load(
                        beliefs, ahead, other, prompts[other], made, rows.seen[other],
                        mean, variance,
                    )  # fmt: skip
            for place in range(len(ahead)):
                new_mean[place], new_variance[place] = mean[place], variance[place]
            _add_load(
                beliefs, ahead, request, prompt, ZERO, rows.seen[request], new_mean, new_variance
            )
            fits = True
            for place in range(len(ahead)):
                room = memory - new_mean[place]
                allowed = chance.deviations * np.sqrt(new_variance[place])
                if allowed > room + TOLERANCE:
                    fits = False
                    break
        _pop(rows)
        if not fits:
            passed[over] = request
            over += 1
            continue
        if known:
            for place in range(len(ahead)):
                mean[place], variance[place] = new_mean[place], new_variance[place]
        rows.state[request] = _RUNS
        rows.start[request] = clock
        running[counts[_ACTIVE]] = request
        counts[_ACTIVE] += 1
        counts[_HELD] += prompt
        entered += prompt > 0
        prefill += prompt
        squares += prompt * prompt
    for place in range(over):
        _push(rows, passed[place])
    return entered, prefill, squares


@compiled
def _staying(ends: float, there: float) -> float:
    """Return the share of those that go on among those that are there."""
    return 1.0 - ends / there if there > ends else 0.0


@compiled
def _learn(
    beliefs: Beliefs,
    moments: Moments,
    first: FloatArray,
    complete: IntArray,
    rows: Rows,
    released: int,
    clock: int,
    chance: Chance,
) -> None:
    """Estimate the chances of each row anew from what was seen so far."""
    beyond, row = beliefs.beyond, beliefs.row
    count, last = len(beyond), beyond.shape[1] - 1
    gone = np.empty((count, last + 1), dtype=np.int64)  # complete or not yet, by tokens made
    for place in range(count):
        for output in range(last + 1):
            gone[place, output] = complete[place, output]
    for request in range(released):
        made = rows.seen[request]
        if rows.state[request] == _DONE:
            continue
        if rows.state[request] == _RUNS and clock - rows.start[request] > made:
            made = clock - rows.start[request]
        gone[row[request], made if made < last else last] += 1
    for place in range(count):
        there = ZERO
        for output in range(last, -1, -1):
            there += gone[place, output]
            gone[place, output] = there  # that made so many tokens at least
    common = np.empty(last + 1)  # of all rows
    common[0] = 1.0
    for output in range(1, last + 1):
        before = ends = 0.0
        there = ended = ZERO
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
        _set_moments(beliefs, moments, ZERO + place)
    counts = rows.counts
    for place in range(counts[_WAITING]):
        request = rows.heap[place]
        rows.key[request] = _expected_cost(beliefs, moments, chance, request, rows.seen[request])
    for place in range(counts[_WAITING] // 2 - 1, -1, -1):
        _sink(rows, ZERO + place)


@compiled
def run_by_chance(
    requests: Requests,
    beliefs: Beliefs,
    moments: Moments,
    chance: Chance,
    ahead: IntArray,
    log: BatchLog,
    timer: tuple[FloatArray, Any],
    until: float,
) -> tuple[IntArray, int, BatchLog]:
    """Run all requests to completion, or until a time."""
    prompts, arrivals, outputs, memory = requests
    count, tables = len(prompts), beliefs.beyond
    rows = _new_rows(count)
    counts, running, starts, seen = rows.counts, rows.running, rows.start, rows.seen
    complete = np.zeros(tables.shape, dtype=np.int64)
    first = tables.copy()
    for row in range(len(tables)):
        _set_moments(beliefs, moments, ZERO + row)
    size = len(ahead)
    load = (np.empty(size), np.empty(size), np.empty(size), np.empty(size))
    passed = np.empty(chance.passed + 1, dtype=np.int64)
    ended = np.empty((3, count + 16), dtype=np.int64)
    released = logged = clock = done = ZERO  # the clock counts batches
    while True:
        while released < count and arrivals[released] <= log.now[0]:
            _let_wait(beliefs, moments, chance, rows, released)
            released += 1
        if chance.prior > 0.0 and done >= counts[_LEARN_AT]:
            _learn(beliefs, moments, first, complete, rows, released, clock, chance)
            more = done // _REFIT_SHARE
            counts[_LEARN_AT] = done + (more if more > _REFIT_COMPLETIONS else _REFIT_COMPLETIONS)
        while counts[_HELD] + counts[_ACTIVE] > memory:
            place = _least_made(rows, clock, chance.seed)
            request = running[place]
            made = clock - starts[request]
            ended = log_attempt(ended, logged, request, starts[request], made)
            logged += 1
            if made > seen[request]:
                seen[request] = made
            rows.attempts[request] += 1
            _stop(rows, place, prompts[request] + made)
            _let_wait(beliefs, moments, chance, rows, request)
        entered, prefill, squares = _admit(
            prompts, memory, beliefs, chance, rows, ahead, load, passed, clock
        )
        active, held = counts[_ACTIVE], counts[_HELD]
        if active == 0:
            if released == count:
                return ended[:, :logged].copy(), 0, log
            log.now[0] = arrivals[released]
            continue
        log = with_room(log)
        usage = held + active
        decodes, resident = active - entered, held - prefill
        if log.now[0] >= until or not add_batch(
            log, timer, prefill, decodes, resident, squares, usage, usage
        ):
            return with_running(ended, logged, running, starts, active, clock), active, log
        clock += 1
        counts[_HELD] += active
        place = ZERO
        while place < counts[_ACTIVE]:
            request = running[place]
            made = clock - starts[request]
            if made < outputs[request]:
                place += 1
                continue
            ended = log_attempt(ended, logged, request, starts[request], made)
            logged += 1
            done += 1
            _stop(rows, place, prompts[request] + made)
            rows.seen[request] = made
            if made < tables.shape[1]:  # longer ones say no more than those that go on
                complete[beliefs.row[request], made] += 1
                rows.state[request] = _DONE


@compiled
def _new_rows(count: int) -> Rows:
    return Rows(
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        np.zeros(count),
        np.zeros(count, dtype=np.int64),
        np.empty(count, dtype=np.int64),
        np.empty(count, dtype=np.int64),
        np.zeros(_LEARN_AT + 1, dtype=np.int64),
    )


@compiled
def _stop(rows: Rows, place: int, held: int) -> None:
    """Take a request out of those that run."""
    rows.counts[_ACTIVE] -= 1
    rows.counts[_HELD] -= held
    rows.running[place] = rows.running[rows.counts[_ACTIVE]]
