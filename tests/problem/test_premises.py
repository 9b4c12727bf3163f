"""A claim covers a run only where its premises allow what the run did."""

import json
from dataclasses import replace

import numpy as np
import pytest
from brute_force_clocked import EXACT, drawn, least_latency
from effort import examples
from hypothesis import example, given
from hypothesis import strategies as st
from installed import with_serving

import optsched
from optsched import Instance, Workers, bound, compare, get_clock, read_certificate, run, verify
from optsched.clock import FunctionClock
from optsched.errors import OptschedError, PolicyError
from optsched.policies import get_policy
from optsched.problem.premises import NOWHERE, uncovered
from optsched.problem.work import arrival_times, going_on_from_a_cache

CLOCK = "llama-2-7b-a100"
LATER = "next-batch"


@pytest.fixture(scope="module")
def crowded():
    """Three prompts of 16 fit where tokens are stored later, and two where they are at once."""
    return Instance([16] * 40, [1] * 40, memory=48)


def test_a_bound_found_before_does_not_cover_what_it_knows_nothing_of(crowded):
    tight = bound(crowded, clock=CLOCK, max_num_seqs=2)
    found = compare(crowded, ["fcfs", "vllm-v0"], clock=CLOCK, bound=tight)
    assert [entry["gap"] for entry in found.to_dict()["policies"]] == [None, None]
    assert found.covering("vllm-v0")[1] == "batches may have more than 2 requests"
    two = replace(get_policy("vllm-v0"), max_num_seqs=2)
    assert compare(crowded, two, clock=CLOCK, bound=tight).gap("vllm-v0") >= 0
    with pytest.raises(PolicyError, match="is of another instance"):
        compare(crowded.replace(memory=64), "fcfs", clock=CLOCK, bound=tight)
    with pytest.raises(PolicyError, match="is of another instance"):
        compare(crowded.replace(memory=64), "fcfs", bound=bound(crowded))


def certificates(instance, clock, storage, objective="total-latency"):
    """Yield the bounds of all methods."""
    for method in ("closed-form", "auto"):  # with few requests and a constant, that is prices
        yield bound(instance, method, objective, clock=clock, storage=storage)


@pytest.mark.parametrize("seed", range(28))
def test_no_bound_is_above_the_best_batches_that_store_later(seed):
    instance, clock = drawn(np.random.default_rng(seed), most=2 + seed % 2)
    arrivals = arrival_times(instance, clock).tolist()
    best = least_latency(instance, clock, arrivals, instance.weights, storage=LATER)
    for found in certificates(instance, clock, LATER, "weighted-latency"):
        read = read_certificate(found.certificate.to_json())
        assert read == found.certificate
        assert found.value <= verify(read, instance) <= best + EXACT


def test_storing_later_can_cost_less_than_the_bound_of_the_papers():
    instance, clock = Instance([1, 1], [2, 2], 4, weights=[1, 1]), get_clock("unit")
    at_once, later = (
        (least_latency(instance, clock, [0, 0], storage=s), bound(instance, clock=clock, storage=s))
        for s in ("at-once", LATER)
    )
    assert later[1].value <= later[0] == 4 < at_once[1].value <= at_once[0] == 5


requests = st.lists(
    st.tuples(st.integers(1, 12), st.integers(1, 8), st.integers(0, 20)), min_size=1, max_size=12
)


ENGINES = (*with_serving("vllm", "vllm:area", "vllm:area+plan"), "vllm-v0", "sarathi", "mixed")


@examples(60)
@example([(1, 5, 0), (8, 6, 0)], 20, 4, CLOCK, ENGINES[0])  # one finds its own tokens again
@given(
    requests,
    st.integers(20, 60),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["unit", CLOCK, "affine:0.01,0.002"]),
    st.sampled_from([*ENGINES, "area"]),
)
def test_no_run_is_below_a_bound_that_is_shown_beside_it(rows, memory, block, clock, name):
    prompts, outputs, arrivals = zip(*sorted(rows, key=lambda row: row[2]), strict=True)
    instance = Instance(prompts, outputs, memory, arrivals, seconds_per_step=0.01)
    policy = get_policy(name)
    if hasattr(policy, "block_size"):
        policy = replace(policy, block_size=block)
    try:
        compared = compare(instance, policy, clock=clock)
    except PolicyError:  # a request would never fit in whole blocks
        return
    gap = compared.gap(name)
    assert gap is not None
    assert gap >= 0
    facts, timed = compared[name].facts, get_clock(clock)
    if facts.clock is not None and facts.clock != bound(instance, clock=timed).premises.clock:
        timed = going_on_from_a_cache(timed)  # of which bounds are weaker
    for found in certificates(instance, timed, "at-once"):
        covered = uncovered(found.premises, facts) is None
        assert covered == (facts.storage == "at-once")
        assert (
            not covered
            or verify(found.certificate, instance) <= compared[name].total_latency + EXACT
        )


def test_every_premise_is_compared(crowded):
    instance = crowded.replace(seconds_per_step=0.5)
    facts, claim = run(instance, "fcfs", clock=CLOCK).facts, bound(instance, clock=CLOCK).premises
    assert uncovered(claim, facts) is None
    faster = get_clock(CLOCK)
    faster = replace(faster, constant=faster.constant / 2)
    function = FunctionClock(lambda content: 1.0, "mine")
    several = run(instance, "fcfs", clock=CLOCK, workers=2).facts
    assert uncovered(bound(instance, clock=CLOCK, workers=2).premises, several) is None
    for premises, other, reason in (
        (claim, run(instance, "fcfs", clock=CLOCK, until=0.01).facts, "unfinished"),
        (claim, run(instance, "fcfs", clock=faster).facts, "less time"),
        (claim, run(instance, "fcfs", clock=function).facts, "less time"),
        (claim, run(instance, "fcfs").facts, "counts in steps"),
        (claim, several, "other workers"),
        (replace(claim, preemption="recomputed"), replace(facts, preemption="resumed"), "resumed"),
        (replace(claim, restricted=True), facts, "meet all deadlines"),
        (bound(instance, objective="weighted-latency", clock=CLOCK).premises, facts, "weighted"),
        (NOWHERE, facts, "another instance"),
    ):
        assert reason in uncovered(premises, other)
    few = instance.take(range(4))
    due = optsched.solve(few.replace(deadlines=[90] * 4))
    assert "deadlines" in uncovered(due.premises, run(due.schedule.instance, "fcfs").facts)
    joint, routed = optsched.solve(few, workers=2), run(few, "area", workers=2)
    assert uncovered(joint.premises, routed.facts) is None
    for certificate in (joint.certificate, bound(few, workers=2).certificate):
        if certificate is not None:
            assert uncovered(certificate.premises, routed.facts) is None
    assert "another instance" in uncovered(
        bound(few, workers=Workers([48, 64])).premises, routed.facts
    )


def test_storage_is_asked_for_by_name_and_on_a_clock(crowded):
    with pytest.raises(OptschedError, match="unknown storage 'never': "):
        bound(crowded, clock=CLOCK, storage="never")
    with pytest.raises(OptschedError, match="in steps every policy stores tokens at once"):
        bound(crowded, storage=LATER)
    proof = bound(crowded, clock=CLOCK, storage=LATER).certificate
    content = json.loads(proof.to_json())
    with pytest.raises(OptschedError, match="storage is 'never'"):
        read_certificate(json.dumps(content | {"storage": "never"}))
    old = {key: value for key, value in content.items() if key != "storage"}
    assert read_certificate(json.dumps(old)).storage == "at-once"
