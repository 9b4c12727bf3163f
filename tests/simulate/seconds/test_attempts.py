"""Policies that preempt, on clocks: compared with the runs in steps and rebuilt logs."""

import numpy as np
import pytest

from optsched import DecisionPolicy, Instance, RunSettings, run
from optsched.clock import BatchContent, FunctionClock, LinearClock, get_clock
from optsched.errors import ClockError, InstanceError, PolicyError
from optsched.simulate.runners import run_decided, run_planned, run_to_threshold
from optsched.simulate.settings import Task

CLOCKS = [
    get_clock("unit"),
    LinearClock("all", 0.02, 0.001, 0.003, 0.0005, 0.0001, 0.0002),
    FunctionClock(lambda batch: 0.01 + 0.001 * max(batch.held_tokens, 20)),
    get_clock("affine:0.01,0.002"),
]
POLICIES = [
    "a-max",
    "a-min",
    "a-min-overcommit",
    "a-l",
    "area-lower",
    "area-posterior",
    "alpha-greedy:0.1",
    "alpha-beta-clearing:0.1,0.3",
    DecisionPolicy("shortest", "", lambda s: s.waiting[np.argsort(s.forecast.upper[s.waiting])]),
]


def named(policy):
    return getattr(policy, "name", policy)


def draw(rng):
    count = int(rng.integers(1, 10))
    memory = int(rng.integers(6, 40))
    outputs = rng.integers(1, min(memory, 9) + 1, count)
    prompts = np.array([rng.integers(0, memory - output + 1) for output in outputs])
    ticks = np.cumsum(rng.integers(0, int(rng.choice([2, 100, 4000])), count))
    return Instance(prompts, outputs, memory, ticks, seconds_per_step=1e-3)


def policy_of(name):
    from optsched.policies import get_policy

    return get_policy(name)


def rebuild(instance, attempts):
    """Contents of all batches, and tokens held, from the attempts alone."""
    contents = np.zeros((len(attempts.log.spans), len(BatchContent._fields)), dtype=np.int64)
    rows = zip(attempts.requests, attempts.starts, attempts.tokens, strict=True)
    for request, start, tokens in rows:
        prompt = int(instance.prompts[request])
        for token in range(tokens):
            row = contents[start + token]
            if token == 0 and prompt:
                row[0] += prompt
                row[3] += prompt**2
            else:
                row[1] += 1
                row[2] += prompt + token
            row[4] += prompt + token + 1
    return contents


ATTEMPTS = {"plan": run_planned, "threshold": run_to_threshold, "decision": run_decided}


def attempts_of(instance, policy, clock, intervals, seed):
    settings = RunSettings(clock=clock, intervals=intervals, seed=seed)
    return ATTEMPTS[policy.needs.kind](Task(instance, policy, settings))


@pytest.mark.parametrize("policy", POLICIES, ids=named)
def test_a_clock_only_moves_the_arrivals(policy):
    """With arrivals moved to the batches they fall before, the run in steps is the same."""
    rng = np.random.default_rng(4)
    chosen = policy_of(policy)
    intervals = None if "alpha" in chosen.name else "relative:0.5"
    for case in range(60):
        instance = draw(rng)
        clock = CLOCKS[case % len(CLOCKS)]
        attempts = attempts_of(instance, chosen, clock, intervals, case)
        assert attempts.log.contents.tolist() == rebuild(instance, attempts).tolist()
        unit = 1.0 if clock.unit == "steps" else instance.seconds_per_step
        begins = attempts.log.spans[:, 0]
        before = np.searchsorted(begins, instance.arrivals * unit, side="left")
        moved = Instance(instance.prompts, instance.outputs, instance.memory, before)
        twin = attempts_of(moved, chosen, CLOCKS[0], intervals, case)
        if attempts.loop is None and attempts.stall is None:
            assert np.array_equal(attempts.requests, twin.requests)
            assert np.array_equal(attempts.starts, twin.starts)
            assert np.array_equal(attempts.tokens, twin.tokens)
        else:
            assert (attempts.loop is None) == (twin.loop is None)


@pytest.mark.parametrize("policy", [*POLICIES, "mc-sf", "sorted-f", "mixed", "sarathi"], ids=named)
def test_runs_are_consistent_and_can_be_stopped(policy):
    rng = np.random.default_rng(5)
    chosen = policy_of(policy)
    known = {"mc-sf", "sorted-f", "mixed", "sarathi"}
    intervals = None if "alpha" in chosen.name or chosen.name in known else "relative:0.5"
    for case in range(40):
        instance = draw(rng)
        clock = CLOCKS[1 + case % (len(CLOCKS) - 1)]
        whole = run(instance, chosen, clock=clock, intervals=intervals, seed=case)
        assert whole.check() == []
        if whole.loop is None and whole.stall is None:
            assert whole.unfinished == 0
            assert whole.metrics()["completed"] == len(instance)
        until = float(rng.uniform(0, max(whole.makespan, 0.01)))
        part = run(instance, chosen, clock=clock, intervals=intervals, seed=case, until=until)
        rows = len(part.log.spans)
        assert part.check() == []
        assert np.array_equal(part.log.spans, whole.log.spans[:rows])
        assert rows == np.searchsorted(whole.log.spans[:, 0], until, side="left")
        done = (whole.last_batch >= 0) & (whole.last_batch < rows)
        assert np.array_equal(part.completed, done)
        assert np.array_equal(part.completions[done], whole.completions[done])


def test_a_loop_on_a_clock_is_told_in_seconds():
    result = run(Instance([0, 0], [6, 6], 10), "alpha-greedy:0.2", clock="affine:0.5,0.1")
    assert result.unfinished == 2
    assert result.loop.requests == (0, 1)
    assert "every 5.5 s" in str(result)  # five batches of 0.5 s that hold 2, 4, ... 10 tokens
    assert result.metrics()["mean_latency"] is None
    stuck = run(Instance([9], [1], 10), "alpha-greedy:0.2", clock="affine:0.5,0.1")
    assert stuck.loop.period == 0
    assert stuck.metrics()["throughput"] == stuck.metrics()["busy"] == 0
    assert "1 unfinished" in str(stuck)


def test_a_stopped_run_lasts_until_it_is_stopped_or_its_last_batch_has_ended():
    instance = Instance([1, 1], [3, 3], 8, arrivals=[0, 50], seconds_per_step=1.0)
    idle = run(instance, "fcfs", clock="affine:1,0", until=20)
    assert (idle.unfinished, idle.makespan, idle.metrics()["throughput"]) == (1, 20, 3 / 20)
    straddling = run(instance, "fcfs", clock="affine:1,0", until=51.5)
    assert (straddling.unfinished, straddling.makespan) == (1, 52)
    nothing = run(instance, "fcfs", clock="affine:1,0", until=0)
    assert (nothing.unfinished, nothing.metrics()["throughput"]) == (2, 0)


def test_steps_of_unknown_length_are_refused():
    instance = Instance([1, 1], [1, 1], 4, arrivals=[0, 3])
    with pytest.raises(InstanceError, match="arrivals count steps, but the clock affine"):
        run(instance, "fcfs", clock="affine:1,1")


def test_a_clock_that_fails_ends_the_run_with_its_own_error():
    def clock(batch):
        return 1.0 if batch.decode_requests else 1 / (batch.prefill_tokens - 5)

    instance = Instance([3, 5], [2, 2], 20)
    for policy in ("fcfs", "mixed", "alpha-greedy"):
        with pytest.raises(ClockError, match="must take a finite time above 0"):
            run(instance, policy, clock=lambda batch: -1.0)
        with pytest.raises(ZeroDivisionError):
            run(Instance([5], [2], 20), policy, clock=clock)


def test_engines_need_a_clock_and_backfill_has_none():
    instance = Instance([1], [1], 4)
    with pytest.raises(PolicyError, match="pass a clock"):
        run(instance, "sarathi")
    with pytest.raises(PolicyError, match="the rule 'backfill' is not offered"):
        run(instance, "area", rule="backfill", clock="unit")
    with pytest.raises(PolicyError, match="only runs on a clock can be stopped"):
        run(instance, "area", until=4)
    with pytest.raises(PolicyError, match="warm-up is 9 steps"):
        run(instance, "area", clock="unit").metrics(warm_up=9)
