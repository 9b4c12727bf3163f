"""Skip, backfill and window against literal simulators, and what tells the rules apart."""

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from literal import SortedF, by_key
from literal_orders import Batches, simulate_backfill, simulate_skip, simulate_window
from strategies import instances

from optsched import Instance, bound, compare, family, read_trace, run
from optsched.admission import NEVER, admit_in_window, admit_window, empty_worker, new_queue
from optsched.errors import PolicyError
from optsched.policies import BASIC, RULES, PriorityPolicy, get_policy, with_rule

SIMULATORS = {"skip": simulate_skip, "backfill": simulate_backfill, "window": simulate_window}
PLAIN = [name for name in BASIC if "+" not in name]
small = instances(max_requests=8, max_memory=25, max_arrival=15, max_output=10)


@pytest.mark.parametrize("rule", SIMULATORS)
@given(instance=small, random=st.randoms(use_true_random=False))
@examples(300)
def test_any_order_equals_the_literal_simulator(rule, instance, random):
    key = list(range(len(instance)))
    random.shuffle(key)
    policy = PriorityPolicy("shuffled", "", lambda _: np.array(key))
    schedule = run(instance, policy, rule=rule).schedule
    assert schedule.starts.tolist() == SIMULATORS[rule](instance, by_key(key))
    assert schedule.check() == []


@given(
    instance=small,
    random=st.randoms(use_true_random=False),
    ratio=st.sampled_from([1, 1.2, 1.4, 2.5]),
    length=st.integers(1, 6),
)
@examples(300)
def test_any_window_equals_the_literal_simulator(instance, random, ratio, length):
    key = list(range(len(instance)))
    random.shuffle(key)
    policy = PriorityPolicy("shuffled", "", lambda _: np.array(key))
    starts = run(instance, policy, rule=f"window:{ratio},{length}").schedule.starts
    assert starts.tolist() == simulate_window(instance, by_key(key), ratio, length)


@pytest.mark.slow
def test_the_window_of_many_requests_equals_the_literal_simulator():
    rng = np.random.default_rng(3)
    for case in range(40):
        count, memory = int(rng.integers(10, 40)), int(rng.integers(15, 60))
        outputs = rng.integers(1, 13, count)
        prompts = rng.integers(0, memory // 2 - outputs // 2)
        arrivals = np.sort(rng.integers(0, 60, count)) * (case % 2)
        instance = Instance(prompts, np.minimum(outputs, memory - prompts), memory, arrivals)
        for name, key in (("area", instance.areas), ("fcfs", instance.arrivals)):
            starts = run(instance, name, rule="window").schedule.starts
            assert starts.tolist() == simulate_window(instance, by_key(key.tolist()))


def test_skip_of_many_requests_equals_looking_at_each_of_those_that_wait():
    rng = np.random.default_rng(5)
    for case in range(60):
        count, memory = int(rng.integers(100, 600)), int(rng.integers(30, 800))
        outputs = rng.integers(1, memory // int(rng.integers(2, 9)), count)
        prompts = rng.integers(0, (memory - outputs) // int(rng.integers(1, 6)) + 1)
        arrivals = np.sort(rng.integers(0, int(rng.choice([1, 100, 5000])), count))
        instance = Instance(prompts, outputs, memory, arrivals)
        order = instance.areas.argsort(kind="stable") if case % 2 else rng.permutation(count)
        queue = new_queue(prompts, outputs, arrivals, memory, order)
        usage = empty_worker(int(outputs.max()))
        admit_window(queue, memory, np.inf, count, int(arrivals[0]), NEVER, *usage)
        starts = admit_in_window(instance, order, np.inf, count)
        assert np.array_equal(starts[order], queue.requests.start)


@pytest.mark.parametrize("rule", SIMULATORS)
@given(instance=small)
@examples(150)
def test_batches_equal_the_literal_simulator(rule, instance):
    literal = Batches(instance, SortedF(instance).select)
    schedule = run(instance, "sorted-f", rule=rule).schedule
    assert schedule.starts.tolist() == SIMULATORS[rule](instance, literal)
    assert schedule.check() == []


@pytest.mark.slow
@pytest.mark.parametrize("rule", SIMULATORS)
def test_long_runs_with_arrivals_are_feasible_and_see_nothing_of_the_future(rule):
    rng = np.random.default_rng(1)
    count = 400
    outputs = rng.integers(1, 40, count)
    prompts, arrivals = rng.integers(0, 50, count), np.sort(rng.integers(0, 1500, count))
    instance = Instance(prompts, outputs, 100, arrivals)
    half = instance.take(np.arange(count // 2))
    before = int(arrivals[count // 2])
    for name in ("fcfs", "area", "sorted-f"):
        starts = run(instance, name, rule=rule).schedule.starts
        assert run(instance, name, rule=rule).schedule.check() == []
        alone = run(half, name, rule=rule).schedule.starts
        early = (alone < before) | (starts[: count // 2] < before)
        assert early.any()
        assert np.array_equal(alone[early], starts[: count // 2][early]), name


def test_far_apart_arrivals_cost_no_memory():
    instance = Instance([1, 1, 1], [2, 2, 2], 3, arrivals=[0, 10**11, 10**12])
    for rule in RULES:
        for name in PLAIN:
            assert run(instance, name, rule=rule).schedule.starts.tolist() == [0, 10**11, 10**12]


def test_backfill_never_delays_the_most_urgent_request_and_skip_may_starve_it():
    # A large request comes first in the order, small ones keep coming.
    arrivals = [0, 1, *range(2, 40)]
    instance = Instance([0, 9, *[0] * 38], [4, 1, *[4] * 38], 10, arrivals)
    large_first = PriorityPolicy("large", "largest prompt first", lambda i: -i.prompts)
    at = {rule: int(run(instance, large_first, rule=rule).schedule.starts[1]) for rule in RULES}
    assert at["backfill"] == at["prefix"] == 4
    assert at["skip"] > 30


@pytest.mark.parametrize(("trace", "most"), [("mixed_2000", 0.045), ("azure_code_2023", 0.022)])
def test_on_real_traces_the_window_halves_the_gap_at_least(trace, most, shared_data):
    instance = read_trace(shared_data / f"{trace}.csv.gz", 16_492).replace(arrivals=None)
    value = bound(instance).value
    gaps = [1 - value / run(instance, policy).total_latency for policy in ("area+window", "area")]
    assert gaps[0] < min(most, gaps[1] / 2)


def test_rules_by_name_and_by_argument_are_the_same():
    instance = family("uniform", n=40, seed=1)
    named = run(instance, "area+backfill").schedule
    assert named == run(instance, "area", rule="backfill").schedule
    assert named.policy == "area+backfill"
    assert run(instance, "area", rule="prefix").schedule.policy == "area"
    results = compare(instance, ["area", "area+skip", "area+backfill"]).schedules
    assert [schedule.policy for schedule in results] == ["area", "area+skip", "area+backfill"]
    # With room planned for the more urgent ones, nothing is lost here.
    assert results[2].total_latency < results[0].total_latency


@given(instance=small, random=st.randoms(use_true_random=False))
@examples(200)
def test_a_window_of_one_request_is_the_prefix_rule_and_one_of_all_is_skip(instance, random):
    key = list(range(len(instance)))
    random.shuffle(key)
    policy = PriorityPolicy("shuffled", "", lambda _: np.array(key))
    for rule, same in (
        ("window:inf,1", "prefix"),
        ("window:1.4,1", "prefix"),
        ("window:inf", "skip"),
    ):
        starts = run(instance, policy, rule=rule).schedule.starts
        assert np.array_equal(starts, run(instance, policy, rule=same).schedule.starts)


@given(instance=small)
def test_only_requests_that_ask_for_hardly_more_pass_the_first_one(instance):
    """Before a request starts, later ones that it outranks start only within the ratio of it."""
    for ratio in (1, 1.4, 3):
        schedule = run(instance, f"area+window:{ratio}").schedule
        areas, starts = instance.areas, schedule.starts
        for head in range(len(instance)):
            while_it_waits = (starts >= instance.arrivals[head]) & (starts < starts[head])
            # What it outranks may pass it only where it may pass the first one that waits, too.
            assert (areas[while_it_waits] <= ratio * areas[head]).all()


@given(instance=small)
def test_equal_requests_pass_each_other_under_no_ratio(instance):
    alike = Instance(
        np.full(len(instance), instance.prompts[0]),
        np.full(len(instance), instance.outputs[0]),
        instance.memory,
        instance.arrivals,
    )
    for rule in ("window", "window:1", "window:inf"):
        starts = run(alike, "fcfs", rule=rule).schedule.starts
        assert np.array_equal(starts, run(alike, "fcfs").schedule.starts)


def test_requests_beyond_the_window_wait_their_turn():
    """The last one would fit beside the first at once, but is not among two that wait."""
    instance = Instance([5, 6, 6, 1], [4, 1, 1, 1], memory=10)
    in_turn = PriorityPolicy("in turn", "", lambda _: np.arange(4))
    starts = {
        length: run(instance, in_turn, rule=f"window:inf,{length}").schedule.starts.tolist()
        for length in (2, 3)
    }
    assert starts == {2: [0, 4, 5, 4], 3: [0, 4, 5, 0]}


def test_unknown_rules_are_refused():
    with pytest.raises(PolicyError, match="unknown rule 'backfil': did you mean 'backfill'"):
        get_policy("area+backfil")
    with pytest.raises(PolicyError, match="unknown policy 'aera': did you mean 'area'"):
        get_policy("aera+skip")
    with pytest.raises(PolicyError, match=r"'area\+skip' has a rule already; leave 'backfill' out"):
        with_rule(get_policy("area+skip"), "backfill")
    for rule, message in (
        ("window:0.9", "has the ratio 0.9, but no request could start under a ratio below 1"),
        ("window:nan", "has the ratio nan, but"),
        ("window:1.4,0", "has a window of 0 requests, but must try at least 1"),
        ("window:2,-5", "has a window of -5 requests, but"),
        ("window:wide", "should read window:RATIO or window:RATIO,LENGTH"),
        ("window:1.4,2.5", "should read window:RATIO or window:RATIO,LENGTH"),
        ("skip:2", "unknown rule 'skip:2'"),
    ):
        with pytest.raises(PolicyError, match=message):
            get_policy(f"area+{rule}")
