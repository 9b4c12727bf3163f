r"""Search for better schedules: annealing on orders, then large-neighbourhood search on starts.

**Orders.** Decode an order with the prefix rule, or each request at its earliest feasible start
(backfill), and anneal on swaps and moves of single requests. By the prefix rule only a window is
decoded anew: it begins at the first changed position and ends where the old schedule is met again,
at most shifted in time, or where the cost is sure to be too high. Good where few requests fit
together, and with arrivals, where an order makes large requests wait (docs/research.md).

**Starts.** Take a few requests out that start near each other, and put them back in random order,
each at the earliest step that is feasible, not before the first of them had started, now and then
with a delay: an optimal schedule may need one that no order decodes to. Accept by Metropolis.
Where a fifth of the requests holds most of the memory, half of the moves are about those: near
each other, or one that waits pushes away what runs; small requests in the way are put back too.

Work is counted in token-steps touched, so a run depends on the seed and on the work allowed, not
on the clock, unless the machine is too slow for the work by the deadline: then some is left out.
"""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from optsched.errors import OptschedError
from optsched.schedule import Schedule
from optsched.solvers.search.search_kernels import anneal_orders, move_starts

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.instance import Instance


Kind = Literal["prefix", "backfill", "starts"]
Plan = tuple[tuple[Kind, float], ...]

#: Token-steps touched per second on a slow core: turns a time limit into work.
WORK_PER_SECOND = 4e8

_CHUNK = 2e7  # work between two looks at the clock
_FEW = 400  # up to so many requests orders are annealed, and starts delayed
_CROWDED = 3.0  # so few requests fit on average that packing them is what matters
_LARGE, _MOST_OF_IT = 0.8, 0.8  # the largest fifth are moved by themselves if they hold as much
_MOVES_OF_LARGE = 0.45
_HOT, _HOT_ARRIVALS = (0.15, 0.01), (0.3, 0.02)  # temperatures in mean outputs, first and last
_LATE = 1.1  # the share of time spent over that of work done, beyond which a search is late
_STRIDE = 1_000_003  # between the seeds of threads
_LONGEST = 50_000_000  # steps of a dense usage profile


@dataclass(frozen=True)
class Search:
    """What a search found, and how it got there.

    Attributes
    ----------
    schedule
        The best schedule.
    history
        (seconds, objective) after each chunk of work that improved it.
    interrupted
        Whether Ctrl-C ended it.
    """

    schedule: Schedule
    history: tuple[tuple[float, float], ...]
    interrupted: bool = False


def search(
    start: Schedule,
    weights: FloatArray,
    *,
    work: float,
    seed: int = 0,
    threads: int = 1,
    plan: str | None = None,
    deadline: float = math.inf,
    on_progress: Callable[[float], None] | None = None,
) -> Search:
    """Improve a feasible schedule; interrupted, it keeps the best.

    Parameters
    ----------
    start
        A feasible schedule.
    weights
        Cost of a step of latency of each request, shape (n,).
    work
        Token-steps to touch in each thread, about `WORK_PER_SECOND` per second.
    seed
        Same seed, work, threads and start: same schedule.
    threads
        Searches side by side, each with a seed of its own. The first does what suits the instance,
        the next ones what else there is.
    plan
        What all threads do, a name of `PLANS`; None chooses by the instance.
    deadline
        When to stop at the latest, on the clock of `time.perf_counter`. Work for which there is
        no time is left out.
    on_progress
        Called with the best objective of the first thread after each chunk of its work; may raise
        StopIteration.

    Returns
    -------
    Search
        Never worse than the start. Deadlines of requests are not respected.

    Raises
    ------
    OptschedError
        If the schedule is too long to keep the usage of every step.

    Examples
    --------
    >>> from optsched import family, run
    >>> start = run(family("uniform", n=10, seed=1), "fcfs")
    >>> found = search(start, np.ones(10), work=1e7)
    >>> found.schedule.total_latency < start.total_latency, found.schedule.check()
    (True, [])
    """
    instance = start.instance
    if start.makespan > _LONGEST:
        raise OptschedError(
            f"a search would keep the usage of {start.makespan} steps (at most {_LONGEST}); "
            "use longer steps"
        )
    stop = threading.Event()
    names = _choose(instance) if plan is None else [plan]
    plans = [PLANS[name] for name in names]
    runs = [_Run(start, weights, seed + _STRIDE * i, deadline, stop) for i in range(threads)]
    runs[0].on_progress = on_progress
    interrupted = False
    with ThreadPoolExecutor(max(1, threads - 1)) as pool:
        others = [
            pool.submit(run.follow, plans[i % len(plans)], work)
            for i, run in enumerate(runs[1:], start=1)
        ]
        try:
            runs[0].follow(plans[0], work)
            for other in others:
                other.result()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            stop.set()
    best = min(runs, key=lambda run: run.cost)  # the first of equal ones
    return Search(Schedule(instance, best.best, "search"), _merge(runs), interrupted)


#: Searches by name: what each does, with its share of the work.
PLANS: dict[str, Plan] = {
    "orders": (("prefix", 0.9), ("starts", 0.1)),
    "backfill": (("backfill", 0.9), ("starts", 0.1)),
    "starts": (("starts", 1.0),),
}


def _choose(instance: Instance) -> list[str]:
    """Say which searches suit the instance, the best first (docs/research.md has the figures)."""
    together = instance.memory * int(instance.outputs.sum()) / int(instance.areas.sum())
    if len(instance) > _FEW:
        return ["starts"]
    if together < _CROWDED or instance.arrivals.any():
        return ["orders", "starts", "backfill"]
    return ["starts", "backfill", "orders"]


def _merge(runs: list[_Run]) -> tuple[tuple[float, float], ...]:
    """Put the histories of all runs together: each entry is the best of all at its time."""
    merged: list[tuple[float, float]] = []
    for entry in sorted(entry for run in runs for entry in run.history):
        if not merged or entry[1] < merged[-1][1]:
            merged.append(entry)
    return tuple(merged)


class _Run:
    """The state of a search."""

    def __init__(
        self,
        start: Schedule,
        weights: FloatArray,
        seed: int,
        deadline: float,
        stop: threading.Event,
    ) -> None:
        self._instance: Instance = start.instance
        self._weights = weights
        self._random = np.array([seed + 1], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        self._deadline, self._stop = deadline, stop
        self.on_progress: Callable[[float], None] | None = None
        self._began = self._phase = time.perf_counter()
        self._limit = math.inf
        self._offset = float(weights @ (self._instance.outputs - self._instance.arrivals))
        self._scale = float(np.mean(weights)) * float(np.mean(self._instance.outputs))
        self.best = start.starts.copy()
        self.cost = float(weights @ self.best)
        self.history = [(0.0, self.cost + self._offset)]

    def follow(self, plan: Plan, work: float) -> None:
        """Do what a plan says, until it is done or time is up."""
        left = 1.0
        try:
            for kind, share in plan:
                self._phase = time.perf_counter()
                self._limit = (self._deadline - self._phase) * share / left
                left -= share
                if kind == "starts":
                    self.move_starts(share * work)
                else:
                    self.anneal_orders(share * work, kind == "backfill")
        except StopIteration:
            self._stop.set()

    def _keep(self, starts: IntArray, cost: float) -> None:
        """Keep a better schedule; stop when time is up."""
        if cost < self.cost:
            self.best, self.cost = starts.copy(), float(cost)
            self.history.append((time.perf_counter() - self._began, self.cost + self._offset))
        if self.on_progress is not None:
            self.on_progress(self.cost + self._offset)
        if self._stop.is_set() or time.perf_counter() >= self._deadline:
            raise StopIteration

    def anneal_orders(self, work: float, backfill: bool = False) -> None:
        """Anneal on orders, decoded by the prefix rule or each at its earliest feasible start."""
        instance = self._instance
        count = len(instance)
        order = np.argsort(self.best, kind="stable")
        starts = np.zeros(count, dtype=np.int64)
        best = self.best.copy()
        usage = np.zeros(int(instance.arrivals[-1] + instance.outputs.sum()) + 2, dtype=np.int32)
        costs = np.array([-1.0, math.inf])  # of the current order, of the best
        done = 0.0
        while done < work:
            hot, cold = (self._temperature(2.0, 0.2, share / work) for share in _next(done, work))
            done += anneal_orders(
                instance.prompts,
                instance.outputs,
                instance.arrivals,
                self._weights,
                instance.memory,
                backfill,
                order,
                starts,
                best,
                usage,
                costs,
                self._random,
                min(_CHUNK, work - done),
                hot,
                cold,
            )
            self._keep(best, costs[1])
            done = self._catch_up(done, work)

    def move_starts(self, work: float) -> None:
        """Take requests out and put them back."""
        instance = self._instance
        starts, best = self.best.copy(), self.best.copy()
        order = np.argsort(starts, kind="stable")
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        longest = int(instance.outputs.max())
        last = int((starts + instance.outputs).max())
        profile = Schedule(instance, starts).memory_profile()
        usage = np.zeros(last + 4 * longest + 2, dtype=np.int32)
        usage[: len(profile)] = profile
        costs = np.array([self.cost, self.cost])
        delay = longest if len(instance) <= _FEW else 0
        large, place, share = self._large(order)
        first, final = _HOT_ARRIVALS if share and instance.arrivals.any() else _HOT
        done = 0.0
        while done < work:
            hot, cold = (self._temperature(first, final, part / work) for part in _next(done, work))
            done += move_starts(
                instance.prompts,
                instance.outputs,
                instance.arrivals,
                self._weights,
                instance.memory,
                starts,
                order,
                position,
                large,
                place,
                share,
                usage,
                best,
                costs,
                self._random,
                min(_CHUNK, work - done),
                hot,
                cold,
                delay,
            )
            self._keep(best, costs[1])
            done = self._catch_up(done, work)

    def _large(self, order: IntArray) -> tuple[IntArray, IntArray, float]:
        """Give the large requests by start, the place of each, and their share of the moves."""
        areas = self._instance.areas
        chosen = areas >= np.quantile(areas, _LARGE)
        if areas[chosen].sum() < _MOST_OF_IT * areas.sum():
            chosen[:] = False
        large = order[chosen[order]]
        place = np.full(len(order), -1)
        place[large] = np.arange(len(large))
        return large, place, _MOVES_OF_LARGE if len(large) else 0.0

    def _catch_up(self, done: float, work: float) -> float:
        """Leave work out where the machine is too slow for it: cooled badly, all is wasted."""
        spent = (time.perf_counter() - self._phase) / self._limit
        return done if spent < _LATE * done / work + 0.02 else spent * work

    def _temperature(self, first: float, last: float, share: float) -> float:
        """Cool geometrically, in units of the mean output times the mean weight."""
        return self._scale * first * math.pow(last / first, min(1.0, share))


def _next(done: float, work: float) -> tuple[float, float]:
    return done, min(work, done + _CHUNK)
