"""Routers on workers that run each on its own, against a literal twin and one-worker runs."""

from dataclasses import replace

import numpy as np
import pytest
from effort import examples, share
from hypothesis import example, given
from hypothesis import strategies as st
from installed import with_serving

from optsched import Execution, Instance, PriorityPolicy, Workers, family, run
from optsched.clock import UNIT, LinearClock
from optsched.errors import InstanceError, PolicyError
from optsched.policies import get_policy
from optsched.problem.work import arrival_times, work_on_clock
from optsched.problem.workers import ROUTERS, Router, get_router, get_routers
from tests import literal_routing
from tests.strategies import instances

CLOCK = LinearClock("dyadic", 0.5, 0.125, 0.25, 0.0625, 0.03125, 0.015625)
KEYS = {
    "fcfs": lambda i: i.arrivals,
    "area": lambda i: i.areas,
    "area+skip": lambda i: i.areas,
    "mc-sf": lambda i: i.outputs,
}
LOOKING = sorted(name for name, router in ROUTERS.items() if router.looks and not router.choices)
WEIGHING = [name for name in LOOKING if ROUTERS[name].weights]
AGES = st.sampled_from(["", "@0", "@0.25", "@1.75"])


@st.composite
def several(draw):
    """Draw an instance and the memories of workers, some of them too small for some requests."""
    instance = draw(instances(max_requests=12, max_memory=24, max_arrival=14))
    instance = instance.replace(seconds_per_step=0.5)
    less = st.integers(max(1, instance.memory // 2), instance.memory)
    memories = [*draw(st.lists(less, min_size=0, max_size=2)), instance.memory]
    return instance, draw(st.permutations(memories))


def same_run(one, other):
    """Compare two runs of one worker event by event."""
    if isinstance(one, Execution):
        columns = ("requests", "starts", "tokens")
        return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)
    return (
        np.array_equal(one.first_batch, other.first_batch)
        and np.array_equal(one.last_batch, other.last_batch)
        and np.array_equal(one.preempted, other.preempted)
        and np.array_equal(one.log.spans, other.log.spans)
        and np.array_equal(one.log.contents, other.log.contents)
        and np.array_equal(one.log.usage, other.log.usage)
    )


def begun_in(routed):
    """Return when each request began."""
    begun = np.zeros(len(routed.instance))
    for worker, each in enumerate(routed.runs):
        if each is not None:
            requests = routed.requests_on(worker)
            if routed.clock is None:
                begun[requests] = each.schedule.starts
            else:
                begun[requests] = each.log.spans[each.first_batch, 0]
    return begun


@pytest.mark.few
@examples(150)
@given(several(), st.sampled_from(LOOKING), AGES, st.sampled_from(sorted(KEYS)), st.booleans())
@example(  # the second request began when the report was sent, before it arrived
    (Instance([0] * 4, [1] * 4, 2, [0, 1, 1, 1], seconds_per_step=0.5), [2]),
    *("jsq", "@1.75", "area", True),
)
def test_placement_and_beginnings_are_those_of_the_literal_twin(drawn, name, age, policy, timed):
    instance, memories = drawn
    clock, router = CLOCK if timed else UNIT, name + age
    arrivals = arrival_times(instance, clock).tolist()
    key = KEYS[policy](instance).tolist()
    how = literal_routing.chooser(router), policy.endswith("skip")
    age = get_router(router).age if timed else 0
    placement, begun = literal_routing.route(instance, memories, key, clock, arrivals, *how, age)
    routed = run(instance, policy, workers=memories, router=router, clock=CLOCK if timed else None)
    assert routed.placement.tolist() == placement
    assert begun_in(routed).tolist() == begun
    assert routed.check() == []


def test_later_arrivals_change_no_placement():
    """Reports came by the absolute clock, so that a log from 0 on was another run."""
    base = family("chat-and-summaries", n=150, rate=20, seed=3, seconds_per_step=1e-6)
    later = base.replace(arrivals=base.arrivals + 27_847)
    how = {"workers": 2, "router": "jsq@0.1", "clock": "llama-2-70b-2xa100"}
    one, other = (run(each, "fcfs", **how) for each in (base, later))
    assert one.placement.tolist() == other.placement.tolist()


SLOW = LinearClock("slow", *(2 * CLOCK.coefficients).tolist(), hinges=((4.0, 0.25),))


@examples(60)
@given(several(), st.sampled_from(LOOKING), st.sampled_from(["fcfs", "work"]), st.data())
def test_workers_with_clocks_of_their_own_do_what_literal_ones_do(drawn, name, policy, data):
    (instance, memories), router = drawn, f"{name}@0"
    clocks = [data.draw(st.sampled_from([CLOCK, SLOW])) for _ in memories]
    arrivals = arrival_times(instance, CLOCK).tolist()
    keys = [KEYS["fcfs"](instance).tolist()] * len(memories)
    if policy == "work":  # each orders what fits by the work on its own clock and memory
        keys = [
            work_on_clock(instance.replace(memory=max(memories)), clock)
            ._replace(constant=clock.constant * instance.areas / memory)
            .total.tolist()
            for clock, memory in zip(clocks, memories, strict=True)
        ]
    how = literal_routing.chooser(router)
    placement, begun = literal_routing.route(instance, memories, keys, clocks, arrivals, how)
    routed = run(instance, policy, workers=memories, router=router, clock=clocks)
    assert routed.placement.tolist() == placement
    assert begun_in(routed).tolist() == begun
    assert routed.check() == []
    assert (routed.facts.clock == ()) == (len(set(clocks)) > 1)


def test_clocks_of_workers_that_fit_nowhere_are_refused():
    instance = Instance([5, 5], [2, 2], 8, seconds_per_step=1.0)
    for options, said in (
        ({"clock": [CLOCK, SLOW]}, "pass workers too"),
        ({"clock": [CLOCK, SLOW], "workers": 3}, "2 clocks for 3 workers"),
        ({"clock": [CLOCK, UNIT], "workers": 2}, "some count seconds"),
    ):
        with pytest.raises(PolicyError, match=said):
            run(instance, "fcfs", **options)
    equal = run(instance, "fcfs", workers=2, clock=[CLOCK, CLOCK])
    assert (equal.clock, equal.clocks) == (CLOCK, ())


@pytest.mark.parametrize("policy", [*with_serving("vllm", "vllm:work"), "mixed"])
def test_each_worker_does_on_its_own_clock_what_it_does_alone(policy):
    rng = np.random.default_rng(3)
    for _ in range(share(30)):
        count, memories = int(rng.integers(4, 20)), rng.integers(24, 40, 3).tolist()
        prompts, outputs = rng.integers(1, 13, count), rng.integers(1, 11, count)
        arrivals = np.sort(rng.integers(0, 20, count))
        instance = Instance(prompts, outputs, max(memories), arrivals, seconds_per_step=0.5)
        chosen = replace(get_policy(policy), block_size=1)
        clocks = [CLOCK, SLOW, CLOCK]
        routed = run(instance, chosen, workers=memories, router="least-tokens", clock=clocks)
        assert routed.check() == []
        for worker, (memory, clock) in enumerate(zip(memories, clocks, strict=True)):
            requests = routed.requests_on(worker)
            if len(requests):
                own = instance.take(requests).replace(memory=memory)
                assert same_run(routed.on(worker), run(own, chosen, clock=clock, seed=worker))


@examples(60)
@given(
    several(),
    st.sampled_from(sorted(ROUTERS)),
    st.sampled_from(["area", "area+window", "fcfs+skip", "sorted-f", "a-min"]),
    st.booleans(),
)
def test_each_worker_does_what_it_does_alone(drawn, router, policy, timed):
    instance, memories = drawn
    options = {"intervals": "relative:0.5"} if policy == "a-min" else {}
    if timed:
        options["clock"] = CLOCK
    routed = run(instance, policy, workers=memories, router=router, seed=3, **options)
    fixed = run(
        instance,
        policy,
        workers=memories,
        router=lambda state: routed.placement[state.request],
        seed=3,
        **options,
    )
    assert np.array_equal(fixed.placement, routed.placement)
    for worker, memory in enumerate(memories):
        requests = routed.requests_on(worker)
        if not len(requests):
            assert routed.runs[worker] is None
            continue
        own = instance.take(requests).replace(memory=memory)
        alone = run(own, policy, seed=3 + worker, **options)
        assert same_run(routed.on(worker), alone)
        assert same_run(fixed.on(worker), alone)


@examples(60)
@given(several(), st.sampled_from(WEIGHING), st.booleans())
def test_compiled_workers_functions_and_whole_runs_show_routers_the_same(drawn, name, timed):
    instance, memories = drawn
    options = {"clock": CLOCK} if timed else {}
    compiled = run(instance, "area", workers=memories, router=name, **options)
    scale = max(memories) / np.array(memories)

    def by_hand(state):
        loads = [getattr(state, field) for field in ROUTERS[name].weights]
        weights = ROUTERS[name].weights.values()
        score = sum(weight * load for weight, load in zip(weights, loads, strict=True))
        if {"held", "waiting_prompts", "work"} & set(ROUTERS[name].weights):
            score = score * scale
        return state.workers[np.argmin(score[state.workers])]

    asked = run(instance, "area", workers=memories, router=by_hand, **options)
    assert np.array_equal(asked.placement, compiled.placement)

    def smallest_area(state):
        """Start the smallest memory-time first, as the prefix rule does."""
        instance = state.forecast
        areas = instance.prompts * instance.lower + instance.lower * (instance.lower + 1) // 2
        running = dict(zip(state.running.tolist(), state.tokens.tolist(), strict=True))
        chosen = []
        for i in sorted(state.waiting.tolist(), key=lambda i: (areas[i], i)):
            held = running | dict.fromkeys([*chosen, i], 0)
            left = {j: int(instance.lower[j]) - made for j, made in held.items()}
            ahead = range(1, max(left.values()) + 1)
            need = [
                sum(int(instance.prompts[j]) + held[j] + k for j in held if left[j] >= k)
                for k in ahead
            ]
            free = state.free + sum(int(instance.prompts[j]) + running[j] + 1 for j in running)
            if max(need) > free:
                break
            chosen.append(i)
        return chosen

    whole = run(instance, smallest_area, workers=memories, router=name, **options)
    assert np.array_equal(whole.placement, compiled.placement)
    assert begun_in(whole).tolist() == begun_in(compiled).tolist()


def test_routers_that_look_at_nothing():
    instance = Instance([9, 1, 9, 1, 1], [1] * 5, memory=10, arrivals=[0, 0, 1, 2, 2])
    turn = run(instance, "fcfs", workers=[10, 2, 10], router="round-robin")
    assert turn.placement.tolist() == [0, 1, 2, 0, 1]
    drawn = [
        run(instance, "fcfs", workers=[10, 2, 10], router="random", seed=seed).placement
        for seed in range(40)
    ]
    assert {tuple(placement[[0, 2]].tolist()) for placement in drawn} == {
        (0, 0),
        (0, 2),
        (2, 0),
        (2, 2),
    }
    assert {placement[1] for placement in drawn} == {0, 1, 2}


def test_power_of_d_compares_those_that_it_draws():
    instance = Instance([1] * 60, [9] * 60, memory=100)
    two = run(instance, "fcfs", workers=6, router="power-of-d", seed=1)
    every = run(instance, "fcfs", workers=6, router="power-of-d:6", seed=1)
    one = run(instance, "fcfs", workers=6, router="random", seed=1)
    counts = [np.bincount(routed.placement, minlength=6) for routed in (every, two, one)]
    assert np.ptp(counts[0]) == 0
    assert np.ptp(counts[1]) <= np.ptp(counts[2])
    assert np.ptp(counts[1]) > 0


def test_eligible_workers_alone_are_chosen():
    instance = Instance([1, 1, 1], [2, 2, 2], memory=9)
    workers = Workers([9, 9], eligible=[[False, True], [False, True], [True, True]])
    for router in sorted(ROUTERS):
        assert run(instance, "fcfs", workers=workers, router=router).placement[:2].tolist() == [
            1,
            1,
        ]


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"router": "least-token"}, "unknown router 'least-token': did you mean 'least-tokens'?"),
        ({"router": 3}, "router is 3, but must be a text, a Router or a function"),
        ({"router": "jsq:2"}, "only power-of-d has one"),
        ({"router": "jsq@old"}, "the age 'old', which is no number of seconds"),
        ({"router": "jsq@-1"}, "age is -1.0, but must be a number of seconds from 0"),
        ({"router": lambda state: 2}, "to worker 2, but workers are numbered from 0 to 1"),
        ({"router": lambda state: "0"}, "to worker '0', but workers are numbered from 0 to 1"),
        ({"router": lambda state: 1}, "request 1 to worker 1, where it may not run"),
        ({"cluster": True}, "leave the cluster out, or workers and router"),
        ({"workers": None, "router": "jsq"}, "pass workers, such as 8"),
        ({"reveal": 4}, "reveal is for a run on a cluster"),
    ],
)
def test_bad_routers_are_refused_in_one_sentence(how, sentence):
    instance = Instance([1, 7], [1, 1], memory=9)
    if "cluster" in how:
        from optsched import Cluster

        how = {"cluster": Cluster(2, 2)}
    with pytest.raises(PolicyError, match=sentence.replace("?", r"\?")):
        run(instance, "fcfs", **({"workers": [9, 4]} | how))


def test_beliefs_are_refused():
    instance = Instance([1, 2], [1, 1], memory=9)
    with pytest.raises(PolicyError, match="beliefs are about the requests of one worker"):
        run(instance, "area-chance", workers=2, intervals="common:1,2", beliefs=instance)


def test_a_request_that_fits_no_worker_is_refused():
    with pytest.raises(InstanceError, match="request 1 holds 8 tokens in the end"):
        run(Instance([1, 7], [1, 1], memory=9), "fcfs", workers=[7, 4])


def test_bad_own_routers_are_refused():
    with pytest.raises(PolicyError, match="weighs 'runing': did you mean 'running'"):
        Router("mine", "typo", {"runing": 1})
    with pytest.raises(PolicyError, match="must draw at least 1"):
        Router("mine", "none", {"running": 1}, choices=0)
    with pytest.raises(PolicyError, match="'jsq' is given twice"):
        get_routers(["jsq", "jsq"])
    with pytest.raises(PolicyError, match="no router given"):
        get_routers([])


def test_policies_that_look_ahead_are_refused():
    instance = Instance([1] * 6, [4] * 6, memory=5, arrivals=[0] * 5 + [9])

    def turns(instance):
        """Serve in the order of the indices, or against it where their number is odd."""
        return np.arange(len(instance)) * (-1) ** len(instance)

    latest_first = PriorityPolicy("odd", "turns with the number of requests", turns)
    with pytest.raises(PolicyError, match="orders requests by what is in the instance as a whole"):
        run(instance, latest_first, workers=2, router="jsq")
    assert run(instance, latest_first, workers=2, router="round-robin").check() == []


def test_one_worker_under_any_router_is_the_one_worker_run():
    instance = Instance([3, 5, 2, 4], [3, 2, 6, 1], 12, arrivals=[0, 1, 1, 4], seconds_per_step=0.5)
    for router in ROUTERS:
        for options in ({}, {"clock": CLOCK}):
            routed = run(instance, "area", workers=1, router=router, **options)
            assert same_run(routed.on(0), run(instance, "area", **options)), router


def test_a_run_that_is_stopped_counts_what_is_unfinished():
    instance = Instance([1] * 9, [6] * 9, 14, arrivals=range(9), seconds_per_step=1)
    for router in ROUTERS:
        routed = run(instance, "fcfs", workers=2, router=router, clock="affine:1,0.001", until=6)
        assert routed.unfinished == 9 - int(routed.completed.sum()) > 0
        assert sum(len(each.instance) for each in routed.runs if each) == 9
        assert routed.check() == []


@pytest.mark.parametrize("options", [{}, {"clock": CLOCK}])
def test_a_routed_run_has_page_plot_and_table(options, tmp_path):
    instance = Instance([3, 5, 2], [3, 2, 6], 12, arrivals=[0, 1, 1], seconds_per_step=0.5)
    routed = run(instance, "area", workers=2, router="jsq", **options)
    routed.to_html(tmp_path / "page.html")
    assert "jsq" in (tmp_path / "page.html").read_text()
    assert routed.plot().lines or routed.plot().collections
    assert routed.to_pandas()["worker"].tolist() == routed.placement.tolist()
    assert "3 requests on 2 workers" in str(routed)
