"""One cell of a regret experiment: where it comes from and what it finds."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from optsched._internal.arguments import as_count, as_number
from optsched._internal.arrays import MAX_STEP
from optsched._internal.aside import Budget, stopwatch
from optsched.bounds.ascent import Bound, improve_prices
from optsched.bounds.bound import bound as find_bound
from optsched.bounds.bound import machines_bound
from optsched.bounds.on_clock import least_work
from optsched.certificates.prices import ConfigurationCertificate
from optsched.clock import LinearClock, get_clock
from optsched.errors import InstanceError, OptschedError, PolicyError, ScheduleError, require
from optsched.experiments.cells import loaded
from optsched.optimum.solving import solve
from optsched.optimum.state import SolveParams
from optsched.policies import get_policy
from optsched.problem.instance import Instance
from optsched.problem.premises import STORAGES, strongest
from optsched.problem.work import load_on_clock, most_work, step_of
from optsched.search.delays import start_evenly
from optsched.simulate import RunSettings, run
from optsched.simulate.runners import raise_if_interrupted
from optsched.workloads import family, read_trace
from optsched.workloads.families import parse_family, poisson

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from optsched._internal.files import JSON
    from optsched.bounds.bound import ClockBound
    from optsched.clock import Clock
    from optsched.experiments.cells import Own
    from optsched.policies import Policy
    from optsched.problem.execution import Execution
    from optsched.problem.schedule import Schedule
    from optsched.simulate.seconds.execution import ClockedRun


Number = TypeVar("Number", int, float)
AnyRun = TypeVar("AnyRun", "Execution", "ClockedRun")

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


def seeds_of(seeds: object) -> list[int]:
    """Return seeds: those named, or that many from 0."""
    if not isinstance(seeds, Iterable):
        return list(range(as_count("seeds", seeds, most=_MAX_SEEDS)))
    found: list[float] = numbers_of("seeds", list(seeds))
    return [as_count("one of the seeds", seed, 0) for seed in found]


@dataclass(frozen=True)
class RegretSource:
    """Draws instances of any arrival rate and number of steps."""

    name: str
    parameters: JSON = field(default_factory=dict)  # of the family: lengths, not arrivals
    trace: Instance | None = None  # drawn from with replacement, in place of a family
    memory: int | None = None  # None: as many tokens as the family has
    clock: LinearClock | None = None  # None: times are in steps
    whole: bool = False  # run the trace as it is

    @cached_property
    def sample(self) -> Instance:
        """The trace, or many requests of the family."""
        if self.trace is not None:
            return self.trace
        return family(self.name, n=_SAMPLE, seed=0, memory=self.memory, **self.parameters)

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
        if self.trace is not None and self.whole:
            return self.trace
        self.check(rate, horizon)
        seconds_per_step = None if self.clock is None else self.tick
        count = int(rate * horizon + 6 * (rate * horizon) ** 0.5)
        while True:
            instance = self._requests(count, rate * self.tick, seed + 2**32 * horizon)
            if instance.arrivals[-1] >= horizon / self.tick:
                break
            count += max(1, count // 4)
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


def read_sources(
    sources: Sequence[str | Path | Instance], memory: int | None, clock: str | Clock | None
) -> tuple[list[RegretSource], float, float, int]:
    """Read what is run as it is: sources, mean load and requests per unit of time, longest time."""
    drawn = [read_source(each, memory, clock) for each in sources]
    if not drawn or any(each.trace is None for each in drawn):
        raise OptschedError("a list of sources has instances and traces, and at least one")
    traces, timed = [each.sample for each in drawn], drawn[0].clock
    spans = [float(np.ptp(each.arrivals)) for each in traces]
    loads = [each.load for each in traces]
    if timed is not None:
        spans = [span * step_of(each, timed) for span, each in zip(spans, traces, strict=True)]
        loads = [_load_on(each, timed) for each in traces]
    load = float(np.mean([each for each in loads if math.isfinite(each)] or [0.0]))
    rate = sum(map(len, traces)) / sum(spans) if sum(spans) else 0.0
    named = f"{len(traces)} instances"
    return (
        [replace(each, name=named, whole=True) for each in drawn],
        load,
        rate,
        int(max(spans)) + 1,
    )


def _load_on(trace: Instance, clock: LinearClock) -> float:
    found = load_on_clock(trace, clock)
    return math.inf if found is None else float(found.load)


def read_source(
    source: str | Path | Instance, memory: int | None = None, clock: str | Clock | None = None
) -> RegretSource:
    """Read a source: ``family:NAME,key=number,...``, an instance, or the path of a trace."""
    timed = None if clock is None else get_clock(clock)
    if timed is not None and not isinstance(timed, LinearClock):
        raise OptschedError(
            f"the clock {timed.name} is a function, for which no bound is known, and so no regret; "
            "pass a LinearClock that is never above it"
        )
    return replace(_read_source(source, memory), clock=timed)


def _read_source(source: str | Path | Instance, memory: int | None) -> RegretSource:
    if isinstance(source, Instance):
        trace = source if memory is None else source.replace(memory=memory)
        return RegretSource(trace.name, trace=trace)
    wish = "an instance, a trace or family:NAME, or a list of instances and traces"
    require(source, (str, PathLike), "the source", wish)
    if not str(source).startswith("family:"):
        return _read_source(read_trace(str(source), memory), None)
    name, parameters = parse_family(str(source))
    for parameter in ("n", "seed", "rate", "load", "seconds_per_step"):
        if parameter in parameters:
            raise InstanceError(
                f"{source}: {parameter} follows from loads, horizons and seeds; leave it out"
            )
    family(name, n=_FEWEST, memory=memory, **parameters)  # refuses what it does not understand
    return RegretSource(name, parameters, memory=memory)


_MAX_SOLVED = 20_000  # requests up to which `solve` is asked

# Of the ascent, in the unit of the search: so many rounds, and never less than that.
_ROUNDS, _LEAST_WORK = 60, 3e8
_STEP_WORK, _REQUEST_WORK = 70.0, 1200.0


@dataclass(frozen=True)
class RegretTask:
    """An instance to be drawn, and what to run on it."""

    source: RegretSource
    policies: tuple[str | Policy | Own, ...]
    load: float
    rate: float
    horizon: int
    seed: int
    time_limit: float


@dataclass(frozen=True)
class Cell:
    """What came of one instance: total latencies over its requests, in one unit."""

    load: float  # memory-time that arrives over that which passes; on a clock work over time
    rate: float  # requests per unit of time
    horizon: int  # time in which requests arrive
    seed: int
    requests: int
    latencies: dict[str, float]  # of each policy
    best: float  # of the best schedule known, which was checked
    best_by: str
    bound: float  # no schedule has less
    proof: str
    seconds: float  # for everything
    # Of engines, and of preempted requests that go on: policies, best, best_by, bound, proof
    later: JSON | None = None

    def _ends(self, policy: str) -> tuple[float, float]:
        """Return the best latency known and the bound, in the world of a policy."""
        if self.later is not None and policy in self.later["policies"]:
            return self.later["best"], self.later["bound"]
        return self.best, self.bound

    def regret(self, policy: str) -> tuple[float, float]:
        """Return both ends of a policy's regret per request (Jaillet Def. 5.1)."""
        latency = self.latencies[policy]
        best, bound = self._ends(policy)
        return (latency - best) / self.requests, (latency - bound) / self.requests

    def ratio(self, policy: str) -> tuple[float, float]:
        """Return both ends of the ratio of a policy's latency to the least possible."""
        latency = self.latencies[policy]
        best, bound = self._ends(policy)
        return latency / best, latency / bound

    def to_dict(self) -> JSON:
        """Return the cell as plain data, ready for JSON."""
        return dict(vars(self))


Ends = tuple[float, str, float, str]  # best, best_by, bound, proof


def perform(task: RegretTask) -> Cell:
    """Draw an instance, run the policies, and enclose the optimum."""
    began, clock = stopwatch(), task.source.clock
    instance = task.source.draw(task.rate, task.horizon, task.seed)
    drawn = (task.load, task.rate, task.horizon, task.seed, len(instance))
    settings = RunSettings(clock=clock, seed=task.seed)
    runs: list[Any] = [run(instance, loaded(policy), settings) for policy in task.policies]
    if clock is None:
        ends, later = _in_steps(instance, runs, task.time_limit)
    else:
        ends, later = _on_clock(instance, [*runs, run(instance, "work", settings)], clock)
    latencies: dict[str, float] = {each.policy: each.total_latency for each in runs}
    return Cell(*drawn, latencies, *ends, stopwatch() - began, later)


def _in_steps(
    instance: Instance, runs: list[Execution], time_limit: float
) -> tuple[Ends, JSON | None]:
    """Return the best schedule and a bound, also of runs whose preempted requests go on."""
    whole = [each for each in runs if each.preemption == "restarted"]
    later = [each for each in runs if each.preemption != "restarted"]
    best, proven = enclose(instance, [each.schedule for each in whole], time_limit)
    ends = _ends(best, proven, whole)
    if not later:
        return ends, None
    least, proven = _least([best, *_feasible(later)]), find_bound(instance, "closed-form")
    return ends, _in_own_world(later, _ends(least, proven, later))


def _on_clock(
    instance: Instance, runs: list[ClockedRun], clock: LinearClock
) -> tuple[Ends, JSON | None]:
    """Return the best run and a bound, also of runs that store tokens later."""
    for found in runs:
        raise_if_interrupted(found)
        if found.unfinished:
            raise PolicyError(
                f"policy {found.policy!r} leaves {found.unfinished} requests unfinished; leave it "
                "out"
            )
    at_once = [each for each in _feasible(runs) if each.facts.storage == STORAGES[0]]
    later = [each for each in runs if each.facts.storage != STORAGES[0]]
    ends = _ends(_least(at_once), find_bound(instance, clock=clock), at_once)
    if not later:
        return ends, None
    proven = find_bound(instance, clock=clock, storage=STORAGES[1])
    return ends, _in_own_world(later, _ends(_least(runs), proven, runs))


def _in_own_world(runs: Sequence[AnyRun], ends: Ends) -> JSON:
    names = ("policies", "best", "best_by", "bound", "proof")
    return dict(zip(names, ([each.policy for each in runs], *ends), strict=True))


def _feasible(runs: list[AnyRun]) -> list[AnyRun]:
    for each in runs:
        if broken := each.check():
            raise ScheduleError(f"the run of {each.policy!r} is infeasible: {broken[0]}")
    return runs


def _least(known: Sequence[Any]) -> Any:
    return min(known, key=lambda each: each.total_latency)


def _ends(best: Schedule | AnyRun, proven: Bound | ClockBound, runs: Sequence[AnyRun]) -> Ends:
    """Return the best that is known and a bound, refusing runs that the bound does not cover."""
    for each in runs:
        if why := strongest([proven], each.facts)[1]:
            raise PolicyError(f"policy {each.policy!r} has no regret: {why}; leave it out")
    value = math.ceil(proven.value) if isinstance(proven, Bound) else proven.value
    return best.total_latency, best.policy, value, proven.method


def enclose(
    instance: Instance, schedules: list[Schedule], time_limit: float = 0.0
) -> tuple[Schedule, Bound]:
    """Return the best schedule known, checked, and a proven bound on the total latency."""
    known = [*schedules, run(instance, "area").schedule]
    for schedule in known:
        _check(schedule)
    best = _least(known)
    proven = find_bound(instance)
    alike = instance.prompts.min() == instance.prompts.max()
    if alike and (value := machines_bound(instance)) > proven.value:
        # Age makes little difference here, so neither better prices nor an even pace gain much.
        premises = replace(proven.premises, preemption="restarted")
        name = "identical machines"
        proven = replace(proven, value=value, method=name, certificate=None, premises=premises)
    elif proven.prices is not None and best.total_latency > proven.value:
        best = _least([best, _check(start_evenly(instance))])
        per_round = _STEP_WORK * best.makespan + _REQUEST_WORK * len(instance)
        work = max(_LEAST_WORK, _ROUNDS * per_round)
        better = improve_prices(best, proven.prices, Budget(work=work))
        if better.interrupted:
            raise KeyboardInterrupt
        proven = max(proven, better, key=lambda each: each.value)
    if time_limit > 0 and len(instance) <= _MAX_SOLVED and best.total_latency > proven.value:
        best, proven = _look_further(instance, best, proven, time_limit)
    return best, proven


def _look_further(
    instance: Instance, best: Schedule, proven: Bound, time_limit: float
) -> tuple[Schedule, Bound]:
    stop = threading.Event()  # which Ctrl-C sets, also where the optimum is proven by then
    found = solve(instance, time_limit=time_limit, params=SolveParams(stop=stop))
    if stop.is_set():
        raise KeyboardInterrupt
    if found.schedule.total_latency < best.total_latency:
        best = replace(_check(found.schedule), policy="hindsight")
    if found.bound > proven.value:
        proof = found.certificate
        proof = None if isinstance(proof, ConfigurationCertificate) else proof
        premises = found.premises
        proven = Bound(found.bound, found.proof, found.seconds, proof, premises=premises)
    return best, proven


def _check(schedule: Schedule) -> Schedule:
    broken = [violation for violation in schedule.check() if violation.kind != "deadline"]
    if broken:
        raise ScheduleError(f"the schedule of {schedule.policy!r} is infeasible: {broken[0]}")
    return schedule


LEFT_BEHIND = 0.01  # share of the memory-time of the second half that adds to the backlog
_OVERLOADED = 1.25  # a load that leaves a fifth of the memory-time behind, whatever the schedule


@dataclass(frozen=True)
class OverloadThreshold:
    """The loads between which a policy becomes overloaded."""

    policy: str
    stable: float  # the largest load found stable
    overloaded: float  # the smallest load found overloaded
    rate: float  # requests per step in the middle between them
    horizon: int
    seeds: int
    tried: tuple[tuple[float, float], ...]  # loads, and the share of memory-time left behind

    @property
    def load(self) -> float:
        """The middle between the two loads."""
        return (self.stable + self.overloaded) / 2

    def to_dict(self) -> JSON:
        """Return everything as plain data, ready for JSON."""
        return vars(self) | {"load": self.load, "tried": [list(each) for each in self.tried]}

    def __str__(self) -> str:
        return (
            f"{self.policy} is stable at load {self.stable:.3f} and overloaded at "
            f"{self.overloaded:.3f} ({self.rate:.4g} requests per step; {self.seeds} runs of "
            f"{self.horizon:,} steps each)"
        )


def overload_threshold(
    source: str | Path | Instance = "family:equal-prompts",
    policy: str | Policy = "mc-sf",
    *,
    memory: int | None = None,
    horizon: int = 20_000,
    seeds: int | Sequence[int] = 3,
    precision: float = 0.01,
) -> OverloadThreshold:
    """Find by bisection from which load on the backlog of a policy grows."""
    # A load is overloaded if the memory-time of waiting requests grows by more than 1 % of what
    # arrives, in the mean over seeds, the same at all loads. A policy that is overloaded only once
    # chance has driven it into waves may look stable in a shorter run.
    as_number("precision", precision, lambda x: 0 < x < 1, "between 0 and 1")
    seeds = seeds_of(seeds)
    drawn, chosen = read_source(source, memory), get_policy(policy)
    stable, overloaded = 0.0, _OVERLOADED
    drawn.check(drawn.rate(overloaded / 2), horizon)
    tried = []
    while overloaded - stable > precision:
        load = (stable + overloaded) / 2
        rate = drawn.rate(load)
        share = float(np.mean([left_behind(drawn, chosen, rate, horizon, each) for each in seeds]))
        tried.append((load, share))
        if share > LEFT_BEHIND:
            overloaded = load
        else:
            stable = load
    rate = drawn.rate((stable + overloaded) / 2)
    return OverloadThreshold(
        chosen.name, stable, overloaded, rate, horizon, len(seeds), tuple(tried)
    )


def left_behind(
    source: RegretSource, policy: Policy, rate: float, horizon: int, seed: int
) -> float:
    """Return the share of the second half's memory-time by which the backlog grows there."""
    instance = source.draw(rate, horizon, seed)
    starts, areas = run(instance, policy, seed=seed).schedule.starts, instance.areas
    middle, end = horizon // 2, horizon

    def waiting(step: int) -> float:
        return float(areas[(instance.arrivals < step) & (starts >= step)].sum())

    arrived = float(areas[instance.arrivals >= middle].sum())
    return (waiting(end) - waiting(middle)) / max(arrived, 1.0)
