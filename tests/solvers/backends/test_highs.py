"""HiGHS: statuses, duals, and the bound that duals prove."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import highspy
import numpy as np
import pytest
from effort import examples, share
from fresh import printed
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import instances
from tiny_models import knapsack, models

from optsched import HindsightProgram, Instance, LinearModel, SolveParams, run, solve
from optsched.errors import SolverError
from optsched.models import Family, LatencyRelaxation, Rows, Variables
from optsched.models.program import Stopped
from optsched.solvers import dual_bound
from optsched.solvers.backends import highs, words


def test_every_native_status_has_a_meaning():
    assert set(words.HIGHS) >= set(highspy.HighsModelStatus.__members__)


def fake_highs(status, *, point=None, feasible=True, bound=-np.inf):
    """Make a HiGHS that has just ended in some way."""
    info = SimpleNamespace(primal_solution_status=2 if feasible else 1, mip_dual_bound=bound)
    solution = SimpleNamespace(value_valid=point is not None, col_value=point, dual_valid=False)
    return SimpleNamespace(
        getModelStatus=lambda: SimpleNamespace(name=status),
        modelStatusToString=lambda status: f"words for {status.name}",
        getInfo=lambda: info,
        getSolution=lambda: solution,
    )


@pytest.mark.parametrize("name", sorted(words.HIGHS))
def test_why_it_stopped_and_whether_there_is_an_answer_are_two_facts(name):
    for point in (None, [0.0, 1.0, 1.0]):
        fake = fake_highs(name, point=point, bound=8.0)
        answer = highs._read(fake, knapsack(), True, "Fake")  # noqa: SLF001
        assert answer.status is words.HIGHS[name]
        assert (answer.values is not None) is (point is not None)
        assert answer.raw_status == f"words for {name}"


def test_an_infeasible_point_and_an_unknown_status_are_not_trusted():
    fake = fake_highs("kFuture", point=[1.0, 1.0, 1.0], feasible=False)
    answer = highs._read(fake, knapsack(), True, "Fake")  # noqa: SLF001
    assert answer.status is Stopped.UNKNOWN
    assert answer.values is None


@pytest.mark.few
@examples(100)
@given(model=models(), data=st.data())
def test_any_prices_prove_a_bound(model, data):
    solution = solve(model)
    assume(solution.has_answer)
    prices = data.draw(
        st.lists(st.floats(-3, 3), min_size=len(model.row_lower), max_size=len(model.row_lower))
    )
    bound = dual_bound(model, np.array(prices))
    better = bound - solution.objective if model.sense == "min" else solution.objective - bound
    assert better <= 1e-9


def test_duals_are_the_change_of_the_optimum_per_unit():
    make = Variables(Family.of("make", item=[0, 1]), cost=[3, 2])
    use = np.array([[2, 1], [1, 1]])

    def optimum(hours):
        rows = Rows(Family.of("hours", shop=[0, 1]), {"make": use}, upper=hours)
        return solve(LinearModel.build("shops", [make], [rows], sense="max"))

    solution = optimum([10, 6])
    assert solution.proven_optimal
    for shop in (0, 1):
        hours = np.array([10.0, 6.0])
        hours[shop] += 0.5
        change = (optimum(hours).objective - solution.objective) / 0.5
        assert solution.duals[shop] == pytest.approx(change)


def test_duals_are_given_for_linear_programs_only():
    assert solve(knapsack()).duals is None
    assert solve(knapsack().relax()).duals is not None


def test_a_model_that_highs_does_not_take_is_an_error():
    model = knapsack().with_rows(Family.of("row"), [[1e16, 1, 1]], upper=1)
    with pytest.raises(SolverError, match="knapsack: HiGHS does not take the model"):
        highs.new(model)


def test_mixed_models_are_solved_right_by_highs_1_14():
    # Its presolve gives 1 for min 2 x - y, y <= x with binary x, where (0, 0) costs 0.
    x = Variables(Family.of("x"), cost=2, upper=1, integer=True)
    y = Variables(Family.of("y"), cost=-1, upper=1)
    row = Rows(Family.of("row"), {"x": [[-1]], "y": [[1]]}, upper=0)
    assert solve(LinearModel.build("mixed", [x, y], [row])).objective == 0


def test_a_model_without_columns_has_the_offset_as_its_optimum():
    model = LinearModel.build("nothing", [], [], offset=3.0)
    for solver in ("highs", "cp-sat"):
        assert solve(model, method=solver).require(optimal=True).objective == 3


@pytest.mark.few
@examples(150)
@given(instances(max_requests=4))
def test_a_start_is_never_returned_in_place_of_the_optimum(instance):
    """HiGHS 1.16.0 did so: objective 6 and a point of 7, for [0, 2, 2, 0], [1, 1, 1, 2] in 5."""
    first = run(instance, "fcfs").schedule
    program = HindsightProgram(instance, first.makespan)
    model = program.to_linear()
    begun = solve(model, method="highs", params=SolveParams(start=program.write_point(first)))
    assert (
        begun.objective == solve(model, method="highs").objective == model.objective(begun.values)
    )


@pytest.mark.slow
def test_nothing_is_printed_beside_an_answer():
    code = "import optsched as o; o.solve(o.family('uniform', n=4), method='highs'); print(1)"
    assert printed(code) == "1"


def test_relaxations_have_bounds_without_rounding_though_columns_have_no_upper_end():
    """Prices that are off in the last digit left such columns without a least cost."""
    rng = np.random.default_rng(0)
    for _ in range(share(100)):
        count, memory = int(rng.integers(2, 6)), int(rng.integers(6, 20))
        outputs = rng.integers(1, 6, count)
        prompts = rng.integers(0, memory - outputs + 1)
        found = solve(LatencyRelaxation(Instance(prompts, outputs, memory)))
        assert found.bound <= found.objective
        assert found.gap <= 1e-13
        assert "0.01%" not in str(found)


@examples(100)
@given(model=models(whole=False), prices=st.lists(st.floats(-4, 4), min_size=4, max_size=4))
def test_what_prices_prove_of_columns_that_rows_limit_is_below_every_point(model, prices):
    free = replace(model, col_upper=np.full(len(model.cost), np.inf)).relax()
    found = solve(free, method="highs")
    proven = highs.dual_bound(free, np.array(prices[: len(free.row_lower)]))
    if found.objective is not None:
        assert (found.objective - proven) * (1 if free.sense == "min" else -1) >= -1e-6
