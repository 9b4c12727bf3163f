"""Batch selection against every batch."""

from dataclasses import replace

import numpy as np
import pytest
from brute_force import batches, ratio, solve
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances

from optsched import solve as solve_any
from optsched.errors import InstanceError, ModelError, SolverError
from optsched.models import BatchSelection
from optsched.models.batch import FITS
from optsched.models.program import Solution, Stopped


@st.composite
def selections(draw):
    instance = draw(instances(max_requests=7, max_memory=25))
    return BatchSelection(
        instance.prompts, instance.outputs, instance.memory, draw(st.sampled_from(FITS))
    )


@pytest.mark.few
@given(selections())
@examples(200)
def test_rows_admit_exactly_the_batches_that_fit(selection):
    fitting = set(batches(selection))
    models = {n: replace(selection, size=n).to_linear() for n in range(1, len(selection) + 1)}
    for number in range(1, 2 ** len(selection)):
        batch = tuple(i for i in range(len(selection)) if number >> i & 1)
        model = models[len(batch)]
        point = selection.write_point(batch)
        assert (batch in fitting) == (not model.violations(point)) == selection.fits(batch)
        assert model.objective(point) == selection.outputs[list(batch)].sum()
        assert sorted(selection.read(point).tolist()) == list(batch)


def solved(model):
    """Return what a solver says, by SciPy."""
    values = solve(model)
    if values is None:
        return Solution(Stopped.INFEASIBLE, "SciPy", 0.0)
    return Solution(Stopped.OPTIMAL, "SciPy", 0.0, values=values, bound=round(model.cost @ values))


@given(selections())
@examples(100)
def test_best_batch_is_the_best_of_all_and_the_largest_among_equals(selection):
    sizes = []

    def counted(model):
        sizes.append(int(model.row_lower[0]))
        return solved(model)

    batch, proven = selection.best(counted)
    assert proven == selection.ratio(batch)
    everything = [(ratio(b, selection), -len(b)) for b in batches(selection)]
    assert (selection.ratio(batch), -len(batch)) == min(everything)
    assert selection.fits(batch)
    assert (np.diff(selection.outputs[batch]) >= 0).all()
    assert len(sizes) == len(set(sizes)) <= len(selection)


@given(selections(), st.integers(0, 3), st.booleans())
@examples(100)
def test_what_is_proven_when_time_runs_out_holds(selection, solves, known):
    """After some sizes the time is over, with or without a batch of that size."""
    left = iter(range(solves))

    def until_over(model):
        found = solved(model)
        if next(left, None) is not None or found.status is Stopped.INFEASIBLE:
            return found
        values = found.values if known else None
        return Solution(Stopped.TIME_LIMIT, "SciPy", 0.0, values=values, bound=0.0)

    batch, proven = selection.best(until_over)
    least = min(ratio(b, selection) for b in batches(selection))
    assert proven <= least
    assert not len(batch) or (selection.fits(batch) and selection.ratio(batch) >= least)


@pytest.mark.few
@given(selections(), st.data())
@examples(100)
def test_rows_of_ones_own_are_kept_by_all_sizes(selection, data):
    count = len(selection)
    row = np.array(data.draw(st.lists(st.integers(-2, 3), min_size=count, max_size=count)))
    lower = data.draw(st.integers(-3, 4))
    own = selection.with_rows("own", row, lower, lower + 2)
    allowed = [
        batch for batch in batches(selection) if lower <= row[list(batch)].sum() <= lower + 2
    ]
    found = solve_any(own, method=data.draw(st.sampled_from(["auto", "highs", "cp-sat"])))
    if not allowed:
        assert found.status == "infeasible"
        return
    least = min(map(selection.ratio, allowed))
    assert (found.proven_optimal, found.answer.ratio, found.answer.bound) == (True, least, least)
    assert own.fits(found.answer.requests)
    assert found.answer.plot().get_ylabel()


def test_a_size_that_does_not_fit_leaves_the_next_smaller_one_to_be_tried():
    """All seven hold 30 tokens at step 5; F of six is 26/36, of five 21/25."""
    selection = BatchSelection([0] * 7, [1] + [5] * 6, memory=25, fit="profile")
    sizes = []
    batch, _ = selection.best(
        lambda model: (sizes.append(int(model.row_lower[0])), solved(model))[1]
    )
    assert (len(batch), sizes) == (6, [7, 6])


def test_the_profile_admits_more_than_the_sum_of_peaks():
    """Together 2 + 8 = 10 tokens at step 1; alone the second grows to 10 at step 5."""
    prompts, outputs = [1, 5], [1, 5]
    assert BatchSelection(prompts, outputs, 10, "profile").best(solved)[0].tolist() == [0]
    assert BatchSelection(prompts, outputs, 10, "profile").fits([0, 1])
    assert not BatchSelection(prompts, outputs, 10, "peak").fits([0, 1])


def test_pyomo_speaks_of_take_size_and_memory():
    m = BatchSelection([1, 5], [1, 5], 10, "profile", size=2).to_pyomo()
    assert str(m.memory[1].expr) == "2.0*take[0] + 6.0*take[1]  <=  10.0"
    assert str(m.size.expr) == "take[0] + take[1]  ==  2.0"


def test_what_is_wrong_is_refused_in_one_sentence():
    with pytest.raises(ModelError, match="unknown fit 'both': known: peak, profile"):
        BatchSelection([1], [1], 5, "both")
    with pytest.raises(InstanceError, match="request 1: prompts 5 \\+ outputs 1 is more than fits"):
        BatchSelection([1, 5], [1, 1], 5)
    with pytest.raises(ModelError, match=r"take\[1\] is 0.5"):
        BatchSelection([1, 1], [1, 1], 5).read([1, 0.5])
    with pytest.raises(ModelError, match="size is 3, but must be from 1 to 2 requests"):
        BatchSelection([1, 1], [1, 1], 5, size=3)
    with pytest.raises(ModelError, match="a linear program for one size only"):
        BatchSelection([1, 1], [1, 1], 5).to_linear()
    with pytest.raises(ModelError, match=r"rows 'own': the coefficients have shape \(1, 3\), but"):
        BatchSelection([1, 1], [1, 1], 5).with_rows("own", [1, 1, 1])
    own = BatchSelection([1, 1], [1, 1], 5).with_rows("own", [1, 1], lower=2)
    with pytest.raises(SolverError, match="method 'dp' takes no rows of your own; use 'highs'"):
        solve_any(own, method="dp")
    assert repr(BatchSelection([1], [1], 5)) == "<BatchSelection of 1 requests, memory 5, peak fit>"
