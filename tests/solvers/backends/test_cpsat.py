"""CP-SAT: what it cannot represent, statuses, and the objective in our units."""

from __future__ import annotations

import dataclasses
import threading
import time
from fractions import Fraction

import numpy as np
import pytest
from ortools.sat import cp_model_pb2
from ortools.sat.python import cp_model
from tiny_models import knapsack, market_split

from optsched import LinearModel, solve
from optsched.errors import SolverError
from optsched.models import Family, Rows, Variables
from optsched.models.program import Stopped
from optsched.solvers import Options
from optsched.solvers.backends import cpsat, words
from optsched.solvers.backends.base import Reporter


def test_every_native_status_has_a_meaning():
    assert set(words.CP_SAT) == set(cp_model_pb2.CpSolverStatus.keys())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"integer": [True, False, True]}, r"column take\[1\] may be fractional"),
        ({"col_upper": [1, np.inf, 1]}, r"column take\[1\] has no finite bounds"),
        ({"cost": [1e6, 1 / 3, 3]}, r"column take\[1\] costs 0\.33.*, whose sums have more than"),
        (
            {"matrix": [[4, 2.5, 2]]},
            r"row weight has the coefficient 2\.5 at column take\[1\], but CP-SAT takes whole",
        ),
    ],
)
def test_what_cannot_be_represented_is_refused_with_its_place(changes, message):
    changes = {key: np.array(value) for key, value in changes.items()}
    with pytest.raises(SolverError, match=message):
        solve(dataclasses.replace(knapsack(), **changes), method="cp-sat")


def test_costs_with_decimals_offset_and_sense_come_back_in_our_units():
    model = knapsack(offset=0.25).with_objective([0.5, 0.4, 0.35], offset=0.25)
    solution = solve(model, method="cp-sat").require(optimal=True)
    assert solution.objective == pytest.approx(1.0)
    assert solution.bound == pytest.approx(1.0)
    assert Fraction(0.5) % Fraction(solution.step) == Fraction(0.4) % Fraction(solution.step) == 0


def test_fractional_bounds_are_tightened_to_whole_ones():
    x = Variables(Family.of("x"), cost=1, lower=0.5, upper=9.5, integer=True)
    row = Rows(Family.of("row"), {"x": [[2]]}, lower=6.5)
    assert solve(LinearModel.build("one", [x], [row]), method="cp-sat").objective == 4


@pytest.mark.parametrize("place", ["column x", "row row"])
def test_bounds_without_a_whole_number_between_them_are_infeasible(place):
    at = {"lower": 0.3, "upper": 0.7}
    x = Variables(Family.of("x"), upper=9, integer=True)
    row = Rows(Family.of("row"), {"x": [[1]]}, upper=9)
    if place == "column x":
        x = dataclasses.replace(x, **at)
    else:
        row = dataclasses.replace(row, **at)
    solution = solve(LinearModel.build("one", [x], [row]), method="cp-sat")
    assert solution.status is Stopped.INFEASIBLE
    assert place in solution.raw_status


def wide():
    rng = np.random.default_rng(0)
    x = Variables(Family.of("x", i=range(3000)), -rng.integers(1, 50, 3000), upper=5, integer=True)
    use = rng.integers(0, 20, (800, 3000)) * (rng.random((800, 3000)) < 0.1)
    rows = Rows(Family.of("row", i=range(800)), {"x": use}, upper=500)
    return LinearModel.build("wide", [x], [rows])


def test_no_bound_is_claimed_where_none_is_known():
    # CP-SAT prints a bound of 0 then, which would be false: the optimum is negative.
    solution = solve(wide(), method="cp-sat", time_limit=0.05)
    assert solution.status is Stopped.TIME_LIMIT
    assert solution.bound is None


@pytest.mark.slow("0.8")
@pytest.mark.parametrize("limit", [0.05, 0.2, 0.8])
def test_a_time_limit_is_named_where_it_gives_up_before(limit):
    # Its next step would go beyond 0.8 seconds, so it stops after 0.7.
    solution = solve(wide(), method="cp-sat", time_limit=limit)
    assert solution.status is Stopped.TIME_LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 60.0])
def test_another_limit_of_its_own_is_not_taken_for_one_of_time(monkeypatch, limit):
    # Its limit of memory ends it like this, too.
    class Brief(cp_model.CpSolver):
        def __init__(self):
            super().__init__()
            self.parameters.max_deterministic_time = 1e-6

    monkeypatch.setattr(cp_model, "CpSolver", Brief)
    assert solve(wide(), method="cp-sat", time_limit=limit).status is Stopped.UNKNOWN


def test_sums_that_would_overflow_are_an_error_in_its_own_words():
    x = Variables(Family.of("x", i=[0, 1]), upper=2**61, integer=True)
    row = Rows(Family.of("row"), {"x": [[2**40, 2**40]]}, upper=5)
    solution = solve(LinearModel.build("huge", [x], [row]), method="cp-sat")
    assert solution.status is Stopped.ERROR
    assert "overflow" in solution.raw_status


def test_it_stops_when_asked():
    stop = threading.Event()
    reporter = Reporter("CP-SAT", lambda progress: None, stop, time.perf_counter())
    threading.Timer(0.3, stop.set).start()
    answer = cpsat.solve(market_split(), Options(), None, reporter)
    assert answer.status is Stopped.INTERRUPTED
    assert reporter.seconds < 10
