r"""Lengths of one trace resampled to the means and medians that are reported of another.

Papers report moments of data that they do not publish. Among all weights of the rows of a trace
that have these moments, those of largest entropy change the trace least; they are
:math:`w_i \propto e^{\theta^\top f_i}` where :math:`f_i` holds the length itself for a mean and
whether it is at most :math:`m` for a median :math:`m`, and :math:`\theta` minimises a convex
function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import InstanceError
from optsched.problem.instance import Instance

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray


def resample(
    instance: Instance,
    n: int,
    seed: int = 0,
    *,
    prompt_mean: float | None = None,
    prompt_median: int | None = None,
    output_mean: float | None = None,
    output_median: int | None = None,
) -> Instance:
    """Draw requests of a trace so that their lengths have given means and medians."""
    columns: list[FloatArray] = []
    for lengths, mean, median in (
        (instance.prompts, prompt_mean, prompt_median),
        (instance.outputs, output_mean, output_median),
    ):
        if mean is not None:
            columns.append(lengths.astype(np.float64) - mean)
        if median is not None:
            columns.append((lengths <= median).astype(np.float64) - 0.5)
    weights = _weights(np.array(columns)) if columns else None
    rows = np.random.default_rng(seed).choice(len(instance), n, p=weights)
    return Instance(
        instance.prompts[rows],
        instance.outputs[rows],
        instance.memory,
        name=f"{instance.name}, resampled",
    )


def _weights(features: FloatArray) -> FloatArray:
    """Return the weights of largest entropy under which every feature has mean zero."""
    from scipy.optimize import minimize
    from scipy.special import logsumexp, softmax

    scale = np.abs(features).mean(axis=1, keepdims=True)
    scaled = features / np.where(scale > 0, scale, 1.0)

    def dual(theta: FloatArray) -> tuple[float, FloatArray]:
        exponent = theta @ scaled
        return float(logsumexp(exponent)), scaled @ softmax(exponent)

    found = minimize(dual, np.zeros(len(features)), jac=True, method="BFGS", tol=1e-10)
    weights: FloatArray = softmax(found.x @ scaled)
    if np.abs(scaled @ weights).max() > 1e-4:
        raise InstanceError(
            "no weights of the trace's rows have these means and medians; choose others, or a "
            "trace with longer or shorter requests"
        )
    return weights
