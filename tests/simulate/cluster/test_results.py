"""Metrics of a run, by hand on two workers."""

import pytest

from optsched import Cluster, Instance, family, run
from optsched.errors import InstanceError

CLUSTER = Cluster(2, 1, overhead_s=1.0, seconds_per_token=0.1)


@pytest.fixture
def by_hand():
    """Request 0 on worker 0 in steps 0 and 1, 1 on worker 1 in step 0, 2 after it in step 1."""
    return run(Instance([4, 2, 9], [2, 1, 1], 99), "fcfs", cluster=CLUSTER, record_loads=True)


def test_every_metric_by_hand(by_hand):
    assert by_hand.loads.tolist() == [[4, 2], [5, 9]]
    metrics = by_hand.metrics(warm_up=0)
    assert metrics["imbalance_tokens"] == 3  # (2 + 4) / 2
    assert metrics["imbalance_ms"] == pytest.approx(300)
    assert metrics["seconds"] == pytest.approx(1.4 + 1.9)
    assert metrics["idle_share"] == pytest.approx(0.6 / (2 * 3.3))
    assert metrics["throughput"] == pytest.approx(4 / 3.3)
    assert metrics["tpot"] == pytest.approx((3.3 / 2 + 1.4 + 1.9) / 3)
    energy = (400 + 100 + 300 * 0.5**0.7) * 1.4 + (400 + 100 + 300 * (5 / 9) ** 0.7) * 1.9
    assert metrics["energy_joule"] == pytest.approx(energy)
    assert metrics["power_watt"] == pytest.approx(energy / 3.3)
    assert metrics["max_wait_steps"] == 1
    assert metrics["mean_wait_steps"] == pytest.approx(1 / 3)
    assert (metrics["stuck"], metrics["completed"], metrics["steps"]) == (0, 3, 2)


def test_a_warm_up_leaves_out_steps_and_what_ended_in_them(by_hand):
    metrics = by_hand.metrics(warm_up=1)
    assert metrics["imbalance_tokens"] == 4
    assert metrics["tpot"] == pytest.approx((3.3 / 2 + 1.9) / 2)
    assert metrics["throughput"] == pytest.approx(2 / 1.9)
    with pytest.raises(InstanceError, match="2 steps, too few to pass a warm-up of 2"):
        by_hand.metrics(warm_up=2)


def test_what_has_not_happened_is_missing():
    result = run(Instance([4, 2, 9], [2, 5, 1], 99), "fcfs", cluster=CLUSTER, steps=2)
    frame = result.to_pandas()
    assert frame["completion"].isna().tolist() == [False, True, True]
    assert frame["start"].isna().tolist() == [False, False, True]
    assert frame["finished_s"].isna().tolist() == [False, True, True]
    assert result.waits.tolist() == [0, 0, 2]


def test_stuck_requests_wait_much_longer_than_all():
    class Unfair:
        name = "unfair"

        def route(self, state):
            order = sorted(range(len(state.waiting)), key=lambda i: state.sizes[i])
            chosen = [-1] * len(order)
            for place in order[: state.free.sum()]:
                chosen[place] = 0
            return chosen

    instance = Instance([99] + [1] * 200, [1] * 201, 999)
    unfair = run(instance, Unfair(), cluster=Cluster(1, 1), reveal=4, steps=150)
    assert unfair.stuck == 1
    assert unfair.metrics()["max_wait_steps"] == 150
    assert run(instance, "fcfs", cluster=Cluster(1, 1), reveal=4, steps=150).stuck == 0


def test_metrics_are_sums_over_steps_and_requests():
    result = run(family("uniform", n=200, seed=2), "lpt", cluster=Cluster(3, 5), record_loads=True)
    metrics = result.metrics(warm_up=10)
    seconds = sum(5e-3 + 9.2e-8 * max(row) for row in result.loads[10:].tolist())
    assert metrics["seconds"] == pytest.approx(seconds)
    spread = sum(3 * max(row) - sum(row) for row in result.loads[10:].tolist())
    assert metrics["imbalance_tokens"] == pytest.approx(spread / (result.steps - 10))
    assert "lpt" in str(result)
    assert repr(result) == f"<ClusterRun 'lpt': {result.steps} steps, 200 of 200 requests done>"
