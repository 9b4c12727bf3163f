"""The kernels of the step program against enumeration of every assignment."""

import itertools

import numpy as np
import pytest
from effort import share

from optsched.solvers.balance_kernels import (
    UNLIMITED,
    assign,
    change_load,
    largest_without,
    open_step,
)


def assign_by_swap(*step, rounds=50):
    """Assign where memory is never short; without rounds it is greedy."""
    return assign(*step, np.full(len(step[1]), UNLIMITED), rounds)


def cost(alive, sizes, growth, slowness, bonus, chosen):
    """Accumulated imbalance from the definition, request by request."""
    steps, workers = range(len(growth)), range(len(alive))
    total = 0
    for h in steps:
        loads = [
            slowness[g]
            * (
                alive[g][h]
                + sum(s + growth[h] for s, to in zip(sizes, chosen, strict=True) if to == g)
            )
            for g in workers
        ]
        total += len(loads) * max(loads) - sum(loads)
    return int(total - sum(b for b, to in zip(bonus, chosen, strict=True) if to >= 0))


def cheapest(alive, free, sizes, growth, slowness, bonus):
    """Try every assignment that admits as many as there is room for."""
    workers, admitted = len(free), min(len(sizes), int(sum(free)))
    chosen = np.array(list(itertools.product(range(-1, workers), repeat=len(sizes))))
    placed = chosen[:, :, None] == np.arange(workers)  # assignment, request, worker
    counts = placed.sum(axis=1)
    allowed = (counts <= free).all(axis=1) & (counts.sum(axis=1) == admitted)
    placed, counts, chosen = placed[allowed], counts[allowed], chosen[allowed]
    tokens = (placed * np.asarray(sizes)[:, None]).sum(axis=1)
    loads = alive + tokens[:, :, None] + counts[:, :, None] * np.asarray(growth)
    loads = loads * np.asarray(slowness)[:, None]
    totals = workers * loads.max(axis=1).sum(axis=1) - loads.sum(axis=(1, 2))
    return int((totals - (chosen >= 0) @ np.asarray(bonus)).min())


def draw(generator, lookahead=3, workers=(1, 4), requests=(1, 6), slots=3):
    """A small step: alive tokens fall as requests end."""
    count = int(generator.integers(*workers))
    fall = generator.integers(0, 30, (count, lookahead + 1))
    alive = np.cumsum(fall[:, ::-1], axis=1)[:, ::-1].copy()
    free = generator.integers(0, slots, count)
    sizes = generator.integers(0, 25, int(generator.integers(*requests)))
    growth = np.arange(lookahead + 1) * int(generator.integers(0, 3))
    slowness = generator.integers(1, 3, count)
    bonus = generator.integers(0, 20, len(sizes)) * int(generator.integers(0, 2))
    return alive, free, sizes, growth, slowness, bonus


def check_admissions(chosen, free, sizes):
    admitted = chosen[chosen >= 0]
    assert len(admitted) == min(len(sizes), free.sum())
    assert (np.bincount(admitted, minlength=len(free)) <= free).all()


def test_both_searches_admit_what_there_is_room_for_and_swap_is_never_worse():
    generator = np.random.default_rng(7)
    optimal, steps = 0, share(300)
    for _ in range(steps):
        step = draw(generator)
        swap, greedy = assign_by_swap(*step), assign_by_swap(*step, rounds=0)
        for chosen in (swap, greedy):
            check_admissions(chosen, step[1], step[2])
        alive, _, sizes, *rest = step
        value, least = cost(alive, sizes, *rest, swap), cheapest(*step)
        assert least <= value <= cost(alive, sizes, *rest, greedy)
        optimal += value == least
    assert optimal >= 0.9 * steps


def test_the_three_largest_loads_of_a_step_stand_where_they_belong():
    generator = np.random.default_rng(5)
    for _ in range(40):
        alive, free, _, growth, slowness, _ = draw(generator, workers=(2, 6))
        step = open_step(alive, free, growth, slowness, np.full(len(free), UNLIMITED), False)
        full = [0, *(slowness * alive[:, 0])[free == 0].tolist()]
        for _ in range(20 * (len(step.worker) > 1)):
            row, other = generator.permutation(len(step.worker))[:2]
            change_load(step, row, 0, max(int(generator.integers(-30, 30)), -step.load[row, 0]))
            loads = np.delete(step.load[:, 0], [row, other]).tolist()
            assert largest_without(step, row, other, 0) == max(full + loads)


@pytest.mark.slow("64")
@pytest.mark.parametrize("workers", [16, 64])
def test_large_steps_respect_slots_and_do_not_lose_to_greedy(workers):
    generator = np.random.default_rng(3)
    for _ in range(20):
        step = draw(generator, 20, (workers, workers + 1), (100, 140), 3)
        swap, greedy = assign_by_swap(*step), assign_by_swap(*step, rounds=0)
        check_admissions(swap, step[1], step[2])
        check_admissions(greedy, step[1], step[2])
        alive, _, sizes, *rest = step
        assert cost(alive, sizes, *rest, swap) <= cost(alive, sizes, *rest, greedy)


def test_memory_is_never_exceeded_at_any_step_of_the_window():
    generator = np.random.default_rng(11)
    for _ in range(300):
        alive, free, sizes, growth, slowness, bonus = draw(generator)
        memory = alive.max(axis=1) + generator.integers(0, 40, len(free))
        chosen = assign(alive, free, sizes, growth, slowness, bonus, memory, 50)
        assert (np.bincount(chosen[chosen >= 0], minlength=len(free)) <= free).all()
        loads = alive.copy()
        for request in np.flatnonzero(chosen >= 0):
            loads[chosen[request]] += sizes[request] + growth
        assert (loads <= memory[:, None]).all()


def test_nobody_waits_and_no_slot_is_free():
    alive, growth, slowness = np.array([[4, 2], [3, 3]]), np.array([0, 1]), np.array([1, 1])
    none = np.zeros(0, dtype=np.int64)
    assert len(assign_by_swap(alive, np.array([1, 0]), none, growth, slowness, none)) == 0
    full = assign_by_swap(alive, np.array([0, 0]), np.array([5]), growth, slowness, np.array([0]))
    assert full.tolist() == [-1]


def test_of_equal_requests_the_oldest_is_admitted():
    chosen = assign_by_swap(
        np.array([[9], [0]]),
        np.array([0, 1]),
        np.array([7, 7, 7]),
        np.array([0]),
        np.array([1, 1]),
        np.zeros(3, dtype=np.int64),
    )
    assert chosen.tolist() == [1, -1, -1]
