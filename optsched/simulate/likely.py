"""How likely requests are to go on running, as kernels look it up."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem import forecasts

_ALL_UP_TO = 8
TOLERANCE = 1e-6  # tokens: what rounding may add to a sum that fits exactly


class Beliefs(NamedTuple):
    """Which outputs are likely: a row of chances for each request, cut to its interval."""

    beyond: FloatArray  # chance that an output is more than 0, 1, ..., a row for alike requests
    row: IntArray
    least: IntArray  # one less than the output is at least
    most: IntArray


def tables(beliefs: forecasts.Beliefs, known: forecasts.Forecast) -> Beliefs:
    """Return beliefs in the form in which kernels look them up."""
    rows, longest = beliefs.chances.shape
    beyond = np.zeros((rows, longest + 1))
    beyond[:, :-1] = np.cumsum(beliefs.chances[:, ::-1], axis=1)[:, ::-1]
    return Beliefs(
        beyond,
        beliefs.rows.copy(),
        np.minimum(known.lower - 1, longest),
        np.minimum(known.upper, longest),
    )


def steps_ahead(longest: int) -> IntArray:
    """Return the steps ahead at which the memory is looked at, each from 8 on a quarter further."""
    ahead = [*range(1, _ALL_UP_TO + 1)]
    while ahead[-1] < longest:
        ahead.append(ahead[-1] + ahead[-1] // 4)
    return np.array(ahead, dtype=np.int64)


@compiled
def chance_of_more(beliefs: Beliefs, request: int, tokens: int, seen: int) -> float:
    """Return the chance of an output of more than some tokens, where it is more than was seen."""
    beyond, row, most = beliefs.beyond, beliefs.row[request], beliefs.most[request]
    least = beliefs.least[request]
    if seen > least:
        least = seen
    if tokens <= least:
        return 1.0
    if tokens >= most:  # and what is beyond the table
        return 0.0
    rest = beyond[row, most]
    mass = beyond[row, least] - rest
    if mass <= 0.0:
        return 0.0
    return float((beyond[row, tokens] - rest) / mass)
