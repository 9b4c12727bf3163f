"""Routing policies side by side, paired by trace, with confidence intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.views import text, write
from optsched.cluster.routing import BalanceRouting, get_routings
from optsched.errors import InstanceError, PolicyError, nearest
from optsched.instance import Instance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import pandas as pd

    from optsched._internal.arrays import FloatArray
    from optsched.cluster.facts import Cluster
    from optsched.cluster.results import ClusterRun
    from optsched.cluster.routing import Routing

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean over traces and its 95 % confidence interval (Student's t).

    Attributes
    ----------
    mean
        The mean; of ratios the geometric one.
    low, high
        The interval; the same as the mean where there is one trace only.
    """

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4g} ({self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True, eq=False)
class ClusterComparison:
    """Runs of several policies on the same traces.

    Attributes
    ----------
    cluster
        The cluster.
    runs
        By policy the runs, one per trace in the same order.
    warm_up
        Steps left out of averages; None as in `ClusterRun.metrics`.

    Examples
    --------
    >>> from optsched import Cluster, compare_cluster, family
    >>> traces = [family("lognormal", n=3000, seed=seed) for seed in range(3)]
    >>> comparison = compare_cluster(traces, Cluster(8, 48), ["fcfs", "lpt"], steps=900)
    >>> comparison.ratio("imbalance_tokens", "fcfs", "lpt").low > 1
    True
    """

    cluster: Cluster
    runs: dict[str, list[ClusterRun]]
    warm_up: int | None = None

    @property
    def policies(self) -> list[str]:
        """Names of the policies, in the order in which they ran."""
        return list(self.runs)

    def values(self, metric: str, policy: str) -> FloatArray:
        """Give a metric of a policy, one number per trace.

        Parameters
        ----------
        metric
            A key of `ClusterRun.metrics`.
        policy
            Name of a policy.

        Returns
        -------
        FloatArray
            Shape (traces,); not a number where a run has no such value.
        """
        if policy not in self.runs:
            raise PolicyError(f"policy {policy!r} did not run; {nearest(policy, self.runs)}")
        rows = [run.metrics(self.warm_up) for run in self.runs[policy]]
        if metric not in rows[0]:
            raise PolicyError(f"there is no metric {metric!r}; {nearest(metric, rows[0])}")
        return np.array(
            [math.nan if row[metric] is None else row[metric] for row in rows], dtype=np.float64
        )

    def mean(self, metric: str, policy: str) -> Interval:
        """Give the mean of a metric over the traces.

        Parameters
        ----------
        metric, policy
            As in `values`.

        Returns
        -------
        Interval
            Mean and confidence interval.
        """
        return _interval(self.values(metric, policy))

    def ratio(self, metric: str, policy: str, baseline: str) -> Interval:
        """Compare two policies trace by trace.

        Parameters
        ----------
        metric
            A key of `ClusterRun.metrics` that is positive.
        policy, baseline
            Names of policies.

        Returns
        -------
        Interval
            Geometric mean of policy over baseline; paired, so that what traces have in common
            does not widen the interval.
        """
        logs = np.log(self.values(metric, policy)) - np.log(self.values(metric, baseline))
        return Interval(*(math.exp(value) for value in _interval(logs)))

    def to_dict(self) -> dict[str, Any]:
        """Give cluster, traces and metrics as plain data, ready for JSON.

        Returns
        -------
        dict
            Keys "cluster", "instances" and "policies"; with several traces the metrics are means,
            "max_wait_steps" and "stuck" the largest, and "intervals" has the 95 % intervals.
        """
        first = next(iter(self.runs.values()))
        return {
            "cluster": self.cluster.to_dict(),
            "instances": [
                {"name": run.instance.name, "requests": len(run.instance)} for run in first
            ],
            "policies": [self._entry(policy) for policy in self.runs],
        }

    def _entry(self, policy: str) -> dict[str, Any]:
        runs = self.runs[policy]
        rows = [run.metrics(self.warm_up) for run in runs]
        entry: dict[str, Any] = {"policy": policy}
        if len(rows) == 1:
            entry |= rows[0]
        else:
            for metric in rows[0]:
                given = [row[metric] for row in rows if row[metric] is not None]
                entry[metric] = sum(given) / len(given) if given else None
            for metric in ("max_wait_steps", "stuck"):
                entry[metric] = max(row[metric] for row in rows)
            entry["intervals"] = {
                metric: list(_interval(np.array([row[metric] for row in rows], dtype=float))[1:])
                for metric in ("imbalance_tokens", "throughput", "tpot", "energy_joule")
                if all(row[metric] is not None for row in rows)
            }
        return {**entry, "run_seconds": sum(run.seconds for run in runs)}

    def to_pandas(self) -> pd.DataFrame:
        """Give one row per policy, with the metrics of `to_dict`.

        Returns
        -------
        pandas.DataFrame
            Indexed by policy.
        """
        import pandas as pd

        rows = [self._entry(policy) for policy in self.runs]
        frame = pd.DataFrame(rows).set_index("policy")
        return frame.drop(columns="intervals", errors="ignore")

    def to_html(self, path: str | Path) -> None:
        """Write the comparison as one HTML file that needs no network.

        Parameters
        ----------
        path
            Where to write it.
        """
        write("write_cluster_report", self, path)

    def __str__(self) -> str:
        return text("cluster_text", self)


def compare_cluster(
    instances: Instance | Iterable[Instance],
    cluster: Cluster,
    policies: Sequence[str | Routing] = ("fcfs", "jsq", "lpt", "bf-io"),
    *,
    warm_up: int | None = None,
    on_run: Callable[[ClusterRun], None] | None = None,
    **options: Any,
) -> ClusterComparison:
    """Run several routing policies on the same traces.

    Parameters
    ----------
    instances
        One trace or several, such as a family under several seeds.
    cluster
        The workers.
    policies
        Names or policies, each under another name.
    warm_up
        Steps left out of averages; None leaves out 300, or a quarter of a shorter run.
    on_run
        Called with every run when it is done.
    **options
        Passed to `run_cluster`: steps, drain, reveal, drift, dispatch, record_loads, seed.

    Returns
    -------
    ClusterComparison
        All runs; random choices of a policy differ from trace to trace.

    Examples
    --------
    >>> from optsched import Cluster, Instance
    >>> instance = Instance([9, 1, 8, 2], [2, 2, 2, 2], memory=99)
    >>> compare_cluster(instance, Cluster(2, 2), ["fcfs", "lpt"]).policies
    ['fcfs', 'lpt']
    """
    from optsched.simulate.cluster.run import run_cluster

    traces = [instances] if isinstance(instances, Instance) else list(instances)
    if not traces:
        raise InstanceError("there is no trace to compare policies on")
    chosen = get_routings([policies] if isinstance(policies, str) else policies)
    seed = options.pop("seed", 0)
    runs: dict[str, list[ClusterRun]] = {routing.name: [] for routing in chosen}
    for number, trace in enumerate(traces):
        for routing in chosen:
            run = run_cluster(trace, cluster, routing, seed=seed + number, **options)
            run.metrics(warm_up)  # too short a run is refused at once
            runs[routing.name].append(run)
            if on_run is not None:
                on_run(run)
    return ClusterComparison(cluster, runs, warm_up)


def compare_lookaheads(
    instances: Instance | Iterable[Instance],
    cluster: Cluster,
    lookaheads: Iterable[int] = (0, 1, 2, 5, 10, 20, 40, 80),
    baselines: Sequence[str | Routing] = ("fcfs",),
    **options: Any,
) -> ClusterComparison:
    """Run BF-IO with several lookaheads on the same traces (BF-IO Figure 4).

    Parameters
    ----------
    instances, cluster
        As in `compare_cluster`.
    lookaheads
        The windows H.
    baselines
        Other policies beside them.
    **options
        As in `compare_cluster`.

    Returns
    -------
    ClusterComparison
        The runs, named "bf-io H=0" and so on.

    Examples
    --------
    >>> from optsched import Cluster, family
    >>> compare_lookaheads(family("uniform", n=50), Cluster(2, 4), [0, 5]).policies
    ['fcfs', 'bf-io H=0', 'bf-io H=5']
    """
    routings = [BalanceRouting(lookahead=h, name=f"bf-io H={h}") for h in lookaheads]
    return compare_cluster(instances, cluster, [*baselines, *routings], **options)


def _interval(values: FloatArray) -> Interval:
    from scipy import stats

    mean = float(values.mean())
    if len(values) < 2:
        return Interval(mean, mean, mean)
    spread = float(values.std(ddof=1)) / math.sqrt(len(values))
    reach = spread * float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    return Interval(mean, mean - reach, mean + reach)
