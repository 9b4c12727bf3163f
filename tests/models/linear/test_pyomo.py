"""Pyomo models equal the arrays they were made from, read back through standard form."""

import gc

import numpy as np
import pyomo.environ as pyo
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler
from strategies import instances

from optsched import HindsightProgram, Instance, LinearModel
from optsched.models import Family, Rows, Variables
from optsched.models.hindsight import SCHEDULE_OBJECTIVES


def entries(model):
    """Return objective, column bounds and rows of a LinearModel by name."""
    columns, matrix = model.column_names(), model.matrix.tocsr()
    rows = {}
    for i, name in enumerate(model.row_names()):
        part = slice(matrix.indptr[i], matrix.indptr[i + 1])
        body = zip(matrix.indices[part].tolist(), matrix.data[part].tolist(), strict=True)
        terms = {columns[j]: value for j, value in body}
        if terms:  # a row without coefficients has no place in standard form
            rows[name] = (terms, model.row_lower[i], model.row_upper[i])
    used = set().union(*(terms for terms, _, _ in rows.values())) | {
        columns[j] for j in np.flatnonzero(model.cost)
    }
    bounds = {
        name: (model.col_lower[j], model.col_upper[j], bool(model.integer[j]))
        for j, name in enumerate(columns)
        if name in used
    }
    costs = {columns[j]: model.cost[j] for j in np.flatnonzero(model.cost)}
    return rows, bounds, costs, model.offset, model.sense


def standard_form(m):
    """The same of a Pyomo model."""
    form = LinearStandardFormCompiler().write(m, mixed_form=True)
    matrix = form.A.tocsr()
    names = [column.name for column in form.columns]
    rows = {}
    for i, (row, side) in enumerate(form.rows):
        part = slice(matrix.indptr[i], matrix.indptr[i + 1])
        body = zip(matrix.indices[part].tolist(), matrix.data[part].tolist(), strict=True)
        terms = {names[j]: value for j, value in body if value}
        _, low, high = rows.get(row.name, (terms, -np.inf, np.inf))
        limit = float(form.rhs[i])
        low = limit if side in (0, -1) else low
        high = limit if side in (0, 1) else high
        if terms:
            rows[row.name] = (terms, low, high)
    bounds = {
        column.name: (
            -np.inf if column.lb is None else column.lb,
            np.inf if column.ub is None else column.ub,
            not column.is_continuous(),
        )
        for column in form.columns
    }
    sign = 1 if m.objective.sense == pyo.minimize else -1
    objective = form.c.toarray()[0] * sign
    costs = {name: value for name, value in zip(names, objective.tolist(), strict=True) if value}
    sense = "min" if sign == 1 else "max"
    return rows, bounds, costs, float(form.c_offset[0]) * sign, sense


@given(
    instances(max_requests=4, max_memory=9, max_arrival=4, max_output=4),
    st.sampled_from(SCHEDULE_OBJECTIVES[:3]),
    st.booleans(),
)
@examples(60)
def test_standard_form_of_the_pyomo_model_equals_the_arrays(instance, objective, aggregate):
    program = HindsightProgram(instance, objective=objective, aggregate=aggregate, now=1)
    for model in (program.to_linear(), program.to_linear().relax()):
        assert standard_form(model.to_pyomo()) == entries(model)


def test_every_kind_of_row_and_column_survives():
    x = Variables(
        Family.of("x", i=[0, 1, 2], j=[5, 6, 7]),
        cost=[1, -2, 0],
        lower=[-np.inf, 0, -3],
        upper=[np.inf, 1, 9],
        integer=[False, True, True],
    )
    z = Variables(Family.of("z"), cost=4, lower=2, upper=2)
    rows = [
        Rows(Family.of("ranged", i=[1]), {"x": [[1, 2, 3]]}, lower=-1, upper=5),
        Rows(Family.of("equal"), {"x": [[1, 0, 0]], "z": [[-1]]}, lower=3, upper=3),
        Rows(Family.of("least", i=[4, 2]), {"z": [[1], [2]]}, lower=[1, 2]),
        Rows(Family.of("empty", i=[0]), {}, upper=4),
    ]
    model = LinearModel.build("all", [x, z], rows, sense="max", offset=1.5)
    m = model.to_pyomo()
    assert standard_form(m) == entries(model)
    assert m.x[1, 6].domain is pyo.Binary
    assert (m.x[2, 7].domain, m.x[2, 7].bounds) == (pyo.Integers, (-3, 9))
    assert m.z.domain is pyo.Reals
    assert m.name == "all"


def test_a_pyomo_user_finds_the_paper_s_terms():
    m = HindsightProgram(Instance([63, 1], [1, 2], memory=64), horizon=3).to_pyomo()
    assert str(m.once[1].expr) == "start[1,0] + start[1,1]  ==  1.0"
    assert str(m.memory[2].expr) == "64.0*start[0,1] + 3.0*start[1,0] + 2.0*start[1,1]  <=  64.0"
    assert m.start[0, 2].name == "start[0,2]"
    assert m.objective.sense == pyo.minimize


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(enabled):
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        HindsightProgram(Instance([1], [1], memory=4)).to_pyomo()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_rows_without_bounds_become_constraints_that_always_hold():
    """None == None once made an equality of them."""
    column = Variables(Family.of("x", i=[0, 1]), [1, 1], upper=1)
    free = Rows(Family.of("free"), {"x": [[1, 2]]}, lower=-np.inf, upper=np.inf)
    model = LinearModel.build("free", [column], [free]).to_pyomo()
    assert model.free.active
    assert pyo.value(model.free.body) == 0
