"""How the decisions of a rolling horizon came about."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.numbers import duration
from optsched._internal.views import draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from optsched._internal.arrays import IntArray
    from optsched._internal.files import JSON
    from optsched.policies.decision import RollingPolicy

    Plan = tuple[IntArray, bool]


@dataclass
class Counts:
    """How decisions came about."""

    seconds: list[float] = field(default_factory=list)
    planned: int = 0
    failed: int = 0
    late: int = 0
    overruled: int = 0
    without_budget: int = 0
    interrupted: int = 0
    cut: int = 0
    requests: list[int] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class Decisions:
    """How the decisions of one run came about: `Execution.decisions` of a rolling horizon."""

    policy: RollingPolicy
    counts: Counts
    seconds: float
    interrupted: bool = False

    def __repr__(self) -> str:
        return f"<Decisions of {self.policy.name!r}: {len(self)}, {self.fallbacks} by the fallback>"

    def __len__(self) -> int:
        """Return the number of reviews at which it was decided what starts next."""
        return len(self.counts.seconds) + self.counts.interrupted

    @property
    def fallbacks(self) -> int:
        """Decisions of the fallback, for whatever reason."""
        return len(self) - self.counts.planned

    @property
    def fell_back(self) -> str:
        """Say how many plans failed or came too late; nothing where none did."""
        if not (lost := self.counts.failed + self.counts.late):
            return ""
        return f"{lost:,} of {len(self):,} plans fell back on {self.policy.order.name}"

    @property
    def over_budget(self) -> int:
        """Decisions that took more than twice the budget."""
        return int((np.array(self.counts.seconds) > 2 * self.policy.seconds).sum())

    def to_dict(self) -> JSON:
        """Return settings and counts as plain data; seconds are None where nothing was decided."""
        policy, counts = self.policy, self.counts
        seconds = np.array(counts.seconds)
        some = len(seconds) > 0
        settings = ("window", "horizon", "replan_interval", "work", "budget")
        counted = ("planned", "failed", "late", "overruled", "without_budget", "cut")
        return {
            "model": policy.model if isinstance(policy.model, str) else "own",
            "method": policy.method,
            **{name: getattr(policy, name) for name in settings},
            "length_estimate": policy.length_estimate,
            "scenarios": policy.scenarios,
            "fallback": policy.order.name,
            "decisions": len(self),
            "fallbacks": self.fallbacks,
            "fell_back": counts.failed + counts.late,
            **{name: getattr(counts, name) for name in counted},
            "interrupted": self.interrupted,
            "after_interruption": counts.interrupted,
            "over_budget": self.over_budget,
            "reasons": dict(counts.reasons),
            "median_seconds": float(np.median(seconds)) if some else None,
            "p99_seconds": float(np.quantile(seconds, 0.99)) if some else None,
            "max_seconds": float(seconds.max()) if some else None,
            "seconds": self.seconds,
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the share of decisions that took at most so long, and the budget."""
        return draw("plot_decision_times", self, ax)

    def __str__(self) -> str:
        facts = self.to_dict()
        lines = [
            f"{facts['decisions']:,} decision{'s' * (facts['decisions'] != 1)} on windows of up to "
            f"{facts['window']} requests: "
            f"{facts['planned']:,} planned by {facts['model']}"
            f"{'' if facts['method'] == 'auto' else ' with ' + facts['method']}, "
            f"{facts['fallbacks']:,} by the "
            f"fallback {facts['fallback']}"
        ]
        if facts["budget"] == 0:
            lines.append("  the budget is zero, so nothing was planned")
        elif facts["fallbacks"]:
            lines.append(
                f"  of these {facts['failed']:,} because no plan was found, {facts['late']:,} "
                f"because it came too late, {facts['overruled']:,} because the fallback was better "
                "in possible scenarios"
            )
        if self.interrupted:
            lines.append(
                f"  interrupted: no more planning; the fallback made the last "
                f"{facts['after_interruption']:,} decisions"
            )
        lines += [f"  {count:,} times: {reason}" for reason, count in facts["reasons"].items()]
        if facts["median_seconds"] is not None:
            over = ""
            if (budget := self.policy.seconds) < math.inf:
                over = f"; {facts['over_budget']:,} took more than twice the budget of "
                over += duration(budget)
            lines.append(
                f"  a decision took {duration(facts['median_seconds'])} in the median, "
                f"{duration(facts['max_seconds'])} at most{over}"
            )
        if facts["cut"]:
            lines.append(
                f"  the budget cut {facts['cut']:,} searches short: another run may differ"
            )
        return "\n".join(lines)
