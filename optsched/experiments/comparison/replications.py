"""The same policies on several instances, such as a family under several seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.extras import data_frame
from optsched._internal.numbers import number
from optsched._internal.student import CONFIDENCE, Interval, interval
from optsched._internal.views import draw, html, text, write
from optsched.errors import PolicyError, nearest
from optsched.problem.premises import KNOWLEDGE, deployable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pandas as pd
    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray
    from optsched.experiments.comparison.result import Comparison
    from optsched.problem.premises import Knowledge


@dataclass(frozen=True, eq=False, repr=False)
class Replications:
    """Policies on several instances: means with intervals, paired differences, gaps.

    Intervals are by Student's t, as if the instances were independent draws from what is asked
    about. All policies see the same instances, so that shared randomness cancels out of their
    differences.

    Attributes
    ----------
    parts
        A `Comparison` for each instance, with bounds and gaps of its own.
    baseline
        The policy that differences are to; None: that of the least mean latency.
    """

    parts: tuple[Comparison, ...]
    baseline: str | None = None

    def __post_init__(self) -> None:
        if not self.policies:
            raise PolicyError(
                f"no policy completes all requests of all {len(self.parts)} instances; leave out "
                "the instances, or the policies, that do not go together"
            )
        if self.baseline is not None:
            self._known(self.baseline)

    @cached_property
    def policies(self) -> list[str]:
        """Names of the policies that completed the requests of all instances."""
        there = [set(part.policies) for part in self.parts]
        names = dict.fromkeys(name for part in self.parts for name in part.policies)
        return [name for name in names if all(name in each for each in there)]

    @cached_property
    def _entries(self) -> list[dict[str, dict[str, Any]]]:
        contents = [part.to_dict() for part in self.parts]
        return [{entry["policy"]: entry for entry in each["policies"]} for each in contents]

    def against(self, policy: str) -> Replications:
        """Return the same with differences to this policy."""
        return replace(self, baseline=policy)

    def values(self, policy: str, metric: str = "mean_latency") -> FloatArray:
        """Return a metric of a policy, as in `Comparison.to_dict`, one number per instance."""
        rows = [entries[self._known(policy)] for entries in self._entries]
        if not all(isinstance(row.get(metric, ""), int | float | None) for row in rows):
            known = [key for key, value in rows[0].items() if isinstance(value, int | float)]
            raise PolicyError(f"there is no metric {metric!r}: {nearest(metric, known)}")
        return np.array([row[metric] for row in rows], dtype=np.float64)

    def mean(self, policy: str, metric: str = "mean_latency") -> Interval:
        """Return the mean of a metric over the instances, with its 95 % confidence interval."""
        return interval(self.values(policy, metric))

    def difference(self, policy: str, other: str, metric: str = "mean_latency") -> Interval:
        """Return how much larger a metric is than that of another policy, paired by instance.

        The intervals of all policies against the same other one hold together with a confidence
        of 95 % (Bonferroni).
        """
        risk = (1 - CONFIDENCE) / max(1, len(self.policies) - 1)
        return interval(self.values(policy, metric) - self.values(other, metric), 1 - risk)

    @property
    def _candidates(self) -> list[str]:
        references = self.parts[0].references
        return [name for name in self.policies if name not in references] or self.policies

    def knows(self, policy: str) -> Knowledge:
        """Return what a policy was told of outputs, in that instance where it was told most."""
        told = [part[self._known(policy)].knows for part in self.parts]
        return min(told, key=KNOWLEDGE.index)

    @property
    def least(self) -> str:
        """The policy of the least mean latency, which need not be the best one."""
        return min(self._candidates, key=lambda name: self.mean(name).mean)

    @cached_property
    def leading(self) -> list[str]:
        """Policies that may be the best: none is shown to be worse than that of the least mean."""
        return self._leading(self._candidates)

    def _leading(self, names: list[str]) -> list[str]:
        """Return those of some policies that may be the best of them."""
        least = min(names, key=lambda name: self.mean(name).mean)
        return [name for name in names if not self.difference(name, least).low > 0]

    @property
    def _different(self) -> int:
        return len({part.instance.fingerprint for part in self.parts})

    @property
    def best(self) -> str | None:
        """The policy that is shown to have the least mean latency; None where none is."""
        return self._best(self._candidates)

    @property
    def best_deployable(self) -> str | None:
        """The same of those that are told no outputs."""
        return self._best([name for name in self.policies if self.knows(name) != "outputs"])

    def _best(self, names: list[str]) -> str | None:
        """Return that of some policies that is shown to have the least mean latency."""
        leading = self._leading(names) if names else []
        shown = len(leading) == 1 and 1 < len(self.parts) == self._different
        return leading[0] if shown and all(part.comparable for part in self.parts) else None

    @property
    def _count(self) -> str:
        return f"{len(self)} instance{'s' * (len(self) > 1)}"

    @property
    def title(self) -> str:
        """What was compared."""
        return f"{len(self.policies)} policies on {self._count}"

    @property
    def caption(self) -> str:
        """What the columns of the table are."""
        first = self.parts[0]
        return (
            f"mean latency in {first.clock.unit if first.timed else 'steps'} over "
            f"{self._count}, with the 95 % confidence interval by Student's t; difference to "
            f"{self.baseline or self.least}: paired by instance, intervals that hold together; gap "
            "to the proven bound of each instance"
        )

    @property
    def notes(self) -> list[str]:
        """What the numbers say, one sentence each."""
        count, rest = len(self.parts), [each for each in self.leading if each != self.least]
        if not all(part.comparable for part in self.parts):
            found = ["Runs completed different requests, so that no policy is the best."]
        elif self._different < count:
            found = [
                f"Only {self._different} of the {count} instances differ, so that intervals say "
                "less about other instances than they seem to, and no policy is called the best."
            ]
        elif count == 1:
            found = ["One instance has no intervals; pass several, such as a family under seeds."]
        elif not rest:
            found = [f"{self.least} is the best: shown with 95 % confidence."]
        else:
            found = [
                f"{self.least} has the least mean of these instances, but {', '.join(rest)} may be "
                "as good; more instances may tell them apart."
            ]
        if all(part.comparable for part in self.parts):
            rows = [
                (row["policy"], row["knows"], row["mean_latency"]["mean"]) for row in self.means
            ]
            found += deployable(rows, number)
        missing = dict.fromkeys(run.policy for part in self.parts for run in part.incomplete)
        return found + [f"{name} does not complete all requests everywhere." for name in missing]

    def _known(self, policy: str) -> str:
        if policy not in self.policies:
            raise PolicyError(f"policy {policy!r} did not run: {nearest(policy, self.policies)}")
        return policy

    @property
    def means(self) -> list[dict[str, Any]]:
        """One row per policy, by mean latency: interval, paired difference, mean and largest gap.

        A gap is that to the bound of each instance; None where one of them has none that covers it.
        """
        return [
            self._summary(name)
            for name in sorted(self.policies, key=lambda name: self.mean(name).mean)
        ]

    def _summary(self, policy: str) -> dict[str, Any]:
        gaps = [entries[policy]["gap"] for entries in self._entries]
        proven = all(gap is not None for gap in gaps)
        baseline = self.baseline or self.least
        against = None if policy == baseline else self.difference(policy, baseline).to_dict()
        return {
            "policy": policy,
            "knows": self.knows(policy),
            "mean_latency": self.mean(policy).to_dict(),
            "difference": against,
            "gap": sum(gaps) / len(gaps) if proven else None,
            "largest_gap": max(gaps) if proven else None,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the runs as plain data: "instances" with bounds and premises."""
        return {
            "instances": [part.to_dict() for part in self.parts],
            "confidence": CONFIDENCE,
            "baseline": self.baseline or self.least,
            "least": self.least,
            "leading": self.leading,
            "best": self.best,
            "best_deployable": self.best_deployable,
            "policies": self.means,
        }

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per instance and policy, with the columns of `Comparison.to_pandas`."""
        rows = [
            {"instance": number, "fingerprint": part.instance.fingerprint, **entries[name]}
            for number, (part, entries) in enumerate(zip(self.parts, self._entries, strict=True))
            for name in self.policies
        ]
        return data_frame(rows).set_index(["instance", "policy"])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the mean latency of each policy with its interval."""
        return draw("plot_means", self, ax)

    def to_html(self, path: str | Path) -> None:
        """Write table and plot as one HTML file that needs no network."""
        write("summary_page", path, self)

    def __iter__(self) -> Iterator[Comparison]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __repr__(self) -> str:
        best = f": best {self.best!r}" if self.best else ""
        return f"<Replications of {', '.join(self.policies)} on {self._count}{best}>"

    def __str__(self) -> str:
        return "\n".join([text("means_table", self), *self.notes])

    def _repr_html_(self) -> str:
        return html("means_table", self)
