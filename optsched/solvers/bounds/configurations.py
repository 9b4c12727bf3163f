r"""The configuration-size bound: what running requests are worth instead of how much they hold.

The Lagrangian bound charges for tokens. Where requests are large, few of them can run together and
much memory stays empty whatever one does; charging for tokens does not see that. Here every state
of a running request (tokens held, steps left) has a size of its own, in each phase of the
schedule, and the largest total size that can run together is computed by a dynamic program. Any
prices and sizes prove a bound: `optsched.certificates.configurations` has the argument.

Prices and sizes are improved together by projected subgradient ascent. With the cheapest starts
and the largest sets of items at hand, a derivative is what the requests pay minus what is for
sale. Adam's steps (Kingma and Ba, 2015), scaled by the history of each coordinate, are what makes
it fast: prices change at every iteration, the size of a rare item hardly ever. The best point met
is kept; at the end it is rounded to integers and evaluated exactly.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.certificates.configurations import ConfigurationCertificate
from optsched.certificates.prices import Certificate
from optsched.errors import CertificateError, OptschedError
from optsched.solvers.bounds.bound import bound
from optsched.solvers.bounds.configuration_kernels import (
    Problem,
    State,
    ascend,
    largest_sets,
    start_costs,
    too_large,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.instance import Instance

_TERMS = 50_000_000  # of one evaluation of all starts
_CHUNK = 8  # iterations between two looks at the clock
_EXACT = 2**61
_PRICE_STEP, _SIZE_STEP = 0.3, 0.12  # lengths of Adam's first steps, as shares of the means
_LONGER = 1.25  # horizon of the prices over that of the Lagrangian bound


@dataclass(frozen=True)
class ConfigurationBound:
    """A proven lower bound on the total latency, with its certificate."""

    value: float
    method: str
    seconds: float
    certificate: ConfigurationCertificate
    iterations: int
    complete: bool
    interrupted: bool = False


def configuration_bound(
    instance: Instance,
    *,
    phases: int = 16,
    iterations: int = 1500,
    time_limit: float | None = None,
    start: Certificate | ConfigurationCertificate | None = None,
    on_progress: Callable[[float, float], None] | None = None,
    stop: threading.Event | None = None,
) -> ConfigurationBound:
    """Bound the total latency of every feasible schedule by sizes of running requests."""
    began = time.perf_counter()
    if phases < 1 or iterations < 0:
        raise OptschedError(
            f"phases is {phases} and iterations {iterations}, but need at least 1 and 0"
        )
    problem = Problem.of(instance)
    point = _first_point(instance, problem, phases, start)
    lengths = _PRICE_STEP * float(point.prices.mean()), _SIZE_STEP * float(point.sizes.mean())
    state = State.at(point.prices, point.sizes)
    done, complete = 0, not point.prices.any()  # where nothing is charged, nothing competes
    interrupted = False
    try:
        while not complete:
            chunk = min(_CHUNK, iterations - done)
            best = ascend(
                problem, point.ends, point.copies, state, done, chunk, iterations, *lengths
            )
            done += chunk
            complete = done == iterations
            seconds = time.perf_counter() - began
            if on_progress is not None:
                on_progress(seconds, best)
            if time_limit is not None and seconds >= time_limit:
                break
            if stop is not None and stop.is_set():
                break
    except KeyboardInterrupt:
        interrupted = True
    certificate = certify_configuration(
        instance, problem, Point(state.best_prices, state.best_sizes, point.ends, point.copies)
    )
    nearest = float(certificate.value)
    value = nearest if Fraction(nearest) <= certificate.value else math.nextafter(nearest, 0)
    seconds = time.perf_counter() - began
    return ConfigurationBound(
        value, "configuration", seconds, certificate, done, complete, interrupted
    )


class Point(NamedTuple):
    """Prices and sizes, with the phases: steps ends[p - 1] + 1 to ends[p] are phase p."""

    prices: FloatArray  # (T,)
    sizes: FloatArray  # (phases, items)
    ends: IntArray
    copies: IntArray


def _first_point(
    instance: Instance,
    problem: Problem,
    phases: int,
    start: Certificate | ConfigurationCertificate | None,
) -> Point:
    if start is not None and start.fingerprint != instance.fingerprint:
        raise CertificateError("the certificate to start from belongs to another instance")
    if not isinstance(start, ConfigurationCertificate) or not start.prices:
        certificate = start if isinstance(start, Certificate) else None
        certificate = certificate or bound(instance, "lagrangian").certificate
        assert certificate is not None
        # An item's size is the share of the memory that it holds; all together are 1 at most.
        prices = np.array(certificate.prices, dtype=np.float64)
        prices *= instance.memory / certificate.denominator
        prices = np.concatenate([prices, np.zeros(int((_LONGER - 1) * len(prices)) + 1)])
        sizes = (problem.tokens / instance.memory)[None]
        old = np.zeros(len(prices), dtype=np.int64)
    else:
        prices = np.array(start.prices, dtype=np.float64) / start.price_denominator
        sizes = np.array(start.sizes, dtype=np.float64) / start.size_denominator
        old = np.searchsorted(start.ends, np.arange(1, len(prices) + 1))
    if len(prices) * int(problem.outputs.sum()) > _TERMS:
        raise too_large(instance)
    ends = _split(prices, phases)
    return Point(prices, sizes[old[ends - 1]], ends, problem.copies(ends))


def _split(prices: FloatArray, phases: int) -> IntArray:
    """Return the last steps of phases of about equal sums of prices."""
    paid = np.cumsum(prices)
    if not len(prices) or paid[-1] == 0:
        return np.array([len(prices)])
    phase = np.minimum((paid - prices / 2) / paid[-1] * phases, phases - 1).astype(np.int64)
    ends: IntArray = np.append(np.flatnonzero(np.diff(phase)) + 1, len(prices))
    return ends


def certify_configuration(
    instance: Instance, problem: Problem, point: Point
) -> ConfigurationCertificate:
    """Round prices and sizes to integers and evaluate the bound at them exactly."""
    count, horizon = len(instance), len(point.prices)
    widest = float(point.sizes.max(initial=1.0)) + 1.0
    reach = horizon + float(instance.arrivals[-1]) + float(instance.outputs.max()) + 1.0
    spent = float(point.prices.sum()) + horizon + 1.0
    room = _EXACT / (count * (reach + spent * widest * problem.width))
    if room < 2**12:
        raise too_large(instance)
    bits = int(math.log2(room))
    size_unit, price_unit = 2 ** min(24, bits // 2), 2 ** min(24, bits - bits // 2)
    prices = np.rint(point.prices * price_unit).astype(np.int64)
    sizes = np.rint(point.sizes * size_unit).astype(np.int64)
    capacities = largest_sets(problem, sizes, point.copies)
    phase = np.searchsorted(point.ends, np.arange(1, horizon + 1))
    costs = start_costs(problem, prices, phase, sizes, price_unit * size_unit)
    total = int((problem.counts * costs.min(axis=1)).sum()) - int(prices @ capacities[phase])
    return ConfigurationCertificate(
        price_unit,
        size_unit,
        tuple(prices.tolist()),
        tuple(point.ends.tolist()),
        tuple(map(tuple, sizes.tolist())),
        instance.fingerprint,
        Fraction(total, price_unit * size_unit),
    )
