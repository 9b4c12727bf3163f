"""`optsched.rolling`: a rolling horizon on an instance, and how its decisions came about."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.views import draw
from optsched.errors import PolicyError, is_interrupt
from optsched.policies import DecisionPolicy, RollingPolicy
from optsched.rolling.driver import Driver, Finisher
from optsched.simulate import execute

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes

    from optsched._internal.arrays import IntArray
    from optsched.clock import BatchContent, Clock
    from optsched.execution import Execution
    from optsched.instance import Instance
    from optsched.policies import PriorityPolicy
    from optsched.policies.decision import State
    from optsched.policies.rolling import Reading
    from optsched.rolling.driver import Counts
    from optsched.rolling.window import Window
    from optsched.schedule import Schedule
    from optsched.simulate.seconds.execution import ClockedRun


@dataclass(frozen=True, eq=False, repr=False)
class RollingRun:
    """A run of a rolling horizon.

    Attributes
    ----------
    policy
        The settings.
    execution
        All that was done: an `Execution`, or a `ClockedRun` on a clock.
    counts
        How the decisions came about.
    seconds
        Time that the run took, without compilation.
    interrupted
        Whether Ctrl-C ended the planning: the fallback then decided all that was left.
    """

    policy: RollingPolicy
    execution: Execution | ClockedRun
    counts: Counts
    seconds: float
    interrupted: bool = False

    def __repr__(self) -> str:
        return f"<RollingRun of {self.execution.instance.name!r}: {self.decisions} decisions>"

    @property
    def schedule(self) -> Schedule:
        """The schedule, where batches take one step each.

        Raises
        ------
        PolicyError
            If it ran on a clock, or not all requests were completed.
        """
        if hasattr(self.execution, "clock"):
            raise PolicyError("a run on a clock has batches, not a schedule; look at its execution")
        return self.execution.schedule

    @property
    def decisions(self) -> int:
        """Reviews at which it was decided who starts next."""
        return len(self.counts.seconds) + self.counts.interrupted

    @property
    def fallbacks(self) -> int:
        """Decisions of the fallback, for whatever reason."""
        return self.decisions - self.counts.planned

    @property
    def over_budget(self) -> int:
        """Decisions that took more than twice the budget."""
        return int((np.array(self.counts.seconds) > 2 * self.policy.budget).sum())

    def to_dict(self) -> dict[str, Any]:
        """Give settings and counts as plain data, ready for JSON.

        Returns
        -------
        dict
            Seconds per decision are None where there was none; decisions after an interruption
            are left out of them.
        """
        policy, counts = self.policy, self.counts
        seconds = np.array(counts.seconds)
        some = len(seconds) > 0
        return {
            "model": policy.model if isinstance(policy.model, str) else "own",
            "window": policy.window,
            "horizon": policy.horizon,
            "every": policy.every,
            "budget": policy.budget,
            "fallback": policy.order.name,
            "reading": policy.reading,
            "futures": policy.futures,
            "decisions": self.decisions,
            "planned": counts.planned,
            "fallbacks": self.fallbacks,
            "failed": counts.failed,
            "late": counts.late,
            "overruled": counts.overruled,
            "without_budget": counts.without_budget,
            "interrupted": self.interrupted,
            "after_interruption": counts.interrupted,
            "cut": counts.cut,
            "over_budget": self.over_budget,
            "reasons": dict(counts.reasons),
            "median_seconds": float(np.median(seconds)) if some else None,
            "p99_seconds": float(np.quantile(seconds, 0.99)) if some else None,
            "max_seconds": float(seconds.max()) if some else None,
            "seconds": self.seconds,
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the share of decisions that took at most so long, and the budget.

        Parameters
        ----------
        ax
            Where to draw; None makes a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes drawn on.
        """
        return draw("plot_decision_times", self, ax)

    def __str__(self) -> str:
        facts = self.to_dict()
        lines = [
            f"{facts['decisions']:,} decisions on windows of up to {facts['window']} requests: "
            f"{facts['planned']:,} planned by {facts['model']}, {facts['fallbacks']:,} by the "
            f"fallback {facts['fallback']}"
        ]
        if facts["budget"] == 0:
            lines.append("  the budget is zero, so nothing was planned")
        elif facts["fallbacks"]:
            lines.append(
                f"  of these {facts['failed']:,} because no plan was found, {facts['late']:,} "
                f"because it came too late, {facts['overruled']:,} because the fallback was better "
                "on possible futures"
            )
        if self.interrupted:
            lines.append(
                f"  interrupted: no more planning; the fallback made the last "
                f"{facts['after_interruption']:,} decisions"
            )
        lines += [f"  {count:,} times: {reason}" for reason, count in facts["reasons"].items()]
        if facts["median_seconds"] is not None:
            lines.append(
                f"  a decision took {1e3 * facts['median_seconds']:.2g} ms in the median, "
                f"{1e3 * facts['max_seconds']:.2g} ms at most; {facts['over_budget']:,} took more "
                f"than twice the budget of {1e3 * facts['budget']:g} ms"
            )
        if facts["cut"]:
            lines.append(
                f"  the budget cut {facts['cut']:,} searches short: another run may differ"
            )
        return "\n".join(lines)


def rolling(
    instance: Instance,
    *,
    model: str | Callable[[Window], IntArray] = "hindsight",
    window: int = 64,
    horizon: int | None = None,
    every: int = 1,
    budget: float = 0.02,
    fallback: str | PriorityPolicy = "area",
    intervals: str | None = None,
    reading: Reading = "posterior",
    futures: int = 8,
    seed: int = 0,
    clock: str | Clock | Callable[[BatchContent], float] | None = None,
    until: float = np.inf,
    on_progress: Callable[[int, int], None] | None = None,
) -> RollingRun:
    """Run a rolling horizon: plan those who wait, start whom the plan starts now, and again.

    Reviews take place when somebody has arrived, when an output turns out other than planned, and
    when somebody has started while others wait beyond the window.

    Ctrl-C ends the planning, not the run: what was decided stays, the fallback decides the rest,
    and the result says so. A second Ctrl-C ends it all.

    Parameters
    ----------
    instance
        The requests, with their true outputs. What arrives later is not looked at.
    model
        What plans a window: "hindsight" (by search), "hindsight-exact" (by HiGHS), "relax-lp",
        "batch", or a function that takes a `Window` and gives a start for each of its requests.
    window, horizon, every, budget, fallback, reading, futures
        As for `RollingPolicy`.
    intervals
        What it may know of the outputs, as for `forecast`; None: the outputs.
    seed
        Of all randomness. The same seed gives the same run unless the budget cut a search short or
        a plan came too late, which the counts say.
    clock, until
        As for `execute`; on a clock windows are planned in batches.
    on_progress
        Called after each decision with the requests that run or are complete, and all.

    Returns
    -------
    RollingRun
        What was done, how often the fallback decided, and how long decisions took.

    Raises
    ------
    PolicyError
        If a setting makes no sense.
    InstanceError
        If an output lies outside its interval.

    Examples
    --------
    >>> from optsched import family, rolling
    >>> instance = family("uniform", n=30, seed=1)
    >>> rolling(instance, budget=0).schedule.total_latency  # the fallback, area
    3757
    >>> run = rolling(instance, budget=1)
    >>> run.schedule.total_latency < 3700, run.decisions, run.fallbacks
    (True, 1, 0)
    """
    policy = RollingPolicy(model, window, horizon, every, budget, fallback, reading, futures)
    driver = Driver(policy, seed, on_progress)
    began = time.perf_counter()

    def carried_out(decide: Callable[[State], IntArray]) -> Execution | ClockedRun:
        asked = DecisionPolicy(policy.name, policy.title, decide)
        if clock is None:
            return execute(instance, asked, intervals=intervals, seed=seed)
        return execute(instance, asked, intervals=intervals, seed=seed, clock=clock, until=until)

    interrupted = False
    try:
        execution = carried_out(driver)
    except (KeyboardInterrupt, SystemError) as stop:
        if not is_interrupt(stop):
            raise
        interrupted = True
        execution = carried_out(Finisher(driver))
    return RollingRun(policy, execution, driver.counts, time.perf_counter() - began, interrupted)
