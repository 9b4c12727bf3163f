r"""Lower bounds on the total latency of any schedule, in closed form and with a certificate.

**Closed form.** A request holds its tokens over a memory-time area
:math:`A_i = s_i o_i + o_i (o_i + 1) / 2`. Started at :math:`k`, the mean step of these token-steps
is :math:`k + \beta_i` with :math:`\beta_i = \sum_{u=1}^{o_i} u (s_i + u) / A_i`. So the completion
is the mean busy step :math:`B_i` plus :math:`o_i - \beta_i`, and a lower bound on
:math:`\sum_i B_i` is one on the total latency. Ask only that no step holds more than :math:`M`
token-steps and that none lies before the arrival: spending each step on the smallest areas that
have arrived is then optimal (an exchange argument: a token-step of request :math:`i` at step
:math:`t` costs :math:`t / A_i`). See docs/bounds.md.

**Lagrangian.** In that relaxation request :math:`i` is indifferent between the steps that serve
it, so the dual prices fall by :math:`1 / A_i` per step while it is served, to zero where the
worker runs empty. Put into the Lagrangian of the true problem
(`optsched.certificate`) they give a bound that is at least as good up to rounding, and, rounded to
integers over a common denominator, one that anybody can verify exactly.
"""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from optsched._compiled import compiled
from optsched.certificate import Certificate
from optsched.errors import OptschedError, nearest

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched.instance import FloatArray, Instance, IntArray

Objective = Literal["total-latency", "weighted-latency", "makespan"]
OBJECTIVES: tuple[Objective, ...] = ("total-latency", "weighted-latency", "makespan")
BoundMethod = Literal["auto", "closed-form", "lagrangian"]
BOUND_METHODS: tuple[BoundMethod, ...] = ("auto", "closed-form", "lagrangian")

_NEAR, _FAR = 64, 4096  # numbers of starts that are ruled out together
_MAX_PRICES = 20_000_000
_EXACT = 2**62


@dataclass(frozen=True)
class Bound:
    """A proven lower bound on the objective of every feasible schedule.

    Attributes
    ----------
    value
        The bound in steps, rounded towards minus infinity.
    method
        How it was found: "closed-form" or "lagrangian".
    seconds
        Time it took.
    certificate
        The proof, for "lagrangian"; the closed form is proven on paper (docs/bounds.md) and
        evaluated with an allowance for rounding.
    """

    value: float
    method: str
    seconds: float
    certificate: Certificate | None = None


def bound(
    instance: Instance, method: BoundMethod = "auto", objective: Objective = "total-latency"
) -> Bound:
    """Bound the total latency of every feasible schedule from below, or another objective.

    Parameters
    ----------
    instance
        The requests.
    method
        "closed-form", "lagrangian" (with a certificate), or "auto": the better of the two.
    objective
        "total-latency", "weighted-latency", or "makespan", for which there is only the closed
        form: the memory-time that arrives from some step on over the memory, and the longest
        request.

    Returns
    -------
    Bound
        The bound and, for "lagrangian", its certificate.

    Raises
    ------
    OptschedError
        If the method or the objective is unknown, or "lagrangian" is asked for the makespan or
        would need more prices than fit.

    Examples
    --------
    >>> from optsched import Instance, bound
    >>> result = bound(Instance([63] + 21 * [1], [1] + 21 * [2], memory=64))
    >>> result.method, result.value <= 45
    ('lagrangian', True)
    """
    if method not in BOUND_METHODS:
        raise OptschedError(f"unknown bound {method!r}: known: {', '.join(BOUND_METHODS)}")
    if objective not in OBJECTIVES:
        raise OptschedError(f"unknown objective {objective!r}: {nearest(objective, OBJECTIVES)}")
    began = time.perf_counter()
    weights = weights_of(instance, objective)
    relaxation = _relax(instance, weights)
    horizon = relaxation.horizon(instance.memory)
    if objective == "makespan":
        if method == "lagrangian":
            raise OptschedError("the makespan has no Lagrangian bound; use the closed form")
        last = max(horizon, int((instance.arrivals + instance.outputs).max()))
        return Bound(float(last), "closed-form", time.perf_counter() - began)
    value = _closed_form(instance, weights, relaxation)
    simple = Bound(value, "closed-form", time.perf_counter() - began)
    if method == "closed-form" or (method == "auto" and horizon > _MAX_PRICES):
        return simple
    if horizon > _MAX_PRICES:
        raise OptschedError(
            f"the Lagrangian bound would need a price for each of {horizon} steps (at most "
            f"{_MAX_PRICES}); use the closed form or longer steps"
        )
    guesses = relaxation.last_starts(instance)
    certificate = certify(instance, dual_prices(instance, weights, relaxation), guesses, objective)
    free = certify(instance, np.zeros(0), guesses, objective)
    certificate = max(certificate, free, key=lambda candidate: candidate.value)
    value = round_down(certificate.value)
    proven = Bound(value, "lagrangian", time.perf_counter() - began, certificate)
    # The certificate is preferred unless it loses more than what rounding the prices costs.
    weaker = value < simple.value - 1e-6 * abs(simple.value)
    return simple if method == "auto" and weaker else proven


@dataclass(frozen=True)
class Fixing:
    """Starts that no schedule has which costs at most as much as one that is known.

    A schedule that starts request i at k costs at least the bound plus the regret of this start:
    what it costs at the certificate's prices beyond the cheapest start. All numbers are those of
    the certificate times its denominator.

    Attributes
    ----------
    latest
        Step after which each request need not start, shape (n,).
    """

    instance: Instance
    sums: tuple[IntArray, IntArray]
    weights: IntArray
    least: IntArray
    room: int
    latest: IntArray

    def too_dear(self, requests: IntArray, steps: IntArray) -> npt.NDArray[np.bool_]:
        """Say which of some starts can be left out.

        Parameters
        ----------
        requests, steps
            Request and step of each start, shape (m,).

        Returns
        -------
        ndarray of bool
            Shape (m,); true where every schedule with this start costs more than the known one.
        """
        prompts, outputs = self.instance.prompts[requests], self.instance.outputs[requests]
        latency = steps + outputs - self.instance.arrivals[requests]
        first, second = self.sums
        begin = np.minimum(steps, len(first) - 1)
        end = np.minimum(steps + outputs, len(first) - 1)
        paid = (prompts - begin) * (first[end] - first[begin]) + second[end] - second[begin]
        regret = self.weights[requests] * latency + paid - self.least[requests]
        return np.asarray(regret > self.room)


def fixable(instance: Instance, certificate: Certificate, cost: float) -> Fixing:
    """Find the starts that a certificate rules out, given the cost of a known schedule.

    Parameters
    ----------
    instance
        The requests.
    certificate
        A certificate of `certify` for them.
    cost
        Cost of a feasible schedule, under the certificate's objective.

    Returns
    -------
    Fixing
        The known schedule itself is never ruled out.
    """
    prices = np.array(certificate.prices, dtype=np.int64)
    objective: Objective = (
        "weighted-latency" if certificate.objective == "weighted-latency" else "total-latency"
    )
    scaled = weights_of(instance, objective) * certificate.denominator
    weights = np.floor(scaled).astype(np.int64)
    _, least = cheapest_starts(instance, prices, weights, instance.arrivals)
    # Costs are sums in floating point; a little more room errs on the safe side.
    known = Fraction(math.nextafter(cost * (1 + 2**-40), math.inf))
    room = math.floor((known - certificate.value) * certificate.denominator)
    latest = (least + room) // weights - instance.outputs + instance.arrivals
    return Fixing(instance, _prefix_sums(prices), weights, least, room, latest)


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


@dataclass(frozen=True)
class _Relaxation:
    """Who is served when, in token-steps: time runs at M per step, so all numbers are whole.

    Where a request completes, `successor` is the first of those waiting then, or -1.
    """

    request: IntArray
    begin: IntArray
    end: IntArray
    successor: IntArray

    def horizon(self, memory: int) -> int:
        """Give the last step in use."""
        return -(-int(self.end[-1]) // memory)

    def last_starts(self, instance: Instance) -> IntArray:
        """Give the starts that complete each request when the relaxation does."""
        completions = np.zeros(len(instance), dtype=np.int64)
        completions[self.request] = -(-self.end // instance.memory)  # the last piece decides
        starts: IntArray = np.maximum(completions - instance.outputs, instance.arrivals)
        return starts


def _relax(instance: Instance, weights: FloatArray) -> _Relaxation:
    areas = instance.areas
    extent = instance.memory * (int(instance.arrivals[-1]) + 1) + areas.sum(dtype=np.float64)
    if extent >= _EXACT:
        raise OptschedError(
            "the arrivals or outputs are too large to be counted in token-steps of 64 bits; "
            "use longer steps"
        )
    priority = np.argsort(areas / weights, kind="stable")
    return _Relaxation(*_serve_smallest(areas, instance.arrivals * instance.memory, priority))


def _closed_form(instance: Instance, weights: FloatArray, relaxation: _Relaxation) -> float:
    memory = float(instance.memory)
    begin, end = relaxation.begin.astype(np.float64), relaxation.end.astype(np.float64)
    first = (relaxation.begin // instance.memory + 1).astype(np.float64)
    last = ((relaxation.end - 1) // instance.memory + 1).astype(np.float64)
    inner = last - first - 1  # steps in between that are served whole; -1 within one step
    steps = np.where(
        inner < 0,
        (end - begin) * first,
        (first * memory - begin) * first
        + memory * inner * (first + last) / 2
        + (end - (last - 1) * memory) * last,
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


def dual_prices(instance: Instance, weights: FloatArray, relaxation: _Relaxation) -> FloatArray:
    """Give optimal prices of the memory-time relaxation for the steps up to its end."""
    return _sweep_prices(
        instance.areas / weights,
        relaxation.request,
        relaxation.begin,
        relaxation.end,
        relaxation.successor,
        instance.memory,
    )


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


def round_down(value: Fraction) -> float:
    """Turn a fraction into the largest double that is not above it."""
    close = float(value)
    return close if Fraction(close) <= value else math.nextafter(close, -math.inf)


@compiled
def _serve_smallest(
    areas: IntArray, arrivals: IntArray, priority: IntArray
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    count = len(areas)
    rank = np.empty(count, dtype=np.int64)
    rank[priority] = np.arange(count)
    remaining = areas.copy()
    request = np.empty(2 * count, dtype=np.int64)
    begin = np.empty(2 * count, dtype=np.int64)
    end = np.empty(2 * count, dtype=np.int64)
    successor = np.full(2 * count, -1)
    waiting = [rank[0]]
    released = 1
    now = arrivals[0]
    pieces = 0
    while waiting or released < count:
        if not waiting:
            now = max(now, arrivals[released])
        while released < count and arrivals[released] <= now:
            heapq.heappush(waiting, rank[released])
            released += 1
        served = priority[waiting[0]]
        stop = now + remaining[served]
        if released < count and arrivals[released] < stop:
            stop = arrivals[released]
        else:
            heapq.heappop(waiting)
        remaining[served] -= stop - now
        request[pieces], begin[pieces], end[pieces] = served, now, stop
        if remaining[served] == 0 and waiting:
            successor[pieces] = priority[waiting[0]]
        pieces += 1
        now = stop
    return (
        request[:pieces].copy(),
        begin[:pieces].copy(),
        end[:pieces].copy(),
        successor[:pieces].copy(),
    )


@compiled
def _sweep_prices(
    areas: FloatArray,
    request: IntArray,
    begin: IntArray,
    end: IntArray,
    successor: IntArray,
    memory: int,
) -> FloatArray:
    # A request served at several steps is indifferent between them: t / A_i + price[t] is the same
    # number, its level, at all of them. Sweep backwards. A request completes at the price at which
    # the next of those waiting would be served, which is zero if nobody waits.
    pieces = len(request)
    price = np.zeros((end[pieces - 1] + memory - 1) // memory)
    level = np.full(len(areas), -1.0)
    for piece in range(pieces - 1, -1, -1):
        served = request[piece]
        first = begin[piece] // memory + 1
        last = (end[piece] - 1) // memory + 1
        if level[served] < 0:
            level[served] = last / areas[served]
            follower = successor[piece]
            if follower >= 0:
                level[served] += level[follower] - last / areas[follower]
        for step in range(first, last + 1):
            price[step - 1] = max(0.0, level[served] - step / areas[served])
    return price


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
