"""Clusters whose every step is solved by a solver."""

import numpy as np
import pytest
from literal_balance import allowed, imbalance, least_imbalance

from optsched import Cluster, Instance, run
from optsched.errors import PolicyError
from optsched.models import BalanceState
from optsched.simulate.cluster import BalanceRouting, kernels


@pytest.mark.slow
@pytest.mark.parametrize("method", ["highs", "cp-sat"])
def test_every_step_has_the_least_imbalance_by_enumeration(method, monkeypatch):
    rng = np.random.default_rng(7)
    steps, inner = [], kernels.solve_step

    def checked(step, routing):
        loads, slots, sizes, growth, slowness, bonus = step
        chosen = inner(step, routing)
        state = BalanceState(loads, slots, sizes, np.diff(growth), slowness, bonus=bonus)
        room = min(len(sizes), int(slots.sum()))
        assert allowed(state, chosen, room)
        assert imbalance(state, chosen) == least_imbalance(state)
        steps.append(room)
        return chosen

    monkeypatch.setattr(kernels, "solve_step", checked)
    for case in range(4):
        n = 14
        instance = Instance(rng.integers(0, 30, n), rng.integers(1, 8, n), 10**6)
        slowness = [1, 1, 2] if case % 2 else 1
        cluster = Cluster(3, 2, 1, 1, slowness)
        patience = 3 if case > 1 else None
        routing = BalanceRouting(lookahead=case % 3, method=method, patience=patience)
        done = run(instance, routing, cluster=cluster, reveal=5, drift=[1, 1, 0, 3][case])
        assert (done.starts >= 0).all()
    assert len(steps) > 20
    assert max(steps) > 2


def test_prompts_that_halve_are_halved():
    """Prompts of 5, 5, 4, 3 and 3 on two workers are 10 and 10."""
    instance = Instance([5, 5, 4, 3, 3], [1] * 5, 99)
    for method in ("highs", "cp-sat"):
        done = run(instance, BalanceRouting(lookahead=0, method=method), cluster=Cluster(2, 3))
        assert (done.max_work[0], done.total_work[0]) == (10, 20)


@pytest.mark.slow
def test_a_run_is_the_same_again():
    rng = np.random.default_rng(1)
    instance = Instance(rng.integers(0, 90, 40), rng.integers(1, 9, 40), 10**6)
    routing = BalanceRouting(lookahead=2, method="cp-sat")
    one, other = (run(instance, routing, cluster=Cluster(3, 3)) for _ in range(2))
    assert one.workers.tolist() == other.workers.tolist()


def test_seconds_per_step_are_positive_and_methods_known():
    with pytest.raises(PolicyError, match="time_limit is 0, but must be positive"):
        BalanceRouting(method="highs", time_limit=0)
    with pytest.raises(PolicyError, match="unknown method 'highz': did you mean 'highs'"):
        BalanceRouting(method="highz")


def test_a_step_that_is_cut_short_has_the_assignment_of_the_search():
    rng = np.random.default_rng(3)
    instance = Instance(rng.integers(0, 900, 60), rng.integers(1, 30, 60), 10**6)
    limited = BalanceRouting(lookahead=3, method="cp-sat", time_limit=1e-9)
    search = BalanceRouting(lookahead=3, rounds=1_000)
    one, other = (run(instance, each, cluster=Cluster(3, 8)) for each in (limited, search))
    assert one.workers.tolist() == other.workers.tolist()
