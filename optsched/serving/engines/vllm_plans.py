"""Plans inside vLLM's scheduler: what is expected, or likely by beliefs, to fit to the end."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.compiled import ZERO, compiled
from optsched.errors import PolicyError
from optsched.simulate.likely import TOLERANCE, chance_of_more, steps_ahead, tables
from optsched.simulate.seconds.batches import called_back

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched._internal.arrays import IntArray, Records
    from optsched.problem.forecasts import Forecast
    from optsched.serving.engines.policy import VllmPolicy
    from optsched.simulate.likely import Beliefs

_Callback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


@contextmanager
def planning(policy: VllmPolicy, known: Forecast | None) -> Iterator[tuple[IntArray, Any]]:
    """Return what a kernel calls to plan by beliefs, and where it lists requests before."""
    if known is None or known.beliefs is None:
        yield np.zeros((0, 3), dtype=np.int64), _Callback(lambda _, __: 1)
        return
    if known.beliefs.prior:
        raise PolicyError(
            f"the belief learns while requests complete (prior {known.beliefs.prior:g}), which "
            f"policy {policy.name!r} cannot; pass one whose prior is 0, or a history"
        )
    if policy.enable_prefix_caching:
        raise PolicyError(
            f"policy {policy.name!r}: a plan by beliefs counts blocks that requests share once for "
            "each of them; leave the beliefs out, or turn enable_prefix_caching off"
        )
    listed = np.zeros((len(known), 3), dtype=np.int64)
    believed, lag = tables(known.beliefs, known), int(policy.async_scheduling)
    ahead = steps_ahead(int(known.upper.max()) + lag)

    def plan(count: int, usable: int) -> int:
        limits = (usable, policy.block_size, lag)
        return int(likely_to_fit(listed, count, believed, ahead, limits, float(policy.deviations)))

    with called_back(_Callback, plan, 0) as callback:
        yield listed, callback


@compiled
def likely_to_fit(
    listed: IntArray,
    count: int,
    beliefs: Beliefs,
    ahead: IntArray,
    limits: tuple[int, int, int],
    deviations: float,
) -> bool:
    """Whether mean and deviations of the first `count` requests' blocks fit, batches ahead."""
    usable, block_size, lag = limits
    for batches in ahead:
        mean = variance = 0.0
        for at in range(count):
            request, prompt, made = listed[at, 0], listed[at, 1], listed[at, 2]
            others = batches - lag - 1 if batches > lag else 0
            runs = chance_of_more(beliefs, request, made + others, made)
            left = beliefs.most[request] - made
            if left > batches:
                left = batches
            elif left < 1:
                left = 1
            blocks = (prompt + made + left - 1 + block_size - 1) // block_size
            mean += blocks * runs
            variance += blocks * blocks * runs * (1.0 - runs)
        if mean + deviations * np.sqrt(variance) > usable + TOLERANCE:
            return False
    return True


@compiled
def expected_left(lower: int, upper: int, made: int) -> int:
    """Return the mean of the tokens that are still to come, one at least, rounded up."""
    low, high = max(lower, made + 1), max(upper, made + 1)
    return (low + high + 1) // 2 - made


@compiled
def fits_to_the_end(
    requests: Records,
    running: IntArray,
    ends: IntArray,
    foreign: IntArray,
    room: tuple[int, int, int],
) -> bool:
    """Whether requests are expected to keep to the blocks until they end, batches ahead.

    Of the blocks of each some are foreign: another one holds them longer.
    """
    usable, block_size, lag = room
    for ahead in ends:
        blocks = ZERO
        for at in range(len(ends)):
            if ends[at] >= ahead:
                request = requests[running[at]]
                made = request.made + request.in_flight
                stored = request.prompt + made + min(ends[at] - lag, ahead) - 1
                blocks += (stored + block_size - 1) // block_size - foreign[at]
        if blocks > usable:
            return False
    return True
