"""Deadlines and tenants in program (IO): against matchings and enumeration, in both solvers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from effort import examples, share
from hypothesis import given
from hypothesis import strategies as st
from literal_balance import allowed, draw_state, imbalance
from scipy import sparse
from scipy.sparse.csgraph import maximum_bipartite_matching

from optsched import solve
from optsched.errors import InstanceError, SolverError
from optsched.models import BalanceProgram, BalanceState, StepGoals
from optsched.models.balance import FORMS

SOLVERS = ("highs", "cp-sat")


def passing(latest, freed, left):
    """Latest starts of the window that pass if these requests wait, by a largest matching."""
    due = [request for request in left if 0 <= latest[request] <= len(freed)]
    slots = [step for step, count in enumerate(freed, start=1) for _ in range(count)]
    if not due or not slots:
        return len(due)
    fits = [[step <= latest[request] for step in slots] for request in due]
    graph = sparse.csr_array(np.array(fits, dtype=np.int8))
    return len(due) - int((maximum_bipartite_matching(graph, perm_type="column") >= 0).sum())


@examples(150)
@given(
    latest=st.lists(st.integers(-2, 5), min_size=1, max_size=6),
    freed=st.lists(st.integers(0, 2), max_size=3),
    admitted=st.integers(0, 4),
)
def test_rows_hold_exactly_where_no_more_latest_starts_pass_than_must(latest, freed, admitted):
    requests = range(len(latest))
    admitted = min(admitted, len(latest))
    goals = StepGoals(latest, freed)
    subsets = list(itertools.combinations(requests, admitted))
    lost = [passing(latest, freed, sorted(set(requests) - set(each))) for each in subsets]
    for subset, misses in zip(subsets, lost, strict=True):
        chosen = np.full(len(latest), -1)
        chosen[list(subset)] = 0
        assert goals.admits(chosen, len(freed)) == (misses == min(lost))


def literal_cost(state, goals, chosen):
    """Imbalance, and the price of the tenant that is worst off."""
    left = list(goals.short)
    for request, worker in enumerate(chosen):
        if worker >= 0:
            left[goals.tenant[request]] -= 1
    return imbalance(state, chosen) + goals.price * int(max(0, *left))


def draw_goals(generator, state):
    """Goals for a step: some late, some due now, tenants short of slots or not."""
    count = len(state.waiting)
    return StepGoals(
        latest=generator.integers(-1, 5, count),
        freed=generator.integers(0, 2, state.lookahead) if generator.integers(2) else None,
        tenant=generator.integers(0, 3, count),
        short=generator.integers(-1, 4, 3),
        price=int(generator.integers(0, 60)),
    )


@pytest.mark.parametrize("profiles", [False, True])
def test_both_forms_and_solvers_find_the_optimum_of_the_enumeration(profiles):
    generator = np.random.default_rng(3)
    changed = 0
    for _ in range(12):
        state = draw_state(generator, profiles=profiles)
        goals = draw_goals(generator, state)
        plain = BalanceProgram(state)
        every = itertools.product(range(-1, len(state.free)), repeat=len(state.waiting))
        costs = {
            chosen: literal_cost(state, goals, chosen)
            for chosen in every
            if allowed(state, chosen, plain.admissions)
        }
        good = [each for each in costs if goals.admits(np.array(each), state.lookahead)]
        assert good
        least = min(costs[each] for each in good)
        changed += least > min(imbalance(state, each) for each in costs)
        for form, solver in itertools.product(FORMS, SOLVERS):
            program = BalanceProgram(state, form=form, goals=goals)
            model = program.to_linear()
            for chosen, cost in costs.items():
                point = program.write_point(chosen)
                assert program.cost(chosen) == cost
                assert model.objective(point) == cost
                assert (not model.violations(point)) == (chosen in good)
                assert program.read(point).tolist() == list(chosen)
            solution = solve(model, method=solver).require(optimal=True)
            assert solution.objective == least
            assert program.cost(program.read(solution.values)) == least
    assert changed >= 3


def test_solvers_agree_on_random_steps_and_searches_are_never_below():
    generator = np.random.default_rng(5)
    shown = 0
    for _ in range(share(200)):
        workers, count = int(generator.integers(1, 5)), int(generator.integers(1, 11))
        state = BalanceState(
            generator.integers(0, 60, (workers, int(generator.integers(1, 4)))),
            generator.integers(0, 4, workers),
            generator.integers(0, 50, count),
        )
        program = BalanceProgram(state, goals=draw_goals(generator, state))
        one, other = (solve(program, method=name).require(optimal=True) for name in SOLVERS)
        assert one.objective == one.bound == other.objective
        quick = solve(program, method="swap").require()
        assert quick.bound <= one.objective <= quick.objective
        for found in (one, other, quick):
            chosen = found.answer.worker
            assert program.cost(chosen) == found.objective
            assert allowed(state, chosen, program.admissions)
            assert program.goals.admits(chosen, state.lookahead)
        shown += quick.objective == one.objective
    assert shown > share(200) / 2


def test_a_shorter_window_forgets_later_deadlines():
    state = BalanceState([[9, 9, 9], [9, 9, 9]], [1, 0], [30, 1])
    goals = StepGoals(latest=[1, 9], freed=[0, 5])
    assert solve(BalanceProgram(state, goals=goals)).answer.worker.tolist() == [0, -1]
    assert solve(BalanceProgram(state, 0, goals=goals)).answer.worker.tolist() == [-1, 0]


def test_with_limited_memory_goals_are_kept_among_those_that_find_room():
    """Of two free slots only one has room: for the request that is due."""
    state = BalanceState([[7], [9]], [1, 1], [3, 2], memory=[10, 10])
    found = [
        solve(BalanceProgram(state, goals=StepGoals(latest=each))) for each in ([0, 5], [5, 0])
    ]
    assert [each.require(optimal=True).answer.worker.tolist() for each in found] == [
        [0, -1],
        [-1, 0],
    ]


def test_a_method_without_goals_is_refused():
    program = BalanceProgram(BalanceState([[5]], [1], [8, 2]), goals=StepGoals(latest=[0, 9]))
    with pytest.raises(SolverError, match="method 'greedy' knows no goals; use 'swap'"):
        solve(program, method="greedy")


def test_deadlines_and_memory_together_may_be_infeasible_and_are_then_said_to_be():
    state = BalanceState([[5], [0]], [1, 0], [8, 2], memory=[10, 10])
    goals = StepGoals(latest=[0, 9])
    solution = solve(BalanceProgram(state, goals=goals))
    assert (solution.status, solution.answer) == ("infeasible", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tenant": [0, 0]}, "tenant and short belong together"),
        ({"tenant": [0, 2], "short": [1, 1]}, "request 1: tenant is 2, but must be from 0 to 1"),
        ({"freed": [2, -1]}, r"freed\[1\] is -1, but must be at least 0"),
        ({"price": -1}, "price is -1, but must be from 0"),
        ({"latest": [0.5, 1]}, r"latest\[0\] is 0.5, but must be a whole number"),
        ({"latest": [1]}, "latest has 1 entries, but 2 requests are waiting"),
        ({"freed": []}, "freed has 0 entries, but the lookahead is 1 steps"),
    ],
)
def test_bad_goals_are_refused_in_one_sentence(arguments, message):
    state = BalanceState([[9, 10], [4, 0]], [1, 1], [3, 7])
    with pytest.raises(InstanceError, match=message):
        BalanceProgram(state, goals=StepGoals(**arguments))
