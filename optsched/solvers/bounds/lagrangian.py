r"""The Lagrangian at given prices of memory: bounds, regrets, and starts that are too dear.

Whatever the prices, :math:`L(\pi)` of a certificate is a bound. Here it is evaluated in
64-bit integers at prices rounded to a common denominator, which makes a certificate that anybody
can verify. What a start costs at the prices beyond the cheapest one is its regret.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from optsched._internal.compiled import compiled
from optsched.certificates.prices import Certificate
from optsched.errors import OptschedError
from optsched.solvers.bounds.kinds import cheapest_by_kind, kinds_of

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.instance import Instance

Objective = Literal["total-latency", "weighted-latency", "makespan"]

_NEAR, _FAR = 64, 4096  # numbers of starts that are ruled out together
_EXACT = 2**62


def weights_of(instance: Instance, objective: Objective) -> FloatArray:
    """Give the weight of each request's latency in an objective, shape (n,).

    Parameters
    ----------
    instance
        The requests.
    objective
        With "weighted-latency" the instance's weights count, if it has any.

    Returns
    -------
    FloatArray
        Ones where nothing is weighted.
    """
    if objective == "weighted-latency" and instance.weights is not None:
        return instance.weights
    return np.ones(len(instance))


def certify(
    instance: Instance,
    prices: FloatArray,
    guesses: IntArray,
    objective: Objective = "total-latency",
) -> Certificate:
    """Round prices to integers and evaluate the Lagrangian at them exactly.

    Parameters
    ----------
    instance
        The requests.
    prices
        Non-negative price of a token-step for steps 1 to T, shape (T,); later steps are free.
    guesses
        Starts to try first, as for `cheapest_starts`.
    objective
        "total-latency" or "weighted-latency".

    Returns
    -------
    Certificate
        With the value that it proves.
    """
    weights = weights_of(instance, objective)
    denominator = common_denominator(instance, prices, weights)
    integers = np.rint(prices * denominator).astype(np.int64)
    scaled = np.floor(weights * denominator).astype(np.int64)
    _, costs = cheapest_starts(instance, integers, scaled, guesses)
    total = int(costs.sum()) - instance.memory * int(integers.sum())
    return Certificate(
        denominator,
        tuple(integers.tolist()),
        instance.fingerprint,
        Fraction(total, denominator),
        objective,
    )


def cheapest_starts(
    instance: Instance, prices: IntArray, weights: IntArray, guesses: IntArray
) -> tuple[IntArray, IntArray]:
    """Find for each request the start that is cheapest at given prices of memory.

    Parameters
    ----------
    instance
        The requests.
    prices
        Non-negative integer prices of steps 1 to T, shape (T,).
    weights
        Price of a step of latency of each request, in the same unit, shape (n,).
    guesses
        Starts to try first, shape (n,): the better they are, the less is searched.

    Returns
    -------
    tuple of IntArray
        The starts, and the least sum of weighted latency and price paid; shape (n,) each.
    """
    sums = list(_prefix_sums(prices))
    if weights[0] == weights.max() == weights.min():
        order = kinds_of(instance, len(prices))
        if order is not None:
            requests = instance.prompts, instance.outputs, instance.arrivals
            return cheapest_by_kind(*requests, int(weights[0]), order, *sums)
    # With the least price of the next steps in place of each price, the cost of a start bounds
    # that of a whole block of starts.
    lowest = np.concatenate([prices, np.zeros(_FAR, dtype=np.int64)])
    reach = 1
    while reach < _FAR:
        lowest[:-reach] = np.minimum(lowest[:-reach], lowest[reach:])
        reach *= 2
        if reach in (_NEAR, _FAR):
            sums += _prefix_sums(lowest[: len(prices)])
    return _cheapest_starts(
        instance.prompts, instance.outputs, instance.arrivals, weights, guesses, *sums
    )


class PricedStarts:
    """What starts cost at the prices of a certificate, beyond the cheapest start of the request.

    A schedule costs the bound plus the regrets of its starts plus what the memory it leaves idle
    is worth. So none that costs at most as much as a known one has a start whose regret exceeds
    their distance. All numbers are in units of one over the certificate's denominator.

    Parameters
    ----------
    instance
        The requests.
    certificate
        A certificate for them.

    Attributes
    ----------
    prices
        Of steps 1 to T, shape (T,).
    cheapest
        The cheapest start of each request, shape (n,).
    """

    def __init__(self, instance: Instance, certificate: Certificate) -> None:
        self._instance, self._certificate = instance, certificate
        weighted = certificate.objective == "weighted-latency"
        weights = weights_of(instance, "weighted-latency" if weighted else "total-latency")
        self._weights = np.floor(weights * certificate.denominator).astype(np.int64)
        self.prices = np.array(certificate.prices, dtype=np.int64)
        self._first, self._second = _prefix_sums(self.prices)
        self.cheapest, self._least = cheapest_starts(
            instance, self.prices, self._weights, instance.arrivals
        )

    def regrets(self, requests: IntArray, steps: IntArray) -> IntArray:
        """Evaluate starts.

        Parameters
        ----------
        requests, steps
            Request and step of each start, shape (m,).

        Returns
        -------
        IntArray
            Their regrets, shape (m,); never negative.
        """
        prompts, outputs = self._instance.prompts[requests], self._instance.outputs[requests]
        begin = np.minimum(steps, len(self.prices))
        end = np.minimum(steps + outputs, len(self.prices))
        paid = (prompts - begin) * (self._first[end] - self._first[begin])
        paid += self._second[end] - self._second[begin]
        latency = steps + outputs - self._instance.arrivals[requests]
        regrets: IntArray = self._weights[requests] * latency + paid - self._least[requests]
        return regrets

    def room(self, cost: float) -> int:
        """Say how much regret a schedule can have that costs at most so much."""
        # Costs are sums in floating point; a little more room errs on the safe side.
        known = Fraction(math.nextafter(cost * (1 + 2**-40), math.inf))
        return math.floor((known - self._certificate.value) * self._certificate.denominator)

    def latest(self, cost: float) -> IntArray:
        """Bound the starts of every schedule that costs at most so much, shape (n,)."""
        # Prices are not negative, so a late start costs at least its latency.
        latency = (self._least + self.room(cost)) // self._weights
        return np.asarray(latency - self._instance.outputs + self._instance.arrivals)


def common_denominator(instance: Instance, prices: FloatArray, weights: FloatArray) -> int:
    """Choose the largest power of two for which no 64-bit sum of `cheapest_starts` overflows."""
    horizon, spent = len(prices) + 1.0, float(prices.sum()) + 1.0
    reach = horizon + float(instance.arrivals[-1]) + float(instance.outputs.max())
    largest = max(
        (horizon + instance.memory) * spent * 2 + float(weights.max()) * reach,
        float(weights.sum()) * reach,
        instance.memory * spent,
    )
    if largest >= _EXACT / 2:
        raise OptschedError(
            "the instance is too large for a certificate in 64-bit integers; use longer steps"
        )
    return int(2 ** min(40, math.floor(math.log2(_EXACT / 2 / largest))))


def _prefix_sums(prices: IntArray) -> tuple[IntArray, IntArray]:
    first = np.zeros(len(prices) + 1, dtype=np.int64)
    second = np.zeros(len(prices) + 1, dtype=np.int64)
    np.cumsum(prices, out=first[1:])
    np.cumsum(prices * np.arange(1, len(prices) + 1), out=second[1:])
    return first, second


@compiled
def _paid(
    prompt: int, output: int, start: int, horizon: int, first: IntArray, second: IntArray
) -> int:
    if start >= horizon:
        return 0
    end = min(start + output, horizon)
    paid: int = (prompt - start) * (first[end] - first[start]) + second[end] - second[start]
    return paid


@compiled
def _cheapest_starts(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    weights: IntArray,
    guesses: IntArray,
    first: IntArray,
    second: IntArray,
    near_first: IntArray,
    near_second: IntArray,
    far_first: IntArray,
    far_second: IntArray,
) -> tuple[IntArray, IntArray]:
    count = len(prompts)
    horizon = len(first) - 1
    starts = np.empty(count, dtype=np.int64)
    costs = np.empty(count, dtype=np.int64)
    for request in range(count):
        prompt, output, arrival = prompts[request], outputs[request], arrivals[request]
        weight = weights[request]
        # At the horizon nothing is paid any more, so that no later start is cheaper.
        start = max(arrival, horizon)
        best = weight * (start + output - arrival)
        guess = min(max(guesses[request], arrival), start)
        cost = weight * (guess + output - arrival)
        cost += _paid(prompt, output, guess, horizon, first, second)
        if cost < best:
            start, best = guess, cost
        for far in range(arrival, horizon, _FAR):
            latency = weight * (far + output - arrival)
            if latency >= best:
                break  # later starts are dearer still
            if latency + _paid(prompt, output, far, horizon, far_first, far_second) >= best:
                continue
            for near in range(far, min(far + _FAR, horizon), _NEAR):
                latency = weight * (near + output - arrival)
                if latency + _paid(prompt, output, near, horizon, near_first, near_second) >= best:
                    continue
                for at in range(near, min(near + _NEAR, horizon)):
                    cost = weight * (at + output - arrival)
                    cost += _paid(prompt, output, at, horizon, first, second)
                    if cost < best:
                        start, best = at, cost
        starts[request], costs[request] = start, best
    return starts, costs
