"""Sorted-F Theorem 1 and EC.1: shortest first is unboundedly bad, and how fast it gets worse."""

from __future__ import annotations

import numpy as np
import pytest

from optsched import Instance, bound, family, run
from optsched.policies import PriorityPolicy

MEMORIES = (100, 1024, 10_000, 99_856, 1_000_000)
#: For each theorem, what fails, and the order that serves the second type first.
FAILING = {
    "sorted-f-theorem-1": ("mc-sf", PriorityPolicy("second", "", lambda i: -i.outputs)),
    "sorted-f-theorem-ec-1": ("mc-sf-total", PriorityPolicy("second", "", lambda i: i.outputs)),
}
EXPONENTS = {"balanced": 0.25, "long": 0.5}


def ratio(instance, policy, alternative):
    return run(instance, policy).total_latency / run(instance, alternative).total_latency


@pytest.mark.parametrize("kind", EXPONENTS)
@pytest.mark.parametrize("theorem", FAILING)
def test_shortest_first_fails_without_bound_where_area_does_not(theorem, kind):
    failing, alternative = FAILING[theorem]
    ratios = []
    for memory in MEMORIES:
        instance = family(f"{theorem}-{kind}", memory=memory)
        ratios.append(ratio(instance, failing, alternative))
        assert ratio(instance, "area", alternative) < 1.01, memory
    assert (np.diff(ratios) > 0).all()
    exponent = np.polyfit(np.log(MEMORIES), np.log(ratios), 1)[0]
    assert exponent == pytest.approx(EXPONENTS[kind], abs=0.03)
    # It gets closer as rounding loses weight.
    last = np.log(ratios[-1] / ratios[-2]) / np.log(MEMORIES[-1] / MEMORIES[-2])
    assert abs(last - EXPONENTS[kind]) < 0.01


@pytest.mark.parametrize(
    "name",
    ["sorted-f-theorem-1-balanced", "sorted-f-theorem-1-long", "sorted-f-theorem-ec-1-long"],
)
def test_sorted_f_stays_below_a_constant(name):
    alternative = FAILING[name.rpartition("-")[0]][1]
    for memory in MEMORIES:
        instance = family(name, memory=memory)
        assert ratio(instance, "sorted-f", alternative) < 1.01, memory


@pytest.mark.parametrize("memory", [100, 1024])
def test_exact_selection_stays_below_a_constant_on_theorem_ec_1(memory):
    instance = family("sorted-f-theorem-ec-1-balanced", memory=memory, batches=2)
    assert ratio(instance, "sorted-f-dp", FAILING["sorted-f-theorem-ec-1"][1]) < 1.01


def test_local_swap_cannot_leave_the_trap_of_theorem_ec_1():
    """Peaks of sqrt(M) fill the memory to the last token; a swap for sqrt(M) + 1 never fits.

    So the constant of Theorem 3 is one of exact selection, not of Alg. 4.
    """
    for memory in MEMORIES[:3]:
        instance = family("sorted-f-theorem-ec-1-balanced", memory=memory)
        starts = [run(instance, name).schedule.starts for name in ("sorted-f", "mc-sf-total")]
        assert np.array_equal(*starts)


@pytest.mark.parametrize("batches", [1, 3, 12])
def test_prompts_near_m_cost_what_the_corrected_proof_says(batches):
    """The ratio is sqrt(q / 2) sqrt(b / (b + 1)) for q = M / 3, which tends to 0.41 sqrt(M)."""
    memory = 90_000
    instance = family("sorted-f-theorem-1-long", memory=memory, batches=batches)
    expected = np.sqrt(memory / 6) * np.sqrt(batches / (batches + 1))
    found = ratio(instance, "mc-sf", FAILING["sorted-f-theorem-1"][1])
    assert found == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("theorem", FAILING)
def test_the_printed_numbers_of_requests_are_not_the_worst_ones(theorem):
    """With M and M^1.5 requests of the two types the printed rate of M^0.5 is far away."""
    failing, alternative = FAILING[theorem]
    for memory in (100, 1024):
        printed = ratio(family(theorem, memory=memory), failing, alternative)
        balanced = ratio(family(f"{theorem}-balanced", memory=memory), failing, alternative)
        assert printed < balanced < 0.7 * memory**0.5


def test_the_alternative_order_is_near_the_optimum():
    for theorem, (_, alternative) in FAILING.items():
        instance = family(f"{theorem}-long", memory=10_000)
        assert run(instance, alternative).total_latency < 1.5 * bound(instance).value, theorem


@pytest.mark.parametrize("largest", [0.1, 0.3, 0.5, 0.8])
def test_area_keeps_the_published_ratio_of_smallest_volume_first(largest):
    """Kong, Qi, Ye, Zhou (arXiv 2606.22327): 1 + 2 / (1 - a), no peak above a M, all present."""
    rng = np.random.default_rng(round(10 * largest))
    for _ in range(20):
        memory, count = int(rng.integers(20, 400)), int(rng.integers(2, 60))
        most = max(2, int(largest * memory))
        peaks = rng.integers(2, most + 1, count)
        outputs = rng.integers(1, peaks)
        instance = Instance(peaks - outputs, outputs, memory)
        limit = 1 + 2 / (1 - peaks.max() / memory)
        assert run(instance, "area").total_latency <= limit * bound(instance).value
