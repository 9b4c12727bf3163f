"""What routers lose: intervals that hold the true parts, by brute force."""

import itertools
import json

import numpy as np
import pytest
from effort import share

from optsched import Instance, routing_loss, run
from optsched.errors import PolicyError
from optsched.report import plot_losses
from tests import literal
from tests.strategies import tiny_instance

_COSTS: dict[tuple[bytes, ...], int] = {}


def least(instance, requests, memory):
    """Least total latency of some requests on a worker."""
    if not len(requests):
        return 0
    own = instance.take(requests)
    if own.peaks.max() > memory:
        return np.inf
    return literal.optimum(own.replace(memory=memory))


def optimum(instance, memories):
    """Least total latency over all placements."""
    count = len(instance)
    return min(
        sum(
            least(instance, np.flatnonzero(np.array(placement) == g), memory)
            for g, memory in enumerate(memories)
        )
        for placement in itertools.product(range(len(memories)), repeat=count)
    )


@pytest.mark.slow
@pytest.mark.no_cover
def test_intervals_hold_the_true_parts():
    rng = np.random.default_rng(5)
    decided = 0
    for _ in range(share(25)):
        instance = tiny_instance(rng, arrivals=bool(rng.integers(2)), most=5)
        memories = [instance.memory, int(rng.integers(instance.memory // 2, instance.memory + 1))]
        best = optimum(instance, memories)
        found = routing_loss(
            instance, memories, ["round-robin", "least-tokens"], ["fcfs", "area"], time_limit=40
        )
        assert found.best.low <= best <= found.best.high
        for each in found:
            given = sum(
                least(instance, each.run.requests_on(g), memory)
                for g, memory in enumerate(memories)
            )
            cost = each.cost
            for part, true in (
                (each.loss, cost - best),
                (each.order, cost - given),
                (each.placement, given - best),
            ):
                assert part.low - 1e-9 <= true / cost <= part.high + 1e-9
            decided += each.loss.high - each.loss.low < 1e-9
    assert decided > 3.6 * share(25)


@pytest.fixture(scope="module")
def found():
    instance = Instance(
        [5, 1, 1, 1, 6], [4, 1, 1, 1, 3], memory=9, arrivals=[0, 0, 1, 1, 2], seconds_per_step=1
    )
    return routing_loss(instance, 2, ["jsq", "least-tokens"], ["fcfs", "area"], time_limit=4)


def test_runs_are_those_of_run(found):
    for each in found:
        same = run(found.instance, each.run.policy, workers=2, router=each.run.router)
        assert same.total_latency == each.cost
    assert found["jsq", "area"].run.router == "jsq"
    with pytest.raises(PolicyError, match="did not run: jsq with fcfs, jsq with area"):
        found["jsq", "a-min"]


def test_the_names_of_the_json_stay(found):
    content = json.loads(json.dumps(found.to_dict()))
    assert set(content["joint"]) >= {"objective", "bound", "gap"}
    for entry in content["routers"]:
        assert list(entry)[:4] == ["router", "policy", "total_latency", "mean_latency"]
        for part in ("loss", "placement", "order"):
            low, high = entry[part]
            assert 0 <= low <= high <= 1


def test_page_plot_and_table_say_the_same(found, tmp_path):
    found.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    for each in found:
        assert f"{each.run.router}, {each.run.policy}" in page
        assert str(each.loss) in str(found)
    widths = {}
    for bars in plot_losses(found).containers:
        for place, bar in enumerate(bars):
            widths[place] = widths.get(place, 0) + bar.get_width()
    highs = sorted(100 * each.loss.high for each in found)
    assert list(widths.values()) == pytest.approx(highs)


def test_on_a_clock_the_loss_is_against_the_bound_in_seconds(found):
    timed = routing_loss(
        found.instance, 2, ["jsq", "least-tokens"], ["fcfs", "area"], clock="affine:0.5,0.01"
    )
    assert timed.unit == "s"
    best = min(each.cost for each in timed)
    for each in timed:
        assert each.order is None
        assert each.placement is None
        assert each.loss.low == pytest.approx(1 - best / each.cost)
        assert each.loss.high <= 1
        assert {"p99_latency", "mean_ttft", "mean_tpot"} <= set(each.to_dict())
    assert "TTFT" in str(timed)


def test_a_pair_that_does_not_complete_is_refused():
    instance = Instance([1] * 9, [5] * 9, memory=8)
    with pytest.raises(PolicyError, match="leave the pair out"):
        routing_loss(instance, 2, ["round-robin"], ["alpha-greedy:0.1"], time_limit=1)


def test_deadlines_bind_no_policy_and_no_optimum():
    instance = Instance([5, 5], [4, 4], memory=9, deadlines=[4, 4])
    found = routing_loss(instance, 1, ["jsq"], ["fcfs"], time_limit=2)
    assert found.best == (12, 12)
    assert found.losses[0].loss == (0, 0)


def test_policies_that_know_intervals_only_are_compared_with_the_same_optimum():
    instance = Instance([2, 3, 1, 4, 2], [3, 2, 5, 1, 4], 12, arrivals=[0, 0, 1, 2, 2])
    known = {"intervals": "relative:0.5", "time_limit": 8}
    found = routing_loss(instance, 2, ["jsq", "round-robin"], ["a-min", "area-lower"], **known)
    best = optimum(instance, [12, 12])
    assert found.best.low <= best <= found.best.high
    for each in found:
        again = run(
            instance, each.run.policy, workers=2, router=each.run.router, intervals="relative:0.5"
        )
        assert each.cost == again.total_latency
        assert each.loss.low - 1e-9 <= (each.cost - best) / each.cost <= each.loss.high + 1e-9
