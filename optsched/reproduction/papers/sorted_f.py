"""Targets of "LLM Serving Optimization with Variable Prefill and Decode Lengths" (Sorted-F)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from optsched.report.series import plot_bars
from optsched.reproduction.claims import number
from optsched.reproduction.target import Outcome, Target
from optsched.simulate import run
from optsched.workloads import family

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from optsched.reproduction.study import Study


def _example_1(study: Study) -> Outcome:
    instance = family("sorted-f-example-1", seed=study.seed)
    printed = {"mc-sf": 64, "sorted-f": 45}
    latency = {name: run(instance, name).total_latency for name in printed}
    claims = [number(name, paper, latency[name], within=0) for name, paper in printed.items()]
    table = pd.DataFrame({"policy": list(latency), "total_latency": list(latency.values())})
    return Outcome(table, claims, {"requests": len(instance), "memory": instance.memory})


def _draw_example_1(table: pd.DataFrame, axes: Sequence[Axes]) -> None:
    plot_bars(table, x="policy", y="total_latency", ylabel="total latency (steps)", ax=axes[0])


TARGETS = (
    Target(
        "sorted-f-example-1",
        "one long prompt holds up 21 short ones under MC-SF",
        "Wang et al. (Sorted-F), Example 1",
        _example_1,
        _draw_example_1,
    ),
)
