"""Every solver on every tiny model, and what `solve` refuses."""

from __future__ import annotations

import itertools
import shutil
import sys
import threading

import brute_force
import numpy as np
import pytest
import scipy_back_end
from effort import examples
from fresh import imports, printed
from hypothesis import assume, given, reject
from tiny_models import knapsack, market_split, models

from optsched import Instance, LinearModel, SolveParams, solve
from optsched.errors import SolverError
from optsched.models import EventProgram, Family, Rows, Variables
from optsched.models.program import Stopped
from optsched.solvers import BACK_ENDS, capabilities

#: Solvers of Pyomo's that run as programs, where they are installed.
PROGRAMS = [name for name, file in (("cbc", "cbc"), ("glpk", "glpsol")) if shutil.which(file)]
SOLVERS = ["highs", "cp-sat", "appsi_highs", *PROGRAMS]


@pytest.fixture(params=SOLVERS)
def solver(request):
    return request.param


def best_of_all_points(model):
    """Look at every whole point; SciPy's own HiGHS ends some of these models in an error."""
    ranges = zip(model.col_lower.astype(int), model.col_upper.astype(int), strict=True)
    points = np.array(list(itertools.product(*(range(low, high + 1) for low, high in ranges))))
    activities = points @ model.matrix.toarray().T
    inside = (activities >= model.row_lower) & (activities <= model.row_upper)
    costs = (points @ model.cost + model.offset)[inside.all(axis=1)]
    if not len(costs):
        return None
    return costs.min() if model.sense == "min" else costs.max()


def by_scipy(model):
    """Ask SciPy, unless it ends in an error."""
    try:
        return brute_force.optimum(model)
    except AssertionError:
        return reject()


def check(model, solver, optimum):
    solution = solve(model, method=solver)
    if optimum is None:
        assert solution.status in (Stopped.INFEASIBLE, Stopped.INFEASIBLE_OR_UNBOUNDED)
        assert not solution.has_answer
        return
    # A whole column of HiGHS may be off by 1e-6, which continuous ones then make use of.
    assert solution.objective == pytest.approx(optimum, abs=1e-5)
    assert model.violations(solution.values) == []
    assert solution.objective == model.objective(solution.values)
    if solver in BACK_ENDS:
        whole = model.integer.all()
        assert solution.status in (Stopped.OPTIMAL, *[Stopped.WITHIN_TOLERANCE] * (not whole))
        assert solution.proven_optimal is (solution.status is Stopped.OPTIMAL)
        assert solution.bound == pytest.approx(optimum, abs=1e-5)


@pytest.mark.parametrize("solver", ["highs", "cp-sat"])
@examples(150)
@given(model=models())
def test_all_solvers_find_the_best_of_all_points(solver, model):
    check(model, solver, best_of_all_points(model))


@examples(100)
@given(model=models(whole=False))
def test_highs_agrees_with_scipy_on_mixed_models(model):
    check(model, "highs", by_scipy(model))


@examples(60)
@given(model=models())
def test_highs_agrees_with_scipy_on_relaxations(model):
    relaxed = model.relax()
    check(relaxed, "highs", by_scipy(relaxed))
    solution = solve(relaxed, method="highs")
    if solution.has_answer:
        assert len(solution.duals) == len(model.row_lower)


@pytest.mark.few
@examples(15)
@given(model=models())
def test_a_pyomo_solver_finds_the_best_of_all_points(model):
    assume(model.matrix.nnz > 0 and model.cost.any())  # Pyomo hands over no empty models
    for name in ("appsi_highs", *PROGRAMS):
        check(model, name, best_of_all_points(model))


def test_a_known_optimum(solver):
    solution = solve(knapsack(), method=solver).require()
    assert solution.values.tolist() == [0, 1, 1]
    assert solution.objective == 7


def test_a_child_process_gives_the_same(solver):
    here, there = (
        solve(knapsack(), method=solver, params=SolveParams(in_child=child))
        for child in (False, True)
    )
    assert here.values.tolist() == there.values.tolist()
    assert (here.status, here.bound) == (there.status, there.bound)


def test_infeasible_and_unbounded_models_are_told_apart(solver):
    model = knapsack().with_rows(Family.of("many"), [[1, 1, 1]], lower=3)
    solution = solve(model, method=solver)
    assert solution.status is Stopped.INFEASIBLE
    assert solution.bound is None
    if solver == "cp-sat":
        return
    x = Variables(Family.of("x"), cost=-1)
    endless = LinearModel.build("endless", [x], [Rows(Family.of("row"), {"x": [[1]]}, lower=1)])
    assert solve(endless, method=solver).status is Stopped.UNBOUNDED


@pytest.mark.parametrize("solver", ["highs", "cp-sat"])
def test_an_infeasible_start_is_refused_with_the_row(solver):
    with pytest.raises(
        SolverError, match="start is infeasible: weight is 7, but must be at most 5"
    ):
        solve(knapsack(), method=solver, params=SolveParams(start=[1, 1, 0]))
    with pytest.raises(SolverError, match=r"take\[1\] is 0\.5, but must be a whole number"):
        solve(knapsack(), method=solver, params=SolveParams(start=[0, 0.5, 0]))


@pytest.mark.parametrize("solver", ["highs", "cp-sat"])
@pytest.mark.parametrize("in_child", [False, True])
def test_a_start_is_never_lost(solver, in_child):
    model = market_split()
    start = np.zeros(len(model.cost))
    start[-4:] = model.row_lower
    solution = solve(
        model, method=solver, time_limit=1e-3, params=SolveParams(start=start, in_child=in_child)
    )
    assert solution.status is Stopped.TIME_LIMIT
    assert solution.objective <= model.objective(start)
    assert solution.bound is None or solution.bound <= solution.objective


@pytest.mark.parametrize("solver", ["highs", "cp-sat"])
def test_two_solves_in_a_row_do_not_share_a_start(solver):
    first = solve(knapsack(), method=solver, params=SolveParams(start=[1, 0, 0]))
    assert first.objective == 7
    smaller = knapsack(sense="min")
    assert solve(smaller, method=solver).values.tolist() == [0, 0, 0]
    assert solve(smaller.fix(0, 1), method=solver).values.tolist() == [1, 0, 0]


@pytest.mark.parametrize("solver", ["highs", "cp-sat"])
def test_one_thread_and_one_seed_give_one_answer(solver):
    model = market_split(items=12, rows=2)
    first, second = (solve(model, method=solver, params=SolveParams(seed=7)) for _ in range(2))
    assert first.values.tolist() == second.values.tolist()
    assert first.proven_optimal


def test_progress_brings_answers_and_bounds_that_hold(solver):
    messages = []
    solution = solve(
        market_split(12, 2), method=solver, params=SolveParams(on_progress=messages.append)
    )
    if not capabilities(solver).interrupts:
        return
    assert any(message.values is not None for message in messages)
    for message in messages:
        if message.bound is not None:
            assert message.bound <= solution.objective + 1e-6
        if message.values is not None:
            assert message.objective >= solution.bound - 1e-6
    assert "objective" in str(messages[-1])


@pytest.mark.parametrize("solver", ["highs", "cp-sat"])
@pytest.mark.parametrize("in_child", [False, True])
def test_a_stop_token_ends_the_solve_and_keeps_the_answer(solver, in_child):
    stop = threading.Event()

    def look(progress):
        if progress.values is not None:
            stop.set()

    params = SolveParams(in_child=in_child, on_progress=look, stop=stop)
    solution = solve(market_split(), method=solver, params=params)
    assert solution.status is Stopped.INTERRUPTED
    assert solution.has_answer
    assert solution.seconds < 20


@pytest.mark.slow("True")
@pytest.mark.parametrize("in_child", [False, True])
def test_an_error_in_the_callback_is_the_callers(in_child):
    def fail(progress):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        solve(market_split(), params=SolveParams(in_child=in_child, on_progress=fail))


def test_a_gap_limit_is_no_proof():
    model = market_split(items=20, rows=1, seed=3).with_objective(
        np.r_[np.arange(1, 21), [100.0, 100.0]]
    )
    exact = solve(model, method="cp-sat").require(optimal=True)
    for solver in ("highs", "cp-sat"):
        loose = solve(model, method=solver, params=SolveParams(gap_limit=0.5))
        assert loose.bound <= exact.objective <= loose.objective
        assert loose.proven_optimal is (loose.bound == loose.objective)
        assert (loose.status is Stopped.OPTIMAL) is loose.proven_optimal


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_limit": 0}, "time_limit is 0, but must be a positive number of seconds"),
        ({"time_limit": -1.5}, "time_limit is -1.5"),
        ({"time_limit": float("nan")}, "time_limit is nan"),
        ({"time_limit": "5"}, "time_limit is '5'"),
        ({"threads": 0}, "threads is 0, but must be a whole number from 1"),
        ({"threads": 1.5}, "threads is 1.5"),
        ({"seed": -1}, "seed is -1"),
        ({"gap_limit": -0.1}, "gap_limit is -0.1"),
        ({"memory_limit": 0, "in_child": True}, "memory_limit is 0"),
        ({"memory_limit": 10**9}, "only a child process can be limited; add in_child=True"),
        ({"method": "highz"}, "unknown solver 'highz': did you mean 'highs'"),
        ({"method": "scip"}, "scip is not installed: conda install -c conda-forge scip"),
        ({"method": "glpk", "start": [0, 0, 0]}, "cannot start from a given answer"),
        ({"method": "appsi_highs", "seed": 3}, "seed is 3, but does not reach Pyomo's appsi_highs"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(options, message):
    own = {name: value for name, value in options.items() if name in ("method", "time_limit")}
    rest = {name: value for name, value in options.items() if name not in own}
    with pytest.raises(SolverError) as caught:
        solve(knapsack(), params=SolveParams(**rest), **own)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("in_child", [False, True])
def test_a_new_back_end_is_one_file_and_its_name(monkeypatch, in_child):
    monkeypatch.setitem(BACK_ENDS, "scipy", scipy_back_end)
    params = SolveParams(in_child=in_child)
    solution = solve(knapsack(), method="scipy", params=params).require(optimal=True)
    assert (solution.objective, solution.solver) == (7, "SciPy")
    with pytest.raises(
        SolverError, match="SciPy cannot start from a given answer; leave it out or use"
    ):
        solve(knapsack(), method="scipy", params=SolveParams(start=[1, 0, 0]))


def test_event_programs_are_refused_by_solvers_that_cannot():
    program = EventProgram(Instance([1], [1], memory=2))
    with pytest.raises(SolverError, match="HiGHS does not take event programs; use 'cp-sat'"):
        solve(program, method="highs")


@pytest.mark.slow
@pytest.mark.parametrize("first", ["highspy", "ortools.sat.python.cp_model"])
def test_both_solvers_can_be_imported_in_either_order(first):
    second = {"highspy": "ortools.sat.python.cp_model"}.get(first, "highspy")
    assert printed(f"import {first}, {second}; print('both')") == "both"


@pytest.mark.slow
def test_importing_the_driver_imports_no_solver():
    assert not imports("import optsched.solvers.backends.driver", "highspy", "ortools", "pyomo")


@pytest.mark.parametrize(("module", "solver"), [("highspy", "highs"), ("ortools", "cp-sat")])
def test_a_solver_that_cannot_be_imported_names_the_pin(monkeypatch, module, solver):
    for name in list(sys.modules):
        if name.split(".")[0] == module:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SolverError, match=r"pip install .*highspy>=1\.12,!=1\.14\.0,!=1\.15"):
        solve(knapsack(), method=solver)
