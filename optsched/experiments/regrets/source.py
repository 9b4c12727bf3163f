"""What `regret` accepts: where requests come from, and numbers, each once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from optsched._internal.arguments import as_count, as_number
from optsched._internal.arrays import MAX_STEP
from optsched.bounds.on_clock import least_work
from optsched.clock import LinearClock, get_clock
from optsched.errors import InstanceError, OptschedError
from optsched.problem.instance import Instance
from optsched.problem.work import most_work
from optsched.workloads import family
from optsched.workloads.families import parse_family, poisson

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from optsched.clock import Clock

Number = TypeVar("Number", int, float)

_SAMPLE = 200_000  # requests from which the mean memory-time of a family is taken
_TICK = 2.0**-10  # seconds in which arrivals on a clock are counted
_MAX_SEEDS = 1_000_000
_FEWEST = 10  # requests that a horizon brings in the mean, at least


def numbers_of(name: str, values: Number | Sequence[Number]) -> list[Number]:
    """Return numbers as a list, refusing an empty one and duplicates."""
    found = list(values) if isinstance(values, Iterable) else [values]
    for value in found:
        as_number(f"one of the {name}", value, lambda _: True, "a number")
    if not found:
        raise OptschedError(f"{name} is empty; name at least one")
    if len(set(found)) < len(found):
        raise OptschedError(f"one of the {name} is there twice; take one out")
    return found


def seeds_of(seeds: Any) -> list[int]:
    """Return seeds: those named, or that many from 0."""
    if not isinstance(seeds, Iterable):
        return list(range(as_count("seeds", seeds, most=_MAX_SEEDS)))
    found: list[float] = numbers_of("seeds", list(seeds))
    return [as_count("one of the seeds", seed, 0) for seed in found]


@dataclass(frozen=True)
class Source:
    """Draws instances of any arrival rate and number of steps."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)  # of the family: lengths, not arrivals
    trace: Instance | None = None  # drawn from with replacement, in place of a family
    memory: int | None = None  # None: as many tokens as the family has
    clock: LinearClock | None = None  # None: times are in steps

    @cached_property
    def sample(self) -> Instance:
        """The trace, or many requests of the family."""
        if self.trace is not None:
            return self.trace
        return family(self.name, n=_SAMPLE, seed=0, memory=self.memory, **self.parameters)

    @property
    def memory_tokens(self) -> int:
        """Tokens that the worker holds."""
        return self.sample.memory

    @property
    def unit(self) -> str:
        """What times are counted in."""
        return "steps" if self.clock is None else self.clock.unit

    @property
    def tick(self) -> float:
        """How long the steps are in which arrivals are counted, in the unit."""
        return 1.0 if self.unit == "steps" else _TICK

    @cached_property
    def mean_alone(self) -> float:
        """The mean latency of requests that are alone: in steps the mean output."""
        if self.clock is None:
            return float(self.sample.outputs.mean())
        return float(least_work(self.sample, self.clock).own.mean())

    def rate(self, load: float) -> float:
        """Return the requests per unit of time that bring this share of the possible work."""
        as_number("load", load, lambda x: x > 0, "positive")
        if self.clock is not None:
            return load / float(most_work(self.sample, self.clock).total.mean())
        return load * self.sample.memory / float(self.sample.areas.mean())

    def draw(self, rate: float, horizon: int, seed: int) -> Instance:
        """Draw the requests that arrive before the horizon; other horizons have other requests."""
        self.check(rate, horizon)
        seconds_per_step = None if self.clock is None else self.tick
        count = int(rate * horizon + 6 * (rate * horizon) ** 0.5)
        while True:
            instance = self._requests(count, rate * self.tick, seed + 2**32 * horizon)
            if instance.arrivals[-1] >= horizon / self.tick:
                break
            count += count // 4
        within = slice(int(np.searchsorted(instance.arrivals, horizon / self.tick)))
        return Instance(
            instance.prompts[within],
            instance.outputs[within],
            instance.memory,
            instance.arrivals[within],
            name=self.name,
            seconds_per_step=seconds_per_step,
        )

    def check(self, rate: float, horizon: int) -> None:
        """Refuse a horizon that is not one, or brings hardly any request."""
        as_count("a horizon", horizon, most=MAX_STEP)
        if rate * horizon < _FEWEST:
            raise InstanceError(
                f"{horizon} {self.unit} bring {rate * horizon:.3g} requests on average, but a "
                f"horizon needs {_FEWEST}; make it longer or raise the load"
            )

    def horizons(self, rate: float) -> list[int]:
        """Return three horizons, each ten times as long as the last, that bring enough requests."""
        first = 100
        while rate * first < _FEWEST:
            first *= 10
        return [first, 10 * first, 100 * first]

    def _requests(self, count: int, rate: float, seed: int) -> Instance:
        if self.trace is None:
            return family(
                self.name, n=count, seed=seed, memory=self.memory, rate=rate, **self.parameters
            )
        rng = np.random.default_rng(seed)
        chosen = rng.integers(0, len(self.trace), count)
        return Instance(
            self.trace.prompts[chosen],
            self.trace.outputs[chosen],
            self.trace.memory,
            poisson(count, rate, rng),
            name=self.name,
        )


def read_source(
    source: str | Path | Instance,
    memory: int | None = None,
    clock: str | Clock | None = None,
) -> Source:
    """Read a source: ``family:NAME,key=number,...``, an instance, or the path of a trace."""
    timed = None if clock is None else get_clock(clock)
    if timed is not None and not isinstance(timed, LinearClock):
        raise OptschedError(
            f"the clock {timed.name} is a function, for which no bound is known, and so no regret; "
            "pass a LinearClock that is never above it"
        )
    return replace(_read_source(source, memory), clock=timed)


def _read_source(source: str | Path | Instance, memory: int | None) -> Source:
    if isinstance(source, Instance):
        trace = source if memory is None else source.replace(memory=memory)
        return Source(trace.name, trace=trace)
    text = str(source)
    if not text.startswith("family:"):
        from optsched.workloads import read_trace

        trace = read_trace(text, memory)
        return Source(trace.name, trace=trace)
    name, parameters = parse_family(text)
    for parameter in ("n", "seed", "rate", "load", "seconds_per_step"):
        if parameter in parameters:
            raise InstanceError(
                f"{text}: {parameter} follows from loads, horizons and seeds; leave it out"
            )
    family(name, n=_FEWEST, memory=memory, **parameters)  # refuses what it does not understand
    return Source(name, parameters, memory=memory)
