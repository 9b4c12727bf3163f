"""One instance: what each policy costs, the best schedule known, and a proven bound."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from optsched.certificates.prices import Certificate
from optsched.errors import PolicyError, ScheduleError
from optsched.optimum.solving import solve
from optsched.policies import get_policy
from optsched.simulate import run
from optsched.simulate.runners import raise_if_interrupted
from optsched.solvers.bounds.ascent import improve_prices
from optsched.solvers.bounds.bound import Bound
from optsched.solvers.bounds.bound import bound as find_bound
from optsched.solvers.bounds.machines import machines_bound
from optsched.solvers.search.pacing import start_evenly

if TYPE_CHECKING:
    from optsched.clock import LinearClock
    from optsched.experiments.regrets.source import Source
    from optsched.instance import Instance
    from optsched.policies import Policy
    from optsched.schedule import Schedule

_MAX_SOLVED = 20_000  # requests up to which `solve` is asked

# Of the ascent, in the unit of the search: so many rounds, and never less than that.
_ROUNDS, _LEAST_WORK = 60, 3e8
_STEP_WORK, _REQUEST_WORK = 70.0, 1200.0


@dataclass(frozen=True)
class Task:
    """An instance to be drawn, and what to run on it."""

    source: Source
    policies: tuple[Policy, ...]
    load: float
    rate: float
    horizon: int
    seed: int
    time_limit: float


@dataclass(frozen=True)
class Cell:
    """What came of one instance. All latencies are totals over its requests, in one unit."""

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

    def regret(self, policy: str) -> tuple[float, float]:
        """Return both ends of a policy's regret per request (Jaillet Def. 5.1)."""
        latency = self.latencies[policy]
        return (latency - self.best) / self.requests, (latency - self.bound) / self.requests

    def ratio(self, policy: str) -> tuple[float, float]:
        """Return both ends of the ratio of a policy's latency to the least possible."""
        latency = self.latencies[policy]
        return latency / self.best, latency / self.bound

    def to_dict(self) -> dict[str, Any]:
        """Return the cell as plain data, ready for JSON."""
        return dict(vars(self))


def perform(task: Task) -> Cell:
    """Draw an instance, run the policies, and enclose the optimum."""
    began = time.perf_counter()
    instance = task.source.draw(task.rate, task.horizon, task.seed)
    drawn = (task.load, task.rate, task.horizon, task.seed, len(instance))
    if task.source.clock is not None:
        found = _on_clock(task, task.source.clock, instance)
        return Cell(*drawn, *found, time.perf_counter() - began)
    schedules = {
        policy.name: run(instance, policy, seed=task.seed).schedule for policy in task.policies
    }
    best, proven = enclose(instance, list(schedules.values()), task.time_limit)
    return Cell(
        *drawn,
        {name: schedule.total_latency for name, schedule in schedules.items()},
        best.total_latency,
        best.policy,
        math.ceil(proven.value),  # total latencies are whole
        proven.method,
        time.perf_counter() - began,
    )


def _on_clock(
    task: Task, clock: LinearClock, instance: Instance
) -> tuple[dict[str, float], float, str, float, str]:
    """Return latencies, the best run known, which was checked, and a proven bound on a clock."""
    latencies, known = {}, {}
    for policy in (*task.policies, get_policy("work")):
        found = run(instance, policy, clock=clock, seed=task.seed)
        raise_if_interrupted(found)
        if found.unfinished:
            raise PolicyError(
                f"policy {policy.name!r} leaves {found.unfinished} requests unfinished; leave it "
                "out"
            )
        if broken := found.check():
            raise ScheduleError(f"the run of {policy.name!r} is infeasible: {broken[0]}")
        known[policy.name] = found.total_latency
        if policy in task.policies:
            latencies[policy.name] = found.total_latency
    best = min(known, key=known.__getitem__)
    proven = find_bound(instance, clock=clock)
    return latencies, known[best], best, proven.value, proven.method


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
        proven = Bound(value, "identical machines", 0.0)
    elif proven.certificate is not None and best.total_latency > proven.value:
        best = min(best, _check(start_evenly(instance)), key=_total)
        per_round = _STEP_WORK * best.makespan + _REQUEST_WORK * len(instance)
        work = max(_LEAST_WORK, _ROUNDS * per_round)
        better = improve_prices(best, proven.certificate, work=work)
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
        prices = found.certificate if isinstance(found.certificate, Certificate) else None
        proven = Bound(found.bound, found.proof, found.seconds, prices)
    return best, proven


def _total(schedule: Schedule) -> int:
    return schedule.total_latency


def _check(schedule: Schedule) -> Schedule:
    broken = [violation for violation in schedule.check() if violation.kind != "deadline"]
    if broken:
        raise ScheduleError(f"the schedule of {schedule.policy!r} is infeasible: {broken[0]}")
    return schedule
