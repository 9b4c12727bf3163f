"""Interval makers: what they give, that outputs lie inside, one sentence for bad input."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances, predicted
from tabled import tabled

from optsched import Beliefs, Forecast, Instance, OptschedError, forecast, run
from optsched.errors import InstanceError, PolicyError
from optsched.problem.forecasts import ROUGH, check_intervals, rough_forecasts

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


@tabled()
def test_bad_makers_get_one_sentence(intervals, message):
    with pytest.raises(OptschedError, match=message):
        check_intervals(intervals)
    with pytest.raises(OptschedError, match=message):
        forecast(INSTANCE, intervals)


@given(predicted(instances()))
def test_a_column_may_miss_outputs_and_says_how_many(instance):
    known = forecast(instance, "column")
    room = instance.memory - instance.prompts
    assert known.lower.tolist() == np.minimum(instance.output_lower, room).tolist()
    assert known.upper.tolist() == np.minimum(instance.output_upper, room).tolist()
    inside = (instance.output_lower <= instance.outputs) & (
        instance.outputs <= instance.output_upper
    )
    for policy in ("a-max", "rolling", "area-chance"):
        found = run(instance, policy, intervals="column")
        assert found.metrics()["coverage"] == found.coverage == inside.mean()
        assert ("% of the outputs" in str(found)) == (not inside.all())
        assert found.check() == []
    assert "coverage" not in run(instance, "area").metrics()


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


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=4).filter(
        lambda rows: all(map(any, rows))
    )
)
def test_chances_of_each_row_sum_to_one_and_keep_their_proportions(rows):
    beliefs = Beliefs(rows)
    assert beliefs.chances.sum(axis=1) == pytest.approx(1)
    for given_row, row in zip(rows, beliefs.chances, strict=True):
        assert row * sum(given_row) == pytest.approx(given_row)
    assert beliefs.mean() == pytest.approx([np.dot(r, [1, 2, 3]) / sum(r) for r in rows])
    assert not beliefs.chances.flags.writeable


def test_a_history_gives_similar_prompts_similar_outputs():
    rng = np.random.default_rng(0)
    long = rng.random(3_000) < 0.4
    prompts = np.where(long, rng.integers(500, 900, 3_000), rng.integers(1, 50, 3_000))
    outputs = np.where(long, rng.integers(280, 321, 3_000), rng.integers(18, 23, 3_000))
    past = Instance(prompts, outputs, 2_000)
    beliefs = Beliefs.of_history(past, [10, 700], 1_000)
    # A fiftieth is spread over all outputs up to 1,000, whose mean is 500.5.
    expected = 0.98 * np.array([20.0, 300.0]) + 0.02 * 500.5
    assert beliefs.mean() == pytest.approx(expected, rel=0.03)
    assert beliefs.chances.min() >= 0.02 / 1_000
    assert beliefs.prior == 0


def test_a_history_is_smoothed_on_the_scale_of_the_logarithm():
    outputs = [1, 7, 7, 80, 200]
    beliefs = Beliefs.of_history(Instance([0] * 5, outputs, 900), [0, 3], 200)
    every = np.arange(1, 201)
    expected = np.full(200, 0.02 / 200)
    for output in outputs:
        near = np.exp(-0.5 * (np.log(every / output) / 0.12) ** 2) / every
        expected += 0.98 * near / near.sum() / len(outputs)
    assert beliefs.chances[beliefs.rows[0]] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_history_with_nothing_that_could_run_is_refused():
    past = Instance([1, 1], [50, 60], 100)
    with pytest.raises(OptschedError, match="no completed request with an output of at most 40"):
        Beliefs.of_history(past, [1], 40)


def test_estimates_have_the_error_that_they_are_said_to_have():
    beliefs = Beliefs.around([50, 50.05, 400], 0.3, 4_000)
    outputs = np.arange(1, 4_001)
    for estimate, row in zip([50, 50, 400], beliefs.chances[beliefs.rows], strict=True):
        assert row @ (np.abs(np.log(outputs / estimate)) < 0.3) == pytest.approx(0.68, abs=0.03)
    assert beliefs.rows[0] == beliefs.rows[1] != beliefs.rows[2]


def test_at_first_half_of_those_above_a_length_are_above_twice_it():
    beliefs = Beliefs.to_learn([1, 2, 3, 4, 5], 10**5)
    for length in (1, 10, 100, 1_000):
        above = [beliefs.chances[0, at - 1 :].sum() for at in (length, 2 * length)]
        assert above[1] / above[0] == pytest.approx(0.5, abs=0.01)
    assert beliefs.prior > 0
    assert len(beliefs.chances) == 5  # fifths by prompt


@pytest.mark.parametrize(
    ("chances", "rows", "prior", "sentence"),
    [
        ([0.5, 0.5], None, 0, "need a row for requests that are alike"),
        ([[0.5, -1]], None, 0, "the chance of the output 2 in row 0 is -1.0"),
        ([[np.nan]], None, 0, "the chance of the output 1 in row 0 is nan"),
        ([[1], [0]], None, 0, "row 1 of the chances holds none above 0"),
        ([[1]], [1], 0, "rows from 1 to 1, but there are only 0 to 0"),
        ([[1]], None, -1, "prior is -1"),
    ],
)
def test_impossible_beliefs_are_refused_in_one_sentence(chances, rows, prior, sentence):
    with pytest.raises(OptschedError, match=sentence):
        Beliefs(chances, rows, prior)


def test_a_belief_that_leaves_nothing_in_an_interval_names_the_request():
    instance = Instance([1, 1], [2, 3], 9, labels=["a", "b"])
    with pytest.raises(InstanceError, match=r"request b: the belief leaves no chance .* \[3, 3\]"):
        forecast(instance, "exact", Beliefs([[0.5, 0.5]], [0, 0]))
    with pytest.raises(InstanceError, match="2 requests, but beliefs about 1"):
        forecast(instance, "exact", Beliefs([[0.5, 0.5]]))


@pytest.mark.parametrize(("estimates", "error"), [([0], 0.1), ([1], 0), ([1], np.nan)])
def test_odd_estimates_are_refused(estimates, error):
    with pytest.raises(OptschedError, match="must be above 0"):
        Beliefs.around(estimates, error, 9)


def test_rough_forecasts_have_their_error_and_fit():
    requests = Instance([100] * 4000, [300] * 4000, 600)
    guessed = rough_forecasts(requests, seed=3)
    assert (guessed.output_lower == guessed.output_upper).all()
    assert guessed.output_upper.max() == 500
    errors = np.log(guessed.output_upper / 300)
    assert np.quantile(errors, [0.1587, 0.5]) == pytest.approx([-ROUGH, 0], abs=0.05)
    assert not (rough_forecasts(requests, seed=4).output_upper == guessed.output_upper).all()
    assert (guessed.outputs == 300).all()
