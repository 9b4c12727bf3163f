"""At most: the fewest workers at which a policy and a router meet the objectives, by simulation."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.simulate import run
from optsched.sizing.slo import Times
from optsched.workers.memories import MAX_WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from optsched.instance import Instance
    from optsched.policies import Policy
    from optsched.simulate import RunSettings
    from optsched.sizing.result import Capacity
    from optsched.sizing.slo import Slo
    from optsched.workers import Router

_FAR = 16  # times the proven number of workers, and more, up to which plans are tried
_AROUND = 2  # numbers of workers on both sides of the answer that are tried as well
_BURST = 0.1  # share of the time in which half of the late requests arrive: a burst
_FULL = 0.9  # share of a memory that is full
_LARGE = 0.75  # share of a limit that a request takes even alone: a large one


@dataclass(frozen=True)
class Attempt:
    """What simulations with some number of workers came to.

    Attributes
    ----------
    held
        Of how many runs all objectives are met.
    runs
        How many there are: one for each instance.
    attained
        The least that any objective reaches in the mean of the runs: a share of the requests, or
        the limit over the mean.
    """

    held: int
    runs: int
    attained: float
    binds: str = ""

    @property
    def met(self) -> bool:
        """Whether all runs meet all objectives."""
        return self.held == self.runs


@dataclass(frozen=True)
class Plan:
    """The fewest workers, or the cheapest fleet, with which a policy and a router meet objectives.

    Attributes
    ----------
    workers
        Their number, or of a fleet that of each kind; None where nothing that was tried is enough.
    attempts
        Every number of workers, ascending, or every fleet that was tried.
    binds
        What one worker less lacks: "memory", "compute", "a burst" or "one large request"; empty
        where one worker is enough, the number is also proven to be needed, or kinds are mixed.
    cost
        What the workers cost per hour, where it is known.
    """

    policy: str
    router: str
    workers: Any
    attempts: Mapping[Any, Attempt] = field(repr=False)
    binds: str = ""
    cost: float | None = None

    @property
    def reached(self) -> Attempt | None:
        """What the workers came to."""
        return self.attempts.get(self.workers)

    @property
    def met(self) -> bool:
        """Whether the objectives are met; by a fleet that a caller asked for they need not be."""
        return self.reached is not None and self.reached.met

    @property
    def relapses(self) -> list[int]:
        """Numbers of workers above the answer that were tried and fall short."""
        enough = self.workers or MAX_WORKERS
        return [n for n, each in self.attempts.items() if n > enough and not each.met]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        known: dict[str, Any] = {"policy": self.policy, "router": self.router, "met": self.met}
        if not isinstance(self.workers, tuple):
            runs = max((each.runs for each in self.attempts.values()), default=0)
            known |= {"binds": self.binds, "monotone": not self.relapses, "runs": runs}
        return {
            **known,
            "workers": self.workers,
            **({"cost_per_hour": self.cost} if self.cost else {}),
            "attempts": [
                {"workers": count, "attained": each.attained, "held": each.held}
                for count, each in self.attempts.items()
            ],
        }


def times_of(found: Any) -> Times:
    """Return what each request waited in a run, NaN where it is unfinished."""
    times = Times(found.latencies, found.first_token_latencies, found.times_per_token)
    if found.clock is None and found.why is not None:  # in steps it then has no times
        return Times(*(np.full(len(found.instance), np.nan) for _ in times))
    return times


def attempt(
    instances: Sequence[Instance],
    slos: Sequence[Slo],
    policy: Policy,
    router: Router,
    settings: RunSettings,
    workers: int | Sequence[int],
) -> Attempt:
    """Run a policy and a router with so many workers, or their memories, on all instances."""
    held, reached, binds = 0, [], ""
    for number, instance in enumerate(instances):
        own = replace(settings, workers=workers, router=router, seed=settings.seed + number)
        found = run(instance, policy, own)
        times = times_of(found)
        each = [slo.attained(times, slo.asked(instance)) for slo in slos]
        held += all(met for met, _ in each)
        reached.append(min(share for _, share in each))
        if not binds and not all(met for met, _ in each):
            binds = _binding(found, times, slos)
    return Attempt(held, len(instances), float(np.mean(reached)), binds)


def _binding(found: Any, times: Times, slos: Sequence[Slo]) -> str:
    """Say what a run lacks whose requests are late."""
    instance, late = found.instance, np.zeros(len(found.instance), dtype=np.bool_)
    for slo in slos:
        late |= slo.asked(instance) & ~slo.within(times)
    if not late.any():  # only a mean is too high: those above it count
        late = times.latency >= np.nanmean(times.latency)
    arrivals = np.sort(found.arrivals[late])
    span, half = float(found.arrivals[-1] - found.arrivals[0]), len(arrivals) // 2
    if len(arrivals) == 1:
        return "one large request"
    if span and float((arrivals[half:] - arrivals[: len(arrivals) - half]).min()) < _BURST * span:
        return "a burst"
    parts = [part for part in found.runs if part is not None]
    free = [part.instance.memory - part.peak_memory for part in parts]
    full = float(np.median(free)) < int(instance.peaks.max()) or any(
        part.peak_memory > _FULL * part.instance.memory for part in parts
    )
    return "memory" if full else "compute"


def fewest(
    tried: Callable[[int], Attempt], least: int, most: int, guess: int, known: dict[int, Attempt]
) -> None:
    """Try numbers of workers until the fewest that are enough, from `least` on, are `known`.

    More workers need not be better, so that some numbers on both sides of the answer are tried, and
    the search goes on from the smallest one that is enough.
    """

    def enough(count: int) -> bool:
        if count not in known:
            known[count] = tried(count)
        return known[count].met

    low, high, step = least - 1, min(max(guess, least), most), 1
    while not enough(high):
        if high == most:
            return
        low, high, step = high, min(most, high + step), 2 * step
    step = 1
    while low < least and high > least and enough(tried_next := max(least, high - step)):
        high, step = tried_next, 2 * step
    low = max((count for count in known if count < high), default=least - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    while True:
        around = [*range(high - 1 - _AROUND, high), *range(high + 1, high + 1 + _AROUND)]
        for count in around:
            if least <= count <= most and enough(count) and count < high:
                high = count
                break
        else:
            return


def cheapest(
    enough: Callable[[tuple[int, int]], bool],
    costs: tuple[Fraction, Fraction],
    low: Fraction,
    high: Fraction,
) -> None:
    """Try fleets of both of two kinds that cost from `low` to below `high` for the cheapest.

    For each number of the first kind the second is bisected, below what the best so far costs. As
    more need not be better, the fleets around the answer are tried, too.
    """
    best: tuple[int, int] | None = None
    first = 1
    while (most := math.ceil((high - first * costs[0]) / costs[1]) - 1) > 0:
        least = max(1, math.ceil((low - first * costs[0]) / costs[1]))
        if least <= most <= MAX_WORKERS - first and enough((first, most)):
            while least < most:
                middle = (least + most) // 2
                least, most = (least, middle) if enough((first, middle)) else (middle + 1, most)
            best, high = (first, most), first * costs[0] + most * costs[1]
        first += 1
    while best is not None:
        (one, other), best = best, None
        for fleet in ((one - 1, other), (one, other - 1), (one + 1, other), (one, other + 1)):
            price = fleet[0] * costs[0] + fleet[1] * costs[1]
            if min(fleet) > 0 and price >= low and enough(fleet) and price < high:
                best, high = fleet, price
                break


class Search:
    """Runs with more or fewer workers of one kind, or with fleets of several kinds."""

    def __init__(
        self,
        instances: Sequence[Instance],
        kinds: Sequence[Capacity],
        clocks: Sequence[Any],
        settings: RunSettings,
        tell: Callable[[str], object],
    ) -> None:
        self._instances, self._kinds, self._clocks = instances, kinds, clocks
        self._settings, self._tell = settings, tell
        self._costs = [Fraction(each.cost or 0.0) for each in kinds]
        bought = zip(self._costs, (each.at_most for each in kinds), strict=True)
        self._high = min((cost * count for cost, count in bought if count), default=None)
        self.found: list[Plan] = []

    def _price(self, fleet: Sequence[int]) -> Fraction:
        return sum((n * cost for n, cost in zip(fleet, self._costs, strict=True)), Fraction())

    def _run(self, policy: Policy, router: Router, *fleet: int) -> Attempt:
        """Run a policy and a router with so many workers of each kind."""
        counts = " + ".join(f"{count:,}" for count in fleet)
        self._tell(f"{router.name} with {policy.name} on {counts} workers")
        own, slos = self._settings, self._kinds[0].slos
        if len(fleet) == 1:
            return attempt(self._instances, slos, policy, router, own, *fleet)
        every = [kind for kind, count in enumerate(fleet) for _ in range(count)]
        memories = [self._kinds[kind].instance.memory for kind in every]
        if own.clock is not None:
            own = replace(own, workers=memories, clock=[self._clocks[kind] for kind in every])
        return attempt(self._instances, slos, policy, router, own, memories)

    def fewest(self, policy: Policy, router: Router, workers: int | None) -> None:
        """Find the fewest workers of one kind; what is known when Ctrl-C comes is kept."""
        (kind,) = self._kinds
        least = kind.at_least or 1
        most = max(least, min(MAX_WORKERS, len(kind.instance), _FAR * (least + 3)))
        known = (plan.workers for plan in self.found if plan.workers)
        guess = max(known, default=least + least // 8)
        if workers is not None:
            least = most = guess = workers
        tried: dict[int, Attempt] = {}
        try:
            fewest(lambda count: self._run(policy, router, count), least, most, guess, tried)
        finally:
            if tried:
                number = min((count for count, each in tried.items() if each.met), default=None)
                below = tried.get((number or max(tried) + 1) - 1)
                price = (
                    None if number is None or kind.cost is None else float(self._price([number]))
                )
                every = dict(sorted(tried.items()))
                binds = below.binds if below else ""
                self.found.append(Plan(policy.name, router.name, number, every, binds, price))

    def cheapest(
        self, policy: Policy, router: Router, low: Fraction, asked: tuple[int, ...] | None
    ) -> None:
        """Find fleets of two kinds that cost less than all before, but not less than is proven."""
        if asked:
            self._keep(policy, router, asked, {asked: self._run(policy, router, *asked)})
        for pair in itertools.combinations(range(len(self._kinds)), 2):
            if self._high is None or asked:
                return
            known: dict[tuple[int, ...], Attempt] = {}

            def enough(two: tuple[int, int], pair: Any = pair, known: Any = known) -> bool:
                counts = dict(zip(pair, two, strict=True))
                fleet = tuple(counts.get(kind, 0) for kind in range(len(self._kinds)))
                if fleet not in known:
                    known[fleet] = self._run(policy, router, *fleet)
                return bool(known[fleet].met)

            try:
                cheapest(enough, (self._costs[pair[0]], self._costs[pair[1]]), low, self._high)
            finally:
                if met := [fleet for fleet, each in known.items() if each.met]:
                    self._keep(policy, router, min(met, key=self._price), known)
                    self._high = min(self._high, Fraction(self.found[-1].cost or 0.0))

    def _keep(
        self, policy: Policy, router: Router, workers: Any, tried: dict[Any, Attempt]
    ) -> None:
        price = float(self._price(workers))
        self.found.append(Plan(policy.name, router.name, workers, tried, cost=price))
