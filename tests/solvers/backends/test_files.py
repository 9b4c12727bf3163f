"""MPS and LP files: reading gives the model that was written."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from tiny_models import knapsack, models

from optsched import HindsightProgram, Instance, LinearModel, solve
from optsched.errors import SolverError
from optsched.models import Family, Rows, Variables
from optsched.solvers import read_model, write_model


@pytest.mark.parametrize("ending", [".mps", ".lp"])
@examples(80)
@given(model=models(whole=False))
def test_reading_gives_the_model_that_was_written(ending, tmp_path_factory, model):
    path = tmp_path_factory.mktemp("files") / f"tiny{ending}"
    write_model(model, path)
    again = read_model(path)
    assert again.same_as(model)
    assert again.name == "tiny"


def awkward():
    """Have every kind of bound, and numbers that 15 digits cannot hold."""
    free = {"lower": -np.inf, "upper": np.inf}
    columns = [
        Variables(Family.of("x", i=[0, 1]), [1 / 3, 0], -np.inf, [np.inf, 2.5]),
        Variables(Family.of("y", i=[3], j=[-4]), 1e-11, 1, np.inf, integer=True),
        Variables(Family.of("unused"), 0, -1, 2 / 7, integer=True),
    ]
    rows = [
        Rows(Family.of("free"), {"x": [[1, 2]]}, **free),
        Rows(Family.of("range"), {"x": [[0.1, 0.2]], "y": [[3]]}, 1 / 3, 1e7 / 3),
        Rows(Family.of("equal", i=[0, 1]), {"x": [[1, 0], [0, 1]]}, [1 / 7, 2], [1 / 7, 2]),
        Rows(Family.of("least"), {"y": [[1e-10]]}, lower=-3),
        Rows(Family.of("nothing"), {}, upper=3),
    ]
    return LinearModel.build("awkward one", columns, rows, sense="max", offset=-0.1)


def test_every_kind_of_bound_and_every_digit_survive_in_mps(tmp_path):
    write_model(awkward(), tmp_path / "a.mps")
    assert read_model(tmp_path / "a.mps").same_as(awkward())


def test_names_that_lp_files_reserve_are_refused(tmp_path):
    with pytest.raises(SolverError, match="the family 'free' has a name that LP files reserve"):
        write_model(awkward(), tmp_path / "a.lp")


@pytest.mark.parametrize("ending", [".mps", ".lp"])
def test_the_hindsight_program_survives_and_keeps_its_optimum(ending, tmp_path):
    program = HindsightProgram(Instance([5, 9, 2, 2], [3, 2, 6, 6], memory=14), horizon=20)
    model = program.to_linear()
    write_model(model, tmp_path / f"h{ending}")
    again = read_model(tmp_path / f"h{ending}")
    assert again.same_as(model)
    assert again.column_names() == model.column_names()
    assert solve(again).objective == solve(model).objective


def test_foreign_names_are_replaced_by_numbers(tmp_path):
    write_model(knapsack(), tmp_path / "k.mps")
    text = (tmp_path / "k.mps").read_text().replace("take[1]", "R2-D2")
    (tmp_path / "k.mps").write_text(text)
    again = read_model(tmp_path / "k.mps")
    assert again.column_names() == ["column[0]", "column[1]", "column[2]"]
    assert again.row_names() == ["weight"]
    assert solve(again).objective == 7


def test_indices_beyond_64_bits_are_foreign_names(tmp_path):
    """They had become other indices with a warning of numpy, or ended in a traceback."""
    for index in (2**64, 5000 * "9"):
        write_model(knapsack(), tmp_path / "k.mps")
        text = (tmp_path / "k.mps").read_text().replace("take[1]", f"take[{index}]")
        (tmp_path / "k.mps").write_text(text)
        assert read_model(tmp_path / "k.mps").column_names() == [f"column[{at}]" for at in range(3)]


def test_what_cannot_be_read_is_said(tmp_path):
    with pytest.raises(SolverError, match=r"must end in \.mps or \.lp"):
        write_model(knapsack(), tmp_path / "k.txt")
    with pytest.raises(SolverError, match="there is no such file"):
        read_model(tmp_path / "k.mps")
    (tmp_path / "bad.mps").write_text("ROWS\n Q nonsense\nENDATA\n")
    with pytest.raises(SolverError, match="HiGHS cannot read the file"):
        read_model(tmp_path / "bad.mps")
    write_model(knapsack(), tmp_path / "latin.mps")
    text = (tmp_path / "latin.mps").read_text().replace("take[1]", "t\xe4ke")
    (tmp_path / "latin.mps").write_bytes(text.encode("latin-1"))
    with pytest.raises(SolverError, match=r"latin\.mps: a name is not UTF-8 text"):
        read_model(tmp_path / "latin.mps")
    rows = "NAME two\nROWS\n N cost\n L a[0]\n L a[0]\nCOLUMNS\n x cost 1\n x a[0] 1\nENDATA\n"
    (tmp_path / "twice.mps").write_text(rows)
    with pytest.raises(SolverError, match="two rows have the same name; rename one of them"):
        read_model(tmp_path / "twice.mps")
    # HiGHS never ends on such a file, nor on a broken line where another one is blank.
    rows = "NAME cut\nROWS\n N cost\n E a\n\nCOLUMNS\n x cost 1\n x a 1\n sta"
    (tmp_path / "cut.mps").write_text(rows)
    with pytest.raises(SolverError, match=r"cut\.mps: the file ends without ENDATA"):
        read_model(tmp_path / "cut.mps")
    rows = "NAME b\nROWS\n N cost\n E a\n\nCOLUMNS\n x cost 1\n x\n x a 1\nRHS\n RHS a 1\nENDATA\n"
    (tmp_path / "broken.mps").write_text(rows)
    with pytest.raises(SolverError, match=r"broken\.mps: line 8 holds nothing but 'x'"):
        read_model(tmp_path / "broken.mps")


def test_blank_lines_mean_nothing(tmp_path):
    write_model(knapsack(), tmp_path / "k.mps")
    text = (tmp_path / "k.mps").read_text()
    (tmp_path / "blank.mps").write_text("\n" + text.replace("\n", "\r\n  \n\n"))
    assert read_model(tmp_path / "blank.mps").same_as(read_model(tmp_path / "k.mps"))
