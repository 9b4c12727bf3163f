"""The batch of least sum of outputs over squared size by `scipy.optimize.milp`."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from optsched import Instance


def least_ratio(instance: Instance) -> Fraction:
    """Solve one knapsack per size: the ratio is not linear, but for a fixed size it is."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    outputs, peaks = instance.outputs, instance.prompts + instance.outputs
    ones = np.ones(len(outputs))
    best = None
    for size in range(1, len(outputs) + 1):
        rows = LinearConstraint(
            np.stack([ones, peaks]), lb=[size, -np.inf], ub=[size, instance.memory]
        )
        found = milp(
            outputs,
            integrality=ones,
            bounds=Bounds(0, 1),
            constraints=rows,
            options={"mip_rel_gap": 0.0},
        )
        if found.status == 2:  # no more requests fit
            break
        assert found.status == 0
        ratio = Fraction(round(found.fun), size * size)
        best = ratio if best is None else min(best, ratio)
    assert best is not None
    return best
