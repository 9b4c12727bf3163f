"""Interval makers: what they give, that outputs lie inside, one sentence for bad input."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances

from optsched import Forecast, Instance, OptschedError, forecast, run
from optsched.errors import InstanceError, PolicyError
from optsched.forecasts import check_intervals

INSTANCE = Instance(
    [1, 2, 3], [10, 37, 100], 500, output_lower=[5, 37, 1], output_upper=[12, 37, 400]
)


@pytest.mark.parametrize(
    ("intervals", "lower", "upper"),
    [
        ("exact", [10, 37, 100], [10, 37, 100]),
        ("common:1,1000", [1, 1, 1], [499, 498, 497]),  # never more than the memory leaves room for
        ("classes:10", [1, 31, 91], [10, 40, 100]),
        ("relative:0.7", [3, 12, 30], [17, 62, 170]),
        ("relative:0", [10, 37, 100], [10, 37, 100]),
        ("column", [5, 37, 1], [12, 37, 400]),
    ],
)
def test_makers(intervals, lower, upper):
    known = forecast(INSTANCE, intervals)
    assert (known.lower.tolist(), known.upper.tolist()) == (lower, upper)


@given(instances(), st.decimals(0, "0.99", places=2))
def test_relative_intervals_hold_the_whole_numbers_within_the_error(instance, error):
    known = forecast(instance, f"relative:{error}")
    for request, output in enumerate(instance.outputs.tolist()):
        low, high = (1 - Fraction(error)) * output, (1 + Fraction(error)) * output
        inside = [k for k in range(1, 2 * output + 1) if low <= k <= high]
        room = instance.memory - instance.prompts[request]
        assert known.lower[request] == inside[0]
        assert known.upper[request] == min(inside[-1], room)


def test_one_column_is_enough():
    known = forecast(Instance([1], [10], 50, output_lower=[4]), "column")
    assert (known.lower[0], known.upper[0]) == (4, 49)
    known = forecast(Instance([1], [10], 50, output_upper=[14]), "column")
    assert (known.lower[0], known.upper[0]) == (1, 14)


@pytest.mark.parametrize(
    ("intervals", "message"),
    [
        ("relativ:0.1", "did you mean 'relative'"),
        ("common", "should read common:L,U"),
        ("common:1", "should read common:L,U"),
        ("common:5,2", "1 <= L <= U"),
        ("common:0,2", "1 <= L <= U"),
        ("common:1.5,2", "1 <= L <= U"),
        ("classes:0", "the width of a class"),
        ("relative:1", r"must be in \[0, 1\)"),
        ("relative:x", "should read relative:X"),
        ("exact:1", "should read exact"),
    ],
)
def test_bad_makers_get_one_sentence(intervals, message):
    with pytest.raises(OptschedError, match=message):
        check_intervals(intervals)
    with pytest.raises(OptschedError, match=message):
        forecast(INSTANCE, intervals)


def test_an_output_outside_its_interval_is_named():
    instance = INSTANCE.replace(labels=["a", "b", "c"])
    with pytest.raises(InstanceError, match=r"request b: the output 37 is outside .* \[1, 20\]"):
        forecast(instance, "common:1,20")
    with pytest.raises(OptschedError, match="neither output_lower nor output_upper"):
        forecast(Instance([1], [1], 5), "column")


def test_an_interval_that_cannot_be_is_named():
    with pytest.raises(InstanceError, match=r"request 1: the interval \[4, 3\] has its lower"):
        Forecast([1, 1], [0, 0], [1, 4], [2, 3], 10)
    with pytest.raises(InstanceError, match=r"request x: the interval \[0, 3\] is not at least 1"):
        Forecast([1], [0], [0], [3], 10, labels=("x",))
    with pytest.raises(InstanceError, match="cannot run: with its prompt"):
        Forecast([9], [0], [2], [3], 10)


def test_a_policy_is_told_neither_too_little_nor_too_much():
    with pytest.raises(PolicyError, match="policy 'a-min' plans with intervals"):
        run(INSTANCE, "a-min")
    with pytest.raises(PolicyError, match="policy 'area' needs the outputs"):
        run(INSTANCE, "area", intervals="common:1,1000")
    with pytest.raises(PolicyError, match="the rule 'skip' is for policies that order"):
        run(INSTANCE, "a-min", intervals="exact", rule="skip")
    assert run(INSTANCE, "area", intervals="exact").schedule.check() == []
    assert run(INSTANCE, "h-sf", intervals="common:1,1000").schedule.check() == []
    assert run(INSTANCE, "h-sf").schedule.check() == []


def test_a_forecast_is_frozen_and_owns_its_arrays():
    known = forecast(INSTANCE, "exact")
    for values in (known.lower, known.upper, known.prompts, known.arrivals):
        assert values.base is None
        assert not values.flags.writeable
        assert not np.shares_memory(values, INSTANCE.outputs)
    with pytest.raises(AttributeError):
        known.memory = 3
