"""Routing policies side by side, paired by trace, with confidence intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.student import Interval, interval
from optsched._internal.views import text
from optsched.errors import PolicyError, nearest
from optsched.experiments.comparison.result import Comparison
from optsched.problem.premises import KNOWLEDGE, deployable

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray
    from optsched.simulate.cluster.results import ClusterRun


@dataclass(frozen=True, eq=False, repr=False)
class ClusterComparison(Comparison):
    """Runs of several routing policies on the same traces."""

    @property
    def runs(self) -> dict[str, list[ClusterRun]]:
        """The runs of each policy on all traces."""
        return self.runs_by_policy

    _view = ("cluster_table", "plot_power", "cluster_page")

    def values(self, metric: str, policy: str) -> FloatArray:
        """Return a key of `ClusterRun.metrics`, one number per trace; NaN where a run has none."""
        if policy not in self.runs_by_policy:
            raise PolicyError(f"policy {policy!r} did not run; {nearest(policy, self.policies)}")
        rows = [run.metrics(self.warm_up) for run in self.runs_by_policy[policy]]
        if metric not in rows[0]:
            raise PolicyError(f"there is no metric {metric!r}; {nearest(metric, rows[0])}")
        return np.array(
            [math.nan if row[metric] is None else row[metric] for row in rows], dtype=np.float64
        )

    def mean(self, metric: str, policy: str) -> Interval:
        """Return the mean of a metric over the traces."""
        return _interval(self.values(metric, policy))

    def ratio(self, metric: str, policy: str, baseline: str) -> Interval:
        """Return the geometric mean over traces of a policy's positive metric over a baseline's."""
        logs = np.log(self.values(metric, policy)) - np.log(self.values(metric, baseline))
        return Interval(*(math.exp(value) for value in _interval(logs)))

    def to_dict(self) -> dict[str, Any]:
        """Return cluster, traces and metrics as plain data, ready for JSON."""
        first = next(iter(self.runs_by_policy.values()))
        return {
            "cluster": self.cluster.to_dict(),
            "instances": [
                {"name": run.instance.name, "requests": len(run.instance)} for run in first
            ],
            "policies": self._rows,
            **self._leaders(),
        }

    @property
    def headline(self) -> list[str]:
        """Which policy is the best that can be deployed, and what true outputs would give."""
        rows = [
            (entry["policy"], entry["knows"], entry["imbalance_tokens"]) for entry in self._rows
        ]
        ranked = sorted(rows, key=lambda row: row[2])
        return deployable(ranked, lambda value: f"{value:,.0f} tokens", measure="imbalance")

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return [self._summary(policy) for policy in self.runs_by_policy]

    @property
    def notes(self) -> list[str]:
        """Remarks on the numbers, one sentence each."""
        entries = {entry["policy"]: entry for entry in self._rows}
        found = [*filter(None, [_rising(entries, self.by_policy())])]
        if self.comparable:
            return found
        waiting, tokens = (
            [entry[key] for entry in entries.values()] for key in ("waiting", "tokens_waiting")
        )
        return [
            "The runs were stopped with different backlogs, from "
            f"{min(waiting):,.0f} to {max(waiting):,.0f} waiting requests of "
            f"{min(tokens):,.0f} to {max(tokens):,.0f} tokens, so that throughputs do not compare; "
            "run until all is done, or finish what is in view (drain).",
            *found,
        ]

    def _summary(self, policy: str) -> dict[str, Any]:
        runs = self.runs_by_policy[policy]
        rows = [run.metrics(self.warm_up) for run in runs]
        told = min((run.knows for run in runs if run.knows), key=KNOWLEDGE.index, default=None)
        entry: dict[str, Any] = {"policy": policy, "knows": told}
        if len(rows) == 1:
            entry |= rows[0]
        else:
            for metric in (key for key in rows[0] if all(key in row for row in rows)):
                given = [row[metric] for row in rows if row[metric] is not None]
                entry[metric] = sum(given) / len(given) if given else None
            for metric in ("max_wait_steps", "stuck"):
                entry[metric] = max(row[metric] for row in rows)
            entry["intervals"] = {
                metric: list(_interval(np.array([row[metric] for row in rows], dtype=float))[1:])
                for metric in ("imbalance_tokens", "throughput", "tpot", "energy_joule")
                if all(row[metric] is not None for row in rows)
            }
        shares = [run.tenant_shares(self.warm_up) for run in runs]
        if all(shares):
            entry["tenant_shares"] = {
                name: sum(each.get(name, 0.0) for each in shares) / len(shares)
                for name in sorted(set().union(*shares))
            }
        return {**entry, "run_seconds": sum(run.seconds for run in runs)}

    def __str__(self) -> str:
        return "\n".join([text("cluster_table", self), *self.headline, *self.notes])


def _rising(entries: dict[str, dict[str, Any]], runs: dict[str, ClusterRun]) -> str | None:
    """Point out a lookahead that leaves more imbalance than less of it, or than none."""
    ahead = {policy: run.lookahead for policy, run in runs.items() if run.lookahead is not None}
    imbalance = {policy: entry["imbalance_tokens"] for policy, entry in entries.items()}
    if not ahead or not (longest := max(ahead.values())):
        return None
    far = max((name for name in ahead if ahead[name] == longest), key=lambda name: imbalance[name])
    best = min(imbalance, key=lambda name: imbalance[name])
    if imbalance[far] <= imbalance[best]:  # the best itself, or level with it
        return None
    advice = f"take a lookahead of {ahead[best]}" if best in ahead else "try 0, or adaptive"
    return (
        f"A lookahead of {longest} steps leaves more imbalance ({imbalance[far]:,.0f} tokens) than "
        f"{best} ({imbalance[best]:,.0f}): {advice}."
    )


def _interval(values: FloatArray) -> Interval:
    mean = float(values.mean())
    return Interval(mean, mean, mean) if len(values) < 2 else interval(values)
