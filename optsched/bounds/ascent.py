"""Better prices of memory by ascent on the Lagrangian."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.exact import round_down
from optsched._internal.loading import stopwatch
from optsched.bounds.lagrangian import (
    certify,
    cheapest_starts,
    common_denominator,
    slope_at,
    weights_of,
)
from optsched.bounds.one_worker import Bound
from optsched.bounds.polyak import PolyakAscent, work_of_round

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray
    from optsched.certificates.prices import Certificate
    from optsched.problem.schedule import Schedule

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
    began = stopwatch()
    ascent = _Ascent(schedule, certificate)
    interrupted = ascent.climb(work / ascent.round_work, deadline, on_progress, stop)
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
