"""Targets, claims and the folder of `optsched reproduce`, with a small target of the tests' own."""

from __future__ import annotations

import json
import math

import matplotlib as mpl
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched import OptschedError
from optsched.experiments.cells import Places
from optsched.papers import TARGETS, reproduce, reproduce_into
from optsched.papers.claims import number, shape, verdict
from optsched.papers.target import Outcome, Study, Target

mpl.use("Agg")

CALLS: list[int] = []


def _square(x):
    CALLS.append(x)
    if x == 3 and math.isnan(STOP_AT_3[0]):
        raise KeyboardInterrupt
    return {"x": x, "square": x * x}


STOP_AT_3 = [0.0]


def _squares(study):
    rows = study.map(_square, [{"x": x} for x in range(study.choose(3, 6))])
    return Outcome(pd.DataFrame(rows), [number("last", 25, rows[-1]["square"], within=0)])


def _draw(table, axes):
    axes[0].plot(table["x"], table["square"])


@pytest.fixture
def squares(monkeypatch):
    CALLS.clear()
    STOP_AT_3[0] = 0.0
    target = Target("test-squares", "squares", "nobody", _squares, _draw)
    monkeypatch.setitem(TARGETS, target.name, target)
    return target.name


def test_a_target_becomes_a_table_a_plot_and_a_verdict(squares, tmp_path):
    (found,) = reproduce_into([squares], tmp_path / "out", jobs=1)
    assert found["verdict"] == "reproduced"
    assert found["rows"][0]["paper"] == found["rows"][0]["ours"] == 25
    assert pd.read_csv(tmp_path / "out" / f"{squares}.csv")["square"].tolist() == [
        0, 1, 4, 9, 16, 25,
    ]  # fmt: skip
    assert (tmp_path / "out" / f"{squares}.png").stat().st_size > 1000
    assert json.loads((tmp_path / "out" / f"{squares}.json").read_text()) == found


def test_what_is_finished_is_not_done_again(squares, tmp_path):
    first = reproduce_into([squares], tmp_path, jobs=1)
    calls = len(CALLS)
    assert reproduce_into([squares], tmp_path, jobs=1) == first
    assert len(CALLS) == calls
    reproduce_into([squares], tmp_path, jobs=1, overwrite=True)
    assert len(CALLS) == 2 * calls


def test_an_interrupted_target_goes_on_where_it_stopped(squares, tmp_path):
    STOP_AT_3[0] = math.nan
    with pytest.raises(KeyboardInterrupt):
        reproduce_into([squares], tmp_path, jobs=1)
    assert not (tmp_path / f"{squares}.json").exists()
    STOP_AT_3[0] = 0.0
    (found,) = reproduce_into([squares], tmp_path, jobs=1)
    assert CALLS == [0, 1, 2, 3, 3, 4, 5]
    assert found["verdict"] == "reproduced"


def test_a_quick_form_says_what_it_lacks(squares):
    found = reproduce(squares, quick=True)
    assert found.verdict.startswith("not reproduced: last is 4 (paper 25), below the least")
    assert "not reproduced" in str(found)
    assert repr(found).startswith("<Reproduction 'test-squares': not reproduced: last is 4")
    assert "last" in found._repr_html_()


def test_results_of_another_kind_are_kept_unless_overwritten(squares, tmp_path):
    reproduce_into([squares], tmp_path, jobs=1)
    with pytest.raises(OptschedError, match=r"quick False and seed 0, not quick True and seed 7"):
        reproduce_into([squares], tmp_path, quick=True, seed=7, jobs=1)
    (found,) = reproduce_into([squares], tmp_path, quick=True, seed=7, overwrite=True, jobs=1)
    assert (found["quick"], found["seed"]) == (True, 7)


def test_a_folder_of_other_files_is_refused(squares, tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    for overwrite in (False, True):
        with pytest.raises(OptschedError, match=r"holds other files, but no reproductions"):
            reproduce_into([squares], tmp_path, overwrite=overwrite, jobs=1)
    assert (tmp_path / "thesis.tex").exists()


def test_bad_names_and_jobs_are_refused_before_anything_is_made(tmp_path):
    with pytest.raises(OptschedError, match=r"did you mean 'sorted-f-example-1'"):
        reproduce_into(["sorted-f-exmple-1"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(OptschedError, match="jobs is 0, but must be a whole number from 1"):
        reproduce("sorted-f-example-1", jobs=0)


def test_one_name_needs_no_list(squares, tmp_path):
    assert reproduce_into(squares, tmp_path, jobs=1) == reproduce_into([squares], tmp_path, jobs=1)


def test_parallel_cells_equal_serial_ones():
    calls = [{"a": a, "b": 5} for a in range(7)]
    assert Study("test", places=Places(2)).map(divmod_of, calls) == Study("test").map(
        divmod_of, calls
    )


def divmod_of(a, b):
    return divmod(a + 10, b)


values = st.floats(-100, 100)


@given(paper=values, ours=values, within=st.floats(0, 1))
def test_a_number_holds_exactly_within_its_tolerance(paper, ours, within):
    claim = number("it", paper, ours, within=within)
    slack = within * (abs(paper) or 1)
    assert claim.holds == (paper - slack <= ours <= paper + slack)
    assert (claim.verdict == "reproduced") == claim.holds


@given(st.lists(st.tuples(values, st.booleans()), min_size=1, max_size=5))
def test_a_verdict_is_the_best_that_all_claims_allow(drawn):
    claims = [
        number(str(i), 0, value, within=50) if exact else shape(str(i), value, at_most=50)
        for i, (value, exact) in enumerate(drawn)
    ]
    found = verdict(claims)
    shapes = [claim.holds for claim in claims if not claim.exact]
    if all(claim.holds for claim in claims):
        assert found == ("reproduced" if len(shapes) < len(claims) else "reproduced in shape")
    elif shapes and all(shapes):
        assert found == "reproduced in shape"
    else:
        assert found.startswith("not reproduced: ")


def test_a_value_that_is_missing_is_not_reproduced():
    assert number("x", 1, math.nan, within=1).verdict == "not reproduced: x has no value"
    assert shape("x", math.nan).to_dict()["ours"] is None


def test_every_target_is_named_after_its_paper():
    papers = ("jaillet", "sorted-f", "robust", "fluid", "bf-io")
    assert all(name.startswith(tuple(f"{paper}-" for paper in papers)) for name in TARGETS)
    assert all(target.title and target.source for target in TARGETS.values())
