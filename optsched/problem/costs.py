"""What a schedule costs, request by request: a function of the start with at most two pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from optsched._internal.arrays import MAX_STEP, Array, FloatArray, IntArray
from optsched._internal.compiled import compiled_inside

if TYPE_CHECKING:
    from optsched.problem.instance import Instance

Lateness = Literal["forbidden", "per-step", "per-request"]


def weights_of(instance: Instance, objective: str) -> FloatArray:
    """Return the weight of each request's latency in an objective, shape (n,)."""
    if objective == "weighted-latency" and instance.weights is not None:
        return np.array(instance.weights)  # kernels are compiled once more for read-only arrays
    return np.ones(len(instance))


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
