"""A new decision policy is one file and one line in the registry; a function may be a policy."""

import inspect

import own_policy
import pytest
from own_policy import CAUTIOUS

import optsched
from optsched import POLICIES, family, run
from optsched.errors import PolicyError

INSTANCE = family("exponential", n=40, seed=1, load=0.9)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Add the policy to the registry: the one line beside its file."""
    monkeypatch.setitem(POLICIES, CAUTIOUS.name, CAUTIOUS)


def test_the_file_of_a_policy_is_short():
    assert len(inspect.getsource(own_policy).splitlines()) <= 60


@pytest.mark.parametrize("intervals", [None, "exact", "relative:0.5", "common:1,60"])
@pytest.mark.parametrize("clock", [None, "unit"])
def test_it_runs_by_its_name_in_steps_and_on_a_clock(intervals, clock):
    found = run(INSTANCE, "cautious", intervals=intervals, clock=clock)
    assert found.policy == "cautious"
    assert found.unfinished == 0
    assert found.check() == []


def test_it_is_compared_and_listed(optsched_json):
    compared = optsched.compare(INSTANCE, ["cautious", "area"])
    assert compared["cautious"].total_latency >= compared.bound.value
    listed = {each["name"]: each for each in optsched_json("policies")}
    assert listed["cautious"] == {
        "name": "cautious",
        "description": CAUTIOUS.description,
        "source": "this test",
    }


def test_the_command_line_knows_it(optsched_json):
    trace = "family:exponential,n=40,load=0.9,seed=1"
    content = optsched_json("simulate", trace, "--policy", "cautious")
    assert content["total_latency"] == run(INSTANCE, CAUTIOUS).total_latency


def test_every_policy_says_what_it_does_and_where_it_comes_from():
    for name, policy in POLICIES.items():
        assert policy.name == name
        assert policy.description
        assert policy.source


def test_a_function_of_an_instance_is_an_order():
    def longest_first(instance):
        """Longest output first."""
        return -instance.outputs

    found = run(INSTANCE, longest_first)
    by_hand = optsched.PriorityPolicy("longest", "", longest_first)
    assert found.policy == "longest_first"
    assert found.schedule.starts.tolist() == run(INSTANCE, by_hand).schedule.starts.tolist()


def test_a_function_of_a_state_is_a_decision():
    found = run(INSTANCE, lambda state: state.waiting[:1] if not len(state.running) else [])
    ends = found.schedule.completions
    assert (found.schedule.starts[1:] >= ends[:-1]).all()


def test_other_functions_and_things_are_refused_in_one_sentence():
    with pytest.raises(PolicyError, match=r"takes .x., but must take one argument: 'state'"):
        run(INSTANCE, lambda x: x)
    with pytest.raises(PolicyError, match=r"3 is no policy: name one, such as 'area'"):
        run(INSTANCE, 3)
