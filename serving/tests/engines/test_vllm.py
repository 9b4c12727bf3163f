"""vLLM's scheduler: the kernel, its literal twin, and what vLLM itself did."""

import json
from dataclasses import replace
from fractions import Fraction

import literal_vllm
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled
from vllm_runs import CLOCK, bounds, kernel_run, same, twin_run

import optsched
from optsched import Beliefs, Instance
from optsched.clock import LinearClock
from optsched.errors import PolicyError
from optsched.policies import VllmPolicy, get_policy
from optsched_serving.engines import vllm

CASES = 48


@pytest.fixture(scope="module")
def recorded(shared_data):
    engines = shared_data / "engines"
    found = json.loads((engines / "vllm_batches.json").read_text(encoding="utf-8"))
    with np.load(engines / "vllm_batches.npz") as arrays:
        return found, dict(arrays)


def recorded_case(recorded, number):
    """Return settings, requests, clock and what vLLM did."""
    found, arrays = recorded
    case = dict(found["cases"][number])
    requests = [
        (r["prompt_tokens"], r["output_tokens"], round(r["arrival_s"] * 1e6), r["priority"])
        for r in case.pop("requests")
    ]
    names = ("rows", "content", "span", "first", "last")
    did = {name: arrays[f"{name}{number}"] for name in names}
    return case, requests, LinearClock("recorded", *found["clock"]), did


@pytest.mark.parametrize("number", range(CASES))
def test_batches_are_those_that_vllm_itself_formed(recorded, number):
    case, requests, clock, did = recorded_case(recorded, number)
    twin = twin_run(requests, case, clock)
    contents = [
        sorted([r.index, before, tokens] for r, before, tokens, _ in batch.parts)
        for batch in twin.batches
    ]
    assert [part for batch in contents for part in batch] == did["content"].tolist()
    run, order = kernel_run(requests, case, clock)
    assert same(run, order, twin)
    assert run.statistics.tolist() == did["rows"].tolist()
    assert np.abs(run.log.spans - did["span"]).max() < 1e-9
    assert np.abs(run.first_tokens - did["first"][order]).max() < 1e-9
    assert np.abs(run.completions - did["last"][order]).max() < 1e-9


@st.composite
def cases(draw):
    """Settings and requests under which memory is short now and then."""
    size = draw(st.sampled_from([1, 2, 4, 16]))
    blocks = draw(st.integers(4, 24))
    seqs = draw(st.integers(1, 8))
    case = {
        "num_gpu_blocks": blocks,
        "block_size": size,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": draw(st.integers(seqs, 5 * size + seqs)),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.1, 0.3])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "async_scheduling": draw(st.booleans()),
        "version": draw(st.sampled_from(["0.32", "0.33"])),
    }
    most = (blocks - 1) * size + 1
    requests = []
    for _ in range(draw(st.integers(1, 14))):
        output = draw(st.integers(1, min(30, most - 1)))
        prompt = draw(st.integers(1, min(4 * size + 6, most - output)))
        tick = draw(st.sampled_from([0, 0, 50_000, 120_001, 900_000, 2_000_000]))
        requests.append((prompt, output, tick, draw(st.integers(0, 2))))
    return case, requests


@examples(300)
@given(cases(), st.sampled_from([np.inf, np.inf, 0.3, 1.0]))
def test_the_kernel_equals_the_literal_scheduler(drawn, until):
    case, requests = drawn
    run, order = kernel_run(requests, case, CLOCK, until)
    assert same(run, order, twin_run(requests, case, CLOCK, until))
    assert run.check() == []
    assert until < np.inf or run.unfinished == 0


ORDERS = {
    "vllm+plan": None,
    "vllm:area": lambda prompt, left, _: prompt * left + left * (left + 1) / 2,
    "vllm:mc-sf+plan": lambda prompt, left, _: left,
    "vllm:area+plan": lambda prompt, left, _: prompt * left + left * (left + 1) / 2,
}


@examples(200)
@given(
    cases(),
    st.sampled_from(sorted(ORDERS)),
    st.sampled_from([(0, 0), (0, 3), (5, 5), (30, 2), (2, 30)]),
)
def test_orders_and_plans_equal_the_literal_scheduler(drawn, name, widths):
    case, requests = drawn
    key = ORDERS[name]
    case = case | {"policy": "fcfs" if key is None else "priority"}
    memory = (case["num_gpu_blocks"] - 1) * case["block_size"]
    memory = max(memory, *(prompt + output for prompt, output, *_ in requests))
    known = literal_vllm.Foresight(*bounds(requests, widths, memory), key, "plan" in name)
    run, order = kernel_run(requests, case, CLOCK, name=name, widths=widths)
    twin = twin_run(requests, case, CLOCK, scheduler=literal_vllm.with_foresight(known))
    assert same(run, order, twin)
    assert run.check() == []
    assert run.unfinished == 0


@examples(100)
@given(
    cases(),
    st.sampled_from(["vllm+plan", "vllm:mc-sf+plan", "vllm:area+plan", "vllm:area"]),
    st.sampled_from([(0, 3), (5, 5), (30, 30)]),
    st.sampled_from([0.0, 1.0, 2.5]),
    st.integers(0, 2**31),
)
def test_plans_by_beliefs_equal_the_literal_scheduler(drawn, name, widths, deviations, seed):
    case, requests = drawn
    key = ORDERS[name]
    case = case | {"policy": "fcfs" if key is None else "priority"}
    memory = (case["num_gpu_blocks"] - 1) * case["block_size"]
    memory = max(memory, *(prompt + output for prompt, output, *_ in requests))
    lower, upper = bounds(requests, widths, memory)
    rng = np.random.default_rng(seed)
    chances, groups = rng.integers(1, 9, (2, max(upper))), rng.integers(0, 2, len(requests))
    exact = [[Fraction(int(chance)) for chance in chances[group]] for group in groups]
    known = literal_vllm.Foresight(lower, upper, key, "plan" in name, exact, deviations)
    policy = replace(get_policy(name), deviations=deviations)
    run, order = kernel_run(
        requests, case, CLOCK, name=policy, widths=widths, beliefs=(chances, groups)
    )
    twin = twin_run(requests, case, CLOCK, scheduler=literal_vllm.with_foresight(known))
    assert same(run, order, twin)
    assert run.check() == []
    assert run.unfinished == 0


def test_a_plan_by_beliefs_needs_one_that_does_not_learn():
    requests = Instance([1], [1], 64)
    learning = Beliefs.to_learn([1], 9)
    with pytest.raises(PolicyError, match=r"the belief learns .* which policy .vllm.plan. cannot"):
        optsched.run(requests, "vllm+plan", clock=CLOCK, intervals="common:1,9", beliefs=learning)
    with pytest.raises(PolicyError, match="deviations is nan, but must be a number"):
        replace(get_policy("vllm+plan"), deviations=np.nan)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_plan_with_known_outputs_preempts_nothing(asynchronous):
    requests = optsched.family(
        "chat-and-summaries", n=300, seed=1, rate=1.2, memory=16_496, seconds_per_step=1e-6
    )
    preemptions = {}
    for name in ("vllm", "vllm+plan", "vllm:area", "vllm:area+plan"):
        policy = replace(get_policy(name), async_scheduling=asynchronous)
        preemptions[name] = optsched.run(requests, policy, clock="llama-2-70b-2xa100").preemptions
    assert preemptions["vllm"] > 0 < preemptions["vllm:area"]
    assert preemptions["vllm+plan"] == preemptions["vllm:area+plan"] == 0


def test_what_vllm_does_in_order_of_memory_time_is_what_area_predicts():
    requests = optsched.family(
        "chat-and-summaries", n=300, seed=1, rate=1.2, memory=16_496, seconds_per_step=1e-6
    )
    inside = replace(get_policy("vllm:area+plan"), async_scheduling=False)
    runs = [optsched.run(requests, each, clock="llama-2-70b-2xa100") for each in (inside, "area")]
    assert runs[0].mean_latency == pytest.approx(runs[1].mean_latency, rel=0.02)


@tabled()
def test_unknown_orders_and_rules_are_refused_in_one_sentence(name, words):
    with pytest.raises(PolicyError, match=words):
        get_policy(name)


def test_options_have_the_defaults_and_names_of_vllm():
    policy = get_policy("vllm")
    assert (policy.block_size, policy.max_num_seqs, policy.max_num_batched_tokens) == (
        16,
        256,
        2048,
    )
    assert policy.async_scheduling
    assert policy.scheduler_reserve_full_isl
    assert policy.scheduling_policy == "fcfs"
    assert "0.33.0" in policy.source


@tabled()
def test_options_that_vllm_refuses_are_refused_in_one_sentence(options, words):
    instance = Instance([1, 50], [4, 4], memory=100, labels="ab")
    with pytest.raises(PolicyError, match=words) as error:
        optsched.run(instance, VllmPolicy("mine", "", **options), clock=CLOCK)
    assert "\n" not in str(error.value)


def test_a_request_without_a_prompt_is_refused():
    with pytest.raises(PolicyError, match="request 1 has no prompt"):
        optsched.run(Instance([3, 0], [2, 2], memory=64), "vllm", clock="unit")


def test_the_memory_of_an_instance_is_whole_blocks_of_it():
    instance = Instance([31] * 3, [2] * 3, memory=16 * 5 + 15)
    run = optsched.run(instance, "vllm", clock=CLOCK)
    assert run.statistics[0].tolist() == [2, 62, 2, 3, 1, 0, 2]  # 4 of 5 blocks, 2 of them full
    assert run.peak_memory == 64
    assert run.check() == []


def test_asynchronous_batches_follow_each_other_without_a_gap_and_arrivals_wait_longer():
    clock = LinearClock("one", constant=1.0)
    instance = Instance([4, 4], [3, 3], 64, [0, 1_500_000], seconds_per_step=1e-6)
    later = optsched.run(instance, "vllm", clock=clock)
    at_once = optsched.run(instance, VllmPolicy("sync", "", async_scheduling=False), clock=clock)
    assert at_once.first_tokens.tolist() == [1, 3]
    assert later.first_tokens.tolist() == [1, 4]  # the batch from 2 to 3 was formed at 1
    assert (later.log.spans[1:, 0] == later.log.spans[:-1, 1]).all()


def test_only_vllm_writes_its_batches(tmp_path):
    instance = Instance([4, 40], [3, 3], memory=64)
    optsched.run(instance, "vllm", clock=CLOCK).to_batches(tmp_path / "batches.csv")
    first, *rows = (tmp_path / "batches.csv").read_text().splitlines()
    counts = "requests,tokens,running,waiting,free_blocks,preempted,cached_blocks"
    assert first == f"begin_s,end_s,{counts}"
    assert rows[0].endswith("2,44,2,2,0,0,2")
    with pytest.raises(PolicyError, match="only vllm keeps a row per batch"):
        optsched.run(instance, "fcfs", clock=CLOCK).to_batches(tmp_path / "other.csv")


def test_vllm_is_compared_with_its_own_blocks():
    instance = Instance([40, 5], [3, 30], memory=100)
    own = VllmPolicy("own", "", num_gpu_blocks=7)
    compared = optsched.compare(instance, ["vllm", own, "vllm:area+plan"], clock=CLOCK)
    assert [run.unfinished for run in compared.runs] == [0, 0, 0]


@pytest.mark.parametrize("count", [1, 30, 300])
def test_a_run_without_end_is_one_sentence(monkeypatch, count):
    """Requests may preempt each other for ever, in vLLM too, and nothing was said."""
    monkeypatch.setattr(vllm, "run_until", lambda *_: False)  # the log is full again and again
    instance = Instance([40] * count, [30] * count, 80, seconds_per_step=1)
    with pytest.raises(PolicyError, match=r"batches have not served .* tokens: requests preempt"):
        optsched.run(instance, "vllm", clock=CLOCK)
