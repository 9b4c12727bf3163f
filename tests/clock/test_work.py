"""The load on a clock: literally, what all batches add up to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from strategies import instances

from optsched import Instance, family, get_clock, read_trace, run
from optsched.clock import FunctionClock, LinearClock
from optsched.clock.work import load_on_clock, work_by_output, work_on_clock

CLOCKS = ["llama-2-70b-2xa100", "llama-2-7b-a100", "affine:0.01,0.001", "unit"]
FULL = LinearClock("full", 0.1, 0.02, 0.003, 0.0004, 0.00005, 0.000006)


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
    assert str(found).startswith("3.08 of the time until the last arrival (overloaded); of the wor")
    assert "prefill 58%" in str(found)


def test_all_at_once_there_is_work_but_no_load_and_a_function_says_nothing():
    found = load_on_clock(Instance([5], [2], memory=9), FULL)
    assert str(found).startswith("all at once; of the work ")
    assert load_on_clock(Instance([5], [2], memory=9), FunctionClock(lambda _: 1.0)) is None


def test_results_on_a_clock_say_its_load_in_place_of_that_in_steps():
    requests = family("uniform", n=30, seed=1, rate=2, seconds_per_step=0.05)
    from optsched import compare

    said = str(compare(requests, ["area"], clock="affine:0.5,0.001"))
    assert "of the memory-time" not in said
    for text in (said, str(run(requests, "area", clock="affine:0.5,0.001"))):
        assert "  load      " in text
        assert "(overloaded); of the work constant" in text
