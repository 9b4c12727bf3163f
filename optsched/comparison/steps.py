"""Policies side by side, held against a proven bound on what any schedule could reach."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optsched._internal.views import draw, text, write
from optsched.errors import PolicyError, ScheduleError
from optsched.instance import Instance
from optsched.policies import DecisionPolicy, get_policies
from optsched.simulate import execute
from optsched.simulate.dispatch import check_knowledge
from optsched.solvers.bounds.bound import Bound
from optsched.solvers.bounds.bound import bound as find_bound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import pandas as pd
    from matplotlib.axes import Axes

    from optsched.execution import Execution
    from optsched.policies import Policy, Rule
    from optsched.schedule import Schedule


@dataclass(frozen=True)
class PolicyResult:
    """What one policy made of an instance.

    Attributes
    ----------
    schedule
        The feasible schedule; `schedule.policy` is the policy's name.
    seconds
        Time to find it, without compilation.
    evictions
        Attempts that were cancelled on the way.
    wasted_tokens
        Tokens made in these.
    """

    schedule: Schedule
    seconds: float
    evictions: int = 0
    wasted_tokens: int = 0


@dataclass(frozen=True)
class Comparison:
    """Schedules of several policies and a lower bound that holds for all of them.

    Prints as a table, converts to pandas, plots, and writes a self-contained HTML report.

    Attributes
    ----------
    instance
        The requests.
    bound
        A proven lower bound on the total latency of every feasible schedule.
    results
        One entry per policy, in the order they were asked for.
    unfinished
        Runs of the policies that do not complete all requests, and so have no latency.
    intervals
        What the policies knew of the outputs; None: the outputs.

    Examples
    --------
    >>> from optsched import Instance, compare
    >>> comparison = compare(Instance([63] + 21 * [1], [1] + 21 * [2], memory=64))
    >>> comparison.best.policy, comparison.best.total_latency
    ('mc-sf-total', 45)
    >>> round(comparison.gap(comparison.best), 3)
    0.044
    """

    instance: Instance
    bound: Bound
    results: tuple[PolicyResult, ...]
    unfinished: tuple[Execution, ...] = ()
    intervals: str | None = None

    @property
    def schedules(self) -> list[Schedule]:
        """The schedules, in the order of the policies."""
        return [result.schedule for result in self.results]

    @property
    def best(self) -> Schedule:
        """The schedule of least total latency; the first of several."""
        return min(self.schedules, key=lambda schedule: schedule.total_latency)

    def gap(self, schedule: Schedule) -> float:
        """Give the share of a schedule's total latency that the bound does not account for.

        Parameters
        ----------
        schedule
            A schedule of the instance.

        Returns
        -------
        float
            (total latency - bound) / total latency. No schedule can save more than this share.
        """
        return (schedule.total_latency - self.bound.value) / schedule.total_latency

    def to_dict(self) -> dict[str, Any]:
        """Give everything but the schedules as plain data, ready for JSON.

        Returns
        -------
        dict
            Keys "instance", "bound", "intervals", "policies" and "unfinished"; latencies in steps,
            memory in tokens.
        """
        return {
            "instance": {
                "name": self.instance.name,
                "requests": len(self.instance),
                "memory": self.instance.memory,
                "last_arrival": int(self.instance.arrivals[-1]),
                "seconds_per_step": self.instance.seconds_per_step,
            },
            "bound": {
                "value": self.bound.value,
                "method": self.bound.method,
                "seconds": self.bound.seconds,
            },
            "intervals": self.intervals,
            "policies": [
                {
                    "policy": result.schedule.policy,
                    **result.schedule.metrics(),
                    "gap": self.gap(result.schedule),
                    "evictions": result.evictions,
                    "wasted_tokens": result.wasted_tokens,
                    "seconds": result.seconds,
                }
                for result in self.results
            ],
            "unfinished": [execution.metrics() for execution in self.unfinished],
        }

    def to_pandas(self) -> pd.DataFrame:
        """Give one row per policy, indexed by its name.

        Returns
        -------
        pandas.DataFrame
            Columns as the keys of the entries under "policies" in `to_dict`.

        Examples
        --------
        >>> from optsched import Instance, compare
        >>> compare(Instance([1], [2], memory=3), ["area"]).to_pandas().loc["area", "makespan"]
        np.int64(2)
        """
        import pandas as pd

        return pd.DataFrame(self.to_dict()["policies"]).set_index("policy")

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the policies' total latency over the part that is proven to be unavoidable.

        Parameters
        ----------
        ax
            Where to draw; None makes a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes drawn on.
        """
        return draw("plot_comparison", self, ax)

    def to_html(self, path: str | Path) -> None:
        """Write the comparison as one HTML file that needs no network.

        Parameters
        ----------
        path
            Where to write it.
        """
        write("write_report", self, path)

    def __str__(self) -> str:
        lines = [f"{self.instance}\n", text("comparison_text", self)]
        for execution in self.unfinished:
            lines.append(f"  {execution.policy} does not complete all: its run {execution.why}")
        return "\n".join(lines)


#: What is compared where policies may only know intervals and nobody names policies.
UNDER_INTERVALS = ("h-sf", "a-max", "a-min", "area-lower", "area-posterior")


def compare(
    instance: Instance,
    policies: Sequence[str | Policy] | None = None,
    *,
    intervals: str | None = None,
    rule: Rule = "prefix",
    seed: int = 0,
    bound: Bound | None = None,
    on_result: Callable[[PolicyResult], None] | None = None,
) -> Comparison:
    """Run policies on an instance and hold them against a proven lower bound.

    Parameters
    ----------
    instance
        The requests.
    policies
        Names or policy objects; None means the basic ones, which take milliseconds, or those of
        `UNDER_INTERVALS` where there are intervals.
    intervals
        What the policies may know of the outputs, as for `execute`; None: the outputs.
    rule
        What happens when a request does not fit: "prefix", "skip" or "backfill" (`with_rule`).
    seed
        Of all randomness in the policies.
    bound
        A bound that was found before; None finds one.
    on_result
        Called with each result as soon as it is there.

    Returns
    -------
    Comparison
        All schedules, checked for feasibility, and the bound. A policy whose run never completes
        is listed as unfinished.

    Raises
    ------
    PolicyError
        If a policy is unknown, given twice, told too little or too much, or none completes.
    ScheduleError
        If a policy of your own made an infeasible schedule.

    Examples
    --------
    >>> from optsched import Instance, compare
    >>> print(compare(Instance([3, 1], [2, 1], memory=6, name="two requests")))
    two requests: 2 requests, memory 6 tokens
      prompt    mean 2.0, median 2, max 3 tokens
      output    mean 1.5, median 2, max 2 tokens
      largest   5 tokens at completion (83% of memory)
      arrivals  all at step 0
    ...
    """
    chosen = get_policies(UNDER_INTERVALS if intervals and policies is None else policies)
    for policy in chosen:
        check_knowledge(policy, intervals, rule)
    load_kernels(chosen, intervals, rule)
    if bound is None:
        bound = find_bound(instance)
    results: list[PolicyResult] = []
    unfinished: list[Execution] = []
    for policy in chosen:
        began = time.perf_counter()
        execution = execute(instance, policy, intervals=intervals, rule=rule, seed=seed)
        seconds = time.perf_counter() - began
        if not execution.all_complete:
            unfinished.append(execution)
            continue
        schedule = execution.schedule
        # No policy knows of deadlines; metrics count those that were missed.
        broken = [str(violation) for violation in schedule.check() if violation.kind != "deadline"]
        if execution.evictions:
            broken += execution.check()
        if broken:
            raise ScheduleError(f"policy {policy.name!r} is infeasible: {broken[0]}")
        result = PolicyResult(schedule, seconds, execution.evictions, execution.wasted_tokens)
        results.append(result)
        if on_result is not None:
            on_result(result)
    if not results:
        raise PolicyError(
            f"no policy completes all requests; policy {unfinished[0].policy!r}: its run "
            f"{unfinished[0].why}"
        )
    return Comparison(instance, bound, tuple(results), tuple(unfinished), intervals)


def load_kernels(
    policies: Iterable[Policy], intervals: str | None = None, rule: Rule = "prefix"
) -> None:
    """Load the kernels, so that this does not count as anybody's time.

    The first time ever they are compiled, which takes some ten seconds.

    Parameters
    ----------
    policies
        The policies to be run.
    intervals
        Whether they know intervals only.
    rule
        The rule of admission.
    """
    tiny = Instance([1, 1], [1, 1], memory=2, arrivals=[0, 1])
    find_bound(tiny)
    for policy in policies:
        if not isinstance(policy, DecisionPolicy):  # which is no kernel, and not ours to call
            execute(tiny, policy, intervals=intervals and "exact", rule=rule)
