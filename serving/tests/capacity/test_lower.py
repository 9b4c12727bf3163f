"""At least: never more than what brute force needs, and proven by code that shares nothing."""

from dataclasses import replace

import numpy as np
import pytest
from brute_force_capacity import fewest_workers
from brute_force_clocked import drawn, least_latency_of_pool
from effort import examples, share
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from optsched import Instance, Slo, get_clock, read_certificate, run, verify
from optsched.bounds.on_clock import least_work
from optsched.clock import UNIT, BatchContent, LinearClock
from optsched.errors import CertificateError
from optsched.policies import get_policy
from optsched.problem.work import arrival_times, going_on_from_a_cache
from optsched.simulate.settings import settings_of
from optsched_serving.capacity.bounds import at_least, late_alone
from optsched_serving.capacity.capacity import _world as capacity_world
from optsched_serving.capacity.slo import Bounded, Charging, Demand


def objectives(rng, work):
    """Draw objectives near what requests take alone."""
    first = work.first + work.constant
    pace = (work.own - first) / np.maximum(work.decodes, 1)

    def near(values):
        return round(float(values.max() * rng.choice([0.9, 1, 1.1, 1.3, 2])), 6)

    latency, ttft, tpot = near(work.own), near(first), max(1e-3, near(pace))
    part = int(rng.choice([100, 100, 60, 40]))
    texts = [
        [f"latency:p{part}<={latency}"],
        [f"within:ttft<={ttft}&tpot<={tpot}:{part}%"],
        [f"ttft:p{part}<={ttft}"],
        [f"latency:max<={latency}", f"ttft:p{part}<={ttft}"],
        [f"ttft:max<={ttft}", f"within:tpot<={tpot}:{part}%"],
    ]
    return [Slo(text) for text in texts[rng.integers(len(texts))]]


@pytest.mark.no_cover
def test_no_more_workers_are_proven_than_brute_force_needs_on_clocks():
    rng = np.random.default_rng(7)
    proven = 0
    for _ in range(share(150)):
        instance, clock = drawn(rng, 2)
        if rng.random() < 0.3:  # decoding is dear, so that batches must be short
            clock = LinearClock("drawn", float(rng.choice([0.2, 1])), 1.0, 0.3, 0.1)
        storage, most = str(rng.choice(["at-once", "next-batch"])), int(rng.choice([0, 1, 2]))
        world = Bounded(instance, clock, most, storage, timed=True)
        slos = objectives(rng, least_work(instance, clock))
        found = at_least(world, slos)
        goals = [(slo.limits, slo.misses(len(instance))) for slo in slos]
        times = arrival_times(instance, clock).tolist()
        needed = fewest_workers(instance, clock, goals, most or 99, storage, times)
        hopeless = any(late_alone(world, slo)[1] for slo in slos)
        assert not (hopeless and needed)
        assert needed is None or found.workers <= needed
        proven += needed is not None and found.workers == needed > 1
    assert proven > 0


@pytest.mark.no_cover
def test_no_more_workers_are_proven_for_a_mean_than_brute_force_needs():
    rng = np.random.default_rng(2)
    proven = 0
    for _ in range(share(150)):
        instance, clock = drawn(rng, 2)
        if rng.random() < 0.5:  # what requests add to batches is most of them
            clock = LinearClock("drawn", 0.05, *rng.choice([0.3, 1.0], 3).tolist())
        storage = str(rng.choice(["at-once", "next-batch"]))
        world = Bounded(instance, clock, 0, storage, timed=True)
        work, metric = least_work(instance, clock), str(rng.choice(["latency", "ttft"]))
        alone = work.own if metric == "latency" else work.first + work.constant
        limit = round(float(alone.mean() * rng.choice([1.001, 1.01, 1.05, 1.3])) + 1e-6, 6)
        some = instance if metric == "latency" else instance.replace(outputs=[1] * len(instance))
        times = arrival_times(instance, clock).tolist()
        enough = (
            count
            for count in range(1, len(instance) + 1)
            if least_latency_of_pool(some, clock, times, count, storage=storage)
            <= limit * len(instance) * (1 + 1e-9)
        )
        if (needed := next(enough, None)) is None:
            continue
        found = at_least(world, [Slo(f"{metric}:mean<={limit}")])
        assert found.workers <= needed
        proven += found.workers == needed > 1
    assert proven > 0


@pytest.mark.no_cover
@pytest.mark.parametrize("policy", ["vllm", "mixed", "sarathi"])
def test_what_is_demanded_at_the_latencies_of_a_run_took_no_longer_than_the_run(policy):
    rng = np.random.default_rng(4)
    shares = []
    for _ in range(share(250)):
        count, equal = int(rng.integers(2, 40)), rng.random() < 0.5
        prompts, outputs = rng.integers(1, 2000, count), rng.integers(1, 60, count)
        if equal:  # then little is lost by adding up over requests
            prompts[:], outputs[:] = prompts[0], outputs[0]
        arrivals = np.sort(rng.integers(0, int(rng.choice([1, 20, 400])), count))
        instance = Instance(prompts, outputs, 100_000, arrivals, seconds_per_step=0.05)
        numbers = ([0.05, 0.01], [3e-4, 1e-4], [1.8e-4, 1e-3, 1e-5], [2e-7, 0.0], [1e-8, 0.0])
        clock = LinearClock("drawn", *(float(rng.choice(each)) for each in numbers))
        done = run(instance, policy, clock=clock)
        latencies = done.latencies
        slo = Slo(f"latency:mean<={latencies.mean():.9f}")
        demand = Demand(Bounded(instance, clock, 0, "next-batch"), [slo], Charging(0, 16))
        scaled = demand.multipliers * rng.choice([0.1, 0.3, 1, 1, 3], 1 if equal else count)
        demand.multipliers = np.minimum(scaled, 2**40).astype(np.int64)
        demand.price_time()
        end = float(done.completions.max())
        begin, end = (0.0, end) if rng.random() < 0.6 else sorted(rng.uniform(0, end, 2))
        some, charged, whole = demand.within(begin, end + 1e-9, latencies)
        waited = (latencies - demand.first)[some]
        timed = np.maximum(0.0, demand.extra[some] - demand.slope[some] * waited)
        shares.append((charged + whole * timed).sum() / (end - begin))
    assert 0.8 < max(shares) <= 1 + 1e-6


@pytest.mark.no_cover
def test_no_more_workers_are_proven_than_brute_force_needs_in_steps():
    rng = np.random.default_rng(5)
    proven = 0
    for _ in range(share(400)):
        count = int(rng.integers(2, 5))
        outputs = rng.integers(1, 4, count)
        prompts = rng.integers(0, 4, count)
        memory = int((prompts + outputs).max() + rng.integers(0, 4))
        arrivals = np.sort(rng.integers(0, 3, count))
        instance = Instance(prompts, outputs, memory, arrivals)
        metric, part = str(rng.choice(["latency", "ttft"])), int(rng.choice([100, 70, 50]))
        alone = outputs.max() if metric == "latency" else 1
        slo = Slo(f"{metric}:p{part}<={alone + rng.integers(0, 3)}")
        found = at_least(Bounded(instance, UNIT), [slo])
        needed = fewest_in_steps(instance, slo)
        assert found.workers <= needed
        proven += found.workers == needed > 1
    assert proven > 0


def fewest_in_steps(instance, slo):
    """Return the fewest workers over all starts, placements and requests that may miss."""
    rows = list(
        zip(
            *(instance.prompts.tolist(), instance.outputs.tolist(), instance.arrivals.tolist()),
            strict=True,
        )
    )
    metric, limit = next(iter(slo.limits.items()))

    def starts(row):
        slack = limit - (row[1] if metric == "latency" else 1)
        return range(row[2], row[2] + int(slack) + 1)

    def served(left, held, missed, count):
        if not left:
            return True
        (row, *rest) = left
        for worker in range(count):
            for start in starts(row):
                steps = [(worker, start + u) for u in range(1, row[1] + 1)]
                grown = dict(held)
                for u, step in enumerate(steps, 1):
                    grown[step] = grown.get(step, 0) + row[0] + u
                if all(grown[step] <= instance.memory for step in steps) and served(
                    rest, grown, missed, count
                ):
                    return True
        return missed > 0 and served(rest, held, missed - 1, count)

    misses = slo.misses(len(instance))
    return next(count for count in range(1, 9) if served(rows, {}, misses, count))


TRACE = Instance(
    np.tile([400, 30, 1500, 90], 30),
    np.tile([40, 90, 10, 200], 30),
    6000,
    np.arange(120) * 8,
    seconds_per_step=0.01,
    labels=[f"{'ab'[i % 2]}/{i}" for i in range(120)],
)


@tabled()
def test_every_number_has_a_proof_that_exact_integers_confirm(texts):
    slos = [Slo(text) for text in texts]
    clock = get_clock("llama-2-70b-2xa100")
    found = at_least(Bounded(TRACE, clock, 8, "next-batch", timed=True), slos)
    assert found.workers > 1
    proof = read_certificate(found.certificate.to_json())
    assert proof == found.certificate
    assert found.workers - 1 < verify(proof, TRACE)


def test_what_more_than_one_request_has_is_not_demanded_where_it_may_be_shared():
    many = Instance([64] * 40, [4] * 40, 80, hash_ids=[[1, 2, 3, i + 9] for i in range(40)],
                    hash_block=16)  # fmt: skip
    alone, shared = (
        at_least(Bounded(many, UNIT, shared=each), [Slo("latency:max<=8")])
        for each in (False, True)
    )
    assert 1 < shared.workers < alone.workers
    assert verify(shared.certificate, many) > shared.workers - 1


def test_a_proof_belongs_to_its_requests_and_its_step():
    found = at_least(
        Bounded(TRACE, get_clock("llama-2-70b-2xa100"), timed=True), [Slo("latency:max<=14")]
    )
    for other in (TRACE.replace(memory=6001), TRACE.replace(seconds_per_step=0.02)):
        with pytest.raises(CertificateError):
            verify(found.certificate, other)
    with pytest.raises(CertificateError, match="cannot be read"):
        read_certificate(found.certificate.to_json().replace('"goals": [', '"goals": [3, '))


def evidence(rng):
    """Draw a run on one worker in which tokens are found in a cache, and objectives that it met."""
    size, blocks = int(rng.integers(1, 4)), int(rng.integers(5, 12))
    room, count = (blocks - 1) * size, int(rng.integers(1, 5))
    outputs = rng.integers(1, room, count)
    prompts = np.minimum(rng.integers(1, 8, count), room - outputs).clip(1)
    outputs = np.minimum(outputs, room - prompts).clip(1)
    texts = [
        [int(rng.integers(2)) if place < 2 else 10 * request + place for place in range(9)]
        for request in range(count)
    ]
    names = {}
    ids = [
        [
            names.setdefault(tuple(text[: end + 1]), len(names))
            for end in range(min((prompt + output) // size, 9))
        ]
        for text, prompt, output in zip(texts, prompts, outputs, strict=True)
    ]
    whole = rng.random() < 0.3  # without ids, only what was preempted finds its own blocks
    instance = Instance(
        *(prompts, outputs, room, np.sort(rng.integers(0, 3, count))),
        seconds_per_step=1.0,
        hash_ids=None if whole else ids,
        hash_block=None if whole else size,
    )
    clock = LinearClock(
        "drawn",
        float(rng.choice([0.001, 0.1])),
        float(rng.choice([0.01, 0.1])),
        float(rng.choice([0.0, 0.01, 1.0])),
        float(rng.choice([0.0, 0.1, 1.0])),
        float(rng.choice([0.0, 0.01, 0.1])),
    )
    policy = replace(
        get_policy("vllm"),
        enable_prefix_caching=True,
        async_scheduling=False,
        block_size=size,
        num_gpu_blocks=blocks,
    )
    done = run(instance, policy, clock=clock)
    latencies = done.completions - done.arrivals
    first = done.first_tokens - done.arrivals
    slos = [
        Slo(f"latency:max<={latencies.max() * 1.000001:.9f}"),
        Slo(f"ttft:max<={first.max() * 1.000001:.9f}"),
        Slo(f"latency:mean<={latencies.mean() * 1.000001:.9f}"),
    ]
    return instance, clock, policy, done, slos


@pytest.mark.no_cover
def test_what_one_worker_with_a_cache_has_met_is_never_said_to_need_two():
    rng = np.random.default_rng(3)
    found = preempted = 0
    for _ in range(share(80)):
        instance, clock, policy, done, slos = evidence(rng)
        world = capacity_world(instance, settings_of(None, {"clock": clock}), [policy], None)
        for slo in slos:
            assert not late_alone(world, slo)[1]
            assert at_least(world, [slo]).workers == 1
        found += done.cached_tokens > 0
        preempted += done.cached_tokens > 0 and done.preemptions > 0
    assert min(found, preempted) >= 3


@examples(200)
@given(
    st.lists(st.sampled_from([0.0, 0.003, 0.1, 1.0]), min_size=4, max_size=4),
    st.integers(2, 300),
    st.data(),
)
def test_on_the_clock_of_a_cache_no_token_is_charged_more_than_it_may_take(numbers, known, data):
    prefill, decode, resident, squares = numbers
    clock = LinearClock("drawn", 0.001, prefill, decode, resident, squares)
    charged = going_on_from_a_cache(clock)
    computed = data.draw(st.integers(2, known))
    chunk = clock(BatchContent(computed, 0, 0, known**2 - (known - computed) ** 2, 0))
    token = charged(BatchContent(0, 1, known, 0, 0))
    assert token <= chunk
    assert token <= clock(BatchContent(0, 1, known, 0, 0))


def test_where_a_cache_may_be_used_no_token_is_charged_by_time_more_than_two_found_anew():
    rng = np.random.default_rng(6)
    charged = 0
    for _ in range(share(300)):
        clock = going_on_from_a_cache(
            LinearClock("drawn", 0.05, 3e-4, *rng.choice([1e-5, 2e-4], 2), rng.choice([0.0, 1e-8]))
        )
        many = Instance(rng.integers(1, 3000, 5), rng.integers(2, 90, 5), 10_000)
        slo = Slo(f"latency:mean<={least_work(many, clock).own.mean() * 1.5:.9f}")
        demand = Demand(Bounded(many, clock, shared=True), [slo], Charging(0, 16))
        mu, d = demand.multipliers / 2**40, demand.decodes
        paused = demand.first - demand.constant
        gained = (demand.extra + mu * paused / 2) / d - demand.constant * mu
        for prompt, gain in zip(many.prompts.tolist(), gained.tolist(), strict=True):
            anew = clock(BatchContent(2, 0, 0, (prompt + 2) ** 2 - prompt**2, 0))
            decoded = clock(BatchContent(0, 1, prompt + 1, 0, 0))
            assert gain <= max(0.0, anew - decoded) + 1e-12
            charged += gain > 0
    assert charged > 0
