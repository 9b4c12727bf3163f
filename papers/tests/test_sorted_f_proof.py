"""The proof of Sorted-F Theorem 3: its schedules, its inequalities, and an argument that holds."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from brute_force import feasible_starts
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import pyplot
from plots_of_targets import drawn
from quick_targets import quick
from strategies import instances

from optsched import Instance, Schedule, run
from optsched_papers.sorted_f.families_of_proof import (
    least_align,
    long_first,
    short_beside_long,
    trap,
)
from optsched_papers.sorted_f.proof import INEQUALITIES, KINDS, against_theorem_8, change, draw
from optsched_papers.sorted_f.transformed import (
    READINGS,
    Reading,
    groups_of,
    optimal_align,
    optimum,
    sorted_f_batches,
    totals,
)

fits = st.sampled_from(["peak", "profile"])
lists = instances(max_requests=6, max_memory=25, max_arrival=0, max_output=12)
tiny = instances(max_requests=4, max_memory=8, max_arrival=0, max_output=4)


def f(outputs):
    return Fraction(sum(outputs), len(outputs) ** 2)


def fitting(instance, chosen, fit):
    """Whether requests that start together fit, by definition."""
    s, o = instance.prompts.tolist(), instance.outputs.tolist()
    if fit == "peak":
        return sum(s[i] + o[i] for i in chosen) <= instance.memory
    longest = max(o[i] for i in chosen)
    return all(
        sum(s[i] + t for i in chosen if o[i] >= t) <= instance.memory for t in range(1, longest + 1)
    )


@given(lists, fits)
def test_batches_are_the_largest_of_least_f(instance, fit):
    outputs, left = instance.outputs.tolist(), set(range(len(instance)))
    for batch in sorted_f_batches(instance, fit):
        every = [
            chosen
            for size in range(1, len(left) + 1)
            for chosen in itertools.combinations(sorted(left), size)
            if fitting(instance, chosen, fit)
        ]
        best = min((f([outputs[i] for i in each]), -len(each)) for each in every)
        assert fitting(instance, batch, fit)
        assert (f([outputs[i] for i in batch]), -len(batch)) == best
        assert [outputs[i] for i in batch] == sorted(outputs[i] for i in batch)
        left -= set(batch)
    assert not left


def group_literally(batches):
    """Return the last batches of groups by the smallest k that satisfies the printed inequality."""
    ends, before = [], -1
    while before < len(batches) - 1:
        ends.append(
            next(
                (
                    k
                    for k in range(before + 1, len(batches) - 1)
                    if f([*batches[k], batches[k + 1][0]]) <= f(batches[k])
                ),
                len(batches) - 1,
            )
        )
        before = ends[-1]
    return ends


@given(lists, fits)
def test_totals_are_the_printed_sums(instance, fit):
    batches = sorted_f_batches(instance, fit)
    outputs = [instance.outputs[batch].tolist() for batch in batches]
    n, own, last = list(map(len, outputs)), int(instance.outputs.sum()), len(outputs)
    ends = group_literally(outputs)
    assert ends == (np.cumsum(list(map(len, groups_of(outputs)))) - 1).tolist()
    found = totals(instance, batches)
    assert found.separate == own + sum(outputs[k][-1] * sum(n[k + 1 :]) for k in range(last))
    assert found.group == own + sum(outputs[b][-1] * sum(n[b + 1 :]) for b in ends)
    means = {b: Fraction(sum(outputs[b]), n[b]) for b in ends}
    assert found.align == own + sum(means[b] * sum(n[b + 1 :]) for b in ends)
    if fit == "peak":
        assert found.sorted_f == run(instance, "sorted-f-dp").total_latency


@given(lists, fits)
def test_lemma_1_and_theorems_4_to_6_hold_5_with_3(instance, fit):
    batches = sorted_f_batches(instance, fit)
    found = totals(instance, batches)
    assert found.sorted_f <= found.separate < 3 * found.group < 6 * found.align
    for batch in batches:
        outputs = instance.outputs[batch]
        assert 2 * outputs.sum() > outputs.max() * len(batch)


@examples(60)
@given(st.sampled_from(list(KINDS)), st.integers(0, 2**32), fits)
def test_sorted_f_align_is_within_six_times_the_optimum_without_theorems_7_and_8(kind, seed, fit):
    instance = draw(kind, np.random.default_rng(seed))
    found = totals(instance, sorted_f_batches(instance, fit))
    assert found.align <= 6 * optimum(instance).total_latency


@examples(60)
@given(lists, fits)
def test_a_batch_takes_no_longer_than_the_optimum_allows(instance, fit):
    """What the argument for 40 in sorted_f/proof.py rests on.

    A batch of n_k of the R_k requests left takes less than 20 n_k / R_k of the time by which an
    optimum has completed all but half as many.
    """
    ends = np.sort(optimum(instance).completions)
    left = len(instance)
    for batch in sorted_f_batches(instance, fit):
        longest = int(instance.outputs[batch].max())
        assert longest * left < 20 * len(batch) * int(ends[len(ends) - 1 - left // 2])
        left -= len(batch)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=30))
def test_shelves_by_falling_output_are_short(requests):
    """The argument's batches: the sum of longest outputs is at most 2 sum o (s + o) / M + o_max."""
    memory, shelves = 12, []
    for output, peak in sorted(requests, reverse=True):
        if not shelves or sum(shelves[-1][1]) + peak > memory:
            shelves.append((output, []))
        shelves[-1][1].append(peak)
    area = sum(output * peak for output, peak in requests)
    most = max(output for output, _ in requests)
    assert memory * sum(longest for longest, _ in shelves) <= 2 * area + memory * most


def all_optima(instance):
    starts = feasible_starts(instance)
    sums = starts.sum(axis=1)
    return [Schedule(instance, each) for each in starts[sums == sums.min()]]


@examples(40)
@given(tiny)
def test_optima_are_those_of_brute_force(instance):
    assert optimum(instance).total_latency == all_optima(instance)[0].total_latency


def kinds_of(schedule):
    given = schedule.instance
    rows = (given.prompts.tolist(), given.outputs.tolist(), schedule.starts.tolist())
    return sorted(zip(*rows, strict=True))


@pytest.mark.parametrize(
    "schedule", [long_first(12, 3), short_beside_long(2, 1), short_beside_long(4, 1)]
)
def test_families_have_one_optimum_up_to_equal_requests(schedule):
    assert schedule.check() == []
    assert schedule.instance.prompts.min() >= 1
    optima = all_optima(schedule.instance)
    assert all(kinds_of(each) == kinds_of(schedule) for each in optima)


@pytest.mark.parametrize("copies", [1, 4])
def test_the_long_ones_of_theorem_7_run_at_once_and_nothing_could_be_earlier(copies):
    schedule = long_first(200, 20, copies)
    given = schedule.instance
    assert schedule.check() == []
    assert given.peaks.max() * copies <= given.memory
    short = given.outputs == 1
    assert (copies + 1) * given.peaks[short].min() > given.memory  # more do not fit into a step
    steps = -(-np.arange(1, short.sum() + 1) // copies)
    assert schedule.total_latency == 200 * copies + steps.sum()
    by_peaks = [optimal_align(schedule, each) for each in READINGS if each.fit == "peak"]
    assert min(by_peaks) > 10 * schedule.total_latency
    assert least_align(schedule) > 5


@pytest.mark.parametrize("copies", [1, 4])
def test_no_more_long_ones_of_theorem_8_ever_run_together(copies):
    schedule = short_beside_long(25, 5, copies)
    given = schedule.instance
    assert schedule.check() == []
    long = given.outputs == 25
    assert given.peaks.max() * copies <= given.memory
    assert (copies + 1) * (given.prompts[long].min() + 1) > given.memory
    assert schedule.total_latency == 5 * copies + 25 * copies + 50 * copies + 50
    own = int(given.outputs.sum())
    mean = Fraction(5 * copies + 25 * copies + 50, 6 * copies + 1)
    assert {optimal_align(schedule, each) for each in READINGS} == {own + copies * mean}
    mean = Fraction(25 * copies + 50, copies + 1)
    assert totals(given, sorted_f_batches(given)).align == own + copies * mean


def test_theorem_7_fails_for_eight_requests_by_peaks_and_for_24_step_by_step():
    schedule = long_first(140, 7)
    assert optimum(schedule.instance).total_latency == schedule.total_latency == 168
    aligned = {fit: set() for fit in ("peak", "profile")}
    for each in READINGS:
        aligned[each.fit].add(optimal_align(schedule, each))
    assert min(aligned["peak"]) == 1009 == 6 * 168 + 1
    assert min(aligned["profile"]) == 147 + 6 * Fraction(141, 2) + 15  # the first short one beside
    schedule = long_first(232, 23)
    assert schedule.check() == []
    total = 232 + 23 * 24 // 2
    assert schedule.total_latency == total
    assert least_align(schedule) * total == 255 + 22 * Fraction(233, 2) + 21 * 22 // 2 > 6 * total


def test_theorems_7_and_8_fail_for_requests_of_a_small_share_of_the_memory_too():
    """The model has prompts and outputs far below the memory."""
    schedule = long_first(140, 7, 16)
    assert schedule.instance.peaks.max() * 16 == schedule.instance.memory
    by_peaks = [optimal_align(schedule, each) for each in READINGS if each.fit == "peak"]
    assert min(by_peaks) == Fraction(1009, 168) * schedule.total_latency
    found = []
    for copies in (1, 2, 4, 8):
        instance = short_beside_long(25, 5, copies).instance
        ratio = against_theorem_8(25, copies)["of_family"]
        found.append((round(ratio, 3), round(instance.peaks.max() / instance.memory, 2)))
    assert found == [(1.224, 0.65), (1.281, 0.4), (1.312, 0.23), (1.325, 0.12)]


def test_theorem_8_fails_for_four_requests_whatever_the_optimum_and_the_reading():
    instance = Instance([1, 1, 15, 15], [1, 8, 4, 4], 30)
    for fit in ("peak", "profile"):
        assert totals(instance, sorted_f_batches(instance, fit)).align == 23
    optima = all_optima(instance)
    assert optima[0].total_latency == 21
    aligned = {optimal_align(each, reading) for each in optima for reading in READINGS}
    assert aligned == {Fraction(64, 3)}


def test_readings_of_theorem_7_by_hand():
    instance = Instance([0, 5, 0], [4, 1, 1], 8)
    schedule = Schedule(instance, [0, 0, 0])
    assert schedule.check() == []
    assert optimal_align(schedule, Reading()) == 6 + 4 * 2
    assert optimal_align(schedule, Reading(skips=True)) == 6 + Fraction(5, 2)
    assert optimal_align(schedule, Reading("short first")) == 6 + Fraction(2, 2)
    assert optimal_align(schedule, Reading(fit="profile")) == 6  # 1 + 6 + 1 tokens, then fewer
    # Groups end at 2, 3 and 5, so that windows begin at 0, 6 and 15.
    queue = Schedule(Instance([0, 0, 0], [2, 1, 2], 2), [0, 2, 3])
    assert optimal_align(queue, Reading()) == 5 + 2 + 3
    assert optimal_align(queue, Reading(windows=True)) == 5 + 3 * 2 + (6 * 2 + 3 * 1)


def test_local_swap_has_no_constant_and_exact_batches_do():
    short_first = sum(range(1, 142)) + 2 * (141 + 5_000)
    instance = trap(20_000)
    assert run(instance, "sorted-f").total_latency > 30 * short_first
    assert run(instance, "sorted-f-dp").total_latency <= short_first


@given(st.sampled_from(list(KINDS)), st.integers(0, 10**6))
def test_lists_that_are_drawn_or_changed_are_small(kind, seed):
    rng = np.random.default_rng(seed)
    instance = draw(kind, rng)
    for _ in range(20):
        instance = change(instance, rng)
    assert 1 <= len(instance) <= 6
    assert instance.memory <= 40


@pytest.mark.parametrize("name", INEQUALITIES)
def test_targets(name):
    found = quick(f"sorted-f-{name}")
    pyplot.close(drawn(found))
    false = name in ("theorem-7", "theorem-8")
    assert found.verdict.label == ("proof fails" if false else "in shape")
    labels = [claim.label for claim in found.claims]
    assert len(set(labels)) == len(labels)
