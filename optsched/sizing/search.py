"""At most: which numbers of workers, and which fleets, are simulated to find the fewest."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from optsched.sizing.upper import Attempt, Plan, attempt
from optsched.workers.memories import MAX_WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.instance import Instance
    from optsched.policies import Policy
    from optsched.simulate import RunSettings
    from optsched.sizing.result import Capacity
    from optsched.workers import Router

_FAR = 16  # times the proven number of workers, and more, up to which plans are tried
_AROUND = 2  # numbers of workers on both sides of the answer that are tried as well


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
