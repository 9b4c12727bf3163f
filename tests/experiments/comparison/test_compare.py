"""The verb compare: one family of results on steps, clocks and clusters."""

from dataclasses import fields

import numpy as np
import pytest

from optsched import Cluster, Comparison, OptschedError, PriorityPolicy, bound, compare, family, run
from optsched.experiments import comparison as comparing
from optsched.experiments.results import ClockComparison, ClusterComparison, StepComparison
from optsched.problem.forecasts import rough_forecasts

REQUESTS = family("uniform", n=30, seed=1, load=0.9, seconds_per_step=0.1)
WHERE = {
    "steps": ({}, ["area", "mc-sf"]),
    "clock": ({"clock": "affine:0.01,0.001"}, ["area", "mixed"]),
    "cluster": ({"cluster": Cluster(2, 4), "steps": 30}, ["fcfs", "lpt"]),
}


@pytest.mark.parametrize("kind", WHERE)
def test_all_comparisons_are_used_alike(kind):
    options, names = WHERE[kind]
    seen = []
    found = compare(REQUESTS, names, on_result=lambda *each: seen.append(each), **options)
    assert isinstance(found, Comparison)
    assert (
        found.policies == names == [run.policy for run in found] == [run.policy for run, _ in seen]
    )
    assert all(seconds >= 0 for _, seconds in seen)
    assert len(found) == 2
    assert found[names[0]].policy == names[0]
    assert found.best in list(found)
    assert [entry["policy"] for entry in found.to_dict()["policies"]] == names
    assert list(found.to_pandas().index) == names
    assert found._repr_html_().startswith("<table>")
    assert found.plot().get_xlabel()
    assert "\n" not in repr(found)
    with pytest.raises(OptschedError, match="policy 'nothing' did not run: "):
        _ = found["nothing"]


FIELDS = {
    "steps": (StepComparison, {"bounds", "goodput", "incomplete", "objective", "rough"}),
    "clock": (ClockComparison, {"bounds", "goodput", "objective", "rough", "turns", "warm_up"}),
    "cluster": (ClusterComparison, {"warm_up"}),
}


@pytest.mark.parametrize("kind", WHERE)
def test_each_world_has_a_result_with_fields_of_its_own(kind):
    options, names = WHERE[kind]
    found = compare(REQUESTS, names, **options)
    shared = {"runs_by_policy", "seconds", "settings"}
    assert (type(found), {field.name for field in fields(found)} - shared) == FIELDS[kind]
    assert (found.clock is None, found.cluster is None) == (kind != "clock", kind != "cluster")
    assert found.timed == (kind == "clock")
    assert (found.bound is None) == (found.gap(names[0]) is None) == (kind == "cluster")
    assert repr(found).startswith("<Cluster" if kind == "cluster" else "<Comparison of ")


@pytest.mark.parametrize("kind", WHERE)
def test_one_policy_needs_no_list(kind):
    options, names = WHERE[kind]
    assert compare(REQUESTS, names[0], **options).policies == names[:1]


def test_gaps_are_shares_by_name_run_or_schedule():
    found = compare(REQUESTS, ["area", "mc-sf"])
    latency = found["area"].total_latency
    gap = (latency - found.bound.value) / latency
    assert found.gap("area") == found.gap(found["area"]) == gap
    assert found.gap(found["area"].schedule) == gap


WRONG = {
    "compare has no option 'seps': did you mean 'steps'?": {"seps": 3},
    "until is 3, but only runs on a clock can be stopped": {"until": 3},
    "warm_up is 3, but is for runs on a clock or a cluster": {"warm_up": 3},
    "bound is for one worker": {"cluster": Cluster(1, 1), "bound": bound(REQUESTS, "closed-form")},
    "reveal is for a run on a cluster": {"clock": "unit", "reveal": 3},
    "intervals is for one worker; leave it or the cluster out": {
        "cluster": Cluster(1, 1),
        "intervals": "exact",
    },
    "compare has no workers or router: optsched.routing_loss compares routers": {"workers": 8},
    "a router chooses among several workers": {"router": "jsq"},
    "rule is for one worker": {"cluster": Cluster(1, 1), "rule": "skip"},
}


@pytest.mark.parametrize("clock", [None, "unit"])
def test_beliefs_are_for_those_policies_that_ask(clock):
    known = {"intervals": "common:1,999", **({} if clock is None else {"clock": clock})}
    found = compare(REQUESTS, ["a-min", "area-chance"], beliefs=REQUESTS, **known)
    alone = run(REQUESTS, "area-chance", beliefs=REQUESTS, **known)
    assert found["area-chance"].total_latency == alone.total_latency
    assert found["a-min"].total_latency == run(REQUESTS, "a-min", **known).total_latency


@pytest.mark.parametrize("sentence", WRONG)
def test_what_cannot_be_compared_is_one_sentence(sentence):
    with pytest.raises(OptschedError) as error:
        compare(REQUESTS, **WRONG[sentence])
    assert sentence in str(error.value)


def test_what_is_no_instance_is_refused():
    with pytest.raises(OptschedError, match="one of the instances is 3, but must be an Instance"):
        compare([REQUESTS, 3], "area")


@pytest.mark.parametrize("kind", ["steps", "clock"])
@pytest.mark.parametrize("column", ["deadlines", "weights"])
def test_a_key_may_read_any_column_of_the_requests(column, kind):
    values = REQUESTS.arrivals + 3 * REQUESTS.outputs
    own = PriorityPolicy("own", "", lambda given: getattr(given, column))
    found = compare(REQUESTS.replace(**{column: values}), [own], **WHERE[kind][0])
    assert found.policies == ["own"]


@pytest.mark.parametrize("kind", WHERE)
def test_policies_of_ours_have_nothing_to_load_when_they_are_timed(kind, monkeypatch):
    """The first had carried 30 to 150 ms; a policy of one's own sees no other requests."""
    options, names = WHERE[kind]
    seen = []

    def noted(instance, policy, *rest, **more):
        seen.append((instance is REQUESTS, policy.name))
        return run(instance, policy, *rest, **more)

    monkeypatch.setattr(comparing, "run", noted)
    monkeypatch.setattr(comparing, "_LOADED", set())
    expected = [(timed, name) for name in names for timed in (False, True)]
    own = PriorityPolicy("mine", "", lambda instance: instance.arrivals)
    chosen = names if kind == "cluster" else [*names, own]
    compare(REQUESTS, chosen, **options)
    assert seen == expected + [(True, "mine")] * (kind != "cluster")
    seen.clear()
    compare(REQUESTS, names, **options)
    assert seen == [(True, name) for name in names]


def test_forecasts_stand_beside_a_policy_told_outputs_only_where_it_can_be_told_less():
    requests = family("uniform", n=30, load=1.2, seed=1)
    found = compare(requests, ["a-max", "area-posterior"], intervals="exact")
    best = found.best.policy
    again = run(rough_forecasts(requests), best, intervals="column")
    said = found.to_dict()["with_rough_forecasts"]
    assert (said["policy"], said["log_error"]) == (best, 0.5)
    assert said["mean_latency"] == [found.best.mean_latency, again.mean_latency]
    assert said["p99_latency"][1] == np.percentile(again.latencies, 99)
    assert again.mean_latency > found.best.mean_latency
    assert f"with rough forecasts (log-error 0.5) {best} has" in found.headline[0]
    for policies, more in (("mc-sf,area", {}), ("a-max", {"intervals": "classes:10"})):
        assert compare(requests, policies.split(","), **more).with_rough_forecasts is None
