"""Hardness proofs and an optimality claim of the papers, decided by solving."""

from __future__ import annotations

import itertools

import literal
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from optsched import HindsightProgram, Instance, Schedule, family, run, solve
from optsched.models import EventProgram

SOLVERS = ("highs", "cp-sat", "cp-sat events")


def optimum(instance, solver, objective="total-latency"):
    """Solve to proven optimality."""
    if solver == "cp-sat events":
        solution = solve(EventProgram(instance, objective))
    else:
        solution = solve(HindsightProgram(instance, objective=objective).to_linear(), method=solver)
    return solution.require(optimal=True).objective


def requests(numbers, memory):
    """Make the requests of the reductions: one of s tokens holds s + 1 in its only step (Eq. 6)."""
    return Instance(np.array(numbers) - 1, np.ones(len(numbers)), memory)


def splits_into_triples(numbers, total):
    """Decide 3-Partition by trying all triples with the first number."""
    if not numbers:
        return True
    first, *rest = numbers
    return any(
        first + rest[i] + rest[j] == total
        and splits_into_triples([x for k, x in enumerate(rest) if k not in (i, j)], total)
        for i, j in itertools.combinations(range(len(rest)), 2)
    )


def splits_into_halves(numbers):
    """Decide Partition by all sums of subsets."""
    sums = {0}
    for number in numbers:
        sums |= {known + number for known in sums}
    return sum(numbers) / 2 in sums


def triples(seed, groups=3, total=40):
    """Draw numbers between a quarter and a half of a total that they sum to on average."""
    rng = np.random.default_rng(seed)
    while True:
        numbers = rng.integers(total // 4 + 1, (total + 1) // 2, 3 * groups)
        if numbers.sum() == groups * total:
            return numbers.tolist()


@pytest.mark.parametrize("solver", SOLVERS)
def test_theorem_2_total_latency_decides_3_partition(solver):
    answers = []
    for seed in range(12):
        numbers = triples(seed)
        latency = optimum(requests(numbers, 40), solver)
        answers.append(splits_into_triples(numbers, 40))
        # One batch of three per step: 3 (1 + 2 + 3).
        assert latency == 18 if answers[-1] else latency > 18, numbers
    assert {True, False} == set(answers)


@pytest.mark.parametrize(("solver", "groups"), [("highs", 5), ("cp-sat", 5), ("cp-sat events", 3)])
def test_theorem_2_on_instances_with_a_hidden_partition(solver, groups):
    for seed in range(2):
        instance = family("3-partition", n=3 * groups, seed=seed, memory=100)
        assert optimum(instance, solver) == 3 * groups * (groups + 1) / 2


@pytest.mark.parametrize("solver", SOLVERS)
def test_theorem_ec_2_makespan_decides_partition(solver):
    answers = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        numbers = [*rng.integers(10, 60, 5).tolist(), 1]
        numbers[-1] += sum(numbers) % 2
        memory = sum(numbers) // 2
        if max(numbers) > memory:
            continue
        makespan = optimum(requests(numbers, memory), solver, "makespan")
        answers.append(splits_into_halves(numbers))
        assert makespan == 2 if answers[-1] else makespan >= 3, numbers
    assert False in answers
    for seed in range(3):
        assert optimum(family("partition", n=9, seed=seed, memory=50), solver, "makespan") == 2


def test_prompts_of_x_tokens_as_printed_do_not_fit_the_memory_of_the_proof():
    numbers = [11, 12, 13]  # sum to 36
    assert optimum(requests(numbers, 36), "highs", "makespan") == 1
    assert optimum(Instance(numbers, [1, 1, 1], 36), "highs", "makespan") == 2


COUNTEREXAMPLE = Instance([4] * 4, [1, 1, 6, 6], memory=13)


@pytest.mark.parametrize("solver", [*SOLVERS, "appsi_highs"])
def test_theorem_4_2_of_jaillet_fails_on_finite_integers(solver):
    assert optimum(COUNTEREXAMPLE, solver) == 21
    assert run(COUNTEREXAMPLE, "mc-sf").total_latency == 22
    best = Schedule(COUNTEREXAMPLE, [0, 1, 0, 6])
    assert (sorted(best.completions.tolist()), best.check()) == ([1, 2, 6, 12], [])


@pytest.mark.slow
@given(data=st.data())
@examples(60)
def test_theorem_4_2_holds_where_as_many_requests_fit_at_any_age(data):
    outputs = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=7))
    prompt = data.draw(st.integers(max(outputs) - 1, 12))  # no memory fits with a smaller one
    peak = prompt + max(outputs)
    fit = [m for m in range(peak, 3 * peak + 1) if m // (prompt + 1) == m // peak]
    memory = data.draw(st.sampled_from(fit))
    instance = Instance([prompt] * len(outputs), outputs, memory)
    assert run(instance, "mc-sf").total_latency == optimum(instance, "cp-sat events")


@pytest.mark.parametrize(
    ("output", "scale", "count", "ratio"),
    [(5, 1, 300, 1.63), (20, 1, 1000, 1.77), (20, 10, 10_000, 1.85)],
)
def test_theorem_4_2_fails_by_nearly_two_even_for_empty_prompts(output, scale, count, ratio):
    """Equal requests started together peak together; started one after another they never do."""
    memory = scale * output * (output + 1) // 2
    instance = Instance(np.zeros(count), np.full(count, output), memory)
    staggered = Schedule(instance, np.arange(count) // scale)
    assert staggered.check() == []
    assert staggered.memory_profile().max() == memory
    assert run(instance, "mc-sf").total_latency > ratio * staggered.total_latency


@pytest.mark.parametrize(("prompt", "memory"), [(0, 4), (1, 6)])
def test_theorem_4_2_fails_on_four_requests_with_prompts_of_a_token_at_most(prompt, memory):
    instance = Instance([prompt] * 4, [2, 2, 3, 3], memory)
    assert run(instance, "mc-sf").total_latency == 16
    assert optimum(instance, "highs") == literal.optimum(instance) == 15
