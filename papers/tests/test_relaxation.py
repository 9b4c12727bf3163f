"""Sorted-F Section EC.4.2: Relax-LP on coarse grids."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import pyplot
from plots_of_targets import drawn
from quick_targets import quick
from strategies import instances

from optsched import Instance, bound, family
from optsched.bounds.lagrangian import expected_starts
from optsched.models import LatencyRelaxation
from optsched.solvers import solve_linear
from optsched_papers.sorted_f.relaxation import coarse_starts, halves, relax_lp, short_first
from optsched_papers.sorted_f.transformed import optimum


@pytest.mark.slow
@given(st.integers(0, 10**6), st.integers(2, 4))
def test_the_grid_of_single_steps_is_relax_lp_and_coarser_ones_cost_more(seed, step):
    rng = np.random.default_rng(seed)
    instance = Instance(rng.integers(0, 6, 6), rng.integers(1, 6, 6), 12)
    program = LatencyRelaxation(instance, horizon=60)
    optimum = solve_linear(program.to_linear(), "highs").objective
    total = int(instance.outputs.sum())
    assert coarse_starts(instance, 1).sum() + total == pytest.approx(optimum)
    # Starts on the grid are starts, and hold no more at any step.
    assert step * coarse_starts(instance, step).sum() + total >= optimum - 1e-6


def test_pairs_are_those_whose_shorter_output_takes_more():
    instance = Instance([50, 1, 1], [2, 10, 11], 100)  # memory-times 103, 65 and 77
    assert short_first(instance, np.array([0.0, 1.0, 2.0]), least=1) == 1
    assert short_first(instance, np.array([2.0, 0.0, 1.0]), least=1) == 0
    assert short_first(instance, np.array([2.0, 0.0, 1.0])) == pytest.approx(1 / 3)
    assert short_first(instance, np.array([1.0, 0.0, 2.0]), least=1) == 0.5


@pytest.mark.long
def test_relax_lp_goes_by_memory_time_not_by_output():
    found = quick("sorted-f-section-ec-4-2")
    pyplot.close(drawn(found))
    assert found.verdict.label == "partly"
    exact = [claim for claim in found.claims if "every step:" in claim.label]
    told = [claim for claim in exact if "memory-time" in claim.label]
    assert (len(exact), len(told)) == (10, 5)
    assert max(claim.ours for claim in told) < 0.01
    assert max(claim.ours for claim in found.claims if "memory-time" in claim.label) < 0.5
    assert min(claim.ours for claim in exact if claim not in told) > 0.5
    # The order itself, on a draw of its own.
    instance = family("uniform", seed=11)
    starts, areas = expected_starts(instance), instance.areas
    order = np.argsort(starts, kind="stable")
    assert np.corrcoef(areas[order], np.arange(len(order)))[0, 1] > 0.9


@examples(40)
@given(instances(max_requests=5, max_memory=12, max_arrival=0, max_output=6))
def test_relax_lp_is_between_the_lagrangian_and_the_optimum(instance):
    value, _ = relax_lp(instance, int(instance.outputs.sum()))
    longer, _ = relax_lp(instance, int(instance.outputs.sum()) + 5)
    assert bound(instance, method="lagrangian").value <= longer + 1e-6
    assert longer <= value + 1e-6
    assert value <= optimum(instance).total_latency + 1e-6


def test_the_gap_nears_two_where_no_two_requests_fit_together():
    """By (10) fewer than two start at each step: Relax-LP serves 1000 / 501 of them."""
    for requests in (1, 2, 9, 40):
        rate = 1000 / 501
        left = np.maximum(requests - rate * np.arange(requests), 0)  # at the end of each step
        found = halves(requests)["of_family"]
        assert found == pytest.approx(requests * (requests + 1) / 2 / left.sum(), rel=1e-6)
    assert found > 1.9


@pytest.mark.slow
def test_the_target_counts_the_bound_and_fractional_starts():
    found = quick("sorted-f-relax-lp")
    pyplot.close(drawn(found))
    assert found.verdict == ("in shape", "")
    assert [claim.counts for claim in found.claims[:3]] == [True, True, False]
    gaps = [claim.ours for claim in found.claims if claim.label.endswith("largest")]
    assert min(gaps) >= 1 - 1e-7
    assert max(gaps) > 1.3
