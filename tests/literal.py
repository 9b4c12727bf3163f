"""Slow, literal twins of the compiled routines: written from the definitions, sharing no code."""

import itertools
from fractions import Fraction
from math import ceil


def usage_at(step, starts, prompts, outputs):
    """Tokens held at one step by the requests that have a start (Sorted-F Eq. 6)."""
    return sum(
        prompts[i] + step - start
        for i, start in enumerate(starts)
        if start is not None and start < step <= start + outputs[i]
    )


def fits(starts, instance):
    """Check every step one by one."""
    prompts, outputs = instance.prompts.tolist(), instance.outputs.tolist()
    begun = [start + outputs[i] for i, start in enumerate(starts) if start is not None]
    return all(
        usage_at(step, starts, prompts, outputs) <= instance.memory
        for step in range(1, max(begun, default=0) + 1)
    )


def simulate(instance, walk):
    """Step the clock by one and admit with the prefix rule.

    `walk(waiting, step)` gives the waiting requests in the order to try them; it is asked again
    after every admission, so that it may keep a batch of its own.
    """
    starts = [None] * len(instance)
    step = 0
    while None in starts:
        while True:
            waiting = [
                i
                for i, arrival in enumerate(instance.arrivals.tolist())
                if arrival <= step and starts[i] is None
            ]
            if not waiting:
                break
            head = walk(waiting, step)[0]
            starts[head] = step
            if not fits(starts, instance):
                starts[head] = None
                break
        step += 1
    return starts


def by_key(key):
    """Walk the waiting requests by ascending key, then index."""
    return lambda waiting, step: sorted(waiting, key=lambda i: (key[i], i))


class Served:
    """One batch after another: the next is chosen when the one before is used up (prefix rule)."""

    def __init__(self, select):
        self.select = select
        self.batch = []

    def __call__(self, waiting, step):
        self.batch = [i for i in self.batch if i in waiting]
        if not self.batch:
            self.batch = self.select(waiting)
        return self.batch


class SortedF(Served):
    """Algorithm 1 with the selection of Algorithm 4, both sets walked by (peak, index)."""

    def __init__(self, instance):
        super().__init__(self.swapped)
        self.outputs = instance.outputs.tolist()
        self.peaks = (instance.prompts + instance.outputs).tolist()
        self.memory = instance.memory

    def swapped(self, waiting):
        def place(i):
            return (self.peaks[i], i)

        pool = sorted(waiting, key=place)
        batch, memory = [], 0
        for i in pool:
            if memory + self.peaks[i] <= self.memory:
                batch.append(i)
                memory += self.peaks[i]
        improved = True
        while improved:
            improved = False
            for out in sorted(batch, key=place):
                for new in sorted(set(pool) - set(batch), key=place):
                    delta = self.peaks[new] - self.peaks[out]
                    if memory + delta > self.memory:
                        continue
                    if self.outputs[new] < self.outputs[out]:
                        batch = [i for i in batch if i != out] + [new]
                        memory += delta
                        improved = True
                        break
                if improved:
                    break
        return sorted(sorted(batch, key=place), key=lambda i: self.outputs[i])


def optimum(instance):
    """Least total latency over all schedules, by depth-first search over start steps.

    Requests start in time order; at each step every feasible subset of the waiting ones may start.
    A start after everything running has ended and all have arrived is never useful.
    """
    prompts, outputs = instance.prompts.tolist(), instance.outputs.tolist()
    arrivals = instance.arrivals.tolist()
    count = len(prompts)
    best = [float("inf")]

    def rest(starts, step):
        return sum(
            max(step, arrivals[i]) + outputs[i] - arrivals[i]
            for i in range(count)
            if starts[i] is None
        )

    def search(starts, step, cost):
        if None not in starts:
            best[0] = min(best[0], cost)
            return
        if cost + rest(starts, step) >= best[0]:
            return
        waiting = [i for i in range(count) if starts[i] is None and arrivals[i] <= step]
        running = any(s is not None and s + outputs[i] > step for i, s in enumerate(starts))
        to_come = any(s is None and arrivals[i] > step for i, s in enumerate(starts))
        for size in range(len(waiting), -1, -1):
            if size == 0 and not running and not to_come:
                continue
            for group in itertools.combinations(waiting, size):
                chosen = list(starts)
                for i in group:
                    chosen[i] = step
                if fits(chosen, instance):
                    gain = sum(step + outputs[i] - arrivals[i] for i in group)
                    search(chosen, step + 1, cost + gain)

    search([None] * count, 0, 0)
    return best[0]


def lagrangian(instance, prices):
    """The Lagrangian bound in fractions, term by term; prices[t - 1] is that of step t."""

    def price(step):
        return prices[step - 1] if step <= len(prices) else Fraction(0)

    total = Fraction(0)
    for prompt, output, arrival in zip(
        instance.prompts.tolist(),
        instance.outputs.tolist(),
        instance.arrivals.tolist(),
        strict=True,
    ):
        total += min(
            start
            + output
            - arrival
            + sum((prompt + u) * price(start + u) for u in range(1, output + 1))
            for start in range(arrival, max(arrival, len(prices)) + 1)
        )
    return total - instance.memory * sum(prices, Fraction(0))


def sawtooth(certificate, instance, workers=None):
    """The sawtooth bound term by term, with every credit added up anew."""
    unit, size = certificate.denominator, certificate.size
    memories = (instance.memory,) if workers is None else workers.memories
    prices, charges = (
        {step: Fraction(each, unit) for step, each in enumerate(numbers, 1)}
        for numbers in (certificate.prices, certificate.charges)
    )
    weights = [1] * len(instance)
    if certificate.objective == "weighted-latency" and instance.weights is not None:
        weights = instance.weights.tolist()

    def credit(end):
        owed = (size * charges[t] - (end - t) * prices[t] for t in prices if t <= end)
        exact = Fraction(max(memories), size) * sum((max(each, 0) for each in owed), Fraction(0))
        return Fraction(ceil(exact * unit), unit)

    def cost(prompt, output, arrival, weight, start):
        step = Fraction(int(Fraction(weight) * unit), unit)
        paid = sum(
            (prompt + u) * prices.get(start + u, 0)
            + min(size, prompt + u) * charges.get(start + u, 0)
            for u in range(1, output + 1)
        )
        return step * (start + output - arrival) + paid - credit(start + output)

    rows = zip(instance.prompts, instance.outputs, instance.arrivals, weights, strict=True)
    total = -sum(memories) * sum(prices.values(), Fraction(0))
    for prompt, output, arrival, weight in rows:
        request = int(prompt), int(output), int(arrival), float(weight)
        # No start after the last price and all credits is the cheapest.
        last = max(request[2], 2 * len(prices)) + 1
        total += min(cost(*request, start) for start in range(request[2], last))
    return total


def mean_busy_time_bound(instance):
    """The closed-form bound, computed by filling token-steps one at a time."""
    prompts, outputs = instance.prompts.tolist(), instance.outputs.tolist()
    arrivals, areas = instance.arrivals.tolist(), instance.areas.tolist()
    left = dict(enumerate(areas))
    busy = Fraction(0)
    step = 0
    while left:
        step += 1
        for _ in range(instance.memory):
            there = [i for i in left if arrivals[i] < step]
            if not there:
                break
            i = min(there, key=lambda j: (areas[j], j))
            busy += Fraction(step, areas[i])
            left[i] -= 1
            if not left[i]:
                del left[i]
    beta = sum(
        Fraction(sum(u * (s + u) for u in range(1, o + 1)), area)
        for s, o, area in zip(prompts, outputs, areas, strict=True)
    )
    return busy - beta + sum(outputs) - sum(arrivals)
