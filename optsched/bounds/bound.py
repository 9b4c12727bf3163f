"""The bound of a problem, by whichever method proves most, and prices on coarse grids.

With cells of :math:`g` steps, memory in units of :math:`g` tokens and a price for each cell, a
request of :math:`s` prompt and :math:`o` output tokens is one of :math:`s / g` and :math:`o / g`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.aside import UNLIMITED, Budget, interruptible, stopwatch
from optsched._internal.numbers import round_down
from optsched.bounds.ascent import (
    BOUND_METHODS,
    BoundMethod,
    find_bound,
    improve_prices,
    round_work,
)
from optsched.bounds.lagrangian import Objective, certify, weights_of
from optsched.bounds.on_clock import SAFE, best_share, machine_bound, makespan_on_clock, shares_of
from optsched.bounds.pools import bound_of_pools
from optsched.bounds.sawtooth import find_sawtooth
from optsched.certificates.on_clock import ClockCertificate
from optsched.clock import LinearClock, get_clock
from optsched.errors import OptschedError, require_known
from optsched.problem.instance import Instance
from optsched.problem.premises import STORAGES, Storage, World
from optsched.problem.schedule import Schedule
from optsched.problem.work import step_of
from optsched.problem.workers import as_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched._internal.arrays import BoolArray, FloatArray
    from optsched.bounds.ascent import Bound
    from optsched.clock import Clock
    from optsched.problem.workers import Workers

    SomeWorkers = int | str | Sequence[int] | Workers

OBJECTIVES: tuple[Objective, ...] = ("total-latency", "weighted-latency", "makespan")

# Requests up to which a bound on a clock has prices unless they are asked for, and with what share
# of the effort: a second, or where they are many, some ten.
_QUICKLY, _QUICK = 5_000, 0.15
_MAX_PRICED, _LONGER = 15_000, 0.5
_LONG = 20_000  # requests from which on a kernel may take a second


@dataclass(frozen=True)
class ClockBound:
    """A proven lower bound on what any policy reaches on a clock."""

    value: float  # in the unit of the clock, rounded towards minus infinity
    method: str  # "closed-form" or "lagrangian"
    seconds: float  # time it took
    certificate: ClockCertificate
    clock: LinearClock

    @property
    def premises(self) -> World:
        """Of which runs it holds."""
        return self.certificate.premises


@overload
def bound(
    instance: Instance,
    method: BoundMethod = "auto",
    objective: Objective = "total-latency",
    *,
    workers: SomeWorkers | None = None,
) -> Bound: ...
@overload
def bound(
    instance: Instance,
    method: BoundMethod = "auto",
    objective: Objective = "total-latency",
    *,
    clock: str | Clock,
    workers: SomeWorkers | None = None,
    max_num_seqs: int | None = None,
    storage: Storage = "at-once",
) -> ClockBound: ...
@checked(OptschedError)
def bound(
    instance: Instance,
    method: BoundMethod = "auto",
    objective: Objective = "total-latency",
    *,
    clock: str | Clock | None = None,
    workers: SomeWorkers | None = None,
    max_num_seqs: int | None = None,
    storage: Storage = "at-once",
) -> Bound | ClockBound:
    """Bound the total latency of every feasible schedule from below, or another objective.

    In steps every batch takes one step. On a clock the bound holds for all ways to form batches:
    requests that sit out, prompts in chunks, preempted ones that are recomputed or resumed.

    Parameters
    ----------
    instance
        The requests.
    method
        "closed-form", "lagrangian" (with a certificate), or "auto": the better of the two, but the
        closed form alone where the other takes longer than some ten seconds, as for a million
        requests that are not of a few kinds. "sawtooth" (with a certificate) goes on from there and
        counts the memory that requests keep free to grow until one of them completes.
    objective
        "total-latency", "weighted-latency", or "makespan", for which there is only the closed
        form: the memory-time, or the work on the clock, that arrives from some time on, and the
        longest request. `solve` bounds the makespan in steps by sizes, too.
    clock
        A clock that is a weighted sum, or its name; None bounds in steps. On a clock "closed-form"
        lets one machine do all work, and "lagrangian" puts prices on memory and on taking part in
        batches over time; "auto" does so with a seventh of the effort, and with half of it from
        5,000 to 15,000 requests, which takes some ten seconds.
        "stalls" adds to each request alone what prefills that come after it cost it, for the total
        latency on one worker; "auto" takes the largest.
    workers
        Independent workers among which requests are placed: a number of workers with the memory of
        the instance, their memories, or `Workers`. Then "lagrangian" puts prices on the memory of
        all together and, where requests fit on some only, of those. On a clock they must be equal.
    max_num_seqs
        On a clock: the most requests that a batch may have; None: as many as the memory holds.
    storage
        From when on a token takes memory. "at-once": in the batch that makes it, as the papers
        count. "next-batch": in the next one, as in vLLM, so that requests hold one token less;
        this holds for the papers' model too, and is weaker.

    Returns
    -------
    Bound or ClockBound
        The bound and, except for the closed form in steps, its certificate.

    Raises
    ------
    OptschedError
        If an argument is unknown, the clock is a function or has no constant for "lagrangian", or
        there is no such bound or no room for prices.

    Examples
    --------
    >>> from optsched import Instance, bound
    >>> result = bound(Instance([63] + 21 * [1], [1] + 21 * [2], memory=64))
    >>> result.method, result.value <= 45
    ('lagrangian', True)
    >>> joint = bound(Instance([1] * 4, [2] * 4, memory=3), workers=2)
    >>> joint.method, 10 < joint.value <= 12
    ('pool', True)
    >>> at_once = Instance([500, 100], [40, 80], memory=1000)
    >>> round(bound(at_once, clock="llama-2-7b-a100").value, 1)
    1.1
    """
    require_known("bound", method, BOUND_METHODS, OptschedError)
    require_known("objective", objective, OBJECTIVES, OptschedError)
    require_known("storage", storage, STORAGES, OptschedError)
    find: Callable[[], Any] = functools.partial(find_bound, instance, method, objective)
    if clock is not None:
        limits = workers, max_num_seqs, storage
        find = functools.partial(_find_on_clock, instance, method, objective, clock, limits)
    elif max_num_seqs is not None:
        raise OptschedError(
            f"max_num_seqs is {max_num_seqs}, but bounds in steps know no limit of a batch; pass a "
            "clock, or leave it out"
        )
    elif storage != "at-once":
        raise OptschedError(
            f"storage is {storage!r}, but in steps every policy stores tokens at once; pass a "
            "clock, or leave it out"
        )
    elif method == "stalls":
        raise OptschedError("method is 'stalls', but in steps no prefill stalls; pass a clock")
    elif method == "sawtooth":
        several = as_workers(1 if workers is None else workers, instance)
        find = functools.partial(find_sawtooth, instance, several, objective)
    elif workers is not None:
        several = as_workers(workers, instance)
        find = functools.partial(bound_of_pools, instance, several, method, objective)
    found: Bound | ClockBound = interruptible(find) if len(instance) >= _LONG else find()
    return found


def _find_on_clock(
    instance: Instance,
    method: BoundMethod,
    objective: Objective,
    clock: str | Clock,
    limits: tuple[SomeWorkers | None, int | None, Storage],
) -> ClockBound:
    from optsched.bounds.on_clock import price_on_clock
    from optsched.bounds.stalls import bound_by_stalls

    began = stopwatch()
    several, max_num_seqs, storage = limits
    timed = _boundable(get_clock(clock), method, objective, max_num_seqs)
    equals = as_workers(1 if several is None else several, instance)
    if method == "stalls" and (len(equals) > 1 or objective != "total-latency"):
        raise OptschedError("stalls bound the total latency of one worker only; use auto")
    if not equals.equal:
        raise OptschedError(
            f"workers are {equals}, but the bound on a clock is for equal ones; pass their number"
        )
    instance, workers = instance.replace(memory=equals.memories[0]), len(equals)
    weights = weights_of(instance, objective)
    certificate = _closed_form(instance, timed, objective, workers, max_num_seqs, storage)
    value = float(certificate.value)
    simple = ClockBound(value, "closed-form", stopwatch() - began, certificate, timed)
    if method in ("auto", "stalls") and workers == 1 and objective == "total-latency":
        stalled = bound_by_stalls(instance, timed, certificate)
        lowest, seconds = round_down(stalled.value), stopwatch() - began
        found = ClockBound(lowest, "stalls", seconds, stalled, timed)
        simple = found if method == "stalls" else max(simple, found, key=lambda each: each.value)
    few = len(instance) <= _MAX_PRICED and timed.constant > 0
    plain = method in ("closed-form", "stalls") or objective == "makespan"
    if plain or (method == "auto" and not few):
        return simple
    quick = _QUICK if len(instance) <= _QUICKLY else _LONGER
    effort = quick if method == "auto" else 1.0
    priced = price_on_clock(instance, timed, certificate, weights, effort)
    if priced is None:
        if method == "lagrangian":
            raise OptschedError("the bound by prices would need too many; use the closed form")
        return simple
    seconds = stopwatch() - began
    best = ClockBound(round_down(priced.value), "lagrangian", seconds, priced, timed)
    return simple if method == "auto" and best.value < simple.value else best


def _closed_form(
    instance: Instance,
    timed: LinearClock,
    objective: Objective,
    workers: int,
    max_num_seqs: int | None,
    storage: Storage,
) -> ClockCertificate:
    """Return the bound in closed form."""
    weights = weights_of(instance, objective)
    if objective == "makespan":
        shares = shares_of(instance, max_num_seqs or 0, storage)
        lasts, share = makespan_on_clock(instance, timed, workers, shares)
        first = Fraction(float(instance.arrivals[0]) * step_of(instance, timed))
        value = round_down((first + Fraction(lasts)) * (1 - Fraction(SAFE)))
    else:
        share = best_share(instance, timed, weights, workers, max_num_seqs or 0, storage)
        value = machine_bound(instance, timed, weights, workers, share)
    return ClockCertificate(
        tuple(timed.coefficients.tolist()),
        step_of(instance, timed),
        instance.fingerprint,
        timed.unit,
        workers,
        objective,
        value=Fraction(value),
        max_num_seqs=share.max_num_seqs,
        by_requests=share.by_requests,
        storage=storage,
        origin=int(instance.arrivals[0]),
    )


def _boundable(
    clock: Clock, method: BoundMethod, objective: Objective, max_num_seqs: int | None
) -> LinearClock:
    """Return the clock, or refuse what has no bound on it."""
    if method == "sawtooth":
        raise OptschedError(
            f"method is 'sawtooth', but on the clock {clock.name} nothing is known to grow at each "
            "step; use auto or lagrangian"
        )
    if not isinstance(clock, LinearClock):
        raise OptschedError(
            f"the clock {clock.name} is a function, of which no bound is known; pass a LinearClock "
            "that is never above it"
        )
    if objective == "makespan" and method == "lagrangian":
        raise OptschedError("the makespan has no Lagrangian bound; use the closed form")
    if max_num_seqs is not None and max_num_seqs < 1:
        raise OptschedError(
            f"max_num_seqs is {max_num_seqs}, but a batch must hold at least 1 request"
        )
    if method == "lagrangian" and not clock.constant:
        raise OptschedError(
            f"the clock {clock.name} has no constant, without which prices prove nothing; use the "
            "closed form"
        )
    return clock


#: Cells in the mean output of large requests.
CELLS = 25
_WORK = 0.4  # a round's share of the work that it is on single steps, where ranges are longer


def coarse_prices(
    schedule: Schedule,
    objective: Objective,
    large: BoolArray,
    memory: float,
    *,
    rounds: int,
    cells: int = CELLS,
    begin: FloatArray | None = None,
    budget: Budget = UNLIMITED,
) -> tuple[FloatArray, int, float]:
    """Return prices at which large requests share the memory, the steps of a cell, and the work."""
    instance = schedule.instance
    prompts, outputs = instance.prompts[large], instance.outputs[large]
    cell = max(1, int(outputs.mean() / cells))
    steps = np.maximum(1, np.rint(outputs / cell)).astype(np.int64)
    tokens = np.rint(prompts / cell).astype(np.int64)
    areas = float((tokens * steps + steps * (steps + 1) // 2).sum()) * cell
    span = int(schedule.starts.max() - instance.arrivals[0]) + 1
    left = memory - instance.areas[~large].sum() / span
    # Rounding changes how much memory-time they take; memory changes as much.
    share = areas / instance.areas[large].sum()
    weights = None if instance.weights is None else instance.weights[large]
    coarse = Instance(
        tokens,
        steps,
        max(int(left * share), int((tokens + steps).max())),
        instance.arrivals[large] // cell,
        weights,
    )
    begun = Schedule(coarse, np.maximum(schedule.starts[large] // cell, coarse.arrivals))
    first = bound(coarse, "lagrangian", objective).prices
    assert first is not None
    if begin is not None:
        means = begin[: len(begin) // cell * cell].reshape(-1, cell).mean(axis=1) * cell
        first = certify(coarse, means, begun.starts, objective)
    work = rounds * round_work(begun, first)
    found = improve_prices(begun, first, budget._replace(work=work)).prices
    assert found is not None
    prices = np.repeat(np.array(found.prices) / found.denominator / cell, cell)
    return prices, cell, _WORK * work


def smoothed(prices: FloatArray, span: int) -> FloatArray:
    """Return the mean of the prices at so many steps around each, where there are that many."""
    before = span // 2
    sums = np.concatenate([[0.0], np.cumsum(prices)])
    steps = np.arange(len(prices))
    low, high = np.maximum(steps - before, 0), np.minimum(steps + before + 1, len(prices))
    means: FloatArray = (sums[high] - sums[low]) / (high - low)
    return means
