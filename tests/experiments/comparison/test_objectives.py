"""`compare` by every objective of `solve`: values, bounds and defaults, against brute force."""

import json

import numpy as np
import pytest
from effort import examples
from exact_costs import Question
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances

from optsched import Cluster, Instance, bound, compare, family, solve, verify
from optsched.bounds.ascent import bound_late
from optsched.errors import PolicyError
from optsched.experiments.comparison import Replications
from optsched.report.pages import proven_optimal

OBJECTIVES = ("total-latency", "weighted-latency", "makespan", "late-requests")
BUSY = family("uniform", n=120, seed=3, load=1.3)
DUE = BUSY.replace(deadlines=BUSY.arrivals + 20 + 2 * BUSY.outputs)
WEIGHED = BUSY.replace(weights=1.0 + np.arange(120) % 8)
CLOCK = "affine:0.01,0.001"


@st.composite
def asked(draw):
    """Draw an instance with due dates, and perhaps weights."""
    instance = draw(instances(max_requests=4, max_memory=9, max_arrival=3, max_output=4))
    count = len(instance)
    slack = draw(st.lists(st.integers(-2, 6), min_size=count, max_size=count))
    ends = np.maximum(instance.arrivals + instance.outputs + slack, 1)
    weights = draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=count, max_size=count))
    return instance.replace(deadlines=ends, weights=draw(st.sampled_from([None, weights])))


@pytest.mark.few
@given(asked(), st.sampled_from(OBJECTIVES))
@examples(60)
def test_no_bound_exceeds_the_optimum_of_its_objective(instance, objective):
    question = Question(instance.replace(deadlines=None), objective)
    if objective == "late-requests":
        question = Question(instance, objective)
    least = question.least()
    found = compare(instance, ["fcfs", "mc-sf", "alpha-beta-clearing"], objective=objective)
    assert found.objective == objective
    for run in found:
        exact = question.cost(run.schedule.starts.tolist())
        assert found.value(run) == exact >= least
        assert all(claim.value <= least for claim in found.bounds)
        gap = found.gap(run)
        assert gap == (0 if not exact else float((exact - found.covering(run)[0].value) / exact))
    assert found.value(found.best) == min(found.value(run) for run in found)
    assert not proven_optimal(found) or found.value(found.best) == least
    proof = found.bound.certificate
    assert proof is None or verify(proof, instance) <= least


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_value_is_that_of_solve(objective):
    small = DUE.take(range(6)).replace(weights=[1, 2, 3, 4, 5, 6])
    due = small if objective == "late-requests" else small.replace(deadlines=None)
    optimum = solve(due, objective=objective, time_limit=None, method="cp-sat")
    found = compare(due, ["fcfs", "area"], objective=objective)
    assert found.bound.value <= optimum.objective <= found.value(found.best)
    assert found.value(optimum.schedule) == optimum.objective


@pytest.mark.parametrize(
    ("instance", "clock", "objective", "said"),
    [
        (BUSY, None, "total-latency", None),
        (WEIGHED, None, "weighted-latency", "Policies are ranked by weighted latency; the objec"),
        (DUE, None, "late-requests", "Policies are ranked by number of late requests; the obje"),
        (WEIGHED, CLOCK, "weighted-latency", "Policies are ranked by weighted latency; the objec"),
        (DUE, CLOCK, "total-latency", "Policies are ranked by latency: the objective total-late"),
    ],
)
def test_the_sensible_objective_is_the_default_and_is_named(instance, clock, objective, said):
    instance = instance.replace(seconds_per_step=0.05)
    found = compare(
        instance, ["fcfs", "area", "alpha-beta-clearing"][: 3 - (clock is not None)], clock=clock
    )
    assert found.objective == objective
    assert found.notes[0].startswith(said or "Memory is")
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert content["objective"] == content["bounds"][0]["premises"]["objective"] == objective
    assert ("mean_latency" in content["bounds"][0]) == (objective == "total-latency")
    if objective != "total-latency":
        key = objective.replace("-", "_")
        entry = content["policies"][1]
        assert entry[key] == found.value("area")
        assert entry["gap"] == (entry[key] - content["bound"]["value"]) / entry[key]
        assert key.replace("_", " ") in str(found)
        assert f"the least {found.measure}, " in found.headline[0] or clock is not None
    assert found.gap(found.best) is not None


def test_plain_latency_is_as_before_but_for_the_name():
    plain, weighed = (
        compare(each, ["fcfs", "area"], objective="total-latency") for each in (BUSY, WEIGHED)
    )
    assert plain.bound.value == bound(BUSY).value == weighed.bound.value
    assert [plain.gap(name) for name in plain.policies] == [
        weighed.gap(name) for name in weighed.policies
    ]
    assert "the objective total-latency counts neither weights nor deadlines." in weighed.notes[0]


def test_a_bound_names_the_objective_and_no_gap_is_to_another():
    given_bound = bound(WEIGHED, objective="makespan")
    found = compare(WEIGHED, ["fcfs", "area"], bound=given_bound)
    assert (found.objective, found.bound) == ("makespan", given_bound)
    other = compare(WEIGHED, "area", bound=given_bound, objective="weighted-latency")
    assert other.gap("area") is None
    assert "the bound is on the makespan, not on the weighted-latency" in str(other.notes)


def test_late_requests_are_bounded_by_weight_and_where_requests_go_on():
    few = Instance([1, 1], [2, 2], memory=3, deadlines=[2, 2], weights=[0.5, 3])
    found = compare(few, ["fcfs", "work:weighted"], objective="late-requests")
    assert (found.value("fcfs"), found.bound.value, found.gap(found.best)) == (3, 0.5, 0)
    assert found.measure == "weight of late requests"
    assert proven_optimal(found)
    free = few.replace(deadlines=[9, 9])
    assert compare(free, "fcfs", objective="late-requests").gap("fcfs") == 0
    heavy = DUE.replace(weights=np.full(120, 1e90), deadlines=DUE.arrivals + 1)
    schedule = compare(heavy, "area", objective="late-requests")["area"].schedule
    assert bound_late(schedule).method == "closed-form"
    assert bound_late(schedule).value <= (heavy.outputs > 1).sum() * 1e90


def test_what_has_no_such_objective_is_refused():
    with pytest.raises(PolicyError, match="late-requests, but the requests have no deadlines"):
        compare(BUSY, objective="late-requests")
    with pytest.raises(PolicyError, match="which is bounded in steps only"):
        compare(DUE.replace(seconds_per_step=0.1), clock=CLOCK, objective="late-requests")
    with pytest.raises(PolicyError, match="on a cluster imbalance is compared; leave it out"):
        compare(BUSY, cluster=Cluster(2, 4), objective="makespan")
    with pytest.raises(PolicyError, match="objective 'latency'"):
        compare(BUSY, objective="latency")


@pytest.mark.parametrize("objective", ["weighted-latency", "makespan"])
def test_on_a_clock_the_bound_is_of_the_objective(objective):
    found = compare(
        WEIGHED.replace(seconds_per_step=0.05), ["fcfs", "area"], clock=CLOCK, objective=objective
    )
    for run in found:
        value = float(run.makespan)
        if objective == "weighted-latency":
            value = float(WEIGHED.weights @ run.latencies)
        assert found.value(run) == pytest.approx(value)
        assert 0 <= found.gap(run) < 1
    assert found.best.policy == min(found.policies, key=found.value)
    assert f"gap = ({found.measure} - bound)" in str(found)


def test_replications_go_by_the_objective():
    parts = [
        each.replace(weights=WEIGHED.weights)
        for each in (family("uniform", n=120, seed=seed, load=1.3) for seed in range(3))
    ]
    found = compare(parts, ["fcfs", "area", "mc-sf"])
    assert isinstance(found, Replications)
    assert found.metric == "weighted_latency"
    values = [part.value("area") for part in found]
    assert found.values("area").tolist() == values
    row = found.to_dict()["policies"][0]
    assert row["policy"] == found.least
    assert row["weighted_latency"]["mean"] == found.mean(found.least).mean
    assert "weighted latency in steps over 3 instances" in str(found)
    assert found.plot().get_ylabel() == "weighted latency (steps)"
    late = compare([DUE, DUE.replace(memory=DUE.memory + 40)], ["fcfs", "area"])
    assert late.metric == "late_requests"
    assert late.caption.startswith("late requests over 2 instances")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_table_plot_and_page_say_the_objective(objective, tmp_path):
    found = compare(DUE.replace(weights=WEIGHED.weights), ["fcfs", "area"], objective=objective)
    assert found.plot().get_xlabel().startswith(found.measure)
    assert ("(steps)" in found.plot().get_xlabel()) == (objective != "late-requests")
    found.to_html(tmp_path / "page.html")
    text = " ".join((tmp_path / "page.html").read_text().split())
    assert f"with a {found.measure} of " in text or f"the {found.measure} is " in text
