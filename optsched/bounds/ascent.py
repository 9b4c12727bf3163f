"""Ascent on prices of memory, and on charges for memory kept free to grow (docs/bounds.md).

A step leads towards a target a little above the best value met, along the slopes so far, of which
old ones count less (Crowder, 1976); the target comes closer after rounds without a gain.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count, takewhile
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from optsched._internal.arrays import MAX_SUM, FloatArray, IntArray, has_room, require_room
from optsched._internal.aside import Budget, pieces, stopwatch
from optsched._internal.compiled import allocating, compiled, compiled_inside
from optsched._internal.numbers import at_least, exact_dot, round_down
from optsched._internal.small_kernels import PriceSums, price_of_start
from optsched.bounds import lagrangian
from optsched.certificates.prices import (
    Certificate,
    ConfigurationCertificate,
    MakespanCertificate,
    SawtoothCertificate,
)
from optsched.errors import OptschedError
from optsched.problem.costs import StartCosts, cost_unit, schedule_cost, weights_of
from optsched.problem.premises import NOWHERE, World

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable

    from optsched.problem.instance import Instance
    from optsched.problem.schedule import Schedule
    from optsched.problem.workers import Workers

_PATIENCE = 20  # rounds without a gain until the target comes closer
_CLOSER = 0.5
_MOMENTUM = 0.9
_FIRST_TARGET = 0.1  # of the distance to a schedule
_ENOUGH = 0.01  # of the distance to the target, to be a gain
_TINY = 1e-6  # distance of the target, relative to the bound, at which prices have converged
_STEP_WORK, _REQUEST_WORK = 60.0, 1200.0  # of a round, for each price and each request


def work_of_round(prices: int, requests: int) -> float:
    """Return the work of a round."""
    return _STEP_WORK * prices + _REQUEST_WORK * requests


class PolyakAscent(ABC):
    """Where an ascent is, and the best prices met."""

    best: float
    best_prices: FloatArray
    _direction: FloatArray
    _idle: int

    @abstractmethod
    def _evaluate(self, prices: FloatArray) -> tuple[float, FloatArray]:
        """Return the Lagrangian, and its slope where prices can follow it."""

    def _begin(self, points: Iterable[FloatArray]) -> None:
        """Begin at the best of some prices."""
        self.best = -np.inf
        for prices in points:
            self._visit(prices)

    def _aim(self, ahead: float) -> None:
        """Set the first target, given how far above the best value a schedule is."""
        self._ahead = _FIRST_TARGET * max(ahead, 0.0)
        self._near = _TINY**2 * self._ahead  # where the bound is 0 and stays there
        self._return()

    @property
    def converged(self) -> bool:
        """Whether better prices would hardly be worth more."""
        near = max(_TINY * abs(self.best), self._near)
        return self._ahead <= near or not self._best_slope.any()

    def climb(self, rounds: float, budget: Budget) -> bool:
        """Go so many rounds at most; return whether Ctrl-C ended them."""
        try:
            for done in takewhile(lambda done: done <= rounds, count()):
                if self.converged or stopwatch() >= budget.deadline:
                    break
                self.step()
                if done % 16 == 0:
                    budget.tell(self.best)
                if budget.over:
                    break
        except KeyboardInterrupt:
            return True
        return False

    def step(self) -> None:
        """Move once, and remember the best prices."""
        self._direction = self._slope + _MOMENTUM * self._direction
        squared = float(np.vdot(self._direction, self._direction))
        length = (self.best + self._ahead - self._value) / (squared or 1.0)  # slopes may cancel out
        gained = self._visit(np.maximum(self._prices + length * self._direction, 0.0))
        self._idle = 0 if gained > _ENOUGH * self._ahead else self._idle + 1
        if self._idle >= _PATIENCE or not self._slope.any():
            self._ahead *= _CLOSER
            self._return()

    def _visit(self, prices: FloatArray) -> float:
        """Go to prices, and return how much better they are than the best."""
        self._prices, (self._value, self._slope) = prices, self._evaluate(prices)
        gained = self._value - self.best
        if gained > 0:
            self.best, self.best_prices, self._best_slope = self._value, prices, self._slope
        return gained

    def _return(self) -> None:
        """Go back to the best prices."""
        self._idle = 0
        self._prices, self._value = self.best_prices, self.best
        self._slope, self._direction = self._best_slope, np.zeros_like(self._best_slope)


BoundMethod = Literal["auto", "closed-form", "lagrangian", "sawtooth", "path"]
BOUND_METHODS: tuple[BoundMethod, ...] = get_args(BoundMethod)

_MAX_PRICES = 20_000_000
_PRICE = 160  # bytes of the price of a step, its sums and what is kept of it in a certificate
_MAX_SEARCH = 5e8  # requests times the root of the steps: what the search for starts takes


@dataclass(frozen=True)
class Bound:
    """A proven lower bound on the objective of every feasible schedule.

    Attributes
    ----------
    value
        The bound in steps, rounded towards minus infinity.
    method
        How it was found: "closed-form", "lagrangian", "sawtooth", "configuration" or "sizes"; on
        several workers "pool", which is "lagrangian" for the memory of all, or "nested", with
        prices of parts.
    certificate
        The proof, if prices or sizes prove it; the closed form is proven on paper (docs/bounds.md),
        and evaluated with an allowance for rounding.
    interrupted
        Whether Ctrl-C ended its improvement.
    premises
        The runs for which it holds (`optsched.problem.premises.World`); none unless stated.
    workers
        The workers that it holds for; None is one.
    """

    value: float
    method: str
    seconds: float
    certificate: (
        Certificate | SawtoothCertificate | ConfigurationCertificate | MakespanCertificate | None
    ) = field(default=None, repr=False)
    interrupted: bool = False
    premises: World = NOWHERE
    workers: Workers | None = None

    def __str__(self) -> str:
        """Say what is proven."""
        return f"{self.premises.says(at_least(self.value), 'steps')} ({self.method})"

    @property
    def prices(self) -> Certificate | None:
        """The certificate, if it proves the bound by prices of memory alone."""
        return self.certificate if isinstance(self.certificate, Certificate) else None

    @property
    def sizes(self) -> ConfigurationCertificate | None:
        """The certificate, if it proves the bound by sizes of running requests."""
        return self.certificate if isinstance(self.certificate, ConfigurationCertificate) else None


def find_bound(instance: Instance, method: BoundMethod, objective: lagrangian.Objective) -> Bound:
    """Bound the cost of every schedule of one worker in steps."""
    began = stopwatch()
    # An interrupted request has its token-steps early at best where it runs through (docs).
    premises = World(instance.fingerprint, preemption="resumed", objective=objective)
    weights = weights_of(instance, objective)
    relaxation = lagrangian.relax(instance, weights)
    horizon = relaxation.horizon(instance.memory)
    if objective == "makespan":
        if method == "lagrangian":
            raise OptschedError("the makespan has no Lagrangian bound; use the closed form")
        last = float(max(horizon, longest(instance)))
        return Bound(last, "closed-form", stopwatch() - began, premises=premises)
    value = lagrangian.closed_form(instance, weights, relaxation)
    simple = Bound(value, "closed-form", stopwatch() - began, premises=premises)
    slow = len(instance) * math.sqrt(horizon) > _MAX_SEARCH  # but for few kinds of requests
    long = horizon > _MAX_PRICES or (slow and lagrangian.kinds_of(instance, horizon) is None)
    if method == "closed-form" or (method == "auto" and (long or not has_room(horizon, _PRICE))):
        return simple
    if horizon > _MAX_PRICES:
        raise OptschedError(
            f"the Lagrangian bound would need a price for each of {horizon} steps (at most "
            f"{_MAX_PRICES}); use the closed form or longer steps"
        )
    require_room(horizon, _PRICE, "prices of steps", "use the closed form or longer steps")
    guesses = relaxation.last_starts(instance)
    try:
        prices = lagrangian.dual_prices(instance, weights, relaxation)
        certificate = lagrangian.certify(instance, prices, guesses, objective)
    except OptschedError:
        if method == "lagrangian":
            raise
        return simple
    free = lagrangian.certify(instance, np.zeros(0), guesses, objective)
    certificate = max(certificate, free, key=lambda candidate: candidate.value)
    value = round_down(certificate.value)
    seconds = stopwatch() - began
    proven = Bound(value, "lagrangian", seconds, certificate, premises=certificate.premises)
    # The certificate is preferred unless it loses more than what rounding the prices costs.
    weaker = value < simple.value - 1e-6 * abs(simple.value)
    return simple if method == "auto" and weaker else proven


_LONGER = 1.1  # horizon of the prices over the last completion
_TRIED = 40  # sizes of requests that are charged for growth


#: What an ascent may take where nothing is said.
MUCH = Budget(work=1e10)


def improve_prices(schedule: Schedule, certificate: Certificate, budget: Budget = MUCH) -> Bound:
    """Raise a certified bound by better prices, from its own or the backlog of a schedule."""
    began = stopwatch()
    ascent = _Ascent(schedule, certificate)
    interrupted = ascent.climb(budget.work / ascent.round_work, budget)
    found = lagrangian.certify(schedule.instance, ascent.best_prices, ascent.guesses, *ascent.asked)
    found = max(found, certificate, key=lambda candidate: candidate.value)
    seconds = stopwatch() - began
    value, premises = round_down(found.value), found.premises
    return Bound(value, "lagrangian", seconds, found, interrupted, premises)


_LEVELS = 12  # of a price that is the same at all steps


def bound_late(schedule: Schedule, work: float = 3e7) -> Bound:
    """Bound the late requests of all schedules by those late alone, or by prices from one."""
    began, instance = stopwatch(), schedule.instance
    assert instance.deadlines is not None
    objective: Literal["late-requests"] = "late-requests"
    weights, guesses = weights_of(instance, "weighted-latency"), instance.arrivals
    alone = guesses + instance.outputs > instance.deadlines
    least = exact_dot(weights, alone.astype(np.int64))
    premises = World(instance.fingerprint, preemption="resumed", objective=objective)
    simple = Bound(round_down(least), "closed-form", stopwatch() - began, premises=premises)
    try:
        begun = lagrangian.certify(instance, np.zeros(0), guesses, objective)
        proven = least >= schedule_cost(schedule, objective)
        if proven or round_work(schedule, begun) > _LEVELS * work:
            return simple
        # If all could run at any time, one price would do, at which the largest are late.
        level = np.arange(min(schedule.makespan, int(instance.deadlines.max()))) >= guesses[0]
        for area in np.quantile(instance.areas / weights, np.linspace(0, 1, _LEVELS)):
            tried = lagrangian.certify(instance, level / area, guesses, objective)
            begun = max(begun, tried, key=lambda candidate: candidate.value)
        found = improve_prices(schedule, begun, Budget(work=work))
    except OptschedError:  # weights or steps are too large for 64 bits
        return simple
    if found.interrupted:
        raise KeyboardInterrupt
    assert found.prices is not None
    unit = cost_unit(instance, objective)  # of which what is late is a whole multiple
    whole = math.ceil(found.prices.value / unit) * unit
    if whole < least:
        return simple
    return replace(found, value=round_down(whole), seconds=stopwatch() - began)


def round_work(schedule: Schedule, certificate: Certificate) -> float:
    """Return the work of a round of the ascent."""
    return work_of_round(_horizon(schedule, certificate), len(schedule.instance))


def _horizon(schedule: Schedule, certificate: Certificate | SawtoothCertificate) -> int:
    """Return the number of steps that get a price."""
    return max(int(_LONGER * schedule.makespan), len(certificate.prices)) + 1


class _Ascent(PolyakAscent):
    def __init__(self, schedule: Schedule, certificate: Certificate) -> None:
        instance = schedule.instance
        self._instance = instance
        self.asked = certificate.objective, certificate.lateness, certificate.penalty
        self._costs = StartCosts.of(instance, *self.asked)
        horizon = _horizon(schedule, certificate)
        given = np.zeros(horizon)
        given[: len(certificate.prices)] = np.array(certificate.prices) / certificate.denominator
        # A token of the backlog delays every request that waits by 1 / M steps.
        waiting = np.zeros(horizon + 1)
        np.add.at(waiting, instance.arrivals, self._costs.weights)
        np.add.at(waiting, schedule.starts, -self._costs.weights)
        backlog = np.maximum(np.cumsum(waiting)[:horizon], 0.0) / instance.memory
        self.guesses = schedule.starts
        self._begin((given, backlog))
        since = float(self._costs.weights @ (instance.outputs - instance.arrivals))
        self._aim(self._costs.total(schedule.starts) + since - self.best)
        self.round_work = round_work(schedule, certificate)

    def _evaluate(self, prices: FloatArray) -> tuple[float, FloatArray]:
        instance = self._instance
        unit = lagrangian.common_denominator(instance, prices, self._costs.steepest)
        integers = np.rint(prices * unit).astype(np.int64)
        scaled = self._costs.scaled(unit)
        self.guesses, costs = lagrangian.cheapest_starts(instance, integers, scaled, self.guesses)
        value = float(costs.sum() - instance.memory * integers.sum()) / unit
        return value, lagrangian.slope_at(instance, self.guesses, prices)


_SIZE, _REACH = 0.18, 0.8  # of the memory, and of the steps between completions, to begin with
_CHANGE = 1.2  # by a power of which both are varied while that gains
_MOVES = ((2, 0), (0, 2), (-2, 0), (0, -2), (1, 0), (0, 1), (-1, 0), (0, -1))
_LARGEST = 8  # such powers
_LONGEST = 800  # steps that are charged for; a credit takes as long
_AROUND = 10  # completions before and after a step over which those steps are averaged
_MOST = 40  # points that are tried
_ROUNDS = 4.0  # of an ascent on prices that take as long as a point
_SCALE = 8.0  # by which charges are multiplied in an ascent
_AHEAD = 0.3  # of the usual target, as its prices have been raised before


def find_sawtooth(instance: Instance, workers: Workers, objective: lagrangian.Objective) -> Bound:
    """Bound the cost of every schedule by prices and charges from scratch."""
    if objective == "makespan":
        return makespan_by_growth(instance, workers)
    first = find_bound(workers.pool(instance), "lagrangian", objective)
    assert first.prices is not None
    found = sawtooth_bound(instance, first.prices, workers)
    return replace(found, seconds=first.seconds + found.seconds)


def busy_since(instance: Instance) -> int:
    """Return the arrival from which on the memory-time that arrives needs the last step."""
    areas = np.cumsum(instance.areas[::-1])[::-1] / instance.memory
    return int(instance.arrivals[np.argmax(instance.arrivals + areas)])


def longest(instance: Instance) -> int:
    """Return the step by which the last request would complete if each ran alone."""
    return int((instance.arrivals + instance.outputs).max())


def makespan_by_growth(instance: Instance, workers: Workers) -> Bound:
    """Bound the makespan by memory-time and what requests keep free to grow (docs/bounds.md)."""
    began = stopwatch()
    pool, largest = workers.pool(instance), max(workers.memories)
    since = busy_since(pool)
    later = pool.take(np.flatnonzero(pool.arrivals >= since))
    prompts, outputs, peaks = later.prompts, later.outputs, later.peaks
    area, best = int(later.areas.sum()), (-1.0, 1, 0, 0)
    for size in np.unique(np.geomspace(1, peaks.max(), _TRIED).astype(np.int64)).tolist():
        before = np.clip(size - prompts, 0, outputs)  # steps with fewer tokens than the size
        held = int((before * prompts + before * (before + 1) // 2).sum())
        held += size * int((outputs - before).sum())
        height = held // (len(later) * largest)
        gained = height * held - len(later) * largest * height * (height + 1) // 2
        if (size + 2 * height) * area < MAX_SUM:
            best = max(best, (gained / size, size, height, held))
    _, size, height, held = best

    def total(height: int) -> int:
        # What completes soon pays no less than nothing.
        credit = 0
        for left in range(height):
            last = peaks[outputs > left] - left
            paid = size * last + height * np.minimum(size, last)
            credit += int(np.minimum(paid, largest * (height - left)).sum())
        return size * area + height * held - credit

    paid = total(height)
    while (more := total(height + 1)) > paid:
        height, paid = height + 1, more
    steps = Fraction(paid, size * workers.total)
    return bound_makespan("sawtooth", instance, workers, since, steps, began, (), (size, height))


def bound_makespan(
    method: str,
    instance: Instance,
    workers: Workers,
    since: int,
    steps: Fraction,
    began: float,
    sizes: tuple[int, ...],
    growth: tuple[int, ...] = (),
) -> Bound:
    """Return the bound by sizes, of items or of growth, that prove so many steps after one."""
    alone = workers.pool(instance).fingerprint
    fingerprint = alone if len(workers) == 1 else workers.fingerprint(instance)
    value = Fraction(max(since + math.ceil(steps), longest(instance)))
    certificate = MakespanCertificate(since, sizes, fingerprint, value, growth)
    premises, seconds = certificate.premises, stopwatch() - began
    return Bound(
        round_down(value), method, seconds, certificate, premises=premises, workers=workers
    )


def sawtooth_bound(
    instance: Instance,
    certificate: Certificate,
    workers: Workers,
    work: float = 2e9,
    stop: threading.Event | None = None,
) -> Bound:
    """Charge for growth beside certified prices of all memory, where the relaxation completes."""
    began = stopwatch()
    objective = certificate.objective
    prices = np.array(certificate.prices) / certificate.denominator
    pool, largest = workers.pool(instance), max(workers.memories)
    weights = weights_of(instance, objective)
    starts = lagrangian.relax(pool, weights).last_starts(pool)
    steps = _steps_between(starts + instance.outputs, len(prices)) * (workers.total / largest)

    def charged(size: int, reach: int) -> tuple[FloatArray, int]:
        tokens = max(1, int(_SIZE * _CHANGE**size * largest))
        return prices * np.minimum(_REACH * _CHANGE**reach * steps, _LONGEST) / tokens, tokens

    def proven(charges: FloatArray, tokens: int) -> Fraction:
        # Numbers in a certificate take much memory: the best point alone gets one.
        found = _evaluated(instance, workers, prices, charges, tokens, starts, weights)
        return Fraction(found.total, found.unit)

    point, best, seen = (0, 0), proven(*charged(0, 0)), {(0, 0)}
    trials, moves = min(_MOST, work / work_of_point(instance, certificate)), deque(_MOVES)
    while moves and len(seen) < trials and not (stop is not None and stop.is_set()):
        size, reach = moves.popleft()
        tried = point[0] + size, point[1] + reach
        if tried in seen or max(map(abs, tried)) > _LARGEST:
            continue
        seen.add(tried)
        if (found := proven(*charged(*tried))) > best:
            point, best, moves = tried, found, deque([(size, reach), *_MOVES])
    # Charges may cost more than they prove.
    at_best = (0 * prices, 1) if best < certificate.value else charged(*point)
    shown = certify_charges(instance, workers, prices, *at_best, starts, objective)
    return _bound(shown, workers, began)


def _steps_between(completions: IntArray, horizon: int) -> FloatArray:
    """Return the steps from one completion to the next around steps 1 to horizon."""
    ends, last = np.sort(completions), len(completions) - 1
    at = np.searchsorted(ends, np.arange(1, horizon + 1))
    before, after = np.maximum(at - _AROUND, 0), np.minimum(at + _AROUND, last)
    steps: FloatArray = (ends[after] - ends[before]) / np.maximum(after - before, 1)
    return steps


def _bound(certificate: SawtoothCertificate, workers: Workers, began: float) -> Bound:
    value, seconds = round_down(certificate.value), stopwatch() - began
    premises = replace(certificate.premises, workers=len(workers))
    several = workers if len(workers) > 1 else None
    return Bound(value, "sawtooth", seconds, certificate, premises=premises, workers=several)


def work_of_point(instance: Instance, certificate: Certificate) -> float:
    """Return the work of evaluating the bound once."""
    return _ROUNDS * work_of_round(len(certificate.prices), len(instance))


def certify_charges(
    instance: Instance,
    workers: Workers,
    prices: FloatArray,
    charges: FloatArray,
    size: int,
    guesses: IntArray,
    objective: str = "total-latency",
) -> SawtoothCertificate:
    """Round prices and charges to integers and evaluate the bound at them exactly."""
    weights = weights_of(instance, objective)
    found = _evaluated(instance, workers, prices, charges, size, guesses, weights)
    several = len(workers) > 1
    alone = workers.pool(instance)
    fingerprint = workers.fingerprint(instance) if several else alone.fingerprint
    numbers = tuple(found.paid.tolist()), tuple(found.counted.tolist())
    value = Fraction(found.total, found.unit)
    return SawtoothCertificate(found.unit, size, *numbers, fingerprint, value, objective)


class _Evaluation(NamedTuple):
    unit: int  # the denominator
    paid: IntArray
    counted: IntArray
    starts: IntArray
    total: int


def _evaluated(
    instance: Instance,
    workers: Workers,
    prices: FloatArray,
    charges: FloatArray,
    size: int,
    guesses: IntArray,
    weights: FloatArray,
) -> _Evaluation:
    """Round prices and charges to integers, and find the cheapest starts and the bound at them."""
    pool = workers.pool(instance)
    unit = lagrangian.common_denominator(pool, prices + charges, weights)
    while True:
        paid = np.rint(prices * unit).astype(np.int64)
        # No charge reaches farther than there are prices, nor so far that credits take long.
        most = paid * min(len(paid), _LONGEST) // size
        counted = np.minimum(np.floor(charges * unit).astype(np.int64), most)
        credited = _credits(paid, counted, size, max(workers.memories))
        if int(credited.max()) < MAX_SUM // (4 * len(instance)):
            break
        unit //= 2
    scaled = np.floor(weights * unit).astype(np.int64)
    sums = _sums_of(paid, counted, credited)
    starts, costs = _cheapest_starts(instance, scaled, guesses, size, sums)
    total = int(costs.sum()) - pool.memory * int(paid.sum())
    return _Evaluation(unit, paid, counted, starts, total)


def improve_charges(
    schedule: Schedule,
    certificate: SawtoothCertificate,
    budget: Budget = MUCH,
) -> Bound:
    """Raise a certified bound by better prices and charges, with a schedule for the target."""
    began = stopwatch()
    ascent = _SawtoothAscent(schedule, certificate)
    rounds = budget.work / (_ROUNDS * work_of_round(ascent.horizon, len(schedule.instance)))
    interrupted = ascent.climb(rounds, budget)
    found = max(ascent.certificate(), certificate, key=lambda each: each.value)
    bound = _bound(found, schedule.workers, began)
    return replace(bound, interrupted=interrupted)


class _SawtoothAscent(PolyakAscent):
    """A point has the prices and then the charges, in a unit in which both are as steep."""

    def __init__(self, schedule: Schedule, certificate: SawtoothCertificate) -> None:
        self._instance, self._workers = schedule.instance, schedule.workers
        self._size, self._objective = certificate.size, certificate.objective
        self._weights = weights_of(self._instance, certificate.objective)
        self.horizon = _horizon(schedule, certificate)
        point = np.zeros((2, self.horizon))
        point[:, : len(certificate.prices)] = certificate.prices, certificate.charges
        point[1] *= _SCALE
        self._guesses = schedule.starts
        self._begin([(point / certificate.denominator).reshape(-1)])
        self._aim(_AHEAD * (float(self._weights @ schedule.latencies) - self.best))

    def certificate(self) -> SawtoothCertificate:
        """Return the best that was met."""
        prices, charges = self.best_prices.reshape(2, -1)
        numbers = prices, charges / _SCALE, self._size, self._guesses
        return certify_charges(self._instance, self._workers, *numbers, self._objective)

    def _evaluate(self, point: FloatArray) -> tuple[float, FloatArray]:
        instance, size, largest = self._instance, self._size, max(self._workers.memories)
        prices, charges = point.reshape(2, -1)
        given = prices, charges / _SCALE, size, self._guesses, self._weights
        found = _evaluated(instance, self._workers, *given)
        self._guesses = found.starts
        prompts, outputs, starts = instance.prompts, instance.outputs, found.starts
        slope = np.empty((2, self.horizon))
        owed, most = size * charges / _SCALE, _LONGEST * prices
        longest = np.where(owed > 0, float(_LONGEST), 0.0)
        reach = np.divide(owed, prices, out=longest, where=owed < most)
        count, distance = completions_within(starts + outputs, reach)
        held = lagrangian.held_by(prompts, outputs, starts, self.horizon)
        slope[0] = held - self._workers.total + largest / size * distance
        slope[1] = charged_by(prompts, outputs, starts, size, self.horizon) - largest * count
        slope[1] /= _SCALE
        slope[(point.reshape(2, -1) <= 0) & (slope < 0)] = 0.0  # neither can fall below zero
        return found.total / found.unit, slope.reshape(-1)


def charged_by(
    prompts: IntArray, outputs: IntArray, starts: IntArray, size: int, horizon: int
) -> IntArray:
    """Count the tokens that are charged for at steps 1 to horizon."""
    # A request has `size` tokens once it has made so many.
    full, steps = np.clip(size - prompts, 0, outputs), np.arange(1, horizon + 1)
    later = np.searchsorted(np.sort(starts + full), steps)
    later -= np.searchsorted(np.sort(starts + outputs), steps)
    counted: IntArray = lagrangian.held_by(prompts, full, starts, horizon) + size * later
    return counted


def completions_within(completions: IntArray, reach: FloatArray) -> tuple[IntArray, FloatArray]:
    """Count the completions from steps 1, 2, ... on as far as each reaches, and add up how far."""
    ends, steps = np.sort(completions), np.arange(1, len(reach) + 1)
    sums = np.concatenate([[0.0], np.cumsum(ends, dtype=np.float64)])
    first, last = np.searchsorted(ends, steps), np.searchsorted(ends, steps + reach, side="right")
    return last - first, sums[last] - sums[first] - steps * (last - first)


def regrets_of(schedule: Schedule, certificate: SawtoothCertificate) -> IntArray:
    """Return what each start costs beyond the cheapest, in units of one over the denominator."""
    instance, size = schedule.instance, certificate.size
    paid, counted = np.array([certificate.prices, certificate.charges], dtype=np.int64)
    sums = _sums_of(paid, counted, _credits(paid, counted, size, max(schedule.workers.memories)))
    weights = weights_of(instance, certificate.objective)
    scaled = np.floor(weights * certificate.denominator).astype(np.int64)
    _, least = _cheapest_starts(instance, scaled, schedule.starts, size, sums)
    requests = instance.prompts, instance.outputs, instance.arrivals, scaled, schedule.starts
    regrets: IntArray = _costs_of(size, sums, *requests) - least
    return regrets


def _sums_of(paid: IntArray, counted: IntArray, credited: IntArray) -> IntArray:
    """Return sums of prices and charges, and credits, for costs of starts and of blocks of them."""
    later = np.zeros(len(credited) - 1 - len(paid), dtype=np.int64)  # steps that are free
    sums = np.empty((3, 5, len(credited)), dtype=np.int64)
    for row, values in ((0, paid), (2, counted)):
        each = np.append(values, later)
        for level, prices in enumerate((each, *lagrangian.least_ahead(each))):
            sums[level, row : row + 2] = PriceSums.of(prices)
    sums[0, 4] = credited
    for level, least in enumerate(lagrangian.least_ahead(-credited), 1):
        np.negative(least, out=sums[level, 4])  # the most that is credited
    return sums


def _cheapest_starts(
    instance: Instance, weights: IntArray, guesses: IntArray, size: int, sums: IntArray
) -> tuple[IntArray, IntArray]:
    starts, costs = np.array([guesses, guesses])
    given = instance.prompts, instance.outputs, instance.arrivals, weights, starts, costs
    for part in pieces(len(instance), lagrangian.PIECE):
        _find_cheapest(size, sums, *(each[part] for each in given))
    return starts, costs


@allocating
def _credits(prices: IntArray, charges: IntArray, size: int, memory: int) -> IntArray:
    """Return what completing at steps 0, 1, 2, ... is credited, rounded up; zero at the end."""
    horizon = len(prices)
    credited = np.zeros(2 * horizon + 2, dtype=np.int64)
    last = horizon
    for step in range(horizon):
        left, at = size * charges[step], step + 1
        while left > 0:
            credited[at] += left
            left -= prices[step]
            at += 1
        last = max(last, at)
    for at in range(last):
        # The product may exceed 64 bits.
        whole, rest = divmod(credited[at], size)
        credited[at] = memory * whole - (-memory * rest) // size
    return credited[: last + 1]


@compiled_inside
def _cost(prompt: int, output: int, weight: int, start: int, size: int, sums: IntArray) -> int:
    """Return the cost of a start, but for the weight of the arrival."""
    total, moment, charged, charged_moment, credited = sums[0], sums[1], sums[2], sums[3], sums[4]
    end, last = start + output, len(total) - 1
    full = start + min(max(size - prompt, 0), output)  # from here on it has `size` tokens
    cost: int = weight * end + price_of_start(prompt, output, start, total, moment)
    cost += price_of_start(prompt, full - start, start, charged, charged_moment)
    end = min(end, last)
    cost += size * (charged[end] - charged[min(full, last)]) - credited[end]
    return cost


@allocating
def _costs_of(
    size: int,
    sums: IntArray,
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    weights: IntArray,
    starts: IntArray,
) -> IntArray:
    exact, costs = sums[0], np.empty(len(prompts), dtype=np.int64)
    for request in range(len(prompts)):
        weight, start = weights[request], starts[request]
        cost = _cost(prompts[request], outputs[request], weight, start, size, exact)
        costs[request] = cost - weight * arrivals[request]
    return costs


@compiled
def _find_cheapest(
    size: int,
    sums: IntArray,
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    weights: IntArray,
    starts: IntArray,
    costs: IntArray,
) -> None:
    """Search from guesses for the cheapest starts, as `lagrangian` does at prices alone."""
    exact, near_sums, far_sums = sums[0], sums[1], sums[2]
    horizon = exact.shape[1] - 1
    most = 0
    for block in range(0, horizon + 1, lagrangian.FAR):
        most = max(most, far_sums[4, block])
    for request in range(len(prompts)):
        prompt, output, arrival = prompts[request], outputs[request], arrivals[request]
        weight = weights[request]
        # From the horizon on nothing is paid and credits fall, so that no later start is cheaper.
        cheapest = latest = max(arrival, horizon)
        best = _cost(prompt, output, weight, latest, size, exact)
        guess = min(max(starts[request], arrival), latest)
        cost = _cost(prompt, output, weight, guess, size, exact)
        if cost < best:
            cheapest, best = guess, cost
        for far in range(arrival, horizon, lagrangian.FAR):
            if weight * (far + output) - most >= best:
                break  # later starts cost even more
            if _cost(prompt, output, weight, far, size, far_sums) >= best:
                continue
            far_end = min(far + lagrangian.FAR, horizon)
            for near in range(far, far_end, lagrangian.NEAR):
                if _cost(prompt, output, weight, near, size, near_sums) >= best:
                    continue
                for start in range(near, min(near + lagrangian.NEAR, far_end)):
                    cost = _cost(prompt, output, weight, start, size, exact)
                    if cost < best:
                        cheapest, best = start, cost
        starts[request], costs[request] = cheapest, best - weight * arrival
