"""Thresholds of WAIT in whole numbers: literally (9), and the same optimum in both solvers."""

import itertools
from fractions import Fraction

import effort
import numpy as np
import pytest
from effort import examples, share
from hypothesis import given
from hypothesis import strategies as st

from optsched import RequestTypes, SolveParams, solve
from optsched.clock import affine
from optsched.errors import ModelError
from optsched.models import WaitThresholds, WholeThresholds, equilibrium
from optsched.models.program import Stopped


def drawn(seed, objective, most=5, longest=30):
    """Draw a program with rates and coefficients of few digits, and perhaps limits."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, most + 1))
    prompts, outputs = rng.integers(0, longest, count), rng.integers(1, longest, count)
    rates = rng.choice([0.2, 0.5, 1, 2, 3, 4, 5, 6.4, 8, 10, 12.5, 20], count)
    types = RequestTypes(prompts, outputs, rates, bool(rng.integers(2)))
    constant, work = float(rng.choice([0.01, 0.025, 0.1])), 1.0
    while equilibrium(types, clock := affine(constant, work)).load >= 1:
        work = round(work / 2, 7)
    slack = float(rng.choice([0, 0, 0.01, 0.125]))
    program = WaitThresholds(types, clock, minimum_slack=slack)
    least = program.least_fixed_point()
    limits = {}
    if objective == "slack" or rng.random() < 0.5:
        limits["memory"] = int(types.held_tokens @ least * rng.uniform(0.85, 2)) + 1
        limits["memory"] = max(limits["memory"], int((types.prompts + types.outputs).max()))
    if rng.random() < 0.4:
        limits["batch_limit"] = int(types.stages @ least * rng.uniform(0.85, 2)) + 1
    return WaitThresholds(types, clock, minimum_slack=slack, objective=objective, **limits)


def keeps_up(program, thresholds):
    """(9) and the limits, literally."""
    types, slack = program.types, Fraction(repr(program.minimum_slack))
    constant, per_token = (
        Fraction(repr(float(c))) for c in (program.clock.constant, program.clock.held_tokens)
    )
    kinds = list(zip(types.prompts, types.outputs, thresholds, strict=True))
    tokens = sum(
        count * (prompt + stage)
        for prompt, output, count in kinds
        for stage in range(types.first_stage, output + 1)
    )
    requests = sum(count * (output + 1 - types.first_stage) for _, output, count in kinds)
    time = constant + per_token * int(tokens)
    slacks = [
        int(count) / Fraction(repr(rate)) - time
        for rate, count in zip(types.rates.tolist(), thresholds, strict=True)
    ]
    fits = program.memory is None or tokens <= program.memory
    fits = fits and (program.batch_limit is None or requests <= program.batch_limit)
    return fits and min(slacks) >= slack, int(tokens), min(slacks)


@examples(60)
@given(st.integers(0, 10**6), st.sampled_from(["memory", "slack"]), st.data())
def test_the_rows_are_literally_those_of_the_paper(seed, objective, data):
    program = drawn(seed, objective)
    whole = WholeThresholds(program)
    model = whole.to_linear()
    assert (model.matrix.data == np.rint(model.matrix.data)).all()
    assert model.integer.all()
    assert np.isfinite(model.col_upper).all()
    counts = data.draw(st.tuples(*(st.integers(1, int(top)) for top in whole.most)))
    holds = keeps_up(program, counts)[0]
    assert (model.violations(whole.write_point(counts)) == []) == holds


@pytest.mark.few
@pytest.mark.parametrize("objective", ["memory", "slack"])
def test_both_solvers_agree_on_random_programs(objective):
    infeasible = 0
    for seed in range(share(150)):
        program = drawn(seed, objective)
        by_highs, by_cp_sat = (solve(program, method=name) for name in ("highs", "cp-sat"))
        assert by_cp_sat.has_answer == by_highs.has_answer
        if by_cp_sat.status is Stopped.INFEASIBLE:
            infeasible += 1
            continue
        assert by_cp_sat.proven_optimal
        assert by_cp_sat.objective == pytest.approx(by_highs.objective, rel=1e-6, abs=1e-9)
        holds, tokens, slack = keeps_up(program, by_cp_sat.answer)
        assert holds
        assert by_cp_sat.objective == float(tokens if objective == "memory" else slack)
        assert (by_cp_sat.values == program.write_point(by_cp_sat.answer)).all()
        better = by_cp_sat.bound - by_cp_sat.objective
        assert better >= 0 if objective == "slack" else better <= 0
    assert effort.few or share(150) / 31 < infeasible < share(150) / 2


@pytest.mark.few
@pytest.mark.parametrize("objective", ["memory", "slack"])
def test_no_threshold_within_reach_is_better(objective):
    """Brute force, beyond the bounds of the columns as well."""
    compared = 0
    for seed in range(share(200)):
        program = drawn(seed, objective, most=2, longest=6)
        tops = [range(1, min(int(top), 25) + 4) for top in WholeThresholds(program).most]
        if max(WholeThresholds(program).most) > 25:
            continue
        found = [keeps_up(program, counts) for counts in itertools.product(*tops)]
        values = [
            tokens if objective == "memory" else slack for holds, tokens, slack in found if holds
        ]
        best = solve(program, method="cp-sat")
        if not values:
            assert best.status is Stopped.INFEASIBLE
            continue
        assert best.objective == float(min(values) if objective == "memory" else max(values))
        compared += 1
    assert compared > share(200) / 5


def test_a_start_is_taken():
    program = drawn(1, "slack")
    least = program.least_fixed_point()
    found = solve(program, method="cp-sat", params=SolveParams(start=least))
    assert found.proven_optimal


def test_rates_of_many_digits_are_refused_in_one_sentence():
    types = RequestTypes([10, 20], [10, 20], [1 / 3, 2 / 7])
    program = WaitThresholds(types, "affine:0.0085,2.7e-7", memory=8000, objective="slack")
    with pytest.raises(ModelError, match=r"digits for .*; round the rates .* take method highs"):
        solve(program, method="cp-sat")
    assert solve(program).gap < 1e-6
