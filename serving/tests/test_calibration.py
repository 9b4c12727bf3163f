"""Clocks against measured runs: of the simulator, whose clock is known, and of real GPUs."""

from dataclasses import replace

import numpy as np
import pytest

from optsched import run
from optsched.clock import LinearClock, get_clock
from optsched.errors import ClockError
from optsched.policies import get_policy
from optsched.workloads import Measured, family, read_measured
from optsched_serving.calibration import calibrated, check_clock

TRUE = get_clock("llama-3.1-8b-rtx4090").scaled(1.3, 0.002)
ENGINE = replace(get_policy("vllm"), max_num_seqs=16, enable_prefix_caching=True)


@pytest.fixture(scope="module")
def log():
    """A run of the simulator on a clock, as if it had been measured."""
    instance = family("mixed", n=150, memory=20_000, rate=4, seed=3, seconds_per_step=1e-6)
    made = run(instance, ENGINE, clock=TRUE)
    return instance, Measured(made.arrivals, made.first_token_latencies, made.latencies)


def test_the_clock_of_the_run_meets_it_exactly(log):
    found = check_clock(TRUE, *log, ENGINE)
    assert all(one == other for sides in found.to_dict().values() for one, other in sides.values())
    assert (found.error(), found.bias) == (0, 0)


def test_a_calibration_finds_scale_and_constant(log):
    before = check_clock("llama-3.1-8b-rtx4090", *log, ENGINE)
    assert before.error() < -0.2
    assert before.bias > 0.3
    fit = calibrated("llama-3.1-8b-rtx4090", *log, ENGINE)
    assert abs(fit.bias) < 0.01
    assert (fit.judged, fit.of) == (75, "requests")
    assert fit.clock.resident_tokens == pytest.approx(TRUE.resident_tokens, rel=0.1)
    assert "75 requests that were not fitted" in str(fit)


def test_what_is_not_measured_is_left_out(log):
    instance, seen = log
    partial = seen.latency.copy()
    partial[::3] = np.nan
    unknown = np.full(len(instance), np.nan)
    found = check_clock(TRUE, instance, Measured(seen.arrivals, unknown, partial), ENGINE)
    assert list(found.to_dict()) == ["latency"]
    assert found.to_dict()["latency"]["mean"][0] == pytest.approx(np.nanmean(partial))
    with pytest.raises(ClockError, match="hardly any latency of the log is known"):
        calibrated(TRUE, instance, Measured(seen.arrivals, seen.first_token, unknown), ENGINE)


@pytest.mark.parametrize("concurrency", [1, 2, 7, 40, 200])
def test_a_closed_loop_keeps_so_many_requests_running(log, concurrency):
    """Made by a client of our own: each request arrives in the literal run when one has ended."""
    instance = log[0].take(range(60)).replace(seconds_per_step=1e-6)
    made = literal_loop(instance, concurrency)
    unknown = np.full(len(instance), np.nan)
    found = check_clock(
        TRUE, instance, Measured(unknown, made.first_token, made.latency), ENGINE, concurrency
    )
    assert found.simulated.latency == pytest.approx(made.latency, abs=1e-4)
    assert found.simulated.ttft == pytest.approx(made.first_token, abs=1e-4)


def literal_loop(instance, concurrency):
    """Fix one arrival after the other: the next is when the run of those before has room."""
    arrivals = []
    for count in range(1, len(instance) + 1):
        if count <= concurrency:
            arrivals.append(0)
            continue
        before = instance.take(range(count - 1)).replace(arrivals=arrivals)
        ends = np.sort(run(before, ENGINE, clock=TRUE).completions)
        arrivals.append(int(np.ceil(ends[count - 1 - concurrency] * 1e6)))
    made = run(instance.replace(arrivals=arrivals), ENGINE, clock=TRUE)
    return Measured(made.arrivals, made.first_token_latencies, made.latencies)


def test_a_log_without_arrivals_is_refused(log):
    instance, seen = log
    closed = Measured(np.full(len(instance), np.nan), seen.first_token, seen.latency)
    for use in (check_clock, calibrated):
        with pytest.raises(ClockError, match="does not say when its requests arrived"):
            use(TRUE, instance, closed, ENGINE)
        with pytest.raises(ClockError, match="the log says when requests arrived; leave"):
            use(TRUE, instance, seen, ENGINE, 3)


def test_a_clock_that_cannot_be_scaled_or_counts_steps_is_refused(log):
    with pytest.raises(ClockError, match="clock unit counts steps; a log needs one in seconds"):
        check_clock("unit", *log, ENGINE)
    with pytest.raises(ClockError, match="is a function; only a sum can be scaled"):
        calibrated(lambda batch: 0.01, *log, ENGINE)


def test_scaling_multiplies_every_part():
    clock = LinearClock(
        *("all", 1, 2, 3, 4, 5, 6), mixed_tokens=7, hinges=((8, 9),), ramps=((10, 11),)
    )
    doubled = LinearClock(
        *("all", 2.5, 4, 6, 8, 10, 12), mixed_tokens=14, hinges=((8, 18),), ramps=((10, 22),)
    )
    assert clock.scaled(2, 0.5) == doubled


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama-3.1-8b-rtx4090", {"num_gpu_blocks": 2588, "max_num_seqs": 256}),
        ("llama-3.1-8b-rtxpro6000", {"max_num_seqs": 128}),
    ],
)
def test_measured_runs_of_real_gpus_are_met(shared_data, name, options):
    """By kernel times and, on the second machine, a constant; then by half of the run itself."""
    memory = 16 * (options.get("num_gpu_blocks", 25_001) - 1)
    path = shared_data / f"gpus/runs/{name}/requests.jsonl.gz"
    run_of = read_measured(path, memory, seconds_per_step=1e-6)
    engine = replace(get_policy("vllm"), enable_prefix_caching=True, **options)
    found = check_clock(name, *run_of, engine)
    assert abs(found.error("latency", "mean")) < 0.01
    assert abs(found.error("latency", "p99")) < 0.01
    assert abs(found.error("ttft", "mean")) < 0.02
    assert abs(found.error("tpot", "mean")) < 0.03
    fit = calibrated(name, *run_of, engine)
    assert abs(fit.bias) < 0.01
