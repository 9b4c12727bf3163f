"""What a schedule may be asked to minimise, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from optsched.schedule import Schedule

ScheduleObjective = Literal["total-latency", "weighted-latency", "makespan"]
SCHEDULE_OBJECTIVES: tuple[ScheduleObjective, ...] = (
    "total-latency",
    "weighted-latency",
    "makespan",
)
Lateness = Literal["forbidden", "per-step", "per-request"]
LATENESS: tuple[Lateness, ...] = ("forbidden", "per-step", "per-request")


def schedule_cost(
    schedule: Schedule,
    objective: ScheduleObjective = "total-latency",
    lateness: Lateness = "forbidden",
    penalty: float = 0.0,
) -> float:
    """Evaluate a schedule, from its start steps alone."""
    cost = {
        "total-latency": schedule.total_latency,
        "weighted-latency": schedule.weighted_latency,
        "makespan": schedule.makespan,
    }[objective]
    deadlines = schedule.instance.deadlines
    if deadlines is None or lateness == "forbidden":
        return float(cost)
    late = np.maximum(schedule.completions - deadlines, 0)
    return float(cost + penalty * (late if lateness == "per-step" else late > 0).sum())
