"""Policies side by side on a clock, where batches take time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.views import draw, text
from optsched.clock import get_clock
from optsched.instance import Instance
from optsched.policies import get_policies
from optsched.simulate import execute

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd
    from matplotlib.axes import Axes

    from optsched.clock import BatchContent, Clock
    from optsched.policies import Policy, Rule
    from optsched.simulate.seconds.execution import ClockedRun


@dataclass(frozen=True, eq=False)
class ClockComparison:
    """What several policies made of an instance on one clock.

    There is no bound here: bounds count steps, and how long a step takes depends on the policy.

    Attributes
    ----------
    instance
        The requests.
    clock
        How long batches take.
    runs
        One per policy, in the order they were asked for.
    seconds
        Time that each took to simulate.
    warm_up
        Time before which arrivals and completions do not count in the metrics.

    Examples
    --------
    >>> from optsched import Instance, compare_on_clock
    >>> compared = compare_on_clock(Instance([62, 62], [2, 1], 64), "affine:0.01,0.001")
    >>> compared.best.policy, round(compared.best.mean_latency, 4)
    ('mc-sf', 0.1465)
    """

    instance: Instance
    clock: Clock
    runs: tuple[ClockedRun, ...]
    seconds: tuple[float, ...]
    warm_up: float = 0.0

    @property
    def best(self) -> ClockedRun:
        """The run with the fewest unfinished requests, then with the least mean latency."""
        return min(self.runs, key=lambda run: (run.unfinished, run.mean_latency))

    def to_dict(self) -> dict[str, Any]:
        """Give everything but the requests' times as plain data, ready for JSON.

        Returns
        -------
        dict
            Keys "instance", "clock", "bound" (None) and "policies", whose entries are those of
            `ClockedRun.metrics`.
        """
        return {
            "instance": {
                "name": self.instance.name,
                "requests": len(self.instance),
                "memory": self.instance.memory,
                "last_arrival": float(self.runs[0].arrivals[-1]),
                "seconds_per_step": self.instance.seconds_per_step,
            },
            "clock": {"name": self.clock.name, "unit": self.clock.unit},
            "bound": None,
            "policies": [
                {**run.metrics(self.warm_up), "seconds": seconds}
                for run, seconds in zip(self.runs, self.seconds, strict=True)
            ],
        }

    def to_pandas(self) -> pd.DataFrame:
        """Give one row per policy, indexed by its name; columns as in `ClockedRun.metrics`."""
        import pandas as pd

        return pd.DataFrame(self.to_dict()["policies"]).set_index("policy")

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the mean latency of each policy, with its median and 99th percentile.

        Parameters
        ----------
        ax
            Where to draw; None makes a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes drawn on.
        """
        return draw("plot_clock_comparison", self, ax)

    def __str__(self) -> str:
        return f"{self.instance}\n\n{text('clock_text', self)}"


def compare_on_clock(
    instance: Instance,
    clock: str | Clock | Callable[[BatchContent], float],
    policies: Sequence[str | Policy] | None = None,
    *,
    intervals: str | None = None,
    rule: Rule = "prefix",
    seed: int = 0,
    until: float = np.inf,
    warm_up: float = 0.0,
    on_result: Callable[[ClockedRun, float], None] | None = None,
) -> ClockComparison:
    """Run policies on an instance with batches that take time.

    Parameters
    ----------
    instance
        The requests; on a clock in seconds their arrivals must have been in seconds.
    clock
        How long batches take, as for `get_clock`.
    policies
        Names or policy objects; None means the basic ones, and first come, first served with
        decodes and whole prompts in one batch ("mixed").
    intervals, rule, seed, until
        As for `execute`.
    warm_up
        Time before which arrivals and completions do not count in the metrics.
    on_result
        Called with each run, and the seconds it took, as soon as it is there.

    Returns
    -------
    ClockComparison
        All runs.

    Raises
    ------
    PolicyError
        If a policy is unknown, given twice, told too little or too much.
    ClockError
        If the clock is unknown, or a batch takes no time.
    """
    timed = get_clock(clock)
    chosen = [*get_policies(None), *get_policies(["mixed"])]
    if policies is not None:
        chosen = get_policies(policies)
    runs, seconds = [], []
    tiny = Instance([1, 1], [1, 1], 2, [0, 1], seconds_per_step=1.0)
    for policy in chosen:
        execute(tiny, policy, clock="unit", intervals=intervals and "exact", rule=rule)  # compiles
        began = time.perf_counter()
        run = execute(
            instance, policy, clock=timed, intervals=intervals, rule=rule, seed=seed, until=until
        )
        seconds.append(time.perf_counter() - began)
        runs.append(run)
        if on_result is not None:
            on_result(run, seconds[-1])
    return ClockComparison(instance, timed, tuple(runs), tuple(seconds), warm_up)
