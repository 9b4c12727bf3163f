"""The counterexamples of docs/errata.md from the papers' definitions alone: nothing of optsched.

By Eq. 6 of Sorted-F a request that starts at p counts at p + 1, ..., p + o; by Eq. 1 of Jaillet,
Sorted-F and Robust, taken literally, at p as well, together with what ends there. In both it holds
its prompt and t - p tokens at t.
"""

from __future__ import annotations

import heapq
import random
from fractions import Fraction
from itertools import permutations, product
from math import sqrt

import pytest

EQ_1, EQ_6 = 0, 1  # steps after its start from which a request counts
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


# Jaillet


@pytest.mark.parametrize(
    ("prompt", "outputs", "memory", "totals"),
    [
        (4, (1, 1, 6, 6), 13, {EQ_6: (22, 21), EQ_1: (25, 23)}),
        (1, (2, 2, 3, 3), 6, {EQ_6: (16, 15), EQ_1: (18, 16)}),
    ],
)
@both
def test_jaillet_4_2_shortest_first_is_not_optimal(prompt, outputs, memory, totals, first):
    requests = [(prompt, output) for output in outputs]
    served = shortest_first(requests, memory, first)
    assert (served, best(requests, memory, first, served)) == totals[first]


@pytest.mark.parametrize(("first", "most", "even"), [(EQ_6, 5.9, 10), (EQ_1, 5.45, 9)])
def test_jaillet_5_3_mc_sf_starts_fewer_than_fit_for_ever(first, most, even):
    """Twelve requests of ten tokens per step, prompts of one, M = 650."""
    output, memory, steps = 10, 650, 2000
    # An even pace: at every step as many of each age.
    assert even * sum(1 + age for age in range(first, output + 1)) <= memory
    begun, waiting = [], 0
    for now in range(steps):
        waiting += 12
        running = [(p, n) for p, n in begun if p + output >= now + first]

        def held(t, running=running):
            return sum(n * (1 + t - p) for p, n in running if first <= t - p <= output)

        left = ((memory - held(t)) // (1 + t - now) for t in range(now + first, now + output + 1))
        count = min(waiting, *left)
        if count:
            begun.append((now, count))
            waiting -= count
    pace = sum(n for p, n in begun if p >= steps / 2) / (steps / 2)
    assert pace == pytest.approx(most, rel=0.01)
    assert pace < even < 12


@both
def test_jaillet_lemma_5_4_off_couple_is_late_whatever_it_does(first):
    """P1 of 4 tokens at 0, P2 of 2 at 1, prompts of 2, M = 8; Algorithm 2 starts P1 at once."""
    requests, arrivals = [(2, 4), (2, 2)], (0, 1)
    plans = [p for p in product(range(9), repeat=2) if p[1] >= arrivals[1]]
    plans = [plan for plan in plans if fits(requests, plan, 8, first)]
    least = min(map(sum, plans))
    assert [plan for plan in plans if sum(plan) == least] == [(1, 1)]  # both have ended by 5
    assert min(p2 + 2 for p1, p2 in plans if p1 == 0) == 6 > 5


# Sorted-F


def test_sorted_f_7_the_constructed_schedule_costs_more_than_six_times_the_optimum():
    long, shorts, memory = (1, 140), [(132, 1)] * 7, 141
    starts = [0, *range(7)]
    for first in (EQ_6, EQ_1):
        # By Eq. 1 a short one counts where the next starts, so that two never follow each other.
        assert fits([long, *shorts], starts, memory, first) == (first == EQ_6)
    total = sum(starts) + 140 + 7
    # No request ends before its output, and no two short ones fit together: nothing is cheaper.
    assert total == 140 + sum(range(1, 8)) == 168
    # One group, as all end by 140; no two fit by their peaks; the first to start are these two.
    assert min(133 + 133, 133 + 141) > memory
    for order in ([1, 140, *[1] * 6], [140, *[1] * 7]):
        ends = [sum(order[: place + 1]) for place in range(8)]
        assert sum(ends) in (1009, 1148)
        assert sum(ends) > 6 * total


def test_sorted_f_8_aligned_batches_cost_more_than_the_aligned_optimum():
    requests, memory = [(1, 1), (1, 8), (15, 4), (15, 4)], 30
    assert best(requests, memory, EQ_6, 30) == 21
    assert fits(requests, [0, 0, 0, 4], memory, EQ_6)  # which has that total
    # All end by 8, when the first of them do: one group. It is cut into the three that start at
    # once, which fit by their peaks, with mean output 13/3, and the last one.
    assert sum(s + o for s, o in requests[:3]) <= memory
    aligned = 17 + Fraction(1 + 8 + 4, 3)
    # Sorted-F: least F = sum o / n^2 among what fits by peaks, again and again.
    left, batches = list(range(4)), []
    while left:
        subsets = [[i for i in left if chosen >> i & 1] for chosen in range(1, 16)]
        subsets = [
            each for each in subsets if each and sum(sum(requests[i]) for i in each) <= memory
        ]
        batch = min(subsets, key=lambda b: Fraction(sum(requests[i][1] for i in b), len(b) ** 2))
        batches.append(sorted(requests[i][1] for i in batch))
        left = [i for i in left if i not in batch]
    assert batches == [[1], [4, 8], [4]]
    # One more request would raise F of the first batch, not of the second: they are one group.
    assert Fraction(1 + 4, 4) > 1
    assert Fraction(4 + 8 + 4, 9) < Fraction(12, 4)
    assert 17 + Fraction(4 + 8, 2) == 23 > aligned == Fraction(64, 3)


@pytest.mark.parametrize(("name", "printed"), [("uniform", 9748.3), ("binomial", 10665.7)])
def test_sorted_f_table_ec_1_prints_less_than_the_memory_time_allows(name, printed):
    """Memory 100, 100 requests; the least of all totals is that of memory-times one by one."""
    rng = random.Random(1)

    def length():
        if name == "uniform":
            return rng.randrange(1, 51)
        return 1 + sum(rng.random() < 0.5 for _ in range(49))

    for _ in range(5):
        requests = [(length(), length()) for _ in range(100)]
        areas = sorted(o * s + o * (o + 1) // 2 for s, o in requests)
        bound = sum(area * (100 - place) for place, area in enumerate(areas)) / 100
        assert bound > 2.5 * printed


# Robust


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


@both
def test_robust_example_3_2_holds_in_both_conventions(first):
    """Five requests of one token each, known to be at most 4, prompts of one, M = 10."""
    requests = [(1, 1)] * 5
    assert in_order(requests, 10, first, believed=4) == 9
    assert shortest_first(requests, 10, first) == 5


@both
def test_robust_3_4_needs_a_memory_that_u_divides(first):
    """Outputs of one token known to be at most 4, no prompts, M = 7: exactly the printed ratio."""
    for count, ratio in ((35, 6), (70, Fraction(2485, 385))):
        requests = [(0, 1)] * count
        a_max = in_order(requests, 7, first, believed=4)
        assert Fraction(a_max, shortest_first(requests, 7, first)) == ratio >= 4 * (1 + 2) / 2


def test_robust_3_4_no_outputs_reach_it_from_1_to_64_in_any_memory():
    """At least m = floor(M / u) run while one waits; hindsight has memory-times at best."""
    upper = 64
    lengths = range(1, upper + 1)

    def mean_over_least(tail):
        return sum(tail) / sum(k * p * p for k, p in zip(lengths, tail, strict=True))

    # By Cauchy and Schwarz the largest has P(o >= k) in proportion to 1 / k from 2 on.
    most = max(mean_over_least([1, *(c / 500 / k for k in lengths[1:])]) for c in range(1, 1000))
    rng = random.Random(0)
    for _ in range(200):
        tail = [1, *sorted((rng.random() ** 4 for _ in lengths[1:]), reverse=True)]
        assert mean_over_least(tail) <= most * 1.0001
    printed = upper * (1 + sqrt(upper)) / 2
    bounds = [1 + memory / (memory // upper) * most for memory in range(upper, 2000)]
    assert 102 < min(bounds) < max(bounds) < printed == 288


@pytest.mark.parametrize(("lower", "upper"), [(3, 3), (7, 8), (4, 6), (4, 16), (2, 32)])
def test_robust_3_4_mended_is_the_most_of_its_instance_and_within_3_3(lower, upper):
    """M = l u, A_max on l workers in random order, hindsight in waves: u short ones, l long."""
    alpha, batches = lower / upper, 150
    mended = (1 + (1 - alpha) / (2 * (1 + alpha + sqrt(2 + 2 * alpha)))) / alpha

    def ratio(mix):
        waves = [(lower, upper)] * round(mix * batches) + [(upper, lower)] * batches
        outputs = [output for output, count in waves for _ in range(count)]
        random.Random(3).shuffle(outputs)
        free, now, hindsight = [0] * lower, 0, 0
        for place, output in enumerate(outputs):
            outputs[place] = heapq.heapreplace(free, free[0] + output) + output
        for output, count in waves:
            now += output
            hindsight += count * now
        return sum(outputs) / hindsight

    best_mix = 1 + sqrt(2 + 2 * alpha)
    found = {mix: ratio(mix) for mix in (0.5, 1, 1.7, best_mix, 4, 8)}
    assert max(found.values()) <= 1.02 * mended
    assert found[best_mix] >= 0.98 * mended
    assert mended <= (1 + 1 / alpha) / (2 * alpha) + 1e-12


@pytest.mark.parametrize(("upper", "least"), [(64, 4.4), (256, 8.4), (1024, 16.4)])
def test_robust_4_3_the_lemma_grows_like_a_root_where_prompts_are_long(upper, least):
    shorts = round(sqrt(upper))
    assert lemma_4_6({1: shorts, upper: 1}, 900 * upper) > least > 0.9 * (1 + shorts) / 2 - 0.1


def test_robust_4_2_and_its_lemma_4_6_exclude_each_other():
    """Outputs 1 and 1,024, prompts of 900 u: the lemma beside restarts in rounds on m slots."""
    upper, slots = 1024, 3
    outputs = [1] * (32 * slots * 4) + [upper] * (slots * 4)
    random.Random(2).shuffle(outputs)
    left, now, limit, total = list(outputs), 0, 1, 0
    while left:
        free = [now] * slots
        heapq.heapify(free)
        for output in left:
            end = heapq.heappop(free) + min(output, limit)
            heapq.heappush(free, end)
            total += end * (output <= limit)
        now, left, limit = max(free), [o for o in left if o > limit], 2 * limit
    pairs = sum(min(a, b) for a in outputs for b in outputs)
    least = max(sum(outputs), pairs / 2 / slots)  # of any schedule on the slots
    assert total <= 12 * least
    # More memory than the slots need is less than a share u / s of it.
    assert lemma_4_6({1: 32, upper: 1}, 900 * upper) > 12 * (1 + 1 / 900)


@pytest.mark.parametrize(
    ("power", "ratio", "printed"), [(0, 1.9, 1.7), (1, 1.598, 14 / 9)], ids=["fig 3", "5.3"]
)
def test_robust_5_3_and_figure_3_need_short_prompts(power, ratio, printed):
    """Outputs in the shares k^power 0.9^k, by the lemma."""
    mix = {k: k**power * 0.9**k for k in range(1, 250)}
    assert lemma_4_6(mix, 0) < printed < lemma_4_6(mix, 10**6) == pytest.approx(ratio, abs=2e-3)


def test_robust_5_1_fails_by_the_lemma_with_the_prompts_of_section_6():
    assert float(two(20, 41)) == pytest.approx(2.51, abs=0.01)
    assert float(two(20, 41)) > (3 - 1 / 20) / 2 >= float(two(20, 0)) - 1e-9


@both
def test_robust_5_2_fails_where_prompts_make_the_memory_one_slot(first):
    """Three requests of 4 in [1, 4], prompts of 4, M = 8: A_l first runs each for a token."""
    longer = 1 - first  # by Eq. 1 the next one starts a step later
    hindsight = shortest_first([(4, 4)] * 3, 8, first)
    assert hindsight == 4 + (8 + longer) + (12 + 2 * longer)
    restarts = 3 * (1 + longer)
    a_l = hindsight + 3 * restarts
    assert Fraction(a_l, hindsight) > Fraction(1167, 1000)


@both
@pytest.mark.parametrize(
    ("ends", "memory", "outputs"), [((1, 3), 5, (2, 3)), ((2, 4), 6, (2, 3, 4))]
)
def test_robust_8_6_outputs_between_the_ends_are_worse(ends, memory, outputs, first):
    def ratio(outputs):
        requests = [(1, output) for output in outputs]
        return expected(requests, memory, first) / shortest_first(requests, memory, first)

    assert ratio(outputs) > max(map(ratio, product(ends, repeat=len(outputs))))


def test_robust_8_6_excludes_figure_1_or_theorem_5_1():
    """Some mix of outputs 1 to 10 exceeds the bound for outputs of 1 or 10, both by the lemma."""
    mix = {1: 100, 2: 22, 3: 12, 4: 8, 5: 6, 6: 5, 7: 4, 8: 4, 9: 3, 10: 25}
    assert lemma_4_6(mix, 0) > two(10, 0) == Fraction(3 - Fraction(1, 10), 2)


@pytest.mark.parametrize(("first", "totals"), [(EQ_6, (9, 21)), (EQ_1, (9, 21))])
def test_robust_8_4_loses_more_than_the_share_of_the_memory(first, totals):
    """Six requests of 9 + 1 tokens: three at a time in 30, one at a time in 15."""
    ours = tuple(in_order([(9, 1)] * 6, memory, first) for memory in (30, 15))
    assert ours[1] > 2 * ours[0]
    assert first == EQ_1 or ours == totals


@both
@pytest.mark.parametrize(
    ("prompt", "outputs", "upper"),
    [(1, (4, 4), 8), (0, (2,) * 7, 4), (0, (2,) * 6 + (3,), 4)],
)
def test_robust_8_8_a_max_costs_more_than_a_random_on_its_share(prompt, outputs, upper, first):
    """M = 14, of which A_random has the share l / u, a half."""
    requests = [(prompt, output) for output in outputs]
    kinds = sorted({*permutations(requests)}) if len(set(requests)) > 1 else [tuple(requests)]
    totals = [
        Fraction(sum(in_order(order, memory, first, known) for order in kinds), len(kinds))
        for memory, known in ((14, upper), (7, None))
    ]
    assert totals[0] > totals[1]
    if first == EQ_6:
        printed = (
            {2: (12, 11), 7: (24, 21)} if len(set(outputs)) == 1 else {7: (25, Fraction(159, 7))}
        )
        assert tuple(totals) == printed[len(outputs)]
