"""One instance: what each policy costs, the best schedule known, and a proven bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from optsched._internal.loading import stopwatch
from optsched.bounds.ascent import improve_prices
from optsched.bounds.bound import bound as find_bound
from optsched.bounds.machines import machines_bound
from optsched.bounds.one_worker import Bound
from optsched.certificates.configurations import ConfigurationCertificate
from optsched.errors import PolicyError, ScheduleError
from optsched.experiments.own import loaded
from optsched.optimum.solving import solve
from optsched.policies import get_policy
from optsched.problem.premises import STORAGES, strongest
from optsched.search.pacing import start_evenly
from optsched.simulate import run
from optsched.simulate.runners import raise_if_interrupted

if TYPE_CHECKING:
    from optsched.bounds.bound import ClockBound
    from optsched.clock import LinearClock
    from optsched.experiments.own import Own
    from optsched.experiments.regrets.source import Source
    from optsched.policies import Policy
    from optsched.problem.execution import Execution
    from optsched.problem.instance import Instance
    from optsched.problem.premises import Storage
    from optsched.problem.schedule import Schedule
    from optsched.simulate.seconds.execution import ClockedRun

_MAX_SOLVED = 20_000  # requests up to which `solve` is asked

# Of the ascent, in the unit of the search: so many rounds, and never less than that.
_ROUNDS, _LEAST_WORK = 60, 3e8
_STEP_WORK, _REQUEST_WORK = 70.0, 1200.0


@dataclass(frozen=True)
class Task:
    """An instance to be drawn, and what to run on it."""

    source: Source
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
    later: dict[str, Any] | None = None

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

    def to_dict(self) -> dict[str, Any]:
        """Return the cell as plain data, ready for JSON."""
        return dict(vars(self))


def perform(task: Task) -> Cell:
    """Draw an instance, run the policies, and enclose the optimum."""
    began = stopwatch()
    instance = task.source.draw(task.rate, task.horizon, task.seed)
    drawn = (task.load, task.rate, task.horizon, task.seed, len(instance))
    if task.source.clock is not None:
        found, later = _on_clock(task, task.source.clock, instance)
        return Cell(*drawn, *found, stopwatch() - began, later)
    runs = [run(instance, loaded(policy), seed=task.seed) for policy in task.policies]
    whole = [each for each in runs if each.preemption == "restarted"]
    others = [each for each in runs if each.preemption != "restarted"]
    best, proven = enclose(instance, [each.schedule for each in whole], task.time_limit)
    for each in whole:
        _covered(proven, each)
    ends = best.total_latency, best.policy, math.ceil(proven.value), proven.method
    latencies: dict[str, float] = {each.policy: each.total_latency for each in runs}
    later = _going_on(instance, others, best) if others else None
    return Cell(*drawn, latencies, *ends, stopwatch() - began, later)


def _going_on(instance: Instance, runs: list[Execution], best: Schedule) -> dict[str, Any]:
    """Return the best run known, and a bound, where preempted requests may go on."""
    proven = find_bound(instance, "closed-form")
    for each in runs:
        if broken := each.check():
            raise ScheduleError(f"the run of {each.policy!r} is infeasible: {broken[0]}")
        _covered(proven, each)
    known: list[Execution | Schedule] = [best, *runs]
    least = min(known, key=lambda each: each.total_latency)
    ends = least.total_latency, least.policy, math.ceil(proven.value), proven.method
    return _in_own_world([each.policy for each in runs], ends)


def _in_own_world(policies: list[str], ends: tuple[float, str, float, str]) -> dict[str, Any]:
    names = ("policies", "best", "best_by", "bound", "proof")
    return dict(zip(names, (policies, *ends), strict=True))


def _on_clock(
    task: Task, clock: LinearClock, instance: Instance
) -> tuple[tuple[dict[str, float], float, str, float, str], dict[str, Any] | None]:
    """Return latencies, the best checked run and a bound; the latter two also of later storage."""
    runs = [
        run(instance, loaded(policy), clock=clock, seed=task.seed)
        for policy in (*task.policies, get_policy("work"))
    ]
    for found in runs:
        raise_if_interrupted(found)
        if found.unfinished:
            raise PolicyError(
                f"policy {found.policy!r} leaves {found.unfinished} requests unfinished; leave it "
                "out"
            )
        if broken := found.check():
            raise ScheduleError(f"the run of {found.policy!r} is infeasible: {broken[0]}")
    latencies = {each.policy: each.total_latency for each in runs[: len(task.policies)]}
    ends = _enclosed(instance, clock, [each for each in runs if not _is_later(each)])
    engines = [each.policy for each in runs if _is_later(each)]
    if not engines:
        return (latencies, *ends), None
    return (latencies, *ends), _in_own_world(engines, _enclosed(instance, clock, runs, STORAGES[1]))


def _is_later(run: ClockedRun) -> bool:
    return run.facts.storage != STORAGES[0]


def _enclosed(
    instance: Instance,
    clock: LinearClock,
    runs: list[ClockedRun],
    storage: Storage = STORAGES[0],
) -> tuple[float, str, float, str]:
    """Return the best of some runs with its policy, and a bound that covers all of them."""
    best = min(runs, key=lambda each: each.total_latency)
    proven = find_bound(instance, clock=clock, storage=storage)
    for each in runs:
        _covered(proven, each)
    return best.total_latency, best.policy, proven.value, proven.method


def _covered(proven: Bound | ClockBound, run: Execution | ClockedRun) -> None:
    """Refuse a run that the bound does not cover."""
    if why := strongest([proven], run.facts)[1]:
        raise PolicyError(f"policy {run.policy!r} has no regret: {why}; leave it out")


def enclose(
    instance: Instance, schedules: list[Schedule], time_limit: float = 0.0
) -> tuple[Schedule, Bound]:
    """Return the best schedule known, checked, and a proven bound on the total latency."""
    known = [*schedules, run(instance, "area").schedule]
    for schedule in known:
        _check(schedule)
    best = min(known, key=_total)
    proven = find_bound(instance)
    alike = instance.prompts.min() == instance.prompts.max()
    if alike and (value := machines_bound(instance)) > proven.value:
        # Age makes little difference here, so neither better prices nor an even pace gain much.
        premises = replace(proven.premises, preemption="restarted")
        name = "identical machines"
        proven = replace(proven, value=value, method=name, certificate=None, premises=premises)
    elif proven.prices is not None and best.total_latency > proven.value:
        best = min(best, _check(start_evenly(instance)), key=_total)
        per_round = _STEP_WORK * best.makespan + _REQUEST_WORK * len(instance)
        work = max(_LEAST_WORK, _ROUNDS * per_round)
        better = improve_prices(best, proven.prices, work=work)
        if better.interrupted:
            raise KeyboardInterrupt
        proven = max(proven, better, key=lambda each: each.value)
    if time_limit > 0 and len(instance) <= _MAX_SOLVED and best.total_latency > proven.value:
        best, proven = _look_further(instance, best, proven, time_limit)
    return best, proven


def _look_further(
    instance: Instance, best: Schedule, proven: Bound, time_limit: float
) -> tuple[Schedule, Bound]:
    found = solve(instance, time_limit=time_limit)
    if found.status == "interrupted":
        raise KeyboardInterrupt
    if found.schedule.total_latency < best.total_latency:
        best = replace(_check(found.schedule), policy="hindsight")
    if found.bound > proven.value:
        proof = found.certificate
        proof = None if isinstance(proof, ConfigurationCertificate) else proof
        premises = found.premises
        proven = Bound(found.bound, found.proof, found.seconds, proof, premises=premises)
    return best, proven


def _total(schedule: Schedule) -> int:
    return schedule.total_latency


def _check(schedule: Schedule) -> Schedule:
    broken = [violation for violation in schedule.check() if violation.kind != "deadline"]
    if broken:
        raise ScheduleError(f"the schedule of {schedule.policy!r} is infeasible: {broken[0]}")
    return schedule
