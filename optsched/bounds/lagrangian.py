r"""Prices of memory by step: the Lagrangian bound, its relaxation, and starts that it expects.

Request :math:`i` is indifferent between the steps that serve it, so the dual prices fall by
:math:`1 / A_i` per step while it is served, to zero where the worker runs empty. A schedule costs
the bound plus the regrets of its starts, beyond the cheapest ones, plus what the memory that it
leaves idle is worth; so none as good as a known one has a start of more regret than their distance.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import cached_property
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from optsched._internal.arrays import MAX_STEP, MAX_SUM, FloatArray, IntArray, ranks_in, read_only
from optsched._internal.aside import pieces
from optsched._internal.compiled import allocating, compiled, compiled_inside
from optsched._internal.small_kernels import (
    PriceSums,
    pop,
    price_of_start,
    prices_of_starts,
    push,
)
from optsched.certificates.prices import Certificate
from optsched.errors import OptschedError, SolverError
from optsched.models.program import Stopped
from optsched.problem.costs import Lateness, StartCosts
from optsched.problem.instance import Instance

_EXACT = 2**62


class Relaxation(NamedTuple):
    """When each request is served, in token-steps: M per step, so all numbers are whole."""

    request: IntArray
    begin: IntArray
    end: IntArray
    successor: IntArray

    def horizon(self, memory: int) -> int:
        """Return the last step in use."""
        return -(-int(self.end[-1]) // memory)

    def last_starts(self, instance: Instance) -> IntArray:
        """Return the starts that complete each request when the relaxation does."""
        completions = np.zeros(len(instance), dtype=np.int64)
        completions[self.request] = -(-self.end // instance.memory)  # the last piece decides
        starts: IntArray = np.maximum(completions - instance.outputs, instance.arrivals)
        return starts


def relax(instance: Instance, weights: FloatArray) -> Relaxation:
    """Solve the relaxation: serve the smallest area over weight of those that have arrived."""
    areas = instance.areas
    extent = instance.memory * (int(instance.arrivals[-1]) + 1) + areas.sum(dtype=np.float64)
    if extent >= _EXACT:
        raise OptschedError(
            "the arrivals or outputs are too large to be counted in token-steps of 64 bits; "
            "use longer steps"
        )
    priority = np.argsort(areas / weights, kind="stable")
    return serve(areas, instance.arrivals * instance.memory, priority)


def serve(areas: IntArray, arrivals: IntArray, priority: IntArray) -> Relaxation:
    """Serve one request at a time, the first in priority of those that have arrived."""
    waiting, pieces = np.empty_like(areas), np.empty((4, 2 * len(areas)), dtype=np.int64)
    given = areas.copy(), arrivals, priority, ranks_in(priority)
    return Relaxation(*pieces[:, : _serve_smallest(*given, waiting, pieces)])


def closed_form(instance: Instance, weights: FloatArray, relaxation: Relaxation) -> float:
    """Return the value of the relaxation as a lower bound on the weighted latency."""
    memory, begin, end = instance.memory, relaxation.begin, relaxation.end
    first, last = begin // memory + 1, (end - 1) // memory + 1
    # Sum over the token-steps of a piece of the step they are at: whole numbers, then products.
    head, tail, whole = first * memory - begin, end - (last - 1) * memory, last - first - 1
    steps = np.where(
        whole < 0,  # the piece lies within one step
        (end - begin) * first.astype(np.float64),
        head * first.astype(np.float64)
        + memory * whole.astype(np.float64) * (first + last) / 2
        + tail * last.astype(np.float64),
    )
    areas = instance.areas.astype(np.float64)
    prompts, outputs = instance.prompts.astype(np.float64), instance.outputs.astype(np.float64)
    offset = outputs * (outputs + 1) * (prompts / 2 + (2 * outputs + 1) / 6) / areas
    terms = [
        math.fsum(weights[relaxation.request] * steps / areas[relaxation.request]),
        -math.fsum(weights * offset),
        math.fsum(weights * outputs),
        -math.fsum(weights * instance.arrivals),
    ]
    # Sums of numbers of one sign, each made by fewer than 16 roundings of relative size 2**-53.
    value = math.fsum(terms) - 2**-49 * math.fsum(map(abs, terms))
    return max(value, terms[2] * (1 - 2**-49))


def dual_prices(instance: Instance, weights: FloatArray, relaxation: Relaxation) -> FloatArray:
    """Return optimal prices of the memory-time relaxation for the steps up to its end."""
    return prices_of(instance.areas / weights, relaxation, instance.memory)


@compiled
def _serve_smallest(
    remaining: IntArray,
    arrivals: IntArray,
    priority: IntArray,
    rank: IntArray,
    waiting: IntArray,
    pieces: IntArray,
) -> int:
    """Serve the smallest first, and fill the rows of `Relaxation`; return how many pieces."""
    count = len(remaining)
    size = 0
    released = 0
    now = arrivals[0]
    piece = 0
    while size > 0 or released < count:
        if size == 0 and arrivals[released] > now:
            now = arrivals[released]
        while released < count and arrivals[released] <= now:
            size = push(waiting, size, rank[released])
            released += 1
        served = priority[waiting[0]]
        stop = now + remaining[served]
        if released < count and arrivals[released] < stop:
            stop = arrivals[released]
        else:
            size = pop(waiting, size)
        left = remaining[served] - (stop - now)
        remaining[served] = left
        pieces[0, piece] = served
        pieces[1, piece] = now
        pieces[2, piece] = stop
        pieces[3, piece] = priority[waiting[0]] if left == 0 and size > 0 else -1
        piece += 1
        now = stop
    return piece


def prices_of(areas: FloatArray, relaxation: Relaxation, memory: int) -> FloatArray:
    """Return optimal prices of so many units of area at each step; areas are over weights."""
    prices = np.zeros(-(-relaxation.end[-1] // memory))
    _fill_prices(areas, relaxation, memory, np.full(len(areas), -1.0), prices)
    return prices


@compiled
def _fill_prices(
    areas: FloatArray, relaxation: Relaxation, memory: int, level: FloatArray, prices: FloatArray
) -> None:
    request, begin, end, successor = relaxation
    # A request served at several steps is indifferent between them: t / A_i + price[t] is the same
    # number, its level, at all of them. Sweep backwards. A request completes at the price at which
    # the next waiting request would be served, which is zero if none waits.
    for piece in range(len(request) - 1, -1, -1):
        served = request[piece]
        area = areas[served]
        last = (end[piece] - 1) // memory + 1
        if level[served] < 0:
            level[served] = last / area
            follower = successor[piece]
            if follower >= 0:
                level[served] += level[follower] - last / areas[follower]
        highest = level[served]
        for step in range(begin[piece] // memory + 1, last + 1):
            price = highest - step / area
            prices[step - 1] = price if price > 0 else 0.0


Objective = Literal["total-latency", "weighted-latency", "makespan"]

NEAR, FAR = 64, 4096  # numbers of starts that are ruled out together
FEWEST = 4096  # requests from which on a look for kinds pays
PIECE = 1000  # requests whose cheapest starts are found before a look whether they are wanted
_STEPS_PER_REQUEST = 64  # that a sweep may take; a search looks at about as many

# Cost of the cheapest start of each request, for certificates made here: regrets need it again.
_LEAST: WeakKeyDictionary[Certificate, IntArray] = WeakKeyDictionary()


def certify(
    instance: Instance,
    prices: FloatArray,
    guesses: IntArray,
    objective: str = "total-latency",
    lateness: Lateness = "forbidden",
    penalty: float = 0.0,
) -> Certificate:
    """Round prices to integers and evaluate the Lagrangian at them exactly."""
    asked = StartCosts.of(instance, objective, lateness, penalty)
    denominator = common_denominator(instance, prices, asked.steepest)
    integers = np.rint(prices * denominator).astype(np.int64)
    _, costs = cheapest_starts(instance, integers, asked.scaled(denominator), guesses)
    total = int(costs.sum()) - instance.memory * int(integers.sum())
    value = Fraction(total, denominator)
    whole, fingerprint = tuple(integers.tolist()), instance.fingerprint
    how = (lateness, penalty) if asked.soft else ()
    found = Certificate(denominator, whole, fingerprint, value, objective, (), *how)
    _LEAST[found] = costs
    return found


def cheapest_starts(
    instance: Instance, prices: IntArray, costs: StartCosts, guesses: IntArray
) -> tuple[IntArray, IntArray]:
    """Return the cheapest start of each request and its cost; good guesses save work."""
    arrivals, weights, rates = instance.arrivals, costs.weights, costs.weights + costs.slopes
    if not costs.soft:
        return _cheapest_between(instance, prices, weights, arrivals, costs.due, guesses)
    # The cheapest in time, and the cheapest of those that are late, which need no price: the
    # horizon, after which nothing is paid, does for a due date beyond it.
    due = np.minimum(costs.due, np.maximum(len(prices), arrivals))
    last, begins = np.maximum(due, arrivals), read_only(np.maximum(due + 1, arrivals))
    ever = np.full_like(last, MAX_STEP)
    early = _cheapest_between(instance, prices, weights, arrivals, last, guesses)
    late = _cheapest_between(instance, prices, rates, begins, ever, guesses)
    over = begins - due - instance.outputs  # at an end when latency counts from `begins`
    paid = late[1] + weights * (begins - arrivals) + costs.jumps + costs.slopes * over
    better = (paid < early[1]) | (due < arrivals)
    return np.where(better, late[0], early[0]), np.where(better, paid, early[1])


def _cheapest_between(
    instance: Instance,
    prices: IntArray,
    weights: IntArray,
    arrivals: IntArray,
    latest: IntArray,
    guesses: IntArray,
) -> tuple[IntArray, IntArray]:
    """Find the cheapest starts, where latency counts from some arrivals, up to the latest."""
    sums = [PriceSums.of(prices)]
    free = latest.min() == MAX_STEP
    if free and weights[0] == weights.max() == weights.min():
        order = kinds_of(instance, len(prices))
        if order is not None:
            requests = instance.prompts, instance.outputs, arrivals
            return cheapest_by_kind(*requests, int(weights[0]), order, *sums)
    # With the least price of the next steps in place of each price, the cost of a start bounds
    # that of a whole block of starts.
    sums = [PriceSums.of(np.pad(prices, (0, int(instance.outputs.max()))))]
    sums += map(PriceSums.of, (*least_ahead(prices), convex_below(prices)))
    starts, costs = np.empty((2, len(instance)), dtype=np.int64)
    guesses = read_only(np.ascontiguousarray(guesses))
    given = instance.prompts, instance.outputs, arrivals, latest, weights, guesses
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


def convex_below(values: IntArray) -> IntArray:
    """Return the largest convex sequence below values, rounded down; zeros follow."""
    below = np.append(values, 0)
    _make_convex(below, np.zeros_like(below))
    return below[:-1]


@compiled
def _make_convex(below: IntArray, corners: IntArray) -> None:
    count, top = len(below) - 1, 0
    for place in range(1, count + 1):
        while top > 0:
            one, other = corners[top - 1], corners[top]
            rise, length = below[other] - below[one], other - one
            if rise * (place - other) < (below[place] - below[other]) * length:
                break
            top -= 1
        top += 1
        corners[top] = place
    for corner in range(top):
        one, other = corners[corner], corners[corner + 1]
        rise, length = below[other] - below[one], other - one
        for place in range(one + 1, other):
            below[place] = below[one] + rise * (place - one) // length


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
        how = certificate.objective, certificate.lateness, certificate.penalty
        self._costs = StartCosts.of(instance, *how).scaled(certificate.denominator)
        self.prices = np.array(certificate.prices, dtype=np.int64)
        self._sums = PriceSums.of(self.prices)
        least = _LEAST.get(certificate)
        self._least = self._found[1] if least is None else least

    @cached_property
    def _found(self) -> tuple[IntArray, IntArray]:
        return cheapest_starts(self._instance, self.prices, self._costs, self._guesses)

    @property
    def cheapest(self) -> IntArray:
        """The cheapest start of each request."""
        return self._found[0]

    def regrets(self, requests: IntArray, steps: IntArray) -> IntArray:
        """Return the regret of each start, never negative; requests and steps have shape (m,)."""
        prompts, outputs = self._instance.prompts[requests], self._instance.outputs[requests]
        paid = prices_of_starts(prompts, outputs, np.array(steps), self._sums)
        latency = steps + outputs - self._instance.arrivals[requests]
        paid = self._costs.weights[requests] * latency + paid - self._least[requests]
        if self._costs.soft:
            paid += self._costs.of_lateness(requests, steps)
        return np.asarray(paid, dtype=np.int64)

    def room(self, cost: Fraction) -> int:
        """Return how much regret a schedule can have that costs at most so much, up to 2^61."""
        room = (cost - self._certificate.value) * self._certificate.denominator
        return min(math.floor(room), MAX_SUM // 2)

    def latest(self, cost: Fraction) -> IntArray:
        """Return the latest starts of schedules that cost at most so much, shape (n,)."""
        # Prices are not negative, so a late start costs at least its latency.
        weights = self._costs.weights
        paid = (self._least + self.room(cost)) // np.maximum(weights, 1)
        latency = np.where(weights > 0, paid, MAX_SUM // 2)
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


def held_by(prompts: IntArray, outputs: IntArray, starts: IntArray, horizon: int) -> IntArray:
    """Count the tokens held at steps 1 to horizon."""
    held = starts < horizon
    start, prompt = starts[held], prompts[held]
    end = np.minimum(start + outputs[held], horizon)
    # One more token per step from start + 1 on, and the prompt; all gone after the end.
    growth, tokens = np.zeros((2, horizon + 2), dtype=np.int64)
    for at, more, kept in ((start + 1, 1, prompt), (end + 1, -1, -(prompt + end - start))):
        np.add.at(growth, at, more)
        np.add.at(tokens, at, kept)
    usage: IntArray = np.cumsum(np.cumsum(growth) + tokens)[1:-1]
    return usage


@compiled
def _cheapest_starts(
    prompts: IntArray,
    outputs: IntArray,
    arrivals: IntArray,
    latest: IntArray,
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
    below_total: IntArray,
    below_moment: IntArray,
) -> None:
    """Search between two starts, by blocks whose least prices the near and far sums hold."""
    horizon = len(near_total) - 1
    for request in range(len(prompts)):
        prompt, output, arrival = prompts[request], outputs[request], arrivals[request]
        weight = weights[request]
        # At the horizon nothing is paid any more, so that no later start is cheaper.
        start = min(arrival if arrival > horizon else horizon, latest[request])
        best = weight * (start + output - arrival)
        best += price_of_start(prompt, output, start, total, moment)
        guess = min(max(guesses[request], arrival), start)
        cost = weight * (guess + output - arrival)
        cost += price_of_start(prompt, output, guess, total, moment)
        if cost < best:
            start, best = guess, cost
        latency = weight * (output - arrival)
        least = price_of_start(prompt, output, guess, below_total, below_moment)
        least += latency + weight * guess + prompt * output + output * (output + 1) // 2
        most = max(best, least) - latency
        below, end = (below_total, below_moment), min(horizon, latest[request])
        first = _last_cheap(prompt, output, weight, guess, -NEAR, arrival, most, below)
        last = _last_cheap(prompt, output, weight, guess, NEAR, end, most, below)
        for far in range(first, last, FAR):
            latency = weight * (far + output - arrival)
            if latency >= best:
                break  # later starts cost even more
            least = price_of_start(prompt, output, far, far_total, far_moment)
            if latency + least >= best:
                continue
            far_end = far + FAR if far + FAR < last else last
            for near in range(far, far_end, NEAR):
                latency = weight * (near + output - arrival)
                least = price_of_start(prompt, output, near, near_total, near_moment)
                if latency + least >= best:
                    continue
                near_end = near + NEAR if near + NEAR < far_end else far_end
                paid, moved = total[near:near_end], moment[near:near_end]
                paid_then = total[near + output : near_end + output]
                moved_then = moment[near + output : near_end + output]
                for at in range(near_end - near):  # quick, as no place is below zero
                    cost = latency + weight * at + (prompt - near - at) * (paid_then[at] - paid[at])
                    cost += moved_then[at] - moved[at]
                    if cost < best:
                        start, best = near + at, cost
        starts[request], costs[request] = start, best


@compiled_inside
def _last_cheap(
    prompt: int,
    output: int,
    weight: int,
    guess: int,
    stride: int,
    end: int,
    most: int,
    below: tuple[IntArray, IntArray],
) -> int:
    """Return a start on the way to the end beyond which all cost more than `most`, by convexity."""
    place, least = guess, most - 1
    while place != end and least < most:
        place = 2 * place - guess + stride
        place = max(place, end) if stride < 0 else min(place, end)
        least = price_of_start(prompt, output, place, below[0], below[1]) + weight * place
    return place


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


@allocating
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


_FITS = 100_000  # nonzeros that HiGHS solves within a second
_ITERATIONS = 100
_MAX_STEPS = 20_000_000
_AHEAD = 0.0005  # by how much better than the best value a step hopes to get, as a share of it
_DECIMALS = 6  # what is nearer than this is a rounding error of the solver


def expected_starts(instance: Instance) -> FloatArray:
    """Compute when Relax-LP starts each request on average if all arrive at step 0."""
    from optsched.models.hindsight import LatencyRelaxation
    from optsched.solvers.backends.driver import solve_linear

    instance = Instance(instance.prompts, instance.outputs, instance.memory)
    work = float(instance.areas.sum(dtype=np.float64)) / instance.memory
    if work > _MAX_STEPS:
        raise SolverError(
            f"expected starts would need prices for {work:,.0f} steps (at most {_MAX_STEPS:,}); "
            "order by 'area', or use longer steps"
        )
    busy = math.ceil(work)
    program = LatencyRelaxation(instance, horizon=2 * busy + int(instance.outputs.max()))
    if program.nonzeros <= _FITS:
        solution = solve_linear(program.to_linear())
        if solution.status is Stopped.INTERRUPTED:
            raise KeyboardInterrupt
        if solution.values is not None:
            return np.round(program.read(solution.values), _DECIMALS)
    return averaged_starts(instance)


def averaged_starts(instance: Instance, iterations: int = _ITERATIONS) -> FloatArray:
    """Average the starts that are cheapest at the prices of a subgradient method."""
    weights = np.ones(len(instance))
    relaxation = relax(instance, weights)
    first = dual_prices(instance, weights, relaxation)
    longest = int(instance.outputs.max())
    prices = np.concatenate([first, np.zeros(longest)])
    # Prices move by little; four times their sum must still be counted in 64 bits.
    denominator = common_denominator(instance, 4 * prices, weights)
    per_step = StartCosts.plain(weights).scaled(denominator)
    starts = relaxation.last_starts(instance)
    best = -np.inf
    total, length = np.zeros(len(instance)), 0.0
    for _ in range(iterations):
        whole = np.rint(prices * denominator).astype(np.int64)
        starts, costs = cheapest_starts(instance, whole, per_step, starts)
        value = (int(costs.sum()) - instance.memory * int(whole.sum())) / denominator
        best = max(best, value)
        excess = slope_at(instance, starts, prices)
        norm = float(excess @ excess)
        if norm == 0:  # feasible at prices that charge for full steps only: optimal
            return starts.astype(np.float64)
        step = (best - value + _AHEAD * abs(best)) / norm
        total += step * starts
        length += step
        prices = np.maximum(0, prices + step * excess)
    return total / length
