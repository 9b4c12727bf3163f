r"""Expected starts: when the relaxation of the hindsight program starts each request on average.

**Horizon.** Relax-LP over :math:`W + \max_i o_i` steps with :math:`W = \lceil \sum_i A_i / M
\rceil` is feasible: with :math:`x_{i,k} = 1 / W` at the first :math:`W` steps no step holds more
than :math:`\sum_i A_i / W \le M`. Its optimum can still be above that over more steps, so
:math:`2 W + \max_i o_i` are taken; an order needs no proof.

**Lagrangian.** Where the program is too large, starts at given prices of memory are averaged over
the steps of a subgradient method, weighted by step length: they tend to optimal fractional ones.
The method begins at the prices of the memory-time relaxation, and so few steps suffice.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from optsched.bounds.lagrangian import cheapest_starts, common_denominator, slope_at
from optsched.bounds.relaxation import dual_prices, relax
from optsched.errors import SolverError
from optsched.models.solution import Stopped
from optsched.problem.instance import Instance

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray

_FITS = 100_000  # nonzeros that HiGHS solves within a second
_ITERATIONS = 100
_MAX_STEPS = 20_000_000
_AHEAD = 0.0005  # by how much better than the best value a step hopes to get, as a share of it
_DECIMALS = 6  # what is nearer than this is a rounding error of the solver


def expected_starts(instance: Instance) -> FloatArray:
    """Compute when Relax-LP starts each request on average if all arrive at step 0."""
    from optsched.models.relaxation import LatencyRelaxation
    from optsched.solvers.backends.driver import solve_linear

    instance = Instance(instance.prompts, instance.outputs, instance.memory)
    work = float(instance.areas.sum(dtype=np.float64)) / instance.memory
    if work > _MAX_STEPS:
        raise SolverError(
            f"expected starts would need prices for {work:,.0f} steps (at most {_MAX_STEPS:,}); "
            "order by 'area', or use longer steps"
        )
    busy = math.ceil(work)
    program = LatencyRelaxation(instance, horizon=2 * busy + int(instance.outputs.max()))
    if program.nonzeros <= _FITS:
        solution = solve_linear(program.to_linear())
        if solution.status is Stopped.INTERRUPTED:
            raise KeyboardInterrupt
        if solution.values is not None:
            return np.round(program.read(solution.values), _DECIMALS)
    return averaged_starts(instance)


def averaged_starts(instance: Instance, iterations: int = _ITERATIONS) -> FloatArray:
    """Average the starts that are cheapest at the prices of a subgradient method."""
    weights = np.ones(len(instance))
    relaxation = relax(instance, weights)
    first = dual_prices(instance, weights, relaxation)
    longest = int(instance.outputs.max())
    prices = np.concatenate([first, np.zeros(longest)])
    # Prices move by little; four times their sum must still be counted in 64 bits.
    denominator = common_denominator(instance, 4 * prices, weights)
    per_step = np.full(len(instance), denominator)
    starts = relaxation.last_starts(instance)
    best = -np.inf
    total, length = np.zeros(len(instance)), 0.0
    for _ in range(iterations):
        whole = np.rint(prices * denominator).astype(np.int64)
        starts, costs = cheapest_starts(instance, whole, per_step, starts)
        value = (int(costs.sum()) - instance.memory * int(whole.sum())) / denominator
        best = max(best, value)
        excess = slope_at(instance, starts, prices)
        norm = float(excess @ excess)
        if norm == 0:  # feasible at prices that charge for full steps only: optimal
            return starts.astype(np.float64)
        step = (best - value + _AHEAD * abs(best)) / norm
        total += step * starts
        length += step
        prices = np.maximum(0, prices + step * excess)
    return total / length
