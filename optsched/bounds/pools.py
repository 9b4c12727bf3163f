r"""Several workers: bounds on them as one pool, and on machines.

A running request holds at least :math:`s + 1` tokens, so no more than
:math:`K = \lfloor M / (s + 1) \rfloor` run at any step. One machine that makes K tokens per step,
one after the other, and may interrupt requests completes none later; on it the shortest remaining
output first minimises the sum of completions (Schrage, 1968). The bound is strong where age makes
no difference, :math:`\lfloor M / (s + \max_i o_i) \rfloor = K`.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from optsched._internal.aside import Budget, stopwatch
from optsched._internal.compiled import compiled
from optsched._internal.numbers import round_down
from optsched.bounds.ascent import Bound, PolyakAscent, find_bound, work_of_round
from optsched.bounds.lagrangian import cheapest_starts, common_denominator, held_by, weights_of
from optsched.certificates.prices import Certificate
from optsched.errors import InstanceError
from optsched.problem.premises import World

if TYPE_CHECKING:
    from optsched._internal.arrays import BoolArray, FloatArray, IntArray
    from optsched.bounds.ascent import BoundMethod
    from optsched.bounds.lagrangian import Objective
    from optsched.problem.instance import Instance
    from optsched.problem.workers import Workers


def machines_bound(instance: Instance) -> float:
    """Bound the total latency of every schedule of equal prompts from below."""
    prompts = instance.prompts
    if prompts.min() != prompts.max():
        raise InstanceError(
            f"prompts lie between {prompts.min()} and {prompts.max()}, but this bound needs them "
            "equal"
        )
    machines = int(instance.memory // (prompts[0] + 1))
    ends = _shortest_remaining(instance.outputs, instance.arrivals * machines)
    total = float(ends.sum() / machines - instance.arrivals.sum())  # ends count 1 / K steps
    return max(total, float(instance.outputs.sum()))


@compiled
def _shortest_remaining(lengths: IntArray, arrivals: IntArray) -> IntArray:
    """Return the ends on one machine that always runs the least remaining length."""
    count = len(lengths)
    ends = np.zeros(count, dtype=np.int64)
    waiting = [(lengths[0], 0)]
    released, now = 1, arrivals[0]
    while len(waiting) > 0 or released < count:
        if len(waiting) == 0:
            now = arrivals[released]
        while released < count and arrivals[released] <= now:
            heapq.heappush(waiting, (lengths[released], released))
            released += 1
        left, request = heapq.heappop(waiting)
        until = now + left
        if released < count and arrivals[released] < until:
            heapq.heappush(waiting, (until - arrivals[released], request))
            now = arrivals[released]
        else:
            ends[request] = until
            now = until
    return ends


_MAX_POOLS = 8
_BUDGET = Budget(work=2e8)  # of an ascent, in the unit of the searches
_MAX_ROUNDS = 400
_SHARES = (0.0, 0.25, 0.5, 0.75)  # of the pool's prices, to begin with


def bound_of_pools(
    instance: Instance, workers: Workers, method: BoundMethod, objective: Objective
) -> Bound:
    """Bound the cost of every schedule on several workers from below."""
    began = stopwatch()
    pools = Pools.of(instance, workers)
    found = find_bound(workers.pool(instance), method, objective)
    value, name, certificate = found.value, "closed-form", found.prices
    if objective == "makespan":
        # What runs on some workers only has to be over there.
        for requests, memory in pools.inner(instance, workers):
            part = instance.take(requests).replace(memory=memory)
            value = max(value, find_bound(part, method, objective).value)
    elif certificate is not None:
        name, certificate = "pool", of_pool(certificate, instance, workers)
        if len(pools.members) > 1:
            assert found.prices is not None
            nested = price_pools(instance, workers, found.prices)
            if nested.value > certificate.value:
                value, name, certificate = round_down(nested.value), "nested", nested
    fingerprint = workers.fingerprint(instance)
    premises = World(fingerprint, len(workers), preemption="restarted", objective=objective)
    seconds = stopwatch() - began
    return Bound(value, name, seconds, certificate, premises=premises, workers=workers)


def of_pool(certificate: Certificate, instance: Instance, workers: Workers) -> Certificate:
    """Turn prices of one worker with all memory into a certificate for several workers."""
    everyone = (tuple(range(len(workers))),)
    return replace(certificate, pools=everyone, fingerprint=workers.fingerprint(instance))


class Pools(NamedTuple):
    """Sets of workers, that of all first, and which requests pay for which."""

    members: BoolArray  # (pools, G)
    groups: list[IntArray]  # requests that may run on the same workers
    pays: BoolArray  # (groups, pools)

    @classmethod
    def of(cls, instance: Instance, workers: Workers) -> Pools:
        """Make a pool of each set of workers that are all on which some requests may run."""
        places, group = workers.kinds(instance)
        areas = instance.areas.astype(np.float64)
        memories = np.array(workers.memories)

        def crowded(inside: BoolArray) -> float:
            # Memory-time of requests that run on these workers only, over their memory.
            only = np.logical_not((places & ~inside).any(axis=1))
            return float(areas[only[group]].sum() / (memories @ inside))

        some = sorted((row for row in places if not row.all()), key=crowded, reverse=True)
        everyone = np.ones((1, len(workers)), dtype=np.bool_)
        members = np.concatenate([everyone, *(row[None] for row in some[: _MAX_POOLS - 1])])
        order = np.argsort(group, kind="stable")
        groups = np.split(order, np.cumsum(np.bincount(group))[:-1])
        pays = ~(places[:, None] & ~members).any(axis=2)
        return cls(members, groups, pays)

    def memories(self, workers: Workers) -> IntArray:
        """Return the tokens that each pool holds."""
        return np.asarray(self.members @ np.array(workers.memories), dtype=np.int64)

    def inner(self, instance: Instance, workers: Workers) -> list[tuple[IntArray, int]]:
        """Return the requests that run in each pool but the first only, and its memory."""
        memories = self.memories(workers).tolist()
        listed = []
        for pool in range(1, len(self.members)):
            parts = [g for g, pays in zip(self.groups, self.pays, strict=True) if pays[pool]]
            listed.append((np.sort(np.concatenate(parts)), memories[pool]))
        return listed


def price_pools(
    instance: Instance,
    workers: Workers,
    certificate: Certificate,
    *,
    cost: float = np.inf,
    budget: Budget = _BUDGET,
) -> Certificate:
    """Find prices of pools, from those of the pool of all; a known cost sets the target."""
    ascent = _PoolAscent(instance, workers, certificate)
    ascent.begin(cost)
    round_work = work_of_round(ascent.best_prices.size, len(instance))
    for _ in range(min(_MAX_ROUNDS, 1 + int(budget.work / round_work))):
        if ascent.converged or budget.over:
            break
        ascent.step()
    return ascent.certificate(workers.fingerprint(instance))


class _PoolAscent(PolyakAscent):
    """Prices have a row for each pool."""

    def __init__(self, instance: Instance, workers: Workers, certificate: Certificate) -> None:
        self._objective = certificate.objective
        self._pool = workers.pool(instance)
        self._pools = pools = Pools.of(instance, workers)
        self._memories = pools.memories(workers)
        weights = self._weights = weights_of(instance, certificate.objective)
        self._parts = [(self._pool.take(group), weights[group]) for group in pools.groups]
        self._guesses = [part.arrivals for part, _ in self._parts]
        given = np.array(certificate.prices) / certificate.denominator
        inner = []
        for requests, memory in pools.inner(instance, workers):
            part = instance.take(requests).replace(memory=memory)
            found = find_bound(part, "lagrangian", cast("Objective", self._objective)).prices
            assert found is not None
            inner.append(np.array(found.prices) / found.denominator)
        horizon = int(1.1 * max(len(prices) for prices in (given, *inner))) + 1
        self._given = np.zeros((len(pools.members), horizon))
        for row, prices in zip(self._given, (given, *inner), strict=True):
            row[: len(prices)] = prices

    def begin(self, cost: float) -> None:
        """Begin at shares of the pool's prices, with those of the others."""
        of_all = np.zeros_like(self._given)
        of_all[0] = self._given[0]
        points = [of_all]
        for share in _SHARES:
            for pool in range(1, len(self._given)):
                prices = np.zeros_like(self._given)
                prices[0] = share * self._given[0]
                prices[pool] += (1 - share) * self._given[pool]
                points.append(prices)
        self._begin(points)
        self._aim(min(cost - self.best, abs(self.best)))

    def _costs(self, prices: FloatArray, unit: int) -> tuple[int, IntArray]:
        """Evaluate rounded prices exactly, in units of one over `unit`; remember the starts."""
        integers = np.rint(prices * unit).astype(np.int64)
        charged = zip(self._memories.tolist(), integers.sum(axis=1).tolist(), strict=True)
        total = -sum(memory * paid for memory, paid in charged)
        for number, ((part, weights), pays) in enumerate(
            zip(self._parts, self._pools.pays, strict=True)
        ):
            scaled = np.floor(weights * unit).astype(np.int64)
            paid = integers[pays].sum(axis=0)
            starts, costs = cheapest_starts(part, paid, scaled, self._guesses[number])
            self._guesses[number] = starts
            total += int(costs.sum())
        return total, integers

    def _evaluate(self, prices: FloatArray) -> tuple[float, FloatArray]:
        unit = common_denominator(self._pool, prices.sum(axis=0), self._weights)
        total, _ = self._costs(prices, unit)
        slope = np.repeat(-self._memories[:, None].astype(np.float64), prices.shape[1], axis=1)
        for (part, _), starts, pays in zip(
            self._parts, self._guesses, self._pools.pays, strict=True
        ):
            slope[pays] += held_by(part.prompts, part.outputs, starts, prices.shape[1])
        slope[(prices <= 0) & (slope < 0)] = 0.0  # no price can fall below zero
        return total / unit, slope

    def certificate(self, fingerprint: str) -> Certificate:
        """Round the best prices to integers and evaluate them exactly."""
        unit = common_denominator(self._pool, self.best_prices.sum(axis=0), self._weights)
        total, integers = self._costs(self.best_prices, unit)
        return Certificate(
            unit,
            tuple(integers.reshape(-1).tolist()),
            fingerprint,
            Fraction(total, unit),
            self._objective,
            tuple(tuple(np.flatnonzero(row).tolist()) for row in self._pools.members),
        )
