"""vLLM's scheduler with prefix caching: the kernel, its literal twin, and what vLLM itself did."""

import json
from dataclasses import replace
from fractions import Fraction

import literal_prefix
import literal_vllm
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from literal_aging import with_aging
from vllm_runs import CLOCK, policy_of, same

import optsched
from optsched import Beliefs, Instance
from optsched.certificates.on_clock import charged_request
from optsched.clock import BatchContent, LinearClock
from optsched.errors import InstanceError, PolicyError
from optsched.policies import get_policy

CASES = 24


@pytest.fixture(scope="module")
def recorded(shared_data):
    engines = shared_data / "engines"
    found = json.loads((engines / "vllm_prefix_batches.json").read_text(encoding="utf-8"))
    with np.load(engines / "vllm_prefix_batches.npz") as arrays:
        return found, dict(arrays)


def kernel_run(
    requests, case, clock, block=1, until=np.inf, answers=True, *, order=None, plan=False
):
    """Run requests (prompt segments, output segment, tick, priority) in the package.

    Their ids tell of the answers, too, or of the prompts alone.
    """
    rows = sorted(range(len(requests)), key=lambda i: requests[i][2])
    texts = [tokens_of(requests[i]) for i in rows]
    outputs = [requests[i][1][1] for i in rows]
    prompts = [len(text) - output for text, output in zip(texts, outputs, strict=True)]
    known = {}  # ids of beginnings
    ids = [
        [known.setdefault(text[: end + block], len(known)) for end in range(0, len(text), block)]
        for text in (
            texts if answers else [text[:n] for text, n in zip(texts, prompts, strict=True)]
        )
    ]
    instance = Instance(
        prompts,
        outputs,
        max((case["num_gpu_blocks"] - 1) * case["block_size"], max(map(len, texts))),
        [requests[i][2] for i in rows],
        labels=rows,
        seconds_per_step=1e-6,
        priorities=[requests[i][3] for i in rows],
        hash_ids=ids,
        hash_block=block,
    )
    assert Instance.from_json(instance.to_json()) == instance
    policy = policy_of(case)
    if order is not None:
        ordered = get_policy(f"vllm:{order}")
        policy = replace(policy, order=ordered.order, aging=ordered.aging)
    policy = policy.with_options("plan") if plan else policy
    return optsched.run(instance, policy, clock=clock, until=until), rows


def tokens_of(request):
    """Tokens of prompt and output: (segment, place)."""
    segments = [*request[0], request[1]]
    return tuple((segment, place) for segment, length in segments for place in range(length))


def twin_run(requests, case, clock, until=np.inf, scheduler=literal_prefix.Scheduler):
    settings = {name: value for name, value in case.items() if name != "enable_prefix_caching"}
    made = [
        literal_prefix.Request(
            index,
            sum(length for _, length in prompt),
            output[1],
            tick * 1e-6,
            priority,
            tokens=tokens_of((prompt, output)),
        )
        for index, (prompt, output, tick, priority) in enumerate(requests)
    ]
    return literal_vllm.run(made, literal_vllm.Settings(**settings), clock, until, scheduler)


def found_alike(run, rows, twin):
    admissions = [twin.requests[index].admissions for index in rows]
    return run.cached.tolist() == [sum(each) for each in admissions]


@pytest.mark.parametrize("number", range(CASES))
def test_batches_are_those_that_vllm_itself_formed(recorded, number):
    found, did = recorded
    case = dict(found["cases"][number])
    requests = [
        (r["prompt"], r["output"], round(r["arrival_s"] * 1e6), r["priority"])
        for r in case.pop("requests")
    ]
    clock = LinearClock("recorded", *found["clock"])
    twin = twin_run(requests, case, clock)
    contents = [
        sorted([r.index, before, tokens] for r, before, tokens, _ in batch.parts)
        for batch in twin.batches
    ]
    assert [part for batch in contents for part in batch] == did[f"content{number}"].tolist()
    admitted = did[f"admitted{number}"]
    for request in twin.requests:
        cached = admitted[admitted[:, 1] == request.index, 2].tolist()
        assert request.admissions == cached
    run, order = kernel_run(requests, case, clock)
    assert same(run, order, twin)
    assert found_alike(run, order, twin)
    assert run.statistics.tolist() == did[f"rows{number}"].tolist()
    assert len(did[f"preempted{number}"]) == run.preemptions
    assert np.abs(run.log.spans - did[f"span{number}"]).max() < 1e-9
    assert np.abs(run.first_tokens - did[f"first{number}"][order]).max() < 1e-9
    assert np.abs(run.completions - did[f"last{number}"][order]).max() < 1e-9


@st.composite
def cases(draw):
    """Settings and requests that begin alike, under which memory is short now and then."""
    size = draw(st.sampled_from([1, 2, 4]))
    blocks = draw(st.integers(6, 24))
    seqs = draw(st.integers(1, 6))
    case = {
        "num_gpu_blocks": blocks,
        "block_size": size,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": draw(st.integers(seqs, 6 * size + seqs)),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.2])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "async_scheduling": draw(st.booleans()),
        "version": draw(st.sampled_from(["0.32", "0.33"])),
        "enable_prefix_caching": True,
    }
    most = (blocks - 1) * size + 1
    requests = []
    for number in range(draw(st.integers(1, 14))):
        output = draw(st.integers(1, min(20, most - 2)))
        prompt = draw(st.integers(1, min(6 * size, most - output)))
        shared = draw(st.integers(0, prompt))
        streams = draw(st.integers(0, 2)), draw(st.sampled_from([3, 4, 100 + number]))
        segments = [(stream, n) for stream, n in zip(streams, (shared, prompt - shared)) if n]  # noqa: B905
        answer = draw(st.sampled_from([5, 200 + number]))
        tick = draw(st.sampled_from([0, 0, 50_000, 120_001, 900_000, 2_000_000]))
        requests.append((segments, (answer, output), tick, draw(st.integers(0, 2))))
    return case, requests


@examples(200)
@given(cases(), st.sampled_from([np.inf, np.inf, 0.3]))
def test_the_kernel_equals_the_literal_scheduler(drawn, until):
    case, requests = drawn
    run, order = kernel_run(requests, case, CLOCK, until=until)
    twin = twin_run(requests, case, CLOCK, until)
    assert same(run, order, twin)
    assert found_alike(run, order, twin)
    assert run.check() == []
    assert until < np.inf or run.unfinished == 0


@examples(50)
@given(cases(), st.sampled_from([2, 3, 4, 8]))
def test_ids_of_longer_blocks_share_what_is_surely_alike(drawn, block):
    case, requests = drawn
    run, _ = kernel_run(requests, case, CLOCK, block)
    assert run.unfinished == 0
    exact, _ = kernel_run(requests, case, CLOCK)
    # A block of the engine within one with an id is equal where the ids are.
    if block == case["block_size"]:
        assert run.completions.tolist() == exact.completions.tolist()
    assert run.asked.sum() >= run.cached.sum()


@examples(50)
@given(cases(), st.sampled_from([-(2**62), 2**62]))
def test_ids_may_be_any_numbers(drawn, offset):
    case, requests = drawn
    run, _ = kernel_run(requests, case, CLOCK)
    far = run.instance.replace(hash_ids=[ids + offset for ids in run.instance.hash_ids])
    other = optsched.run(far, policy_of(case), clock=CLOCK)
    assert other.completions.tolist() == run.completions.tolist()
    assert other.cached.tolist() == run.cached.tolist()


@examples(100)
@given(cases(), st.lists(st.integers(0, 1), min_size=14, max_size=14))
def test_ids_of_prompts_say_nothing_of_outputs(drawn, streams):
    case, requests = drawn
    length = min(sum(n for _, n in segments) for segments, *_ in requests)
    alike = [
        ([(stream, length)], (200 + number, output[1]), *rest)
        for number, (stream, (_, output, *rest)) in enumerate(zip(streams, requests))  # noqa: B905
    ]
    # An id for a whole prompt, which ends within its block.
    run, order = kernel_run(alike, case, CLOCK, block=64, answers=False)
    twin = twin_run(alike, case, CLOCK)
    assert same(run, order, twin)
    assert found_alike(run, order, twin)


def test_a_bound_says_nothing_of_runs_that_share_tokens():
    shared = [np.arange(60)] * 4
    instance = Instance([60] * 4, [3] * 4, 256, seconds_per_step=1.0, hash_ids=shared, hash_block=1)
    policy = replace(get_policy("vllm"), name="shares", enable_prefix_caching=True)
    apart = replace(policy, name="vllm", enable_prefix_caching=False)
    compared = optsched.compare(instance, [policy, apart], clock="llama-2-7b-a100")
    shares, counts = compared["shares"], compared["vllm"]
    assert shares.hit_rate == 144 / 240  # three times 48 of 60 tokens, in whole blocks
    assert shares.metrics()["cached_tokens"] == shares.cached_tokens == 144
    assert "hit_rate" not in counts.metrics()
    lines = {line["policy"]: line for line in compared.to_dict()["policies"]}
    assert lines["vllm"]["gap"] is not None
    assert lines["shares"]["gap"] is None
    assert "found in a prefix cache" in lines["shares"]["why_no_gap"]


def test_preempted_requests_that_find_their_own_blocks_have_a_bound_of_their_own():
    """The batch that goes on from them costs less than what other bounds charge for its token."""
    instance = Instance([2, 2, 3], [3, 3, 3], 6, seconds_per_step=1.0)
    clock = LinearClock("squares", 0.1, 0.01, 1.0, 0.0, 0.1)
    small = {"block_size": 2, "num_gpu_blocks": 4, "async_scheduling": False}
    policy = replace(get_policy("vllm"), name="finds", enable_prefix_caching=True, **small)
    again = replace(policy, name="computes", enable_prefix_caching=False)
    compared = optsched.compare(instance, [policy, again], clock=clock)
    run = compared["finds"]
    assert run.preemptions > 0
    assert run.cached_tokens > 0
    charged = charged_request(2, 3, 0, Fraction(1), [0.01, 1.0, 0.0, 0.1, 0.0], (0, 0))
    goes_on = [clock(row) - 0.1 for row in map(BatchContent._make, run.log.contents.tolist())]
    assert min(goes_on) < charged.decode  # a chunk of a prompt whose beginning is cached
    lines = {line["policy"]: line for line in compared.to_dict()["policies"]}
    weaker, usual = (compared.covering(name)[0] for name in ("finds", "computes"))
    assert weaker.value < usual.value
    assert weaker.value <= run.total_latency
    assert 0 <= lines["finds"]["gap"] < 1
    assert lines["computes"]["gap"] is not None


@examples(40)
@given(st.data())
def test_bounds_hold_for_requests_that_find_their_own_blocks(data):
    """Each coefficient may be the dear one; memory is short, so that requests are preempted."""
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    lengths = rng.integers(1, 9, (6, 2))
    instance = Instance(*lengths.T, 20, np.sort(rng.integers(0, 9, 6)), seconds_per_step=0.1)
    weights = 10.0 ** rng.integers(-4, 1, 6) * rng.integers(0, 3, 6)
    clock = LinearClock("drawn", 0.01 + weights[0], *weights[1:])
    policy = replace(get_policy("vllm"), block_size=2, num_gpu_blocks=11)
    compared = optsched.compare(instance, [policy], clock=clock)
    bound, why = compared.covering("vllm")
    assert why is None
    assert bound.value <= compared["vllm"].total_latency * (1 + 1e-9)


def test_workers_share_nothing_with_each_other():
    instance = Instance(
        [64] * 6, [3] * 6, 512, range(6), seconds_per_step=1.0, hash_ids=[[1, 2]] * 6, hash_block=32
    )
    policy = replace(get_policy("vllm"), enable_prefix_caching=True)
    one = optsched.run(instance, policy, clock="llama-2-7b-a100")
    three = optsched.run(instance, policy, clock="llama-2-7b-a100", workers=3, router="round-robin")
    assert [one.cached_tokens, *(run.cached_tokens for run in three.runs)] == [240, 48, 48, 48]
    assert three.facts.cached


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hash_ids": [[1]]}, "hash_ids has 1 entries for 2 requests"),
        ({"hash_ids": [[1], [1, 2]], "hash_block": None}, "hash_block is missing"),
        ({"hash_block": 0}, "hash_block is 0, but must be a whole number from 1"),
        ({"hash_ids": [[1] * 4, [1]]}, "request 0: hash_ids has 4 entries, but prompt and output "),
        ({"hash_ids": [1, 2]}, "hash_ids must be a list of numbers"),
    ],
)
def test_ids_that_are_refused(changes, words):
    given = {"hash_ids": [[1], [1, 2]], "hash_block": 4} | changes
    with pytest.raises(InstanceError, match=words):
        Instance([8, 8], [3, 3], 64, **given)


ORDERS = {
    None: (None, None),
    "area": (lambda prompt, left, _: prompt * left + left * (left + 1) / 2, None),
    "mc-sf,0.3": (lambda _, left, __: left, 0.3),
    "mc-sf,load": (lambda _, left, __: left, "load"),
}


@examples(200)
@given(cases(), st.sampled_from(list(ORDERS)))
def test_a_plan_with_a_prefix_cache_counts_different_blocks(drawn, order):
    case, requests = drawn
    case = case | {"policy": "fcfs" if order is None else "priority"}
    requests = [(*request[:3], 0) for request in requests]
    outputs = [output for _, (_, output), *_ in requests]
    key, aging = ORDERS[order]
    known = literal_vllm.Foresight(outputs, outputs, key, plan=True)
    scheduler = literal_vllm.with_foresight(known, literal_prefix.Scheduler)
    scheduler = with_aging(scheduler, aging) if aging else scheduler
    twin = twin_run(requests, case, CLOCK, scheduler=scheduler)
    run, rows = kernel_run(requests, case | {"policy": "fcfs"}, CLOCK, order=order, plan=True)
    assert same(run, rows, twin)
    assert found_alike(run, rows, twin)


def test_a_plan_with_a_prefix_cache_admits_what_shares():
    """It had been refused: each request was to count what all of them share."""
    shared = [np.arange(60)] * 6
    instance = Instance([60] * 6, [8] * 6, 144, seconds_per_step=1.0, hash_ids=shared, hash_block=1)
    sharing = get_policy("vllm+plan")
    alone = replace(sharing, enable_prefix_caching=False)
    runs = [optsched.run(instance, each, clock="llama-2-7b-a100") for each in (alone, sharing)]
    assert [run.statistics[0, 2] for run in runs] == [1, 3]
    assert runs[1].preemptions == 0


def test_a_plan_by_beliefs_with_a_prefix_cache_is_refused():
    ids = [np.arange(8)] * 2
    instance = Instance([8, 8], [3, 3], 64, seconds_per_step=1.0, hash_ids=ids, hash_block=1)
    policy = get_policy("vllm+plan")
    beliefs = Beliefs.around([3, 3], 0.5, 8)
    known = {"intervals": "common:1,8", "beliefs": beliefs}
    with pytest.raises(PolicyError, match="leave the beliefs out, or turn enable_prefix_caching"):
        optsched.run(instance, policy, clock="llama-2-7b-a100", **known)
    alone = instance.replace(hash_ids=None, hash_block=None)  # all blocks are different ones
    optsched.run(alone, policy, clock="llama-2-7b-a100", **known)


def test_orders_that_age_go_by_arrivals_that_the_run_decides():
    chats = optsched.family("conversations", n=30, seed=1, rate=9, seconds_per_step=0.001, pause=1)
    for name in ("vllm:area,0.5", "vllm:area,load"):
        run = optsched.run(chats, name, clock="llama-2-7b-a100")
        again = optsched.run(run.instance, name, clock="llama-2-7b-a100")
        assert run.completions.tolist() == again.completions.tolist()
