"""What the papers define, literally, for counterexamples and mends: nothing of optsched.

By Eq. 6 of Sorted-F a request that starts at p counts at p + 1, ..., p + o; by Eq. 1 of Jaillet,
Sorted-F and Robust, taken literally, at p as well, together with what ends there. In both it holds
its prompt and t - p tokens at t.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations_with_replacement, permutations

import pytest

EQ_1, EQ_6 = 0, 1  # steps after its start from which a request counts
LISTS = combinations_with_replacement
both = pytest.mark.parametrize("first", [EQ_6, EQ_1])


def fits(requests, starts, memory, first):
    """Whether (prompt, output) with these starts never exceed the memory."""
    runs = [(p, *each) for p, each in zip(starts, requests, strict=True)]
    steps = {t for p, _, o in runs for t in (p + first, p + o)}
    return all(sum(s + t - p for p, s, o in runs if first <= t - p <= o) <= memory for t in steps)


def in_order(requests, memory, first, believed=None):
    """Total latency where requests start in order, each as soon as all would fit if `believed`."""
    starts, now = [], 0
    while len(starts) < len(requests):
        tried = [*starts, now]
        shown = [
            (s, believed if believed and p + o > now else o)
            for p, (s, o) in zip(tried, requests, strict=False)
        ]
        steps = range(now + first, now + max(o for _, o in shown) + 1)
        held = (
            sum(s + t - p for p, (s, o) in zip(tried, shown, strict=True) if first <= t - p <= o)
            for t in steps
        )
        if max(held) <= memory:
            starts = tried
        else:
            now += 1
    return sum(p + o for p, (_, o) in zip(starts, requests, strict=True))


def best(requests, memory, first, most):
    """Least total latency of all schedules that cost no more than `most`."""
    own = sum(o for _, o in requests)

    def least(starts, budget):
        if len(starts) == len(requests):
            return sum(starts) if fits(requests, starts, memory, first) else budget + 1
        at = len(starts)
        # Requests that are alike start in the order in which they are listed.
        begin = starts[-1] if at and requests[at] == requests[at - 1] else 0
        for start in range(begin, budget - sum(starts) + 1):
            if fits(requests[: at + 1], [*starts, start], memory, first):
                budget = min(budget, least([*starts, start], budget))
        return budget

    return own + least([], most - own)


def shortest_first(requests, memory, first):
    return in_order(sorted(requests, key=lambda each: each[1]), memory, first)


def expected(requests, memory, first, believed=None):
    """The mean of all orders."""
    orders = list(permutations(requests))
    return Fraction(sum(in_order(o, memory, first, believed) for o in orders), len(orders))


def sizes(most):
    """Every memory up to the most, prompt and longest output that may fit."""
    return [(m, s, m - s) for m in range(2, most + 1) for s in range(1, m)]


def no_optimum(prompt, outputs, memory, first):
    requests = [(prompt, output) for output in outputs]
    served = shortest_first(requests, memory, first)
    return served > best(requests, memory, first, served)


def loses_to_random(prompt, outputs, ends, memory, first):
    """Whether A_max costs more than A_random with the share l / u of the memory, a whole number."""
    share, requests = memory * ends[0] // ends[1], [(prompt, output) for output in outputs]
    a_max = expected(requests, memory, first, ends[1])
    return a_max > expected(requests, share, first)


def lemma_4_6(mix, prompt):
    """The printed quotient, with l = 1; `mix` has the number of requests of each output."""
    lengths = sorted(mix)
    above = below = Fraction(0)
    for k in range(1, lengths[-1] + 1):
        later = [(i, mix[i]) for i in lengths if i >= k]
        delta = prompt + 1 if k == 1 else 1
        time = sum(i * x for i, x in later)
        there = sum(Fraction(delta + 2 * (i - k), prompt + i) * x for i, x in later)
        above += delta * time * there
        own = mix.get(k, 0)
        below += k * (prompt + k) * own * (own + 2 * sum(x for i, x in later if i > k))
    return above / below


def two(upper, prompt):
    """The largest quotient over some mixes of 1 and u."""
    return max(lemma_4_6({1: shorts, upper: 1}, prompt) for shorts in range(1, 2 * upper))
