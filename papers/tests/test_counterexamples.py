"""The counterexamples of docs/errata.md from the papers' definitions alone: nothing of optsched."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from fractions import Fraction
from itertools import permutations, product
from math import sqrt

import definitions as model
import pytest


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


def late(prompt, outputs, arrival, memory, first):
    """Whether P2, which comes later, is missing at t-hat under every optimum, if P1 starts at 0."""
    requests, end = [(prompt, output) for output in outputs], arrival + sum(outputs) + 2
    plans = [p for p in product(range(end), range(arrival, end)) if sum(p) <= end]
    plans = [plan for plan in plans if model.fits(requests, plan, memory, first)]
    optima = [plan for plan in plans if sum(plan) == min(map(sum, plans))]
    soon = min(p2 for p1, p2 in plans if p1 == 0) + outputs[1]
    return all(p1 > 0 and p2 + outputs[1] <= p1 + outputs[0] < soon for p1, p2 in optima)


def worse_than_ends(prompt, outputs, ends, memory, first):
    def ratio(outputs):
        requests = [(prompt, output) for output in outputs]
        return model.expected(requests, memory, first) / model.shortest_first(
            requests, memory, first
        )

    return ratio(outputs) > max(map(ratio, model.LISTS(ends, len(outputs))))


def loses_more_than_the_share(prompt, outputs, less, memory, first):
    whole, part = (model.in_order([(prompt, o) for o in outputs], m, first) for m in (memory, less))
    return part * less > whole * memory


def in_ends(count, most):
    """Outputs in [l, u], and these."""
    bounds = [(low, high) for high in range(2, most + 1) for low in range(1, high)]
    return [(o, e) for e in bounds for o in model.LISTS(range(e[0], e[1] + 1), count)]


def candidates(name):
    """All up to the smallest, which comes last, each with its memory."""
    if name == "4.2":
        for count, most in ((2, 12), (3, 9), (4, 5)):
            for m, s, longest in model.sizes(most):
                yield from ((s, o, m) for o in model.LISTS(range(1, longest + 1), count))
    elif name == "5.4":
        for m, s, longest in model.sizes(6):
            for o in product(range(1, longest + 1), repeat=2):
                yield from ((s, o, a, m) for a in range(1, o[0]))
    elif name == "alg 2":
        for m, s, longest in model.sizes(7):
            for o in model.LISTS(range(1, longest + 1), 2):
                yield from ((s, o, lower, m) for lower in range(1, o[0] + 1))
    elif name == "8.4":
        for m, s, longest in model.sizes(4):
            for o in product(range(1, longest + 1), repeat=2):
                yield from ((s, o, less, m) for less in range(s + max(o), m))
    else:
        for m, s, longest in model.sizes(4 if name == "8.6" else 12):
            for o, ends in in_ends(2, longest):
                whole = m * ends[0] % ends[1] == 0 and s + o[-1] <= m * ends[0] // ends[1]
                if name == "8.6" or whole:
                    yield s, o, ends, m


@pytest.mark.parametrize(
    ("name", "fails", "smallest"),
    [
        ("4.2", model.no_optimum, (1, (1, 1, 3, 3), 5)),
        ("5.4", late, (1, (4, 2), 1, 6)),
        ("alg 2", forgets_bounds, (1, (3, 5), 2, 7)),
        ("8.4", loses_more_than_the_share, (1, (1, 1), 3, 4)),
        ("8.6", worse_than_ends, (1, (2, 3), (1, 3), 4)),
        ("8.8", model.loses_to_random, (1, (6, 6), (6, 8), 12)),
    ],
)
def test_the_smallest_counterexample_is_the_first_of_all(name, fails, smallest):
    tried = (
        each for each in candidates(name) if all(fails(*each, f) for f in (model.EQ_6, model.EQ_1))
    )
    assert next(tried) == smallest


# Jaillet


@pytest.mark.parametrize(
    ("prompt", "outputs", "memory", "totals"),
    [
        (1, (1, 1, 3, 3), 5, {model.EQ_6: (13, 12), model.EQ_1: (13, 12)}),
        (4, (1, 1, 6, 6), 13, {model.EQ_6: (22, 21), model.EQ_1: (25, 23)}),
    ],
)
@model.both
def test_jaillet_4_2_shortest_first_is_not_optimal(prompt, outputs, memory, totals, first):
    requests = [(prompt, output) for output in outputs]
    served = model.shortest_first(requests, memory, first)
    assert (served, model.best(requests, memory, first, served)) == totals[first]


@pytest.mark.parametrize(("first", "wave"), [(model.EQ_6, 9), (model.EQ_1, 10)])
def test_jaillet_5_3_bursts_go_on_as_waves_where_an_even_pace_keeps_up(first, wave):
    """Prompts of 1, outputs of 9, M = 1000, a hundred at once with probability 0.15 in a step."""
    output, memory, burst = 9, 1000, 100
    # 18 starts in every step hold too little to exceed the memory, and 15 come on average.
    assert 18 * sum(1 + age for age in range(first, output + 1)) <= memory
    assert 18 > 0.15 * burst > burst / wave
    # The next request fits at no step before the wave ends, whatever waits.
    begun = [(1, output)] * burst
    assert model.fits(begun, [0] * burst, memory, first)
    for start in range(wave):
        assert not model.fits([*begun, (1, output)], [*[0] * burst, start], memory, first)
    # What then waits starts at once, up to a burst: the wave repeats itself.
    assert model.fits(begun * 2, [0] * burst + [wave] * burst, memory, first)
    assert not model.fits([*begun, (1, output)], [0] * (burst + 1), memory, first)


@pytest.mark.parametrize(("first", "most", "even"), [(model.EQ_6, 5.9, 10), (model.EQ_1, 5.45, 9)])
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


@model.both
def test_jaillet_lemma_5_4_off_couple_is_late_whatever_it_does(first):
    """P1 of 4 tokens at 0, P2 of 2 at 1, prompts of 1, M = 6; Algorithm 2 starts P1 at once."""
    requests, arrivals = [(1, 4), (1, 2)], (0, 1)
    plans = [p for p in product(range(9), repeat=2) if p[1] >= arrivals[1]]
    plans = [plan for plan in plans if model.fits(requests, plan, 6, first)]
    least = min(map(sum, plans))
    assert [plan for plan in plans if sum(plan) == least] == [(1, 1)]  # both have ended by 5
    assert min(p2 + 2 for p1, p2 in plans if p1 == 0) == 6 > 5


# Sorted-F


def test_sorted_f_7_the_constructed_schedule_costs_more_than_six_times_the_optimum():
    long, shorts, memory = (1, 140), [(132, 1)] * 7, 141
    starts = [0, *range(7)]
    for first in (model.EQ_6, model.EQ_1):
        # By Eq. 1 a short one counts where the next starts, so that two never follow each other.
        assert model.fits([long, *shorts], starts, memory, first) == (first == model.EQ_6)
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
    assert model.best(requests, memory, model.EQ_6, 30) == 21
    assert model.fits(requests, [0, 0, 0, 4], memory, model.EQ_6)  # which has that total
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


@model.both
def test_robust_example_3_2_holds_in_both_conventions(first):
    """Five requests of one token each, known to be at most 4, prompts of one, M = 10."""
    requests = [(1, 1)] * 5
    assert model.in_order(requests, 10, first, believed=4) == 9
    assert model.shortest_first(requests, 10, first) == 5


@model.both
def test_robust_alg_2_differs_where_a_preempted_request_has_made_less_than_its_bound(first):
    """Outputs 3 and 5, known to be at least 2, prompts of 1, M = 7: on average 11.5 and 11.75."""
    printed, larger = (a_min(1, (3, 5), 2, 7, first, keep) for keep in (tokens_made, max))
    assert printed == {10: Fraction(1, 2), 13: Fraction(1, 2)}
    assert larger == {10: Fraction(1, 2), 13: Fraction(3, 8), 15: Fraction(1, 8)}


@model.both
def test_robust_3_4_needs_a_memory_that_u_divides(first):
    """Outputs of one token known to be at most 4, no prompts, M = 7: exactly the printed ratio."""
    for count, ratio in ((35, 6), (70, Fraction(2485, 385))):
        requests = [(0, 1)] * count
        a_max = model.in_order(requests, 7, first, believed=4)
        assert Fraction(a_max, model.shortest_first(requests, 7, first)) == ratio >= 4 * (1 + 2) / 2


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


@pytest.mark.parametrize(("upper", "ratio"), [(64, 4.36), (256, 8.17), (1024, 15.79)])
def test_robust_4_3_the_lemma_grows_like_a_root_where_prompts_grow_with_u(upper, ratio):
    shorts = round(sqrt(upper))
    assert model.lemma_4_6({1: shorts, upper: 1}, 10 * upper) == pytest.approx(ratio, abs=0.01)


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
    assert model.lemma_4_6({1: 32, upper: 1}, 10 * upper) > 12 * (1 + Fraction(1, 10)) > 12 * places


@pytest.mark.parametrize(
    ("power", "ratio", "printed"), [(0, 1.712, 1.7), (1, 1.563, 14 / 9)], ids=["fig 3", "5.3"]
)
def test_robust_5_3_and_the_text_to_figure_3_need_short_prompts(power, ratio, printed):
    """Outputs in the shares k^power q^k, by the lemma, with prompts of one token."""

    def lemma(q, prompt, most):
        return float(model.lemma_4_6({k: k**power * q**k for k in range(1, most)}, prompt))

    assert lemma(0.9, 0, 250) < printed < lemma(0.9, 1, 250) == pytest.approx(ratio, abs=2e-3)
    # The prompt adds less, the less of the mean output it is.
    added = [lemma(q, 1, most) - lemma(q, 0, most) for q, most in ((0.8, 150), (0.9, 250))]
    assert 0 < added[1] < 0.75 * added[0]


@pytest.mark.parametrize(("upper", "ratio"), [(5, 1.479), (10, 1.583), (20, 1.642)])
def test_robust_5_1_fails_by_the_lemma_with_prompts_of_one_token(upper, ratio):
    assert float(model.two(upper, 1)) == pytest.approx(ratio, abs=2e-3)
    assert float(model.two(upper, 1)) > (3 - 1 / upper) / 2 >= float(model.two(upper, 0)) - 1e-9


@model.both
def test_robust_5_2_fails_where_prompts_make_the_memory_one_slot(first):
    """Three requests of 4 in [1, 4], prompts of 4, M = 8: A_l first runs each for a token."""
    longer = 1 - first  # by Eq. 1 the next one starts a step later
    hindsight = model.shortest_first([(4, 4)] * 3, 8, first)
    assert hindsight == 4 + (8 + longer) + (12 + 2 * longer)
    restarts = 3 * (1 + longer)
    a_l = hindsight + 3 * restarts
    assert Fraction(a_l, hindsight) > Fraction(1167, 1000)


@model.both
def test_robust_8_6_outputs_between_the_ends_are_worse(first):
    requests = [(1, 2), (1, 3)]
    ratio = model.expected(requests, 4, first) / model.shortest_first(requests, 4, first)
    assert ratio == {model.EQ_6: Fraction(15, 14), model.EQ_1: Fraction(8, 7)}[first]
    assert worse_than_ends(1, (2, 3), (1, 3), 4, first)
    assert worse_than_ends(1, (2, 3, 4), (2, 4), 6, first)


def test_robust_8_6_excludes_figure_1_or_theorem_5_1():
    """Some mix of outputs 1 to 10 exceeds the bound for outputs of 1 or 10, both by the lemma."""
    mix = {1: 100, 2: 22, 3: 12, 4: 8, 5: 6, 6: 5, 7: 4, 8: 4, 9: 3, 10: 25}
    assert model.lemma_4_6(mix, 0) > model.two(10, 0) == Fraction(3 - Fraction(1, 10), 2)


@model.both
def test_robust_8_4_loses_more_than_the_share_of_the_memory(first):
    assert [model.in_order([(1, 1)] * 2, memory, first) for memory in (4, 3)] == [
        2,
        3,
    ]  # 3 > 2 * 4 / 3
    whole, half = (model.in_order([(9, 1)] * 6, memory, first) for memory in (30, 15))
    assert half > 2 * whole
    assert first == model.EQ_1 or (whole, half) == (9, 21)


@model.both
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
        Fraction(sum(model.in_order(order, held, first, known) for order in kinds), len(kinds))
        for held, known in ((memory, upper), (share, None))
    ]
    assert totals[0] > totals[1]
    if first == model.EQ_6:
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
        for prompts in model.LISTS(range(1, 4), workers * slots):
            optima = optimal_loads(prompts, workers, slots)
            gaps.append(min(loads[-1] - loads[0] for loads in optima) - prompts[-1])
            if max(loads[-1] - loads[0] for loads in optima) > prompts[-1]:
                failing.append((workers, slots, prompts))
    assert failing == [(3, 2, (1, 1, 3, 3, 3, 3))]
    assert sorted(optimal_loads(failing[0][2], 3, 2)) == [(2, 6, 6), (4, 4, 6)]
    assert max(gaps) <= 0
