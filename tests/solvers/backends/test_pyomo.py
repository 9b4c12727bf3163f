"""Pyomo models as arrays, and Pyomo's solvers."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from types import SimpleNamespace

import numpy as np
import pyomo.environ as pyo
import pytest
from effort import examples
from hypothesis import assume, given
from interrupts import ctrl_c
from pyomo.common import Executable
from pyomo.opt import TerminationCondition
from tiny_models import knapsack, market_split, models

from optsched import HindsightProgram, InfeasibleError, Instance, LinearModel, SolveParams, solve
from optsched.errors import SolverError
from optsched.models import Family, Rows, Variables
from optsched.models.program import Stopped
from optsched.solvers import from_pyomo
from optsched.solvers.backends import pyomo as pyomo_models
from optsched.solvers.backends import words
from optsched.solvers.backends.base import Capabilities


def test_every_native_status_has_a_meaning():
    assert set(words.PYOMO) == {condition.value for condition in TerminationCondition}


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


@pytest.fixture(params=["cbc", "glpk"])
def program(request):
    """Name a solver that runs as a program of its own."""
    if shutil.which({"glpk": "glpsol"}.get(request.param, request.param)) is None:
        pytest.skip(f"{request.param} is not installed; CI installs it where it can")
    return request.param


@pytest.fixture
def _nothing_installed(monkeypatch, tmp_path):
    """Hide all programs, also those that Pyomo has found before."""
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        for name in ("cbc", "glpsol"):
            Executable(name).rehash()
        yield
    for name in ("cbc", "glpsol"):
        Executable(name).rehash()


@pytest.mark.usefixtures("_nothing_installed")
@pytest.mark.parametrize(
    ("solver", "line"),
    [("gurobi", "pip install gurobipy"), ("cbc", "apt install"), ("glpk", "apt install")],
)
def test_solvers_that_are_not_installed_name_the_line(solver, line, capfd):
    with pytest.raises(SolverError, match=f"Pyomo's {solver} is not installed: {line}"):
        solve(knapsack(), method=solver)
    assert capfd.readouterr() == ("", "")


def test_a_program_takes_all_options_that_it_has(program):
    for limit, options in itertools.product(
        (None, 0.3, 20.5, 1e12), ({}, {"seed": 3, "gap_limit": 0.01}, {"in_child": True})
    ):
        found = solve(knapsack(), method=program, time_limit=limit, params=SolveParams(**options))
        assert (found.status, found.objective, found.bound) == (Stopped.OPTIMAL, 7, 7)
    threads = SolveParams(threads=2)
    if program == "cbc":
        assert solve(knapsack(), method=program, params=threads).objective == 7
    else:
        with pytest.raises(SolverError, match="threads is 2, but does not reach Pyomo's glpk"):
            solve(knapsack(), method=program, params=threads)


def covering(size=200):
    """Make a model whose relaxation is some way off."""
    rng = np.random.default_rng(0)
    x = Variables(Family.of("x", i=range(size)), rng.random(size) * 1e6, upper=1, integer=True)
    weights = rng.random((10, size))
    return LinearModel.build("cover", [x], [Rows(Family.of("r", i=range(10)), {"x": weights}, 9)])


def test_a_program_stops_within_a_gap_and_its_bound_holds(program):
    optimum = solve(covering()).objective
    found = solve(covering(), method=program, params=SolveParams(gap_limit=0.2))
    assert found.status is Stopped.GAP_LIMIT
    assert optimum <= found.objective
    if program == "cbc":
        assert found.bound < optimum
        assert 0 < found.gap < 0.2 + 1e-4
    else:  # Pyomo reads none of GLPK's
        assert found.bound is None
    assert found.objective == covering().objective(found.values)


@pytest.mark.slow
def test_a_program_that_runs_out_of_time_says_so(program, capfd):
    found = solve(market_split(), method=program, time_limit=0.9)
    assert (found.status, found.seconds < 5) == (Stopped.TIME_LIMIT, True)
    assert found.bound in (0, None)
    assert found.objective >= 0
    hard = market_split(items=60, rows=9)
    none = solve(hard.fix(range(60, 78), 0), method=program, time_limit=0.9)
    assert (none.status, none.has_answer) == (Stopped.TIME_LIMIT, False)
    assert capfd.readouterr() == ("", "")


def test_a_relaxation_without_an_answer_is_infeasible(program):
    x = Variables(Family.of("x", i=[0, 1]), cost=1, upper=5)
    rows = Rows(Family.of("r", i=[0, 1]), {"x": [[1, 1], [1, -1]]}, lower=[8, 4])
    model = LinearModel.build("apart", [x], [rows])
    assert solve(model, method=program).status is Stopped.INFEASIBLE
    # CBC prints a point with this one.
    y = Variables(Family.of("y", i=[0, 1]), cost=[0, 1], upper=1, integer=True)
    rows = Rows(Family.of("r", i=[0, 1]), {"y": [[4, -4], [3, -3]]}, [1, -1], [1, -1])
    model = LinearModel.build("apart", [y], [rows])
    assert solve(model, method=program).status is Stopped.INFEASIBLE


def test_a_relaxation_without_an_end_is_not_infeasible(program):
    """Presolve of CBC says that it is."""
    x = Variables(Family.of("x", i=range(4)), [-2000, 4000, 2000, 4000], -2, 4, integer=True)
    y = Variables(Family.of("y", i=range(2)), [-2, 1])
    rows = Rows(Family.of("r"), {"x": [[-4, 1, 3, 2]]}, -2, -2)
    found = solve(LinearModel.build("endless", [x, y], [rows]), method=program)
    assert found.status in (Stopped.UNBOUNDED, Stopped.INFEASIBLE_OR_UNBOUNDED)


@pytest.mark.slow
def test_a_bound_of_what_is_maximised_has_its_sign(program):
    """CBC's had either."""
    model = market_split(items=60, rows=9)
    model = model.with_objective(-model.cost, 3.0, "max")
    found = solve(model, method=program, time_limit=0.9)
    assert (found.status, found.bound) in ((Stopped.TIME_LIMIT, 3), (Stopped.TIME_LIMIT, None))


@pytest.mark.slow
def test_ctrl_c_ends_a_program_too(program):
    solve(knapsack(), method=program)  # all that is imported is there from here on
    with ctrl_c(1.0, noted=True):
        found = solve(market_split(items=60, rows=9), method=program)
    assert (found.status, found.seconds < 10) == (Stopped.INTERRUPTED, True)
    with Path(f"/proc/self/task/{os.getpid()}/children").open() as children:
        assert not [pid for pid in children.read().split() if program[:4] in named(pid)]


def named(pid):
    """Return the name of a process, if it is still there."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text()
    return ""


@pytest.mark.parametrize("error", [TimeoutExpired("glpsol", 3), RuntimeError("no\nlicence.")])
def test_a_plugin_that_fails_is_one_sentence(monkeypatch, error):
    class Plugin:
        def solve(self, *given, **options):
            raise error

        def available(self, exception_flag):
            return True

    monkeypatch.setattr(pyomo_models, "_factory", lambda: lambda name: Plugin())
    monkeypatch.setattr(
        pyomo_models, "capabilities", lambda name: Capabilities(name, f"Pyomo's {name}")
    )
    if isinstance(error, TimeoutExpired):
        assert solve(knapsack(), method="any", time_limit=3).status is Stopped.TIME_LIMIT
        return
    for log, reason in (("Reading ...\n  Invalid option '--x'\n", "Invalid"), ("", "no licence;")):
        monkeypatch.setattr(Plugin, "_log", log, raising=False)
        with pytest.raises(SolverError, match=rf"^Pyomo's any failed: {reason}[^\n]*'$"):
            solve(knapsack(), method="any")


@pytest.mark.parametrize(
    ("seconds", "status"), [(0, Stopped.INFEASIBLE), (0.3, Stopped.TIME_LIMIT)]
)
@pytest.mark.parametrize("said", ["infeasible", "unbounded"])
def test_what_is_said_without_a_point_counts_only_while_there_is_time(
    monkeypatch, seconds, status, said
):
    """CBC called 10 of 18 feasible models infeasible under limits of 1 to 300 ms."""
    condition = SimpleNamespace(termination_condition=SimpleNamespace(value=said))
    result = SimpleNamespace(solver=condition, solution=[], problem=SimpleNamespace())
    result.problem.lower_bound = result.problem.upper_bound = None

    class Plugin:
        """Says the same of every model, after a while."""

        def available(self, **_):
            return True

        def solve(self, *_, **__):
            time.sleep(seconds)
            return result

    monkeypatch.setattr(pyomo_models, "_factory", lambda: _Factory(Plugin))
    found = solve(knapsack(), method="cbc", time_limit=0.2 if seconds else 600)
    if said == "unbounded" and not seconds:  # CBC means the relaxation: it may be either
        status = Stopped.INFEASIBLE_OR_UNBOUNDED
        assert solve(knapsack().relax(), method="cbc").status is Stopped.UNBOUNDED
    assert found.status is status
    assert (found.bound, found.answer) == (None, None)
    assert not seconds or found.raw_status == f"says {said} as its time is over"


class _Factory(dict):
    """Knows CBC alone."""

    def __init__(self, plugin):
        super().__init__(cbc=plugin)

    def __call__(self, name):
        return self[name]()
