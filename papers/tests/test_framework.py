"""Targets, claims and the folder of `optsched reproduce`, with a small target of the tests' own."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched import OptschedError
from optsched.experiments.cells import Places, sealed, unsealed
from optsched_papers import TARGETS, folder, reproduce, reproduce_into
from optsched_papers.claims import (
    BEYOND,
    FALSE,
    LABELS,
    REFUTATIONS,
    TOLERANCES,
    Claim,
    beside,
    number,
    readings,
    refutable,
    shape,
    verdict,
)
from optsched_papers.stored import last_verdicts
from optsched_papers.target import Outcome, Study, Target

mpl.use("Agg")


def _square(x):
    with Path(os.environ["CALLS"]).open("a") as file:  # a global of this module would be its code
        file.write(f"{x}\n")
    if x == 3 and "STOP_AT_3" in os.environ:
        raise KeyboardInterrupt
    return {"x": x, "square": x * x}


def _squares(study):
    rows = study.map(_square, [{"x": x} for x in range(study.choose(3, 6))])
    return Outcome(pd.DataFrame(rows), [number("last", 25, rows[-1]["square"], "exact")])


def _cube(x):
    return {"x": x, "cube": x**3}


def _cubes(study):
    rows = study.map(_cube, [{"x": x} for x in range(6)])
    return Outcome(pd.DataFrame(rows), [number("last", 125, rows[-1]["cube"], "exact")])


def _draw(table, axes):
    axes[0].plot(table["x"], table.iloc[:, 1])


def calls():
    return [int(line) for line in Path(os.environ["CALLS"]).read_text().split()]


@pytest.fixture
def squares(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("CALLS", str(tmp_path_factory.mktemp("calls") / "calls"))
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
    stored = json.loads((tmp_path / "out" / f"{squares}.json").read_text())
    assert (stored.pop("seal") is not None, stored) == (True, found)


def test_what_is_finished_is_not_done_again(squares, tmp_path):
    first = reproduce_into([squares], tmp_path, jobs=1)
    done = calls()
    assert reproduce_into([squares], tmp_path, jobs=1) == first
    assert calls() == done
    reproduce_into([squares], tmp_path, jobs=1, overwrite=True)
    assert calls() == 2 * done


def test_an_interrupted_target_goes_on_where_it_stopped(squares, tmp_path, monkeypatch):
    monkeypatch.setenv("STOP_AT_3", "")
    with pytest.raises(KeyboardInterrupt):
        reproduce_into([squares], tmp_path, jobs=1)
    assert not (tmp_path / f"{squares}.json").exists()
    monkeypatch.delenv("STOP_AT_3")
    (found,) = reproduce_into([squares], tmp_path, jobs=1)
    assert calls() == [0, 1, 2, 3, 3, 4, 5]
    assert found["verdict"] == "reproduced"


@pytest.mark.parametrize("damage", ["", "[]", "null", '{"x": 1}', None])
def test_what_is_damaged_is_done_again(squares, tmp_path, damage):
    first = reproduce_into([squares], tmp_path, jobs=1)
    done = calls()
    for file in [tmp_path / f"{squares}.json", *(tmp_path / "_cells" / squares).glob("*.json")]:
        text = file.read_text()
        file.write_text(text.replace(": 25", ": 26") if damage is None else damage)
    (again,) = reproduce_into([squares], tmp_path, jobs=1)
    assert (again["rows"], again["verdict"]) == (first[0]["rows"], "reproduced")
    assert calls() == ([*done, 5] if damage is None else 2 * done)


@pytest.mark.parametrize("lost", ["png", "csv", "json"])
def test_what_has_lost_a_file_is_written_again_from_its_cells(squares, tmp_path, lost):
    """Without its plot every retry said "there is no ...png; check its name"."""
    (first,) = reproduce_into([squares], tmp_path, jobs=1)
    done = calls()
    (tmp_path / f"{squares}.{lost}").unlink()
    (again,) = reproduce_into([squares], tmp_path, jobs=1)
    assert again | {"seconds": 0} == first | {"seconds": 0}
    assert (tmp_path / f"{squares}.{lost}").stat().st_size > 0
    assert calls() == done


def test_a_target_that_computes_otherwise_is_done_again(squares, tmp_path, monkeypatch):
    reproduce_into([squares], tmp_path, jobs=1)
    other = replace(TARGETS[squares], compute=_cubes)
    monkeypatch.setitem(TARGETS, squares, other)
    (found,) = reproduce_into([squares], tmp_path, jobs=1)
    assert found["rows"][0]["ours"] == 125


def test_a_quick_form_says_what_it_lacks(squares):
    found = reproduce(squares, quick=True)
    assert found.verdict == (
        "cannot be decided",
        "0 of 1 claims hold, none is refuted; not last (4)",
    )
    assert "fails: is 4 (at least 25 counts)" in str(found)
    assert repr(found).startswith("<Reproduction 'test-squares': cannot be decided: 0 of 1")
    assert "last" in found._repr_html_()


def test_results_of_another_kind_are_kept_unless_overwritten(squares, tmp_path):
    reproduce_into([squares], tmp_path, jobs=1)
    with pytest.raises(OptschedError, match=r"quick \(False, not True\) and seed \(0, not 7\)"):
        reproduce_into([squares], tmp_path, quick=True, seed=7, jobs=1)
    (found,) = reproduce_into([squares], tmp_path, quick=True, seed=7, overwrite=True, jobs=1)
    assert (found["quick"], found["seed"]) == (True, 7)
    manifest = tmp_path / "_reproduction.json"
    of_old = unsealed(manifest, manifest.name) | {"format": "optsched-reproduction"}
    manifest.write_text(sealed(manifest.name, of_old))
    with pytest.raises(OptschedError, match=r"format \('optsched-reproduction', not '.*-4'\);"):
        reproduce_into([squares], tmp_path, quick=True, seed=7, jobs=1)


def test_a_folder_of_unknown_settings_is_done_again_only_if_told(squares, tmp_path):
    reproduce_into([squares], tmp_path, jobs=1)
    (tmp_path / "_reproduction.json").write_text('{"quick": false}')
    with pytest.raises(
        OptschedError, match=r"_reproduction\.json is missing, .*use --overwrite to"
    ):
        reproduce_into([squares], tmp_path, quick=True, jobs=1)
    (found,) = reproduce_into([squares], tmp_path, quick=True, overwrite=True, jobs=1)
    assert found["quick"]


def test_a_folder_of_other_files_is_refused(squares, tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    for overwrite in (False, True):
        with pytest.raises(OptschedError, match=r"holds other files, but no reproduction;"):
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


#: Of about the same seconds, so that two processes can take them whole.
SHARED = ["bf-io-fig-1", "fluid-fig-3", "robust-theorem-8-6", "robust-fig-2", "fluid-prop-1"]


def test_targets_that_fill_processes_are_taken_whole_the_largest_first(tmp_path, monkeypatch):
    seconds = [last_verdicts()[name]["seconds"] for name in SHARED]
    assert max(seconds) <= sum(seconds) / 2
    told, progress, started = [], [], folder.finish

    def finish(function, cells, *others, **options):
        told.append(list(cells))
        return started(function, cells, *others, **options)

    monkeypatch.setattr(folder, "finish", finish)
    options = {"quick": True, "on_progress": lambda each: progress.append(str(each))}
    whole = reproduce_into(SHARED, tmp_path / "whole", jobs=2, on_result=told.append, **options)
    by_cells = reproduce_into(SHARED, tmp_path / "cells", jobs=1, **options)
    order = sorted(SHARED, key=lambda name: -last_verdicts()[name]["seconds"])
    assert told[0] == order
    assert [found["target"] for found in whole] == SHARED
    assert sorted(found["target"] for found in told[1:]) == sorted(SHARED)
    assert "5 of 5 targets, about 0:00:00 left" in progress
    for one, other in zip(whole, by_cells, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
        for suffix in ("csv", "png"):
            name = f"{one['target']}.{suffix}"
            both = (tmp_path / "whole" / name, tmp_path / "cells" / name)
            assert both[0].read_bytes() == both[1].read_bytes(), name


def test_a_target_of_more_than_its_share_is_divided_into_cells(tmp_path, monkeypatch):
    names = ["robust-fig-2", "sorted-f-example-1"]
    monkeypatch.setattr(folder, "finish", None)
    for jobs in (1, 2):
        found = reproduce_into(names, tmp_path / str(jobs), quick=True, jobs=jobs)
        assert [each["target"] for each in found] == names


def test_parallel_cells_equal_serial_ones():
    calls = [{"a": a, "b": 5} for a in range(7)]
    assert Study("test", places=Places(2)).map(divmod_of, calls) == Study("test").map(
        divmod_of, calls
    )


def divmod_of(a, b):
    return divmod(a + 10, b)


values = st.floats(-100, 100)


@given(
    paper=values, ours=values, kind=st.sampled_from(list(TOLERANCES)), unit=st.sampled_from([0, 1])
)
def test_a_number_holds_exactly_within_its_tolerance(paper, ours, kind, unit):
    claim = number("it", paper, ours, kind, unit=unit)
    slack = max(TOLERANCES[kind] * (abs(paper) or 1), unit)
    assert claim.holds == (paper - slack <= ours <= paper + slack)
    assert (claim.verdict == "reproduced") == claim.holds


# Verdicts: claims drawn with all that matters for them, and their rules one by one


@st.composite
def drawn_claims(draw, least=1):
    """Some claims, of which the first counts."""
    proven = st.sampled_from(["", "", *REFUTATIONS])
    kinds = st.tuples(st.booleans(), st.booleans(), st.booleans(), proven, st.integers(0, 3))
    claims = []
    for holds, exact, counts, refutes, group in draw(st.lists(kinds, min_size=least, max_size=6)):
        counts = counts or not claims
        statement = f"{exact} {group}" if group else ""
        claims.append(
            Claim("it", 1, 1 if holds else 2, None, None, 1, 1, exact, counts, refutes, statement)
        )
    return claims


def failing(exact, **changes):
    return Claim("another", 1, 2, None, None, 1, 1, exact, **changes)


@given(drawn_claims(), drawn_claims(0), st.sampled_from(["", "the data"]))
def test_a_claim_of_ours_never_changes_the_verdict(claims, ours, unpublished):
    before = verdict(claims, unpublished)
    assert verdict([*beside(ours), *claims, *beside(ours)], unpublished) == before


@given(drawn_claims(), st.randoms(), st.sampled_from(["", "the data"]))
def test_the_order_of_claims_does_not_matter(claims, random, unpublished):
    mixed = random.sample(claims, len(claims))
    assert verdict(mixed, unpublished).label == verdict(claims, unpublished).label


@given(drawn_claims(0), st.booleans(), st.booleans())
def test_readings_hold_if_one_of_them_does(claims, exact, first):
    right, wrong = number("x", 1, 1, "exact"), number("x", 1, 2, "exact")
    if not exact:
        right, wrong = shape("x", 1, at_most=1), shape("x", 2, at_most=1)
    pair = [right, wrong] if first else [wrong, right]
    assert verdict([*claims, *readings("x", refutable(pair))]) == verdict([*claims, right])
    both = verdict([*claims, *readings("x", [wrong, wrong])])
    assert both.label == verdict([*claims, wrong]).label


@given(drawn_claims(0), st.booleans(), st.sampled_from(["", "the data"]))
def test_nothing_is_reproduced_while_a_claim_that_counts_fails(claims, exact, unpublished):
    found = verdict([*claims, failing(exact)], unpublished)
    assert found.label != "reproduced"
    assert exact or found.label != "in shape"
    assert found.reason


@given(drawn_claims(0), st.sampled_from(REFUTATIONS), st.sampled_from(["", "the data"]))
def test_a_proof_refutes_whatever_else_holds(claims, kind, unpublished):
    found = verdict([*claims, failing(exact=False, refutes=kind)], unpublished)
    assert found.label in REFUTATIONS
    assert kind != FALSE or found.label == FALSE


def test_an_assumption_saves_only_what_holds_within_it():
    beyond, fails = failing(exact=False, refutes=BEYOND), failing(exact=False)
    holds = shape("within", 1, at_most=2)
    assert verdict([holds, beyond]).label == BEYOND
    assert verdict([beyond]).label == verdict([holds, fails, beyond]).label == FALSE


def test_what_a_result_rests_on_is_said_where_it_holds():
    holds, fails = shape("a", 1, at_most=2), shape("b", 3, at_most=2)
    assert verdict([holds], provided="by construction") == ("in shape", "by construction")
    assert "construction" not in verdict([holds, holds, fails], provided="by construction").reason
    missed = number("c", 1, 3, "digits")
    assert verdict([holds, missed], provided="fitted").reason.startswith("fitted; 1 of 2")


@given(drawn_claims())
def test_what_is_unpublished_decides_only_where_claims_fail_without_proof(claims):
    without, known = verdict(claims), verdict(claims, "the trace is not published")
    if without.label in ("partly", "cannot be decided"):
        assert known.label == "cannot be decided"
        assert known.reason.startswith("the trace is not published; ")
    else:
        assert known == without


@given(drawn_claims(), st.sampled_from(["", "the data"]))
def test_verdicts_are_those_of_a_literal_twin(claims, unpublished):
    assert verdict(claims, unpublished).label == _literal(claims, unpublished)
    assert verdict(claims, unpublished).label in LABELS


def _literal(claims, unpublished):
    """The rules in the words of docs/how-to/reproduce.md, one statement after the other."""
    single = [[claim] for claim in claims if claim.counts and not claim.statement]
    names = {claim.statement for claim in claims if claim.counts and claim.statement}
    joined = [[c for c in claims if c.counts and c.statement == name] for name in names]
    held, numbers, shapes, failing_shapes, proven, within = 0, 0, 0, 0, set(), []
    for statement in single + joined:
        holds = any(claim.least <= claim.ours <= claim.most for claim in statement)
        held += holds
        if not holds and all(claim.refutes for claim in statement):
            proven |= {claim.refutes for claim in statement}
        if any(claim.refutes != "false beyond an assumption" for claim in statement):
            within.append(holds)
        numbers += statement[0].exact
        shapes += not statement[0].exact
        failing_shapes += not holds and not statement[0].exact
    count = numbers + shapes
    if "false as stated" in proven:
        return "false as stated"
    if "false beyond an assumption" in proven:
        return "false beyond an assumption" if within and all(within) else "false as stated"
    if proven:
        return "proof fails" if "proof fails" in proven else "contradicts itself"
    if held == count:
        return "reproduced" if numbers else "in shape"
    if shapes and not failing_shapes:
        return "in shape"
    if unpublished or not held:
        return "cannot be decided"
    return "partly"


def test_a_value_that_is_missing_fails():
    assert number("x", 1, math.nan, "slope").verdict == "fails: x has no value"
    assert shape("x", math.nan).to_dict()["ours"] is None


def test_a_reason_names_each_claim_that_fails():
    claims = [shape("a", 1, at_most=2), shape("b", 3, at_most=2), shape("c", 0, at_most=2)]
    assert verdict(claims) == ("partly", "2 of 3 claims hold; not b (3)")
    (proof,) = refutable([shape("d", 0.5, at_least=1, paper=1)])
    reason = "d is 0.5 (at least 1 counts)"
    assert str(verdict([*claims, proof])) == f"false as stated: {reason}"
    assert proof.verdict == f"false as stated: {reason}"


def test_a_reason_gives_the_value_of_the_nearest_reading():
    failing = [shape("far", 9, at_most=2), shape("near", 3, at_most=2), shape("x", math.nan)]
    assert "not either (3)" in verdict(readings("either", failing)).reason


def test_every_target_is_named_after_its_paper():
    papers = ("jaillet", "sorted-f", "robust", "fluid", "bf-io")
    assert all(name.startswith(tuple(f"{paper}-" for paper in papers)) for name in TARGETS)
    assert all(target.title and target.source for target in TARGETS.values())
    assert all(target.version.startswith("arXiv ") for target in TARGETS.values())
