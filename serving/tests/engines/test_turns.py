"""Requests that arrive when others have ended: the kernel, its literal twin, frozen arrivals."""

from dataclasses import replace

import literal_vllm
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from vllm_runs import CLOCK, policy_of, same

import optsched
from optsched import Instance, OptschedError
from optsched.policies import get_policy

TURNS = st.tuples(
    st.integers(1, 20),  # prompt
    st.integers(1, 12),  # output
    st.integers(0, 3),  # steps after the arrival before
    st.integers(0, 2),  # priority
    st.integers(-3, 3),  # how far before it the request is that it goes on from
    st.integers(0, 40),  # pause
)


@st.composite
def cases(draw):
    """Settings, a step, and an instance with turns whose memory is short now and then."""
    size = draw(st.sampled_from([1, 2, 4]))
    seqs = draw(st.integers(1, 5))
    case = {
        "num_gpu_blocks": 1 + 32 // size + draw(st.integers(0, 8)),
        "block_size": size,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": draw(st.integers(seqs, 40)),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "async_scheduling": draw(st.booleans()),
    }
    rows = draw(st.lists(TURNS, min_size=1, max_size=14))
    prompts, outputs, later, priorities, back, pauses = np.array(rows).T
    follows = np.arange(len(rows)) - back
    follows[(back < 1) | (follows < 0)] = -1
    instance = Instance(
        prompts,
        outputs,
        (case["num_gpu_blocks"] - 1) * size,
        np.cumsum(later),
        priorities=priorities,
        seconds_per_step=draw(st.sampled_from([1e-6, 0.01, 0.37])),
        follows=follows,
        pauses=pauses,
    )
    return case, instance


def twin_run(instance, case, until):
    step = instance.seconds_per_step
    columns = instance.prompts, instance.outputs, instance.arrivals, instance.priorities
    rows = zip(*(column.tolist() for column in columns), strict=True)
    made = [
        literal_vllm.Request(number, prompt, output, arrival * step, priority, after=after, pause=p)
        for number, ((prompt, output, arrival, priority), after, p) in enumerate(
            zip(rows, instance.follows.tolist(), instance.pauses.tolist(), strict=True)
        )
    ]
    return literal_vllm.run(made, literal_vllm.Settings(**case), CLOCK, until, step=step)


@examples(200)
@given(cases(), st.sampled_from([np.inf, np.inf, 0.4]))
def test_turns_come_when_the_literal_scheduler_lets_them(drawn, until):
    case, instance = drawn
    run = optsched.run(instance, policy_of(case), clock=CLOCK, until=until)
    twin = twin_run(instance, case, until)
    numbers = [int(label) for label in run.instance.labels]
    assert same(run, numbers, twin)
    arrivals = [twin.requests[number].arrival for number in numbers]
    assert np.allclose(run.arrivals, arrivals, rtol=1e-12)
    came = [
        r.index for r in twin.requests if r.after < 0 or twin.requests[r.after].last is not None
    ]
    assert sorted(numbers) == came
    assert run.check() == []


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_of_turns_that_come_at_once_labels_decide_as_in_vllm(policy):
    count = 12  # "10" is before "2"
    follows = np.append(np.full(count, -1), range(count))
    rows = Instance([4] * 24, [2] * 24, 16, follows=follows, seconds_per_step=1.0)
    rows = rows.replace(priorities=[0] * 24, pauses=[0] * count + [99] * count)
    case = {"num_gpu_blocks": 5, "block_size": 4, "max_num_seqs": 1, "policy": policy}
    run = optsched.run(rows, policy_of(case), clock=CLOCK)
    numbers = [int(label) for label in run.instance.labels]
    assert same(run, numbers, twin_run(rows, case, np.inf))
    texts = sorted(map(str, range(count)))
    assert run.instance.labels[:count] == tuple(
        texts if policy == "priority" else map(str, range(count))
    )


@examples(100)
@given(cases())
def test_the_frozen_arrivals_of_a_run_lead_to_the_same_run(drawn):
    case, instance = drawn
    run = optsched.run(instance, policy_of(case), clock=CLOCK)
    assert run.instance.follows is None
    if case["policy"] == "priority":  # of equal priority and arrival labels decide, as text
        assert run.unfinished == 0
    again = optsched.run(run.instance, policy_of(case), clock=CLOCK)
    assert again.log.spans.tolist() == run.log.spans.tolist()
    assert again.completions.tolist() == run.completions.tolist()
    after = dict(zip(run.instance.labels, run.completions, strict=True))
    for number, arrival in zip(map(int, run.instance.labels), run.arrivals, strict=True):
        step, before = instance.seconds_per_step, int(instance.follows[number])
        earliest = int(instance.arrivals[number])
        if before >= 0:
            ended = after[str(before)] + instance.pauses[number] * step
            earliest = max(earliest, ended / step)
            assert arrival <= max(earliest, ended / step + 1) * step + 1e-9
        assert arrival >= earliest * step - 1e-9
    bound = optsched.bound(run.instance, clock=CLOCK, storage="next-batch")
    assert bound.value <= run.total_latency


@pytest.fixture(scope="module")
def chats():
    return Instance(
        [20, 40, 60, 30],
        [5, 6, 7, 3],
        256,
        [0, 0, 0, 9],
        seconds_per_step=0.01,
        follows=[-1, 0, 1, -1],
    )


@pytest.mark.parametrize(
    ("take", "taker"),
    [
        (lambda chats: optsched.run(chats, "fcfs"), "policy 'fcfs'"),
        (lambda chats: optsched.run(chats, "vllm", clock=CLOCK, workers=2), "a router"),
        (lambda chats: optsched.run(chats, "jsq", cluster=optsched.Cluster(2, 2)), "a cluster"),
        (lambda chats: optsched.compare(chats, ["vllm", "area"], clock=CLOCK), "policy 'area'"),
        (optsched.bound, "bound"),
        (optsched.solve, "solve"),
        (optsched.HindsightProgram, "HindsightProgram"),
        (lambda chats: optsched.Schedule(chats, [0, 1, 2, 3]), "Schedule"),
    ],
)
def test_who_takes_arrivals_as_given_refuses_turns(chats, take, taker):
    with pytest.raises(OptschedError, match="arrive when others have ended, which") as refused:
        take(chats)
    assert f"which {taker} does not allow for; run policy vllm" in str(refused.value)


def test_a_comparison_of_turns_has_no_bound_and_says_why(chats):
    found = optsched.compare(chats, ["vllm", "vllm:area"], clock=CLOCK)
    assert found.bounds == ()
    assert "There is no bound: requests arrive when others have ended" in found.notes[1]
    narrow = replace(get_policy("vllm"), name="one by one", max_num_seqs=1)
    seen = set()
    chats = Instance([20] * 4, [5] * 4, 256, seconds_per_step=0.01, follows=[-1, -1, 0, 1])
    for until in (0.1, 0.2, 0.3, 0.4, 0.5, np.inf):
        stopped = optsched.compare(chats, ["vllm", narrow], clock=CLOCK, until=until)
        one, other = (set(np.array(run.instance.labels)[run.completed]) for run in stopped)
        assert stopped.comparable == (one == other)
        seen.add(stopped.comparable)
    assert seen == {True, False}


def test_turns_are_kept(chats, tmp_path):
    assert Instance.from_json(chats.to_json()) == chats
    assert chats.fingerprint != chats.replace(follows=None).fingerprint
    assert chats.take([0, 1, 3]).follows.tolist() == [-1, 0, -1]
    assert chats.take([1, 2]).follows.tolist() == [-1, 0]
    chats.to_csv(tmp_path / "chats.csv")
    read = optsched.read_trace(tmp_path / "chats.csv", 256, seconds_per_step=0.01)
    assert (read.follows.tolist(), read.arrivals.tolist()) == ([-1, 0, 1, -1], [0, 0, 0, 9])
    assert Instance.from_pandas(chats.to_pandas(), 256).follows.tolist() == [-1, 0, 1, -1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"follows": [-1, 1, 0, 0]},
            "request 1: follows is 1, but must be the number of a request",
        ),
        ({"pauses": [0, -1, 0, 0]}, "request 1: pauses is -1, but must be a number of steps from"),
        ({"follows": None, "pauses": [0] * 4}, "pauses are given without follows"),
    ],
)
def test_turns_that_are_refused(chats, changes, words):
    with pytest.raises(OptschedError, match=words):
        chats.replace(**changes)


def test_turns_need_the_length_of_a_step(chats):
    with pytest.raises(OptschedError, match="say how long a step is"):
        optsched.run(chats.replace(seconds_per_step=None, arrivals=[0] * 4), "vllm", clock=CLOCK)
