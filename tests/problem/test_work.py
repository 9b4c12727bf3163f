"""The load on a clock: literally, what all batches add up to."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from installed import ENGINE, with_serving
from strategies import instances

from optsched import Instance, bound, compare, family, get_clock, read_trace, run, verify
from optsched.clock import BatchContent, FunctionClock, LinearClock
from optsched.problem.work import load_on_clock, most_work, tangents, work_by_output, work_on_clock

FULL = LinearClock("full", 0.1, 0.02, 0.003, 0.0004, 0.00005, 0.000006)
BENT = replace(FULL, hinges=((40, 0.02), (3, 0.001), (9, 0.01)))
CLOCKS = ["llama-2-70b-2xa100", "llama-2-70b-2xa100-hinges", "affine:0.01,0.001", "unit", BENT]


@given(instances(max_requests=8))
def test_parts_are_the_sums_over_the_batches_of_each_request(instance):
    """In a batch of its own a request takes the constant, less the share that it is charged."""
    parts = np.zeros(3)
    for prompt, output in zip(instance.prompts.tolist(), instance.outputs.tolist(), strict=True):
        for k in range(1, output + 1):
            held = prompt + k
            work = FULL.held_tokens * held
            if k == 1:
                work += FULL.prefill_tokens * prompt + FULL.squared_prompts * prompt**2
            else:
                work += FULL.decode_requests + FULL.resident_tokens * (held - 1)
            parts[min(k - 1, 1)] += work
            parts[2] += FULL.constant * held / instance.memory
    instance = instance.replace(seconds_per_step=1.0)
    assert load_on_clock(instance, FULL)[:3] == pytest.approx(parts.tolist())


@pytest.mark.parametrize("clock", ["llama-2-70b-2xa100", "affine:0.01,0.001", FULL])
def test_a_run_without_preemption_spends_this_work_and_a_constant_per_batch(clock):
    requests = family("uniform", n=60, seed=1)
    timed = run(requests, "area", clock=clock)
    found, metrics = load_on_clock(requests, timed.clock), timed.metrics()
    assert metrics["prefill_time"] == pytest.approx(found.prefill)
    assert metrics["decode_time"] == pytest.approx(found.decode)
    constant = timed.clock.coefficients[0] * metrics["batches"]
    assert metrics["constant_time"] == pytest.approx(constant)
    assert metrics["hinge_time"] == 0
    bent = run(requests, "area", clock=replace(FULL, hinges=((9, 0.01),)))
    parts = [bent.metrics()[f"{part}_time"] for part in ("prefill", "decode", "constant", "hinge")]
    assert parts[3] > 0
    assert sum(parts) == pytest.approx(sum(end - begin for begin, end in bent.log.spans))
    by_function = run(requests, "area", clock=lambda batch: timed.clock(batch)).metrics()
    assert by_function["prefill_time"] is None


@given(instances(max_requests=8))
def test_work_is_a_square_in_the_output(instance):
    a, b, c = work_by_output(instance.prompts.astype(float), instance.memory, FULL)
    outputs = instance.outputs
    total = work_on_clock(instance, FULL).total
    assert a + b * outputs + c * outputs**2 == pytest.approx(total)


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("policy", ["fcfs", "area"])
def test_no_run_without_preemption_works_less(clock, policy):
    requests = family("uniform", n=60, seed=1)
    timed = run(requests, policy, clock=clock)
    assert timed.preemptions == 0
    found = load_on_clock(requests, timed.clock)
    begins, ends = timed.log.spans.T
    assert found.work <= (ends - begins).sum() * (1 + 1e-9)


numbers = st.floats(0, 9).map(lambda number: round(number, 3))


@given(
    numbers,
    st.lists(st.tuples(st.integers(0, 60), numbers), max_size=4),
    st.integers(0, 100),
    st.integers(0, 100),
)
def test_no_tangent_is_above_the_clock_and_the_best_one_touches_it(constant, hinges, prompt, more):
    clock = LinearClock("bent", constant, 0.01, 0.02, hinges=tuple(hinges))
    found = tangents(clock)
    tokens = prompt + more
    batch = BatchContent(prompt, more, 7, prompt**2, 9)
    if not tokens:
        return  # there is no such batch
    values, takes = [each(batch) for each in found], clock(batch)
    assert max(values) <= takes * (1 + 1e-12)
    assert all(each.constant >= 0 and not each.hinges for each in found)
    bends = [hinge for hinge, slope in hinges if slope and 0 < constant < hinge * slope]
    if found[-1].constant or tokens <= min(bends, default=0):
        assert max(values) == pytest.approx(takes)


def test_hinges_count_in_the_load():
    given = {"memory": 103_287, "seconds_per_step": 1e-6}
    requests = family("lognormal", n=1500, rate=10, seed=1, **given)
    bent, plain = (
        replace(get_clock("llama-2-70b-2xa100-hinges"), **change) for change in ({}, {"hinges": ()})
    )
    counted, left_out = (load_on_clock(requests, clock).work for clock in (bent, plain))
    for policy in (*with_serving("vllm"), "work"):
        begins, ends = run(requests, policy, clock=bent).log.spans.T
        batches = float((ends - begins).sum())
        assert 1.3 * left_out < counted <= batches
        assert counted > 0.7 * batches
    assert load_on_clock(requests, plain).work == work_on_clock(requests, bent).total.sum()
    assert most_work(requests, bent).total.sum() == counted


@pytest.mark.slow(
    "1-llama-2-70b-2xa100-hinges",
    "977-llama-2-70b-2xa100-hinges",
    "1750000000-llama-2-70b-2xa100-hinges",
)
@pytest.mark.parametrize("clock", [None, "llama-2-70b-2xa100-hinges"])
@pytest.mark.parametrize("shift", [1, 977, 1_750_000_000])
def test_later_arrivals_change_nothing_but_instants(clock, shift):
    """As those of traces in seconds since 1970."""
    base = family("chat-and-summaries", n=60, seed=3, load=0.9).replace(seconds_per_step=1.0)
    base = base.replace(arrivals=base.arrivals // (1 if clock is None else 40))
    later = base.replace(arrivals=base.arrivals + shift)
    assert later.load == base.load
    if clock is None:
        assert bound(later).value == pytest.approx(bound(base).value, rel=1e-9)
        return
    assert load_on_clock(later, get_clock(clock)) == load_on_clock(base, get_clock(clock))
    for method in ("closed-form", "lagrangian"):
        found = [bound(each, method, clock=clock) for each in (base, later)]
        assert found[0].value == found[1].value
        assert verify(found[0].certificate, base) == verify(found[1].certificate, later)
    compared = [compare(each, [ENGINE, "area"], clock=clock).to_dict() for each in (base, later)]
    assert compared[0]["load"] == compared[1]["load"]
    for one, other in zip(*(each["policies"] for each in compared), strict=True):
        for name in ("mean_latency", "p99_latency", "mean_ttft", "mean_tpot", "gap"):
            assert one[name] == pytest.approx(other[name], rel=1e-5), name


def test_on_the_unit_clock_it_is_the_load_in_steps():
    requests = family("uniform", n=200, seed=1, load=0.8)
    found = load_on_clock(requests, get_clock("unit"))
    offered = int(requests.arrivals[-1] - requests.arrivals[0])
    assert found.load == pytest.approx(requests.areas.sum() / requests.memory / offered)
    assert (found.prefill, found.decode) == (0, 0)


def test_a_real_trace_that_fits_in_steps_is_overloaded_on_a_clock(shared_data):
    """0.74 of the memory-time in steps of 50 ms, while there is three times the work."""
    requests = read_trace(shared_data / "azure_conv_2023.csv.gz", 103_287, limit=2000)
    found = load_on_clock(requests, get_clock("llama-2-70b-2xa100"))
    assert requests.load < 1
    assert found.load == pytest.approx(3.08, abs=0.005)
    assert str(found).startswith("3.08 of the time of arrivals (overloaded); of the work ")
    assert "prefill 58%" in str(found)


def test_all_at_once_there_is_work_but_no_load_and_a_function_says_nothing():
    found = load_on_clock(Instance([5], [2], memory=9), FULL)
    assert str(found).startswith("all at once; of the work ")
    assert load_on_clock(Instance([5], [2], memory=9), FunctionClock(lambda _: 1.0)) is None
    nothing = load_on_clock(Instance([0], [1], memory=9), LinearClock("free", 0, 1.0, 1.0))
    assert (nothing.work, str(nothing)[:11]) == (0.0, "all at once")


def test_results_on_a_clock_say_its_load_in_place_of_that_in_steps():
    requests = family("uniform", n=30, seed=1, rate=2, seconds_per_step=0.05)
    said = str(compare(requests, ["area"], clock="affine:0.5,0.001"))
    assert "of the memory-time" not in said
    for text in (said, str(run(requests, "area", clock="affine:0.5,0.001"))):
        assert "  load      " in text
        assert "(overloaded); of the work constant" in text
