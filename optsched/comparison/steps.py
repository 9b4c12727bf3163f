"""Policies side by side in steps, compared with a proven bound on what any schedule can reach."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from optsched._internal.loading import stopwatch
from optsched._internal.views import text
from optsched.comparison.base import (
    TINY,
    Comparison,
    check_bound,
    describe_bound,
    describe_instance,
)
from optsched.errors import PolicyError, ScheduleError
from optsched.execution import Execution
from optsched.schedule import Schedule
from optsched.simulate import run
from optsched.simulate.dispatch import prepared
from optsched.simulate.runners import raise_if_interrupted
from optsched.solvers.bounds.bound import Bound
from optsched.solvers.bounds.bound import bound as find_bound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from optsched.instance import Instance
    from optsched.policies import Policy
    from optsched.simulate import RunSettings
    from optsched.solvers.bounds.bound import BoundMethod

#: What is compared where policies may only know intervals and none are named.
UNDER_INTERVALS = ("h-sf", "a-max", "a-min", "area-lower", "area-posterior", "area-chance")


@dataclass(frozen=True, eq=False, repr=False)
class StepComparison(Comparison[Execution]):
    """Runs of several policies in steps, and a lower bound that holds for all of them."""

    instance: Instance
    bound: Bound
    runs: tuple[Execution, ...]
    seconds: tuple[float, ...]
    incomplete: tuple[Execution, ...] = ()
    intervals: str | None = None

    _table, _plot, _page = "comparison_table", "plot_comparison", "comparison_page"

    @property
    def schedules(self) -> list[Schedule]:
        """The schedules, in the order of the policies."""
        return [run.schedule for run in self.runs]

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The bound."""
        return (self.bound,)

    @cached_property
    def demand(self) -> int:
        """Most tokens that would be held if every request started when it arrives."""
        return Schedule(self.instance, self.instance.arrivals).peak_memory

    @property
    def notes(self) -> list[str]:
        """What must be said beside the numbers, one sentence each."""
        memory, best = self.instance.memory, self.best.schedule
        waited = int((best.starts > self.instance.arrivals).sum())
        said = (
            f"Memory is a limit: {best.policy} holds up to {best.peak_memory:,} of {memory:,} "
            f"tokens, and {waited:,} of {len(self.instance):,} requests wait."
        )
        if self.demand <= memory:
            said = (
                f"Memory is never the limit: if every request starts when it arrives, at most "
                f"{self.demand:,} of {memory:,} tokens are held."
            )
        return [*super().notes, said]

    def gap(self, run: str | Execution | Schedule) -> float | None:
        """Return (total latency - bound) / total latency, also of a schedule; None as elsewhere."""
        return super().gap(run)  # type: ignore[arg-type]

    def proven(self, method: BoundMethod) -> StepComparison:
        """Return the comparison with the bound that a method finds."""
        return replace(self, bound=find_bound(self.instance, method))

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the schedules as plain data; latencies in steps."""
        return {
            "instance": describe_instance(self.instance, int(self.instance.arrivals[-1])),
            "bound": {
                "value": self.bound.value,
                "method": self.bound.method,
                "seconds": self.bound.seconds,
            },
            "bounds": [describe_bound(self.bound, self.instance)],
            "memory_binds": self.demand > self.instance.memory,
            "intervals": self.intervals,
            "policies": [
                self._marked(
                    run,
                    {
                        "policy": run.policy,
                        **run.schedule.metrics(),
                        **self._claims(run),
                        "waited": int((run.schedule.starts > self.instance.arrivals).sum()),
                        "preemptions": run.preemptions,
                        "evictions": run.preemptions,
                        "preempted_tokens": run.preempted_tokens,
                        "seconds": seconds,
                    },
                )
                for run, seconds in zip(self.runs, self.seconds, strict=True)
            ],
            "unfinished": [run.metrics() for run in self.incomplete],
        }

    def __str__(self) -> str:
        lines = [f"{self.instance}\n", text("comparison_table", self), *self.notes]
        for each in self.incomplete:
            lines.append(f"  {each.policy} does not complete all: its run {each.why}")
        return "\n".join(lines)


def compare_in_steps(
    instance: Instance,
    chosen: list[Policy],
    settings: RunSettings,
    *,
    bound: Bound | None = None,
    on_result: Callable[[Execution, float], None] | None = None,
) -> StepComparison:
    """Run policies in steps, check their schedules, and compare them with a proven lower bound."""
    if bound is not None:
        check_bound(bound, instance)
    for policy in chosen:
        prepared(instance, policy, settings.of(policy))
    load_kernels(chosen, settings, int(instance.arrivals[-1]))
    if bound is None:
        bound = find_bound(instance)
    runs: list[Execution] = []
    times: list[float] = []
    incomplete: list[Execution] = []
    for policy in chosen:
        began = stopwatch()
        execution: Execution = run(instance, policy, settings.of(policy))
        seconds = stopwatch() - began
        if not execution.all_complete:
            incomplete.append(execution)
            continue
        # No policy knows of deadlines; metrics count those that were missed.
        broken = [each for each in execution.schedule.check() if each.kind != "deadline"]
        if execution.preemptions:
            broken += execution.check()
        if broken:
            raise ScheduleError(f"policy {policy.name!r} is infeasible: {broken[0]}")
        runs.append(execution)
        times.append(seconds)
        if on_result is not None:
            on_result(execution, seconds)
        raise_if_interrupted(execution)
    if not runs:
        raise PolicyError(
            f"no policy completes all requests; policy {incomplete[0].policy!r}: its run "
            f"{incomplete[0].why}"
        )
    return StepComparison(
        instance, bound, tuple(runs), tuple(times), tuple(incomplete), settings.intervals
    )


def load_kernels(policies: Iterable[Policy], settings: RunSettings, last_arrival: int = 1) -> None:
    """Load the kernels, so that this counts as no policy's time; at first they are compiled."""
    tiny = TINY.replace(arrivals=[0, min(last_arrival, 1)])  # where all are there, others run
    find_bound(tiny.replace(weights=None, deadlines=None))
    settings = settings.for_warm_up()
    for policy in policies:
        if policy.needs.kind != "decision":  # which is no kernel, and not ours to call
            run(tiny, policy, settings)
