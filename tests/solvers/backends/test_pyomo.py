"""Pyomo models as arrays, and Pyomo's solvers."""

from __future__ import annotations

import numpy as np
import pyomo.environ as pyo
import pytest
from effort import examples
from hypothesis import assume, given
from pyomo.opt import TerminationCondition
from tiny_models import knapsack, models

from optsched import HindsightProgram, InfeasibleError, Instance, solve
from optsched.errors import SolverError
from optsched.models import Family
from optsched.solvers import from_pyomo
from optsched.solvers.backends import pyomo as pyomo_models


def test_every_native_status_has_a_meaning():
    assert set(pyomo_models.STATUS) == {condition.value for condition in TerminationCondition}


@examples(40)
@given(model=models(whole=False))
def test_there_and_back_gives_the_same_model(model):
    used = (model.cost != 0) | (np.asarray((model.matrix != 0).sum(axis=0)).reshape(-1) > 0)
    rows = np.diff(model.matrix.indptr) > 0
    assume(used.all() and rows.all())  # Pyomo's standard form leaves out what stands nowhere
    again = from_pyomo(model.to_pyomo())
    assert again.same_as(model)


def test_a_constraint_added_in_pyomo_counts_on_the_fast_path():
    instance = Instance([5, 9, 2, 2], [3, 2, 6, 6], memory=14)
    program = HindsightProgram(instance, horizon=20)
    m = program.to_pyomo()
    free = solve(m).require(optimal=True)
    waits = sum(step * m.start[i, step] for i, step in m.start if i == 0)
    m.fair = pyo.Constraint(expr=waits <= 1)
    tied = solve(m).require(optimal=True)
    model = program.to_linear()
    row = np.zeros((1, len(model.cost)))
    columns = model.columns_of("start", request=0)
    row[0, columns] = np.arange(len(columns))
    native = solve(model.with_rows(Family.of("fair"), row, upper=1))
    assert tied.objective == native.objective == 29
    assert free.objective == 25
    started = sum(step * m.start[i, step].value for i, step in m.start if i == 0)
    assert started <= 1
    assert pyo.value(m.objective) == tied.objective


def small():
    m = pyo.ConcreteModel("small")
    m.x = pyo.Var([0, 1], bounds=(0, 4))
    m.cost = pyo.Objective(expr=m.x[0] + m.x[1])
    return m


def test_nonlinear_terms_are_refused_in_one_sentence():
    m = small()
    m.bad = pyo.Constraint(expr=m.x[0] * m.x[1] >= 1)
    with pytest.raises(SolverError, match=r"small: .*\(bad\) contains nonlinear terms") as caught:
        from_pyomo(m)
    assert "\n" not in str(caught.value)
    m = small()
    m.cost.set_value(m.x[0] ** 2)
    with pytest.raises(SolverError, match=r"objective \(cost\) contains nonlinear terms"):
        from_pyomo(m)


def test_there_must_be_one_objective():
    m = small()
    m.other = pyo.Objective(expr=m.x[0])
    with pytest.raises(SolverError, match="there are 2 active objectives"):
        from_pyomo(m)


def test_a_constraint_that_cannot_hold_is_infeasible():
    m = small()
    m.x[0].fix(3)
    m.bad = pyo.Constraint(expr=0 * m.x[1] + 1 >= 2)
    with pytest.raises(InfeasibleError, match="trivially infeasible constraint, 'bad'"):
        from_pyomo(m)


def test_fixed_variables_blocks_ranges_and_sense():
    m = small()
    m.b = pyo.Block()
    m.b.y = pyo.Var(domain=pyo.Integers, bounds=(-3, 3))
    m.x[1].fix(2)
    m.row = pyo.Constraint(expr=(1, m.x[0] + m.x[1] + m.b.y, 4.5))
    m.cost.deactivate()
    m.gain = pyo.Objective(expr=m.x[0] + 3 * m.b.y + m.x[1], sense=pyo.maximize)
    model = from_pyomo(m)
    assert model.matrix.shape == (1, 2)
    assert (model.row_lower[0], model.row_upper[0]) == (-1, 2.5)
    assert solve(m).objective == pytest.approx(8.5)
    assert (m.b.y.value, m.x[0].value, m.x[1].value) == pytest.approx((2, 0.5, 2))


def test_solvers_that_are_not_installed_name_the_line():
    with pytest.raises(SolverError, match="Pyomo's gurobi is not installed: pip install gurobipy"):
        solve(knapsack(), method="gurobi")
    with pytest.raises(SolverError, match="Pyomo's cbc is not installed: conda install"):
        solve(knapsack(), method="cbc")
