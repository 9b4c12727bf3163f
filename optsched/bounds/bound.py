r"""The bound of a problem, by whichever method proves most; bounds of pools; coarse prices.

No more than :math:`K = \lfloor M / (s + 1) \rfloor` requests of one prompt run at a step. One
machine that makes K tokens per step, and may interrupt requests, completes none later; on it the
shortest remaining output first minimises the sum of completions (Schrage, 1968).
"""

from __future__ import annotations

import functools
import heapq
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, cast, overload

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.aside import UNLIMITED, Budget, interruptible, stopwatch
from optsched._internal.compiled import allocating
from optsched._internal.numbers import proven, round_down
from optsched.bounds import on_clock
from optsched.bounds.ascent import (
    BOUND_METHODS,
    Bound,
    BoundMethod,
    PolyakAscent,
    find_bound,
    find_sawtooth,
    improve_prices,
    round_work,
    work_of_round,
)
from optsched.bounds.lagrangian import (
    Objective,
    certify,
    cheapest_starts,
    common_denominator,
    held_by,
)
from optsched.bounds.path import bound_by_path
from optsched.certificates.on_clock import ClockCertificate
from optsched.certificates.prices import Certificate
from optsched.clock import Clock, LinearClock, get_clock
from optsched.errors import InstanceError, OptschedError, require_known
from optsched.problem.costs import StartCosts, weights_of
from optsched.problem.instance import Instance
from optsched.problem.premises import STORAGES, Storage, World
from optsched.problem.schedule import Schedule
from optsched.problem.work import step_of
from optsched.problem.workers import Workers, as_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched._internal.arrays import BoolArray, FloatArray, IntArray

    SomeWorkers = int | str | Sequence[int] | Workers


def machines_bound(instance: Instance) -> float:
    """Bound the total latency of every schedule of equal prompts from below."""
    prompts = instance.prompts
    if prompts.min() != prompts.max():
        raise InstanceError(
            f"prompts lie between {prompts.min()} and {prompts.max()}, but this bound needs them "
            "equal"
        )
    machines = int(instance.memory // (prompts[0] + 1))
    ends = _shortest_remaining(instance.outputs, instance.arrivals * machines)
    total = float(ends.sum() / machines - instance.arrivals.sum())  # ends count 1 / K steps
    return max(total, float(instance.outputs.sum()))


@allocating
def _shortest_remaining(lengths: IntArray, arrivals: IntArray) -> IntArray:
    """Return the ends on one machine that always runs the least remaining length."""
    count = len(lengths)
    ends = np.zeros(count, dtype=np.int64)
    waiting = [(lengths[0], 0)]
    released, now = 1, arrivals[0]
    while len(waiting) > 0 or released < count:
        if len(waiting) == 0:
            now = arrivals[released]
        while released < count and arrivals[released] <= now:
            heapq.heappush(waiting, (lengths[released], released))
            released += 1
        left, request = heapq.heappop(waiting)
        until = now + left
        if released < count and arrivals[released] < until:
            heapq.heappush(waiting, (until - arrivals[released], request))
            now = arrivals[released]
        else:
            ends[request] = until
            now = until
    return ends


_MAX_POOLS = 8
_BUDGET = Budget(work=2e8)  # of an ascent, in the unit of the searches
_MAX_ROUNDS = 399  # after the first
_SHARES = (0.0, 0.25, 0.5, 0.75)  # of the pool's prices, to begin with


def bound_of_pools(
    instance: Instance, workers: Workers, method: BoundMethod, objective: Objective
) -> Bound:
    """Bound the cost of every schedule on several workers from below."""
    began = stopwatch()
    pools = Pools.of(instance, workers)
    found = find_bound(workers.pool(instance), method, objective)
    value, name, certificate = found.value, "closed-form", found.prices
    if objective == "makespan":
        # What runs on some workers only has to be over there.
        for requests, memory in pools.inner(instance, workers):
            part = instance.take(requests).replace(memory=memory)
            value = max(value, find_bound(part, method, objective).value)
    elif certificate is not None:
        name, certificate = "pool", of_pool(certificate, instance, workers)
        if len(pools.members) > 1:
            assert found.prices is not None
            nested = price_pools(instance, workers, found.prices)
            if nested.value > certificate.value:
                value, name, certificate = round_down(nested.value), "nested", nested
    fingerprint = workers.fingerprint(instance)
    premises = World(fingerprint, len(workers), preemption="restarted", objective=objective)
    seconds = stopwatch() - began
    return Bound(value, name, seconds, certificate, premises=premises, workers=workers)


def of_pool(certificate: Certificate, instance: Instance, workers: Workers) -> Certificate:
    """Turn prices of one worker with all memory into a certificate for several workers."""
    everyone = (tuple(range(len(workers))),)
    return replace(certificate, pools=everyone, fingerprint=workers.fingerprint(instance))


class Pools(NamedTuple):
    """Sets of workers, that of all first, and which requests pay for which."""

    members: BoolArray  # (pools, G)
    groups: list[IntArray]  # requests that may run on the same workers
    pays: BoolArray  # (groups, pools)

    @classmethod
    def of(cls, instance: Instance, workers: Workers) -> Pools:
        """Make a pool of each set of workers that are all on which some requests may run."""
        places, group = workers.kinds(instance)
        areas = instance.areas.astype(np.float64)
        memories = np.array(workers.memories)

        def crowded(inside: BoolArray) -> float:
            # Memory-time of requests that run on these workers only, over their memory.
            only = np.logical_not((places & ~inside).any(axis=1))
            return float(areas[only[group]].sum() / (memories @ inside))

        some = sorted((row for row in places if not row.all()), key=crowded, reverse=True)
        everyone = np.ones((1, len(workers)), dtype=np.bool_)
        members = np.concatenate([everyone, *(row[None] for row in some[: _MAX_POOLS - 1])])
        order = np.argsort(group, kind="stable")
        groups = np.split(order, np.cumsum(np.bincount(group))[:-1])
        pays = ~(places[:, None] & ~members).any(axis=2)
        return cls(members, groups, pays)

    def memories(self, workers: Workers) -> IntArray:
        """Return the tokens that each pool holds."""
        return np.asarray(self.members @ np.array(workers.memories), dtype=np.int64)

    def inner(self, instance: Instance, workers: Workers) -> list[tuple[IntArray, int]]:
        """Return the requests that run in each pool but the first only, and its memory."""
        memories = self.memories(workers).tolist()
        listed = []
        for pool in range(1, len(self.members)):
            parts = [g for g, pays in zip(self.groups, self.pays, strict=True) if pays[pool]]
            listed.append((np.sort(np.concatenate(parts)), memories[pool]))
        return listed


def price_pools(
    instance: Instance,
    workers: Workers,
    certificate: Certificate,
    *,
    cost: float = np.inf,
    budget: Budget = _BUDGET,
) -> Certificate:
    """Find prices of pools, from those of the pool of all; a known cost sets the target."""
    ascent = _PoolAscent(instance, workers, certificate)
    ascent.begin(cost)
    rounds = min(_MAX_ROUNDS, budget.work / work_of_round(ascent.best_prices.size, len(instance)))
    if ascent.climb(rounds, budget):
        raise KeyboardInterrupt
    return ascent.certificate(workers.fingerprint(instance))


class _PoolAscent(PolyakAscent):
    """Prices have a row for each pool."""

    def __init__(self, instance: Instance, workers: Workers, certificate: Certificate) -> None:
        self._objective = certificate.objective
        self._pool = workers.pool(instance)
        self._pools = pools = Pools.of(instance, workers)
        self._memories = pools.memories(workers)
        weights = self._weights = weights_of(instance, certificate.objective)
        self._parts = [(self._pool.take(group), weights[group]) for group in pools.groups]
        self._guesses = [part.arrivals for part, _ in self._parts]
        given = np.array(certificate.prices) / certificate.denominator
        inner = []
        for requests, memory in pools.inner(instance, workers):
            part = instance.take(requests).replace(memory=memory)
            found = find_bound(part, "lagrangian", cast("Objective", self._objective)).prices
            assert found is not None
            inner.append(np.array(found.prices) / found.denominator)
        horizon = int(1.1 * max(len(prices) for prices in (given, *inner))) + 1
        self._given = np.zeros((len(pools.members), horizon))
        for row, prices in zip(self._given, (given, *inner), strict=True):
            row[: len(prices)] = prices

    def begin(self, cost: float) -> None:
        """Begin at shares of the pool's prices, with those of the others."""
        of_all = np.zeros_like(self._given)
        of_all[0] = self._given[0]
        points = [of_all]
        for share in _SHARES:
            for pool in range(1, len(self._given)):
                prices = np.zeros_like(self._given)
                prices[0] = share * self._given[0]
                prices[pool] += (1 - share) * self._given[pool]
                points.append(prices)
        self._begin(points)
        self._aim(min(cost - self.best, abs(self.best)))

    def _costs(self, prices: FloatArray, unit: int) -> tuple[int, IntArray]:
        """Evaluate rounded prices exactly, in units of one over `unit`; remember the starts."""
        integers = np.rint(prices * unit).astype(np.int64)
        charged = zip(self._memories.tolist(), integers.sum(axis=1).tolist(), strict=True)
        total = -sum(memory * paid for memory, paid in charged)
        for number, ((part, weights), pays) in enumerate(
            zip(self._parts, self._pools.pays, strict=True)
        ):
            scaled = StartCosts.plain(weights).scaled(unit)
            paid = integers[pays].sum(axis=0)
            starts, costs = cheapest_starts(part, paid, scaled, self._guesses[number])
            self._guesses[number] = starts
            total += int(costs.sum())
        return total, integers

    def _evaluate(self, prices: FloatArray) -> tuple[float, FloatArray]:
        unit = common_denominator(self._pool, prices.sum(axis=0), self._weights)
        total, _ = self._costs(prices, unit)
        slope = np.repeat(-self._memories[:, None].astype(np.float64), prices.shape[1], axis=1)
        for (part, _), starts, pays in zip(
            self._parts, self._guesses, self._pools.pays, strict=True
        ):
            slope[pays] += held_by(part.prompts, part.outputs, starts, prices.shape[1])
        slope[(prices <= 0) & (slope < 0)] = 0.0  # no price can fall below zero
        return total / unit, slope

    def certificate(self, fingerprint: str) -> Certificate:
        """Round the best prices to integers and evaluate them exactly."""
        unit = common_denominator(self._pool, self.best_prices.sum(axis=0), self._weights)
        total, integers = self._costs(self.best_prices, unit)
        return Certificate(
            unit,
            tuple(integers.reshape(-1).tolist()),
            fingerprint,
            Fraction(total, unit),
            self._objective,
            tuple(tuple(np.flatnonzero(row).tolist()) for row in self._pools.members),
        )


OBJECTIVES: tuple[Objective, ...] = ("total-latency", "weighted-latency", "makespan")

_WAITING = 1.5  # times all latencies alone: where a machine proves as much, a path proves less
_LONG = 20_000  # requests from which on a kernel may take a second


@dataclass(frozen=True)
class ClockBound:
    """A proven lower bound on what any policy reaches on a clock."""

    value: float  # in the unit of the clock, rounded towards minus infinity
    method: str  # "closed-form", "lagrangian" or "path"
    seconds: float  # time it took
    certificate: ClockCertificate
    clock: LinearClock

    def __str__(self) -> str:
        """Say what is proven."""
        claim = self.premises.says(proven(self.value), self.clock.unit)
        return f"{claim} on the clock {self.clock.name} ({self.method})"

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
        "total-latency", "weighted-latency", or "makespan": the memory-time, or the work on the
        clock, that arrives from some time on, and the longest request; in steps "sawtooth" proves
        more, and `solve` by sizes still more.
    clock
        A clock that is a weighted sum, or its name; None bounds in steps. On a clock "closed-form"
        lets one machine do all work, and "lagrangian" puts prices on memory and on taking part in
        batches over time, for some ten seconds at most.
        For the total latency on one worker "path" adds to each request alone what prefills and
        decodes of others cost it on their common path through time. "auto" takes the largest,
        without a path where all wait long, and gives prices up once they fall behind.
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
    >>> at_once = Instance([500, 100], [40, 80], memory=1000)
    >>> round(bound(at_once, clock="llama-2-7b-a100").value, 1)
    1.1
    """
    require_known("bound", method, BOUND_METHODS, OptschedError)
    require_known("objective", objective, OBJECTIVES, OptschedError)
    require_known("storage", storage, STORAGES, OptschedError)
    find: Callable[[], Bound | ClockBound] = functools.partial(
        find_bound, instance, method, objective
    )
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
    elif method == "path":
        raise OptschedError("method is 'path', but in steps no prefill stalls others; pass a clock")
    elif method == "sawtooth":
        several = as_workers(1 if workers is None else workers, instance)
        find = functools.partial(find_sawtooth, instance, several, objective)
    elif workers is not None:
        several = as_workers(workers, instance)
        find = functools.partial(bound_of_pools, instance, several, method, objective)
    return interruptible(find) if len(instance) >= _LONG else find()


def _find_on_clock(
    instance: Instance,
    method: BoundMethod,
    objective: Objective,
    clock: str | Clock,
    limits: tuple[SomeWorkers | None, int | None, Storage],
) -> ClockBound:
    began = stopwatch()
    several, max_num_seqs, storage = limits
    timed = _boundable(get_clock(clock), method, objective, max_num_seqs)
    equals = as_workers(1 if several is None else several, instance)
    total_of_one = len(equals) == 1 and objective == "total-latency"
    if method == "path" and not total_of_one:
        raise OptschedError("a path bounds the total latency of one worker only; use auto")
    if not equals.equal:
        raise OptschedError(
            f"workers are {equals}, but the bound on a clock is for equal ones; pass their number"
        )
    instance, workers = instance.replace(memory=equals.memories[0]), len(equals)
    weights = weights_of(instance, objective)
    certificate = _closed_form(instance, timed, objective, workers, max_num_seqs, storage)
    value = float(certificate.value)
    simple = ClockBound(value, "closed-form", stopwatch() - began, certificate, timed)
    own = float(on_clock.least_work(instance, timed).own.sum())
    if total_of_one and (method == "path" or (method == "auto" and value < _WAITING * own)):
        simple = _better(simple, bound_by_path(instance, timed, certificate), "path", method, began)
    if method in ("closed-form", "path") or objective == "makespan" or not timed.constant:
        return simple
    known = simple.value if method == "auto" else -math.inf
    priced = on_clock.price_on_clock(instance, timed, certificate, weights, known)
    if priced is None:
        if method == "lagrangian":
            raise OptschedError("the bound by prices would need too many; use the closed form")
        return simple
    return _better(simple, priced, "lagrangian", method, began)


def _better(
    known: ClockBound, certificate: ClockCertificate, name: str, method: BoundMethod, began: float
) -> ClockBound:
    """Return the larger bound, or the one that was asked for."""
    value, seconds = round_down(certificate.value), stopwatch() - began
    found = ClockBound(value, name, seconds, certificate, known.clock)
    return known if method == "auto" and found.value <= known.value else found


def _closed_form(
    instance: Instance,
    timed: LinearClock,
    objective: Objective,
    workers: int,
    max_num_seqs: int | None,
    storage: Storage,
) -> ClockCertificate:
    weights = weights_of(instance, objective)
    if objective == "makespan":
        shares = on_clock.shares_of(instance, max_num_seqs or 0, storage)
        lasts, share = on_clock.makespan_on_clock(instance, timed, workers, shares)
        first = Fraction(float(instance.arrivals[0]) * step_of(instance, timed))
        value = round_down((first + Fraction(lasts)) * (1 - Fraction(on_clock.SAFE)))
    else:
        share = on_clock.best_share(instance, timed, weights, workers, max_num_seqs or 0, storage)
        value = on_clock.machine_bound(instance, timed, weights, workers, share)
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
    work = min(rounds * round_work(begun, first), budget.work / _WORK)
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
