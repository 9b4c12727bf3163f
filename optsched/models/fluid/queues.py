r"""How long the queues between segments of Nested WAIT can become (Fluid, Lemma 8)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import InfeasibleError

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray


def queue_decay(
    previous: npt.ArrayLike, threshold: npt.ArrayLike, share: npt.ArrayLike
) -> FloatArray:
    r"""Compute :math:`\theta` of the queue in front of a segment, at which (16) holds (Lemma 8)."""
    # Each batch of the segment before sends Binomial(n', p) requests on, and n leave the queue
    # once as many wait. At least n + c wait after a given batch with probability exp(-theta c) at
    # most, where theta > 0 is the root of exp(-theta n) (1 - p + p exp(theta))^n' = 1 (16), which
    # exists if p n' < n < n'.
    before, here, going = np.broadcast_arrays(
        *(np.asarray(values, dtype=np.float64) for values in (previous, threshold, share))
    )
    decay = np.where(here >= before, np.inf, 0.0)
    # What rounding of the share may make of equality is equality.
    inside = (here < before) & (here - going * before > 1e-9 * before)
    n, size, p = here[inside], before[inside], going[inside]
    # (16) in logarithms is convex and linear in the end: its root lies below that of the line,
    # and Newton's steps from there only go down, to the root.
    theta = -size * np.log(p) / (size - n)
    for _ in range(200):
        tail = (1 - p) * np.exp(-theta)
        value = np.where(
            theta > 0.5,
            theta * (size - n) + size * np.log(p + tail),
            size * np.log1p(p * np.expm1(np.minimum(theta, 1))) - theta * n,
        )
        step = value / (size * p / (p + tail) - n)
        theta = theta - step
        if (np.abs(step) <= 1e-14 * theta).all():
            break
    decay[inside] = theta
    return decay


def events_logarithm(segments: int, iterations: int, delta: float) -> float:
    r"""Return :math:`\ln((L - 1) S / \delta)` of (12), for the queues between L segments."""
    return math.log((segments - 1) * iterations / delta) if segments > 1 else 0.0


def reject_growth(thresholds: IntArray, shares: FloatArray, decays: FloatArray) -> None:
    """Reject thresholds that break (10) or hold it with equality, so that a queue has no decay."""
    for i in np.flatnonzero(decays == 0).tolist():
        before, here, share = int(thresholds[i - 1]), int(thresholds[i]), float(shares[i - 1])
        how, why = "is broken", "the queue in front of it grows without end"
        if abs(here - share * before) <= 1e-9 * before:
            how = "holds with equality"
            why = "theta is 0 and no finite stock covers the queue in front of it"
        raise InfeasibleError(
            f"(10) {how} for segment {i + 1}: {before} * {share:.6g} requests reach it per batch, "
            f"its threshold is {here}, so {why}; it must be at least "
            f"{math.floor(before * share * (1 + 1e-9)) + 1}"
        )
