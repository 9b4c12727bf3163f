"""Policies side by side on a clock, where batches take time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.views import text
from optsched.clock import LinearClock
from optsched.clock_work import load_on_clock
from optsched.comparison.base import TINY, Comparison, describe_instance
from optsched.simulate import run
from optsched.simulate.runners import raise_if_interrupted
from optsched.simulate.seconds.execution import ClockedRun
from optsched.solvers.bounds.bound import bound as find_bound
from optsched.solvers.bounds.bound import round_down

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.clock import Clock
    from optsched.forecasts import Beliefs
    from optsched.instance import Instance
    from optsched.policies import Policy, Rule
    from optsched.solvers.bounds.bound import ClockBound


@dataclass(frozen=True, eq=False, repr=False)
class ClockComparison(Comparison[ClockedRun]):
    """What several policies made of an instance on one clock."""

    instance: Instance
    clock: Clock
    runs: tuple[ClockedRun, ...]
    seconds: tuple[float, ...]
    warm_up: float = 0.0
    intervals: str | None = None
    bound: ClockBound | None = None

    _table, _plot, _page = "clock_table", "plot_clock_comparison", "clock_page"

    def gap(self, run: str | ClockedRun) -> float | None:
        """Return (total latency - bound) / total latency, which no schedule can save more of.

        None where there is no bound, where requests are unfinished, or where some do not count.
        """
        run = self[run] if isinstance(run, str) else run
        if self.bound is None or run.unfinished or self.warm_up:
            return None
        return (run.total_latency - self.bound.value) / run.total_latency

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the requests' times as plain data."""
        load = load_on_clock(self.instance, self.clock)
        return {
            "instance": describe_instance(self.instance, float(self.runs[0].arrivals[-1])),
            "clock": {"name": self.clock.name, "unit": self.clock.unit},
            "load": None if load is None or not load.span else load.load,
            "bound": self.bound
            and {
                "value": self.bound.value,
                "mean_latency": round_down(Fraction(self.bound.value) / len(self.instance)),
                "method": self.bound.method,
                "seconds": self.bound.seconds,
            },
            "policies": [
                self._marked(
                    run,
                    {**run.metrics(self.warm_up), "gap": self.gap(run), "seconds": seconds},
                )
                for run, seconds in zip(self.runs, self.seconds, strict=True)
            ],
        }

    def __str__(self) -> str:
        about = [line for line in str(self.instance).splitlines() if line.split()[0] != "load"]
        if load := load_on_clock(self.instance, self.clock):  # which steps say nothing of
            about.append(f"  load      {load}")
        return "\n".join([*about, "", text("clock_table", self)])


def compare_on_clock(
    instance: Instance,
    clock: Clock,
    chosen: list[Policy],
    *,
    intervals: str | None = None,
    beliefs: Beliefs | Instance | None = None,
    rule: Rule = "prefix",
    seed: int = 0,
    bound: ClockBound | None = None,
    on_result: Callable[[ClockedRun, float], None] | None = None,
    until: float = np.inf,
    warm_up: float = 0.0,
) -> ClockComparison:
    """Run policies on an instance with batches that take time."""
    runs, times = [], []
    tiny = TINY.replace(memory=max(2, instance.memory))  # an engine's blocks are those of it
    for policy in chosen:
        known: dict[str, Any] = {"intervals": intervals and "exact", "rule": rule}
        run(tiny, policy, clock="unit", **known)  # compiles
        known |= {"intervals": intervals, "beliefs": beliefs}
        began = time.perf_counter()
        clocked = run(instance, policy, clock=clock, **known, seed=seed, until=until)
        times.append(time.perf_counter() - began)
        runs.append(clocked)
        if on_result is not None:
            on_result(clocked, times[-1])
        raise_if_interrupted(clocked)
    if bound is None and isinstance(clock, LinearClock):
        bound = find_bound(instance, clock=clock)
    return ClockComparison(instance, clock, tuple(runs), tuple(times), warm_up, intervals, bound)
