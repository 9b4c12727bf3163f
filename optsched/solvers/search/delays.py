r"""Schedules that let large requests wait although they would fit, for arrivals.

A policy that serves whatever fits starts a large request when it is alone, and holds up the many
small ones that arrive soon after. In hindsight it should have waited. At what prices of memory say
(`certificates.prices`), a request is cheapest to start at some step :math:`k_i`. So the requests
of the largest areas are released only at :math:`a_i + \lambda (k_i - a_i)` and the rest as they
arrive, for a few shares :math:`\lambda` and of requests; `area` then serves them. After that single
releases are annealed, most often those of requests whose starts cost most beyond the cheapest ones.
A change is decoded only from the step that it affects until the known schedule is met again.

Where a few of the largest requests go decides most, and one anneal rarely changes it once it has
cooled. So there are some short ones, and a longer one goes on from the best of them.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from optsched.admission import admit_by_priority
from optsched.instance import Instance
from optsched.schedule import Schedule
from optsched.solvers.bounds.lagrangian import PricedStarts
from optsched.solvers.search.annealing import MAX_STEPS, STRIDE, Budget, Cooling
from optsched.solvers.search.delays_kernels import Releases, anneal_releases
from optsched.solvers.search.shared_kernels import Requests, new_random

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.certificates.prices import Certificate

_SHARES = (0.25, 0.5, 0.75, 1.0, 1.25)  # of the way from arrival to cheapest start
_LARGEST = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)  # quantiles of areas from which requests wait
_TRIALS = 50  # until regrets are computed again
_HOT, _COLD = 2.4, 0.08  # temperatures in mean outputs
_SHORT, _SHORT_SHARE = 10, 0.05  # short anneals, and the share of the work of each


def delay_large(
    instance: Instance,
    weights: FloatArray,
    certificate: Certificate,
    *,
    work: float,
    seed: int = 0,
    deadline: float = math.inf,
    on_progress: Callable[[float], None] | None = None,
    stop: threading.Event | None = None,
) -> Schedule:
    """Find delays of large requests with which `area` does best; deadlines are not respected."""
    priced = PricedStarts(instance, certificate)
    rank = np.argsort(np.argsort(instance.areas / weights, kind="stable"))
    ahead = np.maximum(priced.cheapest - instance.arrivals, 0)
    guesses = [instance.arrivals]
    for quantile in _LARGEST:
        large = instance.areas >= np.quantile(instance.areas, quantile)
        guesses += [
            instance.arrivals + np.where(large, share * ahead, 0).astype(np.int64)
            for share in _SHARES
        ]
    found = [(serve(instance, rank, releases), releases) for releases in guesses]
    starts, releases = min(found, key=lambda pair: weights @ pair[0])
    first = Schedule(instance, starts, "delayed")
    if first.makespan + int(instance.outputs.sum()) > MAX_STEPS or instance.memory >= 2**31:
        return first
    now = time.perf_counter()

    def anneal(begin: Anneal, number: int, share: float, until: float) -> Anneal:
        run = Anneal(instance, weights, priced, rank, begin.best_releases, begin.best)
        end = now + (deadline - now) * until
        run.follow(share * work, seed + STRIDE * number, end, on_progress, stop)
        return run

    begin = Anneal(instance, weights, priced, rank, releases, starts)
    short = [
        anneal(begin, number, _SHORT_SHARE, (number + 1) * _SHORT_SHARE) for number in range(_SHORT)
    ]
    best = min(short, key=lambda run: run.cost)
    best = anneal(best, _SHORT, 1 - _SHORT * _SHORT_SHARE, 1.0)
    return Schedule(instance, best.best, "delayed")


def serve(instance: Instance, key: IntArray, releases: IntArray) -> IntArray:
    """Return the starts by the prefix rule, least key first, none before its release."""
    order = np.argsort(releases, kind="stable")
    released = Instance(
        instance.prompts[order], instance.outputs[order], instance.memory, releases[order]
    )
    starts = np.empty_like(order)
    starts[order] = admit_by_priority(released, np.argsort(key[order], kind="stable"))
    return starts


class Anneal:
    """Releases, what serving by rank makes of them, and the best met."""

    def __init__(
        self,
        instance: Instance,
        weights: FloatArray,
        priced: PricedStarts,
        rank: IntArray,
        releases: IntArray,
        starts: IntArray,
    ) -> None:
        self._instance, self._priced = instance, priced
        self._requests = Requests.of(instance, weights)
        self._horizon = int((starts + instance.outputs).max())
        # Memory is never empty while a request waits, so nothing lasts longer than this.
        length = self._horizon + int(instance.outputs.sum()) + 2
        self._state = Releases(
            rank=rank,
            by_rank=np.argsort(rank),
            releases=releases.copy(),
            by_release=np.argsort(releases, kind="stable"),
            starts=starts.copy(),
            order=np.argsort(starts, kind="stable"),
            heads=releases.copy(),
            usage=np.zeros(length, dtype=np.int32),
            best=starts.copy(),
            best_releases=releases.copy(),
            costs=np.array([weights @ starts, weights @ starts], dtype=np.float64),
        )
        self._scale = float(np.mean(weights)) * float(np.mean(instance.outputs))
        self._offset = float(weights @ (instance.outputs - instance.arrivals))
        self.releases, self.starts = self._state.releases, self._state.starts
        self.best_releases, self.best = self._state.best_releases, self._state.best

    @property
    def cost(self) -> float:
        """Weighted starts of the best schedule."""
        return float(self._state.costs[1])

    def follow(
        self,
        work: float,
        seed: int,
        deadline: float = math.inf,
        on_progress: Callable[[float], None] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Anneal until the work is done, the time is up or the token is set."""
        state, everything = self._state, np.arange(len(self._instance))
        # Those of equal keys are in the order of a fresh start, whatever was annealed before.
        state.by_release[:] = np.argsort(state.releases, kind="stable")
        state.order[:] = np.argsort(state.starts, kind="stable")
        random, cooling = new_random(seed), Cooling(self._scale, _HOT, _COLD)
        budget = Budget(work, deadline - time.perf_counter())
        while budget.goes_on() and not (stop is not None and stop.is_set()):
            if on_progress is not None:
                on_progress(self.cost + self._offset)
            regrets = self._priced.regrets(everything, state.starts)
            budget.done += anneal_releases(
                self._requests,
                state,
                self._priced.cheapest,
                np.cumsum(regrets.astype(np.float64) + 1.0),
                self._horizon,
                random,
                _TRIALS,
                budget.leg(cooling).hot,
            )
