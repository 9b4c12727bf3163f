"""Policies side by side, held against a proven bound on what any schedule could reach."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optsched.errors import ScheduleError
from optsched.instance import Instance
from optsched.policies import get_policies
from optsched.simulate import run
from optsched.solvers.bounds import Bound
from optsched.solvers.bounds import bound as find_bound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import pandas as pd
    from matplotlib.axes import Axes

    from optsched.policies import Policy
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
    """

    schedule: Schedule
    seconds: float


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
            Keys "instance", "bound" and "policies"; latencies in steps, memory in tokens.
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
            "policies": [
                {
                    "policy": result.schedule.policy,
                    **result.schedule.metrics(),
                    "gap": self.gap(result.schedule),
                    "seconds": result.seconds,
                }
                for result in self.results
            ],
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
        from optsched.report.plots import plot_comparison

        return plot_comparison(self, ax)

    def to_html(self, path: str | Path) -> None:
        """Write the comparison as one HTML file that needs no network.

        Parameters
        ----------
        path
            Where to write it.
        """
        from optsched.report.html import write_report

        write_report(self, path)

    def __str__(self) -> str:
        from optsched.report.tables import comparison_table, to_text

        return f"{self.instance}\n\n{to_text(comparison_table(self))}"


def compare(
    instance: Instance,
    policies: Sequence[str | Policy] | None = None,
    *,
    bound: Bound | None = None,
    on_result: Callable[[PolicyResult], None] | None = None,
) -> Comparison:
    """Run policies on an instance and hold them against a proven lower bound.

    Parameters
    ----------
    instance
        The requests.
    policies
        Names or policy objects; None means the basic ones, which take milliseconds.
    bound
        A bound that was found before; None finds one.
    on_result
        Called with each result as soon as it is there.

    Returns
    -------
    Comparison
        All schedules, checked for feasibility, and the bound.

    Raises
    ------
    PolicyError
        If a policy is unknown or given twice.
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
    chosen = get_policies(policies)
    load_kernels(chosen)
    if bound is None:
        bound = find_bound(instance)
    results = []
    for policy in chosen:
        began = time.perf_counter()
        schedule = run(instance, policy)
        result = PolicyResult(schedule, time.perf_counter() - began)
        # No policy knows of deadlines; metrics count those that were missed.
        if broken := [v for v in schedule.check() if v.kind != "deadline"]:
            raise ScheduleError(f"policy {policy.name!r} is infeasible: {broken[0]}")
        results.append(result)
        if on_result is not None:
            on_result(result)
    return Comparison(instance, bound, tuple(results))


def load_kernels(policies: Iterable[Policy]) -> None:
    """Load the kernels, so that this does not count as anybody's time.

    The first time ever they are compiled, which takes some ten seconds.

    Parameters
    ----------
    policies
        The policies to be run.
    """
    tiny = Instance([1, 1], [1, 1], memory=2, arrivals=[0, 1])
    find_bound(tiny)
    for policy in policies:
        run(tiny, policy)
