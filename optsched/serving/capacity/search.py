"""At most: which numbers of workers are simulated to find the fewest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from optsched.problem.workers.memories import MAX_WORKERS
from optsched.serving.capacity.upper import Attempt, Plan, attempt, attempt_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.policies import Policy
    from optsched.problem.instance import Instance
    from optsched.problem.workers import Router
    from optsched.serving.capacity.result import Capacity
    from optsched.simulate import RunSettings

_FAR = 16  # times the proven number of workers, and more, up to which plans are tried
_AROUND = 2  # numbers of workers on both sides of the answer that are tried as well
_CACHING = "enable_prefix_caching"


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


class Search:
    """Runs with more or fewer workers, for one policy and router after another."""

    def __init__(
        self,
        instances: Sequence[Instance],
        proven: Capacity,
        settings: RunSettings,
        tell: Callable[[str], object],
    ) -> None:
        self._instances, self._proven, self._settings = instances, proven, settings
        self._tell = tell
        self._alone: dict[str, Attempt | None] = {}
        self.found: list[Plan] = []

    def _run(self, policy: Policy, router: Router, workers: int) -> Attempt:
        self._tell(f"{router.name} with {policy.name} on {workers:,} workers")
        slos = self._proven.slos
        return attempt(self._instances, slos, policy, router, self._settings, workers)

    def fewest(self, policy: Policy, router: Router, workers: int | None) -> None:
        """Find the fewest workers; what is known when Ctrl-C comes is kept."""
        least = self._proven.at_least or 1
        most = max(least, min(MAX_WORKERS, len(self._instances[0]), _FAR * (least + 3)))
        known = (plan.workers for plan in self.found if plan.workers)
        guess = max(known, default=least + least // 8)
        if workers is not None:
            least = most = guess = workers
        if policy.name not in self._alone:
            self._tell(f"each request alone with {policy.name}")
            self._alone[policy.name] = attempt_alone(
                self._instances, self._proven.slos, policy, self._settings
            )
        alone = self._alone[policy.name]
        # Beside others a request may only find more in a prefix cache than alone.
        late = alone is not None and not (alone.met or getattr(policy, _CACHING, False))
        tried: dict[int, Attempt] = {}
        try:
            if workers is not None or (self._proven.possible and not late):
                fewest(lambda count: self._run(policy, router, count), least, most, guess, tried)
        finally:
            if tried or alone:
                self._keep(policy, router, tried, alone)

    def _keep(
        self, policy: Policy, router: Router, tried: dict[int, Attempt], alone: Attempt | None
    ) -> None:
        number = min((count for count, each in tried.items() if each.met), default=None)
        below = tried.get((number or max(tried, default=0) + 1) - 1, None if number else alone)
        cost = self._proven.cost
        self.found.append(
            Plan(
                policy.name,
                router.name,
                number,
                dict(sorted(tried.items())),
                below.binds if below else "",
                None if number is None or cost is None else round(number * cost, 9),
                replace(self._settings, workers=1, router=router).knows(policy, self._instances[0]),
                alone,
            )
        )
