"""At most: the fewest workers at which a policy and a router meet the objectives, by simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.simulate import run
from optsched.sizing.slo import Times
from optsched.workers.memories import MAX_WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from fractions import Fraction

    from optsched.instance import Instance
    from optsched.policies import Policy
    from optsched.simulate import RunSettings
    from optsched.sizing.slo import Slo
    from optsched.workers import Router

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
    """The fewest workers with which a policy and a router meet the objectives.

    Attributes
    ----------
    workers
        Their number; None where no number that was tried is enough.
    binds
        What one worker less lacks: "memory", "compute", "a burst" or "one large request"; empty
        where one worker is enough, or the number is also proven to be needed.
    attempts
        Every number of workers that was tried, ascending.
    """

    policy: str
    router: str
    workers: int | None
    binds: str
    attempts: dict[int, Attempt] = field(repr=False)

    @property
    def monotone(self) -> bool:
        """Whether none of the numbers above the answer that were tried falls short."""
        enough = self.workers or MAX_WORKERS
        return all(each.met for count, each in self.attempts.items() if count > enough)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        runs = max((each.runs for each in self.attempts.values()), default=0)
        return {
            "policy": self.policy,
            "router": self.router,
            "workers": self.workers,
            "binds": self.binds,
            "monotone": self.monotone,
            "runs": runs,
            "attempts": [
                {"workers": count, "attained": each.attained, "held": each.held}
                for count, each in self.attempts.items()
            ],
        }


@dataclass(frozen=True)
class Mix:
    """A fleet of several kinds with which a policy and a router meet the objectives.

    Attributes
    ----------
    workers
        Number of workers of each kind.
    cost
        What they cost per hour.
    attempts
        Every fleet that was tried.
    """

    policy: str
    router: str
    workers: tuple[int, ...]
    cost: float
    attempts: dict[tuple[int, ...], Attempt] = field(repr=False)

    @property
    def met(self) -> bool:
        """Whether the objectives are met; what a caller asked for need not."""
        return self.attempts[self.workers].met

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            **{name: getattr(self, name) for name in ("policy", "router", "met")},
            "workers": list(self.workers),
            "cost_per_hour": self.cost,
            "attempts": [
                {"workers": list(fleet), "attained": each.attained, "held": each.held}
                for fleet, each in self.attempts.items()
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
