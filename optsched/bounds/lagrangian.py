"""The Lagrangian at given prices of memory: bounds, slopes, regrets, and starts priced out.

It is evaluated in 64-bit integers at prices rounded to a common denominator. A supergradient is the
memory that the cheapest starts would hold at each step, beyond what there is. What a start costs
beyond the cheapest one is its regret: a schedule costs the bound plus the regrets of its starts
plus what the memory it leaves idle is worth, so that none as good as a known one has a start whose
regret exceeds their distance. Where many requests are alike but for arrivals, the cheapest start
from each step on is found once for each kind, backwards.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

import numpy as np

from optsched._internal.arrays import MAX_SUM
from optsched._internal.aside import pieces
from optsched._internal.compiled import ZERO, compiled
from optsched._internal.start_prices import PriceSums, price_of_start, prices_of_starts
from optsched.certificates.prices import Certificate
from optsched.errors import OptschedError

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem.instance import Instance

Objective = Literal["total-latency", "weighted-latency", "makespan"]

NEAR, FAR = 64, 4096  # numbers of starts that are ruled out together
FEWEST = 4096  # requests from which on a look for kinds pays
PIECE = 1000  # requests whose cheapest starts are found before a look whether they are wanted
_STEPS_PER_REQUEST = 64  # that a sweep may take; a search looks at about as many

# Cost of the cheapest start of each request, for certificates made here: regrets need it again.
_LEAST: WeakKeyDictionary[Certificate, IntArray] = WeakKeyDictionary()


def weights_of(instance: Instance, objective: str) -> FloatArray:
    """Return the weight of each request's latency in an objective, shape (n,)."""
    if objective == "weighted-latency" and instance.weights is not None:
        return np.array(instance.weights)  # kernels are compiled once more for read-only arrays
    return np.ones(len(instance))


def certify(
    instance: Instance, prices: FloatArray, guesses: IntArray, objective: str = "total-latency"
) -> Certificate:
    """Round prices to integers and evaluate the Lagrangian at them exactly."""
    weights = weights_of(instance, objective)
    denominator = common_denominator(instance, prices, weights)
    integers = np.rint(prices * denominator).astype(np.int64)
    scaled = np.floor(weights * denominator).astype(np.int64)
    _, costs = cheapest_starts(instance, integers, scaled, guesses)
    total = int(costs.sum()) - instance.memory * int(integers.sum())
    value = Fraction(total, denominator)
    found = Certificate(
        denominator, tuple(integers.tolist()), instance.fingerprint, value, objective
    )
    _LEAST[found] = costs
    return found


def cheapest_starts(
    instance: Instance, prices: IntArray, weights: IntArray, guesses: IntArray
) -> tuple[IntArray, IntArray]:
    """Return the cheapest start of each request and its cost; good guesses save work."""
    sums = [PriceSums.of(prices)]
    if weights[0] == weights.max() == weights.min():
        order = kinds_of(instance, len(prices))
        if order is not None:
            requests = instance.prompts, instance.outputs, instance.arrivals
            return cheapest_by_kind(*requests, int(weights[0]), order, *sums)
    # With the least price of the next steps in place of each price, the cost of a start bounds
    # that of a whole block of starts.
    sums += map(PriceSums.of, least_ahead(prices))
    guesses = np.ascontiguousarray(guesses).view()
    guesses.flags.writeable = False  # as those of a schedule are: one type for the compiler
    starts, costs = np.empty((2, len(instance)), dtype=np.int64)
    given = instance.prompts, instance.outputs, instance.arrivals, weights, guesses
    for part in pieces(len(instance), PIECE):
        of_part = (each[part] for each in (*given, starts, costs))
        _cheapest_starts(*of_part, *itertools.chain(*sums))
    return starts, costs


def least_ahead(values: IntArray) -> list[IntArray]:
    """Return the least of the next values from each on, of few and of many; zeros follow."""
    found, lowest, reach = [], values.copy(), 1
    while reach < FAR:
        inside = max(len(lowest) - reach, 0)
        lowest[:inside] = np.minimum(lowest[:inside], lowest[reach:])
        lowest[inside:] = np.minimum(lowest[inside:], 0)
        reach *= 2
        if reach in (NEAR, FAR):
            found.append(lowest.copy())
    return found


def slope_at(instance: Instance, starts: IntArray, prices: FloatArray) -> FloatArray:
    """Return the slope of the Lagrangian where these starts are cheapest, 0 where prices are."""
    held = held_by(instance.prompts, instance.outputs, starts, len(prices))
    slope = (held - instance.memory).astype(np.float64)
    slope[(prices <= 0) & (slope < 0)] = 0.0  # no price can fall below zero
    return slope


class PricedStarts:
    """Regrets of starts at a certificate's prices, in units of one over its denominator."""

    def __init__(
        self, instance: Instance, certificate: Certificate, guesses: IntArray | None = None
    ) -> None:
        self._instance, self._certificate = instance, certificate
        self._guesses = instance.arrivals if guesses is None else guesses
        weights = weights_of(instance, certificate.objective)
        self._weights = np.floor(weights * certificate.denominator).astype(np.int64)
        self.prices = np.array(certificate.prices, dtype=np.int64)
        self._sums = PriceSums.of(self.prices)
        least = _LEAST.get(certificate)
        self._least = self._found[1] if least is None else least

    @cached_property
    def _found(self) -> tuple[IntArray, IntArray]:
        return cheapest_starts(self._instance, self.prices, self._weights, self._guesses)

    @property
    def cheapest(self) -> IntArray:
        """The cheapest start of each request."""
        return self._found[0]

    def regrets(self, requests: IntArray, steps: IntArray) -> IntArray:
        """Return the regret of each start, never negative; requests and steps have shape (m,)."""
        prompts, outputs = self._instance.prompts[requests], self._instance.outputs[requests]
        paid = prices_of_starts(prompts, outputs, np.array(steps), self._sums)
        latency = steps + outputs - self._instance.arrivals[requests]
        regrets: IntArray = self._weights[requests] * latency + paid - self._least[requests]
        return regrets

    def room(self, cost: Fraction) -> int:
        """Return how much regret a schedule can have that costs at most so much, up to 2^61."""
        room = (cost - self._certificate.value) * self._certificate.denominator
        return min(math.floor(room), MAX_SUM // 2)

    def latest(self, cost: Fraction) -> IntArray:
        """Return the latest starts of schedules that cost at most so much, shape (n,)."""
        # Prices are not negative, so a late start costs at least its latency.
        paid = (self._least + self.room(cost)) // np.maximum(self._weights, 1)
        latency = np.where(self._weights > 0, paid, MAX_SUM // 2)
        return np.asarray(latency - self._instance.outputs + self._instance.arrivals)


def common_denominator(instance: Instance, prices: FloatArray, weights: FloatArray) -> int:
    """Return the largest power of two for which no 64-bit sum of `cheapest_starts` overflows."""
    horizon, spent = len(prices) + 1.0, float(prices.sum()) + 1.0
    reach = horizon + float(instance.arrivals[-1]) + float(instance.outputs.max())
    largest = max(
        (horizon + instance.memory) * spent * 2 + float(weights.max()) * reach,
        float(weights.sum()) * reach,
        instance.memory * spent,
    )
    if largest >= MAX_SUM / 2:
        light = f"divide the weights by {most:g}, or " if (most := weights.max()) > 1 else ""
        raise OptschedError(
            "the instance is too large for a certificate in 64-bit integers; "
            f"{light}use longer steps"
        )
    return int(2 ** min(40, math.floor(math.log2(MAX_SUM / 2 / largest))))


@compiled
def held_by(prompts: IntArray, outputs: IntArray, starts: IntArray, horizon: int) -> IntArray:
    """Count the tokens held at steps 1 to horizon."""
    growth = np.zeros(horizon + 2, dtype=np.int64)
    tokens = np.zeros(horizon + 2, dtype=np.int64)
    for request in range(len(starts)):
        start, prompt, end = starts[request], prompts[request], horizon
        if start >= horizon:
            continue
        if start + outputs[request] < end:
            end = start + outputs[request]
        # One more token per step from start + 1 on, and the prompt; all gone after the end.
        growth[start + 1] += 1
        tokens[start + 1] += prompt
        growth[end + 1] -= 1
        tokens[end + 1] -= prompt + end - start
    running = held = ZERO
    for step in range(horizon + 2):
        running += growth[step]
        held += running + tokens[step]
        tokens[step] = held
    return tokens[1 : horizon + 1]


@compiled
def _cheapest_starts(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    weights: IntArray,
    guesses: IntArray,
    starts: IntArray,
    costs: IntArray,
    total: IntArray,
    moment: IntArray,
    near_total: IntArray,
    near_moment: IntArray,
    far_total: IntArray,
    far_moment: IntArray,
) -> None:
    """Search from each arrival on, by blocks whose least prices the near and far sums hold."""
    horizon = len(total) - 1
    for request in range(len(prompts)):
        prompt, output, arrival = prompts[request], outputs[request], arrivals[request]
        weight = weights[request]
        # At the horizon nothing is paid any more, so that no later start is cheaper.
        start = arrival if arrival > horizon else horizon
        best = weight * (start + output - arrival)
        guess = guesses[request]
        if guess < arrival:
            guess = arrival
        elif guess > start:
            guess = start
        cost = weight * (guess + output - arrival)
        cost += price_of_start(prompt, output, guess, total, moment)
        if cost < best:
            start, best = guess, cost
        for far in range(arrival, horizon, FAR):
            latency = weight * (far + output - arrival)
            if latency >= best:
                break  # later starts cost even more
            least = price_of_start(prompt, output, far, far_total, far_moment)
            if latency + least >= best:
                continue
            far_end = far + FAR if far + FAR < horizon else horizon
            for near in range(far, far_end, NEAR):
                latency = weight * (near + output - arrival)
                least = price_of_start(prompt, output, near, near_total, near_moment)
                if latency + least >= best:
                    continue
                near_end = near + NEAR if near + NEAR < horizon else horizon
                for at in range(near, near_end):
                    cost = weight * (at + output - arrival)
                    cost += price_of_start(prompt, output, at, total, moment)
                    if cost < best:
                        start, best = at, cost
        starts[request], costs[request] = start, best


def kinds_of(instance: Instance, horizon: int) -> IntArray | None:
    """Return the requests kind by kind, if there are few enough kinds to sweep over the steps."""
    count = len(instance)
    if count < FEWEST:
        return None
    prompts = instance.prompts - instance.prompts.min()
    outputs = instance.outputs - instance.outputs.min()
    width = int(outputs.max()) + 1
    if (int(prompts.max()) + 1) * width > count:
        return None
    kinds = prompts * width + outputs
    if np.count_nonzero(np.bincount(kinds)) * horizon > _STEPS_PER_REQUEST * count:
        return None
    return np.argsort(kinds, kind="stable")


@compiled
def cheapest_by_kind(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    weight: int,
    order: IntArray,
    sums: PriceSums,
) -> tuple[IntArray, IntArray]:
    """Find the cheapest starts by one sweep per kind; `order` is that of `kinds_of`."""
    total, moment = sums
    horizon = len(total) - 1
    starts = np.empty(len(prompts), dtype=np.int64)
    costs = np.empty(len(prompts), dtype=np.int64)
    best_start = np.empty(horizon + 1, dtype=np.int64)
    best_cost = np.empty(horizon + 1, dtype=np.int64)
    prompt = output = np.int64(-1)
    for request in order:
        if prompts[request] != prompt or outputs[request] != output:
            prompt, output = prompts[request], outputs[request]
            # At the horizon nothing is paid any more, so that no later start is cheaper.
            best_start[horizon] = horizon
            best_cost[horizon] = weight * (horizon + output)
            for start in range(horizon - 1, -1, -1):
                cost = weight * (start + output) + price_of_start(
                    prompt, output, start, total, moment
                )
                later = best_cost[start + 1]
                best_start[start] = start if cost <= later else best_start[start + 1]
                best_cost[start] = min(cost, later)
        arrival = arrivals[request]
        if arrival >= horizon:
            starts[request], costs[request] = arrival, weight * output
        else:
            starts[request] = best_start[arrival]
            costs[request] = best_cost[arrival] - weight * arrival
    return starts, costs
