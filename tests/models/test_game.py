"""Games with unknown outputs: all decision trees, every policy, and the optimum in hindsight."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from literal_game import Trees

from optsched import POLICIES, Beliefs, Forecast, GameValue, Instance, SolveParams, run, solve
from optsched.errors import ModelError, OptschedError, SolverError


def game_of(prompts, arrivals, memory, chances, criterion="mean", preemption=True, rows=None):
    """Make a game in which requests have rows of chances of the outputs 1, 2, ..."""
    count, longest = len(prompts), len(chances[0])
    beliefs = Beliefs(chances, range(count) if rows is None else rows)
    known = Forecast(prompts, arrivals, [1] * count, [longest] * count, memory, beliefs=beliefs)
    return GameValue(known, criterion, preemption)


@st.composite
def tiny_games(draw, most=3):
    """Draw prompts, arrivals, memory and chances; three requests have outputs up to two."""
    count = draw(st.integers(1, most))
    longest = draw(st.integers(1, 3 if count < 3 else 2))
    prompts = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    memory = max(prompts) + longest + draw(st.integers(0, 3))
    last = draw(st.sampled_from([0, 0, 2]))
    arrivals = sorted(draw(st.lists(st.integers(0, last), min_size=count, max_size=count)))
    row = st.lists(st.integers(0, 3), min_size=longest, max_size=longest).filter(any)
    chances = draw(st.lists(row, min_size=count, max_size=count))
    if draw(st.booleans()):
        chances = [chances[0]] * count
    return prompts, arrivals, memory, chances


def trees_of(prompts, arrivals, memory, chances, preemption):
    outcomes = {(): Fraction(1)}
    for row in chances:
        outcomes = {
            (*before, output): chance * Fraction(weight, sum(row))
            for before, chance in outcomes.items()
            for output, weight in enumerate(row, 1)
            if weight
        }
    return Trees(prompts, arrivals, memory, outcomes, preemption)


def hindsight(game):
    """Return the optimum of each outcome, by outputs."""
    known = game.forecast
    return {
        tuple(outputs): int(
            solve(Instance(known.prompts, outputs, known.memory, known.arrivals)).objective
        )
        for outputs in game.outcomes().outputs.tolist()
    }


@given(tiny_games(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_the_best_mean_is_that_of_all_decision_trees(tiny, preemption):
    found = solve(game_of(*tiny, preemption=preemption))
    exact = trees_of(*tiny, preemption).best_mean()
    assert found.proven_optimal
    assert found.bound <= exact == pytest.approx(found.objective, rel=1e-12)
    assert found.bound == pytest.approx(float(exact), rel=1e-9)


@given(tiny_games(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_best_worst_cases_are_those_of_all_decision_trees(tiny, preemption):
    ratio = solve(game_of(*tiny, "ratio", preemption))
    regret = solve(game_of(*tiny, "regret", preemption))
    trees, optima = trees_of(*tiny, preemption), hindsight(ratio.answer.game)
    assert ratio.answer.optima.tolist() == list(optima.values())
    assert ratio.answer.value == trees.best_ratio(optima)
    assert regret.answer.value == trees.best_regret(optima)
    assert Fraction(ratio.bound) <= ratio.answer.value
    assert ratio.proven_optimal
    assert regret.proven_optimal


def drawn_game(seed, criterion="mean", count=3, longest=3):
    """Draw a game of requests that compete for memory."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(0, 3, count).tolist()
    arrivals = np.sort(rng.integers(0, 3, count) * int(rng.integers(0, 2))).tolist()
    memory = max(prompts) + longest + int(rng.integers(0, 4))
    return game_of(prompts, arrivals, memory, rng.random((count, longest)) + 0.01, criterion)


@pytest.mark.parametrize("criterion", ["mean", "ratio", "regret"])
@pytest.mark.parametrize("preemption", [True, False])
def test_the_best_policy_is_run_as_its_latencies_say(criterion, preemption):
    for seed in range(4):
        known = drawn_game(seed).forecast
        answer = solve(GameValue(known, criterion, preemption)).answer
        for outputs, total in zip(answer.outcomes.outputs, answer.total_latencies, strict=True):
            done = answer.run(outputs)
            assert not done.check()
            assert done.total_latency == total
            assert preemption or not done.preemptions


def online_policies():
    """Return every policy in steps that needs no outputs."""
    kinds = ("plan", "chance", "threshold", "rolling")
    return [
        name
        for name, policy in POLICIES.items()
        if policy.needs.kind in kinds and not name.startswith("work")
    ]


@pytest.mark.parametrize("seed", range(4))
def test_no_policy_costs_less_than_the_value(seed):
    known = drawn_game(seed).forecast
    mean, ratio, regret = (
        solve(GameValue(known, criterion)) for criterion in ("mean", "ratio", "regret")
    )
    outcomes, optima = ratio.answer.outcomes, ratio.answer.optima
    assert len(online_policies()) > 10
    for name in online_policies():
        totals = np.empty(len(optima))
        for at, outputs in enumerate(outcomes.outputs):
            requests = Instance(known.prompts, outputs, known.memory, known.arrivals)
            beliefs = POLICIES[name].asks_for(known.beliefs)
            done = run(requests, name, intervals="common:1,3", beliefs=beliefs)
            totals[at] = done.total_latency if done.all_complete else np.inf
        assert outcomes.chances @ totals >= mean.bound, name
        assert (totals / optima).max() >= ratio.bound, name
        assert (totals - optima).max() >= regret.bound, name


def test_memory_for_all_scenarios_costs_more_than_preemption():
    dearer = 0
    for seed in range(8):
        known = drawn_game(seed).forecast
        free, bound = solve(GameValue(known)), solve(GameValue(known, preemption=False))
        assert free.bound <= bound.objective
        dearer += bound.bound > free.objective
    assert dearer > 2


@pytest.mark.parametrize("seed", range(6))
def test_known_outputs_leave_the_optimum_in_hindsight(seed):
    rng = np.random.default_rng(seed)
    prompts, outputs = rng.integers(0, 4, 5), rng.integers(1, 5, 5)
    arrivals = np.sort(rng.integers(0, 4, 5))
    instance = Instance(prompts, outputs, 10, arrivals)
    known = Forecast(
        prompts, arrivals, outputs, outputs, 10, beliefs=Beliefs(np.eye(4)[outputs - 1])
    )
    best = solve(instance).require(optimal=True).objective
    assert solve(GameValue(known)).objective == best
    assert solve(GameValue(known, "ratio")).objective == 1
    assert solve(GameValue(known, "regret")).objective == 0


def test_labels_and_a_first_arrival_are_kept():
    known = Forecast([0, 0], [7, 9], [1, 1], [2, 2], 3, labels=("a", "b"))
    answer = solve(GameValue(known, "regret")).answer
    done = answer.run([2, 1])
    assert done.schedule.starts.min() == 7
    assert done.instance.labels == ("a", "b")
    with pytest.raises(OptschedError, match=r"\[3, 1\] are none of the outcomes"):
        answer.run([3, 1])


def test_bad_games_get_one_sentence():
    plain = Forecast([0] * 2, [0] * 2, [1] * 2, [3] * 2, 9)
    for arguments, message in (
        ((plain,), "the forecast has no belief, without which there is no mean"),
        ((plain, "median"), "unknown criterion 'median'"),
        ((None, "ratio"), "a game is about a Forecast of requests, not None"),
        (
            (Forecast([0], [0], [1], [3], 9, beliefs=Beliefs.to_learn([0], 3)),),
            "the belief learns while requests complete",
        ),
    ):
        with pytest.raises(ModelError, match=message):
            GameValue(*arguments)
    with pytest.raises(SolverError, match="method 'highs' cannot solve a game"):
        solve(GameValue(plain, "ratio"), method="highs")
    with pytest.raises(OptschedError, match="threads is 2, but does not apply to a GameValue"):
        solve(GameValue(plain, "ratio"), params=SolveParams(threads=2))


@pytest.mark.parametrize(
    ("count", "size"), [(8, "1,475,789,056 states"), (2_000, "about 10^2292 states")]
)
def test_a_game_too_large_for_its_table_says_how_large(count, size):
    game = GameValue(Forecast([0] * count, [0] * count, [1] * count, [4] * count, 99), "regret")
    with pytest.raises(SolverError, match=rf"has {re.escape(size)}, .* at most 3,000,000"):
        solve(game)
    assert size in str(game)


def test_a_game_without_time_has_no_value():
    found = solve(drawn_game(1, count=4, longest=4), time_limit=1e-9)
    assert (found.status, found.objective, found.bound) == ("time limit", None, None)
