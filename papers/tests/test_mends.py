"""The mends of docs/errata.md from the papers' definitions alone, also beside other theorems."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from fractions import Fraction
from functools import cache
from itertools import combinations, product
from math import sqrt

import definitions as model
import numpy as np
import pytest

# Jaillet


@model.both
def test_jaillet_4_2_holds_where_as_many_fit_at_any_age(first):
    """All lists up to four in memories up to 7; at the boundary nothing is left over."""
    tried = at_boundary = 0
    for count in (2, 3, 4):
        for memory, prompt, longest in model.sizes(7):
            for outputs in model.LISTS(range(1, longest + 1), count):
                peak = prompt + outputs[-1]
                if memory // (prompt + 1) == memory // peak:
                    assert not model.no_optimum(prompt, outputs, memory, first)
                    tried, at_boundary = tried + 1, at_boundary + (memory % peak == 0)
    assert tried > at_boundary > 100
    # One more of an age of one step, and it fails.
    assert 5 // (1 + 1) == 5 // (1 + 3) + 1
    assert model.no_optimum(1, (1, 1, 3, 3), 5, first)


def off_couple(requests, arrivals, plan, memory, first):
    """Algorithm 3 beside an optimum: its starts by t-hat, and t-hat."""
    starts: dict[int, int] = {}

    def admit(now, waiting):
        for i in sorted(waiting, key=lambda i: requests[i][1]):
            tried = starts | {i: now}
            if not model.fits([requests[j] for j in tried], tried.values(), memory, first):
                break
            starts[i] = now

    admit(0, [i for i, arrival in enumerate(arrivals) if arrival == 0])
    t_hat = max(plan[i] + requests[i][1] for i in starts)
    for now in range(1, t_hat):
        admit(now, [i for i, p in enumerate(plan) if p <= now and i not in starts])
    return starts, t_hat


def catches_up(prompt, outputs, arrivals, memory, first, every=False):
    """Whether under each optimum, or schedule, Off-Couple has completed by t-hat what it has."""
    requests, end = [(prompt, o) for o in outputs], max(arrivals) + sum(outputs) + len(outputs)
    plans = [
        plan
        for plan in product(*(range(a, end) for a in arrivals))
        if model.fits(requests, plan, memory, first)
    ]
    found = []
    for plan in (p for p in plans if every or sum(p) == min(map(sum, plans))):
        starts, t_hat = off_couple(requests, arrivals, plan, memory, first)
        done = [i for i, p in enumerate(plan) if p + outputs[i] <= t_hat]
        found.append(all(starts.get(i, t_hat) + outputs[i] <= t_hat for i in done))
    return all(found)


@model.both
def test_jaillet_lemma_5_4_holds_where_one_request_runs_at_a_time(first):
    """All arrivals up to step 3 of two or three; under all schedules, as the proof needs no more.

    At the boundary two just do not fit.
    """
    for outputs in product(range(1, 4), repeat=2):
        # So it is a case of the mend of 4.2, by which 5.3 compares the same two schedules.
        assert (3 + max(outputs)) // (3 + 1) == 1
        assert not model.no_optimum(3, outputs, 3 + max(outputs), first)
        for arrivals in product((0,), range(4)):
            memory = 3 + max(outputs)  # two fit from 2 (s + 1) on, which is 8
            assert catches_up(3, outputs, arrivals, memory, first, every=True)
    for outputs in ((3, 1, 2), (3, 3, 1), (2, 1, 1)):
        for later in product(range(3), repeat=2):
            assert catches_up(3, outputs, (0, *later), 6, first, every=True)
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


@pytest.mark.slow
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
        totals = [model.best(requests, memory, model.EQ_6, 40) for memory in (total, total + 3)]
        assert totals[0] > 9
        assert (totals[1] == 9) == triples
        answers.append(triples)
    assert 10 < sum(answers) < 50


def align_of_sorted_f(requests, memory):
    """The total of Sorted-F_align: groups in turn, for the means of their last batches."""
    left, batches = list(requests), []
    while left:
        chosen = [
            each
            for size in range(1, len(left) + 1)
            for each in combinations(range(len(left)), size)
            if sum(sum(left[i]) for i in each) <= memory
        ]
        batch = min(
            chosen, key=lambda c: (Fraction(sum(left[i][1] for i in c), len(c) ** 2), -len(c))
        )
        batches.append(sorted(left[i][1] for i in batch))
        left = [each for i, each in enumerate(left) if i not in batch]
    total, rest = sum(o for _, o in requests), len(requests)
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        rest, size = rest - len(batch), len(batch)
        more = following and Fraction(sum(batch) + following[0], (size + 1) ** 2)
        if following is None or more <= Fraction(sum(batch), size**2):
            total += rest * Fraction(sum(batch), size)
    return total


def test_sorted_f_7_and_8_mended_are_below_20_times_the_optimum():
    """Both together limit Sorted-F_align by the optimum; nothing comes near the printed 6."""
    rng, found = random.Random(6), []
    for _ in range(150):
        memory = rng.randrange(4, 16)
        requests = []
        for _ in range(rng.randrange(2, 5)):
            output = rng.randrange(1, min(memory, 7))
            requests.append((rng.randrange(1, memory - output + 1), output))
        served = model.shortest_first(requests, memory, model.EQ_6)
        found.append(
            align_of_sorted_f(requests, memory) / model.best(requests, memory, model.EQ_6, served)
        )
    # The list of the errata on 8: 23 against 21.
    assert align_of_sorted_f([(1, 1), (1, 8), (15, 4), (15, 4)], 30) == 23
    assert 1 < max(found) < 6


def mended_3_4(lower, upper):
    alpha = lower / upper
    return (1 + (1 - alpha) / (2 * (1 + alpha + sqrt(2 + 2 * alpha)))) / alpha


def times_alpha(lower, upper, prompt):
    """What takes the place of alpha in 5.2: root of l (s + l) / (u (s + u)); in 5.1, alpha t."""
    return sqrt(lower * (prompt + lower) / (upper * (prompt + upper)))


def mended_5_1(lower, upper, prompt):
    root = times_alpha(lower, upper, prompt)
    return 1 + root * upper / lower * (1 - root) / 2


def mended_5_2(lower, upper, prompt):
    root = times_alpha(lower, upper, prompt)
    return 1 + (root / (2 * (1 - root)) if root <= 1 / 2 else 2 * root**2)


@pytest.mark.parametrize(("lower", "upper"), [(3, 3), (7, 8), (4, 6), (4, 16), (2, 32)])
def test_robust_3_4_mended_is_the_most_of_its_instance_and_within_3_3(lower, upper):
    """M = l u, A_max on l workers in random order, hindsight in waves: u short ones, l long."""
    alpha, batches = lower / upper, 150
    mended = mended_3_4(lower, upper)

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


@cache
def worst_of_all_mixes(lower, upper, prompt):
    """The largest quotient of Lemma 4.6."""
    k = np.arange(lower, upper + 1)
    later = k[None] >= k[:, None]
    delta = np.where(k == lower, prompt + lower, 1)[:, None]
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
    return y @ above @ y / (peaks @ y**2)


@pytest.mark.parametrize("prompt", [1, 10])
def test_robust_4_3_mended_is_logarithmic_at_a_fixed_prompt(prompt):
    """By the worst of all mixes: each fourfold u adds less than the one before."""
    worst = [worst_of_all_mixes(1, upper, prompt) for upper in (16, 64, 256)]
    assert 0 < worst[2] - worst[1] < worst[1] - worst[0]


@pytest.mark.parametrize("prompt", [0, 1, 10])
def test_robust_4_10_mended_has_the_constant_of_4_3(prompt):
    """Of four classes of [1, 64] none is worse than all outputs at the same prompt."""
    classes = [worst_of_all_mixes(low, low + 15, prompt) for low in (1, 17, 33, 49)]
    assert max(classes) < worst_of_all_mixes(1, 64, prompt)


def test_robust_4_1_the_least_output_matters():
    """At alpha = 1/10, without prompts: the row on l = 1 without loss of generality."""
    assert worst_of_all_mixes(1, 10, 0) == pytest.approx(1.7249, abs=1e-4)
    assert worst_of_all_mixes(100, 1000, 0) == pytest.approx(1.7439, abs=1e-4)


@pytest.mark.parametrize("prompt", [0, 1, 10])
@pytest.mark.parametrize("upper", [2, 16, 64])
def test_robust_mends_of_one_lemma_keep_their_order(upper, prompt):
    """4.3 is of all mixes, 5.1 and 5.3 of some; A_max is worse than A_min, as Section 5 says."""
    worst = worst_of_all_mixes(1, upper, prompt)
    assert mended_5_1(1, upper, prompt) <= worst + 1e-12
    for q in (0.5, 0.8, 0.9):
        mix = {k: k * q**k for k in range(1, upper + 1)}
        assert model.lemma_4_6(mix, prompt) <= worst
    if prompt == 0:  # as in 3.4
        assert mended_5_1(1, upper, 0) <= worst < mended_3_4(1, upper)


@pytest.mark.parametrize(("lower", "upper"), [(1, 2), (4, 5), (1, 4), (1, 100), (10, 100)])
def test_robust_5_1_mended_with_long_prompts_is_within_8_6(lower, upper):
    """There A_min serves as A_random does, whose bound is the second part of 8.6."""
    for prompt in (0, 1, upper, 10**3 * upper, 10**9 * upper):
        assert mended_5_1(lower, upper, prompt) < (1 + upper / lower) / 2
    assert mended_5_1(lower, upper, prompt) == pytest.approx((1 + sqrt(upper / lower)) / 2)


@pytest.mark.parametrize(("prompt", "ratio"), [(0, 1.056), (1, 1.078), (10**6, 1.231)])
def test_robust_5_2_mended_has_the_values_of_the_errata(prompt, ratio):
    assert mended_5_2(1, 10, prompt) == pytest.approx(ratio, abs=5e-4)


@pytest.mark.parametrize(("prompt", "crossing"), [(0, (3 - sqrt(5)) / 2), (10**6, 1 / 4)])
def test_robust_figure_2_crosses_earlier_by_the_mends(prompt, crossing):
    """A_l is better than A_min up to 0.382 without prompts, as printed, and up to 1/4 with long."""
    upper = 1000
    better = [mended_5_2(k, upper, prompt) < mended_5_1(k, upper, prompt) for k in range(1, 600)]
    least = better.index(False)
    assert not any(better[least:])
    assert (least + 1) / upper == pytest.approx(crossing, abs=2 / upper)


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
    assert a_min == pytest.approx(mended_5_1(lower, upper, prompt), rel=1e-4)
    if lower == 1:  # the sums are the printed quotient
        assert float(model.two(upper, prompt)) == pytest.approx(a_min, rel=0.01)
    # A_l: all run for l in random order, the long ones anew after them.
    a_l = most_of_pairs((w[0], w[1] + 2 * w[0]), 1.5 * w[0], w)
    assert a_l == pytest.approx(mended_5_2(lower, upper, prompt), rel=1e-4)
    if prompt == 0:
        assert times_alpha(lower, upper, prompt) == pytest.approx(lower / upper)


@model.both
def test_robust_8_6_second_part_holds_with_room(first):
    """A_random on all lists of l or u, up to four; where l = u it has the bound, which is 1."""
    for ends in ((1, 1), (1, 2), (1, 3), (2, 3), (1, 4)):
        bound = Fraction(ends[0] + ends[1], 2 * ends[0])
        for outputs in (o for count in (2, 3, 4) for o in model.LISTS(ends, count)):
            requests = [(1, output) for output in outputs]
            for memory in range(1 + ends[1], 10):
                ratio = model.expected(requests, memory, first)
                ratio /= model.shortest_first(requests, memory, first)
                assert ratio < bound or ratio == bound == 1


@model.both
def test_robust_8_4_mended_loses_the_share_and_a_term_that_vanishes_with_the_memory(first):
    """Requests of ten tokens on half of M = 30, 90, 270: at most 1 + c / M times the double."""
    excess = []
    for times in (1, 3, 9):
        requests, memory = [(9, 1)] * (12 * times), 30 * times
        whole, half = (model.in_order(requests, m, first) for m in (memory, memory // 2))
        excess.append((Fraction(half, 2 * whole) - 1) * memory)
    assert 0 < excess[0] == max(excess) <= {model.EQ_6: 9, model.EQ_1: 15}[first]


@model.both
@pytest.mark.parametrize("ends", [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (2, 5)])
def test_robust_8_8_mended_holds_where_l_is_1_or_prompts_are_long(ends, first):
    """All lists of two or three where s (u - l) >= u (l - 1), the boundary among them."""
    lower, upper = ends
    tried = Counter()
    for prompt in range(upper * (lower - 1) // (upper - lower) + 3):
        beyond = prompt * (upper - lower) - upper * (lower - 1)
        for memory in range(upper, 25, upper):
            for outputs in (o for n in (2, 3) for o in model.LISTS(range(lower, upper + 1), n)):
                fit = prompt + outputs[-1] <= memory * lower // upper
                if beyond >= 0 and fit and prompt + upper <= memory:
                    assert not model.loses_to_random(prompt, outputs, ends, memory, first)
                    tried[beyond == 0] += 1
    assert tried[False] > 10
    # On the smallest counterexample prompts are too short.
    assert 1 * (8 - 6) < 8 * (6 - 1)
    assert model.loses_to_random(1, (6, 6), (6, 8), 12, first)


def in_rounds_without_prompts(outputs, memory):
    """Restarts in rounds of 1, 2, 4, ... tokens, one after another in floor(M / limit) places."""
    total = begin = 0
    limit, left = 1, list(outputs)
    while left:
        free = [begin] * (memory // min(limit, memory))
        for output in left:
            end = free[0] + min(output, limit)
            heapq.heapreplace(free, end)
            total += end * (output <= limit)
        begin, limit, left = max(free), 2 * limit, [o for o in left if o > limit]
    return total


def test_robust_4_2_and_4_6_exclude_each_other_without_prompts_too():
    """Rounds cost at most 128/3 times a bound by memory-time and 4 times one by outputs."""
    rng = random.Random(8)
    for _ in range(200):
        memory = rng.randrange(4, 200)
        outputs = [min(memory, int(rng.paretovariate(0.6))) for _ in range(rng.randrange(1, 300))]
        areas = sorted(o * (o + 1) / 2 for o in outputs)
        by_area = sum(a * (len(areas) - place) for place, a in enumerate(areas)) / memory
        most = 128 / 3 * by_area + 4 * sum(outputs)
        assert in_rounds_without_prompts(outputs, memory) <= most <= 47 * max(by_area, sum(outputs))
    for upper in (10, 30, 100, 300):
        harmonic = sum(1 / k for k in range(1, upper + 1))
        mix = {k: 1 / k**2 for k in range(1, upper + 1)}
        assert model.lemma_4_6(mix, 0) >= harmonic / 4
    # Lemma 4.6 is above that from H_u = 196 on: see `optsched_papers.robust.slots`.
    assert 196 / 4 - 2 == 47


@model.both
def test_robust_8_8_mended_is_an_equality(first):
    """Where l = u, A_max knows the outputs and the share of the memory is all of it."""
    for memory, prompt, longest in model.sizes(6):
        for count, output in product((2, 3), range(1, longest + 1)):
            requests = [(prompt, output)] * count
            a_max = model.in_order(requests, memory, first, believed=output)
            # Theorem 3.3, which needs it, has 1 there.
            assert a_max == model.in_order(requests, memory, first)
            assert a_max == model.best(requests, memory, first, a_max)
            assert not model.loses_to_random(
                prompt, [output] * count, (output, output), memory, first
            )
