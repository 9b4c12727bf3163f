"""What a schedule may be asked to minimise, and what it costs."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from optsched._internal.arrays import MAX_WEIGHT
from optsched._internal.exact import exact_dot, in_units

if TYPE_CHECKING:
    from optsched.problem.instance import Instance
    from optsched.problem.schedule import Schedule

ScheduleObjective = Literal["total-latency", "weighted-latency", "makespan"]
SCHEDULE_OBJECTIVES: tuple[ScheduleObjective, ...] = (
    "total-latency",
    "weighted-latency",
    "makespan",
)
# What a penalty must keep to.
PENALTY = f"cannot be negative, nor beyond {1 / MAX_WEIGHT:g} to {MAX_WEIGHT:g} unless it is 0"
Lateness = Literal["forbidden", "per-step", "per-request"]
LATENESS: tuple[Lateness, ...] = ("forbidden", "per-step", "per-request")


def schedule_cost(
    schedule: Schedule,
    objective: ScheduleObjective = "total-latency",
    lateness: Lateness = "forbidden",
    penalty: float = 0.0,
) -> Fraction:
    """Evaluate a schedule without rounding, from its start steps alone."""
    instance = schedule.instance
    cost = Fraction(schedule.makespan if objective == "makespan" else schedule.total_latency)
    if objective == "weighted-latency" and instance.weights is not None:
        cost = exact_dot(instance.weights, schedule.latencies)
    if instance.deadlines is None or lateness == "forbidden":
        return cost
    late = np.maximum(schedule.completions - instance.deadlines, 0)
    return cost + Fraction(penalty) * int((late if lateness == "per-step" else late > 0).sum())


def cost_unit(
    instance: Instance,
    objective: ScheduleObjective = "total-latency",
    lateness: Lateness = "forbidden",
    penalty: float = 0.0,
) -> Fraction:
    """Return a number of which the cost of every schedule is a whole multiple."""
    numbers = [1.0]
    if objective == "weighted-latency" and instance.weights is not None:
        numbers = np.unique(instance.weights).tolist()
    soft = instance.deadlines is not None and lateness != "forbidden"
    return in_units(np.array([*numbers, penalty] if soft else numbers))[0]
