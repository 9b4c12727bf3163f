"""Engines that share experts wait for each other in every batch: beside a literal simulation."""

import dataclasses

import literal_vllm
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from vllm_runs import policy_of

from optsched import Instance, OptschedError, bound, capacity, run
from optsched.clock import BatchContent, LinearClock
from optsched.models import BalanceProgram, BalanceState
from optsched.policies import get_policy
from optsched.solvers.balance import assign_balanced
from optsched.workloads import Measured
from optsched_serving.calibration import check_clock

OWN = LinearClock("own", constant=0.25, prefill_tokens=0.125, resident_tokens=0.0625)
PART = LinearClock("experts", constant=0.5, decode_requests=0.5, ramps=((4, 0.25),))
CLOCK = OWN.with_shared(PART)


class Client:
    """Holds requests back until few wait on a rank, as ranks reported and it has sent since."""

    def __init__(self, most, age, rule, due):
        self.most, self.age, self.rule, self.due = most, age, rule, due
        self.held, self.sent, self.told = [], {}, []

    def report(self, ranks, done, time):
        self.told.clear()
        for rank, scheduler in enumerate(ranks):
            here = [each for each, to in self.sent.items() if to == rank]
            here = [each for each in here if done.get(each.index, np.inf) > time]
            waits = sum(each in scheduler.waiting for each in here)
            tokens = sum(each.prompt + each.made + each.in_flight for each in here)
            self.told.append([waits, len(here) - waits, tokens])

    def send(self, request, rank, ranks):
        self.held.remove(request)
        self.sent[request] = rank
        self.told[rank][0] += 1
        self.told[rank][2] += request.prompt
        ranks[rank].add(request)

    def act(self, ranks, done, now):
        """Send what it may before a step."""
        if not self.age:
            self.report(ranks, done, now)
        while self.age and self.due <= now:
            self.report(ranks, done, self.due)
            self.due += self.age
        if self.rule == "`bf-io`":
            free = [max(0, self.most - waits) for waits, *_ in self.told]
            prompts = [each.prompt for each in self.held]
            state = BalanceState(np.array(self.told)[:, 2:], free, prompts)
            chosen = assign_balanced(BalanceProgram(state), "swap").answer.worker
            for request, rank in zip(list(self.held), chosen.tolist(), strict=True):
                if rank >= 0:
                    self.send(request, rank, ranks)
        while self.held and min(self.told)[0] < self.most:
            self.send(self.held[0], self.told.index(min(self.told, key=lambda t: t[:2])), ranks)


def served_literally(instance, placement, count, settings, client=None):
    """Return when requests were served on ranks where they are placed, or where a client sends."""
    requests = [
        literal_vllm.Request(at, int(prompt), int(output), float(arrival))
        for at, (prompt, output, arrival) in enumerate(
            zip(instance.prompts, instance.outputs, instance.arrivals, strict=True)
        )
    ]
    ranks = [literal_vllm.Scheduler(settings) for _ in range(count)]
    formed, coming = [[] for _ in ranks], list(requests)
    depth, now, steps, done = 1 + settings.async_scheduling, 0.0, 0, {}
    while len(done) < len(requests):
        while coming and coming[0].arrival <= now:
            request = coming.pop(0)
            if client is None:
                ranks[placement[request.index]].add(request)
            else:
                client.held.append(request)
        if client is not None and now >= requests[0].arrival:
            client.act(ranks, done, now)
        for rank, batches in zip(ranks, formed, strict=True):
            while len(batches) < depth and (rank.running or rank.waiting):
                batch = rank.schedule()
                if batch.parts:
                    batches.append(batch)
                elif batches or not batch.row[-1]:
                    break
        contents = [literal_vllm.content_of(each[0]) for each in formed if each]
        if not contents:
            due = [client.due] if client is not None and client.held else []
            now = min([*due, *(each.arrival for each in coming[:1])])
            continue
        alone = max(CLOCK(each) - PART(each) for each in contents)
        now += alone + PART(BatchContent(*np.sum(contents, axis=0)))
        steps += 1
        for rank, batches in zip(ranks, formed, strict=True):
            if batches:
                rank.update(batches.pop(0), steps)
        done |= {each.index: now for each in requests if each.last == steps}
    return [done[at] for at in range(len(requests))]


@examples(150)
@given(
    st.lists(
        st.tuples(st.integers(1, 12), st.integers(1, 8), st.integers(0, 30)),
        min_size=1,
        max_size=9,
    ),
    st.integers(6, 9),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from(["round-robin", "vllm-dp", "least-tokens"]),
)
def test_ranks_form_the_batches_of_the_literal_schedulers(rows, blocks, count, later, router):
    prompts, outputs, arrivals = np.array(sorted(rows, key=lambda row: row[2])).T
    instance = Instance(prompts, outputs, 4 * blocks, arrivals=arrivals, seconds_per_step=1.0)
    case = {"block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 8}
    case |= {"num_gpu_blocks": blocks + 1, "async_scheduling": later, "policy": "fcfs"}
    found = run(instance, policy_of(case), workers=count, router=router, clock=CLOCK)
    expected = served_literally(instance, found.placement, count, literal_vllm.Settings(**case))
    assert found.completions == pytest.approx(expected, rel=1e-12)
    assert not found.check()


@pytest.mark.parametrize("rule", ["`fcfs`", "`bf-io`"])
def test_a_client_that_binds_late_sends_what_a_literal_one_sends(benchmark, rule):
    ranks, rng = benchmark("ranks"), np.random.default_rng(1)
    for _ in range(60):
        n, blocks, count, most = rng.integers((1, 6, 1, 1), (15, 10, 4, 4)).tolist()
        lengths = rng.integers(1, [[13], [9]], (2, n))
        arrivals = np.sort(rng.integers(0, 31, n))
        instance = Instance(*lengths, 4 * blocks, arrivals=arrivals, seconds_per_step=1.0)
        case = {"block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 8, "policy": "fcfs"}
        case |= {"num_gpu_blocks": blocks + 1, "async_scheduling": bool(rng.integers(2))}
        age = rng.choice([0, 0.5, 6, 40])
        found = ranks.run_late(instance, policy_of(case), CLOCK, count, most, age, rule)
        client, settings = Client(most, age, rule, arrivals[0]), literal_vllm.Settings(**case)
        expected = served_literally(instance, None, count, settings, client)
        assert dict(enumerate(found.placement)) == {r.index: to for r, to in client.sent.items()}
        assert found.completions == pytest.approx(expected, rel=1e-12)
        assert not found.check()


def alike(seed):
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.integers(0, 9, 60))
    lengths = rng.integers(1, 20, (2, 60))
    return Instance(*lengths, 400, arrivals=arrivals, seconds_per_step=1.0)


def test_a_log_of_ranks_is_checked_as_they_ran_and_not_as_others_do():
    instance, policy = alike(1), get_policy("vllm")
    times = run(instance, policy, workers=2, router="vllm-dp", clock=CLOCK).times
    measured = Measured(np.zeros(60), times.ttft, times.latency)
    check = check_clock(CLOCK, instance, measured, policy, workers=2)
    assert (check.verdict, check.error()) == ("holds", 0)
    apart = dataclasses.replace(CLOCK, shared=None)
    assert check_clock(apart, instance, measured, policy, workers=2).verdict == "off"


def test_a_rank_alone_is_an_engine():
    instance = alike(2)
    apart = dataclasses.replace(CLOCK, shared=None)
    for policy in ("vllm", "work", "mixed", "sarathi", "area"):
        times = [run(instance, policy, clock=clock).times for clock in (CLOCK, apart)]
        assert times[0].latency.tolist() == times[1].latency.tolist()
    assert bound(instance, clock=CLOCK).value == bound(instance, clock=apart).value


def test_who_does_not_wait_for_others_is_refused():
    instance, two = alike(3), {"workers": 2, "router": "round-robin"}
    with pytest.raises(OptschedError, match="on clock own workers share experts and wait for each"):
        run(instance, "area", clock=CLOCK, **two)
    for clocks in ([CLOCK, OWN], [OWN, CLOCK]):
        with pytest.raises(OptschedError, match="have one clock; pass that alone"):
            run(instance, "vllm", clock=clocks, **two)
    with pytest.raises(OptschedError, match="clock own is for one number of engines"):
        capacity(instance, "latency:mean<=90s", clock=CLOCK)
