"""The test of growth on series whose growth is known, and how often it is right."""

import numpy as np
import pytest
from scipy import stats

from optsched import OptschedError
from optsched.experiments.regret import growth_of

HORIZONS = [100, 300, 1000, 3000, 10_000, 30_000]


def ends(shape, noise, seeds, seed=0, width=0.3):
    """Make a lower end of the given shape and an upper end above it, with noise per seed."""
    rng = np.random.default_rng(seed)
    low = shape(np.array(HORIZONS, dtype=float)) + rng.normal(0, noise, (seeds, len(HORIZONS)))
    return low, low + width + rng.exponential(noise + 1e-300, low.shape)


def test_bounded_noise_is_bounded():
    low, high = ends(lambda t: 1 - 5 / t, noise=0.02, seeds=6)
    found = growth_of(HORIZONS, low, high, tolerance=0.1)
    assert found.verdict == "bounded"
    assert found.low < found.high_ceiling < 0.1
    assert found.power > 0.9
    assert found.horizons == (3000, 10_000, 30_000)


@pytest.mark.parametrize(
    ("shape", "exponent"), [(lambda t: 1e-3 * t, 1.0), (lambda t: 0.1 * t**0.5, 0.5)]
)
def test_linear_and_root_growth_grow_with_their_exponent(shape, exponent):
    found = growth_of(HORIZONS, *ends(shape, noise=0.05, seeds=5), tolerance=0.1)
    assert found.verdict == "grows"
    assert found.exponent == pytest.approx(exponent, abs=0.05)
    assert found.low_floor > 0.1
    assert found.detectable < found.low
    assert "grows" in str(found)


def test_logarithmic_growth_counts_only_above_the_tolerance():
    low, high = ends(lambda t: 0.2 * np.log10(t), noise=0.005, seeds=6)
    assert growth_of(HORIZONS, low, high, tolerance=0.1).verdict == "grows"
    assert growth_of(HORIZONS, low, high, tolerance=0.4).verdict == "bounded"
    assert growth_of(HORIZONS, low, high, tolerance=0.1).low == pytest.approx(0.2, abs=0.03)


def test_an_interval_that_widens_decides_nothing():
    low, high = ends(lambda t: 0 * t + 1, noise=0.01, seeds=6)
    high = high + 1e-3 * np.array(HORIZONS)
    found = growth_of(HORIZONS, low, high, tolerance=0.1)
    assert found.verdict == "undecided"
    assert "undecided" in str(found)


def test_much_noise_has_no_power_and_says_so():
    low, high = ends(lambda t: 0 * t + 9, noise=2, seeds=5)
    found = growth_of(HORIZONS, low, high, tolerance=0.1)
    assert found.verdict == "undecided"
    assert found.power < 0.2
    assert found.detectable > 1


@pytest.mark.slow
def test_power_and_detectable_growth_are_what_repetition_gives():
    """Noise on 250 series: the verdicts come as often as the power computed from the noise."""
    slope, seeds, noise = 0.25, 6, 0.08
    at = np.log10(HORIZONS[3:])
    error = noise / np.sqrt(((at - at.mean()) ** 2).sum()) / np.sqrt(seeds)
    limit = stats.t.ppf(0.95, seeds - 1)
    expected = stats.nct.sf(limit, seeds - 1, (slope - 0.1) / error)
    assert 0.3 < expected < 0.95
    verdicts = [
        growth_of(
            HORIZONS, *ends(lambda t: slope * np.log10(t), noise, seeds, seed), tolerance=0.1
        ).verdict
        for seed in range(250)
    ]
    assert verdicts.count("grows") / 250 == pytest.approx(expected, abs=0.08)
    flat = [
        growth_of(HORIZONS, *ends(lambda t: 0.1 * np.log10(t), noise, seeds, seed), tolerance=0.1)
        for seed in range(250)
    ]
    # At the limit itself the risk is the one stated.
    assert [found.verdict for found in flat].count("grows") / 250 == pytest.approx(0.05, abs=0.035)
    # The growth that is called detectable is one that is found nine times out of ten.
    # It is proportional to the spread seen, whose square is right in the mean.
    beyond = np.array([found.detectable for found in flat]) - 0.1
    typical = 0.1 + float(np.sqrt((beyond**2).mean()))
    found = [
        growth_of(
            HORIZONS, *ends(lambda t: typical * np.log10(t), noise, seeds, seed), tolerance=0.1
        ).verdict
        for seed in range(150)
    ]
    assert found.count("grows") / 150 == pytest.approx(0.9, abs=0.07)


def test_one_seed_decides_nothing_and_no_noise_everything():
    low, high = ends(lambda t: t, noise=0, seeds=1)
    single = growth_of(HORIZONS, low, high, tolerance=0.1)
    assert single.verdict == "too few points"
    assert single.power == 0
    assert single.exponent is None
    assert single.to_dict()["high_ceiling"] is None
    certain = growth_of(HORIZONS, 0 * np.ones((5, 6)), 0 * np.ones((5, 6)), tolerance=0.1)
    assert (certain.verdict, certain.power, certain.detectable) == ("bounded", 1.0, 0.1)
    assert certain.exponent is None


def test_bad_shapes_and_orders_are_refused():
    fine = np.zeros((3, 2))
    with pytest.raises(OptschedError, match="one row per seed"):
        growth_of([1, 2, 3], fine, fine, 0.1)
    with pytest.raises(OptschedError, match="two horizons, ascending"):
        growth_of([2, 1], fine, fine, 0.1)
    with pytest.raises(OptschedError, match="above its upper end"):
        growth_of([1, 2], fine + 1, fine, 0.1)


@pytest.mark.parametrize(("seeds", "horizons"), [(4, 6), (5, 3), (5, 2)])
def test_growth_is_named_from_four_horizons_and_five_seeds_on(seeds, horizons):
    low, high = (end[:, :horizons] for end in ends(lambda t: t, noise=0.0, seeds=seeds))
    found = growth_of(HORIZONS[:horizons], low, high, 0.1)
    assert found.verdict == "too few points"
    assert str(found).startswith("too few points: ")
    low, high = (end[:, :4] for end in ends(lambda t: t, noise=0.0, seeds=5))
    assert growth_of(HORIZONS[:4], low, high, 0.1).verdict == "grows"
