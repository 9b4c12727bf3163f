"""What plots show is what the schedule is, however much of it is left out."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from literal import usage_at
from scipy import stats
from strategies import instances

from optsched import Bound, Instance, OptschedError, RunSettings, Schedule, run
from optsched.experiments.results import StepComparison
from optsched.report import pages, plot_series, style


@st.composite
def schedules(draw, **sizes):
    """Draw a schedule, feasible or not."""
    instance = draw(instances(**sizes))
    waits = draw(st.lists(st.integers(0, 9), min_size=len(instance), max_size=len(instance)))
    return Schedule(instance, instance.arrivals + waits)


@given(schedules(), st.lists(st.integers(0, 40)))
def test_tokens_held_equal_the_definition_at_any_step(schedule, steps):
    instance = schedule.instance
    starts, prompts, outputs = (
        values.tolist() for values in (schedule.starts, instance.prompts, instance.outputs)
    )
    expected = [usage_at(step, starts, prompts, outputs) for step in steps]
    assert style.tokens_held(schedule, steps).tolist() == expected


@given(schedules(), st.integers(1, 40))
def test_memory_curve_keeps_the_peak_of_every_bin(schedule, bins):
    edges, peaks = style.memory_curve(schedule, bins)
    profile = schedule.memory_profile()
    assert len(peaks) <= bins
    assert (edges[0], edges[-1]) == (schedule.starts.min(), schedule.makespan)
    for low, high, peak in zip(edges[:-1], edges[1:], peaks, strict=True):
        assert peak == profile[low + 1 : high + 1].max()
    assert peaks.max() == schedule.peak_memory


@given(schedules())
def test_memory_curve_with_a_bin_per_step_is_the_memory_profile(schedule):
    edges, peaks = style.memory_curve(schedule)
    assert (schedule.memory_profile()[edges[0] + 1 :] == peaks).all()


def test_memory_curve_does_not_count_through_a_trillion_steps():
    schedule = run(Instance([1, 1], [5, 5], memory=9, arrivals=[0, 10**12]), "fcfs").schedule
    edges, peaks = style.memory_curve(schedule)
    assert (len(peaks), peaks[0], peaks[-1]) == (2000, 6, 6)
    assert edges[-1] == 10**12 + 5


@given(schedules(), st.integers(2, 6))
def test_thinned_latency_cdf_lies_on_the_exact_one_and_keeps_its_ends(schedule, points):
    latencies, shares = style.latency_cdf(schedule, points)
    assert len(latencies) <= points
    for latency, share in zip(latencies, shares, strict=True):
        assert share == np.mean(schedule.latencies <= latency)
    assert (latencies[0], latencies[-1]) == (schedule.latencies.min(), schedule.latencies.max())
    assert shares[-1] == 1
    assert (np.diff(latencies) > 0).all()


@given(schedules(max_requests=12), st.integers(2, 15))
def test_sample_follows_the_order_of_starts_and_has_the_last_to_complete(schedule, count):
    requests, ranks = style.sample_by_start(schedule, count)
    assert len(requests) - min(count, len(schedule.starts)) in (0, 1)
    assert schedule.completions[requests].max() == schedule.makespan
    assert (ranks[0], ranks[-1]) == (0, len(schedule.starts) - 1)
    assert (schedule.starts[requests] == np.sort(schedule.starts)[ranks]).all()


@given(schedules(max_requests=10))
def test_stacked_bars_sum_to_the_tokens_held(schedule):
    begins, ends = _stacked_heights(schedule)
    profile = schedule.memory_profile()
    events = np.unique([schedule.starts, schedule.completions])
    for begin, end in itertools.pairwise(events.tolist()):
        assert ends.get(end, 0) == profile[end]
        # The bars begin with their prompts, a token each before the step after.
        running = ((schedule.starts <= begin) & (begin < schedule.completions)).sum()
        assert begins.get(begin, 0) + running == profile[begin + 1]


def _stacked_heights(schedule):
    """Sum the heights of all bars right after each step, and right before it."""
    begins, ends = {}, {}
    bars = style.growing_bars(schedule, rows=40)
    for prompt, output in zip(bars.prompts, bars.outputs, strict=True):
        half = len(prompt) // 2
        assert (prompt[half:] == output[:half][::-1]).all()  # the output stands on the prompt
        pairs = zip(prompt[:half], output[half:][::-1], strict=True)
        for at, ((step, low), (again, high)) in enumerate(pairs):
            side = (begins, ends)[at % 2]
            assert step == again
            assert low == side.get(step, 0)  # on the bars below it
            side[step] = high
    return begins, ends


@given(schedules(max_requests=10))
def test_stacked_bars_have_the_areas_of_growing_requests(schedule):
    bars = style.growing_bars(schedule, rows=40)
    instance = schedule.instance
    assert bars.stacked
    for request, prompt, output, end in zip(
        bars.requests, bars.prompts, bars.outputs, bars.ends, strict=True
    ):
        made = instance.outputs[request]
        assert _area(prompt) == instance.prompts[request] * made
        assert _area(output) == made * made / 2
        assert end[0] == schedule.completions[request]
        assert end[1] == output[:, 1][output[:, 0] == end[0]].max()


def test_bars_in_rows_grow_from_prompt_to_prompt_plus_output_after_the_wait():
    instance = Instance([4] * 80, [2] * 80, memory=12, arrivals=range(80))
    schedule = run(instance, "fcfs").schedule
    bars = style.growing_bars(schedule, rows=10)
    assert not bars.stacked
    assert len(bars.requests) == 10
    for request, prompt, output, wait in zip(
        bars.requests, bars.prompts, bars.outputs, bars.waits, strict=True
    ):
        assert _area(prompt) == pytest.approx(4 * _area(output))
        assert wait[:, 0].tolist() == [request, schedule.starts[request]]
        assert np.ptp(prompt[:, 1]) + np.ptp(output[:, 1]) < 80 / 10


def test_a_schedule_is_optimal_if_the_bound_leaves_less_than_a_step():
    execution = run(Instance([1, 1], [2, 2], memory=9), "fcfs")
    for value, optimal in ((3.01, True), (3.0, False)):
        proven = Bound(value, "closed-form", 0.0, premises=execution.facts)
        found = StepComparison(
            {execution.policy: [execution]}, (0.0,), RunSettings(), bounds=(proven,)
        )
        assert pages.proven_optimal(found) is optimal


def _area(corners):
    x, y = corners.T
    return abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def test_means_of_bins_keep_sums():
    values = np.arange(1003)
    steps, means = style.mean_per_bin(values, 100)
    widths = np.diff(np.append(steps, 1003))
    assert len(steps) <= 100
    assert (means * widths).sum() == pytest.approx(values.sum())
    steps, means = style.mean_per_bin(np.arange(10), 5)
    assert (steps.tolist(), means.tolist()) == ([0, 2, 4, 6, 8], [0.5, 2.5, 4.5, 6.5, 8.5])


def test_small_curves_are_what_the_definitions_say():
    schedule = Schedule(Instance([3, 1], [2, 2], memory=9), [0, 1])
    assert style.tokens_held(schedule, [1, 2, 3]).tolist() == [4, 7, 3]
    assert [part.tolist() for part in style.memory_curve(schedule, bins=1)] == [[0, 3], [7]]
    bars = style.growing_bars(schedule, rows=40)
    assert bars.prompts[0].T.tolist() == [[0, 1, 1, 2, 2, 1, 1, 0], [0, 0, 0, 0, 3, 3, 3, 3]]
    assert bars.outputs[0].T.tolist() == [[0, 1, 1, 2, 2, 1, 1, 0], [3, 3, 3, 3, 5, 4, 4, 3]]
    assert _stacked_heights(schedule)[1] == {1: 4, 2: 7, 3: 3}
    latencies, shares = style.latency_cdf(
        Schedule(Instance([1, 1, 1, 1], [2, 2, 3, 3], memory=9), [0, 0, 2, 3])
    )
    assert (latencies.tolist(), shares.tolist()) == ([2, 5, 6], [0.5, 0.75, 1.0])
    three = Schedule(Instance([1, 1, 1], [2, 2, 2], memory=9), [4, 0, 2])
    assert [part.tolist() for part in style.sample_by_start(three, 2)] == [[1, 0], [0, 2]]


def test_repeats_become_a_mean_with_its_interval():
    rows = [(load, seed, seed**2 + load, "a") for load in (1, 2) for seed in range(4)]
    table = pd.DataFrame([*rows, (2, 9, 7.0, "b")], columns=["load", "seed", "latency", "policy"])
    ax = plot_series(table, x="load", y="latency", by="policy")
    means = [line.get_ydata().tolist() for line in ax.lines]
    assert means == [[4.5, 5.5], [7.0]]
    ends = stats.ttest_1samp([1.0, 2.0, 5.0, 10.0], 0).confidence_interval(0.95)
    band = ax.collections[0].get_datalim(ax.transData).get_points()[:, 1]
    assert band == pytest.approx([ends.low, ends.high + 1])
    with pytest.raises(OptschedError, match="several rows have the same 'load' and 'seed'"):
        plot_series(table.assign(seed=[0, 1, 0, 1, 0, 1, 0, 1, 0]), x="load", y="latency")
    with pytest.raises(OptschedError, match="no column 'lod'; did you mean 'load'"):
        plot_series(table, x="lod", y="latency")
    with pytest.raises(OptschedError, match="leave low and high out"):
        plot_series(table.assign(low=0), x="load", y="latency", by="policy", low="low")
    for curve in (table.drop(columns="seed"), table.assign(seed=7)):  # of one run: as it is
        (line,) = plot_series(curve, x="load", y="latency").lines
        assert len(line.get_ydata()) == len(table)
