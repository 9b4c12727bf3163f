"""Batches timed by kernels: against the sum of kernels whose times are known formulas."""

import numpy as np
import pandas as pd
import pytest
from kernel_times import profile

from optsched.clock import BatchContent, LinearClock, clock_facts, get_clock
from optsched.clock.hardware import kernel_batches, shared_batches
from optsched.errors import ClockError


def seconds(row, layers):
    """Sum the kernels of a batch of one prompt, or of none."""
    tokens = row.prefill_tokens + row.decode_requests
    dense = 10 + 4e-3 * tokens + layers * (15 + 4.4e-2 * tokens)
    return 1e-6 * (dense + layers * attention_of(row))


def attention_of(row):
    beside = 2e-4 * row.resident_tokens * (1 + (row.prefill_tokens > 0))
    return 1e-5 * row.squared_prompts + beside


def test_a_batch_takes_the_sum_of_its_kernels(tmp_path):
    batches = kernel_batches(profile(tmp_path), 4, count=400)
    rest = [row.seconds - seconds(row, 4) for row in batches.itertuples()]
    sampled = (np.array(rest) * 1e6 - 100) / 0.5 - batches["decode_requests"]
    # Prompts sampled: none where none is prefilled, else one to four; squares interpolate above.
    pure = batches["prefill_tokens"] == 0
    assert pure.any()
    assert sampled[pure].to_numpy() == pytest.approx(0, abs=1e-6)
    assert sampled[~pure].min() > 1 - 1e-6


def test_a_fit_to_kernels_finds_their_formula(tmp_path):
    fit = LinearClock.fit(kernel_batches(profile(tmp_path), 32, overhead=0.001))
    assert abs(fit.bias) < 0.005
    assert fit.mean_error < 0.01
    assert fit.clock.resident_tokens == pytest.approx(32 * 2e-10, rel=0.05)
    assert fit.clock.mixed_tokens == pytest.approx(32 * 2e-10, rel=0.05)
    assert fit.clock.constant == pytest.approx(0.001 + 1e-6 * (110 + 32 * 15), rel=0.05)


def test_gpus_exchange_activations_twice_a_layer(tmp_path):
    folder = profile(tmp_path)
    alone = kernel_batches(folder, 8, count=50)
    link = {"link_latency": 1e-5, "link_bandwidth": 1e9}
    four = kernel_batches(folder, 8, count=50, ranks=4, hidden=1024, **link)
    tokens = alone["prefill_tokens"] + alone["decode_requests"]
    sent = tokens * 1024 * 2 * 2 * 3 / 4
    more = 2 * 8 * (1e-5 + sent / 1e9)
    assert four["seconds"].to_numpy() == pytest.approx((alone["seconds"] + more).to_numpy())


def test_experts_are_read_as_tokens_need_them(tmp_path):
    sizes = [1, 2, 4, 64, 2048]
    experts = [(n, k, 10.0 * k) for n in sizes for k in (2, 4, 8) if k <= 2 * n]
    folder = profile(tmp_path, experts)
    some = kernel_batches(folder, 3, count=200)
    (folder / "moe.csv").unlink()
    more = (some["seconds"] - kernel_batches(folder, 3, count=200)["seconds"]).to_numpy() * 1e6 / 30
    tokens = some["prefill_tokens"] + some["decode_requests"]
    activated = 8 * (1 - 0.75 ** np.array(sizes))
    assert more == pytest.approx(np.interp(tokens, sizes, activated))


def test_ranks_have_some_of_the_experts_each_and_exchange_activations(tmp_path):
    sizes = np.array([1, 2, 4, 64, 2048])
    folder = profile(tmp_path, [(n, k, 10.0 * k) for n in sizes for k in (1, 2, 4, 8)])
    link = {"link_latency": 1e-5, "link_bandwidth": 1e9}
    found = shared_batches(folder, 3, 4, 64, **link)
    tokens = found["prefill_tokens"].to_numpy()
    assert (tokens.min(), tokens.max()) == (1, 4 * 2048)
    activated = np.maximum(2 * (1 - (7 / 8) ** (4 * sizes)), 1)  # the least that was measured
    kernels = 10e-6 * np.interp(tokens / 4, sizes, activated)
    sent = tokens * 64 * 2 * 3 / 4
    expected = 3 * (kernels + 2 * (1e-5 + sent / 1e9))
    assert found["seconds"].to_numpy() == pytest.approx(expected)
    alone = kernel_batches(folder, 3, count=200, expert_ranks=4)
    (folder / "moe.csv").unlink()
    pd.testing.assert_frame_equal(alone, kernel_batches(folder, 3, count=200))
    with pytest.raises(ClockError, match="there must be at least 2 ranks"):
        shared_batches(folder, 3, 1, 64)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: (f / "dense.csv").unlink(), r"has no dense.csv; a folder of kernel times has"),
        (
            lambda f: (f / "dense.csv").write_text("layer,tokens,time_us\na,1,2\nb,2,3\n"),
            "dense.csv: no tokens has the times of all kernels",
        ),
        (lambda f: (f / "dense.csv").write_text("a,b\n1,2\n"), "needs the columns layer, tokens,"),
        (lambda f: (f / "dense.csv").write_bytes(b"\x80\xff"), "needs the columns layer, tokens,"),
        (
            lambda f: (f / "dense.csv").write_text("layer,tokens,time_us\nnorm,1,-1\n"),
            "all but names must be numbers of at least 0",
        ),
        (
            lambda f: pd.read_csv(f / "attention.csv").drop(index=5).to_csv(f / "attention.csv"),
            "attention.csv is no full grid",
        ),
    ],
)
def test_a_folder_of_something_else_is_refused_in_one_sentence(tmp_path, change, words):
    change(profile(tmp_path))
    with pytest.raises(ClockError, match=words):
        kernel_batches(tmp_path, 2)


def test_numbers_that_make_no_engine_are_refused(tmp_path):
    folder = profile(tmp_path)
    with pytest.raises(ClockError, match="0 layers on 1 GPUs: both must be at least 1"):
        kernel_batches(folder, 0)
    with pytest.raises(ClockError, match="several GPUs need the hidden size of the model"):
        kernel_batches(folder, 2, ranks=2)
    with pytest.raises(ClockError, match="memory is 3, which hardly any batch fits"):
        kernel_batches(folder, 2, memory=3)


@pytest.mark.parametrize(
    ("name", "layers", "memory", "overhead"),
    [("llama-3.1-8b-rtx4090", 32, 50_844, 0.0), ("qwen3-30b-a3b-rtxpro6000", 48, 200_000, 0.0007)],
)
def test_built_in_clocks_are_those_of_their_profiles(shared_data, name, layers, memory, overhead):
    """The total time of other batches than those that were fitted is met."""
    folder = shared_data / "gpus/profiles" / name
    others = kernel_batches(folder, layers, memory=memory, overhead=overhead, seed=5)
    clock = get_clock(name)
    counts = others.drop(columns="seconds").assign(held=0).to_numpy(np.float64)
    times = np.array([clock(BatchContent(*row)) for row in counts])
    assert times.sum() / others["seconds"].sum() == pytest.approx(1, abs=0.02)
    assert np.abs(times / others["seconds"] - 1).mean() < 0.04


def test_each_built_in_clock_says_what_it_is_and_where_from():
    for name, facts in clock_facts().items():
        assert {"title", "fit", "source", "left_out"} <= facts.keys(), name
        assert get_clock(name).unit == "s"
