"""Orders by due dates: by hand, by their formulas, and refused where there is nothing to go by."""

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import BY_DEADLINE, CLOCKS, DYADIC, instances, with_deadlines
from twins import twin_of

from optsched import Instance, compare, family, run, solve
from optsched.clock import FunctionClock
from optsched.errors import PolicyError
from optsched.policies import BASIC, DecisionPolicy, get_policy

NAMES = sorted(BY_DEADLINE)
RULES = ["prefix", "skip", "window", "backfill"]
#: One at a time: alone they take 2, 6 and 3 steps, and are due at 20, 15 and 16.
THREE = Instance([8, 4, 7], [2, 6, 3], 10, deadlines=[20, 15, 16])


@examples(300)
@given(
    instances(max_requests=9, max_memory=40, max_arrival=20, max_output=12),
    st.sampled_from(NAMES),
    st.sampled_from(CLOCKS[:3]),
    st.sampled_from(RULES),
    st.booleans(),
)
def test_orders_equal_their_literal_twins(instance, name, clock, rule, weighted):
    if rule == "backfill" and (clock is not None or name == "tardiness"):
        rule = "prefix"
    weights = 1 + np.arange(len(instance)) % 3 if weighted else None
    instance = instance.replace(seconds_per_step=0.5, weights=weights)
    instance = with_deadlines(instance, get_policy(name))
    options = {"rule": rule} | ({} if clock is None else {"clock": clock})
    found = run(instance, name, **options)
    twin = twin_of(instance, name, **options)
    assert twin is None or twin.differs(found) == ""


def test_by_hand():
    """Slack 18, 9 and 13; memory-time 19, 45 and 27, of which the mean over the memory is 3.03.

    The costs are 1/19 exp(-18 / 6.07), 1/45 exp(-9 / 6.07) and 1/27 exp(-13 / 6.07): 0.0027,
    0.0050 and 0.0043. After the second, at step 6, of slack 12 and 7 with the mean 2.3: 0.0039 and
    0.0081.
    """
    for name, starts in (("edf", [9, 0, 6]), ("least-slack", [9, 0, 6]), ("tardiness", [9, 0, 6])):
        assert run(THREE, name).schedule.starts.tolist() == starts, name
    soon = THREE.replace(deadlines=[4, 4, 4])  # slack 2, -2 and 1
    assert run(soon, "edf").schedule.starts.tolist() == [0, 2, 8]  # as they came
    assert run(soon, "least-slack").schedule.starts.tolist() == [9, 0, 6]
    assert run(soon, "tardiness").schedule.starts.tolist() == [0, 5, 2]  # the smallest first
    heavy = soon.replace(weights=[1, 5, 1])
    assert run(heavy, "tardiness").schedule.starts.tolist() == [6, 0, 8]


def test_the_cost_changes_while_requests_wait():
    """The one with the least memory-time waits for another while it has time, and then for none."""
    requests = Instance([9, 0, 0], [1, 5, 5], 10, [0, 0, 5], deadlines=[30, 5, 45])
    assert run(requests, "tardiness").schedule.starts.tolist() == [5, 0, 6]
    assert run(requests.replace(deadlines=[30, 5, 10]), "tardiness").schedule.starts[0] == 10
    assert run(requests.replace(deadlines=[1, 5, 10]), "tardiness").schedule.starts[0] == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("clock", [None, DYADIC])
def test_requests_that_are_not_due_are_refused_in_a_sentence(name, clock):
    options = {} if clock is None else {"clock": clock}
    message = f"policy '{name}' goes by deadlines, which the requests do not have in the unit of"
    with pytest.raises(PolicyError, match=message):
        run(THREE.replace(deadlines=None), name, **options)
    if clock is not None:  # whose seconds nobody knows
        with pytest.raises(PolicyError, match=message):
            run(THREE, name, **options)
    assert run(THREE.replace(seconds_per_step=0.5), name, **options).unfinished == 0


@pytest.mark.parametrize("name", ["least-slack", "tardiness"])
def test_a_clock_that_is_a_function_has_no_slack(name):
    bent = FunctionClock(lambda batch: 1.0 + batch.held_tokens)
    requests = THREE.replace(seconds_per_step=0.5)
    with pytest.raises(PolicyError, match="is a function; use edf, or pass a LinearClock"):
        run(requests, name, clock=bent)
    assert run(requests, "edf", clock=bent).unfinished == 0


def test_on_a_clock_slack_counts_the_seconds_that_a_request_takes_alone():
    """Of two that are due together the one with the long prompt has less time, in steps more."""
    requests = Instance([1, 90], [12, 2], 92, deadlines=[30, 30], seconds_per_step=1.0)
    assert run(requests, "least-slack").schedule.starts.tolist() == [0, 12]
    slow = run(requests, "least-slack", clock="affine:0.1,0.2")
    assert (slow.first_batch[1], slow.first_batch[0]) == (0, 2)


def test_apparent_tardiness_is_told_forecasts_in_the_place_of_outputs():
    """The middle of the bounds says that the first is large, and it is small."""
    requests = Instance([5, 5], [2, 4], 10, deadlines=[3, 3])
    guessed = requests.replace(output_lower=[2, 2], output_upper=[5, 2])
    assert run(guessed, "tardiness").schedule.starts.tolist() == [0, 2]
    found = run(guessed, "tardiness", intervals="column")
    assert found.knows == "forecast"
    assert found.schedule.starts.tolist() == [4, 0]
    with pytest.raises(PolicyError, match="'least-slack' needs the outputs"):
        run(guessed, "least-slack", intervals="column")


def test_a_decision_of_ones_own_sees_deadlines_and_the_clock():
    def latest(state):
        assert state.batch_clock is (DYADIC if timed else state.batch_clock)
        seen.append(state.deadlines.tolist())
        return state.waiting[-1:] if not len(state.running) else []

    requests, seen = THREE.replace(seconds_per_step=0.5), []
    for timed in (False, True):
        policy = DecisionPolicy("latest", "", latest)
        run(requests, policy, **({"clock": DYADIC} if timed else {}))
        assert seen[-1] == ([10.0, 7.5, 8.0] if timed else [20.0, 15.0, 16.0])
    blind = DecisionPolicy("blind", "", lambda state: state.waiting[: state.deadlines is None])
    assert run(THREE, blind, clock=DYADIC).unfinished == 0


def test_compare_runs_edf_by_default_where_requests_are_due():
    plain = family("uniform", n=9, seed=1)
    dated = plain.replace(deadlines=plain.arrivals + 60)
    names = [*BASIC, "alpha-beta-clearing"]
    assert [each.policy for each in compare(plain).schedules] == names
    found = compare(dated)
    assert [each.policy for each in found.schedules] == [*names, "edf"]
    assert found["edf"].metrics()["missed_deadlines"] >= 0
    timed = {"clock": "affine:0.01,0.001"}
    for requests, there in ((dated, False), (dated.replace(seconds_per_step=0.05), True)):
        requests = requests.replace(arrivals=None)
        assert ("edf" in {each.policy for each in compare(requests, **timed)}) == there


def test_solve_begins_with_the_orders_by_due_dates():
    assert solve(THREE.replace(deadlines=[12, 6, 9])).objective == 26
