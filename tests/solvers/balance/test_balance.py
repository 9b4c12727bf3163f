"""One interface to every method: exact values, proven bounds, budgets."""

from dataclasses import replace

import numpy as np
import pytest
from effort import share
from literal_balance import allowed, draw_state, imbalance, least_imbalance

from optsched import SolveParams, solve
from optsched.errors import InfeasibleError, OptschedError, SolverError
from optsched.models import BalanceProgram, BalanceState
from optsched.models.program import Stopped


def balance(state, **arguments):
    """Solve the program of a state; the search of a bound has all the time it needs."""
    return solve(BalanceProgram(state), **({"time_limit": None} | arguments))


KINDS = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.slow
@pytest.mark.parametrize(("profiles", "memory"), KINDS)
def test_no_method_claims_more_than_enumeration_allows(profiles, memory):
    generator = np.random.default_rng(8)
    optimal = tried = 0
    for _ in range(40):
        draw = scarce if memory and generator.integers(2) else draw_state
        state = draw(generator, profiles=profiles, memory=memory)
        greedy, least = balance(state, method="greedy"), least_imbalance(state)
        for method in ("swap", "greedy"):
            found = balance(state, method=method)
            if found.answer is None:
                assert memory
                assert (found.status, found.proven_optimal) == (Stopped.UNKNOWN, False)
                assert "requests; method='cp-sat' tells" in found.raw_status
                assert least is None or found.bound <= least
                continue
            assert allowed(state, found.answer.worker, BalanceProgram(state).admissions)
            assert found.answer.value == imbalance(state, found.answer.worker)
            assert found.bound <= least <= found.answer.value
            if method == "swap":
                assert greedy.answer is None or found.answer.value <= greedy.answer.value
                tried += 1
                optimal += found.answer.value == least
    assert optimal >= 0.85 * tried


def scarce(generator, **kinds):
    """A state whose memory often has no room for all that there are slots for."""
    state = draw_state(generator, **kinds)
    peak = int(state.tokens.max())
    memory = state.alive.max(axis=1) + generator.integers(0, 1 + 3 * peak // 2, len(state.free))
    memory[np.argmax(memory)] = max(memory.max(), peak)
    return replace(state, memory=memory)


@pytest.mark.parametrize("method", ["auto", "highs", "cp-sat", "appsi_highs"])
def test_exact_methods_prove_the_optimum_or_that_there_is_none(method):
    generator, infeasible = np.random.default_rng(9), 0
    for kind in range(share(100)):
        state = scarce(generator, profiles=kind % 2 == 1)
        for admitted in (None, kind % (1 + BalanceProgram(state).admissions)):
            found = solve(BalanceProgram(state, admitted=admitted), method=method)
            if (least := least_imbalance(state, admitted)) is None:
                assert (found.status, found.answer) == (Stopped.INFEASIBLE, None)
                assert (found.objective, found.bound) == (None, None)
                infeasible += 1
                continue
            assert (found.answer.value, found.bound, found.objective) == (least, least, least)
            assert found.proven_optimal
            assert (found.status, found.gap) == (Stopped.OPTIMAL, 0.0)
            program = BalanceProgram(state, admitted=admitted)
            assert allowed(state, found.answer.worker, program.admissions)
    assert infeasible >= share(20)


def large(lookahead=20, workers=16, requests=128, seed=0, **arguments):
    generator = np.random.default_rng(seed)
    ends = generator.integers(0, 900, (workers, lookahead + 1))
    alive = 60_000 + np.cumsum(ends[:, ::-1], axis=1)[:, ::-1]
    free = generator.integers(0, 2, workers)
    waiting = generator.lognormal(6, 1, requests).astype(int) + 1
    return BalanceState(alive, free, waiting, **arguments)


@pytest.mark.slow
def test_solvers_begin_from_swap_and_improve_on_it():
    state = large()
    swap = balance(state, method="swap")
    exact = balance(state, method="highs", time_limit=20)
    assert swap.bound <= exact.bound <= exact.answer.value <= swap.answer.value
    assert exact.proven_optimal
    assert swap.bound > 0


@pytest.mark.parametrize("method", ["auto", "swap", "highs", "cp-sat"])
def test_past_the_time_limit_the_best_so_far_is_given(method):
    state = large(workers=64, lookahead=40)
    balance(state, method="swap", time_limit=1e-9)  # compiled
    found = balance(state, method=method, time_limit=1e-9)
    assert found.answer.value == balance(state, method="swap", time_limit=1e-9).answer.value
    assert found.bound <= found.answer.value
    assert not found.proven_optimal
    assert found.status is (Stopped.UNKNOWN if method == "swap" else Stopped.TIME_LIMIT)


@pytest.mark.slow
def test_without_lookahead_every_step_is_proven():
    for seed in range(8):
        assert balance(large(0, seed=seed), time_limit=20).proven_optimal


def test_values_count_the_slowness_that_all_share():
    state = BalanceState([[30], [22], [13]], [0, 1, 2], [5, 8, 8, 11], slowness=3)
    found = balance(state)
    assert (found.answer.value, found.bound) == (3, 3)
    assert imbalance(state, found.answer.worker) == 3


def test_the_number_of_workers_does_not_change_what_a_bonus_buys():
    state = BalanceState([[50], [40]], [0, 1], [10, 2], bonus=[0, 1000])
    assert balance(state).answer.worker.tolist() == [-1, 1]
    assert balance(state).objective == 2 * 50 - 50 - 42 - 1000


def test_a_search_that_finds_no_room_for_some_changes_nothing_about_the_program():
    """It was answered with four admissions, "optimal, proven"."""
    state = BalanceState([[0], [3]], [3, 2], [2, 1, 4, 6, 9], memory=[10, 16])
    assert balance(state, method="swap").answer is None
    for admitted in (None, 5):
        found = solve(BalanceProgram(state, admitted=admitted)).require(optimal=True)
        assert (found.objective, found.answer.admitted) == (7, 5)


def test_what_memory_has_no_room_for_is_infeasible_unless_fewer_are_asked_for():
    state = BalanceState([[50], [40]], [2, 2], [10, 9, 8, 7], memory=[58, 50])
    assert balance(state).status is Stopped.INFEASIBLE
    with pytest.raises(InfeasibleError, match="explain_infeasibility names rows in conflict"):
        balance(state).require()
    assert balance(state, method="swap").status is Stopped.UNKNOWN
    assert balance(state, time_limit=1e-9).status is Stopped.TIME_LIMIT
    found = solve(BalanceProgram(state, admitted=2)).require(optimal=True)
    assert found.answer.value == least_imbalance(state, 2)


def test_steps_with_nothing_to_decide():
    for state in (BalanceState([[5], [3]], [0, 0], [4]), BalanceState([[5], [3]], [1, 0], [])):
        for method in ("auto", "swap", "highs", "cp-sat"):
            found = balance(state, method=method)
            assert (found.answer.admitted, found.answer.value, found.bound) == (0, 2, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "swop"}, "unknown method 'swop': did you mean 'swap'"),
        ({"time_limit": 0}, "time_limit is 0, but must be a positive number of seconds"),
    ],
)
def test_bad_requests_are_refused_in_one_sentence(arguments, message):
    state = BalanceState([[9, 10], [4, 0]], [0, 1], [3, 7])
    with pytest.raises(SolverError, match=message):
        balance(state, **arguments)


def test_a_given_number_of_admissions_is_left_to_a_solver():
    state = BalanceState([[9], [4], [6]], [1, 1, 1], [3, 7, 1])
    program = BalanceProgram(state, admitted=2)
    found = solve(program).require(optimal=True)
    assert found.answer.admitted == 2
    assert found.objective == found.answer.value == least_imbalance(state, 2)
    with pytest.raises(SolverError, match="method 'swap' admits all requests that find room"):
        solve(program, method="swap")


def test_an_assignment_and_its_solution_are_one_line_each():
    found = balance(BalanceState([[9, 10], [4, 0]], [0, 1], [3, 7]))
    assert found.objective == found.answer.value == 4
    assert repr(found.answer) == "<Assignment of 1 requests by cp-sat: value 4>"
    assert repr(found) == "<Solution of 'balance': optimal, objective 4.0>"
    with pytest.raises(OptschedError, match=r"gap_limit is 0\.5, but does not apply to a Balance"):
        solve(BalanceProgram(BalanceState([[1]], [1], [1])), params=SolveParams(gap_limit=0.5))
