"""Fluid Prop. 2, 3 and 5: bounds on any policy, beside twins that take no short cut."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from quick_targets import quick
from scipy.optimize import linprog
from scipy.stats import poisson

from optsched import run
from optsched.workloads import poisson_requests
from optsched_papers.fluid import at_capacity, unaware
from optsched_papers.fluid.theory import SMALL, SMALL_MEMORY, WAIT

# Proposition 2


@pytest.mark.parametrize("memory", range(4, 13))
def test_what_iterations_reach_is_a_linear_program(memory):
    """At most one request of each type per iteration; they take three and six tokens."""
    best = linprog([-2, -3], A_ub=[[3, 6]], b_ub=[memory], bounds=(0, 1))
    assert at_capacity.most_in(memory) == pytest.approx(-best.fun / 5)


@pytest.mark.slow
def test_proposition_2_in_quick_form():
    result = quick("fluid-prop-2")
    assert result.verdict.label == "in shape"
    share = result.table.set_index(["policy", "memory"]).share
    assert (share[:, 36] > 0.99).all()  # the bound is reached, so that it could be exceeded


# Proposition 3


def test_the_expected_backlog_is_that_of_spitzers_identity():
    """The expected maximum of a walk sums the positive parts of its places, each over its step."""
    counts = np.arange(200)
    expected, found = 0.0, at_capacity.least_present(31)
    for steps in range(1, 31):
        double = np.zeros(2 * len(counts) - 1)
        double[::2] = poisson.pmf(counts, steps)
        arrived = np.convolve(poisson.pmf(counts, steps), double)
        expected += np.maximum(np.arange(len(arrived)) - 3 * steps, 0) @ arrived / steps
        assert found[steps] == pytest.approx(expected / 2, abs=1e-8)


@pytest.mark.slow
def test_the_bound_grows_like_the_root_of_the_horizon():
    """Arrivals have variance 5 in units of three tokens; two requests arrive per iteration."""
    found = at_capacity.least_latencies([20_000])[0]
    assert found == pytest.approx(math.sqrt(10 / math.pi * 20_000) / 6, rel=0.02)


@examples(30)
@given(st.integers(0, 10**6), st.sampled_from([WAIT, "mixed", "fcfs", "mc-sf", "vllm-v0", "area"]))
def test_no_run_has_fewer_requests_than_the_walk_of_its_arrivals(seed, policy):
    requests = poisson_requests(SMALL, 60.0, SMALL_MEMORY, seed=seed)
    result = run(requests, policy, clock=at_capacity.CLOCK, until=60.0)
    arrived = np.asarray(result.arrivals)
    units = np.where(requests.outputs == 2, 1, 2)
    completed = np.where(result.completed, np.nan_to_num(result.completions), np.inf)
    backlog = 0
    for t in range(1, 60):
        backlog = max(backlog + int(units[(arrived > t - 1) & (arrived <= t)].sum()) - 3, 0)
        assert 2 * ((arrived <= t) & (completed > t)).sum() >= backlog


@pytest.mark.slow
def test_proposition_3_in_quick_form():
    result = quick("fluid-prop-3")
    assert result.verdict.label == "in shape"
    claims = {claim.label: claim for claim in result.claims}
    assert claims["exponent of latency, fcfs"].ours > 0.9
    assert 1 < claims["latency of wait over the bound"].ours < 4


# Proposition 5


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "work"), [(3, 0), (4, 0), (5, 0), (4, Fraction(1, 8))])
def test_the_proven_gap_is_that_of_the_best_policy_step_by_step(memory, work):
    """All choices over a finite time, requests listed one by one, long ones known once seen."""
    proven = float(unaware.least_gap(memory, Fraction(work)))

    @functools.cache
    def best(steps, held, known):
        """Held: stages done of each request, and whether it is known; known: long ones waiting."""
        if steps == 0:
            return 0.0
        found = -math.inf
        for choice in itertools.product(("run", "pause", "drop"), repeat=len(held)):
            ran = [each for each, what in zip(held, choice, strict=True) if what == "run"]
            paused = [each for each, what in zip(held, choice, strict=True) if what == "pause"]
            dropped = [each for each, what in zip(held, choice, strict=True) if what == "drop"]
            waiting = min(known + sum(is_long for _, is_long in dropped), 3)
            used = sum(done + 1 for done, _ in ran) + sum(done for done, _ in paused)
            for again in range(min(waiting, memory - used) + 1 if used <= memory else 0):
                for fresh in range(memory - used - again + 1):
                    new = [(1, True)] * again + [(1, False)] * fresh
                    batch = sum(done + 1 for done, _ in ran) + again + fresh
                    seconds = 1 - float(work) * (memory - batch)
                    value = 3.0 * sum(done == 2 for done, _ in ran)
                    value -= (unaware.FLUID - proven) * seconds
                    moved = [(2, True) for done, is_long in ran if done == 1 and is_long]
                    guessed = [done for done, is_long in ran if done == 1 and not is_long]
                    n = len(guessed)
                    for long in range(n + 1):
                        chance = math.comb(n, long) / 2**n
                        later = tuple(sorted(paused + moved + [(2, True)] * long + new))
                        value += chance * 2 * (n - long)
                        value += chance * best(steps - 1, later, waiting - again)
                    found = max(found, value)
        return found

    short, long = 12, 24
    rate = (best(long, (), 0) - best(short, (), 0)) / (long - short)
    # At most three long ones wait here, and the ends of time count.
    assert rate == pytest.approx(0, abs=0.01)


@pytest.mark.slow
def test_a_policy_that_knows_the_types_misses_ever_less():
    gaps = [at_capacity.serve_small("wait", at_capacity.CLOCK, T, 1)["gap"] for T in (500, 50_000)]
    assert gaps[1] < 0.3 * gaps[0] < 0.3 * float(unaware.least_gap(SMALL_MEMORY))


@pytest.mark.parametrize("seed", range(5))
def test_the_latest_stage_first_is_served_request_by_request(seed):
    rng = np.random.default_rng(seed)
    steps, memory = 200, 9
    arrived = rng.poisson(2, steps)
    flips = rng.integers(0, 2, (steps, memory // 2))
    longs = np.hstack([np.zeros((steps, 1), dtype=np.int64), np.cumsum(flips, axis=1)])
    left = np.empty(steps, dtype=np.int64)
    unaware.serve_batches(arrived, longs, memory, left)
    queues = {0: 0, 1: 0, 2: 0}  # requests by the stage that comes next
    for t in range(steps):
        free, taken = memory, dict.fromkeys(queues, 0)
        for stage in (2, 1, 0):
            while taken[stage] < queues[stage] and free >= stage + 1:
                taken[stage] += 1
                free -= stage + 1
        queues = {
            0: queues[0] - taken[0] + int(arrived[t]),
            1: queues[1] - taken[1] + taken[0],
            2: queues[2] - taken[2] + int(flips[t, : taken[1]].sum()),
        }
        assert left[t] == 5 * (queues[0] + queues[1]) + 6 * queues[2]


def test_four_full_batches_neither_starve_nor_overflow():
    """Against the step of Appendix A.4; completions are half of stage 1 and all of stage 2."""
    found = []
    for first, second, last in itertools.product(range(10), repeat=3):
        full = first + 2 * second + 3 * last == 9
        worst = 2 * first + 3 * second  # all of stage 1 turn out to be long
        if full and second / 2 + last >= 2 and worst <= 9:
            found.append((first, second, last))
    assert sorted(found) == sorted(unaware.safe_batches(9))
    assert len(found) == 4


@pytest.mark.slow
def test_proposition_5_in_quick_form():
    result = quick("fluid-prop-5")
    assert result.verdict.label == "in shape"
    claims = {claim.label: claim for claim in result.claims}
    assert 0.48 < claims["least gap where all caches count"].ours < 0.49
    assert claims[f"exponent of the gap, {at_capacity.BY_BATCH}"].ours < -0.3
    assert all(claims[f"gap, {name}"].holds for name in at_capacity.UNAWARE)
    assert not claims["full batches that surely fit on"].holds
