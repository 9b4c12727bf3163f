"""A worker that may preempt requests: what runs on it, and all attempts so far.

A hash of (seed, request, attempt) ranks ties, once when a request enters the queue and once when it
starts, so that a run depends on the seed alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.arrays import records
from optsched._internal.compiled import MINUS_ONE, ONE, ZERO, compiled
from optsched.simulate.seconds.batches import BATCH, start

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray, Records

WAITS, RUNS = ZERO, ONE  # roles of a request that is ranked

_WORKER = (
    *("released", "waiting", "done", "logged"),  # requests, and attempts that have ended
    *BATCH,
)


class Worker(NamedTuple):
    """State of a worker between two batches; shape (n,) but for the first."""

    now: Records  # (1,), counters
    running: IntArray  # requests
    starts: IntArray  # of the present attempts, in batches
    attempts: IntArray  # that were preempted, of each request


def new_worker(count: int) -> Worker:
    """Make a worker on which none of so many requests has run."""
    arrays = (np.zeros(count, dtype=np.int64) for _ in range(3))
    return Worker(records(1, _WORKER), *arrays)


@compiled
def random_rank(seed: int, request: int, attempt: int, role: int) -> int:
    """Hash to a number in [0, 2^63): the finaliser of splitmix64, once per argument."""
    mixed = np.uint64(0)
    for part in (seed, request, attempt, role):
        mixed += np.uint64(0x9E3779B97F4A7C15) + np.uint64(part)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return np.int64(mixed >> np.uint64(1))  # type: ignore[return-value]  # int() would be unsigned


@compiled
def admit(worker: Worker, request: int, prompt: int) -> None:
    """Let a request start in the next batch."""
    now = worker.now[0]
    worker.starts[request] = now.batch
    worker.running[now.active] = request
    start(now, prompt)


@compiled
def end(worker: Worker, log: IntArray, request: int, prompt: int) -> IntArray:
    """Free the memory of a request, and log its attempt."""
    now = worker.now[0]
    now.active -= 1
    now.tokens -= prompt + now.batch - worker.starts[request]
    return _logged(worker, log, request)


@compiled
def log_attempt(log: IntArray, logged: int, request: int, start: int, tokens: int) -> IntArray:
    """Write an attempt down; return the log, a larger one where it was full."""
    if logged == log.shape[1]:
        larger = np.empty((3, 2 * logged), dtype=np.int64)
        for row in range(3):
            for column in range(logged):
                larger[row, column] = log[row, column]
        log = larger
    log[0, logged], log[1, logged], log[2, logged] = request, start, tokens
    return log


@compiled
def _logged(worker: Worker, log: IntArray, request: int) -> IntArray:
    """Write down the attempt of a request that runs."""
    now, first = worker.now[0], worker.starts[request]
    log = log_attempt(log, now.logged, request, first, now.batch - first)
    now.logged += 1
    return log


@compiled
def all_attempts(worker: Worker, log: IntArray) -> IntArray:
    """Return all attempts, those that are still running last."""
    for place in range(worker.now[0].active):
        log = _logged(worker, log, worker.running[place])
    return log[:, : worker.now[0].logged].copy()


@compiled
def least_made(worker: Worker, seed: int) -> int:
    """Return the place of the running request that has made the fewest tokens."""
    now = worker.now[0]
    chosen, fewest, lowest = MINUS_ONE, ZERO, ZERO
    for place in range(now.active):
        request = worker.running[place]
        made = now.batch - worker.starts[request]
        if chosen >= 0 and made > fewest:
            continue
        rank = random_rank(seed, request, worker.attempts[request], RUNS)
        if chosen < 0 or made < fewest or rank < lowest:
            chosen, fewest, lowest = ZERO + place, made, rank
    return chosen
