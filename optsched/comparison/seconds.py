"""Policies side by side on a clock, where batches take time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.loading import stopwatch
from optsched._internal.numbers import proven
from optsched._internal.views import text
from optsched.clock import LinearClock
from optsched.clock.work import load_on_clock
from optsched.comparison.base import (
    TINY,
    Comparison,
    check_bound,
    describe_bound,
    describe_instance,
)
from optsched.premises import STORAGES
from optsched.simulate import run
from optsched.simulate.dispatch import prepared
from optsched.simulate.runners import raise_if_interrupted
from optsched.simulate.seconds.execution import ClockedRun
from optsched.solvers.bounds.bound import bound as find_bound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from optsched.clock import Clock
    from optsched.instance import Instance
    from optsched.policies import Policy
    from optsched.premises import Claim
    from optsched.simulate import RunSettings
    from optsched.solvers.bounds.bound import BoundMethod, ClockBound


@dataclass(frozen=True, eq=False, repr=False)
class ClockComparison(Comparison[ClockedRun]):
    """What several policies made of an instance on one clock."""

    instance: Instance
    clock: Clock
    runs: tuple[ClockedRun, ...]
    seconds: tuple[float, ...]
    warm_up: float = 0.0
    intervals: str | None = None
    bounds: tuple[ClockBound, ...] = ()

    _table, _plot, _page = "clock_table", "plot_clock_comparison", "clock_page"

    @property
    def bound(self) -> ClockBound | None:
        """The bound of the papers' model, in which a token is held at once; None without bounds."""
        return self.bounds[0] if self.bounds else None

    @cached_property
    def demand(self) -> int:
        """Most tokens that the requests in the system would hold if all were at their peaks."""
        return max(_demand(run) for run in self.runs)

    @property
    def notes(self) -> list[str]:
        """What must be said beside the numbers, one sentence each."""
        found, memory = super().notes, self.instance.memory
        peak = max(run.peak_memory for run in self.runs)
        limit = "may be a limit" if self.demand > memory else "is never the limit"
        found.append(
            f"Memory {limit}: at most {peak:,} of {memory:,} tokens are held, and the requests in "
            f"the system would hold at most {self.demand:,} at their peaks."
        )
        late = [run.policy for run in self.runs if run.facts.storage != STORAGES[0]]
        if late and len(self.bounds) > 1:
            mean = proven(Fraction(self.bounds[1].value) / len(self.instance))
            found.append(
                f"{', '.join(late)}: tokens are stored one batch later than the papers count them, "
                f"which leaves more room; for that the proven bound on the mean is {mean}."
            )
        return found

    def covering(self, run: str | ClockedRun) -> tuple[Claim | None, str | None]:
        """Return the largest bound that covers a run; on a function, by what its batches took."""
        found, bound = self[run] if isinstance(run, str) else run, self.bound
        slower = bound is not None and not found.facts.clock and found.lasts_as_on(bound.clock)
        return super().covering(replace(found, clock=bound.clock) if bound and slower else found)

    def proven(self, method: BoundMethod) -> ClockComparison:
        """Return the comparison with the bounds that a method finds."""
        return replace(self, bounds=_bounds(self.instance, self.clock, self.runs, method))

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the requests' times as plain data."""
        load = load_on_clock(self.instance, self.clock)
        bounds = [describe_bound(each, self.instance) for each in self.bounds]
        return {
            "instance": describe_instance(self.instance, float(self.runs[0].arrivals[-1])),
            "clock": {"name": self.clock.name, "unit": self.clock.unit},
            "load": None if load is None or not load.span else load.load,
            "bound": None
            if not bounds
            else {k: v for k, v in bounds[0].items() if k != "premises"},
            "bounds": bounds,
            "memory_binds": self.demand > self.instance.memory,
            "policies": [
                self._marked(
                    run,
                    {**run.metrics(self.warm_up), **self._claims(run), "seconds": seconds},
                )
                for run, seconds in zip(self.runs, self.seconds, strict=True)
            ],
        }

    def __str__(self) -> str:
        about = [line for line in str(self.instance).splitlines() if line.split()[0] != "load"]
        if load := load_on_clock(self.instance, self.clock):  # which steps say nothing of
            about.append(f"  load      {load}")
        return "\n".join([*about, "", text("clock_table", self), *self.notes])


def _demand(run: ClockedRun) -> int:
    """Return the most tokens that arrived and incomplete requests would hold at their peaks."""
    peaks, done = run.instance.peaks, run.completed
    times = np.concatenate([run.arrivals, run.completions[done]])
    changes = np.concatenate([peaks, -peaks[done]])
    order = np.lexsort((changes, times))  # at equal times those that complete go first
    return int(np.cumsum(changes[order]).max())


def _bounds(
    instance: Instance,
    clock: Clock,
    runs: Iterable[ClockedRun],
    method: BoundMethod = "auto",
    given: ClockBound | None = None,
) -> tuple[ClockBound, ...]:
    """Return the bound of the papers' model, and a weaker one for runs that it does not cover."""
    if given is None and not isinstance(clock, LinearClock):
        return ()
    first = find_bound(instance, method, clock=clock) if given is None else given
    storage = first.premises.storage
    alike = all(run.facts.storage == storage for run in runs)
    if alike or storage != STORAGES[0] or not isinstance(clock, LinearClock):
        return (first,)
    limit = first.premises.max_num_seqs
    later = find_bound(instance, method, clock=clock, max_num_seqs=limit, storage=STORAGES[1])
    return first, later


def compare_on_clock(
    instance: Instance,
    chosen: list[Policy],
    settings: RunSettings,
    *,
    bound: ClockBound | None = None,
    on_result: Callable[[ClockedRun, float], None] | None = None,
    warm_up: float = 0.0,
) -> ClockComparison:
    """Run policies on an instance with batches that take time."""
    if bound is not None:
        check_bound(bound, instance)
    runs: list[ClockedRun] = []
    times: list[float] = []
    tiny = TINY.replace(memory=max(2, instance.memory))  # an engine's blocks are those of it
    for policy in chosen:
        prepared(instance, policy, settings.of(policy))
    for policy in chosen:
        run(tiny, policy, settings.for_warm_up())  # compiles
        began = stopwatch()
        clocked: ClockedRun = run(instance, policy, settings.of(policy))
        times.append(stopwatch() - began)
        runs.append(clocked)
        if on_result is not None:
            on_result(clocked, times[-1])
        raise_if_interrupted(clocked)
    clock = settings.batch_clock
    bounds = _bounds(instance, clock, runs, given=bound)
    return ClockComparison(
        instance, clock, tuple(runs), tuple(times), warm_up, settings.intervals, bounds
    )
