"""Clocks against measured runs: of the simulator, whose clock is known, and of real GPUs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from optsched import Instance, run
from optsched.clock import LinearClock, get_clock
from optsched.errors import ClockError
from optsched.policies import get_policy
from optsched.workloads import Measured, family, read_measured
from optsched_serving.calibration import calibrated, check_clock

RECORDINGS = Path(__file__).parent / "recordings"
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


RUNS = {
    "llama-3.1-8b-rtx4090": {"num_gpu_blocks": 2588, "max_num_seqs": 256},
    "llama-3.1-8b-rtxpro6000": {"max_num_seqs": 128},
}


def real_run(shared_data, name, **options):
    """A run on a GPU, and the engine with its options, or others."""
    memory = 16 * (RUNS[name].get("num_gpu_blocks", 25_001) - 1)
    path = shared_data / f"gpus/runs/{name}/requests.jsonl.gz"
    engine = replace(get_policy("vllm"), enable_prefix_caching=True, **RUNS[name] | options)
    return *read_measured(path, memory, seconds_per_step=1e-6), engine


@pytest.mark.parametrize("name", RUNS)
def test_measured_runs_of_real_gpus_are_met(shared_data, name):
    """By kernel times and, on the second machine, a constant; then by half of the run itself."""
    *run_of, engine = real_run(shared_data, name)
    found = check_clock(name, *run_of, engine)
    assert (found.verdict, found.cause, found.off) == ("holds", None, [])
    assert abs(found.error("latency", "mean")) < 0.01
    assert abs(found.error("latency", "p99")) < 0.01
    assert abs(found.error("ttft", "mean")) < 0.02
    assert abs(found.error("tpot", "mean")) < 0.03
    fit = calibrated(name, *run_of, engine)
    assert abs(fit.bias) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(
    ("clock", "least", "most"),
    [("llama-3.1-8b-rtx4090", 0.5, 2), ("llama-3.1-8b-rtxpro6000", 0.5, 2),
     ("llama-3.1-8b-2xrtxpro6000", 1.1, 2.5), ("llama-3.1-8b-h100", 1.5, 2.7)],
)  # fmt: skip
def test_the_clock_of_another_gpu_or_of_two_is_off_by_a_factor(
    shared_data, name, clock, least, most
):
    guessed = "max_num_seqs", "max_num_batched_tokens", "workers"
    found = check_clock(clock, *real_run(shared_data, name), guessed=guessed)
    if clock == name:
        assert found.verdict == "holds"
        return
    assert found.verdict == "off"
    assert "one factor: batches take" in found.cause
    assert least < found.factor < most
    assert (found.factor > 1) == (found.error("tpot") < 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "change"),
    [
        ("llama-3.1-8b-rtxpro6000", {"max_num_seqs": 256}, {"max_num_seqs": 128}),
        ("llama-3.1-8b-rtxpro6000", {"max_num_seqs": 1024}, {"max_num_seqs": 128}),
        ("llama-3.1-8b-rtxpro6000", {"max_num_seqs": 64}, {"max_num_seqs": 128}),
        ("llama-3.1-8b-rtx4090", {"max_num_seqs": 16}, {"max_num_seqs": 64}),
        ("llama-3.1-8b-rtx4090", {"workers": 2}, {"workers": 1}),
        ("llama-3.1-8b-rtxpro6000", {"workers": 4}, {"workers": 1}),
    ],
)
def test_wrong_limits_and_wrong_ranks_of_real_runs_are_found(shared_data, name, options, change):
    limits = options.copy()
    workers = limits.pop("workers", None)
    run_of = real_run(shared_data, name, **limits)
    (which,) = change
    for guessed in ((), ("max_num_seqs", "workers")):
        found = check_clock(name, *run_of, workers=workers, guessed=guessed)
        assert (found.verdict, found.change) == ("off", change)
        assert ("guessed" in found.cause) == (which in guessed)
        assert (which in found.guessed) == (which in guessed)


def test_of_two_things_that_are_wrong_a_limit_is_found_first(shared_data):
    name = "llama-3.1-8b-rtxpro6000"
    slow = get_clock(name).scaled(1.1)
    found = check_clock(slow, *real_run(shared_data, name, max_num_seqs=1024))
    assert found.change == {"max_num_seqs": 128}
    assert found.cause.endswith("%, which is much nearer.")
    found = check_clock(slow, *real_run(shared_data, name))
    assert found.cause.startswith("All times are off by one factor: batches take 0.9")


def test_blocks_that_follow_from_a_gpu_are_suspected(shared_data):
    """The RTX 4090 of the run held fewer than its size lets one expect."""
    instance, measured, engine = real_run(shared_data, "llama-3.1-8b-rtx4090")
    roomy = instance.replace(memory=54_415), measured, replace(engine, num_gpu_blocks=None)
    found = check_clock("llama-3.1-8b-rtx4090", *roomy, guessed={"num_gpu_blocks"})
    assert found.guessed == {"num_gpu_blocks": 3401}
    assert found.change["num_gpu_blocks"] == pytest.approx(2588, rel=0.05)


def recorded(measured, gpu, mode, name, **options):
    """A run that was recorded on a GPU, and its engine."""
    seen = measured.run_of(RECORDINGS / gpu, name)
    prompts, outputs, arrivals, _ = seen["requests"].T
    limits = {"enable_prefix_caching": False} | measured.options_of(mode) | options
    engine = replace(get_policy("vllm"), scheduling_policy=limits.pop("policy"), **limits)
    ticks = np.round(arrivals * 1e6).astype(int)
    sizes = prompts.astype(int), outputs.astype(int), 16 * (engine.num_gpu_blocks - 1)
    instance = Instance(*sizes, ticks, seconds_per_step=1e-6)
    return instance, Measured(arrivals, seen["first"] - arrivals, seen["last"] - arrivals), engine


@pytest.mark.slow
def test_recorded_runs_are_off_by_the_speed_of_their_gpu(measured):
    """By 2 % of the batches of the same engine, and by the clocks of other GPUs."""
    fit = measured.fitted(measured.run_of(RECORDINGS / "h100", "fit")).clock
    run_of = recorded(measured, "h100", "sync", "seed-1-0")
    batches = measured.run_of(RECORDINGS / "h100", "seed-1-0")
    slower = np.diff(batches["spans"]).sum() / measured.seconds_of(fit, batches["sums"])
    found = check_clock(fit, *run_of)
    assert found.cause.startswith("All times are off by one factor: batches take 1.02 times")
    assert found.factor == pytest.approx(slower, abs=0.01)
    right = fit.scaled(found.factor)
    assert check_clock(right, *run_of).verdict == "holds"
    few = recorded(measured, "h100", "sync", "seed-1-0", max_num_seqs=24)
    assert check_clock(right, *few).change["max_num_seqs"] > 32
    assert check_clock(right, *run_of, workers=2).change == {"workers": 1}
    for clock, gpu, mode, factor in (
        ("llama-3.1-8b-rtx4090", "h100", "sync", 0.36),
        ("llama-3.1-8b-rtx4090", "h200", "async", 0.24),
        ("llama-3.1-8b-h100", "h200", "async", 0.66),
    ):
        found = check_clock(clock, *recorded(measured, gpu, mode, "seed-1-0"))
        assert "off by nearly one factor" in found.cause
        assert found.factor == pytest.approx(factor, abs=0.02)


def test_ttft_alone_is_a_limit_or_an_arrival_and_tpot_alone_a_kernel(log):
    instance, seen = log
    wait = 0.3 * seen.first_token.mean()
    later = seen._replace(first_token=seen.first_token + wait, latency=seen.latency + wait)
    found = check_clock(TRUE, instance, later, ENGINE)
    assert (found.verdict, found.change, found.factor) == ("off", {}, None)
    assert found.cause.startswith(
        "TTFT alone is off, by -23.1% (mean): the engine had other limits"
    )
    slower = seen._replace(latency=seen.first_token + 1.3 * (seen.latency - seen.first_token))
    found = check_clock(TRUE, instance, slower, ENGINE)
    assert (found.verdict, found.change, found.factor) == ("off", {}, None)
    assert found.off == ["latency", "tpot"]
    assert found.cause.startswith("TPOT alone is off, by -23.1% (mean): kernels take other times")
    both = slower._replace(first_token=0.2 * slower.first_token)
    found = check_clock(TRUE, instance, both, ENGINE)
    assert found.cause.startswith("Neither a single limit nor one factor explains it")


def test_answers_that_came_at_once_have_latencies_alone(log):
    instance, seen = log
    found = check_clock(TRUE, instance, seen._replace(first_token=seen.latency), ENGINE)
    several = instance.outputs > 1
    assert np.isnan(found.measured.ttft[several]).all()
    assert "tpot" not in found.to_dict()
    assert found.off == []
    assert "holds" in str(found)


def test_a_log_of_nothing_and_a_closed_loop_of_several_engines_are_refused(log):
    instance, seen = log
    unknown = np.full(len(instance), np.nan)
    with pytest.raises(ClockError, match="the log has neither latencies nor times of first"):
        check_clock(TRUE, instance, Measured(seen.arrivals, unknown, unknown), ENGINE)
    with pytest.raises(ClockError, match="workers is 2, but a client that keeps 3 requests"):
        check_clock(TRUE, instance, seen._replace(arrivals=unknown), ENGINE, 3, workers=2)


def test_a_calibration_of_several_engines_finds_the_scale(log):
    instance, _ = log
    made = run(instance, ENGINE, clock=TRUE, workers=2, router="vllm-dp")
    seen = Measured(made.arrivals, made.first_token_latencies, made.latencies)
    fit = calibrated("llama-3.1-8b-rtx4090", instance, seen, ENGINE, workers=2)
    assert abs(fit.bias) < 0.01
    assert check_clock(fit.clock, instance, seen, ENGINE, workers=2).verdict == "holds"
