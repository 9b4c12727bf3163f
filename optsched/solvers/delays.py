r"""Schedules that let large requests wait although they would fit, for arrivals.

A policy that serves whatever fits starts a large request when it is alone, and holds up the many
small ones that arrive soon after. In hindsight it should have waited. At what prices of memory say
(`optsched.certificate`), a request is cheapest to start at some step :math:`k_i`. So the requests
of the largest areas are released only at :math:`a_i + \lambda (k_i - a_i)` and the rest as they
arrive, for a few shares :math:`\lambda` and of requests; `area` then serves them. After that single
releases are changed at random, most often those of requests whose starts cost most beyond the
cheapest ones, and changes are kept that cost nothing.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from optsched.instance import Instance
from optsched.schedule import Schedule
from optsched.simulate.unit import admit_by_priority
from optsched.solvers.lagrangian import PricedStarts

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.certificate import Certificate
    from optsched.instance import FloatArray, IntArray

_SHARES = (0.25, 0.5, 0.75, 1.0, 1.25)  # of the way from arrival to cheapest start
_LARGEST = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)  # quantiles of areas from which requests wait
_TRIAL, _TRIAL_REQUEST = 60_000.0, 150.0  # work of a trial, and for each request
_RENEWED = 50  # trials until regrets are computed anew


def delay_large(
    instance: Instance,
    weights: FloatArray,
    certificate: Certificate,
    *,
    work: float,
    seed: int = 0,
    deadline: float = math.inf,
    on_progress: Callable[[float], None] | None = None,
) -> Schedule:
    """Find delays of large requests with which `area` does best.

    Parameters
    ----------
    instance
        The requests. Deadlines are not respected.
    weights
        Cost of a step of latency of each request, shape (n,).
    certificate
        Prices of memory; the better the bound, the better the guesses.
    work
        How much to try, in the unit of `optsched.solvers.search`.
    seed
        Same seed and work: same schedule.
    deadline
        When to stop at the latest, on the clock of `time.perf_counter`.
    on_progress
        Called with the best cost after some trials.

    Returns
    -------
    Schedule
        Never worse than `area` over weight.

    Examples
    --------
    One request that runs for long before many that arrive just after it:

    >>> from optsched import Instance, bound, run
    >>> instance = Instance([9] + [20] * 8, [40] + [2] * 8, 50, arrivals=[0] + [1] * 8)
    >>> certificate = bound(instance, "lagrangian").certificate
    >>> run(instance, "area").total_latency
    112
    >>> delay_large(instance, np.ones(9), certificate, work=1e7).total_latency
    89
    """
    trials = _Trials(instance, weights)
    priced = PricedStarts(instance, certificate)
    cheapest = priced.cheapest
    areas = instance.areas
    trials.keep(instance.arrivals)
    ahead = np.maximum(cheapest - instance.arrivals, 0)
    for quantile in _LARGEST:
        large = areas >= np.quantile(areas, quantile)
        for share in _SHARES:
            trials.keep(instance.arrivals + np.where(large, share * ahead, 0).astype(np.int64))
    rng = np.random.default_rng(seed)
    everyone = np.arange(len(instance))
    longest = int(instance.outputs.max())
    regrets = np.zeros(0)
    for trial in range(int(work / (_TRIAL + _TRIAL_REQUEST * len(instance)))):
        if trial % _RENEWED == 0:
            if time.perf_counter() >= deadline:
                break
            if on_progress is not None:
                on_progress(trials.cost)
            regrets = np.cumsum(priced.regrets(everyone, trials.starts).astype(np.float64) + 1.0)
        one = int(np.searchsorted(regrets, rng.random() * regrets[-1], side="right"))
        arrival, kind = int(instance.arrivals[one]), rng.random()
        if kind < 0.3:
            release = int(cheapest[one])
        elif kind < 0.4:
            release = arrival
        elif kind < 0.7:
            release = arrival + int(rng.random() * 1.3 * max(int(ahead[one]), 1))
        else:
            release = int(trials.starts[one]) + int(rng.normal() * longest / 4)
        releases = trials.releases.copy()
        releases[one] = max(arrival, release)
        trials.keep(releases)
    return Schedule(instance, trials.starts, "delayed")


class _Trials:
    """The best releases met, and what `area` over weight makes of them."""

    def __init__(self, instance: Instance, weights: FloatArray) -> None:
        self._instance, self._weights = instance, weights
        self._rank = np.argsort(np.argsort(instance.areas / weights, kind="stable"))
        self.cost = math.inf
        self.releases = self.starts = instance.arrivals

    def keep(self, releases: IntArray) -> None:
        """Serve by area, none before its release, and keep what costs no more."""
        instance = self._instance
        order = np.argsort(releases, kind="stable")
        released = Instance(
            instance.prompts[order], instance.outputs[order], instance.memory, releases[order]
        )
        starts = np.empty_like(order)
        starts[order] = admit_by_priority(released, np.argsort(self._rank[order]))
        cost = float(self._weights @ (starts + instance.outputs - instance.arrivals))
        if cost <= self.cost:
            self.cost, self.releases, self.starts = cost, releases, starts
