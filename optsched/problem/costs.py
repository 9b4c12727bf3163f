"""What a schedule costs, request by request: a function of the start with at most two pieces."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from optsched._internal.arrays import MAX_STEP, Array, FloatArray, IntArray
from optsched._internal.compiled import compiled_inside
from optsched._internal.numbers import exact_dot, in_units

if TYPE_CHECKING:
    from optsched.errors import OptschedError
    from optsched.problem.instance import Instance
    from optsched.problem.schedule import Started

ScheduleObjective = Literal["total-latency", "weighted-latency", "makespan", "late-requests"]
SCHEDULE_OBJECTIVES: tuple[ScheduleObjective, ...] = get_args(ScheduleObjective)
Lateness = Literal["forbidden", "per-step", "per-request"]


def weights_of(instance: Instance, objective: str) -> FloatArray:
    """Return the weight of each request's latency in an objective, shape (n,)."""
    if objective == "weighted-latency" and instance.weights is not None:
        return np.array(instance.weights)  # kernels are compiled once more for read-only arrays
    return np.ones(len(instance))


def check_due(
    instance: Instance, objective: str, lateness: str, error: type[OptschedError]
) -> None:
    """Reject what counts late requests and has no deadlines, or a price on them besides."""
    if objective != "late-requests":
        return
    if instance.deadlines is None:
        raise error("the objective is late-requests, but the requests have no deadlines; add them")
    if lateness != "forbidden":
        raise error(
            f"lateness is {lateness!r}, but the objective late-requests has its own price; leave "
            "lateness and penalty out"
        )


def schedule_cost(
    schedule: Started,
    objective: str = "total-latency",
    lateness: Lateness = "forbidden",
    penalty: float = 0.0,
) -> Fraction:
    """Evaluate a schedule, or a run in steps, without rounding, from its starts or ends alone."""
    instance = schedule.instance
    due = schedule.completions if instance.deadlines is None else instance.deadlines
    late = np.maximum(schedule.completions - due, 0)
    if objective == "late-requests":
        return exact_dot(weights_of(instance, "weighted-latency"), late > 0)
    cost = Fraction(schedule.makespan if objective == "makespan" else schedule.total_latency)
    if objective == "weighted-latency" and instance.weights is not None:
        cost = exact_dot(instance.weights, schedule.latencies)
    if lateness == "forbidden":
        return cost
    return cost + Fraction(penalty) * int((late if lateness == "per-step" else late > 0).sum())


def cost_unit(
    instance: Instance,
    objective: ScheduleObjective = "total-latency",
    lateness: Lateness = "forbidden",
    penalty: float = 0.0,
) -> Fraction:
    """Return a number of which the cost of every schedule is a whole multiple."""
    numbers = [1.0]
    if objective in ("weighted-latency", "late-requests") and instance.weights is not None:
        numbers = np.unique(instance.weights).tolist()
    soft = instance.deadlines is not None and lateness != "forbidden"
    return in_units(np.array([*numbers, penalty] if soft else numbers))[0]


class StartCosts(NamedTuple):
    """Cost of each request's start: a weight a step; after `due` a jump, and a slope a step more.

    Bounds take whole numbers of a unit in place of all but `due`.
    """

    weights: Array  # of doubles or of whole numbers
    due: IntArray  # the last start that is in time
    jumps: Array
    slopes: Array
    soft: bool  # whether any start can be late

    @classmethod
    def plain(cls, weights: Array) -> StartCosts:
        """Return costs without due dates."""
        nothing = np.zeros_like(weights)
        return cls(weights, np.full(len(weights), MAX_STEP), nothing, nothing, False)

    @classmethod
    def of(
        cls, instance: Instance, objective: str, lateness: str = "forbidden", penalty: float = 0.0
    ) -> StartCosts:
        """Return what starts cost in an objective, the makespan apart, with a price on lateness."""
        weights, count = weights_of(instance, objective), len(instance)
        deadlines = instance.deadlines
        if objective == "late-requests" and deadlines is not None:
            each = weights_of(instance, "weighted-latency")
            nothing = np.zeros(count)
            return cls(nothing, deadlines - instance.outputs, each, nothing, True)
        if lateness == "forbidden" or deadlines is None:
            return cls.plain(weights)
        if objective == "makespan":
            weights = np.zeros(count)
        prices, nothing = np.full(count, penalty), np.zeros(count)
        jumps, slopes = (nothing, prices) if lateness == "per-step" else (prices, nothing)
        return cls(weights, deadlines - instance.outputs, jumps, slopes, True)

    @property
    def steepest(self) -> Array:
        """At least what a step later costs, shape (n,)."""
        return self.weights + self.jumps + self.slopes

    def scaled(self, unit: int) -> StartCosts:
        """Return whole numbers of one over a unit, rounded down."""
        parts = self.weights, self.jumps, self.slopes
        weights, jumps, slopes = (np.floor(part * unit).astype(np.int64) for part in parts)
        return StartCosts(weights, self.due, jumps, slopes, self.soft)

    def of_lateness(self, requests: IntArray | slice, starts: IntArray) -> Array:
        """Return what starts cost beyond their weights, shape (m,)."""
        over = np.maximum(starts - self.due[requests], 0)
        return np.asarray(self.jumps[requests] * (over > 0) + self.slopes[requests] * over)

    def total(self, starts: IntArray) -> float:
        """Return what all starts cost."""
        cost = float(self.weights @ starts)
        return cost + float(self.of_lateness(slice(None), starts).sum()) if self.soft else cost


@compiled_inside
def cost_of_start(costs: StartCosts, request: int, start: int) -> float:
    """Return what a start costs."""
    cost = costs.weights[request] * start
    if costs.soft and start > costs.due[request]:
        cost += costs.jumps[request] + costs.slopes[request] * (start - costs.due[request])
    return float(cost)


@compiled_inside
def latest_within(costs: StartCosts, request: int, left: float) -> int:
    """Return the last start that costs at most so much."""
    weight = costs.weights[request]
    if not costs.soft:
        return int(left / weight)
    if left < 0:
        return -1
    due = costs.due[request]
    if left < weight * due:
        return int(left / weight)
    late = left - weight * due - costs.jumps[request]
    rate = weight + costs.slopes[request]
    if late < rate:
        return int(due)
    return int(due + late / rate) if rate > 0 else MAX_STEP
