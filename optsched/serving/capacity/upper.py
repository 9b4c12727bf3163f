"""At most: whether a policy and a router meet the objectives with so many workers, simulated."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.problem.workers.memories import MAX_WORKERS
from optsched.serving.capacity.slo import ROUNDING, Times
from optsched.simulate import run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from optsched.policies import Policy
    from optsched.problem.instance import Instance
    from optsched.problem.premises import Knowledge
    from optsched.problem.workers import Router
    from optsched.serving.capacity.slo import Slo
    from optsched.simulate import RunSettings

_BURST = 0.1  # share of the time in which half of the late requests arrive: a burst
_FULL = 0.9  # share of a memory that is full
_PART = 64  # requests of a run in which they are apart, so that its times are exact enough
_TRIES = 6  # times as far apart as before, until no two requests meet


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
    reached
        The least limit of each objective that all runs meet; of an objective with several limits
        what they are to be multiplied by.
    """

    held: int
    runs: int
    attained: float
    binds: str = ""
    reached: tuple[float, ...] = ()

    @property
    def met(self) -> bool:
        """Whether all runs meet all objectives."""
        return self.held == self.runs


@dataclass(frozen=True)
class Plan:
    """The fewest workers with which a policy and a router meet objectives.

    Attributes
    ----------
    workers
        Their number; None where none that was tried is enough.
    attempts
        Every number of workers that was tried, ascending.
    binds
        What one worker less lacks: "memory", "compute", "a burst" or "one large request"; empty
        where one worker is enough, or the number is also proven to be needed.
    cost
        What the workers cost per hour, where it is known.
    knows
        What policy and router are told of outputs: "outputs", "forecast" or "nothing".
    alone
        What is reached where each request is alone on an idle worker; None where two requests meet
        however far apart they are.
    """

    policy: str
    router: str
    workers: int | None
    attempts: Mapping[int, Attempt] = field(repr=False)
    binds: str = ""
    cost: float | None = None
    knows: Knowledge = "outputs"
    alone: Attempt | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.router} with {self.policy}"

    @property
    def reached(self) -> Attempt | None:
        """What the workers came to; where none are enough, the best that was reached."""
        if self.workers is not None:
            return self.attempts[self.workers]
        return max(self.attempts.values(), key=lambda each: each.attained, default=self.alone)

    @property
    def relapses(self) -> list[int]:
        """Numbers of workers above the answer that were tried and fall short."""
        enough = self.workers or MAX_WORKERS
        return [n for n, each in self.attempts.items() if n > enough and not each.met]

    def least(self, slos: Sequence[Slo]) -> list[Slo]:
        """Return objectives with the least limits that are reached; none where there are none."""
        reached = () if self.reached is None else self.reached.reached
        if not np.isfinite(reached).all():
            return []
        return [slo.raised(factor) for slo, factor in zip(slos, reached, strict=False)]

    def to_dict(self, slos: Sequence[Slo]) -> dict[str, Any]:
        """Return it as plain data."""
        found, least = self.reached, self.least(slos)
        first = [[next(iter(slo.limits.values())) for slo in each] for each in (least, slos)]
        pairs = [(new / old if old else np.inf, new) for new, old in zip(*first, strict=False)]
        return {
            "policy": self.policy,
            "router": self.router,
            "knows": self.knows,
            "met": self.workers is not None,
            "workers": self.workers,
            "attained": None if found is None else found.attained,
            "least_limit": max(pairs, default=(0.0, None))[1],
            "least_objectives": [str(slo) for slo in least],
            "binds": self.binds,
            "monotone": not self.relapses,
            "runs": max((each.runs for each in self.attempts.values()), default=0),
            **({"cost_per_hour": self.cost} if self.cost else {}),
            "attempts": [
                {"workers": count, "attained": each.attained, "held": each.held}
                for count, each in self.attempts.items()
            ],
        }


def times_of(found: Any) -> Times:
    """Return what each request waited in a run, NaN where it is unfinished."""
    times = Times(found.latencies, found.first_token_latencies, found.times_per_token)
    if found.clock is None:
        if found.why is not None:  # then it has no times
            return Times(*(np.full(len(found.instance), np.nan) for _ in times))
        return times
    return Times(*(each / (1 + ROUNDING) for each in times))


def _attempt(
    runs: Sequence[tuple[Instance, Times]], slos: Sequence[Slo], why: Callable[[int], str]
) -> Attempt:
    """Judge runs by objectives; `why` says what the first one that falls short lacks."""
    every = [[slo.attained(times, slo.asked(some)) for slo in slos] for some, times in runs]
    short = [at for at, each in enumerate(every) if not all(met for met, _ in each)]
    least = [[slo.reached(times, slo.asked(some)) for slo in slos] for some, times in runs]
    return Attempt(
        len(runs) - len(short),
        len(runs),
        float(np.mean([min(share for _, share in each) for each in every])),
        why(short[0]) if short else "",
        tuple(map(max, zip(*least, strict=True))),
    )


def attempt(
    instances: Sequence[Instance],
    slos: Sequence[Slo],
    policy: Policy,
    router: Router,
    settings: RunSettings,
    workers: int,
) -> Attempt:
    """Run a policy and a router with so many workers on all instances."""
    found = []
    for number, instance in enumerate(instances):
        own = replace(settings, workers=workers, router=router, seed=settings.seed + number)
        found.append(run(instance, policy, own))
    runs = [(each.instance, times_of(each)) for each in found]
    return _attempt(runs, slos, lambda at: _binding(found[at], runs[at][1], slos))


def attempt_alone(
    instances: Sequence[Instance], slos: Sequence[Slo], policy: Policy, settings: RunSettings
) -> Attempt | None:
    """Run a policy on one worker where each request arrives once all before it are complete."""
    own = replace(settings, workers=1, router="round-robin", until=np.inf)
    found = []
    for instance in instances:
        apart = instance.replace(
            **dict.fromkeys(("follows", "pauses", "deadlines", "hash_ids", "hash_block")),
            arrivals=np.zeros(len(instance), dtype=np.int64),
        )
        rows = np.column_stack([instance.outputs, instance.prompts])  # the short ones together
        _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        times = []
        for begin in range(0, len(first), _PART):
            part = _times_apart(apart.take(first[begin : begin + _PART]), policy, own)
            if part is None:
                return None
            times.append(part)
        every = (np.concatenate(each)[which.ravel()] for each in zip(*times, strict=True))
        found.append((instance, Times(*every)))
    return _attempt(found, slos, lambda _: "one request alone")


def _times_apart(some: Instance, policy: Policy, settings: RunSettings) -> Times | None:
    """Return what requests wait that are alone one after another; None where they meet."""
    if policy.needs.kind == "wait":
        return None  # it goes by the rates of all requests
    in_seconds = settings.clock is not None and settings.batch_clock.unit == "s"
    longest = [int(some.prompts.argmax()), int(some.outputs.argmax())]
    alone = [times_of(run(some.take([at]), policy, settings)).latency for at in longest]
    gap = 1.0 + float(np.sum(alone))
    if not np.isfinite(gap):
        return None
    for _ in range(_TRIES):
        ticks = np.arange(len(some)) * (1 if in_seconds else math.ceil(gap))
        step = gap if in_seconds else some.seconds_per_step
        times = times_of(run(some.replace(arrivals=ticks, seconds_per_step=step), policy, settings))
        if bool((times.latency < gap).all()):
            return times
        gap *= 2
    return None


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
