"""Keys of an order inside an engine, and those of requests that it preempts."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched._internal.arrays import FloatArray
    from optsched.forecasts import Forecast
    from optsched.simulate.task import Task

_Callback = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_int64)


@contextmanager
def reranking(task: Task, known: Forecast | None) -> Iterator[tuple[FloatArray, Any]]:
    """Return the keys of all requests, and what a kernel calls for those of preempted ones."""
    instance, policy, clock = task.instance, task.policy, task.clock
    errors: list[BaseException] = []

    def expected(low: Any, high: Any, made: Any) -> Any:
        """Return the mean of the tokens still to come, one at least, rounded up."""
        return (np.maximum(low, made + 1) + np.maximum(high, made + 1) + 1) // 2 - made

    def key(request: int, made: int) -> float:
        assert known is not None
        try:
            left = expected(known.lower[request], known.upper[request], made)
            prompt = instance.prompts[request] + made
            alone = type(instance)([prompt], [left], instance.memory)
            return float(policy.keys(alone, clock)[0])
        except BaseException as error:
            errors.append(error)
            return 0.0

    keys = np.zeros(len(instance))
    if policy.order is not None and known is not None:
        believed = instance.replace(
            outputs=expected(known.lower, known.upper, 0), output_lower=None, output_upper=None
        )
        keys = policy.keys(believed, clock)
    yield np.array(keys), _Callback(key)
    if errors:
        raise errors[0]
