"""Clusters that keep deadlines, share slots among tenants, or pay for energy."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from optsched import Cluster, Instance, run
from optsched.errors import InstanceError, PolicyError
from optsched.simulate.cluster import BalanceRouting, PowerLaw, rules


def instance_of(rng, n=30, *, timed=False):
    """Requests of three tenants with deadlines, some of which nobody can keep."""
    outputs = rng.integers(1, 8, n)
    arrivals = np.sort(rng.integers(0, 12, n))
    owners = rng.integers(0, 3, n)
    return Instance(
        rng.integers(0, 40, n),
        outputs,
        10**6,
        arrivals=arrivals,
        deadlines=arrivals + outputs + rng.integers(0, 12, n),
        labels=[f"{'abc'[owner]}/{number}" for number, owner in enumerate(owners)],
        weights=1.0 + owners,
        seconds_per_step=1.0 if timed else None,
    )


def literal_shares(demands, weights, slots):
    """Max-min fair shares: raise all in proportion to weight, in exact fractions."""
    shares, left = [Fraction(0)] * len(demands), Fraction(slots)
    rising = {t for t, demand in enumerate(demands) if demand}
    while rising and left:
        total = sum(weights[t] for t in rising)
        speed = min(left / total, *((demands[t] - shares[t]) / weights[t] for t in rising))
        for t in rising:
            shares[t] += speed * weights[t]
        left -= speed * total
        rising = {t for t in rising if shares[t] < demands[t]}
    return [int(share) for share in shares]


@pytest.mark.parametrize("lookahead", [0, 3])
def test_goals_of_a_step_are_those_of_the_run_read_literally(monkeypatch, lookahead):
    rng = np.random.default_rng(8)
    instance, seen, inner = instance_of(rng), [], rules.solve_step
    cluster = Cluster(3, 2)

    def noted(loads, slots, sizes, growth, slowness, bonus, routing, goals):
        chosen = inner(loads, slots, sizes, growth, slowness, bonus, routing, goals)
        seen.append((goals, sizes, int(slots.sum()), chosen))
        return chosen

    monkeypatch.setattr(rules, "solve_step", noted)
    routing = BalanceRouting(lookahead, "cp-sat", deadlines=True, tenants=True)
    done = run(instance, routing, cluster=cluster, reveal=7)
    ends = done.starts + instance.outputs
    owners = ["abc".index(instance.label(i)[0]) for i in range(len(instance))]
    calls = iter(seen)
    asked = shortfalls = 0
    for step in range(done.steps):
        waiting = [i for i in range(len(instance)) if done.revealed[i] <= step <= done.starts[i]]
        active = [i for i in range(len(instance)) if done.starts[i] < step < ends[i]]
        if not waiting or len(active) == 6:
            continue
        goals, sizes, free, chosen = next(calls)
        assert sizes.tolist() == instance.prompts[waiting].tolist()
        assert free == 6 - len(active)
        left = [int(instance.deadlines[i] - instance.outputs[i]) - step for i in waiting]
        assert goals.latest.tolist() == left
        freed = [sum(ends[i] == step + h for i in active) for h in range(1, lookahead + 1)]
        assert goals.freed.tolist() == freed
        assert goals.admits(chosen, lookahead)
        running = [sum(owners[i] == t for i in active) for t in range(3)]
        demands = [running[t] + sum(owners[i] == t for i in waiting) for t in range(3)]
        slots = len(active) + min(free, len(waiting))
        shares = literal_shares(demands, [1, 2, 3], slots)
        assert goals.short.tolist() == [s - r for s, r in zip(shares, running, strict=True)]
        assert goals.price == (lookahead + 1) * 3 * max(sizes)
        asked += goals.required(min(free, len(waiting)), lookahead).max()
        shortfalls += goals.short.max() > 0
    assert next(calls, None) is None
    assert min(asked, shortfalls) > 3


def test_what_runs_is_what_all_requests_of_the_run_say(monkeypatch):
    rng, looked_at, inner = np.random.default_rng(3), [], rules.still_running

    def of_all(state, requests):
        begun = state.requests["start"]
        runs = np.flatnonzero((begun >= 0) & (begun + state.requests["output"] > state.now[0].step))
        found = inner(state, requests)
        assert sorted(found.tolist()) == runs.tolist()
        looked_at.append((len(requests), len(runs)))
        return found

    monkeypatch.setattr(rules, "still_running", of_all)
    for memory in (None, 90):  # where memory is limited, not all that are chosen start
        for seconds in (False, True):
            instance = instance_of(rng, 40, timed=seconds)
            routing = BalanceRouting(2, deadlines=True, tenants=True)
            cluster = Cluster(3, 2, memory=memory)
            run(instance, routing, cluster=cluster, reveal=9, steps=12, drain=True)
    # Of what was revealed only those that ran at the step before, but where a part begins.
    assert sum(before > 6 for before, _ in looked_at) <= 4
    assert max(running for _, running in looked_at) > 3


@pytest.mark.parametrize("method", ["swap", "highs", "cp-sat"])
def test_deadlines_are_missed_less_often_and_tenants_are_served_more_evenly(method):
    rng = np.random.default_rng(5)
    missed, jain = np.zeros(3), np.zeros(3)
    for _ in range(2):
        instance = instance_of(rng, 60)
        kinds = ({}, {"deadlines": True}, {"tenants": True})
        for place, goals in enumerate(kinds):
            routing = BalanceRouting(2, method, **goals)
            done = run(instance, routing, cluster=Cluster(2, 3), steps=40, reveal=30)
            assert done.check() == []
            metrics = done.metrics(warm_up=5)
            missed[place] += metrics["missed"]
            jain[place] += metrics["jain"]
    assert missed[1] < missed[0]
    assert jain[2] > jain[0]


def test_missed_deadlines_and_shares_are_counted_request_by_request():
    rng = np.random.default_rng(2)
    for timed in (False, True):
        instance = instance_of(rng, 40, timed=timed)
        cluster = Cluster(2, 2, overhead_s=0.7, seconds_per_token=1e-3)
        done = run(instance, "fcfs", cluster=cluster, steps=30)
        due = missed = 0
        served = {"a": 0, "b": 0, "c": 0}
        for i, (deadline, output) in enumerate(
            zip(instance.deadlines, instance.outputs, strict=True)
        ):
            end = done.starts[i] + output if done.starts[i] >= 0 else 10**9
            at = done.times[end] if timed and end <= 30 else end
            if (done.times[4] if timed else 4) < deadline <= (done.times[30] if timed else 30):
                due += 1
                missed += at > deadline
            for step in range(4, 30):
                served[instance.label(i)[0]] += 0 <= done.starts[i] <= step < end
        metrics, total = done.metrics(warm_up=4), sum(served.values())
        assert (metrics["due"], metrics["missed"]) == (due, missed)
        assert missed > 0
        shares = done.tenant_shares(warm_up=4)
        assert shares == pytest.approx({name: made / total for name, made in served.items()})
        means = [served[name] / weight for name, weight in (("a", 1), ("b", 2), ("c", 3))]
        index = sum(means) ** 2 / (3 * sum(mean**2 for mean in means))
        assert metrics["jain"] == pytest.approx(index)


def test_deadlines_in_seconds_are_kept_where_steps_stay_as_long_as_they_are():
    """Two requests of one step each, the later of which has to go first."""
    instance = Instance(
        [0, 0], [1, 1], 10, arrivals=[0, 0], deadlines=[25, 15], seconds_per_step=0.1
    )
    cluster = Cluster(1, 1, overhead_s=1.0, seconds_per_token=0)
    starts = [
        run(instance, BalanceRouting(0, "highs", deadlines=asked), cluster=cluster).starts.tolist()
        for asked in (False, True)
    ]
    assert starts == [[0, 1], [1, 0]]


def test_tenants_and_deadlines_must_be_there_and_what_knows_no_goals_is_refused():
    plain, cluster = Instance([1, 2], [1, 1], 9), Cluster(2, 2)
    for goals, message in (
        ({"deadlines": True}, "the requests have no deadlines; add a column deadline"),
        ({"tenants": True}, "tenants are read from labels such as acme/17"),
    ):
        with pytest.raises(InstanceError, match=message):
            run(plain, BalanceRouting(0, **goals), cluster=cluster)
    with pytest.raises(PolicyError, match="the method 'greedy' knows no deadlines"):
        BalanceRouting(0, "greedy", deadlines=True)
    with pytest.raises(
        PolicyError, match=r"energy_price is -1, but must be a number of at least 0"
    ):
        BalanceRouting(energy_price=-1)
    with pytest.raises(PolicyError, match="take the dispatch 'pool'"):
        run(plain, BalanceRouting(energy_price=1), cluster=cluster, dispatch="instant")
    for facts, message in (
        ({"power": PowerLaw(utilisation="throughput")}, "needs a power law by load"),
        ({"slowness": [1, 2]}, "needs workers of one slowness"),
    ):
        with pytest.raises(PolicyError, match=message):
            run(plain, BalanceRouting(energy_price=1), cluster=Cluster(2, 2, **facts))
