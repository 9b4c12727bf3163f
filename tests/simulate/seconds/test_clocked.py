"""Simulators with a clock against literal ones, event by event."""

import subprocess
import sys

import numpy as np
import pytest
from effort import share
from literal_clocked import admission, engine, requests_of, run, thresholds

import optsched
from optsched.clock import UNIT, FunctionClock, LinearClock, affine, get_clock
from optsched.policies import get_policy
from optsched.policies.base import window_of
from optsched.policies.wait import TypeQueues
from optsched.simulate.seconds import serving
from optsched.simulate.seconds.batches import EngineRequests, admit_on_clock
from optsched.simulate.seconds.serving import CHUNKED, MIXED, MixedLimits, serve, serve_waiting

CLOCKS = [
    UNIT,
    affine(0.01, 0.002),
    LinearClock("all", 0.02, 0.001, 0.003, 0.0005, 0.0001, 0.0002),
    FunctionClock(lambda batch: 0.01 + 0.001 * max(batch.held_tokens, 20)),
    get_clock("llama-2-70b-2xa100"),
]


def draw(rng):
    """Requests that sometimes fit and sometimes do not, with continuous or tied arrivals."""
    count = int(rng.integers(1, 9))
    memory = int(rng.integers(4, 40))
    outputs = rng.integers(1, min(memory, 9) + 1, count)
    prompts = np.array([rng.integers(0, memory - output + 1) for output in outputs])
    if rng.random() < 0.3:
        arrivals = np.sort(rng.integers(0, 4, count) * 1.0)
    else:
        arrivals = np.cumsum(rng.exponential(rng.choice([0.01, 0.1, 2.0]), count))
    return prompts, outputs, arrivals, memory


def assert_same_batches(log, outcome):
    assert len(log.spans) == len(outcome.batches)
    for row, (begin, end, content, usage) in enumerate(outcome.batches):
        assert log.spans[row] == pytest.approx([begin, end], rel=1e-12)
        assert log.contents[row].tolist() == list(content)
        assert log.usage[row] == usage


def ends(log, rows):
    return [None if row < 0 else float(log.spans[row, 1]) for row in rows]


def assert_same_times(log, first, last, outcome):
    assert_same_batches(log, outcome)
    requests = outcome.requests
    for mine, literal in (
        (ends(log, first), [r.first for r in requests]),
        (ends(log, last), [r.last for r in requests]),
    ):
        assert mine == [None if time is None else pytest.approx(time) for time in literal]


@pytest.mark.parametrize("limits", [(1, 1), (np.inf, 99), (1.6, 128), (1.4, 3), (2.5, 2)])
def test_admission_agrees_with_the_literal_simulator(limits):
    rng = np.random.default_rng(1)
    for case in range(share(150)):
        prompts, outputs, arrivals, memory = draw(rng)
        clock = CLOCKS[case % len(CLOCKS)]
        priority = rng.permutation(len(prompts))
        until = np.inf if rng.random() < 0.7 else float(arrivals.mean())
        starts, log = admit_on_clock(
            EngineRequests(prompts, arrivals, outputs, memory),
            priority,
            clock,
            limits=(float(limits[0]), limits[1]),
            until=until,
        )
        requests = requests_of(prompts, outputs, arrivals)
        outcome = run(requests, clock, admission(requests, memory, priority, *limits), until)
        last = np.where(starts < 0, -1, starts + outputs - 1)
        last[last >= len(log.spans)] = -1
        first = np.where(starts < len(log.spans), starts, -1)
        assert_same_times(log, first, last, outcome)


@pytest.mark.parametrize(
    "policy",
    ["fcfs", "mc-sf", "area", "sorted-f", "area+skip", "area+window", "mc-sf+window:1.2,9"],
)
def test_the_unit_clock_gives_the_schedule_in_steps(policy):
    for seed in range(share(25)):
        instance = optsched.family("mixed", n=30, seed=seed, memory=100, rate=0.3)
        chosen = get_policy(policy)
        arrivals = instance.arrivals * 1.0
        requests = EngineRequests(instance.prompts, arrivals, instance.outputs, instance.memory)
        of = chosen.selector if policy == "sorted-f" else chosen.order
        limits = window_of(chosen.rule)
        starts, log = admit_on_clock(requests, of(instance), UNIT, limits=limits)
        assert np.array_equal(log.spans[starts, 0], optsched.run(instance, policy).schedule.starts)


@pytest.mark.parametrize(
    ("how", "name"),
    [(MIXED, "mixed"), (serving.PREFILL_FIRST, "prefill first"), (CHUNKED, "chunked")],
)
def test_engines_agree_with_the_literal_simulator(how, name):
    rng = np.random.default_rng(2)
    returned = 0
    for case in range(share(150)):
        prompts, outputs, arrivals, memory = draw(rng)
        clock = CLOCKS[case % len(CLOCKS)]
        most = int(rng.integers(1, 6))
        tokens = int(rng.integers(most, 30))
        block, kept = (int(number) for number in (rng.choice([1, 1, 4]), rng.integers(0, 5)))
        memory = -(-memory // block) * block
        limits = MixedLimits(memory, most, tokens, kept, block)
        state, log = serve(EngineRequests(prompts, arrivals, outputs, memory), clock, how, limits)
        requests = requests_of(prompts, outputs, arrivals)
        outcome = run(requests, clock, engine(requests, memory, name, most, tokens, kept, block))
        assert_same_times(log, state.first, state.last, outcome)
        assert state.preempted.tolist() == [r.returns for r in requests]
        assert state.recomputed.tolist() == [r.lost for r in requests]
        assert log.usage.max() <= memory
        assert (state.last >= 0).all()
        returned += int(state.preempted.sum())
    assert returned > share(150) / 8


def draw_segments(rng, count, longest):
    """Chains of segments: WAIT has several of one, Nested WAIT one of several."""
    before, length, first = [], [], []
    for _ in range(int(rng.integers(1, 4))):
        chain = int(rng.integers(1, 4))
        first.append(len(before))
        for position in range(chain):
            before.append(-1 if position == 0 else len(before) - 1)
            length.append(longest if position == chain - 1 else int(rng.integers(1, 5)))
    entrance = rng.choice(first, count)
    return np.array(before), np.minimum(length, longest), entrance


def test_thresholds_agree_with_the_literal_simulator():
    rng = np.random.default_rng(3)
    returned = 0
    for case in range(share(300)):
        prompts, outputs, arrivals, memory = draw(rng)
        clock = CLOCKS[case % len(CLOCKS)]
        before, length, entrance = draw_segments(rng, len(prompts), int(outputs.max()))
        levels = rng.integers(1, 4, (2, len(before)))
        if rng.random() < 0.7:
            levels[1] = levels[0]
        changes = np.array([0.0, float(arrivals.mean())])
        queues = TypeQueues(entrance, before, length, changes, levels)
        state, log = serve_waiting(
            EngineRequests(prompts, arrivals, outputs, memory), clock, queues
        )
        requests = requests_of(prompts, outputs, arrivals)
        decide = thresholds(
            requests,
            memory,
            entrance.tolist(),
            before.tolist(),
            length.tolist(),
            lambda now, levels=levels, change=changes[1]: levels[int(now >= change)].tolist(),
        )
        outcome = run(requests, clock, decide)
        assert_same_times(log, state.first, state.last, outcome)
        assert state.preempted.tolist() == [r.returns for r in requests]
        assert state.lost.tolist() == [r.lost for r in requests]
        assert (state.last >= 0).all()
        returned += int(state.preempted.sum())
    assert returned > share(300) / 15


def test_the_example_of_nested_wait():
    """Figure 6 of Ao et al.: both thresholds 3; requests 1, 2, 4 and 9 need one step."""
    arrivals = np.array([0, 0, 1, 5, 5, 7, 7, 11, 14, 14], dtype=float)
    outputs = np.array([1, 1, 2, 1, 2, 3, 2, 2, 1, 2])
    prompts = np.ones(10, dtype=np.int64)
    queues = TypeQueues(
        entrance=np.zeros(10, dtype=np.int64),
        before=np.array([-1, 0]),
        length=np.array([1, 3]),
        changes=np.zeros(1),
        thresholds=np.array([[3, 3]]),
    )
    state, log = serve_waiting(
        EngineRequests(prompts, arrivals, outputs, 100), UNIT, queues, until=15
    )
    assert log.spans[:, 0].tolist() == [1, 7, 14]
    served = {row: (np.flatnonzero(state.last == row) + 1).tolist() for row in range(3)}
    assert served == {0: [1, 2], 1: [4], 2: [3, 5, 9]}


CALLED_BACK = """
import os, random, signal, threading
from optsched import family, run
from optsched.clock import FunctionClock

instance = family("chat", n=2000, seed=1, rate=50, seconds_per_step=1)
clock = FunctionClock(lambda batch: 0.001 + 1e-6 * batch.resident_tokens)
run(instance, "fcfs", clock=clock)
heard = 0
for number in range(60):
    thread = threading.Timer(random.Random(number).uniform(0.01, 0.1), os.kill, (os.getpid(), 2))
    try:
        thread.start()
        while True:
            run(instance, "fcfs", clock=clock)
    except KeyboardInterrupt:
        heard += 1
    thread.join()
print(heard)
"""


@pytest.mark.slow
def test_ctrl_c_on_the_way_into_a_function_that_a_kernel_calls_is_not_lost():
    """Python said that it ignored an exception, and the run went on to its end."""
    code = [sys.executable, "-c", CALLED_BACK]
    done = subprocess.run(code, capture_output=True, text=True, check=True, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("60", "")
