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
from optsched.solvers.search.delays_kernels import anneal_releases

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.certificates.prices import Certificate

_SHARES = (0.25, 0.5, 0.75, 1.0, 1.25)  # of the way from arrival to cheapest start
_LARGEST = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)  # quantiles of areas from which requests wait
_RENEWED = 50  # trials until regrets are computed anew
_HOT, _COLD = 2.4, 0.08  # temperatures in mean outputs
_STRIDE = 1_000_003  # between the seeds of anneals
_SHORT, _SHORT_SHARE = 10, 0.05  # short anneals, and the share of the work of each
_LATE = 1.1  # the share of time spent over that of work done, beyond which an anneal is late
_LONGEST = 50_000_000  # steps of a dense usage profile


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
        How much to try, in the unit of `optsched.solvers.search.search`.
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
    if first.makespan + int(instance.outputs.sum()) > _LONGEST or instance.memory >= 2**31:
        return first
    now = time.perf_counter()

    def anneal(begin: Anneal, number: int, share: float, until: float) -> Anneal:
        run = Anneal(instance, weights, priced, rank, begin.best_releases, begin.best)
        end = now + (deadline - now) * until
        run.follow(share * work, seed + _STRIDE * number, end, on_progress)
        return run

    begin = Anneal(instance, weights, priced, rank, releases, starts)
    short = [
        anneal(begin, number, _SHORT_SHARE, (number + 1) * _SHORT_SHARE) for number in range(_SHORT)
    ]
    best = min(short, key=lambda run: run.cost)
    best = anneal(best, _SHORT, 1 - _SHORT * _SHORT_SHARE, 1.0)
    return Schedule(instance, best.best, "delayed")


def serve(instance: Instance, rank: IntArray, releases: IntArray) -> IntArray:
    """Serve by rank, none before its release."""
    order = np.argsort(releases, kind="stable")
    released = Instance(
        instance.prompts[order], instance.outputs[order], instance.memory, releases[order]
    )
    starts = np.empty_like(order)
    starts[order] = admit_by_priority(released, np.argsort(rank[order]))
    return starts


class Anneal:
    """Releases, what serving by rank makes of them, and the best met.

    Parameters
    ----------
    instance
        The requests.
    weights
        Cost of a step of latency of each request, shape (n,).
    priced
        What starts cost at prices of memory: which releases to change, and where to.
    rank
        The rank of each request, 0 the most urgent, shape (n,).
    releases, starts
        Releases and the schedule they lead to, shape (n,).
    """

    def __init__(
        self,
        instance: Instance,
        weights: FloatArray,
        priced: PricedStarts,
        rank: IntArray,
        releases: IntArray,
        starts: IntArray,
    ) -> None:
        self._instance, self._weights, self._priced, self._rank = instance, weights, priced, rank
        self.releases, self.starts = releases.copy(), starts.copy()
        self.best_releases, self.best = releases.copy(), starts.copy()
        self._costs = np.array([weights @ starts, weights @ starts], dtype=np.float64)
        self._heads = releases.copy()
        self._horizon = int((starts + instance.outputs).max())
        # Memory is never empty while somebody waits, so nothing lasts longer than this.
        length = self._horizon + int(instance.outputs.sum()) + 2
        self._usage = np.zeros(length, dtype=np.int32)

    @property
    def cost(self) -> float:
        """Weighted starts of the best schedule."""
        return float(self._costs[1])

    def follow(
        self,
        work: float,
        seed: int,
        deadline: float = math.inf,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        """Anneal until the work is done; work for which there is no time is left out."""
        instance = self._instance
        random = np.array([seed + 1], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        by_rank = np.argsort(self._rank)
        by_release = np.argsort(self.releases, kind="stable")
        order = np.argsort(self.starts, kind="stable")
        scale = float(np.mean(self._weights)) * float(np.mean(instance.outputs))
        offset = float(self._weights @ (instance.outputs - instance.arrivals))
        everyone = np.arange(len(instance))
        began = time.perf_counter()
        limit = max(deadline - began, 1e-9)
        done = 0.0
        while done < work and (spent := (time.perf_counter() - began) / limit) < 1:
            if spent > _LATE * done / work + 0.02:
                done = spent * work
            if on_progress is not None:
                on_progress(self.cost + offset)
            regrets = self._priced.regrets(everyone, self.starts)
            done += anneal_releases(
                instance.prompts,
                instance.outputs,
                instance.arrivals,
                self._weights,
                instance.memory,
                self._rank,
                by_rank,
                self._priced.cheapest,
                np.cumsum(regrets.astype(np.float64) + 1.0),
                self._horizon,
                self.releases,
                by_release,
                order,
                self.starts,
                self._heads,
                self._usage,
                self.best,
                self.best_releases,
                self._costs,
                random,
                _RENEWED,
                scale * _HOT * math.pow(_COLD / _HOT, done / work),
            )
