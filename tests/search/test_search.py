"""Search: never worse, always feasible, the same for the same seed."""

import threading

import numpy as np
import pytest
from brute_force import schedules
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from literal import optimum
from strategies import instances

from optsched import Instance, OptschedError, Schedule, family, run
from optsched._internal.aside import Budget
from optsched.problem.costs import StartCosts
from optsched.search.annealing import Leg, SearchRequests
from optsched.search.delays import start_evenly
from optsched.search.search import Orders, anneal_orders, search


@pytest.mark.few
@given(instances(max_requests=9, max_memory=30, max_arrival=20), st.integers(0, 99), st.data())
@examples(200)
def test_search_is_feasible_and_never_worse(instance, seed, data):
    weight = st.sampled_from([0.5, 1, 3])
    weights = np.array([data.draw(weight) for _ in range(len(instance))], dtype=float)
    start = run(instance, data.draw(st.sampled_from(["fcfs", "area"]))).schedule
    found = search(start, StartCosts.plain(weights), Budget(work=2e4), seed=seed)
    assert found.schedule.check() == []
    cost = float(weights @ found.schedule.latencies)
    assert cost <= float(weights @ start.latencies)
    assert found.history[-1][1] == pytest.approx(cost)
    again = search(start, StartCosts.plain(weights), Budget(work=2e4), seed=seed)
    assert np.array_equal(again.schedule.starts, found.schedule.starts)


def test_search_reaches_most_optima_of_small_instances():
    rng = np.random.default_rng(5)
    reached = 0
    for _ in range(40):
        outputs = rng.integers(1, 5, 5)
        instance = Instance(rng.integers(0, 9, 5), outputs, 13, np.sort(rng.integers(0, 4, 5)))
        found = search(
            run(instance, "area").schedule, StartCosts.plain(np.ones(5)), Budget(work=3e5)
        )
        best = optimum(instance)
        assert found.schedule.total_latency >= best
        reached += found.schedule.total_latency == best
    assert reached >= 36


def test_delays_find_what_no_order_decodes_to():
    """The optimum 21 needs a request to wait although it would fit."""
    instance = Instance([4] * 4, [1, 1, 6, 6], memory=13)
    assert run(instance, "mc-sf").total_latency == 22
    found = search(run(instance, "mc-sf").schedule, StartCosts.plain(np.ones(4)), Budget(work=1e6))
    assert found.schedule.total_latency == 21


def test_search_gains_at_real_scale():
    instance = family("chat-and-summaries", n=2000, seed=2)
    start = run(instance, "area").schedule
    found = search(start, StartCosts.plain(np.ones(2000)), Budget(work=1e8))
    assert found.schedule.total_latency < 0.98 * start.total_latency
    assert found.schedule.check() == []


def test_interrupt_and_stop_keep_the_best():
    start = run(family("uniform", n=30, seed=1), "fcfs").schedule

    def interrupt(cost):
        raise KeyboardInterrupt

    stop = threading.Event()
    ways = ({"report": interrupt}, {"report": lambda _: stop.set(), "stop": stop})
    for way, interrupted in zip(ways, (True, False), strict=True):
        found = search(start, StartCosts.plain(np.ones(30)), Budget(work=1e12, **way))
        assert found.interrupted is interrupted
        assert found.schedule.total_latency < start.total_latency
    late = search(start, StartCosts.plain(np.ones(30)), Budget(work=1e12, deadline=0.0))
    assert late.schedule.check() == []


def test_schedules_too_long_for_dense_usage_are_refused():
    instance = Instance([1, 1], [1, 1], 4, arrivals=[0, 10**9])
    with pytest.raises(OptschedError, match="usage of 1000000001 steps"):
        search(
            Schedule(instance, instance.arrivals), StartCosts.plain(np.ones(2)), Budget(work=1e3)
        )


@pytest.mark.slow
@pytest.mark.parametrize("load", [None, 1.2])
@pytest.mark.parametrize("name", ["uniform", "exponential"])
def test_same_seed_and_threads_give_the_same_answer(name, load):
    instance = family(name, n=40, seed=1, load=load)
    start = run(instance, "area").schedule
    once, again = (
        search(start, StartCosts.plain(np.ones(40)), Budget(work=3e7), seed=4, threads=3)
        for _ in range(2)
    )
    assert np.array_equal(once.schedule.starts, again.schedule.starts)
    alone = search(start, StartCosts.plain(np.ones(40)), Budget(work=3e7), seed=4)
    assert once.schedule.total_latency <= alone.schedule.total_latency
    costs = [cost for _, cost in once.history]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == once.schedule.total_latency


@given(instances(max_requests=9, max_memory=30, max_arrival=12), st.booleans(), st.data())
@examples(200)
def test_windows_decode_to_what_the_whole_order_decodes_to(instance, backfill, data):
    """The cost of a kernel, summed up over windows, is that of its starts."""
    count = len(instance)
    weights = np.array([data.draw(st.sampled_from([0.5, 1, 3])) for _ in range(count)])
    requests = SearchRequests.of(instance, StartCosts.plain(weights))
    state = Orders(
        order=np.arange(count),
        starts=np.zeros(count, dtype=np.int64),
        best=np.zeros(count, dtype=np.int64),
        usage=np.zeros(int(instance.arrivals[-1] + instance.outputs.sum()) + 2, dtype=np.int32),
        costs=np.array([-1.0, np.inf]),
    )
    random = np.array([data.draw(st.integers(1, 99))], dtype=np.uint64)
    anneal_orders(requests, state, backfill, random, Leg(2e4, 5.0, 0.5))
    assert not state.usage.any()
    schedules = Schedule(instance, state.starts), Schedule(instance, state.best)
    assert schedules[0].check() == schedules[1].check() == []
    expected = [weights @ state.starts, weights @ state.best]
    assert state.costs.tolist() == pytest.approx(expected)
    # The same order, decoded from its beginning.
    alone = state._replace(starts=state.starts.copy(), costs=np.array([-1.0, np.inf]))
    anneal_orders(requests, alone, backfill, random, Leg(1.0, 5.0, 0.5))
    assert alone.starts.tolist() == state.starts.tolist()


@given(instances(max_requests=12, max_memory=40, max_arrival=40), st.integers(0, 99))
@examples(100)
def test_moves_of_large_requests_are_feasible_and_never_worse(instance, seed):
    giant = instance.memory // 2
    prompts, outputs = instance.prompts.copy(), instance.outputs.copy()
    prompts[::5], outputs[::5] = giant, instance.memory - giant
    instance = Instance(prompts, outputs, instance.memory, instance.arrivals)
    start = run(instance, "fcfs").schedule
    ones = np.ones(len(instance))
    found = search(
        start, StartCosts.plain(ones), Budget(work=5e4), seed=seed, plan="starts"
    ).schedule
    assert found.check() == []
    assert found.total_latency <= start.total_latency
    again = search(
        start, StartCosts.plain(ones), Budget(work=5e4), seed=seed, plan="starts"
    ).schedule
    assert np.array_equal(again.starts, found.starts)


@pytest.mark.slow
def test_large_requests_moved_by_themselves_gain_at_real_scale(monkeypatch):
    start = run(family("chat-and-summaries", n=2000, seed=0), "area").schedule
    with_large = search(
        start, StartCosts.plain(np.ones(2000)), Budget(work=3e8)
    ).schedule.total_latency
    monkeypatch.setattr("optsched.search.search._MOVES_OF_LARGE", 0.0)
    without = search(
        start, StartCosts.plain(np.ones(2000)), Budget(work=3e8)
    ).schedule.total_latency
    assert with_large < without


@given(instances(max_requests=8, max_memory=30, max_arrival=20))
@examples(100)
def test_even_paces_are_feasible(instance):
    assert start_evenly(instance).check() == []


@given(instances(max_requests=3, max_memory=12, max_arrival=4, max_output=4))
@examples(30)
def test_no_pace_beats_every_schedule(instance):
    found = start_evenly(instance)
    costs = [
        sum(starts) + int((instance.outputs - instance.arrivals).sum())
        for starts in schedules(instance, found.makespan)
    ]
    assert found.total_latency >= min(costs)


def test_one_start_per_step_where_a_greedy_policy_pulses():
    # Memory 45 holds 1 + 2 + ... + 9: one start per step for ever, or five at once every 9 steps.
    instance = Instance([0] * 900, [9] * 900, memory=45)
    even = start_evenly(instance)
    assert even.makespan <= 900 / 0.95 + 9  # the pace is a share of the memory
    assert run(instance, "mc-sf").makespan == 900 / 5 * 9
    assert np.all(np.diff(np.sort(even.starts)) <= 2)


@pytest.mark.parametrize("load", [1.2, 2.0])
def test_even_paces_save_a_tenth_of_an_overload(load):
    instance = family("equal-prompts", n=20_000, seed=1, load=load)
    assert start_evenly(instance).total_latency < 0.9 * run(instance, "mc-sf").total_latency
