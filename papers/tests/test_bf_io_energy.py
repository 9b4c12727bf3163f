"""BF-IO Appendix D.1: energy of even and uneven loads, in each reading of the power law."""

from __future__ import annotations

from decimal import Decimal, getcontext
from fractions import Fraction

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plots_of_targets import drawn
from quick_targets import quick

from optsched import Cluster
from optsched_papers.bf_io.energy import (
    EVEN,
    OVER_TIME,
    SHARE,
    TOKENS,
    UNEVEN,
    joules,
    proven_ratio,
    root_above,
)

mpl.use("Agg")

PAIR = Cluster(2, 72)


def literal(cluster, loads, reading):
    """One step, worker by worker."""
    seconds = cluster.overhead_s + cluster.seconds_per_token * max(loads)
    total = 0.0
    for load in loads:
        computing = cluster.seconds_per_token * load
        if reading == OVER_TIME:
            total += 400 * computing + 100 * (seconds - computing)
        elif reading == TOKENS:
            utilisation = cluster.slots / seconds * 6 * 7e9 / 312e12
            total += seconds * (100 + 300 * min(utilisation / 0.45, 1) ** 0.7)
        else:
            total += seconds * (100 + 300 * (load / max(loads)) ** 0.7)
    return total


def even_over_uneven(even, uneven, reading=SHARE):
    first, second = joules(PAIR, np.array([even, uneven]), reading)
    return first / second


def test_the_appendix_holds_in_two_readings_and_for_the_steps_of_table_1():
    found = quick("bf-io-appendix-d-1")
    assert found.verdict.label == "in shape"
    refuted = [claim for claim in found.claims if claim.refutes and not claim.holds]
    assert len(refuted) == 1
    assert refuted[0].ours == pytest.approx(1.167, abs=0.001)
    evened = [claim for claim in found.claims if "evened out" in claim.label]
    assert len(evened) == 3
    assert all(claim.counts and claim.high < 1 for claim in evened)
    assert len(drawn(found).axes) == 2


@pytest.mark.parametrize("reading", [OVER_TIME, TOKENS, SHARE])
@given(loads=st.lists(st.integers(1, 10**6), min_size=2, max_size=5))
def test_energy_is_that_of_each_worker(reading, loads):
    cluster = Cluster(len(loads), 72)
    assert joules(cluster, np.array([loads]), reading)[0] == pytest.approx(
        literal(cluster, loads, reading)
    )


@pytest.mark.parametrize("reading", [OVER_TIME, TOKENS])
@given(even=st.integers(1, 10**6), moves=st.lists(st.integers(-(10**6), 10**6), min_size=1))
def test_even_loads_take_least_in_the_first_two_readings(reading, even, moves):
    """What one worker has more another has less."""
    moves = [max(-even, min(even, move)) for move in moves]
    uneven = [even + sign * move for move in moves for sign in (1, -1)]
    cluster = Cluster(len(uneven), 72)
    least, most = joules(cluster, np.array([[even] * len(uneven), uneven]), reading)
    assert least <= most * (1 + 1e-12)


def test_by_share_the_counterexample_is_proven_in_rationals():
    proven = proven_ratio(PAIR, EVEN, UNEVEN)
    getcontext().prec = 40
    half = Decimal("0.5") ** Decimal("0.7")
    exact = (Decimal("5.0138") * 800) / (Decimal("5.0184") * (500 + 300 * half))
    below = exact - Decimal(proven.numerator) / Decimal(proven.denominator)
    assert sum(EVEN) == sum(UNEVEN)
    assert proven > Fraction(7, 6)
    assert 0 <= below < Decimal("1e-5")
    with pytest.raises(ValueError, match="not even"):
        proven_ratio(PAIR, UNEVEN, EVEN)


@given(st.fractions(0, 1, max_denominator=1000), st.integers(1, 12), st.integers(1, 12))
def test_a_root_is_rounded_up_in_the_last_digit(share, above, below):
    found = root_above(share, Fraction(above, below))
    power = Fraction(above, below)
    assert found**power.denominator >= share**power.numerator
    lower = found - Fraction(1, 10**6)
    assert lower <= 0 or lower**power.denominator < share**power.numerator


def test_by_share_it_turns_at_60_000_tokens_and_at_81_500_where_one_has_all():
    assert even_over_uneven((59_000, 59_000), (58_900, 59_100)) > 1
    assert even_over_uneven((61_000, 61_000), (60_900, 61_100)) < 1
    assert even_over_uneven((81_000, 81_000), (0, 162_000)) > 1
    assert even_over_uneven((82_000, 82_000), (0, 164_000)) < 1
