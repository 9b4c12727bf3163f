"""The four decision problems of the papers: each method against brute force, and rolling."""

from fractions import Fraction

import brute_force
import numpy as np
import pytest
from effort import share
from literal_balance import draw_state, imbalance, least_imbalance

import optsched.rolling.planners
from optsched import Instance, OptschedError, RollingPolicy, SolveParams, family, run, solve
from optsched.models import BalanceProgram, BatchSelection, HindsightProgram, LatencyRelaxation
from optsched.optimum.programs import kind_of
from optsched.policies.decision import ROLLING_MODELS
from optsched.solvers.selection import OWN_METHODS

METHODS = ("highs", "cp-sat", "auto")


def tiny(rng, most=5):
    """Draw a few requests, some of which arrive later."""
    memory = int(rng.integers(4, 14))
    outputs = rng.integers(1, 5, int(rng.integers(1, most + 1)))
    outputs = np.minimum(outputs, memory)
    arrivals = np.sort(rng.integers(0, 4, len(outputs))) * rng.integers(0, 2)
    prompts = rng.integers(0, memory - outputs + 1)
    return Instance(prompts, outputs, memory, arrivals - arrivals.min())


@pytest.mark.few
@pytest.mark.parametrize("method", METHODS)
def test_hindsight_is_the_best_of_all_schedules(method):
    rng = np.random.default_rng(46)
    for _ in range(share(200)):
        instance = tiny(rng, 4)
        least = brute_force.optima(instance)
        for objective in ("total-latency", "makespan"):
            found = solve(HindsightProgram(instance, objective=objective), method=method)
            assert found.proven_optimal
            assert found.objective == found.bound == least[objective]
            assert found.answer.check() == []


@pytest.mark.slow("highs-*", "cp-sat-*", "auto-profile")
@pytest.mark.parametrize("fit", ["peak", "profile"])
@pytest.mark.parametrize("method", [*METHODS, *OWN_METHODS])
def test_a_batch_is_the_best_of_all_batches_and_of_all_of_its_size(method, fit):
    rng = np.random.default_rng(47)
    for _ in range(share(200)):
        instance = tiny(rng)
        selection = BatchSelection(instance.prompts, instance.outputs, instance.memory, fit)
        if fit == "profile" and method in OWN_METHODS:
            with pytest.raises(OptschedError, match="knows only fit='peak'"):
                solve(selection, method=method)
            return
        every = list(brute_force.batches(selection))
        least = min(brute_force.ratio(batch, selection) for batch in every)
        found = solve(selection, method=method)
        ratio = found.answer.ratio
        assert selection.fits(found.answer.requests)
        assert found.objective == float(ratio) == float(selection.ratio(found.answer.requests))
        assert found.bound is None or Fraction(found.bound) <= least <= ratio
        exact = method in (*METHODS, "dp")
        assert not exact or (found.proven_optimal and ratio == least)
        for size in range(1, len(instance) + 1) if exact else ():
            of_size = BatchSelection(*selection_data(selection), fit, size)
            found = solve(of_size, method=method)
            sums = [instance.outputs[list(each)].sum() for each in every if len(each) == size]
            if not sums:
                assert found.status == "infeasible"
                continue
            assert found.proven_optimal
            assert found.objective == found.bound == min(sums)
            assert len(found.answer) == size


def test_a_batch_is_selected_under_the_progress_bar_of_a_notebook():
    selection = BatchSelection([4, 4], [1, 6], memory=13)
    for method in (*METHODS, *OWN_METHODS):
        params = SolveParams(on_progress=lambda progress: None)
        found = kind_of(selection).solve(selection, method, 60.0, params)
        assert found.objective == 1


def selection_data(selection):
    return selection.prompts, selection.outputs, selection.memory


@pytest.mark.parametrize("method", METHODS)
def test_an_assignment_is_the_most_even_of_all(method):
    rng = np.random.default_rng(48)
    for _ in range(share(200)):
        state = draw_state(rng)
        found = solve(BalanceProgram(state), method=method)
        assert found.proven_optimal
        assert found.objective == found.bound == least_imbalance(state)
        assert imbalance(state, found.answer.worker.tolist()) == found.objective


@pytest.mark.parametrize("method", METHODS)
def test_the_relaxation_is_solved_where_fractions_can_be_represented(method):
    rng = np.random.default_rng(49)
    for _ in range(share(200)):
        instance = tiny(rng, 4)
        relaxation = LatencyRelaxation(instance)
        if method == "cp-sat":
            with pytest.raises(OptschedError, match="which CP-SAT cannot represent"):
                solve(relaxation, method=method)
            return
        found = solve(relaxation, method=method)
        value = brute_force.optimum(relaxation.to_linear())
        assert found.objective == pytest.approx(value, abs=1e-6)
        assert found.bound <= brute_force.optima(instance)["total-latency"]


@pytest.mark.slow(
    *("auto-hindsight-exact", "highs-hindsight*", "highs-relax-lp", "highs-batch"),
    *("cp-sat-hindsight*", "cp-sat-batch"),
)
@pytest.mark.parametrize("model", ROLLING_MODELS)
@pytest.mark.parametrize("method", ["auto", "dp", "highs", "cp-sat"])
def test_a_rolling_horizon_plans_by_each_model_and_solver(model, method, monkeypatch):
    monkeypatch.setattr(optsched.rolling.planners, "_BUSY", 1e-4)  # else it searches for seconds
    if method not in ROLLING_MODELS[model]:
        with pytest.raises(OptschedError, match="of this rolling horizon is planned by 'auto'"):
            RollingPolicy(model=model, method=method)
        return
    for seed in range(share(20)):
        instance = family(("uniform", "exponential")[seed % 2], n=8, seed=seed, load=1.1)
        policy = RollingPolicy(model=model, method=method, window=4, budget=30.0, scenarios=0)
        found = run(instance, policy)
        assert found.schedule.check() == []
        facts = found.decisions.to_dict()
        assert (facts["model"], facts["method"]) == (model, method)
        assert (facts["fell_back"], facts["fallbacks"], facts["reasons"]) == (0, 0, {})
        assert facts["planned"] == facts["decisions"] > 0
        assert method == "auto" or f"planned by {model} with {method}" in str(found.decisions)


def test_what_cannot_be_planned_in_time_is_said():
    instance = family("chat-and-summaries", n=20, seed=1, load=1.0)
    found = run(instance, RollingPolicy(model="hindsight", method="cp-sat", budget=1e-6))
    facts = found.decisions.to_dict()
    assert facts["fell_back"] == facts["failed"] + facts["late"] > 0
    assert f"{facts['fell_back']} of {facts['decisions']} plans fell back on area" in (
        found.decisions.fell_back
    )
