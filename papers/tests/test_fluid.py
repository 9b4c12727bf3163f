"""Fluid: its targets, and what docs/errata-by-paper.md says of the paper, each shown by a test."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from quick_targets import quick
from scipy.optimize import brentq

from optsched import InfeasibleError, Instance, RequestTypes, run
from optsched.models import NestedWaitThresholds, WaitThresholds, equilibrium, queue_decay
from optsched.policies import NestedWaitPolicy, WaitPolicy
from optsched.report.style import plot_stack
from optsched.workloads import poisson_requests
from optsched_papers import TARGETS
from optsched_papers.fluid import memory, segments, serving, stability, theory

LOW = RequestTypes([10, 10], [10, 20], [1000, 1000])
HIGH = RequestTypes([20] * 3, [100, 200, 300], [6000, 4000, 2000])
FOUR = RequestTypes([10] * 4, [20, 40, 80, 160], [20, 40, 80, 160])
CLOCK = "affine:0.0085,2.7e-7"


def claims_of(result):
    return {claim.label: claim for claim in result.claims}


def test_the_targets_are_those_of_the_issue():
    named = [name for name in TARGETS if name.startswith("fluid-")]
    figures = (3, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18)
    theorems = [f"fluid-prop-{number}" for number in (1, 2, 3, 4, 5)]
    theorems += [f"fluid-theorem-{number}" for number in (1, 2, 3, 4)]
    assert named == [f"fluid-fig-{number}" for number in figures] + theorems


# Targets


def test_exponents_are_recovered_and_lie_in_their_interval():
    rng = np.random.default_rng(0)
    horizons = [1.0, 10.0, 100.0, 1000.0]
    exact = 3 * np.sqrt(horizons)
    assert theory.exponent(horizons, np.tile(exact, (5, 1)), 0) == pytest.approx((0.5,) * 3)
    found, low, high = theory.exponent(horizons, exact * rng.lognormal(0, 0.3, (50, 4)), 0)
    assert low < 0.5 < high
    assert low < found < high


def test_the_overflow_probability_is_that_of_the_appendix():
    """Of the arrivals at an equilibrium only (0, 0), (1, 0), (0, 1), (1, 1) and (2, 0) fit."""
    assert theory.overflow_probability() == pytest.approx(1 - 4.5 * math.exp(-2))


@pytest.mark.slow
def test_proposition_4_in_small():
    """Both kinds of first come, first served miss a constant throughput, WAIT ever less."""
    gaps = {
        policy: [
            np.mean(
                [
                    theory.serve_small(policy, "affine:1,0", horizon, seed)["gap"]
                    for seed in range(6)
                ]
            )
            for horizon in (1000, 16_000)
        ]
        for policy in theory.POLICIES
    }
    assert gaps["fcfs"][1] > 0.5
    assert gaps["mixed"][1] > 0.05
    assert gaps["wait"][1] < 0.5 * gaps["wait"][0]
    assert gaps["wait"][1] < gaps["mixed"][1]


def test_wait_keeps_within_the_equilibrium_memory_of_proposition_4():
    assert equilibrium(theory.SMALL, "affine:0.55,0.05").memory == pytest.approx(9)
    for clock in theory.THEOREM_1_CLOCKS.values():
        found = theory.serve_small("wait", clock, 500.0, 1)
        assert found["peak"] == theory.SMALL_MEMORY


@pytest.mark.slow
def test_theorem_2_in_small_strict_thresholds_keep_memory_published_ones_do_not():
    """Peaks beyond a full batch: bounded, and growing like the root of time."""
    excess = {
        name: [
            np.mean([theory.serve_nested(name, horizon, seed)["peak"] for seed in range(4)])
            - theory.full_batch(policy)
            for horizon in (100.0, 1600.0)
        ]
        for name, policy in theory.NESTED.items()
    }
    assert theory.full_batch(theory.NESTED["strict"]) == 567_330
    assert excess["strict"][1] < 1.5 * excess["strict"][0] < 20_000
    growth = math.log(excess["published"][1] / excess["published"][0]) / math.log(16)
    assert 0.3 < growth < 0.7


def test_strict_thresholds_keep_within_the_bound_of_the_notes():
    """567,330 + 7,270 + 10,370 tokens for 242 iterations; the design's own peak was 577,530."""
    plan = NestedWaitThresholds(FOUR, CLOCK).plan(theory.STRICT, delta=0.01, iterations=242)
    assert plan.memory_bound == 584_971
    runs = [theory.serve_nested("strict", 58.0, seed) for seed in range(16)]
    assert min(run["batches"] for run in runs) >= 242 == theory.ITERATIONS
    assert 567_330 < max(run["first_peak"] for run in runs) <= plan.memory_bound


@pytest.mark.slow
def test_memory_by_segments_is_a_u_whose_first_term_is_the_sum_over_stages():
    plans = {
        segments: memory.least_plan(
            memory.chats(50), segments, [0.002, 0.03], delta=0.1, iterations=200
        )
        for segments in (1, 2, 10, 100)
    }
    bounds = {segments: plan.memory_bound for segments, plan in plans.items()}
    assert bounds[1] > bounds[2] > bounds[10] < bounds[100]
    assert all(plan.thresholds[0] == 51 for plan in plans.values())  # (10) is strict
    for plan in plans.values():
        before, total = -1, 0
        for border, count in zip(plan.program.last_stages, plan.thresholds, strict=True):
            total += sum(int(count) * (62 + stage) for stage in range(before + 1, int(border) + 1))
            before = int(border)
        assert plan.memory == total
    # What (14) prints takes the stages of a segment for those up to its middle counted from 0.
    ten = plans[10]
    printed = memory.printed_batch(ten.program.last_stages, ten.thresholds)
    assert 1.2 < ten.memory / printed < 1.4
    # Nor is the first term the fluid's memory, (6).
    assert 1.3 < ten.memory / equilibrium(memory.chats(50), memory.CLOCK).memory < 1.5


@pytest.mark.slow
def test_figures_hold_what_their_table_says():
    """Cheapest of the figures: claims follow from the runs, and both of ours are in them."""
    result = quick("fluid-fig-7")
    claims, table = claims_of(result), result.table.set_index(["policy", "rate"])
    assert len(claims) == 16
    over = table.loc[("wait, balanced", 2000), "throughput"]
    label = "wait, balanced over vllm-v0, throughput at 2000/s"
    assert claims[label].ours == pytest.approx(
        over / table.loc[("vllm-v0", 2000), "throughput"], rel=0.01
    )
    assert claims[label].verdict == "in shape"
    least = claims["wait, balanced over sarathi, throughput, least over rates"]
    assert (least.holds, least.counts) == (False, False)
    assert claims[label].statement == "throughput over vllm-v0 at 2000/s"
    below = [claim for label, claim in claims.items() if label.endswith("at 100/s")]
    assert [claim.holds for claim in below] == [False] * 4
    assert result.verdict.label == "partly"
    assert table.loc["wait", "latency"][100] > 2 * table.loc["mixed", "latency"][100]


def test_stacked_bars_end_at_the_sum_of_their_parts():
    table = pd.DataFrame({"segments": [1, 2], "full_batch": [9.0, 5.0], "queues": [0.0, 1.0]})
    ax = plot_stack(table, x="segments", parts=("full_batch", "queues"))
    tops = [bar.get_y() + bar.get_height() for bar in ax.patches]
    assert tops == [9, 5, 9, 6]
    assert ax.get_ylim()[1] > 9
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["full batch", "queues"]


# Errata


def test_proposition_1_needs_d1():
    """With d0, as printed, a worker at a load of 0.04 would be unstable."""
    types = RequestTypes([10], [10], [1000])
    printed = 1000 * 0.0085 * 11 * (10 + 10 / 2)
    assert printed > 1000
    assert equilibrium(types, CLOCK).load < 0.05
    waiting = []
    for seconds in (5, 40):
        requests = poisson_requests(types, seconds, 10**6, seed=1)
        result = run(requests, "fcfs", clock=CLOCK, until=seconds)
        waiting.append(result.unfinished)
    assert waiting[1] < 1.5 * waiting[0]
    over = types.scaled(1.2 / equilibrium(types, CLOCK).load)
    requests = poisson_requests(over, 8, 10**8, seed=1)
    result = run(requests, "fcfs", clock=CLOCK, until=8)
    early, late = result.in_system([4, 8])
    assert late - early > 0.05 * over.rates[0] * 4  # grows all along


def test_proposition_1_by_d1_and_not_by_d0():
    found = quick("fluid-prop-1")
    assert found.verdict.label == "in shape", found.verdict
    claims = claims_of(found)
    by_d0 = claims[f"{stability.WITH_D0}: exponent of latency, fcfs"]
    assert by_d0.refutes
    assert by_d0.ours == 0  # each is served before the next one comes
    alone = 11 * stability.OVERHEAD + stability.PER_TOKEN * sum(range(10, 21))
    rate = stability.RATES[stability.WITH_D0]
    assert stability.serve_evenly("fcfs", rate, 50)["latency"] == pytest.approx(alone)
    unlimited = claims[f"{stability.WITH_D1}, no limit of memory: exponent of latency, fcfs"]
    assert 0.45 < unlimited.ours < 0.6
    rows = found.table[found.table["product"] == stability.WITH_D1]
    least, rows = (rows[rows["policy"].isin([*stability.POLICIES]) == run] for run in (False, True))
    assert set(least["policy"]) == {"any policy, at least"}
    rate = stability.RATES[stability.WITH_D1]
    bounds = [stability.least_latency(rate, horizon) for horizon in least["horizon"]]
    assert bounds == least["latency"].tolist()
    assert all(
        latency > stability.least_latency(rate, horizon) > horizon / 8
        for horizon, latency in zip(rows["horizon"], rows["latency"], strict=True)
    )


def test_formulas_below_5_in_8_and_in_appendix_a_2():
    found = equilibrium(LOW, CLOCK)
    arriving = found.iteration_time * LOW.rates
    assert np.allclose(arriving, found.active_requests / LOW.stages)  # below (5): n / (l' + 1)
    assert not np.allclose(arriving, found.active_requests)
    # (8) as printed lacks d1, and its middle is not its end.
    tokens = float((LOW.rates * LOW.held_tokens).sum())
    right = found.active_requests.sum() / 0.0085 * (1 - 2.7e-7 * tokens)
    assert right == pytest.approx(found.throughput) == 32_000
    assert found.active_requests.sum() / 0.0085 * (1 - tokens) < 0
    assert found.output_throughput == 30_000  # Section 2.3 counts decodes
    # Appendix A.2 prints for n what is the memory of a type.
    assert np.allclose(found.iteration_time * LOW.rates * LOW.held_tokens, found.memories)


def test_the_closed_form_11():
    """(11) sums output lengths up to each type; stages end at the output length itself."""
    outputs, thresholds = [20, 40, 80, 160], serving.FOUR_THRESHOLDS
    widths = np.diff(outputs, prepend=0)
    printed = sum(
        n * (10 + total / 2) * width
        for n, total, width in zip(thresholds, itertools.accumulate(outputs), widths, strict=True)
    )
    stages = [range(21), range(21, 41), range(41, 81), range(81, 161)]
    summed = sum(
        n * sum(10 + stage for stage in each) for n, each in zip(thresholds, stages, strict=True)
    )
    assert (printed, summed) == (158_000, 135_000)
    assert NestedWaitThresholds(FOUR, CLOCK).held_tokens @ np.array(thresholds) == summed


def test_both_published_ratios_stand_at_equality():
    four = NestedWaitThresholds(FOUR, CLOCK)
    bins = RequestTypes([60] * 10, range(50, 501, 50), [23, 11, 8, 7, 6, 4, 3, 2, 1, 1])
    for program, ratio in (
        (four, serving.FOUR_THRESHOLDS),
        (NestedWaitThresholds(bins, CLOCK), serving.BIN_THRESHOLDS),
    ):
        exact = np.array(ratio[1:]) / np.array(ratio[:-1])
        assert np.allclose(exact, program.shares, rtol=1e-12)
        assert not queue_decay(ratio[:-1], ratio[1:], program.shares).any()
        with pytest.raises(InfeasibleError, match=r"\(10\) holds with equality"):
            program.plan(np.array(ratio) * 4)


def test_the_bound_of_lemma_8_and_the_one_theorem_2_prints():
    """8 (n - p n') / n' holds where there is a root; with n below the line, as printed, not."""
    rng = np.random.default_rng(0)
    broken = 0
    for _ in range(400):
        before = int(rng.integers(5, 300))
        share = float(rng.uniform(0.02, 0.98))
        here = int(rng.integers(1, before))
        drift = here - share * before
        decay = float(queue_decay(before, here, share))
        if drift <= 0:
            assert decay == 0  # the equation has no positive root
            continue
        assert decay >= 8 * drift / before
        broken += decay < 8 * drift / here
    assert broken > 50


def test_the_proof_of_theorem_2_scales_as_the_root_says():
    """Lemma 8's root, by another method."""
    before, here, share = 40, 26, 0.6
    root = brentq(lambda x: before * math.log(1 - share + share * math.exp(x)) - x * here, 1e-3, 5)
    assert float(queue_decay(before, here, share)) == pytest.approx(root)


def test_demands_of_section_6_1():
    found = equilibrium(LOW, CLOCK)
    assert found.load == pytest.approx(0.158, abs=0.001)
    plan = WaitThresholds(LOW, CLOCK)
    assert plan.least_fixed_point().tolist() == [11, 11]
    assert plan.plan([11, 11]).memory == 6435
    slower = WaitThresholds(LOW, "affine:0.0085,1e-6")
    assert slower.least_fixed_point().tolist() == [21, 21]
    limit = 1 / float((HIGH.rates * HIGH.held_tokens).sum())
    assert limit == pytest.approx(4.15e-9, rel=0.002)
    # On the profiled clock of the paper's GPU both are beyond capacity.
    own = "llama-2-7b-a100"
    assert equilibrium(serving.LOW, own).load == pytest.approx(2.96, abs=0.01)
    assert equilibrium(serving.HIGH, own).load == pytest.approx(194, abs=1)


def test_the_thresholds_of_section_6_1_serve_short_types_faster_than_they_arrive():
    """B rho / (l' + 1) gives (12, 6) where arrivals are alike; in proportion it is (8, 8)."""
    types = LOW.scaled(0.75)  # 750 per second each
    assert serving.printed_thresholds(types, 256) == (12, 6)
    assert serving.balanced_thresholds(types, 256) == (8, 8)
    assert serving.balanced_thresholds(HIGH, 1024) == (3, 2, 1)  # rates 6 : 4 : 2
    assert serving.printed_thresholds(HIGH, 1024) == (5, 2, 1)
    program = WaitThresholds(types, CLOCK)
    assert program.plan((8, 8)).slacks.min() > 0
    with pytest.raises(InfeasibleError, match=r"break \(9\) for type 2"):
        program.plan((12, 6))
    waiting = {}
    for thresholds in ((12, 6), (8, 8)):
        policy = WaitPolicy(classes=2, thresholds=thresholds, borders=(11, 21))
        requests = poisson_requests(types, 20, 10**6, seed=0)
        result = run(requests, policy, clock=CLOCK, until=20)
        waiting[thresholds] = int((~result.completed & (requests.outputs == 21)).sum())
    assert waiting[12, 6] > 5 * waiting[8, 8]


def test_the_bins_thresholds_do_not_fit_on_the_gpu():
    """One request at each of 500 stages already holds more than Llama-2-7B leaves of 80 GB."""
    one_each = int(serving.BINS.with_one_prompt().held_tokens[-1])
    assert one_each == 155_250
    assert serving.A100 == 138_134 < one_each


def test_the_limit_of_requests_does_not_bind_where_thresholds_are_solved():
    for name in ("fluid-fig-11", "fluid-fig-12"):
        figure = serving.FIGURES[name]
        held = figure.types.rates @ figure.types.held_tokens
        active = figure.types.rates @ figure.types.stages
        assert serving.A100 / (held / active) < figure.rows[0].max_num_seqs


def test_algorithm_1_pauses_those_inside():
    """A request advances only while as many of its type wait as the threshold says."""
    requests = Instance([5] * 5, [4] * 5, 100, arrivals=range(0, 50, 10), seconds_per_step=0.1)
    policy = WaitPolicy(classes=1, thresholds=(1,))
    batch = 0.01
    waiting = run(requests, policy, clock=f"affine:{batch},0")
    assert waiting.latencies[0] == pytest.approx(3 + batch)  # at the fourth arrival
    at_once = run(requests, "mixed", clock=f"affine:{batch},0")
    assert np.allclose(at_once.latencies, 4 * batch)


def test_figure_6_leaves_a_prompt_behind_that_algorithm_2_completes():
    """At t = 14 segment 2 takes in P3, P5 and P6; the figure keeps P6 and completes P3, P5, P9."""
    arrivals = [0, 0, 1, 5, 5, 7, 7, 11, 14, 14]
    long = {3, 5, 6, 7, 8}  # those that pass to segment 2 in the figure
    outputs = [2 if prompt in long else 1 for prompt in range(1, 11)]
    # A last arrival far off, so that the end of the trace flushes none.
    requests = Instance(
        [1] * 11, [*outputs, 1], 100, arrivals=[*arrivals, 99], seconds_per_step=1.0
    )
    policy = NestedWaitPolicy(borders=(1, 2), thresholds=(3, 3))
    result = run(requests, policy, clock="affine:0.5,0", until=90)
    ends = dict(enumerate(result.completions[:10].tolist(), start=1))
    done = {prompt: end for prompt, end in ends.items() if not math.isnan(end)}
    assert done == {1: 1.5, 2: 1.5, 4: 7.5, 3: 14.5, 5: 14.5, 6: 14.5, 9: 14.5}


@pytest.mark.long
def test_theorem_3_thresholds_are_strict_at_all_times_and_arrivals_follow_the_rates():
    """(13), with arrivals of every span up to a full batch summed up numerically."""
    thresholds = theory.VARYING
    # The stages of each segment hold the prompt of 10 and the tokens made, the prefill none.
    lasts = [0, 21, 41, 81, 161]
    segments = zip(thresholds, lasts[:-1], lasts[1:], strict=True)
    held = sum(n * (10 + made) for n, first, last in segments for made in range(first, last))
    batch = 0.0085 + 2.7e-7 * held
    ticks = np.arange(0, theory.PERIOD + batch, 1e-3)
    swing = theory.SWING * theory.SIGNS[:, None] * np.sin(2 * np.pi * ticks / theory.PERIOD)
    rates = np.array([20.0, 40.0, 80.0, 160.0])[:, None] * (1 + swing)
    arrived = np.concatenate([np.zeros((4, 1)), np.cumsum(rates * 1e-3, axis=1)], axis=1)
    for span in (1, 10, int(batch / 1e-3)):
        came = arrived[:, span:] - arrived[:, :-span]
        assert came.sum(axis=0).max() < thresholds[0]
        for here in range(3):
            share = came[here + 1 :].sum(axis=0) / came[here:].sum(axis=0)
            assert share.max() < thresholds[here + 1] / thresholds[here]
    requests = theory.varying_requests(400.0, 1)
    seconds = requests.arrivals * requests.seconds_per_step
    phase = np.sin(2 * np.pi * seconds / theory.PERIOD)
    for kind, border in enumerate(theory.FOUR_BORDERS):
        own = phase[requests.outputs == border]
        assert len(own) == pytest.approx(400 * [20, 40, 80, 160][kind], rel=0.05)
        # The mean of sin over arrivals at rate 1 + a sin is a / 2.
        assert own.mean() == pytest.approx(theory.SWING * theory.SIGNS[kind] / 2, abs=0.03)
    found = quick("fluid-theorem-3")
    assert found.verdict.label == "in shape", found.verdict


# Theorem 4


@pytest.mark.slow
def test_thresholds_of_theorem_4_hold_14_some_at_equality():
    rate = segments.TYPES.rates.sum()
    for name, (lasts, thresholds, _) in segments.SEGMENTS.items():
        slack = thresholds[0] / rate - segments.full_batch_seconds(name)
        assert slack == pytest.approx(0, abs=1e-12) if "equality" in name else slack > 0
        for here, last in enumerate(lasts[:-1]):
            before = lasts[here - 1] if here else 0
            longer = segments.TYPES.rates[segments.TYPES.outputs > last].sum()
            there = segments.TYPES.rates[segments.TYPES.outputs > before].sum()
            assert thresholds[here + 1] / thresholds[here] > longer / there
    found = quick("fluid-theorem-4")
    assert found.verdict.label == "in shape", found.verdict
    alone = [claim for claim in found.claims if segments.ALONE in claim.label]
    assert len(alone) == 3
    assert not any(claim.counts or claim.holds for claim in alone)


@pytest.mark.parametrize("seed", range(3))
def test_one_type_in_one_segment_is_a_queue_at_capacity(seed):
    """Each batch takes in one request and has the one before produce its token."""
    horizon = 200.0
    requests = poisson_requests(segments.ONE, horizon, 10**9, seed=seed)
    arrivals = (requests.arrivals * requests.seconds_per_step).tolist()
    ends = [arrivals[0] + 0.9]  # nothing to decode yet
    for arrival in arrivals[1:]:
        ends.append(max(ends[-1], arrival) + 1.0)
    # The last batch begins when the last request arrives, at the latest.
    done = [end if end - 1 <= arrivals[-1] else math.inf for end in [*ends[1:], math.inf]]
    waits = [min(end, horizon) - arrival for end, arrival in zip(done, arrivals, strict=True)]
    measured = segments.serve(segments.ALONE, horizon, seed)["latency"]
    assert measured == pytest.approx(np.mean(waits), rel=1e-3)
