"""Due dates at a price, late requests, and limits that do not bind: `solve` against brute force."""

from dataclasses import replace

import numpy as np
import pytest
from effort import examples
from exact_costs import Question
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances

from optsched import (
    Instance,
    OptschedError,
    SolveParams,
    family,
    read_certificate,
    run,
    solve,
    verify,
)
from optsched.errors import CertificateError
from optsched.models import EventProgram, HindsightProgram
from optsched.problem.workers import Workers

LATENESS = ("per-step", "per-request")
OBJECTIVES = ("total-latency", "weighted-latency", "makespan", "late-requests")


@st.composite
def due(draw):
    """Draw an instance with due dates, some of which cannot be met, and what lateness costs."""
    instance = draw(instances(max_requests=4, max_memory=9, max_arrival=3, max_output=4))
    count = len(instance)
    slack = draw(st.lists(st.integers(-2, 6), min_size=count, max_size=count))
    ends = np.maximum(instance.arrivals + instance.outputs + slack, 1)
    weights = draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=count, max_size=count))
    instance = instance.replace(deadlines=ends, weights=draw(st.sampled_from([None, weights])))
    objective = draw(st.sampled_from(OBJECTIVES))
    if objective == "late-requests":
        return instance, objective, SolveParams()
    lateness, penalty = draw(st.sampled_from(LATENESS)), draw(st.sampled_from([0.5, 4.0]))
    return instance, objective, SolveParams(lateness=lateness, penalty=penalty)


@pytest.mark.few
@given(due(), st.sampled_from(["auto", "highs", "cp-sat", "search"]), st.booleans())
@examples(60)
def test_lateness_has_the_optimum_of_brute_force(asked, method, several):
    instance, objective, params = asked
    workers = Workers([instance.memory, instance.memory + 1]) if several else None
    how = {"objective": objective, "method": method, "workers": workers}
    if method == "search":
        how["time_limit"], params = None, replace(params, work=0.005)
    found = solve(instance, params=params, **how)
    memories = workers.memories if several else None
    question = Question(instance, objective, params.lateness, params.penalty, memories=memories)
    schedule, least = found.schedule, question.least()
    cost = question.cost(schedule.starts.tolist(), schedule.placement.tolist())
    assert found.objective == cost >= least
    assert found.bound <= least
    assert method == "search" or found.proven_optimal
    for proof in (found.certificate, None if several else found.price_certificate):
        if proof is not None:
            assert verify(proof, instance, workers) <= least
            assert read_certificate(proof.to_json()) == proof


@pytest.mark.few
@given(due(), st.data())
@examples(60)
def test_no_changed_certificate_proves_more_than_is_true(asked, data):
    instance, objective, params = asked
    if objective == "makespan":
        objective = "total-latency"
    found = solve(
        instance,
        objective=objective,
        method="search",
        time_limit=None,
        params=replace(params, work=0.002),
    )
    proof = found.price_certificate
    prices = data.draw(
        st.lists(st.integers(0, 2 * proof.denominator), max_size=len(proof.prices) + 2)
    )
    changed = replace(proof, prices=tuple(prices), value=proof.value + 1)
    lateness = (params.lateness, params.penalty)
    assert verify(changed, instance) <= Question(instance, objective, *lateness).least()
    if objective != "late-requests":
        with pytest.raises(CertificateError, match="penalty is"):
            replace(proof, penalty=-1.0)
        with pytest.raises(CertificateError, match="lateness is 'late', but must be"):
            replace(proof, lateness="late")


def test_a_certificate_of_lateness_needs_deadlines_and_its_own_penalty():
    instance = Instance([1, 1], [2, 2], memory=3, deadlines=[2, 2])
    found = solve(instance, params=SolveParams(lateness="per-request", penalty=5.0))
    assert found.objective == 2 + 4 + 5
    proof = found.price_certificate
    assert (proof.lateness, proof.penalty) == ("per-request", 5.0)
    bare = Instance([1, 1], [2, 2], memory=3)
    with pytest.raises(CertificateError, match="the certificate is of late requests; none has"):
        verify(replace(proof, fingerprint=bare.fingerprint), bare)


@pytest.mark.parametrize("limit", ["deadlines", "horizon", "per-step"])
def test_a_limit_that_does_not_bind_makes_no_answer_worse(limit):
    instance = family("uniform", n=60, seed=3, load=1.1)
    far, how = 10**6, SolveParams(work=0.2)
    free = solve(instance, method="search", time_limit=None, params=how)
    limited = instance if limit == "horizon" else instance.replace(deadlines=np.full(60, far))
    if limit == "horizon":
        how = replace(how, horizon=far)
    elif limit == "per-step":
        how = replace(how, lateness="per-step", penalty=9.0)
    found = solve(limited, method="search", time_limit=None, params=how)
    assert found.objective <= free.objective
    assert found.bound >= free.bound
    if found.certificate is not None:
        assert verify(found.certificate, limited) >= found.bound - 1


def test_a_price_on_lateness_finds_schedules_that_no_policy_does():
    instance = family("uniform", n=50, seed=31, load=1.1)
    tight = instance.replace(deadlines=instance.arrivals + 5 * instance.outputs + 30)
    found = solve(tight, method="search", time_limit=None, params=SolveParams(work=4))
    assert not found.schedule.check()
    assert found.schedule.policy == "search"
    assert found.objective < 3862  # which CP-SAT finds in ten seconds


def test_late_requests_are_counted_by_weight():
    instance = Instance([1, 1, 1], [2, 2, 2], memory=3, deadlines=[2, 2, 4], weights=[1, 3, 1])
    found = solve(instance, objective="late-requests")
    assert (found.objective, found.proven_optimal) == (1.0, True)
    assert found.schedule.starts[1] == 0
    assert found.minimised == "late-requests"
    program = EventProgram(instance, "late-requests")
    assert (
        solve(program).objective
        == solve(HindsightProgram(instance, objective="late-requests")).objective
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"objective": "late-requests"}, "the requests have no deadlines; add them"),
        ({"params": SolveParams(lateness="per-step", penalty=1.0)}, "have no deadlines; add them"),
    ],
)
def test_what_has_no_deadlines_cannot_be_late(given, why):
    with pytest.raises(OptschedError, match=why):
        solve(Instance([1], [1], memory=2), **given)
    with pytest.raises(OptschedError, match=why):
        solve(Instance([1], [1], memory=2), workers=2, **given)


def test_late_requests_have_their_own_price():
    due = Instance([1], [1], memory=2, deadlines=[1])
    with pytest.raises(OptschedError, match="the objective late-requests has its own price"):
        solve(due, objective="late-requests", params=SolveParams(lateness="per-step", penalty=1.0))


def test_a_policy_is_late_by_as_much_as_it_is():
    instance = Instance([1, 1], [2, 2], memory=3, deadlines=[2, 3])
    schedule = run(instance, "fcfs").schedule
    program = HindsightProgram(instance, lateness="per-step", penalty=2.0)
    assert program.cost(schedule) == 2 + 4 + 2 * 1
