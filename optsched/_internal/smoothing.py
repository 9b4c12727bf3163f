"""Smooth counts of outputs on the scale of the logarithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched._internal.compiled import compiled

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray

_REACH = 5.0  # bandwidths, beyond which a kernel is below a hundred-thousandth of its peak


@compiled
def smooth(values: IntArray, counts: IntArray, bandwidth: float, total: FloatArray) -> None:
    """Spread each value over those near it; rows of counts become rows of chances of 1, 2, ..."""
    longest = total.shape[1]
    near = np.empty(longest)
    factor = np.exp(_REACH * bandwidth)
    for at in range(len(values)):
        value = values[at]
        first, last = int(value / factor) + 1, min(int(value * factor), longest)
        whole = 0.0
        for output in range(first, last + 1):
            distance = np.log(output / value) / bandwidth
            near[output - 1] = np.exp(-0.5 * distance * distance) / output
            whole += near[output - 1]
        for row in range(len(counts)):
            if counts[row, at] == 0:
                continue
            for output in range(first, last + 1):
                total[row, output - 1] += counts[row, at] / whole * near[output - 1]
