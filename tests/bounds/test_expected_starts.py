"""Expected starts: those of an optimal point of Relax-LP, or close to it."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from literal_orders import relaxed_optimum
from scipy.stats import kendalltau
from strategies import instances

from optsched import Instance, family
from optsched.bounds import lagrangian as module
from optsched.bounds.lagrangian import averaged_starts, expected_starts
from optsched.errors import SolverError


@given(instance=instances(max_requests=5, max_memory=15, max_arrival=0, max_output=6))
@examples(100)
def test_they_cost_what_the_relaxation_costs_over_any_longer_horizon(instance):
    longer = int(instance.outputs.sum()) + 2 * int(instance.outputs.max())
    cost = float((expected_starts(instance) + instance.outputs).sum())
    assert cost == pytest.approx(relaxed_optimum(instance, longer), abs=1e-4 * len(instance))


def test_arrivals_and_deadlines_do_not_count():
    plain = Instance([3, 1, 1], [1, 2, 2], memory=6)
    timed = plain.replace(arrivals=[0, 5, 9], deadlines=[1, 2, 3], weights=[1, 2, 3])
    assert np.array_equal(expected_starts(plain), expected_starts(timed))


@pytest.mark.parametrize("name", ["mixed", "exponential", "uniform"])
@pytest.mark.parametrize("seed", range(3))
def test_averages_of_the_lagrangian_order_nearly_as_the_relaxation(name, seed, monkeypatch):
    instance = family(name, n=20 if name == "uniform" else 40, seed=seed)
    monkeypatch.setattr(module, "_FITS", 10**9)
    exact, rough = expected_starts(instance), averaged_starts(instance)
    assert kendalltau(exact, rough).statistic > 0.85
    assert np.abs(exact - rough).mean() < 0.02 * exact.max()


def test_large_instances_take_the_averages(monkeypatch):
    instance = family("uniform", n=30, seed=1)
    monkeypatch.setattr(module, "_FITS", 0)
    assert np.array_equal(expected_starts(instance), averaged_starts(instance))


def test_requests_that_all_fit_start_at_once():
    instance = Instance([1, 2, 3], [4, 5, 6], memory=100)
    assert averaged_starts(instance).tolist() == expected_starts(instance).tolist() == [0, 0, 0]


def test_too_many_steps_are_refused():
    instance = Instance([0] * 3, [10**9] * 3, 10**9)
    with pytest.raises(SolverError, match=r"prices for 1,500,000,00\d steps .*; order by 'area'"):
        expected_starts(instance)
