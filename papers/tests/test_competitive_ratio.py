"""The competitive ratio of A_min: literal Lemma 4.6, exact bounds, and independent searches."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import log, log1p

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import eigh
from scipy.optimize import minimize

from optsched.errors import ModelError
from optsched_papers import CompetitiveRatio
from optsched_papers.robust.closed_ratios import (
    CROSSOVER,
    a_l_two_point,
    a_max_bound,
    a_max_printed_lower_bound,
    a_max_proven_bound,
    a_max_workers,
    a_max_worst_mix,
    a_min_geometric,
    a_min_two_point,
    a_min_weighted_geometric,
)

CASES = [(1, 1, 0), (1, 2, 0), (1, 7, 0), (1, 40, 0), (3, 17, 0), (1, 30, 5), (4, 25, 90)]


def literal_lemma(lower, upper, prompt, counts):
    """Lemma 4.6 as it is printed, in fractions."""
    x = dict(zip(range(lower, upper + 1), counts, strict=True))
    above = below = Fraction(0)
    for k in x:
        delta = prompt + lower if k == lower else 1
        work = sum(i * x[i] for i in x if i >= k)
        left = sum(Fraction(delta, prompt + i) * x[i] for i in x if i >= k)
        left += 2 * sum(Fraction(i - k, prompt + i) * x[i] for i in x if i > k)
        above += delta * work * left
        below += k * (prompt + k) * x[k] * (x[k] + 2 * sum(x[i] for i in x if i > k))
    return above / below


def matrices(ratio):
    """The matrices A and B of the quotient in counts."""
    lengths = np.arange(ratio.lower, ratio.upper + 1, dtype=float)
    i, j = np.minimum.outer(lengths, lengths), np.maximum.outer(lengths, lengths)
    held = ratio.prompt + i
    below = i * held
    return below + j * held / 2 - i * held**2 / (2 * (ratio.prompt + j)), below


def dense(form):
    """The matrix G of the quotient in suffix sums."""
    upper = np.triu((form.constant[:, None] + form.slope[:, None] / form.product) / 2, 1)
    return upper + upper.T + np.diag(form.diagonal / form.divisor)


@st.composite
def quotients_with_mixes(draw):
    lower = draw(st.integers(1, 12))
    upper = lower + draw(st.integers(0, 12))
    counts = draw(
        st.lists(st.integers(0, 50), min_size=upper - lower + 1, max_size=upper - lower + 1).filter(
            any
        )
    )
    return CompetitiveRatio(upper, lower, draw(st.integers(0, 60))), counts


@given(quotients_with_mixes())
@examples(150)
def test_the_quotient_is_lemma_4_6_in_all_three_forms(drawn):
    quotient, counts = drawn
    exact = literal_lemma(quotient.lower, quotient.upper, quotient.prompt, counts)
    assert quotient.quotient(counts) == exact
    above, below = matrices(quotient)
    x = np.array(counts, dtype=float)
    assert x @ above @ x / (x @ below @ x) == pytest.approx(float(exact), rel=1e-12)
    form, suffixes = quotient.form(), np.cumsum(x[::-1])[::-1]
    assert suffixes @ form.image(suffixes) / (form.diagonal @ suffixes**2) == pytest.approx(
        float(exact), rel=1e-12
    )
    assert dense(form) @ suffixes == pytest.approx(form.image(suffixes), rel=1e-12)


def test_for_no_prompts_and_l_1_the_matrices_are_those_of_corollary_4_8():
    above, below = matrices(CompetitiveRatio(9))
    for i in range(1, 10):
        for j in range(1, 10):
            least = min(i, j)
            printed = least**2 / (i * j) * ((i + j) ** 2 / 2 - least**2)
            assert above[i - 1, j - 1] == pytest.approx(printed, rel=1e-13)
            assert below[i - 1, j - 1] == least**2


@pytest.mark.parametrize(("lower", "upper", "prompt"), CASES)
def test_both_bounds_are_proven_in_fractions_and_meet_the_eigenvalue(lower, upper, prompt):
    ratio = CompetitiveRatio(upper, lower, prompt)
    found = ratio.enclosure
    # From below: the printed lemma for the mix that was found.
    assert min(found.counts) >= 0
    assert ratio.lower_bound <= literal_lemma(lower, upper, prompt, found.counts)
    # From above: lambda D - G has no positive entry off its diagonal and maps w to v >= 0.
    lengths = range(lower, upper + 1)
    assert min(found.weights) > 0
    for k in range(len(lengths)):
        row = [_entry(ratio, k, j) for j in range(len(lengths))]
        assert all(entry > 0 for entry in row)
        image = sum(entry * w for entry, w in zip(row, found.weights, strict=True))
        held = int(ratio.form().diagonal[k])
        assert image <= ratio.upper_bound * held * found.weights[k]
    above, below = matrices(ratio)
    assert ratio.eigenvalue == pytest.approx(eigh(above, below, eigvals_only=True)[-1], rel=1e-12)
    assert float(ratio.upper_bound - ratio.lower_bound) <= 1e-13 * ratio.eigenvalue
    assert ratio.lower_bound <= ratio.upper_bound
    assert ratio.meets


def _entry(ratio, k, j):
    """An entry of G in fractions: the mixed difference of the matrix A."""

    def above(i, j):
        i, j = min(i, j), max(i, j)
        if i < ratio.lower:
            return Fraction(0)
        held = ratio.prompt + i
        return i * held + Fraction(j * held, 2) - Fraction(i * held**2, 2 * (ratio.prompt + j))

    i, j = k + ratio.lower, j + ratio.lower
    return above(i, j) - above(i - 1, j) - above(i, j - 1) + above(i - 1, j - 1)


@pytest.mark.parametrize(("lower", "upper", "prompt"), CASES)
def test_b_inverse_a_has_no_negative_entry_so_that_the_eigenvector_is_a_mix(lower, upper, prompt):
    above, below = matrices(CompetitiveRatio(upper, lower, prompt))
    assert np.linalg.solve(below, above).min() >= -1e-9


@pytest.mark.parametrize(("lower", "upper", "prompt"), [(1, 4, 0), (2, 6, 3), (1, 5, 40)])
def test_no_search_over_mixes_finds_more(lower, upper, prompt):
    """Random starts, and all supports: a maximum inside a face is an eigenvector of that face."""
    ratio = CompetitiveRatio(upper, lower, prompt)
    above, below = matrices(ratio)
    count, best = len(ratio), 0.0
    for size in range(1, count + 1):
        for face in combinations(range(count), size):
            values, vectors = eigh(above[np.ix_(face, face)], below[np.ix_(face, face)])
            for value, vector in zip(values, vectors.T, strict=True):
                if (vector >= -1e-12).all() or (vector <= 1e-12).all():
                    best = max(best, value)
    assert best == pytest.approx(ratio.eigenvalue, rel=1e-12)
    rng = np.random.default_rng(0)
    for _ in range(5):
        found = minimize(
            lambda x: -(x @ above @ x) / (x @ below @ x),
            rng.random(count) + 0.01,
            bounds=[(0, None)] * count,
        )
        assert -found.fun <= float(ratio.upper_bound) + 1e-12


@pytest.mark.parametrize(
    ("upper", "value"),
    [(1, 1), (2, 1.25), (10, 1.7249), (50, 2.1532), (100, 2.3333), (1000, 2.9239)],
)
def test_values_that_a_prototype_measured(upper, value):
    assert CompetitiveRatio(upper).eigenvalue == pytest.approx(value, abs=5e-5)


def test_ten_thousand_outputs_have_bounds_to_twelve_digits_and_grow_by_log_over_4():
    small, large = CompetitiveRatio(1_000), CompetitiveRatio(10_000)
    for ratio in (small, large):
        assert float(ratio.upper_bound - ratio.lower_bound) < 1e-12
    assert 0.25 < (large.eigenvalue - small.eigenvalue) / log(10) < 0.2545


def test_the_trace_bounds_the_ratio_without_prompts_and_not_with_them():
    for lower, upper in ((1, 10), (5, 60)):
        ratio = CompetitiveRatio(upper, lower)
        above, below = matrices(ratio)
        assert ratio.trace_bound == pytest.approx(np.trace(np.linalg.solve(below, above)))
        assert float(ratio.upper_bound) < ratio.trace_bound
    assert CompetitiveRatio(10).trace_bound == pytest.approx(sum(1 / k for k in range(1, 11)))
    above, below = matrices(CompetitiveRatio(1000, 1, 41))
    assert np.trace(np.linalg.solve(below, above)) < CompetitiveRatio(1000, 1, 41).lower_bound
    assert eigh(above, eigvals_only=True)[0] < -1  # Lemma 4.9 is about s = 0


def test_with_long_prompts_the_ratio_reaches_the_root_of_u():
    for upper in (16, 64, 256):
        ratio = CompetitiveRatio(upper, 1, 1000 * upper)
        assert ratio.eigenvalue == pytest.approx((1 + upper**0.5) / 2, rel=0.003)


def test_knowing_the_lower_bound_is_worth_nothing_in_the_lemma():
    """For a mix of outputs from 5 on the lemma says the same whether A_min knows the 5 or not."""
    counts = [3, 1, 4, 1, 5]
    for prompt in (0, 7):
        knows = CompetitiveRatio(9, 5, prompt).quotient(counts)
        assert knows == CompetitiveRatio(9, 1, prompt).quotient([0] * 4 + counts)


@pytest.mark.parametrize(("low", "high"), [(1, 2), (1, 10), (3, 8), (9, 10)])
def test_two_lengths_reach_the_bound_of_theorem_5_1_at_one_mix_and_never_exceed_it(low, high):
    quotient = CompetitiveRatio(high, low)

    def ratio(short, long):
        return quotient.quotient([short, *[0] * (high - low - 1), long])

    bound = Fraction(3, 2) - Fraction(low, 2 * high)
    assert ratio(high, low) == bound == pytest.approx(a_min_two_point(low / high))
    assert max(ratio(short, 100 - short) for short in range(101)) <= bound


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.5, 0.7, 0.95])
def test_theorem_5_2_is_the_maximum_of_the_ratio_in_its_proof(alpha):
    t = np.concatenate([np.linspace(0, 60, 600_001), [1 / alpha - 2]])
    t = t[t >= 0]
    ratios = 1 + (alpha**2 * t + 2 * alpha**2) / (alpha**2 * t**2 + 2 * alpha**2 * t + 1)
    assert ratios.max() == pytest.approx(a_l_two_point(alpha), rel=1e-9)


def test_the_first_equality_in_the_proof_of_theorem_5_2_has_two_dimensions():
    low, high, short, long = 2, 4, 1, 1  # the lengths, and requests of each
    every = short + long
    left = low * low / 2 * every * short + (low + high / 2) * every * long
    part = low / high
    right = part**2 * short**2 + 3 * part**2 * short * long + (2 * part**2 + 1) * long**2
    assert (left, high**2 / 2 * right) == (12, 20)


def test_the_bounds_of_theorems_5_1_and_5_2_cross_at_alpha_star():
    assert pytest.approx(0.381966, abs=1e-6) == CROSSOVER
    assert a_l_two_point(CROSSOVER) == pytest.approx(a_min_two_point(CROSSOVER))
    assert a_l_two_point(0.37) < a_min_two_point(0.37)
    assert a_l_two_point(0.39) > a_min_two_point(0.39)


@pytest.mark.parametrize("q", [0.0, 1e-9, 0.2, 0.5, 0.8, 0.95, 0.99])
@pytest.mark.parametrize("weighted", [False, True])
def test_geometric_outputs_have_the_ratio_of_the_lemma(q, weighted):
    most = 1 + int(60 / (1 - q))
    lengths = np.arange(1.0, most + 1)
    shares = (lengths if weighted else 1) * q ** (lengths - 1)
    form, suffixes = CompetitiveRatio(most).form(), np.cumsum(shares[::-1])[::-1]
    ratio = suffixes @ form.image(suffixes) / (form.diagonal @ suffixes**2)
    closed = a_min_weighted_geometric(q) if weighted else a_min_geometric(q)
    assert closed == pytest.approx(ratio, rel=1e-10)


def test_geometric_ratios_rise_to_their_limits():
    for closed, limit, most in (
        (a_min_geometric, 10 - 12 * log(2), 1.7),
        (a_min_weighted_geometric, 14 / 9, 1.56),
    ):
        values = [closed(q) for q in np.linspace(0, 1, 2001)]
        assert values[0] == 1
        assert (np.diff(values) > 0).all()
        assert values[-1] == pytest.approx(limit, rel=1e-12)
        assert limit < most
    assert a_min_geometric(1) == pytest.approx(2 * (5 - 6 * log1p(1)))


@given(st.floats(1e-4, 1), st.floats(0, 1e4))
def test_the_worst_mix_of_theorem_3_4_is_worst(alpha, mix):
    most = a_max_workers(alpha, a_max_worst_mix(alpha))
    assert a_max_workers(alpha, mix) <= most * (1 + 1e-12)
    root = (2 + 2 * alpha) ** 0.5
    assert most == pytest.approx((1 + (1 - alpha) / (2 * (1 + alpha + root))) / alpha)
    # Theorem 3.3 has to allow it, with equality where there is one output.
    assert most <= a_max_bound(alpha) * (1 + 1e-12)


def test_theorem_3_4_mended_is_below_what_is_proven_of_all_outputs():
    for long in range(1, 60):
        for alpha, most in ((k / long, a_max_proven_bound(k, long)) for k in range(1, long + 1)):
            assert a_max_workers(alpha, a_max_worst_mix(alpha)) <= most


def test_theorem_3_4_prints_twice_what_its_instance_gives_at_a_quarter():
    assert a_max_workers(0.25, 0.25**0.5) == pytest.approx(3)
    assert a_max_printed_lower_bound(0.25) == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0,), "upper is 0, but must be from 1 to 1,000,000 tokens"),
        ((3, 4), "upper is 3, but must be from 4 to"),
        ((3, 0), "lower is 0, but must be from 1 to"),
        ((3, 1, -1), "prompt is -1, but must be from 0 to"),
        ((2.5,), "upper is 2.5, but must be a whole number"),
        ((10**7,), "upper is 10000000, but must be from 1 to"),
    ],
)
def test_bad_arguments_get_a_sentence(arguments, words):
    with pytest.raises(ModelError, match=words):
        CompetitiveRatio(*arguments)


def test_bad_mixes_and_bad_ratios_get_a_sentence():
    for counts in ([1], [0, 0], [2, -1]):
        with pytest.raises(ModelError, match="a mix is 2 numbers of requests"):
            CompetitiveRatio(2).quotient(counts)
    with pytest.raises(ModelError, match="alpha is 0, but must be above 0 to 1"):
        a_max_bound(0)
    with pytest.raises(ModelError, match=r"q is 1\.5, but must be from 0 to 1"):
        a_min_geometric(1.5)
    with pytest.raises(ModelError, match="mix is -1"):
        a_max_workers(0.5, -1)


def test_without_loss_of_generality_l_is_not_1():
    """The same ratio of bounds at ten times the lengths: the maximum rises with the grid."""
    values = [CompetitiveRatio(10 * scale, scale).eigenvalue for scale in (1, 10, 100)]
    assert values == sorted(values)
    assert values[2] == pytest.approx(1.7439, abs=5e-5)


def test_the_first_sum_in_the_proof_of_theorem_5_3_has_its_two_on_the_wrong_term():
    q, k = 0.5, np.arange(1.0, 200)
    later = np.array([(k[k > each] * q ** (k[k > each] - 1)).sum() for each in k])
    own = k * q ** (k - 1)
    closed = 1 + 2 * q + 11 * q**2 + 8 * q**3 + 11 * q**4 + 2 * q**5 + q**6
    closed /= (1 - q) ** 6 * (1 + q) ** 4
    weight = k**3 * q ** (k - 1)
    assert (weight * (own + 2 * later)).sum() == pytest.approx(closed, rel=1e-12)
    assert closed == pytest.approx(82.37, abs=0.005)
    assert (weight * (2 * own + later)).sum() == pytest.approx(69.33, abs=0.005)


def test_weighted_geometric_outputs_peak_at_one_over_the_log():
    q, k = 0.9, np.arange(1, 200)
    peak = k[(k * q ** (k - 1.0)).argmax()]
    assert abs(peak - 1 / log(1 / q)) <= 1
    assert log(1 / q) < 0.2  # which Section 5.3 prints
