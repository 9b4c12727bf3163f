"""Distributions of lengths beside what papers print of them: four figures in quick form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import pyplot
from plots_of_targets import drawn
from quick_targets import quick

from optsched import family
from optsched_papers.distributions import distributions
from optsched_papers.target import Study

FIGURES = {"robust-fig-4": 10, "sorted-f-fig-5": 4, "sorted-f-fig-6": 4, "sorted-f-fig-7": 3}


@pytest.mark.parametrize(("name", "numbers"), FIGURES.items())
def test_every_printed_number_is_a_claim(name, numbers):
    found = quick(name)
    pyplot.close(drawn(found))
    assert len(found.claims) == numbers
    failing = [claim.label for claim in found.claims if not claim.holds]
    assert failing == ["outputs, most"] * (name == "robust-fig-4")


def test_shares_count_every_request_and_bins_are_those_of_the_axis():
    table = quick("sorted-f-fig-7").table
    for _, rows in table.groupby("lengths"):
        assert rows["share"].sum() == pytest.approx(1)
        assert (np.diff(rows["least"]) == rows["width"].iloc[0]).all()


@given(st.integers(0, 10**6), st.floats(0.5, 2))
def test_numbers_are_those_of_the_draws_and_others_fail(seed, factor):
    lengths = family("chat", n=50, seed=seed).outputs.astype(float)
    ours = {"mean": lengths.mean(), "median": np.median(lengths), "variance": lengths.var()}
    ours |= {"least": lengths.min(), "most": lengths.max()}
    study = Study("", quick=True, seed=seed)
    study.seeds = lambda *_: [seed]  # one draw
    found = distributions(study, "chat", {"outputs": ours}, n=50)
    assert [claim.ours for claim in found.claims] == pytest.approx(list(ours.values()))
    assert all(claim.holds for claim in found.claims)
    other = {"mean": factor * ours["mean"]}
    (claim,) = distributions(study, "chat", {"outputs": other}, n=50).claims
    near = max(0.05 * claim.paper, 1)
    assert claim.holds == (abs(claim.ours - claim.paper) <= near)
