"""Reductions state their answers; families of them have the answers they say."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from optsched import HindsightProgram, family, solve
from optsched.errors import InstanceError
from optsched.models import EventProgram
from optsched_papers.sorted_f.reductions import partition, three_partition


def splits(numbers, room):
    """Try every part with room for the first number, then split the others."""
    if not numbers:
        return not any(room)
    first, *others = numbers
    return any(
        splits(others, [*room[:k], left - first, *room[k + 1 :]])
        for k, left in enumerate(room)
        if left >= first
    )


@examples(40)
@given(numbers=st.lists(st.integers(1, 12), min_size=2, max_size=8))
def test_partition_is_decided_as_by_trying_all(numbers):
    if sum(numbers) % 2 or 2 * max(numbers) > sum(numbers):
        with pytest.raises(InstanceError, match="partition needs an even sum and none above its"):
            partition(numbers)
        return
    question = partition(numbers)
    assert question.decide() == splits(numbers, 2 * [sum(numbers) // 2])
    solved = solve(EventProgram(question.instance, question.objective))
    assert question.read(solved.require(optimal=True).objective) == question.decide()


@pytest.mark.parametrize("seed", range(8))
def test_3_partition_is_decided_as_by_trying_all(seed):
    rng = np.random.default_rng(seed)
    numbers = rng.integers(8, 14, 9)
    while numbers.sum() != 3 * 28:
        numbers = rng.integers(8, 14, 9)
    question = three_partition(numbers)
    assert question.decide() == splits(numbers.tolist(), 3 * [28])
    program = HindsightProgram(question.instance, objective=question.objective)
    solved = solve(program.to_linear(), method="highs").require(optimal=True)
    assert question.read(solved.objective) == question.decide()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("suffix", ["", "-no"])
def test_families_have_the_answers_that_they_state(suffix, seed):
    halves = family(f"partition{suffix}", seed=seed)
    triples = family(f"3-partition{suffix}", n=12, memory=99, seed=seed)
    for question in (partition(halves.peaks.tolist()), three_partition(triples.peaks.tolist())):
        assert question.decide() == (suffix == "")
    assert partition(halves.peaks).instance.replace(name="x") == halves.replace(name="x")


@pytest.mark.parametrize(
    ("name", "n", "memory", "message"),
    [
        ("partition-no", 5, 100, "the memory must be odd"),
        ("partition-no", 2, 101, "n from 3"),
        ("3-partition-no", 12, 100, "a prime factor p that does not divide the memory"),
        ("3-partition-no", 7, 99, "a multiple of 3"),
        ("3-partition-no", 6, 9, "between its quarter and its half"),
    ],
)
def test_families_without_such_a_question_say_so(name, n, memory, message):
    with pytest.raises(InstanceError, match=message):
        family(name, n=n, memory=memory)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([], "0 numbers with sum 0 were given"),
        ([1, 2], "2 numbers with sum 3 were given, but 3-partition needs 3 m numbers"),
        ([26, 33, 41, 30, 34, 35], "whose sum is a multiple of m"),
        ([10, 20, 30], "10 is among the numbers, but all must be above a quarter and below a half"),
        ([1.5, 1, 1], "1.5 is among the numbers, but all must be whole, from 1"),
        ([True, 1, 1], "True is among the numbers"),
    ],
)
def test_other_numbers_are_refused(numbers, message):
    with pytest.raises(InstanceError, match=message):
        three_partition(numbers)


def test_an_optimum_below_every_schedule_is_refused():
    question = three_partition([26, 33, 41, 30, 34, 36])
    assert question.read(9)
    assert not question.read(10)
    with pytest.raises(InstanceError, match="an optimum of 8 was read, but no schedule is below 9"):
        question.read(8)
