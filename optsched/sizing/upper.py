"""At most: whether a policy and a router meet the objectives with so many workers, simulated."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.simulate import run
from optsched.sizing.slo import Times
from optsched.workers.memories import MAX_WORKERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.instance import Instance
    from optsched.policies import Policy
    from optsched.simulate import RunSettings
    from optsched.sizing.slo import Slo
    from optsched.workers import Router

_BURST = 0.1  # share of the time in which half of the late requests arrive: a burst
_FULL = 0.9  # share of a memory that is full


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
