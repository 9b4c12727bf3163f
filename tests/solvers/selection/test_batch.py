"""Batch selection: the exact methods agree, the scaled one keeps its promise."""

from fractions import Fraction

import brute_force
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances

from optsched import Instance
from optsched.errors import ModelError, SolverError
from optsched.models import BatchSelection
from optsched.policies import get_policy
from optsched.solvers import BATCH_METHODS, select_batch
from optsched.solvers.selection import _least_sums


def selection_of(instance, fit="peak"):
    return BatchSelection(instance.prompts, instance.outputs, instance.memory, fit)


def best(instance, fit="peak"):
    """Return the least F and the most members that have it, by looking at every batch."""
    selection = selection_of(instance, fit)
    batches = brute_force.batches(selection)
    return min((brute_force.ratio(batch, selection), -len(batch)) for batch in batches)


tiny = instances(max_requests=7, max_memory=25, max_output=9)


@examples(300)
@given(instance=tiny)
def test_the_table_finds_the_best_of_all_batches(instance):
    batch = select_batch(instance, "dp")
    assert (batch.ratio, -len(batch)) == best(instance)
    assert batch.factor == 1
    assert selection_of(instance).fits(batch.requests)
    assert (np.diff(instance.outputs[batch.requests]) >= 0).all()


def test_of_equal_f_the_largest_is_taken_and_the_label_says_that_alg_2_does_not():
    """As printed, Alg. 2 goes through sizes from one on and keeps what is strictly better."""
    outputs, printed = [1, 3], []
    for size in (1, 2):
        chosen = sorted(outputs)[:size]
        if not printed or sum(chosen) * len(printed) ** 2 < sum(printed) * size**2:
            printed = chosen
    batch = select_batch(Instance([1, 1], outputs, 20), "dp")
    assert (printed, batch.ratio, len(batch)) == ([1], 1, 2)
    assert get_policy("sorted-f-dp").source.startswith("after ")


@pytest.mark.parametrize("fit", ["peak", "profile"])
@pytest.mark.parametrize("method", ["auto", "highs", "cp-sat"])
@examples(100)
@given(instance=tiny)
def test_solvers_find_the_best_of_all_batches_in_both_fits(method, fit, instance):
    batch = select_batch(instance, method, fit)
    assert (batch.ratio, -len(batch)) == best(instance, fit)
    assert batch.factor == 1
    assert selection_of(instance, fit).fits(batch.requests)


@examples(300)
@given(instance=instances(max_requests=8, max_memory=60, max_output=50), data=st.data())
def test_the_scaled_table_keeps_its_factor_and_fits(instance, data):
    epsilon = data.draw(st.sampled_from([0.01, 0.1, 0.5, 1.0, 5.0]))
    batch = select_batch(instance, "scaled-dp", epsilon=epsilon)
    least, _ = best(instance)
    assert selection_of(instance).fits(batch.requests)
    assert batch.factor in (1.0, 1.0 + epsilon)
    assert batch.ratio <= Fraction(batch.factor) * least


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0])
def test_the_scaled_table_keeps_its_factor_where_it_rounds(epsilon):
    rng = np.random.default_rng(5)
    rounded = 0
    for _ in range(30):
        outputs = rng.integers(2000, 9000, 40)
        instance = Instance(rng.integers(1, 3000, 40), outputs, memory=30_000)
        exact, batch = (
            select_batch(instance, "dp"),
            select_batch(instance, "scaled-dp", epsilon=epsilon),
        )
        assert batch.ratio <= Fraction(batch.factor) * exact.ratio
        assert selection_of(instance).fits(batch.requests)
        rounded += batch.factor > 1
    assert rounded == 30


def literal_alg_3(instance, epsilon, precision):
    """Alg. 3 as printed: peaks rounded down."""
    scale = max(1, epsilon * instance.memory / precision)
    width = int(instance.memory // scale)
    table = {(0, 0): (0, ())}
    for i, (peak, output) in enumerate(
        zip(instance.peaks.tolist(), instance.outputs.tolist(), strict=True)
    ):
        for (size, held), (total, members) in sorted(table.items(), reverse=True):
            after = (size + 1, held + int(peak // scale))
            if after[1] <= width and total + output < table.get(after, (np.inf,))[0]:
                table[after] = (total + output, (*members, i))
    return min((Fraction(t, k * k), m) for (k, _), (t, m) in table.items() if k)[1]


def test_the_papers_alg_3_returns_batches_that_do_not_fit():
    instance = Instance([19, 19, 19], [10, 10, 10], memory=60)
    printed = literal_alg_3(instance, epsilon=1.0, precision=6)
    assert len(printed) == 3  # 87 tokens, counted as 2 tens each
    assert not selection_of(instance).fits(printed)
    assert len(select_batch(instance, "scaled-dp", epsilon=1.0)) == 2


@examples(100)
@given(instance=tiny)
def test_bounds_on_sums_of_outputs_hold(instance):
    largest = int((np.cumsum(np.sort(instance.peaks)) <= instance.memory).sum())
    bounds = _least_sums(instance, largest)
    selection = selection_of(instance)
    for batch in brute_force.batches(selection):
        assert bounds[len(batch) - 1] <= instance.outputs[list(batch)].sum() + 1e-9


def literal_alg_4(instance):
    """Alg. 4: fill by ascending peak, then take the first improving swap, again and again."""
    peaks, outputs = instance.peaks.tolist(), instance.outputs.tolist()
    order = sorted(range(len(peaks)), key=lambda i: (peaks[i], i))
    batch = []
    for i in order:
        if sum(peaks[j] for j in [*batch, i]) <= instance.memory:
            batch.append(i)
    while True:
        for leaving in sorted(batch, key=lambda i: (peaks[i], i)):
            held = sum(peaks[j] for j in batch) - peaks[leaving]
            for entering in order:
                fits = entering not in batch and held + peaks[entering] <= instance.memory
                if fits and outputs[entering] < outputs[leaving]:
                    batch = [entering if j == leaving else j for j in batch]
                    break
            else:
                continue
            break
        else:
            return set(batch)


@examples(200)
@given(instance=instances(max_requests=12, max_memory=40, max_output=15))
def test_swap_is_algorithm_4(instance):
    assert set(select_batch(instance, "swap").requests.tolist()) == literal_alg_4(instance)


def literal_alg_5(instance, sample):
    peaks, outputs = instance.peaks, instance.outputs
    longest = np.quantile(peaks[sample], 0.3), np.quantile(outputs[sample], 0.3)
    batch = []

    def fits(i):
        return peaks[[*batch, i]].sum() <= instance.memory

    for i in sorted(range(len(peaks)), key=lambda i: (outputs[i], i)):
        if peaks[i] <= longest[0] and outputs[i] <= longest[1] and fits(i):
            batch.append(i)
    rest = [i for i in range(len(peaks)) if i not in batch]
    for i in sorted(rest, key=lambda i: (Fraction(int(outputs[i]), int(peaks[i])), i)):
        if fits(i):
            batch.append(i)
    return set(batch)


@examples(100)
@given(instance=instances(max_requests=12, max_memory=40, max_output=15), seed=st.integers(0, 9))
def test_quantile_greedy_is_algorithm_5(instance, seed):
    generator = np.random.default_rng(seed)
    count = len(instance)
    sample = generator.choice(count, max(1, count // 2), replace=False)
    found = select_batch(instance, "quantile", seed=seed)
    assert set(found.requests.tolist()) == literal_alg_5(instance, sample)


@pytest.mark.parametrize("method", BATCH_METHODS)
@examples(30)
@given(instance=tiny)
def test_every_method_gives_a_batch_that_fits_and_is_not_empty(method, instance):
    batch = select_batch(instance, method)
    assert len(batch) > 0
    assert selection_of(instance).fits(batch.requests)
    assert batch.ratio >= best(instance)[0]


def test_a_known_optimum():
    # One request of output 1 has F = 1, two have 2/4, three do not fit.
    batch = select_batch(Instance([1, 1, 1], [1, 1, 1], memory=5))
    assert (len(batch), batch.ratio) == (2, Fraction(1, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "dq"}, "unknown method 'dq': did you mean 'dp'"),
        ({"fit": "peek"}, "unknown fit 'peek': did you mean 'peak'"),
        ({"method": "dp", "fit": "profile"}, "'dp' knows only fit='peak'; use 'highs' or"),
        ({"method": "scaled-dp", "epsilon": 0}, "epsilon is 0, but must be a positive number"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises((SolverError, ModelError), match=message):
        select_batch(Instance([1], [1], memory=2), **arguments)


def test_a_table_that_would_be_too_large_is_refused_before_it_is_made():
    many = Instance(np.ones(20_000), np.ones(20_000), memory=40_000)
    with pytest.raises(SolverError, match=r"would take .* GB; use 'scaled-dp', 'swap' or 'highs'"):
        select_batch(many, "dp")
