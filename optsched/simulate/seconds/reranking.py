"""Keys of an order inside an engine, and those of requests that it preempts."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.simulate.likely import TOLERANCE, tables
from optsched.simulate.seconds.batches import called_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched._internal.arrays import FloatArray
    from optsched.forecasts import Forecast
    from optsched.simulate.task import Task

_Callback = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_int64)


@contextmanager
def reranking(task: Task, known: Forecast | None) -> Iterator[tuple[FloatArray, Any]]:
    """Return the keys of all requests, and what a kernel calls for those of preempted ones."""
    instance, policy, clock = task.instance, task.policy, task.clock
    expected = None if known is None else _tokens_to_come(known)

    def key(request: int, made: int) -> float:
        assert expected is not None
        left = int(expected(request, made))
        prompt = instance.prompts[request] + made
        alone = instance.take([request]).replace(
            prompts=[prompt], outputs=[left], output_lower=None, output_upper=None
        )
        return float(policy.keys(alone, clock)[0])

    believed = instance
    if policy.order is not None and expected is not None:
        believed = instance.replace(
            outputs=expected(slice(None), 0), output_lower=None, output_upper=None
        )
    with called_back(_Callback, key, 0.0) as callback:
        yield np.array(policy.keys(believed, clock)), callback


def _tokens_to_come(known: Forecast) -> Callable[[Any, int], Any]:
    """Return what gives the tokens that requests are expected to make yet, from what they made."""
    lower, upper = known.lower, known.upper
    if known.beliefs is None:

        def mean_of_bounds(which: Any, made: int) -> Any:
            low, high = np.maximum(lower[which], made + 1), np.maximum(upper[which], made + 1)
            return (low + high + 1) // 2 - made

        return mean_of_bounds
    believed = tables(known.beliefs, known)
    chances = known.beliefs.chances
    sums = np.zeros_like(believed.beyond)
    longest = chances.shape[1]
    terms = chances * np.arange(1, longest + 1)
    sums[:, :-1] = np.cumsum(terms[:, ::-1], axis=1)[:, ::-1]

    def mean_of_beliefs(which: Any, made: int) -> Any:
        row, most = believed.row[which], believed.most[which]
        least = np.minimum(np.maximum(believed.least[which], made), longest)
        mass = believed.beyond[row, least] - believed.beyond[row, most]
        total = sums[row, least] - sums[row, most]
        mean = np.where(mass > 0, total / np.where(mass > 0, mass, 1), made + 1)
        return np.maximum(np.ceil(mean - made - TOLERANCE), 1).astype(np.int64)

    return mean_of_beliefs
