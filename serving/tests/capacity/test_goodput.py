"""Goodput in `compare`: shares within objectives, and the most that any scheduler reaches."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from brute_force import feasible_starts
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances

from optsched import (
    Cluster,
    Instance,
    OptschedError,
    Slo,
    capacity,
    compare,
    family,
    get_clock,
    run,
)
from optsched._internal import rooms
from optsched._internal.numbers import percent
from optsched_serving.capacity.bounds import least_late
from optsched_serving.capacity.capacity import times_of
from optsched_serving.capacity.slo import Bounded, Charging, Demand, as_slos

BUSY = family("uniform", n=150, seed=3, load=1.3, seconds_per_step=0.05)
CLOCK = "llama-2-70b-2xa100"
LIMITS = ["latency", "ttft"]


@pytest.mark.few
@given(
    instances(max_requests=4, max_memory=9, max_arrival=3, max_output=4),
    st.lists(st.tuples(st.sampled_from(LIMITS), st.integers(0, 9)), min_size=1, max_size=2),
    st.sampled_from([None, 0.5, 1]),
)
@examples(60)
def test_no_scheduler_attains_more_than_the_bound(instance, limits, per_token):
    slos = [f"{metric}:p50<={limit}.5steps" for metric, limit in limits]
    slos += [] if per_token is None else [f"tpot:max<={per_token}steps"]
    found = compare(instance, ["fcfs", "mc-sf", "alpha-beta-clearing"], slo=slos)
    starts = feasible_starts(instance)
    times = {
        "latency": starts + instance.outputs - instance.arrivals,
        "ttft": starts + 1 - instance.arrivals,
    }
    met = np.all([times[metric] <= limit for metric, limit in limits], axis=0)
    if per_token == 0.5:
        met &= instance.outputs == 1
    most = met.sum(axis=1).max() / len(instance)
    bound, why = found.attained_bound
    assert why is None
    assert most <= bound <= 1
    for entry in found.to_dict()["policies"]:
        run = found[entry["policy"]]
        row = np.flatnonzero((starts == run.schedule.starts).all(axis=1))
        if len(row):
            assert entry["attained"] == met[row[0]].sum() / len(instance)
        assert entry["attained"] <= bound


def test_shares_and_their_bound_are_shown_and_are_json():
    found = compare(BUSY, ["fcfs", "area"], slo=["latency:p90<=60steps", Slo("ttft:max<=9 steps")])
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    shares = [entry["attained"] for entry in content["policies"]]
    assert 0 < shares[0] < shares[1] < content["attained_bound"] < 1
    assert "why_no_bound" not in content
    assert "within SLO" in str(found)
    assert "Within latency:p90<=60steps and ttft:max<=9steps, area has " in found.notes[0]
    plain = compare(BUSY, ["fcfs", "area"]).to_dict()
    assert "attained_bound" not in plain
    assert "attained" not in plain["policies"][0]


def test_where_all_can_be_met_the_bound_is_all():
    found = compare(BUSY.replace(memory=10**6), "area", slo="latency:max<=60steps")
    assert found.attained_bound == (1.0, None)
    assert "no limit below 100% is proven" in str(found)
    assert found.to_dict()["policies"][0]["attained"] == 1


@pytest.mark.few
@given(
    instances(max_requests=6, max_memory=12, max_arrival=4, max_output=6),
    st.lists(st.tuples(st.sampled_from([*LIMITS, "tpot"]), st.integers(1, 40)), max_size=2),
    st.sampled_from(["unit", CLOCK]),
    st.integers(1, 3),
)
@examples(40)
def test_no_run_has_fewer_late_than_is_proven(instance, limits, clock, workers):
    """Windows of time, with one worker or several; a batch takes a step, or 48 ms on the clock."""
    clock, unit = get_clock(clock), 1.0 if clock == "unit" else 0.03
    suffix = clock.unit
    if suffix == "s":
        instance = instance.replace(seconds_per_step=unit)
    slos = [Slo(f"{metric}:max<={limit * unit:g}{suffix}") for metric, limit in limits]
    if not slos:
        slos = [Slo(f"latency:max<={8 * unit:g}{suffix}")]
    world = Bounded(instance, clock, 0, "next-batch", timed=True)
    late = least_late(world, slos, workers)
    assert 0 <= late <= len(instance)
    for policy in ("work", "mixed", "fcfs"):
        found = run(instance, policy, clock=clock, workers=workers, router="least-tokens")
        met = np.ones(len(instance), dtype=bool)
        for slo in slos:
            met &= slo.within(times_of(found)) | ~slo.asked(instance)
        assert late <= (~met).sum()


def test_on_a_clock_windows_prove_more_than_those_late_alone():
    crowd = family("uniform", n=300, seed=3, load=4, seconds_per_step=0.05)
    slos = as_slos("latency:p90<=9s", "s")
    world = Bounded(crowd, get_clock(CLOCK), 0, "next-batch", timed=True)
    alone = int(Demand(world, slos, Charging()).impossible.sum())
    late = [least_late(world, slos, workers) for workers in (1, 2, 99)]
    assert late[0] > late[1] > late[2] == alone
    found = compare(crowd, ["work", "vllm"], clock=CLOCK, slo="latency:p90<=9s").to_dict()
    assert found["attained_bound"] == (300 - late[0]) / 300
    assert all(entry["attained"] <= found["attained_bound"] for entry in found["policies"])


def test_plans_that_fall_short_are_shown_beside_the_most_that_anyone_attains():
    crowd = family("uniform", n=300, seed=3, load=4)
    found = capacity(crowd, ["latency:p95<=80steps", "ttft:p99<=20steps"], "area", workers=2)
    (plan,) = found.to_dict()["plans"]
    assert plan["workers"] is None
    assert 0 < plan["attained"] <= plan["attained_bound"] < 0.95
    assert f", and no scheduler more than {percent(plan['attained_bound'], 2)};" in str(found)
    assert found.attained_bound(9) == 1
    (stopped,) = replace(found, interrupted=True).to_dict()["plans"]  # an answer comes at once
    assert stopped["attained_bound"] is None
    mean = capacity(crowd, "latency:mean<=90steps", "area", workers=2)
    assert mean.attained_bound(2) is None
    assert (
        capacity([crowd, crowd], "latency:p95<=40steps", "area", workers=2).attained_bound(2)
        is None
    )


def test_on_a_clock_no_run_attains_more_than_the_bound():
    slo = "latency:p90<=1.5s"
    found = compare(BUSY, ["work", "mixed"], clock=CLOCK, slo=slo)
    idle = compare(BUSY.replace(memory=10**7, arrivals=None).take([0]), "work", clock=CLOCK)
    alone = [
        compare(one, "work", clock=CLOCK)["work"].latencies[0]
        for one in (BUSY.take([at]) for at in range(40))
    ]
    assert np.isclose(alone[0], idle["work"].latencies[0])
    bound, _ = found.attained_bound
    part = compare(BUSY.take(range(40)), "work", clock=CLOCK, slo=slo)
    assert part.attained_bound[0] >= np.mean(np.array(alone) <= 1.5)
    for made in found:
        entry = {each["policy"]: each for each in found.to_dict()["policies"]}[made.policy]
        assert entry["attained"] == np.mean(made.latencies <= 1.5) <= bound < 1
    warm = compare(BUSY, "work", clock=CLOCK, slo=slo, warm_up=1.0).to_dict()
    assert warm["attained_bound"] is None
    assert "before the warm-up" in warm["why_no_bound"]
    own = compare(BUSY, "area", clock=lambda batch: 0.1, slo=slo)
    assert own.attained_bound == (None, "the clock is a function")


def test_requests_that_go_on_after_preemption_are_bounded_by_those_late_alone():
    few = Instance([1, 1], [2, 2], memory=3)
    found = compare(few, "fcfs", slo="latency:max<=2steps")
    assert found.attained_bound == (0.5, None)
    assert found.goodput.most(_split(found)) == (1.0, None)


def _split(found):
    runs = [SimpleNamespace(split=True)]

    class Split(SimpleNamespace):
        def __iter__(self):
            return iter(runs)

    facts = {"warm_up": 0, "turns": False, "clock": None, "schedules": []}
    return Split(instance=found.instance, **facts)


def test_tenants_are_apart_and_several_instances_have_their_own():
    labels = [f"{'ab'[at % 2]}/{at}" for at in range(len(BUSY))]
    mixed = BUSY.replace(labels=labels)
    found = compare(mixed, "area", slo="a/latency:max<=1steps").to_dict()
    late = [at for at in range(0, len(BUSY), 2) if BUSY.outputs[at] > 1]
    assert found["policies"][0]["attained"] <= found["attained_bound"]
    assert found["attained_bound"] <= (len(BUSY) - len(late)) / len(BUSY)
    several = compare([BUSY, BUSY.take(range(50))], ["fcfs", "area"], slo="latency:p90<=60steps")
    assert several.values("area", "attained").shape == (2,)


def test_what_has_no_share_is_refused(monkeypatch):
    with pytest.raises(OptschedError, match="is about a mean, of which requests have no share"):
        compare(BUSY, "area", slo="latency:mean<=5steps")
    with pytest.raises(OptschedError, match="write s or ms"):
        compare(BUSY, "area", clock=CLOCK, slo="latency:max<=5steps")
    with pytest.raises(OptschedError, match="slo is 'ttft:max<=5steps', but is for one worker"):
        compare(BUSY, cluster=Cluster(2, 4), slo="ttft:max<=5steps")
    monkeypatch.setattr(rooms, "names", lambda kind: [])
    with pytest.raises(OptschedError, match="slo comes with the folder serving/"):
        compare(BUSY, "area", slo="ttft:max<=5steps")
