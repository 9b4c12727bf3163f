"""The counterexamples of docs/errata.md from the papers' definitions alone: nothing of optsched.

By Eq. 6 of Sorted-F a request that starts at p counts at p + 1, ..., p + o; by Eq. 1 of Jaillet,
Sorted-F and Robust, taken literally, at p as well, together with what ends there. In both it holds
its prompt and t - p tokens at t.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from fractions import Fraction
from itertools import combinations, combinations_with_replacement, permutations, product
from math import sqrt

import numpy as np
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


def a_min_step(prompt, outputs, memory, first, keep, order, state):
    """A step of Robust Algorithm 2, with ties in this order; a preempted request keeps a bound."""
    made, bounds, ended = map(list, state)  # tokens made by a request, None where it waits

    def running():
        return [i for i in order if made[i] is not None and made[i] < outputs[i]]

    def held(later, plan):
        return sum(prompt + made[i] + later for i in running() if later <= plan[i] - made[i])

    for i in sorted(running(), key=lambda i: bounds[i]):
        if held(1, outputs) > memory:
            bounds[i], made[i] = keep(bounds[i], made[i]), None
    for i in sorted((i for i in order if made[i] is None), key=lambda i: bounds[i]):
        made[i] = 0
        # One that has outlived its bound may end with the next step.
        plan = [max(bound, (tokens or 0) + 1) for bound, tokens in zip(bounds, made, strict=True)]
        steps = range(first, max(plan) + 1)
        if any(held(later, plan) + (not later) * sum(ended) > memory for later in steps):
            made[i] = None
            break
    going = running()
    for i in going:
        made[i] += 1
    ended = [prompt + outputs[i] for i in going if made[i] == outputs[i]]
    return tuple(made), tuple(bounds), tuple(ended)


def a_min(prompt, outputs, lower, memory, first, keep):
    """The chances of the totals of Algorithm 2, within 24 steps; all orders of ties are alike."""
    count, found = len(outputs), Counter()
    reached = {(((None,) * count, (lower,) * count, ()), 0): Fraction(1)}
    orders = list(permutations(range(count)))
    for _ in range(24):
        states, reached = reached, Counter()
        for ((state, total), chance), order in product(states.items(), orders):
            after = a_min_step(prompt, outputs, memory, first, keep, order, state)
            total += sum(made != output for made, output in zip(state[0], outputs, strict=True))
            if after[0] == outputs:
                found[total] += chance / len(orders)
            else:
                reached[after, total] += chance / len(orders)
    return found


def tokens_made(_, made):
    """As printed, though a request that is preempted early has made fewer than its bound."""
    return made


def forgets_bounds(*instance):
    return a_min(*instance, tokens_made) != a_min(*instance, max)


# The smallest: fewest requests, then least memory, prompts and outputs; with one prompt, as in the
# papers, of a token or more. Counterexamples are those under both equations.

LISTS = combinations_with_replacement


def sizes(most):
    """Every memory up to the most, prompt and longest output that may fit."""
    return [(m, s, m - s) for m in range(2, most + 1) for s in range(1, m)]


def no_optimum(prompt, outputs, memory, first):
    requests = [(prompt, output) for output in outputs]
    served = shortest_first(requests, memory, first)
    return served > best(requests, memory, first, served)


def late(prompt, outputs, arrival, memory, first):
    """Whether P2, which comes later, is missing at t-hat under every optimum, if P1 starts at 0."""
    requests, end = [(prompt, output) for output in outputs], arrival + sum(outputs) + 2
    plans = [p for p in product(range(end), range(arrival, end)) if sum(p) <= end]
    plans = [plan for plan in plans if fits(requests, plan, memory, first)]
    optima = [plan for plan in plans if sum(plan) == min(map(sum, plans))]
    soon = min(p2 for p1, p2 in plans if p1 == 0) + outputs[1]
    return all(p1 > 0 and p2 + outputs[1] <= p1 + outputs[0] < soon for p1, p2 in optima)


def worse_than_ends(prompt, outputs, ends, memory, first):
    def ratio(outputs):
        requests = [(prompt, output) for output in outputs]
        return expected(requests, memory, first) / shortest_first(requests, memory, first)

    return ratio(outputs) > max(map(ratio, LISTS(ends, len(outputs))))


def loses_to_random(prompt, outputs, ends, memory, first):
    """Whether A_max costs more than A_random with the share l / u of the memory, a whole number."""
    share, requests = memory * ends[0] // ends[1], [(prompt, output) for output in outputs]
    a_max = expected(requests, memory, first, ends[1])
    return a_max > expected(requests, share, first)


def loses_more_than_the_share(prompt, outputs, less, memory, first):
    whole, part = (in_order([(prompt, o) for o in outputs], m, first) for m in (memory, less))
    return part * less > whole * memory


def in_ends(count, most):
    """Outputs in [l, u], and these."""
    bounds = [(low, high) for high in range(2, most + 1) for low in range(1, high)]
    return [(o, e) for e in bounds for o in LISTS(range(e[0], e[1] + 1), count)]


def candidates(name):
    """All up to the smallest, which comes last, each with its memory."""
    if name == "4.2":
        for count, most in ((2, 8), (3, 7), (4, 5)):
            for m, s, longest in sizes(most):
                yield from ((s, o, m) for o in LISTS(range(1, longest + 1), count))
    elif name == "5.4":
        for m, s, longest in sizes(6):
            for o in product(range(1, longest + 1), repeat=2):
                yield from ((s, o, a, m) for a in range(1, o[0]))
    elif name == "alg 2":
        for m, s, longest in sizes(7):
            for o in LISTS(range(1, longest + 1), 2):
                yield from ((s, o, lower, m) for lower in range(1, o[0] + 1))
    elif name == "8.4":
        for m, s, longest in sizes(4):
            for o in product(range(1, longest + 1), repeat=2):
                yield from ((s, o, less, m) for less in range(s + max(o), m))
    else:
        for m, s, longest in sizes(4 if name == "8.6" else 12):
            for o, ends in in_ends(2, longest):
                whole = m * ends[0] % ends[1] == 0 and s + o[-1] <= m * ends[0] // ends[1]
                if name == "8.6" or whole:
                    yield s, o, ends, m


@pytest.mark.parametrize(
    ("name", "fails", "smallest"),
    [
        ("4.2", no_optimum, (1, (1, 1, 3, 3), 5)),
        ("5.4", late, (1, (4, 2), 1, 6)),
        ("alg 2", forgets_bounds, (1, (3, 5), 2, 7)),
        ("8.4", loses_more_than_the_share, (1, (1, 1), 3, 4)),
        ("8.6", worse_than_ends, (1, (2, 3), (1, 3), 4)),
        ("8.8", loses_to_random, (1, (6, 6), (6, 8), 12)),
    ],
)
def test_the_smallest_counterexample_is_the_first_of_all(name, fails, smallest):
    tried = (each for each in candidates(name) if all(fails(*each, f) for f in (EQ_6, EQ_1)))
    assert next(tried) == smallest


@both
def test_jaillet_4_2_holds_where_as_many_fit_at_any_age(first):
    """All lists up to four in memories up to 7; at the boundary nothing is left over."""
    tried = at_boundary = 0
    for count in (2, 3, 4):
        for memory, prompt, longest in sizes(7):
            for outputs in LISTS(range(1, longest + 1), count):
                peak = prompt + outputs[-1]
                if memory // (prompt + 1) == memory // peak:
                    assert not no_optimum(prompt, outputs, memory, first)
                    tried, at_boundary = tried + 1, at_boundary + (memory % peak == 0)
    assert tried > at_boundary > 100
    # One more of an age of one step, and it fails.
    assert 5 // (1 + 1) == 5 // (1 + 3) + 1
    assert no_optimum(1, (1, 1, 3, 3), 5, first)


# Jaillet


@pytest.mark.parametrize(
    ("prompt", "outputs", "memory", "totals"),
    [
        (1, (1, 1, 3, 3), 5, {EQ_6: (13, 12), EQ_1: (13, 12)}),
        (4, (1, 1, 6, 6), 13, {EQ_6: (22, 21), EQ_1: (25, 23)}),
    ],
)
@both
def test_jaillet_4_2_shortest_first_is_not_optimal(prompt, outputs, memory, totals, first):
    requests = [(prompt, output) for output in outputs]
    served = shortest_first(requests, memory, first)
    assert (served, best(requests, memory, first, served)) == totals[first]


@pytest.mark.parametrize(("first", "wave"), [(EQ_6, 9), (EQ_1, 10)])
def test_jaillet_5_3_bursts_go_on_as_waves_where_an_even_pace_keeps_up(first, wave):
    """Prompts of 1, outputs of 9, M = 1000, a hundred at once with probability 0.15 in a step."""
    output, memory, burst = 9, 1000, 100
    # 18 starts in every step hold too little to exceed the memory, and 15 come on average.
    assert 18 * sum(1 + age for age in range(first, output + 1)) <= memory
    assert 18 > 0.15 * burst > burst / wave
    # The next request fits at no step before the wave ends, whatever waits.
    begun = [(1, output)] * burst
    assert fits(begun, [0] * burst, memory, first)
    for start in range(wave):
        assert not fits([*begun, (1, output)], [*[0] * burst, start], memory, first)
    # What then waits starts at once, up to a burst: the wave repeats itself.
    assert fits(begun * 2, [0] * burst + [wave] * burst, memory, first)
    assert not fits([*begun, (1, output)], [0] * (burst + 1), memory, first)


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
    """P1 of 4 tokens at 0, P2 of 2 at 1, prompts of 1, M = 6; Algorithm 2 starts P1 at once."""
    requests, arrivals = [(1, 4), (1, 2)], (0, 1)
    plans = [p for p in product(range(9), repeat=2) if p[1] >= arrivals[1]]
    plans = [plan for plan in plans if fits(requests, plan, 6, first)]
    least = min(map(sum, plans))
    assert [plan for plan in plans if sum(plan) == least] == [(1, 1)]  # both have ended by 5
    assert min(p2 + 2 for p1, p2 in plans if p1 == 0) == 6 > 5


def off_couple(requests, arrivals, plan, memory, first):
    """Algorithm 3 beside an optimum: its starts by t-hat, and t-hat."""
    starts: dict[int, int] = {}

    def admit(now, waiting):
        for i in sorted(waiting, key=lambda i: requests[i][1]):
            tried = starts | {i: now}
            if not fits([requests[j] for j in tried], tried.values(), memory, first):
                break
            starts[i] = now

    admit(0, [i for i, arrival in enumerate(arrivals) if arrival == 0])
    t_hat = max(plan[i] + requests[i][1] for i in starts)
    for now in range(1, t_hat):
        admit(now, [i for i, p in enumerate(plan) if p <= now and i not in starts])
    return starts, t_hat


def catches_up(prompt, outputs, arrivals, memory, first):
    """Whether under every optimum Off-Couple has completed by t-hat what the optimum has."""
    requests, end = [(prompt, o) for o in outputs], max(arrivals) + sum(outputs) + len(outputs)
    plans = [
        plan
        for plan in product(*(range(a, end) for a in arrivals))
        if fits(requests, plan, memory, first)
    ]
    found = []
    for plan in (p for p in plans if sum(p) == min(map(sum, plans))):
        starts, t_hat = off_couple(requests, arrivals, plan, memory, first)
        done = [i for i, p in enumerate(plan) if p + outputs[i] <= t_hat]
        found.append(all(starts.get(i, t_hat) + outputs[i] <= t_hat for i in done))
    return all(found)


@both
def test_jaillet_lemma_5_4_holds_where_one_request_runs_at_a_time(first):
    """All arrivals up to step 3 of two or three requests; at the boundary two just do not fit."""
    for outputs in product(range(1, 4), repeat=2):
        for arrivals in product((0,), range(4)):
            memory = 3 + max(outputs)  # two fit from 2 (s + 1) on, which is 8
            assert catches_up(3, outputs, arrivals, memory, first)
    for outputs in ((3, 1, 2), (3, 3, 1), (2, 1, 1)):
        for later in product(range(3), repeat=2):
            assert catches_up(3, outputs, (0, *later), 6, first)
    assert not catches_up(1, (4, 2), (0, 1), 6, first)


@pytest.mark.parametrize("load", [0.9, 1.2])
def test_jaillet_5_3_mended_has_a_regret_that_does_not_grow(load):
    """As many fit at any age: s = 50, outputs 1 to 3, M = 1272, that is 24 workers."""
    prompt, longest, memory = 50, 3, 1272
    workers = memory // (prompt + longest)
    assert workers == memory // (prompt + 1) == 24
    rng, regrets = random.Random(5), []
    for steps in (250, 1000, 4000):
        # Shortest first on the workers, and tokens of the shortest rest first on all of them at
        # once, which costs no more than any schedule.
        waiting, pooled, free = [], [], [0] * workers
        total = least = now = 0
        while now < steps or waiting or pooled:
            if now < steps:
                for _ in range(sum(rng.random() < load / 2 for _ in range(workers))):
                    output = rng.randrange(1, longest + 1)
                    heapq.heappush(waiting, output)
                    heapq.heappush(pooled, (output, len(regrets)))
            tokens = workers
            while tokens and pooled:
                rest, _ = heapq.heappop(pooled)
                if rest > tokens:
                    heapq.heappush(pooled, (rest - tokens, 0))
                least, tokens = least + (rest <= tokens) * (now + 1), max(tokens - rest, 0)
            while waiting and free[0] <= now:
                end = now + heapq.heappop(waiting)
                total += end
                heapq.heapreplace(free, end)
            now += 1
        regrets.append((total - least) / (workers * load / 2 * steps))
    assert 0 <= regrets[0] < 2 * longest
    assert max(regrets) < 1.3 * min(regrets)


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


def test_sorted_f_2_mended_asks_for_three_tokens_more():
    """Numbers x between T / 4 and T / 2 as prompts, outputs of 1: triples of sum T in T + 3."""
    rng, answers = random.Random(4), []
    while len(answers) < 60:
        total = rng.randrange(20, 40)
        numbers = [rng.randrange(total // 4 + 1, (total + 1) // 2) for _ in range(5)]
        numbers.append(2 * total - sum(numbers))
        if not total < 4 * numbers[-1] < 2 * total:
            continue
        triples = any(sum(three) == total for three in combinations(numbers, 3))
        requests = [(number, 1) for number in numbers]
        # In the printed memory, T, two batches of three never hold all.
        totals = [best(requests, memory, EQ_6, 40) for memory in (total, total + 3)]
        assert totals[0] > 9
        assert (totals[1] == 9) == triples
        answers.append(triples)
    assert 10 < sum(answers) < 50


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
def test_robust_alg_2_differs_where_a_preempted_request_has_made_less_than_its_bound(first):
    """Outputs 3 and 5, known to be at least 2, prompts of 1, M = 7: on average 11.5 and 11.75."""
    printed, larger = (a_min(1, (3, 5), 2, 7, first, keep) for keep in (tokens_made, max))
    assert printed == {10: Fraction(1, 2), 13: Fraction(1, 2)}
    assert larger == {10: Fraction(1, 2), 13: Fraction(3, 8), 15: Fraction(1, 8)}


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


@pytest.mark.parametrize(("upper", "ratio"), [(64, 4.36), (256, 8.17), (1024, 15.79)])
def test_robust_4_3_the_lemma_grows_like_a_root_where_prompts_grow_with_u(upper, ratio):
    shorts = round(sqrt(upper))
    assert lemma_4_6({1: shorts, upper: 1}, 10 * upper) == pytest.approx(ratio, abs=0.01)


@pytest.mark.parametrize("prompt", [1, 10])
def test_robust_4_3_mended_is_logarithmic_at_a_fixed_prompt(prompt):
    """By the worst of all mixes: each fourfold u adds less than the one before."""
    worst = []
    for upper in (16, 64, 256):
        k = np.arange(1, upper + 1)
        later = k[None] >= k[:, None]
        delta = np.where(k == 1, prompt + 1, 1)[:, None]
        time, there = later * k[None], later * (delta + 2 * (k[None] - k[:, None])) / (prompt + k)
        above = (delta * time).T @ there
        # In suffix sums y, x_k = y_k - y_{k + 1}; then the forms are a positive matrix and D.
        above = np.diff(above + above.T, axis=0, prepend=0) / 2
        above = np.diff(above, axis=1, prepend=0)
        peaks = np.diff(k * (prompt + k), prepend=0)
        y = 1 / k
        for _ in range(200):
            y = above @ y / peaks
            y /= y.max()
        x = y - np.append(y[1:], 0)
        assert x.min() > 0
        worst.append(y @ above @ y / (peaks @ y**2))
    assert 0 < worst[2] - worst[1] < worst[1] - worst[0]


def test_robust_4_2_and_its_lemma_4_6_exclude_each_other():
    """Outputs 1 and 1,024, prompts of 10 u: the lemma beside restarts in rounds on m slots."""
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
    # As M grows, places for one request come to less than 1 + u / s times the slots.
    memory = 10**9
    places = Fraction(memory // (10 * upper + 1), memory // (11 * upper))
    assert places < 1 + Fraction(1, 10)
    assert lemma_4_6({1: 32, upper: 1}, 10 * upper) > 12 * (1 + Fraction(1, 10)) > 12 * places


@pytest.mark.parametrize(
    ("power", "ratio", "printed"), [(0, 1.712, 1.7), (1, 1.563, 14 / 9)], ids=["fig 3", "5.3"]
)
def test_robust_5_3_and_the_text_to_figure_3_need_short_prompts(power, ratio, printed):
    """Outputs in the shares k^power q^k, by the lemma, with prompts of one token."""

    def lemma(q, prompt, most):
        return float(lemma_4_6({k: k**power * q**k for k in range(1, most)}, prompt))

    assert lemma(0.9, 0, 250) < printed < lemma(0.9, 1, 250) == pytest.approx(ratio, abs=2e-3)
    # The prompt adds less, the less of the mean output it is.
    added = [lemma(q, 1, most) - lemma(q, 0, most) for q, most in ((0.8, 150), (0.9, 250))]
    assert 0 < added[1] < 0.75 * added[0]


@pytest.mark.parametrize(("upper", "ratio"), [(5, 1.479), (10, 1.583), (20, 1.642)])
def test_robust_5_1_fails_by_the_lemma_with_prompts_of_one_token(upper, ratio):
    assert float(two(upper, 1)) == pytest.approx(ratio, abs=2e-3)
    assert float(two(upper, 1)) > (3 - 1 / upper) / 2 >= float(two(upper, 0)) - 1e-9


def most_of_pairs(own, cross, both):
    """The largest (own_l x^2 + 2 cross x + own_u) / (w_l x^2 + 2 w_l x + w_u) over 2,000 mixes."""
    (above_l, above_u), (w_l, w_u) = own, both
    mixes = [10 ** (n / 250 - 4) for n in range(2000)]
    return max(
        (above_l * x * x + 2 * cross * x + above_u) / (w_l * x * x + 2 * w_l * x + w_u)
        for x in [0, *mixes]
    )


@pytest.mark.parametrize(("lower", "upper"), [(1, 2), (1, 10), (3, 10), (9, 10), (10, 100)])
@pytest.mark.parametrize("prompt", [0, 1, 10, 10_000])
def test_robust_5_1_and_5_2_mended_are_the_most_over_two_outputs(lower, upper, prompt):
    """Both sums for outputs of l or u; at s = 0 what is printed, whose proofs have no prompts."""
    w = [k * (prompt + k) for k in (lower, upper)]
    # Lemma 4.6: in the first period all run for l, and a share (s + l) / (s + u) of the long ones
    # that are left at its end has completed by the time the next begins.
    long_wait = upper * (prompt + lower) - w[0] * (prompt + lower) / (prompt + upper)
    a_min = most_of_pairs((w[0], w[1]), w[0] + long_wait / 2, w)
    alpha, t = lower / upper, sqrt(upper * (prompt + lower) / (lower * (prompt + upper)))
    assert a_min == pytest.approx(1 + t * (1 - alpha * t) / 2, rel=1e-4)
    if lower == 1:  # the sums are the printed quotient
        assert float(two(upper, prompt)) == pytest.approx(a_min, rel=0.01)
    # A_l: all run for l in random order, the long ones anew after them.
    a_l = most_of_pairs((w[0], w[1] + 2 * w[0]), 1.5 * w[0], w)
    root = alpha * t
    mended = 1 + root / (2 * (1 - root)) if root <= 1 / 2 else 1 + 2 * root**2
    assert a_l == pytest.approx(mended, rel=1e-4)
    if prompt == 0:
        assert t == 1


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
def test_robust_8_6_outputs_between_the_ends_are_worse(first):
    requests = [(1, 2), (1, 3)]
    ratio = expected(requests, 4, first) / shortest_first(requests, 4, first)
    assert ratio == {EQ_6: Fraction(15, 14), EQ_1: Fraction(8, 7)}[first]
    assert worse_than_ends(1, (2, 3), (1, 3), 4, first)
    assert worse_than_ends(1, (2, 3, 4), (2, 4), 6, first)


@both
def test_robust_8_6_second_part_holds_with_room(first):
    """A_random on all lists of l or u, up to four; where l = u it has the bound, which is 1."""
    for ends in ((1, 1), (1, 2), (1, 3), (2, 3), (1, 4)):
        bound = Fraction(ends[0] + ends[1], 2 * ends[0])
        for outputs in (o for count in (2, 3, 4) for o in LISTS(ends, count)):
            requests = [(1, output) for output in outputs]
            for memory in range(1 + ends[1], 10):
                ratio = expected(requests, memory, first)
                ratio /= shortest_first(requests, memory, first)
                assert ratio < bound or ratio == bound == 1


def test_robust_8_6_excludes_figure_1_or_theorem_5_1():
    """Some mix of outputs 1 to 10 exceeds the bound for outputs of 1 or 10, both by the lemma."""
    mix = {1: 100, 2: 22, 3: 12, 4: 8, 5: 6, 6: 5, 7: 4, 8: 4, 9: 3, 10: 25}
    assert lemma_4_6(mix, 0) > two(10, 0) == Fraction(3 - Fraction(1, 10), 2)


@both
def test_robust_8_4_loses_more_than_the_share_of_the_memory(first):
    assert [in_order([(1, 1)] * 2, memory, first) for memory in (4, 3)] == [2, 3]  # 3 > 2 * 4 / 3
    whole, half = (in_order([(9, 1)] * 6, memory, first) for memory in (30, 15))
    assert half > 2 * whole
    assert first == EQ_1 or (whole, half) == (9, 21)


@both
def test_robust_8_4_mended_loses_the_share_and_a_term_that_vanishes_with_the_memory(first):
    """Requests of ten tokens on half of M = 30, 90, 270: at most 1 + c / M times the double."""
    excess = []
    for times in (1, 3, 9):
        requests, memory = [(9, 1)] * (12 * times), 30 * times
        whole, half = (in_order(requests, m, first) for m in (memory, memory // 2))
        excess.append((Fraction(half, 2 * whole) - 1) * memory)
    assert 0 < excess[0] == max(excess) <= {EQ_6: 9, EQ_1: 15}[first]


@both
def test_robust_8_8_mended_is_an_equality(first):
    """Where l = u, A_max knows the outputs and the share of the memory is all of it."""
    for memory, prompt, longest in sizes(6):
        for count, output in product((2, 3), range(1, longest + 1)):
            requests = [(prompt, output)] * count
            a_max = in_order(requests, memory, first, believed=output)
            assert a_max == in_order(requests, memory, first)
            assert not loses_to_random(prompt, [output] * count, (output, output), memory, first)


@both
@pytest.mark.parametrize(
    ("prompt", "outputs", "upper", "memory", "share"),
    [(1, (6, 6), 8, 12, 9), (0, (2,) * 7, 4, 14, 7), (0, (2,) * 6 + (3,), 4, 14, 7)],
)
def test_robust_8_8_a_max_costs_more_than_a_random_on_its_share(
    prompt, outputs, upper, memory, share, first
):
    requests = [(prompt, output) for output in outputs]
    kinds = sorted({*permutations(requests)}) if len(set(requests)) > 1 else [tuple(requests)]
    totals = [
        Fraction(sum(in_order(order, held, first, known) for order in kinds), len(kinds))
        for held, known in ((memory, upper), (share, None))
    ]
    assert totals[0] > totals[1]
    if first == EQ_6:
        printed = (
            {2: (18, 17), 7: (24, 21)} if len(set(outputs)) == 1 else {7: (25, Fraction(159, 7))}
        )
        assert tuple(totals) == printed[len(outputs)]


# Fluid


def test_fluid_figure_6_leaves_a_request_behind_that_algorithm_2_completes():
    """Thresholds of 3; segments run to their end, those of type 1 end with the first."""
    first_type = {"P1", "P2", "P4", "P9"}
    arrivals = {0: "P1 P2", 1: "P3", 5: "P4 P5", 7: "P6 P7", 11: "P8", 14: "P9 P10"}
    one, two, rows = [], [], {}
    for now, names in arrivals.items():
        one += names.split()
        if len(one) < 3:
            continue
        batch, one = one[:3], one[3:]
        done = [name for name in batch if name in first_type]
        if len(two) >= 3:  # of what waits in segment 2 before, as both are one batch
            done, two = done + two[:3], two[3:]
        two += [name for name in batch if name not in first_type]
        rows[now] = (one.copy(), two.copy(), sorted(done))
    assert rows[1] == ([], ["P3"], ["P1", "P2"])  # as printed
    assert rows[7] == (["P7"], ["P3", "P5", "P6"], ["P4"])
    assert rows[14] == (["P10"], ["P7", "P8"], ["P3", "P5", "P6", "P9"])  # P6 stays in the figure


# BF-IO


def optimal_loads(prompts, workers, slots):
    """The loads of every assignment that fills all slots and has the least largest load."""
    found = {
        tuple(sorted(sum(order[g * slots : (g + 1) * slots]) for g in range(workers)))
        for order in set(permutations(prompts))
    }
    return [loads for loads in found if loads[-1] == min(each[-1] for each in found)]


def test_bf_io_lemma_1_holds_for_some_optimum_not_for_all():
    """All prompts up to 3 tokens on up to six slots; the first that fails."""
    gaps, failing = [], []
    for workers, slots in ((2, 1), (2, 2), (3, 1), (2, 3), (3, 2)):
        for prompts in LISTS(range(1, 4), workers * slots):
            optima = optimal_loads(prompts, workers, slots)
            gaps.append(min(loads[-1] - loads[0] for loads in optima) - prompts[-1])
            if max(loads[-1] - loads[0] for loads in optima) > prompts[-1]:
                failing.append((workers, slots, prompts))
    assert failing == [(3, 2, (1, 1, 3, 3, 3, 3))]
    assert sorted(optimal_loads(failing[0][2], 3, 2)) == [(2, 6, 6), (4, 4, 6)]
    assert max(gaps) <= 0
