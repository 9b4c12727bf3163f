"""Lengths of short conversations, as Jaillet Section 7 reports them of LMSYS-Chat-1M."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import IntArray
    from optsched.workloads.arrivals import Requests


def chat(rng: np.random.Generator, n: int, memory: int) -> Requests:
    """Draw independent lengths with the printed means and medians."""
    from scipy.special import gammainc, gammaincinv, ndtr, ndtri

    mean, spread, longest = 2.432, 2.040, 499
    below = ndtr((np.log(longest) - mean) / spread)
    prompts = np.exp(mean + spread * ndtri(below * rng.random(n)))
    form, scale, longest = 0.5658, 158.6, 599
    below = gammainc(form, longest / scale)
    outputs = scale * gammaincinv(form, below * rng.random(n))
    return _whole(prompts), _whole(outputs)


def _whole(lengths: npt.NDArray[np.floating[Any]]) -> IntArray:
    return np.asarray(np.maximum(np.ceil(lengths), 1), dtype=np.int64)
