"""Program (IO): both forms against enumeration, and what is refused."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from literal_balance import allowed, draw_state, imbalance, least_imbalance
from tabled import tabled

from optsched import solve
from optsched.errors import InstanceError, ModelError
from optsched.models import BalanceProgram, BalanceState
from optsched.models.balance import FORMS

KINDS = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.parametrize(("profiles", "memory"), KINDS)
def test_points_of_both_forms_are_feasible_exactly_where_assignments_are(profiles, memory):
    generator = np.random.default_rng(1)
    for _ in range(12):
        state = draw_state(generator, profiles=profiles, memory=memory, requests=3)
        programs = [BalanceProgram(state, form=form) for form in FORMS]
        models = [program.to_linear() for program in programs]
        for chosen in itertools.product(range(-1, len(state.free)), repeat=len(state.waiting)):
            cost = programs[0].cost(chosen)
            assert cost == imbalance(state, chosen)
            for program, model in zip(programs, models, strict=True):
                if program.form == "reduced" and any(g >= 0 and not state.free[g] for g in chosen):
                    continue
                point = program.write_point(chosen)
                good = allowed(state, chosen, program.admissions)
                assert (not model.violations(point)) == good
                if good:
                    assert model.objective(point) == cost
                assert program.read(point).tolist() == list(chosen)


@pytest.mark.slow
@pytest.mark.parametrize(("profiles", "memory"), KINDS)
def test_literal_equals_reduced_equals_enumeration_with_both_solvers(profiles, memory):
    generator = np.random.default_rng(2)
    feasible = 0
    for _ in range(10):
        state = draw_state(generator, profiles=profiles, memory=memory)
        least = least_imbalance(state)
        feasible += least is not None
        for form, solver in itertools.product(FORMS, ("highs", "cp-sat")):
            program = BalanceProgram(state, form=form)
            solution = solve(program.to_linear(), method=solver)
            if least is None:
                assert not solution.has_answer
                continue
            solution.require(optimal=True)
            assert solution.objective == least
            assert program.cost(program.read(solution.values)) == least
    assert feasible >= 3


def test_fewer_admissions_are_another_program():
    state = BalanceState(alive=[[9], [4], [6]], free=[1, 1, 1], waiting=[3, 7, 1])
    for admitted in range(4):
        solution = solve(BalanceProgram(state, admitted=admitted).to_linear()).require()
        assert solution.objective == least_imbalance(state, admitted)
    with pytest.raises(ModelError, match="admitted is 4, but with 3 waiting and 3 free slots"):
        BalanceProgram(state, admitted=4)


def test_reach_rows_of_the_reduced_form_do_not_grow_with_the_requests():
    state = BalanceState(np.full((16, 21), 5_000), np.ones(16), np.arange(128))
    program = BalanceProgram(state)
    reach = program.to_linear().rows_of("reach")
    assert np.diff(program.to_linear().matrix.indptr)[reach].max() <= 3
    literal = replace(program, form="literal").to_linear()
    assert np.diff(literal.matrix.indptr)[literal.rows_of("reach")].min() >= 127


def test_states_from_requests_equal_those_from_loads():
    generator = np.random.default_rng(4)
    for _ in range(50):
        worker = generator.integers(0, 3, 12)
        tokens, remaining = generator.integers(30, 99, 12), generator.integers(1, 8, 12)
        drift = generator.integers(-4, 5, 5)
        state = BalanceState.from_requests(
            [12, 13, 14], worker, tokens, remaining, [50], lookahead=5, drift=drift
        )
        for g, h in itertools.product(range(3), range(6)):
            load = sum(
                int(t) + int(drift[:h].sum())
                for t, left, at in zip(tokens, remaining, worker, strict=True)
                if at == g and left > h
            )
            assert state.alive[g, h] == load
        assert (
            state.free.tolist()
            == (np.array([12, 13, 14]) - np.bincount(worker, minlength=3)).tolist()
        )


def test_a_request_known_to_end_is_a_profile_that_falls_to_nothing():
    state = BalanceState([[5, 5, 5], [0, 0, 0]], [0, 1], [4], drift=[[1, -5]])
    assert state.tokens.tolist() == [[4, 5, 0]]
    assert BalanceProgram(state).loads([1]).tolist() == [[5, 5, 5], [4, 5, 0]]


def test_a_shorter_window_is_the_same_step():
    state = BalanceState([[9, 10, 3]], [1], [3, 4], drift=[2, 5])
    short = BalanceProgram(state, lookahead=1).state
    assert (short.alive.tolist(), short.tokens.tolist()) == ([[9, 10]], [[3, 5], [4, 6]])


@tabled(
    ({"alive": np.zeros((0, 3))}, "there are no workers; pass at least one row"),
)
def test_bad_states_are_refused_in_one_sentence(arguments, message):
    good = {"alive": [[9, 10], [4, 0]], "free": [1, 1], "waiting": [3, 7]}
    with pytest.raises(InstanceError, match=message):
        BalanceState(**(good | arguments))


@tabled()
def test_bad_requests_are_refused_in_one_sentence(arguments, message):
    good = {
        "slots": [2, 2],
        "worker": [0, 0],
        "tokens": [5, 8],
        "remaining": [3, 4],
        "waiting": [20],
        "lookahead": 1,
    }
    with pytest.raises(InstanceError, match=message):
        BalanceState.from_requests(**(good | arguments))


def test_bad_points_and_assignments_are_refused_in_one_sentence():
    program = BalanceProgram(BalanceState([[9], [4]], [0, 1], [3, 7]))
    with pytest.raises(InstanceError, match="lookahead is 3 steps, but the prediction reaches 0"):
        BalanceProgram(program.state, lookahead=3)
    with pytest.raises(ModelError, match="request 0 goes to worker 0, which has no free slot"):
        program.write_point([0, -1])
    with pytest.raises(ModelError, match="request 1 goes to worker 2, but workers are numbered"):
        program.cost([-1, 2])
    with pytest.raises(ModelError, match=r"the assignment has shape \(3,\), but 2 requests"):
        program.cost([0, 0, 0])
    with pytest.raises(ModelError, match="the point has shape"):
        program.read([0, 1])
    with pytest.raises(ModelError, match="unknown form 'literally': did you mean 'literal'"):
        BalanceProgram(program.state, form="literally")
    twice = BalanceProgram(BalanceState([[9], [4]], [1, 1], [3, 7]), form="literal")
    point = twice.write_point([0, 1])
    point[2] = 1
    with pytest.raises(ModelError, match="the point assigns request 0 to more than one worker"):
        twice.read(point)
