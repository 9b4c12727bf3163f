"""What the targets of Robust share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.papers.panels import lines
from optsched.simulate import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.instance import Instance
    from optsched.papers.panels import Draw

PAPER = "Chen et al. (Robust)"
RATIO = "ratio to H-SF"


def ratios(**look: Any) -> Draw:
    """Return what draws ratios against the ratio of two outputs."""
    labels = {"xlabel": "ratio of the two outputs, alpha", "ylabel": "largest ratio to H-SF"}
    return lines(x="alpha", y="ratio", **labels, **look)


def requests_of(shares: FloatArray, count: int, smallest: int = 1) -> IntArray:
    """Return that many outputs in these shares of the outputs from the smallest on, rounded."""
    ends = np.rint(np.cumsum(np.concatenate([[0.0], shares])) * count).astype(np.int64)
    return np.repeat(np.arange(smallest, smallest + len(shares)), np.diff(ends))


def ratio_to_hindsight(instance: Instance, policy: str, upper: int, seeds: Sequence[int]) -> float:
    """Return the mean total latency of a policy that knows [least output, upper], over H-SF's."""
    intervals = f"common:{instance.outputs.min()},{upper}"
    totals = [run(instance, policy, intervals=intervals, seed=seed).total_latency for seed in seeds]
    return float(np.mean(totals)) / run(instance, "h-sf").total_latency
