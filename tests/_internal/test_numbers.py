"""What is printed of a proven number never claims more than what is proven."""

import math
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from optsched import Bound, Instance, Optimum, RunSettings, Schedule, Solution, run
from optsched._internal import numbers
from optsched._internal.numbers import duration, percent, proven, small_percent
from optsched.experiments.results import StepComparison
from optsched.report.tables import comparison_table, facts_table, to_text
from optsched.solvers.backends.base import Progress

FLOATS = st.floats(-1e15, 1e15, allow_nan=False)
FRACTIONS = st.fractions(max_denominator=10**9)


def read(text):
    """Return the number that a text says, exactly."""
    return Fraction(text.replace(",", "").removesuffix("%"))


def exact(value):
    return value if isinstance(value, Fraction) else Fraction(repr(value))


@given(st.floats(1e-4, 1e15), st.integers(1, 10))
@example(9999.6, 4)
def test_numbers_are_written_out_with_the_digits_asked_for(value, digits):
    shown = numbers.number(value, digits)
    assert "e" not in shown
    last = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)  # place of the last digit
    # Digits before the point are all there, and a number that is rounded up may have one fewer.
    assert abs(float(read(shown)) - value) <= (0.5 if "." not in shown else 0.51 * last) + 1e-9


def test_durations_are_said_as_people_say_them():
    said = {5.7: "5.7 s", 0.0432: "43.2 ms", 3600: "3,600 s", 20: "20 s", 0.125: "125 ms"}
    assert [duration(seconds) for seconds in said] == list(said.values())


@given(FLOATS | FRACTIONS, st.integers(0, 6))
@example(1234.56, 1)
@example(-0.04, 1)
def test_bounds_are_rounded_down_and_gaps_up_by_less_than_a_unit(value, decimals):
    unit = Fraction(1, 10**decimals)
    below = exact(value) - read(proven(value, decimals=decimals))
    above = read(proven(value, up=True, decimals=decimals)) - exact(value)
    assert 0 <= below < unit
    assert 0 <= above < unit


@given(FLOATS | FRACTIONS, st.integers(1, 12))
def test_significant_digits_are_rounded_the_same_way(value, digits):
    low, high = proven(value, digits=digits), proven(value, up=True, digits=digits)
    assert read(low) <= exact(value) <= read(high)
    near = abs(exact(value)) * Fraction(10) ** (1 - digits)
    assert read(high) - read(low) <= near + (exact(value) == 0)
    assert "." not in low or low[-1] not in "0."


@given(st.fractions())
@example(Fraction(1, 10))
@example(Fraction(-1, 10))
def test_a_fraction_is_rounded_to_the_largest_double_below(value):
    below = numbers.round_down(value)
    assert Fraction(below) <= value < Fraction(math.nextafter(below, math.inf))


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)), min_size=1))
def test_products_are_summed_without_rounding(pairs):
    left, right = (np.array(each) for each in zip(*pairs, strict=True))
    assert numbers.exact_dot(left, right) == sum(Fraction(a) * Fraction(b) for a, b in pairs)


@given(st.integers(-(10**30), 10**30))
def test_whole_numbers_are_written_in_full(value):
    for text in (proven(value), proven(value, up=True), proven(Fraction(value))):
        assert text == f"{value:,}"


def test_what_is_not_finite_is_said():
    assert [proven(value) for value in (math.inf, -math.inf, math.nan)] == ["inf", "-inf", "nan"]
    assert numbers.percent(math.inf) == "inf%"


def test_numbers_of_numpy_and_small_ones_are_written_as_any_other():
    assert proven(np.float64(1234.56), decimals=1) == "1,234.5"
    assert proven(np.int64(1234)) == "1,234"
    assert proven(1e-9, up=True) == "0.000000001"


@given(st.floats(-2, 1))
@example(-0.999)
def test_percent_never_claims_a_smaller_gap(share):
    # In decimals: a hundredth of the float -99.9 is below the float -0.999.
    assert Decimal(numbers.percent(share)[:-1]) >= 100 * Decimal(repr(share))
    assert float(numbers.percent(share)[:-1]) / 100 < share + 0.0011


def test_numbers_that_are_proven_are_rounded_outwards():
    assert [numbers.percent(share) for share in (0.0871, 0.0)] == ["8.8%", "0.0%"]
    assert [numbers.at_least(value) for value in (42.98, 5_107_803.9)] == ["42.9", "5,107,803"]
    assert numbers.interval(1, 1.0541) == "1.000 to 1.055"
    assert numbers.interval(0, np.inf) == "0.000 to ..."


def test_percent_keeps_a_round_share():
    assert [numbers.percent(tenth / 1000) for tenth in (0, 70, 87)] == ["0.0%", "7.0%", "8.7%"]


@given(st.floats(1, 1e15))
def test_at_least_never_claims_a_larger_bound(value):
    assert value - 1 < float(numbers.at_least(value).replace(",", "")) <= value


@given(st.floats(1, 44.99), st.integers(45, 10**6))
def test_results_print_no_more_than_what_is_proven(value, objective):
    """Bounds and gaps in `repr`, `str`, tables and lines of progress."""
    schedule = Schedule(Instance([1], [2], memory=9), [0])
    gap = 1 - exact(value) / objective
    optimum = Optimum(
        "time limit", "", 0.0, objective=objective, bound=value, answer=schedule, proof="p"
    )
    solution = Solution("time limit", "", 0.0, np.ones(1), objective, value)
    said = [str(optimum), repr(optimum), str(solution), str(Progress(0.0, "", objective, value))]
    said.append(to_text(facts_table({"objective": objective, "bound": value, "gap": float(gap)})))
    for text in said:
        for number in re.findall(r"bound +([\d,.]*\d)", text):
            assert read(number) <= exact(value)
        for number in re.findall(r"gap +([\d,.]*\d)%", text):
            assert read(number) >= 100 * gap - Fraction(1, 10**12)
    assert all("bound" in text for text in said)


@given(st.floats(0.5, 1.99))
def test_a_comparison_prints_no_more_than_what_is_proven(value):
    execution = run(Instance([1], [2], memory=9), "fcfs")
    proven = Bound(value, "closed-form", 0.0, premises=execution.facts)
    found = StepComparison({execution.policy: [execution]}, (0.0,), RunSettings(), bounds=(proven,))
    table = comparison_table(found)
    assert read(table.footer[2]) <= exact(value)
    assert read(table.rows[0].cells[2][1]) >= 100 * (1 - exact(value) / 2)


@given(share=st.floats(1e-18, 10))
def test_a_small_gap_has_the_digits_that_it_has(share):
    """Relaxations solved to 1e-15 had a gap of 0.01 %."""
    shown = Fraction(small_percent(share).rstrip("%").replace(",", "")) / 100
    assert Fraction(str(share)) <= shown <= Fraction(share) * 11 + Fraction(1, 10**13)
    if share > 1e-3:
        assert shown <= Fraction(percent(share, 2).rstrip("%").replace(",", "")) / 100 + Fraction(
            1, 10**4
        )
    assert small_percent(0.0) == "0.00%"
