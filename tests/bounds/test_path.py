"""The bound by a path: never above the least over all sequences of batches, and exact integers."""

import math
from dataclasses import replace

import numpy as np
import pytest
from brute_force_clocked import EXACT, certificate_of, drawn, least_latency
from effort import examples, share
from hypothesis import given
from hypothesis import strategies as st
from installed import with_serving

from optsched import Instance, OptschedError, bound, family, read_certificate, run, verify
from optsched.bounds.on_clock import least_work
from optsched.clock import LinearClock
from optsched.errors import CertificateError
from optsched.problem.work import arrival_times

CLOCK = LinearClock("slow", 0.02, 0.0005, 0.001, 1e-6, 1e-9, 1e-7)


def any_path(rng, instance, clock):
    """Draw numbers of any size, wide steps and narrow ones."""
    work, prompts = least_work(instance, clock), instance.prompts
    arrivals = arrival_times(instance, clock, int(instance.arrivals[0]))
    width = float(work.own.mean() / rng.choice([2, 5, 11, 30, 60]) * rng.uniform(0.7, 1.3))
    most = float((clock.prefill_tokens * prompts + clock.squared_prompts * prompts**2).sum())
    end = arrivals[-1] + rng.uniform(-0.3, 2.5) * work.own.max()
    return certificate_of(
        instance,
        clock,
        width=width,
        counted=int(rng.choice([1, 2, 3, 5, 10, 40])),
        backlog=int(most / width) + 1 + int(rng.choice([0, 1, 3, 10, 40])),
        until=max(0, int(end / width)),
        rates=rates_like(rng, rng.choice([0, 0.125, 0.25, 0.5, 1, 1.5, 2, 3])),
        aside=float(rng.choice([0, 0.01, 0.03, 0.1, 0.3, 0.6, 0.9, 1])),
        offsets=int(rng.choice([1, 2, 3, 4, 8])),
    )


def rates_like(rng, rate):
    """Draw one rate, or one for each of some windows."""
    factors = (
        [1.0] if rng.random() < 0.4 else rng.choice([0, 0.25, 0.75, 1, 1.5, 2], rng.integers(2, 7))
    )
    return tuple(min(1024.0, math.ceil(each * rate * 1024) / 1024) for each in factors)


def together(rng):
    """Draw alike requests that had best decode together, on a clock without much prefill."""
    count = int(rng.choice([2, 2, 3]))
    outputs = rng.integers(2, 7 - count, count)
    prompts = np.full(count, rng.integers(0, 2) * (count == 2))
    late = np.sort(rng.integers(0, 3, count)) * int(rng.random() < 0.4)
    constant, decode = float(rng.choice([0.05, 0.2, 1.0])), float(rng.choice([0.01, 0.1, 0.3, 1.0]))
    prefill = max(float(rng.choice([0.001, 0.01, 0.1])), decode * int(rng.random() < 0.7))
    resident = float(rng.choice([0.0, 0.0, 0.05]))
    instance = Instance(prompts, outputs, 99, late - late[0], seconds_per_step=0.37)
    return instance, LinearClock("together", constant, prefill, decode, resident)


def late_tokens(rng, instance, clock):
    """Draw a path until shortly before or after some batch, at the rate that fits such batches."""
    width = float(least_work(instance, clock).own.mean() / rng.choice([20, 50, 100]))
    several, decode = int(rng.integers(1, len(instance) + 1)), clock.decode_requests
    batch = clock.constant + several * decode
    prefills = clock.prefill_tokens * instance.prompts + clock.squared_prompts * instance.prompts**2
    end = clock.constant + batch * (rng.integers(0, 5) + rng.choice([0, -0.5, 0.1, -0.1]))
    rate = several**2 * decode / clock.constant * rng.choice([0.5, 0.8, 1, 1.2])
    return certificate_of(
        instance,
        clock,
        width=width,
        counted=int(rng.choice([1, 3, 100])),
        backlog=int(prefills.sum() / width) + 2,
        until=max(0, int(end / width)),
        rates=rates_like(rng, rate),
        aside=float(rng.choice([0.02, 0.05, 0.1, 0.3, 0.5, 0.7])),
        offsets=int(rng.choice([1, 2, 5])),
    )


def ends_of(certificate):
    """Return the step by which each window ends."""
    windows = len(certificate.rates)
    return [certificate.until * each // windows for each in range(1, windows + 1)]


def parts_of(certificate, instance, clock):
    """Return what decodes earn and how many tokens are put off, and what is added, literally."""
    work, earned, put_off, added = least_work(instance, clock), 0.0, 0, 0.0
    arrivals = arrival_times(instance, clock, certificate.origin)
    for i, arrival in enumerate(arrivals):
        decodes, step = int(instance.outputs[i]) - 1, arrival // certificate.width
        ends = [end for end in ends_of(certificate) if end > step]
        rates = [*certificate.rates, 0.0][len(certificate.rates) - len(ends) :]
        tokens = work.decode[i] + work.growth * np.arange(1, decodes + 1)
        choices, before = [], rates[0]
        for end, rate in zip([-math.inf, *ends], rates, strict=True):
            for later in range(1, decodes + 1) if rate < before else [0] * (end < 0):
                each = np.where(np.arange(decodes) < decodes - later, before, rate)
                terms = 2 * np.sqrt(each * clock.constant * tokens) + (each - 1) * tokens
                kept, gained = work.own[i], np.maximum(0, terms).sum()
                if later:
                    batch = clock.constant + work.decode[i] + work.growth
                    kept = max(kept, (end - step) * certificate.width + (later - 1) * batch)
                cost = (1 - certificate.aside) * gained + certificate.aside * kept
                choices.append((cost, later, gained))
            before = min(rate, before)
        cost, later, gained = min(choices)
        earned, put_off, added = earned + gained, put_off + later, added + cost
    return earned, put_off, added


def best_of(instance, clock):
    """Return the least total latency over all sequences of batches, in the weakest world."""
    times = arrival_times(instance, clock).tolist()
    return least_latency(instance, clock, times, storage="next-batch", preemption="resumed")


@pytest.mark.parametrize("seed", range(share(60)))
def test_it_is_never_above_the_best_sequence_of_batches(seed):
    rng = np.random.default_rng(seed)
    instance, clock = drawn(rng, most=2 + seed % 2)
    best = best_of(instance, clock)
    found = bound(instance, "path", clock=clock, storage="next-batch")
    assert found.value <= verify(found.certificate, instance) <= best + EXACT
    for _ in range(5):
        assert verify(any_path(rng, instance, clock), instance) <= best + EXACT


@pytest.mark.parametrize("seed", range(share(60)))
def test_nor_where_tokens_are_put_off_until_nothing_is_earned(seed):
    rng = np.random.default_rng(seed)
    instance, clock = together(rng)
    best = best_of(instance, clock)
    for _ in range(10):
        assert verify(late_tokens(rng, instance, clock), instance) <= best + EXACT


@pytest.mark.parametrize("seed", range(share(60)))
def test_nor_where_all_backlogs_but_the_least_are_one(seed):
    rng, found = np.random.default_rng(seed), 0
    instance, clock = drawn(rng, most=3) if seed % 2 else together(rng)
    best = best_of(instance, clock)
    for _ in range(40):
        certificate = (any_path, late_tokens)[seed // 2 % 2](rng, instance, clock)
        backlog = rng.integers(1, min(certificate.backlog, rng.choice([3, 10, 50])) + 1)
        rates = tuple(min(1024.0, each * rng.choice([1, 1, 8])) for each in certificate.rates)
        try:
            proven = verify(replace(certificate, backlog=int(backlog), rates=rates), instance)
        except CertificateError:
            continue
        assert proven <= best + EXACT
        found += 1
    assert found


@given(
    requests=st.integers(2, 7),
    output=st.integers(2, 60),
    decode=st.sampled_from([0.003, 0.01, 0.1, 0.3, 1.0]),
    batches=st.floats(0.3, 1.05),
    fit=st.floats(0.7, 1.2),
    aside=st.sampled_from([0.0, 0.01, 0.03, 0.1, 0.3, 0.7]),
    windows=st.integers(1, 3),
)
@examples(200)
def test_requests_in_step_take_no_less_than_is_proven(
    requests, output, decode, batches, fit, aside, windows
):
    """With what is set aside of the path alone, not of what decodes earn, it is above by 4 %."""
    clock = LinearClock("decoding", 1.0, 9.0, decode)
    instance = Instance([0] * requests, [output] * requests, 10**6, seconds_per_step=1.0)
    total = requests * (output + (output - 1) * requests * decode)
    width = total / requests / 300
    certificate = certificate_of(
        instance,
        clock,
        width=width,
        counted=1,
        backlog=5,
        until=int(batches * total / requests / width),
        rates=(math.ceil(requests**2 * decode * fit * 1024) / 1024,) * windows,
        aside=aside,
    )
    assert verify(certificate, instance) <= total + EXACT


def test_these_instances_put_tokens_off_and_earn():
    rng = np.random.default_rng(0)
    counts = np.zeros(3, dtype=int)
    for _ in range(300):
        instance, clock = together(rng)
        certificate = late_tokens(rng, instance, clock)
        earned, put_off, _ = parts_of(certificate, instance, clock)
        counts += [earned > 0, put_off > 0, earned > 0 and put_off > 0]
    assert counts.min() >= 30, counts


def busy(rng, count):
    """Draw requests of which many arrive before those before them have ended."""
    prompts, outputs = rng.integers(1, 400, count), rng.integers(1, 60, count)
    arrivals = np.sort(rng.integers(0, 4 * count, count))
    step = float(rng.choice([0.01, 0.1, 0.5]))
    return Instance(prompts, outputs, 4_000, arrivals, seconds_per_step=step)


def on_a_grid(certificate, instance, clock):
    """Return arrivals, counted work and the rest, in parts of a step, and what is left out."""
    work, width, parts = least_work(instance, clock), certificate.width, certificate.offsets
    times = arrival_times(instance, clock, certificate.origin)
    prefills = clock.prefill_tokens * instance.prompts + clock.squared_prompts * instance.prompts**2
    come = np.minimum(certificate.counted * parts, prefills * (1 - 2**-40) * parts // width)
    left = work.own * (1 - 2**-40) * parts - come * width
    rows = zip(times // width * parts, come, left // width, strict=True)
    left_out = (1 - certificate.aside) * (left % width).sum() / parts - (times % width).sum()
    return [tuple(map(int, row)) for row in rows], left_out


def rounded(rows, offset, parts):
    """Return rows in whole steps: a machine works through them part by part, as read at times."""
    now, brought, done, begun, found = rows[0][0], 0, 0, 0, []
    for arrival, come, rest in rows:
        while now < arrival:
            done, now = min(brought, done + 1), now + 1
        brought += come
        after, began, never = ((x + offset) // parts for x in (brought, done, done - rest))
        found.append((arrival // parts, after - begun, began - never))
        begun = after
    return found


def least_cost(rows, counted, ends, rates, parts=1):
    """Return the least cost of all paths, by what is paid for operational time, in steps.

    Time, and all rows, may be cut into so many parts of a step.
    """
    now = first = rows[0][0]
    costs, brought, least = {0: 0}, 0, 0  # by operational time, and the least there is
    done, refunds = [], dict.fromkeys(ends, 0.0)
    for end, rate, after in zip(ends, rates, [*rates[1:], 0.0], strict=True):
        refunds[end] += rate - after
    while True:
        for _, come, rest in (row for row in rows if row[0] == now):
            costs = {theta: cost + min(theta - least, rest) for theta, cost in costs.items()}
            done.append(least + rest)
            brought += come
        if now % parts == 0 and (rate := refunds.get(now // parts, 0.0)):
            costs = {theta: cost - math.ceil(rate * theta) for theta, cost in costs.items()}
        if now >= max(rows[-1][0], parts * ends[-1]) and all(end <= least for end in done):
            return min(costs.values()) / parts
        passed = {}
        for theta, cost in costs.items():
            backlog = brought - (now - first - theta)
            cost += sum(end > theta for end in done)
            moves = [(theta + 1, cost + math.ceil(backlog / counted / parts))]
            moves += [(theta, cost)] * (backlog > 0)
            for after, paid in moves:
                passed[after] = min(paid, passed.get(after, paid))
        least += brought - (now - first - least) == 0
        costs, now = passed, now + 1


@pytest.mark.parametrize("seed", range(share(60)))
def test_the_shortest_path_is_the_least_of_all(seed):
    """Term by term, without parts of integrals; and finer steps find nothing shorter."""
    rng = np.random.default_rng(seed)
    instance, clock = drawn(rng) if seed % 2 else (busy(rng, int(rng.integers(1, 7))), CLOCK)
    certificate = any_path(rng, instance, clock)
    rows, left_out = on_a_grid(certificate, instance, clock)
    parts = certificate.offsets
    certificate = replace(certificate, backlog=sum(row[1] for row in rows) // parts + 3)
    numbers, rates = (certificate.counted, ends_of(certificate)), certificate.rates
    each = [rounded(rows, offset, parts) for offset in range(parts)]
    least = np.mean([least_cost(on_grid, *numbers, rates) for on_grid in each])
    added = parts_of(certificate, instance, clock)[2] + left_out
    value = (1 - certificate.aside) * least * certificate.width + added
    assert float(verify(certificate, instance)) == pytest.approx(value, rel=1e-9, abs=1e-9)
    whole = [math.ceil(rate) for rate in rates]
    finer = [tuple(3 * number for number in row) for row in each[0]]
    assert least_cost(finer, *numbers, whole, parts=3) == pytest.approx(
        least_cost(each[0], *numbers, whole)
    )
    if parts > 1:  # what is not rounded costs no less
        rounded_least = np.mean([least_cost(on_grid, *numbers, whole) for on_grid in each])
        assert rounded_least <= least_cost(rows, *numbers, whole, parts) + 1e-9


@pytest.mark.parametrize("seed", range(share(40)))
def test_its_verifier_agrees_in_integers(seed):
    rng = np.random.default_rng(seed)
    instance = busy(rng, int(rng.integers(1, 40)))
    found = bound(instance, "path", clock=CLOCK)
    proven = verify(found.certificate, instance)
    assert found.value <= proven
    assert found.value == pytest.approx(float(proven), rel=1e-8)
    again = read_certificate(found.certificate.to_json())
    assert again == found.certificate
    assert verify(again, instance) == proven
    for policy in ("fcfs", "work", *with_serving("vllm")):
        assert proven <= sum(run(instance, policy, clock=CLOCK).latencies) * (1 + 1e-9)


CHANGES = {
    "width": [0.5, 0.9, 1.1, 3.0],
    "counted": [0.5, 2, 7],
    "backlog": [0.1, 0.5, 2, 3],
    "until": [0.5, 0.9, 1.1, 2],
    "rates": [0.3, 0.9, 1.1, 3, 50],
    "aside": [0.0, 0.3, 2, 20],
    "offsets": [0.5, 2, 3],
}


@pytest.mark.parametrize("seed", range(share(60)))
def test_changed_certificates_prove_what_is_true_or_are_refused(seed):
    rng = np.random.default_rng(seed)
    instance, clock = drawn(rng) if seed % 2 else together(rng)
    best = best_of(instance, clock)
    proof = bound(instance, "path", clock=clock, storage="next-batch").certificate
    for _ in range(10):
        changed = {}
        for name in rng.choice(list(CHANGES), rng.integers(1, 4), replace=False):
            value, by = getattr(proof, name), rng.choice(CHANGES[name])
            if name == "rates":
                changed[name] = rates_like(rng, by * (max(value) or 1.0))
            else:
                changed[name] = type(value)(value * by)
        try:
            proven = verify(replace(proof, **changed), instance)
        except CertificateError:
            continue
        assert proven <= best + EXACT


def test_what_would_prove_nothing_is_refused():
    instance = busy(np.random.default_rng(1), 30)
    proof = bound(instance, "path", clock=CLOCK).certificate
    wrong = (
        *({"width": 0.0}, {"width": math.nan}, {"counted": -1}, {"backlog": -1}, {"until": -1}),
        *({"rates": (each,)} for each in (-1.0, math.nan, 2e3)),
        *({"aside": 1.5}, {"until": 2**50}),
        *({"offsets": 0}, {"offsets": 65}),
    )
    for fields in wrong:
        with pytest.raises(CertificateError, match="must be"):
            replace(proof, **fields)
    for fields in ({"workers": 2}, {"objective": "weighted-latency"}, {"objective": "makespan"}):
        with pytest.raises(CertificateError, match="a path proves something about total"):
            replace(proof, **fields)
    for fields, words in (
        ({"fingerprint": "of another"}, "belongs to another"),
        ({"backlog": 1}, "count a larger one"),
        ({"backlog": 2**30}, "cut time into fewer steps"),
        ({"width": 1e-9}, "steps are too narrow"),
    ):
        with pytest.raises(CertificateError, match=words):
            verify(replace(proof, **fields), instance)
    with pytest.raises(CertificateError, match="aside and rates must be numbers"):
        read_certificate(proof.to_json().replace('"rates": [', '"rates": ["high", '))


def test_auto_takes_the_largest_and_other_worlds_are_refused():
    instance = family("chat", n=100, seed=1, rate=1.5, seconds_per_step=1)
    clock = "llama-2-70b-2xa100"
    found = {name: bound(instance, name, clock=clock) for name in ("closed-form", "path")}
    auto = bound(instance, clock=clock)
    assert auto.value >= max(each.value for each in found.values())
    assert found["path"].value > found["closed-form"].value
    for how in ({"workers": 2}, {"objective": "weighted-latency"}, {"objective": "makespan"}):
        with pytest.raises(OptschedError, match="a path bounds the total latency of one worker"):
            bound(instance, "path", clock=clock, **how)
    with pytest.raises(OptschedError, match="'path', but in steps no prefill stalls others"):
        bound(instance, "path")


def test_auto_gives_prices_up_only_where_they_fall_behind():
    best = set()
    for load in (0.3, 1.6):
        made = family("chat-and-summaries", n=150, seed=1, load=load)
        instance = made.replace(seconds_per_step=0.05)
        names = "path", "lagrangian", "auto"
        path, prices, auto = (bound(instance, name, clock="llama-2-70b-2xa100") for name in names)
        assert auto.value == max(path.value, prices.value)
        best.add(auto.method)
    assert best == {"path", "lagrangian"}


@pytest.mark.slow("nothing shared")
@pytest.mark.parametrize(
    "clock",
    [
        LinearClock("nothing shared", 0.0, 0.001, 0.001),
        LinearClock("no prefill", 0.05, 0.0, 0.001),
        LinearClock("no work", 0.05),
        LinearClock("in steps", 1.0, unit="steps"),
    ],
    ids=lambda clock: clock.name,
)
def test_clocks_without_some_parts_have_a_path(clock):
    rng = np.random.default_rng(3)
    for instance in (busy(rng, 20), Instance([0], [1], 9), Instance([0, 5, 0], [1, 1, 3], 99)):
        found = bound(instance, "path", clock=clock)
        alone = float(least_work(instance, clock).own.sum())
        assert 0.9 * alone <= found.value <= verify(found.certificate, instance)
        assert found.value <= run(instance, "work", clock=clock).total_latency * (1 + 1e-9)


def test_a_long_time_without_requests_takes_no_longer():
    arrivals = [0, 0, 10**7, 10**7, 3 * 10**7]
    instance = Instance([200, 30, 400, 50, 60], [5, 9, 7, 3, 40], 999, arrivals, seconds_per_step=1)
    proof = bound(instance, "path", clock=CLOCK).certificate
    narrow = replace(proof, width=0.01, counted=9, backlog=99, until=3 * 10**9 + 50)
    one = Instance(*(each[:2] for each in (instance.prompts, instance.outputs)), 999)
    for rate in (0.0, 1e-3):
        proven = verify(replace(narrow, rates=(rate, rate)), instance)
        refund = rate * 3e7 * (1 - narrow.aside)
        assert proven + refund >= bound(one, "path", clock=CLOCK).value * (1 - narrow.aside)
        assert proven <= run(instance, "work", clock=CLOCK).total_latency
