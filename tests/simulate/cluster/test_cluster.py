"""The cluster simulator against a literal one, and what must hold under every policy."""

import numpy as np
import pytest
from clustered import with_deadlines
from effort import share
from literal_cluster import LiteralCluster, fcfs, lpt, profile, replay, round_robin

from optsched import Cluster, Instance, family, run
from optsched.errors import InstanceError, PolicyError
from optsched.simulate.cluster import (
    BalanceRouting,
    NoInformation,
    Oracle,
    Predictor,
    Profiles,
    RoutingRule,
)

POLICIES = (
    "fcfs",
    "jsq",
    "round-robin",
    RoutingRule("power-of-d", choices=2),
    "lpt",
    BalanceRouting(lookahead=0),
    BalanceRouting(lookahead=3),
    BalanceRouting(lookahead=3, method="greedy"),
    BalanceRouting(lookahead=2, patience=4),
    BalanceRouting(lookahead="adaptive", longest=5),
    BalanceRouting(lookahead=2, information=NoInformation()),
    BalanceRouting(lookahead=2, information=Predictor(4, misses=0.3, false_alarms=0.5, noise=2)),
)


def small_case(rng):
    """Draw a small instance, cluster and options, so that every feature meets every other."""
    n, workers = int(rng.integers(1, 25)), int(rng.integers(1, 5))
    prompts, outputs = rng.integers(0, 30, n), rng.integers(1, 8, n)
    arrivals = np.sort(rng.integers(0, 12, n)) if rng.random() < 0.5 else None
    upper = outputs + rng.integers(0, 4, n) if rng.random() < 0.5 else None
    seconds = None if rng.random() < 0.5 else 7.3
    instance = Instance(
        prompts, outputs, 10**6, arrivals, output_upper=upper, seconds_per_step=seconds
    )
    drift = [1, 1, 0, 3, [2, 0, 5]][rng.integers(5)]
    slowness = 1 if rng.random() < 0.5 else rng.integers(1, 4, workers).tolist()
    memory = None
    if rng.random() < 0.5:
        most = max(reserved(instance, i, drift) for i in range(n))
        memory = (most + rng.integers(0, 60, workers)).tolist()
    cluster = Cluster(workers, rng.integers(1, 5, workers).tolist(), 1, 1, slowness, memory)
    steps = int(rng.integers(3, 20)) if rng.random() < 0.3 else None
    options = {"steps": steps, "reveal": int(rng.integers(1, 12)), "drift": drift}
    return instance, cluster, options


def reserved(instance, i, drift):
    outputs = instance.outputs if instance.output_upper is None else instance.output_upper
    return max(profile(int(instance.prompts[i]), int(outputs[i]) + 1, drift))


def literal(instance, cluster, options, choose):
    requests = [
        {
            "profile": profile(int(prompt), int(output), options["drift"]),
            "arrival": arrival * (instance.seconds_per_step or 1),
            "reserved": reserved(instance, i, options["drift"]),
        }
        for i, (prompt, output, arrival) in enumerate(
            zip(instance.prompts, instance.outputs, instance.arrivals, strict=True)
        )
    ]
    slots = cluster.per_worker("slots").tolist()
    memory = cluster.per_worker("memory").tolist()
    limit = options["steps"] or 10**9
    slowness = cluster.per_worker("slowness").tolist()

    def duration(loads):
        work = [slow * load for slow, load in zip(slowness, loads, strict=True)]
        return cluster.overhead_s + cluster.seconds_per_token * max(work)

    timed = None if instance.seconds_per_step is None else duration
    return LiteralCluster(requests, slots, memory, options["reveal"], choose, timed).run(limit)


def assert_same(run, twin):
    def column(name):
        return [request.get(name, -1) for request in twin.requests]

    assert run.loads.tolist() == twin.loads
    assert run.waiting.tolist() == twin.waiting_after
    assert run.revealed.tolist() == column("revealed")
    assert run.starts.tolist() == column("start")
    assert run.workers.tolist() == column("worker")
    assert run.completions.tolist() == column("end")
    assert run.check() == []
    if twin.duration is not None:
        assert run.makespan == pytest.approx(twin.time)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: getattr(policy, "title", policy))
def test_every_policy_keeps_the_rules_of_the_cluster(policy):
    """Capacity and memory (asserted by the twin), stickiness, conservation, loads; exact U."""
    rng = np.random.default_rng(1)
    for case in range(1000 // len(POLICIES) + 1):
        instance, cluster, options = small_case(rng)
        result = run(instance, policy, cluster=cluster, record_loads=True, seed=case, **options)
        twin = literal(instance, cluster, options, replay(result.starts, result.workers))
        assert_same(result, twin)
        slowness = cluster.per_worker("slowness")
        work = np.array(twin.loads) * slowness
        assert result.max_work.tolist() == work.max(axis=1).tolist()
        assert result.imbalance.tolist() == (work.max(axis=1, keepdims=True) - work).sum(1).tolist()
        assert result.total_load.sum() == result.loads.sum()
        if options["steps"] is None:
            assert result.completed.all()
            assert result.active.sum() == instance.outputs.sum()  # every token is made once
        admitted = np.bincount(result.starts[result.starts >= 0], minlength=result.steps)
        for step in range(result.steps):
            running = (result.starts >= 0) & (result.starts < step)
            running &= result.starts + instance.outputs > step
            free = cluster.per_worker("slots").sum() - running.sum()
            there = admitted[step] + result.waiting[step]
            if cluster.memory is None:
                assert admitted[step] == min(there, free)
            else:
                assert admitted[step] <= min(there, free)


@pytest.mark.parametrize("policy", ["fcfs", "round-robin", "lpt"])
def test_rules_equal_their_literal_twins(policy):
    rng = np.random.default_rng(2)
    for _ in range(share(200)):
        instance, cluster, options = small_case(rng)
        twins = {
            "fcfs": fcfs,
            "round-robin": round_robin(),
            "lpt": lpt(cluster.per_worker("slowness").tolist()),
        }
        result = run(instance, policy, cluster=cluster, record_loads=True, **options)
        assert_same(result, literal(instance, cluster, options, twins[policy]))


@pytest.mark.parametrize("policy", ["jsq", RoutingRule("power-of-d", choices=9)])
def test_jsq_takes_a_worker_with_fewest_requests_and_so_does_power_of_all(policy):
    rng = np.random.default_rng(3)
    for _ in range(share(100)):
        instance, cluster, options = small_case(rng)
        result = run(instance, policy, cluster=cluster, record_loads=True, **options)

        def choose(twin, result=result):
            for i in list(twin.waiting):
                able = [g for g in range(len(twin.slots)) if twin.fits(i, g)]
                if not able:
                    return
                fewest = min(len(twin.active[g]) for g in able)
                assert len(twin.active[result.workers[i]]) == fewest
                twin.put(i, int(result.workers[i]))

        assert_same(result, literal(instance, cluster, options, choose))


class Recording:
    """Admits as first come, first served, and keeps what it saw."""

    name = "recording"

    def __init__(self, lookahead, information):
        self.lookahead = lookahead
        self.information = information
        self.seen = {}

    def route(self, state):
        self.seen[state.step] = state.loads
        chosen = np.full(len(state.waiting), -1)
        free = state.free.copy()
        for position in range(min(len(chosen), free.sum())):
            chosen[position] = np.argmax(free)
            free[chosen[position]] -= 1
        return chosen


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["oracle", "none", "predictor", "profiles"])
def test_lookahead_shows_what_the_information_says(kind):
    """The matrix P_g(h) before admission, summed request by request."""
    rng = np.random.default_rng(4)
    for seed in range(60):
        n, workers = 20, int(rng.integers(1, 4))
        instance = Instance(rng.integers(0, 30, n), rng.integers(1, 12, n), 10**6)
        drift, lookahead = int(rng.integers(0, 3)), int(rng.integers(0, 6))
        loads = [profile(int(s), int(o), drift) for s, o in instance_rows(instance)]
        information = {"none": NoInformation(), "predictor": Predictor(6, 0.3, 0.7, 2.0)}.get(
            kind, Oracle()
        )
        if kind == "profiles":
            loads = [rng.integers(0, 20, o).tolist() for o in instance.outputs]
        policy = Recording(lookahead, information)
        result = run(
            instance,
            policy,
            cluster=Cluster(workers, 3),
            reveal=6,
            seed=seed,
            drift=Profiles(loads) if kind == "profiles" else drift,
        )
        alarms = np.full((n, 4), 10**9)
        if kind == "predictor":
            stream = np.random.SeedSequence(seed, spawn_key=(1,))
            alarms = information.alarms(instance.outputs, np.random.default_rng(stream))
        for step, seen in policy.seen.items():
            expected = np.zeros_like(seen)
            for i in range(n):
                start, output = int(result.starts[i]), int(instance.outputs[i])
                if not 0 <= start < step < start + output:
                    continue
                lasts = output
                if kind in ("none", "predictor"):
                    lasts = believed(step - start, *alarms[i].tolist())
                for ahead in range(lookahead + 1):
                    age = step - start + ahead
                    if age < lasts or ahead == 0:
                        load = (
                            loads[i][age]
                            if kind == "profiles"
                            else int(instance.prompts[i]) + drift * age
                        )
                        expected[result.workers[i], ahead] += load
            assert seen.tolist() == expected.tolist()


def test_errors_of_a_predictor_do_not_follow_the_prompts_of_the_same_seed(monkeypatch):
    """With one stream for both, the error was the prompt: a noisy signal looked like a good one."""
    drawn = {}

    def alarms(self, outputs, rng):
        drawn["noise"] = rng.normal(0, 1, len(outputs))
        return np.full((len(outputs), 4), 10**9)

    monkeypatch.setattr(Predictor, "alarms", alarms)
    trace = family("lognormal", n=2000, seed=5)
    policy = BalanceRouting(lookahead=2, information=Predictor(2))
    run(trace, policy, cluster=Cluster(2, 4), steps=1, seed=5)
    assert abs(np.corrcoef(np.log(trace.prompts), drawn["noise"])[0, 1]) < 0.1


def instance_rows(instance):
    return zip(instance.prompts, instance.outputs, strict=True)


def believed(age, alarm, end, false_alarm, false_end):
    """Age at which a request is believed to have ended, by the words of `Predictor`."""
    if age >= alarm:
        return max(end, age + 1)
    if false_alarm <= age < false_end:
        return false_end
    return 10**9


def test_a_rule_in_python_can_do_what_the_compiled_one_does():
    class Twin:
        name = "twin"
        lookahead = 4

        def route(self, state):
            from optsched.solvers.balance_kernels import UNLIMITED, assign

            ones = np.ones(len(state.free), dtype=np.int64)
            none = np.zeros(len(state.waiting), dtype=np.int64)
            growth = np.arange(self.lookahead + 1)
            memory = np.full(len(ones), UNLIMITED)
            step = (state.loads, state.free, state.sizes, growth, ones, none, memory)
            return assign(*step, 100)

    instance, cluster = family("uniform", n=300, seed=1), Cluster(4, 6)
    compiled = run(instance, BalanceRouting(lookahead=4, rounds=100), cluster=cluster)
    python = run(instance, Twin(), cluster=cluster)
    assert python.workers.tolist() == compiled.workers.tolist()
    assert python.starts.tolist() == compiled.starts.tolist()


@pytest.mark.parametrize("policy", ["jsq", "fcfs", "round-robin", "power-of-d", "lpt", "bf-io"])
def test_instant_dispatch_keeps_each_queue_in_order(policy):
    rng = np.random.default_rng(5)
    for _ in range(40):
        instance, cluster, options = small_case(rng)
        if cluster.memory is not None:
            memory = max(cluster.memory)
            cluster = Cluster(cluster.workers, cluster.slots, 1, 1, cluster.slowness, memory)
        result = run(
            instance, policy, cluster=cluster, record_loads=True, dispatch="instant", **options
        )
        assert_same(
            result, literal(instance, cluster, options, replay(result.starts, result.workers))
        )
        for worker in range(cluster.workers):
            bound = np.flatnonzero(result.workers == worker)
            order = np.lexsort((bound, result.revealed[bound]))
            starts = result.starts[bound[order]]
            assert (np.diff(starts) >= 0).all()


def test_chunks_of_steps_do_not_show():
    instance = family("uniform", n=4000, seed=3)
    whole = run(instance, "bf-io", cluster=Cluster(3, 7), record_loads=True)
    assert whole.steps > 4096
    assert whole.completed.all()
    assert whole.active.sum() == instance.outputs.sum()
    part = run(instance, "bf-io", cluster=Cluster(3, 7), steps=4100, record_loads=True)
    assert part.loads.tolist() == whole.loads[:4100].tolist()


def test_draining_stops_revealing_and_finishes_what_was_revealed():
    instance = family("uniform", n=500, seed=3)
    result = run(instance, "lpt", cluster=Cluster(3, 7), steps=50, drain=True, reveal=10)
    assert result.steps > 50
    assert result.revealed.max() < 50
    assert (result.completed == (result.revealed >= 0)).all()
    assert not result.completed.all()


def test_empty_steps_pass_until_the_next_arrival():
    result = run(Instance([5, 5], [1, 1], 99, arrivals=[0, 4]), "fcfs", cluster=Cluster(2, 1))
    assert result.max_work.tolist() == [5, 0, 0, 0, 5]
    assert result.starts.tolist() == [0, 4]


def test_a_decreasing_drift_lowers_loads():
    result = run(Instance([5], [4], 99), "fcfs", cluster=Cluster(1, 1), drift=[-2, -2, 0])
    assert result.total_load.tolist() == [5, 3, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps is 0, but a run has at least 1"),
        ({"reveal": 0}, "reveal is 0, but the router must see at least 1 request"),
        ({"drift": -3}, "request 1: drift takes its load from 4 to -2 tokens, below zero"),
        ({"drift": []}, "drift is an empty sequence"),
        ({"drift": Profiles([[1]])}, "there are 1 profiles for 2 requests"),
        ({"drift": Profiles([[1], [1, 2]])}, "request 1: its profile has 2 loads, but it makes 3"),
        ({"drift": Profiles([[1], [1, 2, -4]])}, "request 1: its profile falls to -4"),
    ],
)
def test_bad_options_get_one_sentence(options, message):
    with pytest.raises(InstanceError, match=message):
        run(Instance([9, 4], [1, 3], 99), "fcfs", cluster=Cluster(2, 2), **options)


def test_a_request_that_no_worker_can_hold_is_named():
    with pytest.raises(InstanceError, match="request 1: it may come to hold 12 tokens, but no"):
        run(Instance([1, 9], [1, 3], 99), "fcfs", cluster=Cluster(2, 2, memory=[11, 10]))
    with pytest.raises(InstanceError, match="not every worker holds more than 10"):
        run(
            Instance([1, 8], [1, 3], 99),
            "bf-io",
            cluster=Cluster(2, 2, memory=[11, 10]),
            dispatch="instant",
        )


class Wrong:
    """A rule that returns whatever it is given."""

    name = "wrong"

    def __init__(self, answer):
        self.answer = answer

    def route(self, state):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([0], "wrong must return one whole number for each of 2 waiting requests"),
        ([0.5, 1], "wrong must return one whole number"),
        ([0, 7], "wrong chose worker 7, but there are 2"),
        ([0, 0], "wrong sends 2 requests to worker 0 at step 0, more than it has slots"),
        ([-1, -1], "wrong admits nothing at step 0 although all workers are empty"),
    ],
)
def test_a_wrong_rule_is_told_what_it_did(answer, message):
    with pytest.raises(PolicyError, match=message):
        run(Instance([1, 9], [1, 3], 99), Wrong(answer), cluster=Cluster(2, 1))


def test_arrivals_in_seconds_meet_steps_that_take_seconds():
    """Tokens per second offered and reported agree where nothing is overloaded."""
    rng = np.random.default_rng(5)
    times = np.cumsum(rng.exponential(0.2, 1500))
    prompts, outputs = rng.integers(1, 2000, 1500), rng.integers(1, 400, 1500)
    cluster = Cluster(workers=4, slots=32, overhead_s=5e-3)
    for tick in (0.05, 1e-6):  # what arrivals are rounded to; a step takes 6 ms
        arrivals = np.ceil(times / tick).astype(np.int64)
        trace = Instance(prompts, outputs, 10**6, arrivals, seconds_per_step=tick)
        found = run(trace, "fcfs", cluster=cluster)
        offered = outputs.sum() / times[-1]
        assert found.metrics(warm_up=0)["throughput"] == pytest.approx(offered, rel=0.02)
        assert found.mean_latency < 2.5  # 200 steps of 6 ms
        assert found.makespan < times[-1] + 10
        assert found.step_seconds.max() > 0.1  # the cluster sleeps while nothing is there


def test_an_idle_cluster_sleeps_even_where_empty_steps_take_no_time():
    trace = Instance([5, 5], [1, 1], 99, [0, 10**9], seconds_per_step=1.0)
    found = run(trace, "fcfs", cluster=Cluster(1, 1, overhead_s=0, seconds_per_token=1.0))
    assert found.step_seconds.tolist() == [5, 10**9 - 5, 5]
    assert found.latencies.tolist() == [5, 5]


def test_a_run_in_which_nothing_ended_can_be_printed():
    assert "TPOT none" in str(run(Instance([1], [9], 99), "fcfs", cluster=Cluster(1, 1), steps=3))


def test_a_fractional_drift_adds_up_to_whole_tokens():
    instance = Instance([7], [22], 99)

    def loads(drift):
        return run(instance, "fcfs", cluster=Cluster(1, 1), drift=drift).total_load.tolist()

    assert loads(0.5) == [7 + age // 2 for age in range(22)]
    assert loads(0.1) == [7 + age // 10 for age in range(22)]  # ten times 0.1 is one token
    assert loads([0.25, 1.5]) == [7, *(7 + (1 + 6 * (age - 1)) // 4 for age in range(1, 22))]
    assert loads(-0.25) == [7 - -(-age // 4) for age in range(22)]
    assert loads(1.0) == loads(1)
    with pytest.raises(InstanceError, match="drift is nan, but must be a whole number"):
        loads(float("nan"))
    with pytest.raises(InstanceError, match="with too many digits; round it"):
        loads(1e-13 / 3)


def test_missed_deadlines_are_counted_request_by_request():
    rng = np.random.default_rng(2)
    for timed in (False, True):
        instance = with_deadlines(rng, 40, timed=timed)
        cluster = Cluster(2, 2, overhead_s=0.7, seconds_per_token=1e-3)
        done = run(instance, "fcfs", cluster=cluster, steps=30)
        due = missed = 0
        for i, (deadline, output) in enumerate(
            zip(instance.deadlines, instance.outputs, strict=True)
        ):
            end = done.starts[i] + output if done.starts[i] >= 0 else 10**9
            at = done.times[end] if timed and end <= 30 else end
            if (done.times[4] if timed else 4) < deadline <= (done.times[30] if timed else 30):
                due += 1
                missed += at > deadline
        metrics = done.metrics(warm_up=4)
        assert (metrics["due"], metrics["missed"]) == (due, missed)
        assert missed > 0
