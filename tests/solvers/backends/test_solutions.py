"""Solutions of solvers of any make, read back; and points that they start from."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from functools import partial

import highspy
import numpy as np
import pytest
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from tiny_models import models

import optsched
from optsched import HindsightProgram, LinearModel, write_model
from optsched.errors import SolverError
from optsched.models import Family, Rows, Variables
from optsched.solvers import read_solution
from optsched.solvers.backends.words import INFEASIBLE

INSTANCE = optsched.Instance([4, 9, 2, 7, 5], [3, 2, 6, 4, 5], 24, [0, 0, 1, 1, 2])
PROGRAM = HindsightProgram(INSTANCE)
MODEL = PROGRAM.to_linear()
BEST = optsched.solve(PROGRAM, method="highs").require(optimal=True).objective


def optimum(path):
    """Read a solution, and return the latency of the schedule, which is checked."""
    schedule = PROGRAM.read(read_solution(path, MODEL))
    assert schedule.check() == []
    return schedule.total_latency


@pytest.mark.parametrize("ending", [".mps", ".lp"])
def test_highs_reads_what_is_written_and_is_read(tmp_path, ending):
    path = tmp_path / f"program{ending}"
    plan = optsched.run(INSTANCE, "fcfs").schedule
    write_model(MODEL, path, start=PROGRAM.write_point(plan))
    assert optimum(tmp_path / "program.sol") == plan.total_latency
    assert optimum(tmp_path / "program.mst") == plan.total_latency
    native = highspy.Highs()
    native.setOptionValue("output_flag", False)
    native.readModel(str(path))
    assert native.readSolution(str(tmp_path / "program.sol"), 0) == highspy.HighsStatus.kOk
    assert native.run() == highspy.HighsStatus.kOk
    native.writeSolution(str(tmp_path / "best.sol"), 0)
    assert optimum(tmp_path / "best.sol") == BEST


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cbc", ["MODEL", "solve", "solution", "SOLUTION"]),
        ("glpsol", ["--freemps", "MODEL", "--output", "SOLUTION"]),
    ],
)
def test_other_solvers_are_read(tmp_path, name, arguments):
    if (solver := shutil.which(name)) is None:
        pytest.skip(f"{name} is not installed")
    write_model(MODEL, tmp_path / "program.mps")
    places = {"MODEL": tmp_path / "program.mps", "SOLUTION": tmp_path / "found.txt"}
    words = [solver, *(str(places.get(word, word)) for word in arguments)]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    assert optimum(tmp_path / "found.txt") == BEST


@st.composite
def awkward(draw):
    """Draw a model whose names are words of these files, some shared by rows and columns."""
    model = draw(models(whole=draw(st.booleans())))
    names = draw(st.permutations(["value", "objective", "Feasible", "Objective", "x", "none"]))
    count = draw(st.integers(1, len(model.cost)))
    variables = [Family.of(name) for name in names[:count]]
    if count < len(model.cost):
        long = Family.of("a_very_long_name_of_a_column", item=range(len(model.cost) - count))
        variables.append(long)
    rows = [Family.of(name) for name in draw(st.permutations(names))[: len(model.row_lower)]]
    return replace(model, variables=tuple(variables), rows=tuple(rows))


def by_highs(model, path, style):
    native = highspy.Highs()
    native.setOptionValue("output_flag", False)
    assert native.readModel(str(path)) in (highspy.HighsStatus.kOk, highspy.HighsStatus.kWarning)
    native.run()
    native.writeSolution(str(path.with_suffix(f".{style}")), style)
    return path.with_suffix(f".{style}")


def by_program(words):
    def solve(model, path):
        names = {"MODEL": str(path), "SOLUTION": str(path.with_suffix(".txt"))}
        kind = "--freemps" if path.suffix == ".mps" else "--lp"
        called = [names.get(word, kind if word == "KIND" else word) for word in words]
        subprocess.run(called, check=False, capture_output=True, timeout=120)
        return path.with_suffix(".txt")

    return solve


def by_scip(model, path):
    native = pytest.importorskip("pyscipopt").Model()
    native.hideOutput()
    native.readProblem(str(path))
    native.optimize()
    native.writeBestSol(str(path.with_suffix(".txt")), write_zeros=False)
    return path.with_suffix(".txt")


def by_gurobi(model, path):
    gurobi = pytest.importorskip("gurobipy")
    environment = gurobi.Env(empty=True)
    environment.setParam("OutputFlag", 0)
    environment.start()
    native = gurobi.read(str(path), environment)
    native.optimize()
    if not native.SolCount:
        path.with_suffix(".sol").write_text("")
    else:
        native.write(str(path.with_suffix(".sol")))
    return path.with_suffix(".sol")


WRITERS = {
    **{f"highs-{style}": partial(by_highs, style=style) for style in (0, 1, 3, 4)},
    "cbc": by_program(["cbc", "MODEL", "solve", "solution", "SOLUTION"]),
    "cbc-all": by_program(
        ["cbc", "MODEL", "solve", "printingOptions", "all", "solution", "SOLUTION"]
    ),
    "glpk": by_program(["glpsol", "KIND", "MODEL", "--output", "SOLUTION"]),
    "scip": by_scip,
    "gurobi": by_gurobi,
}


SIX_DIGITS = ("highs-1", "highs-3", "glpk")


def check_writer(writer, model, path):
    """The point that a solver writes is the best there is, and where none is it says so."""
    if writer.split("-")[0] in ("cbc", "glpk") and not shutil.which(
        {"cbc": "cbc", "glpk": "glpsol"}[writer.split("-")[0]]
    ):
        pytest.skip(f"{writer} is not installed")
    known = optsched.solve(model, method="highs")
    write_model(model, path)
    found = WRITERS[writer](model, path)
    if known.status in INFEASIBLE:
        with pytest.raises(SolverError, match=r"holds no point|names no col|cannot be read"):
            read_solution(found, model)
        return
    rounded = writer in SIX_DIGITS and not model.integer.all()
    try:
        values = read_solution(found, model)
    except SolverError as error:
        if rounded and "its point is infeasible" in str(error):  # as 0.333333 of 3 x = 1 is
            return
        raise
    assert model.violations(values) == []
    assert model.objective(values) == pytest.approx(known.objective, abs=1e-4 if rounded else 1e-6)


@pytest.mark.parametrize("writer", [f"highs-{style}" for style in (0, 1, 3, 4)])
@pytest.mark.parametrize("ending", [".mps", ".lp"])
@examples(60)
@given(model=awkward())
def test_every_style_of_highs_is_read_by_its_sections(tmp_path_factory, writer, ending, model):
    check_writer(writer, model, tmp_path_factory.mktemp("solved") / f"model{ending}")


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["cbc", "glpk", "scip", "gurobi"])
@pytest.mark.parametrize("ending", [".mps", ".lp"])
@examples(60)
@given(model=awkward())
def test_what_other_solvers_make_of_our_files_is_read(tmp_path_factory, writer, ending, model):
    """CBC minimised what was to be maximised, GLPK refused it, and rows stood for columns."""
    if (writer, ending) == ("glpk", ".lp"):  # which wants a row, and no constant
        assume(len(model.row_lower))
        model = replace(model, offset=0.0)
    check_writer(writer, model, tmp_path_factory.mktemp("solved") / f"model{ending}")


SMALL = LinearModel.build(
    "small",
    [
        Variables(Family.of("x", i=[0, 1]), 1, lower=-3, upper=8, integer=True),
        Variables(Family.of("value"), -2.5, upper=6),
    ],
    [Rows(Family.of("value"), {"x": [[1, 2]], "value": [[1]]}, lower=4, upper=12)],
)
BY_HIGHS = """Columns
    Index Status        Lower        Upper       Primal         Dual  Type        Name
        0                  -3            8           -0               Integer     x[0]
        1                  -3            8           -1               Integer     x[1]
        2                   0            6            6               Continuous  value
Rows
    Index Status        Lower        Upper       Primal         Dual  Name
        0                   4           12            4               value

Model status: Optimal
"""
BY_CBC = """Optimal - objective value -16.00000000
      0 value                  4                       1
      0 x[0]                   0                       1
      1 x[1]                  -1                       1
      2 value                  6                    -2.5
"""
BY_GLPK = """Problem:    small
Rows:       1
Columns:    3 (2 integer, 0 binary)
Non-zeros:  3
Status:     INTEGER OPTIMAL
Objective:  objective = -16 (MINimum)

   No.   Row name        Activity     Lower bound   Upper bound
------ ------------    ------------- ------------- -------------
     1 value                       4             4            12

   No. Column name       Activity     Lower bound   Upper bound
------ ------------    ------------- ------------- -------------
     1 x[0]         *              0            -3             8
     2 x[1]         *             -1            -3             8
     3 value
                                   6             0             6

Integer feasibility conditions:
"""
BY_SCIP = """solution status: optimal solution found
objective value:                                  -16
x[1]                                               -1 \t(obj:1)
value                                               6 \t(obj:-2.5)
"""
BY_GUROBI = """# Solution for model small
# Objective value = -16
x[0] 0
x[1] -1
value 6
MPS_Rgvalue 0
"""


@pytest.mark.parametrize("content", [BY_HIGHS, BY_CBC, BY_GLPK, BY_SCIP, BY_GUROBI])
def test_a_row_and_a_headline_that_share_a_columns_name_are_not_the_column(tmp_path, content):
    path = tmp_path / "solution"
    path.write_text(content)
    assert read_solution(path, SMALL).tolist() == [0, -1, 6]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (BY_HIGHS.replace("Optimal", "Infeasible"), "holds no point: its status is 'Model status"),
        (BY_HIGHS.replace("Optimal", "Primal infeasible or unbounded"), "holds no point"),
        (BY_HIGHS.split("Model status")[0], "is cut off"),
        (BY_CBC.replace("Optimal", "Infeasible"), "holds no point: its status is 'Infeasible - "),
        (BY_CBC.replace("Optimal", "Unbounded"), "holds no point: its status is 'Unbounded - "),
        (BY_CBC.replace("6  ", "60 "), "its point is infeasible: value is 60, but must be at most"),
        (BY_CBC.replace("6  ", "?? "), r"value is '\?\?', but must be a finite number"),
        (BY_GUROBI.replace("value 6", "value inf"), "value is 'inf', but must be a finite number"),
        (BY_GLPK.replace("OPTIMAL", "UNDEFINED"), "holds no point: its status is 'Status: "),
        (BY_GLPK.replace("OPTIMAL", "EMPTY"), "holds no point"),
        (BY_GLPK[:80], "is cut off"),
        ("solution status: infeasible\nno solution available\n", "holds no point: its status is"),
        (BY_GUROBI.replace("x[0]", "x[1]"), r"names x\[1\] twice"),
        (
            BY_GUROBI.replace("value 6", "value is 6 there"),
            "holds 'value is 6 there' in place of a",
        ),
        ("c Problem:    small\ns mip 1 3 o -16\nj 1 0\n", "is raw output of GLPK or HiGHS"),
        ("3 1 : Number of columns and rows for primal\nT Primal\n", "is raw output of HiGHS"),
        ('{ "SolutionInfo": { "Status": 2 }}', "is JSON, which is not read"),
        ('<?xml version = "1.0"?>', "is XML, as CPLEX writes it, which is not read"),
    ],
)
def test_what_holds_no_point_is_refused_by_name(tmp_path, content, words):
    path = tmp_path / "solution"
    path.write_text(content)
    with pytest.raises(SolverError, match=words):
        read_solution(path, SMALL)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "names no column of .*, such as start"),
        ("x[1] 1\n", "names no column of .*; solve the file that write_model wrote"),
        (b"\xff\x00", "the solution cannot be read"),
        (None, "the solution cannot be read"),
    ],
)
def test_what_is_no_solution_is_refused_in_one_sentence(tmp_path, content, words):
    path = tmp_path / "solution"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SolverError, match=words):
        read_solution(path, MODEL)


def test_a_start_of_another_model_is_refused(tmp_path):
    with pytest.raises(SolverError, match=r"the start must be .* finite numbers, one per column"):
        write_model(MODEL, tmp_path / "m.mps", start=np.zeros(3))
