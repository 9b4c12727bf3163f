r"""Better prices of memory by projected subgradient ascent on the Lagrangian.

Steps have Polyak's length towards a target a little above the best value met (Polyak, 1969); the
target comes closer after rounds without a gain. The work is counted in the unit of the searches.
Only the integers in the end are a certificate, so nothing here has to be exact.

Offline the prices of the relaxation are nearly the best there are. With arrivals they are not: the
relaxation interrupts requests when smaller ones arrive (docs/research.md has figures).
"""

from __future__ import annotations

import time
from itertools import count, takewhile
from typing import TYPE_CHECKING

import numpy as np

from optsched.solvers.bounds.bound import Bound, round_down
from optsched.solvers.bounds.lagrangian import (
    certify,
    cheapest_starts,
    common_denominator,
    slope_at,
    weights_of,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray
    from optsched.certificates.prices import Certificate
    from optsched.schedule import Schedule

_PATIENCE = 20  # rounds without a gain until the target comes closer
_CLOSER = 0.5
_FIRST_TARGET = 0.1  # of the distance to the schedule
_TINY = 1e-6  # distance of the target, relative to the bound, at which prices have converged
_STEP_WORK, _REQUEST_WORK = 60.0, 1200.0  # of a round, for each step and each request
_LONGER = 1.1  # horizon of the prices over the last completion


def improve_prices(
    schedule: Schedule,
    certificate: Certificate,
    *,
    work: float = 1e10,
    deadline: float = float("inf"),
    on_progress: Callable[[float], None] | None = None,
    stop: threading.Event | None = None,
) -> Bound:
    """Raise a certified bound by better prices, from its own or the backlog of a schedule."""
    began = time.perf_counter()
    ascent = _Ascent(schedule, certificate)
    interrupted = False
    try:
        for done in takewhile(lambda done: done <= work / ascent.round_work, count()):
            if ascent.converged or time.perf_counter() >= deadline:
                break
            ascent.step()
            if on_progress is not None and done % 16 == 0:
                on_progress(ascent.best)
            if stop is not None and stop.is_set():
                break
    except KeyboardInterrupt:
        interrupted = True
    found = certify(schedule.instance, ascent.best_prices, ascent.guesses, certificate.objective)
    found = max(found, certificate, key=lambda candidate: candidate.value)
    seconds = time.perf_counter() - began
    value, premises = round_down(found.value), found.premises
    return Bound(value, "lagrangian", seconds, found, interrupted, premises)


def round_work(schedule: Schedule, certificate: Certificate) -> float:
    """Return the work of a round of the ascent."""
    requests = _REQUEST_WORK * len(schedule.instance)
    return _STEP_WORK * _horizon(schedule, certificate) + requests


def _horizon(schedule: Schedule, certificate: Certificate) -> int:
    """Return the number of steps that get a price."""
    return max(int(_LONGER * schedule.makespan), len(certificate.prices)) + 1


class _Ascent:
    """Where the ascent is, and the best prices met."""

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
        self.best = -np.inf
        self.best_prices = given
        for prices in (given, backlog):
            value, slope = self._evaluate(prices)
            if value > self.best:
                self.best, self.best_prices, self._best_slope = value, prices, slope
        cost = float(self._weights @ schedule.latencies)
        self._ahead = _FIRST_TARGET * max(cost - self.best, 0.0)
        self._prices, self._slope, self._value = self.best_prices, self._best_slope, self.best
        self._idle = 0
        self.round_work = round_work(schedule, certificate)

    @property
    def converged(self) -> bool:
        return self._ahead <= _TINY * abs(self.best) or not self._best_slope.any()

    def step(self) -> None:
        """Move once, and remember the best prices."""
        length = (self.best + self._ahead - self._value) / float(self._slope @ self._slope)
        self._prices = np.maximum(self._prices + length * self._slope, 0.0)
        self._value, self._slope = self._evaluate(self._prices)
        if self._value > self.best:
            gained = self._value - self.best
            self.best, self.best_prices = self._value, self._prices
            self._best_slope = self._slope
            self._idle = 0 if gained > 0.01 * self._ahead else self._idle + 1
        else:
            self._idle += 1
        if self._idle >= _PATIENCE or not self._slope.any():
            self._idle = 0
            self._ahead *= _CLOSER
            self._prices, self._value = self.best_prices, self.best
            self._slope = self._best_slope

    def _evaluate(self, prices: FloatArray) -> tuple[float, FloatArray]:
        """Return the Lagrangian, and its slope where prices can follow it."""
        instance = self._instance
        unit = common_denominator(instance, prices, self._weights)
        integers = np.rint(prices * unit).astype(np.int64)
        scaled = np.floor(self._weights * unit).astype(np.int64)
        self.guesses, costs = cheapest_starts(instance, integers, scaled, self.guesses)
        value = float(costs.sum() - instance.memory * integers.sum()) / unit
        return value, slope_at(instance, self.guesses, prices)
