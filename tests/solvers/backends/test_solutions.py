"""Solutions of solvers of any make, read back; and points that they start from."""

from __future__ import annotations

import shutil
import subprocess

import highspy
import numpy as np
import pytest

import optsched
from optsched import HindsightProgram, write_model
from optsched.errors import SolverError
from optsched.solvers import read_solution

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


def test_names_in_xml_like_sections_do_not_matter_twice(tmp_path):
    """HiGHS names columns again where it writes what they cost."""
    name = MODEL.column_names()[0]
    path = tmp_path / "twice.sol"
    path.write_text(f"Columns\n{name} 1\nDual\n{name} 17\n")
    assert read_solution(path, MODEL)[0] == 1


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
