"""Jaillet: its targets in quick form, and what its formulas say, checked on small instances."""

from __future__ import annotations

import math

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from literal import usage_at
from matplotlib import pyplot
from plots_of_targets import drawn
from quick_targets import quick

from optsched import Instance, Schedule, family, run, solve
from optsched.search.delays import start_evenly
from optsched_papers import TARGETS
from optsched_papers.jaillet.section_7 import CLOCK, clock, requests
from optsched_papers.jaillet.theorems import _burst_pace, _expected, _latencies, _overloaded_pace

mpl.use("Agg")


def claims_of(name):
    found = quick(name)
    pyplot.close(drawn(found))
    labels = [claim.label for claim in found.claims]
    assert len(set(labels)) == len(labels)
    return found, {claim.label: claim for claim in found.claims}


def test_all_targets_of_the_issue_are_there():
    figures = [f"jaillet-fig-{number}" for number in (4, 5, 6, 7, 8, 9, 10, 11, 12, 13)]
    theorems = [f"jaillet-theorem-{number}" for number in ("4-2", "5-3", "6-2", "6-4")]
    others = ["jaillet-lemma-5-4", "jaillet-section-8-2", "jaillet-synthetic"]
    assert sorted(name for name in TARGETS if name.startswith("jaillet-")) == sorted(
        figures + theorems + others
    )


# Section 7


def test_figures_8_and_11_mc_sf_never_exceeds_the_memory():
    found, claims = claims_of("jaillet-fig-8")
    assert found.verdict.label == "in shape"
    assert "by construction" in found.verdict.reason
    assert sum("0.9 M" in label for label in claims) == 1
    found, claims = claims_of("jaillet-fig-11")
    assert found.verdict.label == "in shape"  # our own clock stands beside
    assert [claim.ours <= 1 for label, claim in claims.items() if "over M" in label] == [True] * 2
    full = [claim for label, claim in claims.items() if "0.9 M" in label]
    assert [claim.holds for claim in full] == [True, False]  # slower batches, and our clock


@pytest.mark.long
def test_one_factor_explains_four_slopes_of_figure_5_and_the_200_seconds():
    """As printed 1/6 would be 1,667 s at 10,000 requests."""
    found, claims = claims_of("jaillet-fig-5")
    assert found.verdict.label == "partly"
    failing = [claim.label for claim in found.claims if claim.counts and not claim.holds]
    named = (
        "10/s, batch times x 1.6: slope with alpha 0.2, said to be best, over the best benchmark's"
    )
    assert [label for label in failing if "as printed" not in label] == [named]
    assert claims[named].ours == pytest.approx(1.4, rel=0.1)
    fitted = claims["10/s, batch times x 1.6: slope of MC-SF (s), to which 1.6 is fitted"]
    assert fitted.holds
    assert not fitted.counts
    for policy in ("MC-SF", "the best benchmark"):
        label = f"50/s, batch times x 1.6: slope of {policy} (s)"
        printed, tenth = claims[f"{label}, as printed"], claims[f"{label}, a tenth of it"]
        assert printed.statement == tenth.statement
        assert (printed.holds, tenth.holds) == (False, True)
    label = "50/s, batch times x 1.6: mean latency of MC-SF, 10,000 requests (s)"
    assert claims[label].ours == pytest.approx(200, rel=0.1)
    counted = [label for label, claim in claims.items() if claim.counts]
    assert all("batch times x 1.6" in label and "area" not in label for label in counted)


def test_figure_6_two_families_have_the_printed_moments():
    """Only one of them has the variances that Robust prints of the same data."""
    found, claims = claims_of("jaillet-fig-6")
    assert found.verdict.label == "reproduced"
    assert [claim.counts for claim in claims.values()] == [True] * 4 + [False] * 8
    variances = [claim.holds for label, claim in claims.items() if "variance" in label]
    assert variances == [False, False, True, True]
    for name in ("chat", "chat-words"):
        outputs = family(name, n=100_000, seed=7).outputs
        ours = claims[f"{name}: outputs, variance that Robust prints"].ours
        assert outputs.var() == pytest.approx(ours, rel=0.03)


@pytest.mark.long
def test_section_8_2_eight_gpus_are_more_than_benchmarks_need():
    found, claims = claims_of("jaillet-section-8-2")
    assert [claim.holds for claim in claims.values()] == [True] + [False] * 5
    one = quick("jaillet-fig-5").table
    one = one[(one["requests"] == 10_000) & one["demand"].str.contains("50.*1.6")]
    one = one.set_index("policy")["mean_latency"]
    own = found.table[found.table["gpus"] == 2].set_index("policy")["mean_latency"]
    assert own["mc-sf"] == pytest.approx(one["mc-sf"], rel=0.03)  # two seeds, and three
    falls = found.table.pivot_table("mean_latency", "gpus", "policy").diff().iloc[1:]
    assert (falls < 0).all(axis=None)


def test_section_8_2_an_even_split_is_one_pair_per_fourth_of_the_requests():
    instance, slow = requests(50, 3, 2000), clock(1.6)
    routed = run(instance, "mc-sf", clock=slow, workers=4, router="round-robin")
    alone = [run(instance.take(range(at, 2000, 4)), "mc-sf", clock=slow) for at in range(4)]
    assert routed.mean_latency == pytest.approx(np.mean([each.mean_latency for each in alone]))


def test_figure_9_protecting_little_memory_collapses():
    _, claims = claims_of("jaillet-fig-9")
    for beta in (0.1, 0.2):
        assert claims[f"beta {beta:g}: mean over alpha below 0.1, over the least"].holds
        assert claims[f"beta {beta:g}: best alpha"].ours <= 0.1  # the paper has 0.15 or more


def test_figure_10_latency_is_flat_in_beta_up_to_a_wall():
    found, claims = claims_of("jaillet-fig-10")
    assert claims["alpha 0.1: most over beta in [0.05, 0.25], over the least"].holds
    wall = found.table.query("alpha == 0.05").set_index("beta")["mean_latency"]
    assert wall[0.5] > 3 * wall[0.05]
    assert not claims["alpha 0.1: beta 0.01 is worse, over the least"].holds


@pytest.mark.parametrize("alpha", [0.08, 0.15])
def test_figure_7_a_loop_is_proven_or_everybody_completes(alpha):
    instance = requests(50, 0, 3000)
    greedy = run(instance, f"alpha-greedy:{alpha}", clock=CLOCK)
    assert (greedy.loop is None) == (greedy.unfinished == 0)
    assert greedy.peak_memory <= instance.memory


def test_slower_batches_are_a_slower_clock():
    quick, slow = requests(10, 1, 300), requests(10, 1, 300)
    slow = slow.replace(arrivals=slow.arrivals * 2)
    ends = run(quick, "mc-sf", clock=CLOCK).completions
    assert run(slow, "mc-sf", clock=clock(2)).completions == pytest.approx(2 * ends)


def test_the_two_panels_of_figure_5_exclude_each_other():
    """First come, first served of capacity mu has slope (1/mu - 1/lambda) / 2."""
    counts = np.arange(2000, 10_001, 2000)
    instance = requests(50, 1)
    runs = [run(instance.take(range(n)), "fcfs", clock=CLOCK) for n in counts]
    slope = np.polyfit(counts, [each.mean_latency for each in runs], 1)[0]
    capacity = np.polyfit(counts, [each.makespan for each in runs], 1)[0]  # seconds per request
    assert slope == pytest.approx((capacity - 1 / 50) / 2, rel=0.06)
    high, low = 2 * (1 / 2) + 1 / 50, 2 * (1 / 100) + 1 / 10  # seconds per request by each panel
    assert high > 8 * low


# Section 3 to 5


def test_algorithm_2_overflows_if_the_candidate_s_own_completion_is_not_checked():
    """The printed list of times has the completions of running and admitted requests only."""
    instance = Instance([0, 0], [10, 5], memory=11, arrivals=[0, 2])
    starts, times = [0, 2], [10]  # of the running request
    prompts, outputs = [0, 0], [10, 5]
    assert all(usage_at(time, starts, prompts, outputs) <= 11 for time in times)
    assert usage_at(7, starts, prompts, outputs) == 12
    assert run(instance, "mc-sf").schedule.check() == []
    assert run(instance, "mc-sf").schedule.starts.tolist() == [0, 9]


def test_appendix_b_1_never_holds_the_last_token():
    """Its request of prompt s and output o holds s to s + o - 1 tokens, at steps p to p + o - 1."""
    many = Instance([0] * 6, [1] * 6, memory=1)
    printed = [sum(0 + (step - 0) for _ in range(6) if 0 <= step < 1) for step in range(3)]
    assert max(printed) == 0 <= many.memory  # all six at once
    assert run(many, "mc-sf").makespan == 6
    assert solve(many).objective == 1 + 2 + 3 + 4 + 5 + 6


def test_the_tail_bound_of_lemma_5_5_bounds_nothing():
    """Its probability of failure is at most a number near 1, read as the probability of success."""
    rate, steps, share, most = 4.0, 50.0, 0.5, 8.0
    for horizon in (100, 1000, 10_000):
        exponent = 2 * (rate * steps * share) ** 2 / (horizon**2 * steps * most**2)
        assert math.exp(-exponent) > 0.999


def test_theorem_4_2_is_false():
    found, claims = claims_of("jaillet-theorem-4-2")
    assert found.verdict.label == "false as stated"
    assert found.verdict.reason.startswith("s = 1, o = 1 1 3 3, M = 5: MC-SF over the optimum is")
    holds = [label for label, claim in claims.items() if claim.holds]
    assert holds == ["as many fit at any age: worst MC-SF over the optimum"]
    label = "s = 4, o = 1 1 6 6, M = 13: MC-SF over the optimum"
    assert claims[label].ours == pytest.approx(22 / 21)


def test_theorem_5_3_mc_sf_is_overloaded_where_the_worker_is_not():
    """Arrivals in independent, bounded numbers, equal outputs, 90 % of capacity."""
    means = []
    for steps in (1000, 4000):
        instance = family(
            "equal-prompts", n=9 * steps, seed=3, memory=650, rate=9, prompt=1,
            output_least=10, output_most=10,
        )  # fmt: skip
        even = start_evenly(instance)
        assert even.check() == []
        assert even.mean_latency < 10.5  # none waits for long
        means.append(run(instance, "mc-sf").mean_latency)
    # In waves 59 requests complete every ten steps, and 90 arrive.
    assert means[1] > 3 * means[0] > 300
    assert _burst_pace() == pytest.approx(100 / 9)
    found, _ = claims_of("jaillet-theorem-5-3")
    assert found.verdict.label == "false as stated"
    assert found.verdict.reason.startswith("outputs 9, bursts of 100, load 0.81: starts of MC-SF")


@pytest.mark.parametrize("rate", [11, 12])
def test_theorem_5_3_waves_go_on_for_ever_where_as_many_come_in_every_step(rate):
    """Literal, one step after the other: from an empty worker it ends in waves of 59."""
    running, waiting, begun = [], 0, []
    for now in range(400):
        waiting += rate
        running = [start for start in running if start + 10 > now]
        while waiting:
            tried = [*running, now]
            held = [sum(1 + t - s for s in tried if s < t <= s + 10) for t in range(now, now + 11)]
            if max(held) > 650:
                break
            running, waiting = tried, waiting - 1
        begun.append(running.count(now))
    assert [count for count in begun[-100:] if count] == [59] * 10
    assert _overloaded_pace(rate, 400) == 5.9


@given(seed=st.integers(0, 10**6))
def test_an_even_pace_keeps_up_with_any_arrivals_below_it(seed):
    """Ten starts per step, in order of arrival, always fit; so hindsight is stable below ten."""
    count = 400
    instance = family(
        "equal-prompts", n=count, seed=seed, memory=650, rate=9, prompt=1,
        output_least=10, output_most=10,
    )  # fmt: skip
    starts, places = instance.arrivals.tolist(), {}
    for request, step in enumerate(starts):
        while places.get(step, 0) == 10:
            step += 1
        places[step] = places.get(step, 0) + 1
        starts[request] = step
    assert Schedule(instance, starts).check() == []


# Section 6


def test_theorem_6_2_no_policy_is_competitive():
    found, claims = claims_of("jaillet-theorem-6-2")
    assert found.verdict.label == "in shape"
    counted = [claim for claim in claims.values() if claim.counts]
    assert [claim.ours < 2 * claim.paper for claim in counted] == [True] * 4  # 2 / epsilon
    beside = [claim.holds for claim in claims.values() if not claim.counts]
    assert beside == [True] * 4 + [False, False, True, False]


def test_theorem_6_2_counts_one_short_request_too_many():
    """1 / epsilon prompts of epsilon M fill the memory before their first token."""
    instance = family("jaillet-theorem-6-2", n=17, memory=64)  # epsilon = 1/4
    shorts = instance.take(range(1, 17)).replace(arrivals=None)
    starts = run(shorts, "mc-sf").schedule.starts
    assert np.bincount(starts).max() == 3
    one_less = shorts.replace(prompts=shorts.prompts - 1)
    assert np.bincount(run(one_less, "mc-sf").schedule.starts).max() == 4


def test_theorem_6_4_s_arrivals_do_not_hurt_who_starts_at_once():
    found, claims = claims_of("jaillet-theorem-6-4")
    assert found.verdict.label == "in shape"  # the theorem, with other arrivals
    assert not any(claim.holds for claim in claims.values() if not claim.counts)  # its proof
    curves = found.table.pivot_table("ratio", "inverse", "arrivals")
    printed = curves["arrivals from (1 - 2 epsilon) M, as printed"]
    assert printed.max() < 2  # 1 + 2 / c
    assert curves["arrivals from epsilon M on"].is_monotonic_increasing


def test_expected_latencies_of_theorem_6_4_are_those_of_single_runs():
    """Every start and every arrival by itself, for epsilon = 1/4 and c = 2."""
    inverse, memory, count = 4, 256, 64
    alone, _ = _latencies(inverse, memory)
    printed = family("jaillet-theorem-6-2", n=count + 1, memory=memory)
    assert (
        alone == run(printed.take(range(1, count + 1)).replace(arrivals=None), "fcfs").total_latency
    )

    def latency(begins, comes):
        """Hold the long request back until it begins, or the short ones are there."""
        wait = min(begins, comes) * count
        late = printed.replace(arrivals=[wait] + [comes * count] * count)
        if begins > comes:
            assert late.arrivals[0] == late.arrivals[1]
        return run(late, "mc-sf").total_latency + wait

    support = range(inverse - 2, 3 * inverse - 1)
    expected = [
        np.mean([latency(begins, comes) for comes in support]) for begins in range(2 * inverse + 1)
    ]
    apart = alone + memory - count
    found = _expected(inverse, memory)["arrivals from (1 - 2 epsilon) M, as printed"]
    assert found["most"] == pytest.approx(min(expected) / apart)


def test_draws_of_the_family_of_theorem_6_4_cost_what_is_expected():
    """Policies start the long request at once: epsilon = 1/4, M = 64."""
    draws = [family("jaillet-theorem-6-4", n=17, memory=64, seed=seed) for seed in range(600)]
    totals = {int(d.arrivals[1]): run(d, "mc-sf").total_latency for d in draws}
    alone, meet = _latencies(4, 64)
    assert len(totals) == 3 * 4 - 2  # every k from epsilon to c + 1 - 2 epsilon
    for comes, total in totals.items():
        k = comes // 16
        assert total == (meet[k] if k < 3 else alone + 64 - 16)
