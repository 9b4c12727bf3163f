"""Ascent on prices, and the bound on one worker that it raises.

A step leads towards a target a little above the best value met, along the slopes so far, of which
old ones count less (Crowder, 1976); the target comes closer after rounds without a gain. Work is
counted in the unit of the searches.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import count, takewhile
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from optsched._internal.arrays import has_room, require_room
from optsched._internal.aside import Budget, stopwatch
from optsched._internal.numbers import round_down
from optsched.bounds.lagrangian import (
    Objective,
    certify,
    cheapest_starts,
    closed_form,
    common_denominator,
    dual_prices,
    kinds_of,
    relax,
    slope_at,
    weights_of,
)
from optsched.certificates.prices import Certificate
from optsched.errors import OptschedError
from optsched.problem.premises import NOWHERE, World

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched._internal.arrays import FloatArray
    from optsched.certificates.configurations import MakespanCertificate
    from optsched.certificates.prices import SawtoothCertificate
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
        self._return()

    @property
    def converged(self) -> bool:
        """Whether better prices would hardly be worth more."""
        return self._ahead <= _TINY * abs(self.best) or not self._best_slope.any()

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


BoundMethod = Literal["auto", "closed-form", "lagrangian", "sawtooth", "stalls"]
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
        How it was found: "closed-form", "lagrangian", "sawtooth" or "sizes"; on several workers
        "pool", which is "lagrangian" for the memory of all, or "nested", with prices of parts.
    seconds
        Time it took.
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
    certificate: Certificate | SawtoothCertificate | MakespanCertificate | None = None
    interrupted: bool = False
    premises: World = NOWHERE
    workers: Workers | None = None

    @property
    def prices(self) -> Certificate | None:
        """The certificate, if it proves the bound by prices of memory alone."""
        return self.certificate if isinstance(self.certificate, Certificate) else None


def find_bound(instance: Instance, method: BoundMethod, objective: Objective) -> Bound:
    """Bound the cost of every schedule of one worker in steps."""
    began = stopwatch()
    # An interrupted request has its token-steps early at best where it runs through (docs).
    premises = World(instance.fingerprint, preemption="resumed", objective=objective)
    weights = weights_of(instance, objective)
    relaxation = relax(instance, weights)
    horizon = relaxation.horizon(instance.memory)
    if objective == "makespan":
        if method == "lagrangian":
            raise OptschedError("the makespan has no Lagrangian bound; use the closed form")
        last = max(horizon, int((instance.arrivals + instance.outputs).max()))
        return Bound(float(last), "closed-form", stopwatch() - began, premises=premises)
    value = closed_form(instance, weights, relaxation)
    simple = Bound(value, "closed-form", stopwatch() - began, premises=premises)
    slow = len(instance) * math.sqrt(horizon) > _MAX_SEARCH  # but for few kinds of requests
    long = horizon > _MAX_PRICES or (slow and kinds_of(instance, horizon) is None)
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
        prices = dual_prices(instance, weights, relaxation)
        certificate = certify(instance, prices, guesses, objective)
    except OptschedError:
        if method == "lagrangian":
            raise
        return simple
    free = certify(instance, np.zeros(0), guesses, objective)
    certificate = max(certificate, free, key=lambda candidate: candidate.value)
    value = round_down(certificate.value)
    seconds = stopwatch() - began
    proven = Bound(value, "lagrangian", seconds, certificate, premises=certificate.premises)
    # The certificate is preferred unless it loses more than what rounding the prices costs.
    weaker = value < simple.value - 1e-6 * abs(simple.value)
    return simple if method == "auto" and weaker else proven


_LONGER = 1.1  # horizon of the prices over the last completion


#: What an ascent may take where nothing is said.
MUCH = Budget(work=1e10)


def improve_prices(schedule: Schedule, certificate: Certificate, budget: Budget = MUCH) -> Bound:
    """Raise a certified bound by better prices, from its own or the backlog of a schedule."""
    began = stopwatch()
    ascent = _Ascent(schedule, certificate)
    interrupted = ascent.climb(budget.work / ascent.round_work, budget)
    found = certify(schedule.instance, ascent.best_prices, ascent.guesses, certificate.objective)
    found = max(found, certificate, key=lambda candidate: candidate.value)
    seconds = stopwatch() - began
    value, premises = round_down(found.value), found.premises
    return Bound(value, "lagrangian", seconds, found, interrupted, premises)


def round_work(schedule: Schedule, certificate: Certificate) -> float:
    """Return the work of a round of the ascent."""
    return work_of_round(_horizon(schedule, certificate), len(schedule.instance))


def _horizon(schedule: Schedule, certificate: Certificate) -> int:
    """Return the number of steps that get a price."""
    return max(int(_LONGER * schedule.makespan), len(certificate.prices)) + 1


class _Ascent(PolyakAscent):
    def __init__(self, schedule: Schedule, certificate: Certificate) -> None:
        instance = schedule.instance
        self._instance, self._weights = instance, weights_of(instance, certificate.objective)
        horizon = _horizon(schedule, certificate)
        given = np.zeros(horizon)
        given[: len(certificate.prices)] = np.array(certificate.prices) / certificate.denominator
        # A token of the backlog delays every request that waits by 1 / M steps.
        waiting = np.zeros(horizon + 1)
        np.add.at(waiting, instance.arrivals, self._weights)
        np.add.at(waiting, schedule.starts, -self._weights)
        backlog = np.maximum(np.cumsum(waiting)[:horizon], 0.0) / instance.memory
        self.guesses = schedule.starts
        self._begin((given, backlog))
        self._aim(float(self._weights @ schedule.latencies) - self.best)
        self.round_work = round_work(schedule, certificate)

    def _evaluate(self, prices: FloatArray) -> tuple[float, FloatArray]:
        instance = self._instance
        unit = common_denominator(instance, prices, self._weights)
        integers = np.rint(prices * unit).astype(np.int64)
        scaled = np.floor(self._weights * unit).astype(np.int64)
        self.guesses, costs = cheapest_starts(instance, integers, scaled, self.guesses)
        value = float(costs.sum() - instance.memory * integers.sum()) / unit
        return value, slope_at(instance, self.guesses, prices)
