"""Clocks against the formulas they stand for, and what they refuse."""

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from installed import with_serving
from tabled import tabled

from optsched import Instance, RequestTypes, bound, get_clock, run
from optsched.clock import BatchContent, FunctionClock, LinearClock, affine, clock_of
from optsched.clock.hardware import memory_tokens
from optsched.errors import ClockError, InstanceError
from optsched.models import equilibrium
from optsched.policies import EnginePolicy

counts = st.integers(0, 10**6)
contents = st.builds(BatchContent, counts, counts, counts, counts, counts)


def eq_1(d0, d1, prefills, decodes):
    """Fluid Eq. (1), literally: prompts l, and decoding requests (l, k) at their k-th token."""
    return d0 + d1 * (sum(prefills) + sum(prompt + made for prompt, made in decodes))


@given(
    st.lists(st.integers(1, 500), min_size=1),
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500))),
)
def test_affine_is_fluid_equation_1(prefills, decodes):
    batch = BatchContent(
        prefill_tokens=sum(prefills),
        decode_requests=len(decodes),
        resident_tokens=sum(prompt + made - 1 for prompt, made in decodes),
        squared_prompts=sum(prompt**2 for prompt in prefills),
        held_tokens=sum(prefills) + sum(prompt + made for prompt, made in decodes),
    )
    expected = eq_1(0.0085, 2.7e-7, prefills, decodes)
    assert math.isclose(get_clock("affine:0.0085,2.7e-7")(batch), expected)
    assert math.isclose(affine(0.0085, 2.7e-7)(batch), expected)


@given(contents)
def test_a_clock_is_its_coefficient_vector(batch):
    for name in ("unit", "affine:0.5,0.25", "llama-2-70b-2xa100", "llama-2-7b-a100"):
        clock = get_clock(name)
        assert math.isclose(clock(batch), clock.coefficients @ np.array([1, *batch]))
    assert get_clock("unit")(batch) == 1


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("llama-2-70b-2xa100", "llama-2-70b_2xA100-80GB_TP2"),
        ("llama-2-7b-a100", "llama-2-7b_1xA100-80GB_TP1"),
    ],
)
def test_profiled_coefficients_are_the_recommended_fits(shared_data, name, model):
    entry = json.loads((shared_data / "batch_time.json").read_text())["models"][model]
    fit = entry[entry["recommended"]]
    expected = [fit[f"c{index}"] for index in range(5)] + [0]
    assert get_clock(name).coefficients.tolist() == expected


def test_a_function_is_a_clock():
    def mine(batch):
        return 0.5 + batch.decode_requests

    clock = get_clock(mine)
    assert (clock.name, clock.coefficients) == ("mine", None)
    assert clock(BatchContent(0, 2, 9, 0, 11)) == 2.5
    assert get_clock(clock) is clock
    assert str(clock) == "mine: a function of the batch, s"


@tabled()
def test_what_is_no_clock_is_refused_in_one_sentence(bad, message):
    with pytest.raises(ClockError, match=message):
        get_clock(bad)


def test_no_batch_takes_zero_or_negative_time():
    with pytest.raises(ClockError, match="a batch that only decodes would take no time"):
        LinearClock("prefill only", prefill_tokens=1)
    LinearClock("no overhead", prefill_tokens=1, decode_requests=1)
    empty_prompt = BatchContent(0, 0, 0, 0, 1)
    with pytest.raises(ClockError, match=r"takes 0.0 s, but must take a finite time above 0"):
        LinearClock("no overhead", prefill_tokens=1, decode_requests=1)(empty_prompt)
    for time in (0, -1.0, math.nan, math.inf, None, "long"):
        with pytest.raises(ClockError, match="clock odd: a batch with 0 prefill_tokens, "):
            FunctionClock(lambda _, time=time: time, "odd")(empty_prompt)


BENT = LinearClock(
    *("bent", 0.02, 1e-4, 2e-4, 1e-6, 1e-8),
    mixed_tokens=2e-6,
    hinges=((64, 3e-4), (8, 1e-3)),
    ramps=((32, 5e-4), (128, 1e-4)),
)
WEIGHTED = [*BatchContent._fields[:4]]


@given(contents)
def test_what_bends_is_paid_for_tokens_of_the_batch(batch):
    plain = LinearClock("plain", 0.02, 1e-4, 2e-4, 1e-6, 1e-8)
    tokens = batch.prefill_tokens + batch.decode_requests
    more = 3e-4 * max(tokens - 64, 0) + 1e-3 * max(tokens - 8, 0)
    more += 5e-4 * min(tokens, 32) + 1e-4 * min(tokens, 128)
    more += 2e-6 * batch.resident_tokens if batch.prefill_tokens else 0
    assert math.isclose(BENT(batch), plain(batch) + more)


@pytest.mark.parametrize("policy", ["fcfs", "sarathi", *with_serving("vllm"), "vllm-v0", "a-min"])
def test_compiled_simulators_know_hinges(policy):
    rng = np.random.default_rng(1)
    instance = Instance(rng.integers(1, 90, 40), rng.integers(1, 20, 40), 400)
    known = {"intervals": "exact"} if policy == "a-min" else {}
    bent = run(instance, policy, clock=BENT, **known)
    by_call = run(instance, policy, clock=lambda batch: BENT(batch), **known)
    assert bent.check() == []
    assert np.allclose(bent.log.spans, by_call.log.spans)
    assert (bent.log.contents[:, 0] > 64).any()


def test_bounds_leave_hinges_out_and_hold():
    rng = np.random.default_rng(3)
    plain = LinearClock("plain", 0.02, 1e-4, 2e-4, 1e-6, 1e-8)
    for _ in range(5):
        instance = Instance(rng.integers(1, 90, 12), rng.integers(1, 9, 12), 200)
        proven = bound(instance, clock=BENT)
        assert proven.value == bound(instance, clock=plain).value
        assert proven.value <= run(instance, "area", clock=BENT).total_latency


def test_the_fluid_model_refuses_hinges():
    types = RequestTypes([10], [5], [1.0])
    with pytest.raises(ClockError, match="has hinges, ramps or mixed tokens, but in the fluid"):
        equilibrium(types, BENT)


def test_a_clock_returns_from_its_file_and_is_a_clock_by_its_path(tmp_path):
    BENT.to_json(tmp_path / "mine.json")
    assert LinearClock.from_json(tmp_path / "mine.json") == BENT
    assert get_clock(str(tmp_path / "mine.json")) == BENT
    assert "0.0003 (batch tokens beyond 64)" in str(BENT)


@tabled()
def test_a_file_that_is_no_clock_is_refused_in_one_sentence(tmp_path, content, words):
    (tmp_path / "clock.json").write_text(json.dumps(content))
    with pytest.raises(ClockError, match=words):
        get_clock(str(tmp_path / "clock.json"))


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(ClockError, match=r"there is no .*nowhere\.json"):
        get_clock("nowhere.json")


def measured(count, clock, noise=0.0):
    """Batches that a clock times, and noise."""
    rng = np.random.default_rng(2)
    table = pd.DataFrame(
        {
            "prefill_tokens": rng.integers(0, 700, count) * rng.integers(0, 2, count),
            "decode_requests": rng.integers(1, 90, count),
            "resident_tokens": rng.integers(1, 90_000, count),
            "squared_prompts": rng.integers(1, 500_000, count),
        }
    )
    seconds = [clock(BatchContent(*row, 0)) for row in table[WEIGHTED].to_numpy()]
    return table.assign(seconds=np.array(seconds) * rng.uniform(1 - noise, 1 + noise, count))


def test_a_fit_finds_the_clock_that_timed_the_batches(tmp_path):
    true = LinearClock("true", 0.05, 1e-4, 2e-4, 2e-7, 5e-9, hinges=((64, 2e-4), (512, 5e-5)))
    measured(400, true).to_csv(tmp_path / "batches.csv", index=False)
    fit = LinearClock.fit(tmp_path / "batches.csv", "true")
    found = dict(fit.clock.hinges)
    assert fit.clock.coefficients == pytest.approx(true.coefficients, rel=1e-3)
    assert [found[64], found[512]] == pytest.approx([2e-4, 5e-5], rel=1e-3)
    assert abs(fit.bias) < 1e-5
    assert fit.judged == 200
    assert str(fit).splitlines()[1].startswith("bias ")


def test_errors_of_a_fit_are_those_on_batches_that_it_has_not_seen():
    fit = LinearClock.fit(measured(2000, BENT, noise=0.1), hinges=())
    table = measured(2000, BENT, noise=0.1)[1::2]
    times = np.array([fit.clock(BatchContent(*row, 0)) for row in table[WEIGHTED].to_numpy()])
    seconds = table["seconds"].to_numpy()
    assert fit.bias == pytest.approx(times.sum() / seconds.sum() - 1)
    assert fit.mean_error == pytest.approx(np.abs(times / seconds - 1).mean())
    assert fit.mean_error > 0.04


@pytest.mark.parametrize("spread", [0.1, 0.3, 0.5])
def test_noisy_times_leave_no_bias(spread):
    """Means are kept; weights of 1 / measured^2 alone are 2, 17 and 40 % too fast."""
    rng = np.random.default_rng(7)
    plain = LinearClock("plain", 0.02, 1e-4, 2e-4, 1e-6, 1e-8)
    table = measured(3000, plain)
    noise = rng.lognormal(-(spread**2) / 2, spread, len(table))
    fit = LinearClock.fit(table.assign(seconds=table["seconds"] * noise), hinges=())
    found = [fit.clock(BatchContent(*row, 0)) for row in table[WEIGHTED].to_numpy()]
    assert sum(found) / table["seconds"].sum() == pytest.approx(1, abs=0.05 * spread)


@pytest.mark.parametrize("factor", [1e-3, 1e6])
def test_one_wild_time_hardly_moves_a_fit(factor):
    table = measured(400, BENT)
    table.loc[10, "seconds"] *= factor
    batch = BatchContent(100, 20, 5000, 10**4, 0)
    found = LinearClock.fit(table, hinges=(8, 64), ramps=(32, 128)).clock(batch)
    assert found == pytest.approx(BENT(batch), rel=0.02)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.head(20), "the table has 20 batches, but a fit needs 120"),
        (lambda t: t.drop(columns="seconds"), "has no column seconds; a row per batch needs"),
        (
            lambda t: t.assign(seconds=0.0),
            "batch 0: seconds is .*0.0.*, but must be a number above",
        ),
        (
            lambda t: t.assign(decode_requests=-1),
            "decode_requests is .*-1.*must be a number from 0",
        ),
    ],
)
def test_batches_that_cannot_be_fitted_are_refused_in_one_sentence(change, words):
    with pytest.raises(ClockError, match=words):
        LinearClock.fit(change(measured(100, BENT)))
    with pytest.raises(ClockError, match=r"cannot read batches from nowhere\.csv"):
        LinearClock.fit("nowhere.csv")


def test_names_of_a_model_and_its_gpus_lead_to_the_clock():
    assert clock_of("llama-2-70b", "a100-80gb", 2) == "llama-2-70b-2xa100-hinges"
    assert clock_of("llama-2-7b", "a100-80gb", 1) == "llama-2-7b-a100"
    for unknown in (("llama-3-8b", "h100-80gb", 1), ("llama-2-70b", "a100-80gb", 4)):
        model, gpu, gpus = unknown
        near = {"llama-3-8b": "llama-3.1-8b on 1 h100", "llama-2-70b": "llama-2-70b on 2 a100"}
        said = f"is not known of {model} on {gpus} {gpu}; did you mean '{near[model]}-80gb'"
        with pytest.raises(ClockError, match=said):
            clock_of(*unknown)
    for mistyped in ("llama-2-70", "Llama-2-70B"):
        with pytest.raises(ClockError, match="did you mean 'llama-2-70b-2xa100'"):
            get_clock(mistyped)
        with pytest.raises(InstanceError, match="did you mean 'llama-2-70b'"):
            memory_tokens(mistyped, "a100-80gb", 2)
    with pytest.raises(InstanceError, match="did you mean 'a100-80gb'"):
        memory_tokens("llama-2-70b", "A100-80GB", 2)


@pytest.mark.parametrize("engine", ["vllm-like", "sarathi-like"])
def test_the_clock_with_hinges_has_no_bias_on_either_engine(shared_data, engine):
    table = pd.read_csv(shared_data / "engines" / "llama-2-70b-2xa100-batches.csv.gz")
    fit = LinearClock.fit(table, "llama-2-70b-2xa100-hinges")
    shipped = get_clock("llama-2-70b-2xa100-hinges")
    assert fit.clock == shipped
    others = table[1::2]
    others = others[others["engine"] == engine]
    times = np.array([shipped(BatchContent(*row, 0)) for row in others[WEIGHTED].to_numpy()])
    seconds = others["seconds"].to_numpy()
    assert abs(times.sum() / seconds.sum() - 1) < 0.01
    assert np.abs(times / seconds - 1).mean() < 0.025


@pytest.mark.parametrize(
    ("engine", "batching", "tokens"), [("sarathi", "chunked", 512), ("vllm", "prefill-first", 4096)]
)
def test_mean_latency_is_that_of_vidur(shared_data, engine, batching, tokens):
    table = pd.read_csv(shared_data / "engines" / f"vidur_{engine}_conv_requests.csv.gz")
    arrivals = np.round(table["arrival_s"] * 1e6).astype(np.int64)
    requests = Instance(
        table["prompt_tokens"], table["output_tokens"], 103_280, arrivals, seconds_per_step=1e-6
    )
    policy = EnginePolicy(engine, "", batching, 128, tokens, watermark=0.01, block_size=16)
    latency = (table["last_s"] - table["arrival_s"]).mean()
    found = run(requests, policy, clock="llama-2-70b-2xa100-hinges").mean_latency
    assert found == pytest.approx(latency, rel=0.02)


@pytest.mark.parametrize("least", [6, 60, 600])
def test_a_fit_keeps_the_constant_where_no_batch_is_small(least):
    rng = np.random.default_rng(least)
    prompts, decodes = rng.integers(least, 900, 400), rng.integers(1, 40, 400)
    table = pd.DataFrame({"prefill_tokens": prompts, "decode_requests": decodes})
    table = table.assign(resident_tokens=500 * decodes, squared_prompts=prompts**2)
    table["seconds"] = 0.02 + 1e-4 * prompts + 1e-4 * decodes + 1e-6 * table["resident_tokens"]
    clock = LinearClock.fit(table).clock
    assert clock.constant == pytest.approx(0.02, rel=0.02)
    tokens = (prompts + decodes).tolist()
    assert all(min(tokens) < at < max(tokens) for at, _ in (*clock.hinges, *clock.ramps))
    assert ("tokens", min(tokens), max(tokens)) in clock.fitted
    again = LinearClock.from_json(clock.to_json())
    assert again == clock
    assert again.fitted == clock.fitted == clock.scaled(2).fitted
    inside = np.append(table.to_numpy()[:1, :4].astype(int), [[0]], axis=1)
    assert clock.beyond(inside) is None
    said = clock.beyond(inside + np.array([1000, 0, 0, 0, 0]))
    assert "100.0% of the batches leave what clock fitted was fitted on" in said
    assert f"prefill_tokens {prompts[0] + 1000:,} to" in said


@pytest.mark.parametrize("fitted", [3, ["tokens"], [["speed", 0, 1]], [["tokens", 2, 1]]])
def test_ranges_that_are_none_are_refused(fitted):
    with pytest.raises(ClockError, match=r"fitted holds .*, but must be a list of counts"):
        LinearClock("mine", 1, fitted=fitted)


def test_ranks_wait_for_the_slowest_and_share_what_all_tokens_need():
    own = LinearClock("own", constant=0.5, resident_tokens=0.25, hinges=((2, 0.125),))
    part = LinearClock("experts", constant=1.0, decode_requests=0.5, ramps=((4, 2.0),))
    clock = own.with_shared(part)
    one, other = BatchContent(0, 3, 10, 0, 13), BatchContent(4, 1, 2, 16, 7)
    assert clock(one) == (0.5 + 2.5 + 0.125) + (1.0 + 1.5 + 6.0)
    assert clock.together([one]) == clock(one)
    # Three and five tokens: each alone, the slower one counts; experts see all eight.
    assert clock.together([one, other]) == max(3.125, 0.5 + 0.5 + 0.375) + 1.0 + 2.0 + 8.0
    assert own.together([one, other]) == max(own(one), own(other))
    assert LinearClock.from_json(clock.to_json()) == clock
    assert clock.scaled(2.0).together([one, other]) == 2 * clock.together([one, other])
    assert str(clock).endswith("of all ranks together, " + str(part))
    with pytest.raises(ClockError, match=r"shared is experts: .* but must be a part of the clock"):
        dataclasses.replace(own, shared=part)
