"""The verb run: one family of results, and one sentence for what it cannot do."""

import pytest

import optsched
from optsched import Cluster, Instance, OptschedError, family, run
from optsched.problem.execution import Run
from optsched.problem.schedule import Violation

REQUESTS = family("uniform", n=30, seed=1, load=0.9, seconds_per_step=0.1)
RUNS = {
    "steps": lambda: run(REQUESTS, "area"),
    "preempting": lambda: run(REQUESTS, "a-min", intervals="common:1,50"),
    "clock": lambda: run(REQUESTS, "mixed", clock="affine:0.01,0.001"),
    "cluster": lambda: run(REQUESTS, "lpt", cluster=Cluster(2, 4)),
}


@pytest.mark.parametrize("kind", RUNS)
def test_one_name_means_one_thing_of_one_type(kind):
    found = RUNS[kind]()
    assert isinstance(found, Run)
    assert isinstance(found.policy, str)
    assert isinstance(found.preemptions, int)
    assert found.unfinished == 0
    assert found.unit == ("steps" if kind in ("steps", "preempting") else "s")
    assert (found.clock is None) == (kind != "clock")
    assert found.total_latency == pytest.approx(len(REQUESTS) * found.mean_latency)
    assert 0 < found.mean_latency < found.makespan
    assert found.check() == []
    assert found.to_dict() == found.metrics()
    assert "\n" not in repr(found)
    assert found.plot().get_xlabel()


@pytest.mark.parametrize("kind", ["clock", "cluster"])
def test_seconds_have_no_schedule(kind):
    with pytest.raises(OptschedError, match="counts in s, so it has no schedule of start steps"):
        _ = RUNS[kind]().schedule


def test_violations_on_a_cluster_are_found():
    found = run(Instance([1, 1, 1], [2, 2, 2], 99), "fcfs", cluster=Cluster(1, 1))
    assert found.check() == []
    found.starts[1] = found.starts[0]
    wrong = found.check()
    assert [each.kind for each in wrong] == ["slots", "slots"]
    assert all(isinstance(each, Violation) for each in wrong)
    assert str(wrong[0]) == "worker 0 runs 2 requests at step 0, in 1 slots"


WRONG = {
    "run takes one policy, but got 2; compare(instance, policies) runs several": (["a", "b"], {}),
    "unknown policy 'aera': did you mean 'area'?": ("aera", {}),
    "run has no option 'speed': ": ("area", {"speed": 3}),
    "reveal is for a run on a cluster; give cluster=Cluster(...) too": ("area", {"reveal": 3}),
    "clock is for one worker; leave it or the cluster out": (
        "lpt",
        {"cluster": Cluster(1, 1), "clock": "unit"},
    ),
    "rule is for one worker; leave it or the cluster out": (
        "lpt",
        {"cluster": Cluster(1, 1), "rule": "skip"},
    ),
    "run has no option 'seps': did you mean": ("lpt", {"cluster": Cluster(1, 1), "seps": 3}),
    "until is 3, but only runs on a clock can be stopped": ("area", {"until": 3}),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_what_cannot_be_run_is_one_sentence(sentence):
    policy, options = WRONG[sentence]
    with pytest.raises(OptschedError) as error:
        run(REQUESTS, policy, **options)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_misspelt_name_of_the_package_gets_the_nearest():
    with pytest.raises(AttributeError, match="optsched has no 'instnce': did you mean"):
        _ = optsched.instnce
    with pytest.raises(AttributeError, match=r"optsched has no 'xyzzy'; dir.optsched. lists"):
        _ = optsched.xyzzy
    assert optsched.simulate.cluster.ROUTINGS
