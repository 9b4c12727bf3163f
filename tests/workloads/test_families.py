"""Families: reproducible, valid, and with the moments that the papers state."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opposite_orders import opposite_orders
from tabled import tabled

from optsched import Instance, family, read_trace, run
from optsched.errors import InstanceError
from optsched.workloads import FAMILIES
from optsched.workloads.families import bounded, poisson

SEEDS = range(20)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_valid_and_reproducible(name):
    first, again = family(name, seed=3), family(name, seed=3)
    assert isinstance(first, Instance)
    assert first == again
    assert first.name == name
    assert first.memory == FAMILIES[name].memory
    for n in (1, 2, 3, 6, 30):
        try:
            assert len(family(name, n=n)) == n
        except InstanceError as error:
            picky = ("partition", "3-partition", "jaillet-theorem-6-2", "jaillet-theorem-6-4")
            assert name.removesuffix("-no") in picky, error  # noqa: PT017


@pytest.mark.parametrize("name", ["uniform", "normal", "mixed", "chat-and-summaries", "partition"])
def test_seeds_matter(name):
    assert family(name, seed=1) != family(name, seed=2)


@pytest.mark.parametrize(
    ("name", "prompt_mean", "output_mean"),
    [
        ("uniform", 25.5, 25.5),
        ("normal", 25, 25),
        ("binomial", 25.5, 25.5),
        # Rounded to whole numbers from 1, an exponential of mean 5 has mean 5.1.
        ("exponential", 5.1, 5.1),
    ],
)
def test_means_of_the_sorted_f_distributions(name, prompt_mean, output_mean):
    instance = family(name, n=100_000)
    assert instance.prompts.mean() == pytest.approx(prompt_mean, rel=0.01)
    assert instance.outputs.mean() == pytest.approx(output_mean, rel=0.01)
    assert instance.prompts.min() >= 1
    assert max(instance.prompts.max(), instance.outputs.max()) <= 50
    if name == "uniform":
        assert set(instance.prompts.tolist()) == set(range(1, 51))


def test_mixed_has_two_humps_and_no_prompt_beyond_50():
    prompts = family("mixed", n=100_000).prompts
    assert prompts.max() <= 50
    # 80 % exponential of mean 10 above 25: exp(-2.55) of them; 97 % of the lognormal ones.
    assert np.mean(prompts > 25) == pytest.approx(0.8 * np.exp(-2.55) + 0.2 * 0.964, rel=0.02)


@pytest.mark.parametrize("seed", SEEDS[:3])
@pytest.mark.parametrize("memory", [16_492, 900])
def test_ids_of_conversations_say_which_tokens_are_alike(seed, memory):
    instance = family("conversations", 300, seed, memory, rate=2.0, seconds_per_step=0.01)
    firsts = instance.follows < 0
    assert (np.diff(instance.arrivals)[firsts[1:]] >= 0).all()
    assert set(instance.follows[~firsts] - np.flatnonzero(~firsts)) == {-1}
    said = {}
    for request, ids in enumerate(instance.hash_ids):
        peak, before = int(instance.peaks[request]), int(instance.follows[request])
        assert len(ids) == peak // 16
        known = 500 // 16 if before < 0 else int(instance.peaks[before]) // 16
        if before >= 0:
            assert instance.prompts[request] > instance.peaks[before]
            assert ids[:known].tolist() == instance.hash_ids[before].tolist()
        assert ids[: 500 // 16].tolist() == instance.hash_ids[0][: 500 // 16].tolist()
        new = ids[known:].tolist()
        assert not said.keys() & set(new)
        said |= dict.fromkeys(new)
    assert instance.pauses[~firsts].mean() == pytest.approx(3000, rel=0.25)


def test_system_prompts_are_shared_as_often_as_the_family_says():
    instance = family("system-prompts", 5_000, heads=3, shared=100, rate=2.0)
    heads, counts = np.unique([ids[0] for ids in instance.hash_ids], return_counts=True)
    assert (len(heads), {len(ids) for ids in instance.hash_ids}) == (3, {100 // 16})
    assert counts / 5_000 == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.03)
    assert (instance.follows, instance.prompts.min() > 100) == (None, True)
    assert instance.prompts.mean() == pytest.approx(300, rel=0.03)
    assert instance.outputs.mean() == pytest.approx(150, rel=0.05)
    loaded = family("conversations", 20_000, shared=0, load=0.5)
    assert loaded.areas.sum() / (16_492 * loaded.arrivals[-1]) == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"turns": 0.5}, "turns is 0.5, but must be at least 1"),
        ({"text": 0}, "text is 0, but must be a positive number of tokens"),
        ({"shared": 16_491}, "shared is 16491, but must be a whole number from 0 to 16490"),
        ({"heads": 0}, "heads is 0"),
    ],
)
def test_conversations_that_cannot_be(parameters, words):
    with pytest.raises(InstanceError, match=words):
        family("conversations", **parameters)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", [2000, 20_000])
def test_chat_and_summaries_has_the_moments_of_sorted_f_section_7(n, seed):
    instance = family("chat-and-summaries", n=n, seed=seed)
    assert instance.prompts.mean() == pytest.approx(542.75, rel=0.05)
    assert np.median(instance.prompts) == pytest.approx(18, rel=0.05)
    assert instance.outputs.mean() == pytest.approx(127.5, rel=0.05)


@pytest.mark.parametrize(
    ("summaries", "prompt_mean", "prompt_median", "output_mean", "output_median"),
    [(0, 41.84, 12, 85.35, 43), (1, 2546.39, 2667.5, 296.08, 161)],
)
def test_the_parts_have_their_own_moments(
    summaries, prompt_mean, prompt_median, output_mean, output_median
):
    instance = family("chat-and-summaries", n=20_000, summaries=summaries)
    assert instance.prompts.mean() == pytest.approx(prompt_mean, rel=0.05)
    assert np.median(instance.prompts) == pytest.approx(prompt_median, rel=0.05)
    assert instance.outputs.mean() == pytest.approx(output_mean, rel=0.05)
    assert np.median(instance.outputs) == pytest.approx(output_median, rel=0.05)


def test_poisson_arrivals_have_the_rate_and_leave_the_lengths_alone():
    plain, timed = family("uniform", n=50_000), family("uniform", n=50_000, rate=0.25)
    assert np.array_equal(plain.prompts, timed.prompts)
    assert np.array_equal(plain.outputs, timed.outputs)
    assert not plain.arrivals.any()
    assert len(timed) / timed.arrivals[-1] == pytest.approx(0.25, rel=0.03)
    assert family("uniform", n=50_000, load=0.8).load == pytest.approx(0.8, rel=0.03)
    steps = poisson(50_000, 2.0, np.random.default_rng(0))
    counts = np.bincount(steps)
    assert counts.var() == pytest.approx(counts.mean(), rel=0.05)


def test_sorted_f_theorem_1_and_ec_1_are_the_instances_of_the_proofs():
    instance = family("sorted-f-theorem-1", memory=16)
    assert instance.prompts.tolist() == [3] * 16 + [1] * 64
    assert instance.outputs.tolist() == [1] * 16 + [2] * 64
    instance = family("sorted-f-theorem-ec-1", memory=16)
    assert instance.prompts.tolist() == [1] * 16 + [4] * 64
    assert instance.outputs.tolist() == [3] * 16 + [1] * 64
    scaled = family("sorted-f-theorem-1", n=10, memory=16)
    assert scaled.outputs.tolist() == [1] * 2 + [2] * 8


def test_balanced_and_long_families_have_the_types_of_the_proofs():
    instance = family("sorted-f-theorem-1-balanced", memory=10_000, batches=2)
    # Batches of 100 requests over 1 step and of 3,333 over 2: 100 a^2 / 2 is near 3,333 b (b + 1).
    prompts, counts = np.unique(instance.prompts, return_counts=True)
    assert prompts.tolist() == [1, 99]
    assert counts.tolist() == [2 * 3333, 20 * 100]
    instance = family("sorted-f-theorem-ec-1-balanced", memory=100, batches=1)
    assert set(instance.peaks.tolist()) == {10, 11}
    for name in ("sorted-f-theorem-1-long", "sorted-f-theorem-ec-1-long"):
        instance = family(name, memory=100)
        assert set(instance.peaks.tolist()) <= {3, 99, 100}
        assert len(family(name, memory=100, batches=6)) > len(instance)


def test_sorted_f_example_1_costs_what_the_paper_says():
    instance = family("sorted-f-example-1")
    assert instance == Instance([63] + [1] * 21, [1] + [2] * 21, 64, name="sorted-f-example-1")
    assert run(instance, "mc-sf").total_latency == 64
    assert run(instance, "sorted-f").total_latency == 45


def test_jaillet_theorem_6_2_lets_the_short_ones_come_before_the_long_one_ends():
    instance = family("jaillet-theorem-6-2", memory=64)
    assert instance.peaks[0] == 64
    assert instance.prompts.tolist() == [8] * 9
    assert instance.outputs.tolist() == [56] + [1] * 8
    assert instance.arrivals.tolist() == [0] + [48] * 8


def test_jaillet_theorem_6_4_draws_the_step_of_the_short_ones():
    drawn = [family("jaillet-theorem-6-4", memory=64, seed=seed) for seed in range(400)]
    assert all(each.prompts.tolist() == [8] * 9 for each in drawn)
    assert all(each.outputs.tolist() == [56] + [1] * 8 for each in drawn)
    assert all(len(set(each.arrivals[1:].tolist())) == 1 for each in drawn)
    steps = [int(each.arrivals[1]) for each in drawn]
    assert set(steps) == set(range(8, 3 * 64 - 8, 8))
    assert np.mean(steps) == pytest.approx(8 * 11.5, rel=0.1)
    with pytest.raises(InstanceError, match="delay is 0, but must be a whole number from 1"):
        family("jaillet-theorem-6-4", delay=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_partitions_exist_by_construction(seed):
    instance = family("3-partition", n=12, seed=seed, memory=100)
    assert instance.peaks.sum() == 4 * 100
    assert instance.peaks.min() > 25
    assert instance.peaks.max() < 50
    instance = family("partition", n=9, seed=seed, memory=100)
    sums = {0}
    for peak in instance.peaks.tolist():
        sums |= {partial + peak for partial in sums}
    assert instance.peaks.sum() == 2 * 100
    assert 100 in sums


def test_families_by_text():
    assert read_trace("family:uniform,n=30,seed=7", 100) == family("uniform", 30, seed=7)
    assert read_trace("family:uniform,n=30,seed=7", 120).memory == 120
    assert len(read_trace("family:uniform,n=30", 100, limit=5)) == 5
    text = "family:chat-and-summaries, n=10, rate=0.5, summaries=.3"
    assert read_trace(text) == family("chat-and-summaries", 10, rate=0.5, summaries=0.3)


@tabled()
def test_bad_families_are_refused(text, message):
    with pytest.raises(InstanceError, match=message):
        read_trace(text)


def test_memory_that_a_family_cannot_use_is_refused():
    with pytest.raises(InstanceError, match=r"memory is 50, but this family needs .*; take 49"):
        family("sorted-f-theorem-1", memory=50)
    with pytest.raises(InstanceError, match=r"1,001,000,000 requests; give n, or take the family"):
        family("sorted-f-theorem-1", memory=10**6)
    with pytest.raises(InstanceError, match=r"batches is 0\.5, but must be a whole number"):
        family("sorted-f-theorem-1-long", batches=0.5)
    with pytest.raises(InstanceError, match="requests; take fewer batches"):
        family("sorted-f-theorem-1-long", memory=10**6, batches=10**4)
    with pytest.raises(InstanceError, match="memory is 4, but this family needs 16 or more"):
        family("sorted-f-theorem-ec-1-long", memory=4)
    with pytest.raises(InstanceError, match="multiple of 3 and the memory the sum"):
        family("3-partition", n=3, memory=8)
    with pytest.raises(InstanceError, match="the memory holds 10; leave the request out or raise"):
        family("uniform", memory=10)


def test_equal_prompts_are_those_of_jaillet():
    instance = family("equal-prompts", n=30_000, seed=1, prompt=2, output_least=3, output_most=7)
    assert set(instance.prompts.tolist()) == {2}
    counts = np.bincount(instance.outputs)[3:]
    assert len(counts) == 5
    assert counts.min() > 0.95 * 6000
    with pytest.raises(InstanceError, match="output_most is 2, but must be a whole number from 3"):
        family("equal-prompts", output_least=3, output_most=2)


@pytest.mark.parametrize("rate", [0.3, 1.0, 4.7])
def test_arrivals_per_step_are_bounded_and_of_the_rate(rate):
    arrivals = bounded(40_000, rate, np.random.default_rng(1))
    counts = np.bincount(arrivals)
    assert np.all(np.diff(arrivals) >= 0)
    assert counts.max() <= int(np.ceil(2 * rate))
    assert len(arrivals) / arrivals[-1] == pytest.approx(rate, rel=0.02)
    # Independent steps: what one brings says nothing of the next.
    assert abs(np.corrcoef(counts[:-1], counts[1:])[0, 1]) < 0.02
    family_arrivals = family("equal-prompts", n=1000, rate=rate, seed=4).arrivals
    assert np.bincount(family_arrivals).max() <= int(np.ceil(2 * rate))


def test_a_seed_may_be_larger_than_any_number_of_tokens():
    """Seeds that regret draws for its cells had been refused."""
    assert len(family("uniform", n=3, seed=2**40)) == 3


@pytest.mark.parametrize(
    ("name", "prompts", "outputs"),
    [
        # Mean, median, variance and largest of prompts and outputs; Jaillet prints no variance.
        ("chat", (41, 11, 4_961, 468), (85, 43, 9_702, 883)),
        ("chat-words", (40.62, 11, None, 499), (85.32, 45, None, 599)),
    ],
)
def test_lengths_have_all_moments_that_the_papers_print(name, prompts, outputs):
    drawn = family(name, n=400_000, seed=1)
    assert drawn.memory == 16_492
    for lengths, (mean, median, variance, longest) in (
        (drawn.prompts, prompts),
        (drawn.outputs, outputs),
    ):
        assert lengths.mean() == pytest.approx(mean, rel=0.015)
        assert abs(np.median(lengths) - median) <= 1
        assert variance is None or lengths.var() == pytest.approx(variance, rel=0.015)
        assert lengths.min() == 1
        assert lengths.max() == longest


def test_lengths_are_the_same_for_the_same_seed_whatever_the_rate():
    one, other = family("chat", n=50, seed=3), family("chat", n=50, seed=3, rate=2.0)
    assert one.prompts.tolist() == other.prompts.tolist()
    assert one.outputs.tolist() == other.outputs.tolist()
    assert other.arrivals.max() > 0


@given(data=st.data())
def test_the_prefix_rule_is_never_worse_than_batches_one_after_another(data):
    counts = data.draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    types = data.draw(
        st.lists(
            st.tuples(st.integers(0, 6), st.integers(1, 6)), min_size=2, max_size=2, unique=True
        )
    )
    prompts, outputs = np.repeat(types, counts, axis=0).T
    instance = Instance(prompts, outputs, data.draw(st.integers(12, 40)))
    in_order = run(instance, "fcfs").total_latency
    assert in_order <= opposite_orders(instance)[0]
    swapped = instance.take(np.arange(len(instance))[::-1])
    assert opposite_orders(swapped) == opposite_orders(instance)[::-1]
    assert run(swapped, "fcfs").total_latency <= opposite_orders(instance)[1]


@pytest.mark.parametrize("memory", [64, 1024])
def test_they_are_the_printed_sums(memory):
    """Theorem 1: sqrt(M) sum i + X Y / sqrt(M) + 2 M / 3 sum j, and 6 X Y / M in the middle.

    With M divisible by 3 the numbers of batches are whole; 576 and 2304 are.
    """
    root, memory = 3 * int(memory**0.5), 9 * memory
    x, y = memory, memory * root
    ones = np.arange(1, x // root + 1).sum() * root
    twos = np.arange(1, 3 * root + 1).sum() * 2 * memory // 3
    found = opposite_orders(family("sorted-f-theorem-1", memory=memory))
    assert found == (ones + x * y // root + twos, ones + 6 * x * y // memory + twos)


def test_they_are_exact_where_nothing_fits_beside_a_full_batch():
    for theorem, policy in (("1", "mc-sf"), ("ec-1", "mc-sf-total")):
        instance = family(f"sorted-f-theorem-{theorem}-long", memory=900)
        worse, better = opposite_orders(instance)
        assert run(instance, policy).total_latency == worse
        assert run(instance, "area").total_latency == better


def test_other_than_two_types_are_refused():
    with pytest.raises(InstanceError, match="the instance has 3 types of requests, but 2 are need"):
        opposite_orders(Instance([1, 2, 3], [1, 1, 1], 9))
