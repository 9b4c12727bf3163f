"""Times of arrival become steps: the exact quotient, rounded up."""

import math
from decimal import Decimal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from optsched._internal.arrays import MAX_STEP
from optsched.workloads.trace import to_steps


def test_steps_too_short_for_a_number_are_beyond_the_last_one():
    """Numpy warned of the overflow on standard error."""
    assert to_steps(np.array([0.0, 1.0]), 0, 1, 1e-320).tolist()[1] > MAX_STEP


@given(
    seconds=st.decimals(0, 10**6, places=6),
    step=st.sampled_from(["0.05", "0.1", "0.02", "0.001", "0.03", "1", "0.7"]),
)
def test_steps_are_the_exact_quotients_rounded_up(seconds, step):
    expected = math.ceil(Decimal(seconds) / Decimal(step))
    assert to_steps(np.array([float(seconds)]), 0, 1, float(step)).tolist() == [expected]
    milliseconds = np.array([int(seconds * 1000)])
    expected = math.ceil(Decimal(int(milliseconds[0])) / 1000 / Decimal(step))
    assert to_steps(milliseconds, 0, 1000, float(step)).tolist() == [expected]


@given(start=st.decimals(10**9, 2 * 10**9, places=3), gap=st.decimals(0, 10**4, places=3))
def test_doubles_since_1970_are_no_earlier_than_the_first_in_short_steps(start, gap):
    times = np.array([float(start), float(start + gap)])
    first, later = to_steps(times, times[0], 1, 1e-6).tolist()
    assert first == 0
    assert abs(later - gap * 10**6) <= 5  # a double is that coarse


@given(start=st.decimals(10**6, 10**8, places=3), gap=st.decimals(0, 10**4, places=3))
def test_steps_after_a_late_start_do_not_carry_its_rounding(start, gap):
    times = np.array([float(start), float(start + gap)])
    expected = math.ceil(gap / Decimal("0.05"))
    assert to_steps(times, times[0], 1, 0.05).tolist() == [0, expected]
