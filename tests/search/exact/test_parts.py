"""Parts on equal workers: brute force, the enumeration of one worker, limits and bad input."""

import numpy as np
import pytest
from brute_force import joint_optima, optima
from effort import share

from optsched import Instance, OptschedError, Schedule, Workers, family, solve
from optsched.bounds.configurations import configuration_bound
from optsched.search.exact.parts import MOST, Few, bound_parts, order_part, solve_parts


def tiny(rng, count):
    """Draw requests, half of the time with arrivals, some of them equal."""
    memory = int(rng.integers(4, 12))
    outputs = rng.integers(1, 5, count)
    prompts = rng.integers(0, memory - outputs + 1)
    arrivals = np.sort(rng.integers(0, 6, count)) if rng.random() < 0.5 else None
    if rng.random() < 0.3:
        outputs[1:3], prompts[1:3] = outputs[0], prompts[0]
    return Instance(prompts, outputs, memory=memory, arrivals=arrivals)


def in_turn(instance, workers):
    """Return the schedule that runs all on the first worker, one after the other."""
    ends = np.cumsum(instance.outputs) + int(instance.arrivals[-1])
    return Schedule(
        instance, ends - instance.outputs, workers=workers, placement=[0] * len(instance)
    )


def rough(instance, workers):
    return configuration_bound(instance, workers=workers, phases=2, iterations=20).certificate


def few_of(instance):
    order = np.argsort(instance.areas, kind="stable")
    arrays = (instance.prompts, instance.outputs, instance.arrivals, instance.areas)
    return Few(*(array[order] for array in arrays), np.full(len(order), -1), instance.memory)


@pytest.mark.few
def test_parts_find_and_prove_the_joint_optimum_of_brute_force():
    rng = np.random.default_rng(7)
    for _ in range(share(150)):
        instance = tiny(rng, int(rng.integers(2, 6)))
        workers = Workers([instance.memory] * int(rng.integers(1, 4)))
        least = joint_optima(instance, workers)["total-latency"]
        found = solve_parts(in_turn(instance, workers), rough(instance, workers))
        assert found.stopped == "optimal"
        assert not found.schedule.check()
        assert found.schedule.total_latency == found.lower == least
        again = solve_parts(found.schedule, rough(instance, workers))
        assert again.lower == least


@pytest.mark.slow
def test_every_part_has_a_bound_and_is_put_in_its_best_order():
    rng = np.random.default_rng(8)
    for _ in range(60):
        instance = tiny(rng, 5)
        order = np.argsort(instance.areas, kind="stable")
        few, lower = few_of(instance), np.zeros(32, dtype=np.int64)
        bound_parts(few, lower)
        for part in rng.choice(np.arange(1, 32), 6, replace=False).tolist():
            members = order[np.flatnonzero(part >> np.arange(5) & 1)]
            alone = instance.take(np.sort(members))
            least = optima(alone)["total-latency"]
            starts = int(least - (alone.outputs - alone.arrivals).sum())
            assert lower[part] <= starts
            best = np.full(5, -1)
            found, left = order_part(few, part, lower, 2**62, best, 10**9)
            assert found == starts
            assert left > 0
            assert int(best[best >= 0].sum()) == starts
            found, _ = order_part(few, part, lower, starts, best, 10**9)
            assert found == starts


def test_an_order_is_given_up_when_its_work_is_done():
    instance = family("uniform", n=6)
    few, lower = few_of(instance), np.zeros(64, dtype=np.int64)
    bound_parts(few, lower)
    best = np.full(6, -1)
    least, left = order_part(few, 63, lower, 2**62, best, 10**9)
    found, gone = order_part(few, 63, lower, 2**62, best, 100)
    assert gone == -1 < left
    assert found >= least


@pytest.mark.slow
def test_a_search_that_is_given_up_keeps_its_interval():
    instance, workers = family("uniform", n=10), Workers([100, 100])
    start = solve(instance, workers=2, method="search", time_limit=0.2).schedule
    proof = configuration_bound(instance, workers=workers, phases=4, iterations=50).certificate
    least = solve_parts(start, proof).lower
    for looks in (0, 5, 700, 900):
        left = iter(range(looks))
        found = solve_parts(start, proof, stop=lambda left=left: next(left, None) is None)
        assert found.lower <= least <= found.schedule.total_latency <= start.total_latency
        assert not found.schedule.check()
        assert found.lower >= proof.value
    assert found.stopped in ("interrupted", "optimal")


@pytest.mark.slow
def test_solve_chooses_parts_where_sizes_leave_a_gap():
    found = solve(family("uniform", n=8, seed=2), workers=2, time_limit=60)
    assert found.proven_optimal
    assert found.proof == "branch and bound"
    assert any("parts: optimal" in step for step in found.steps)


def test_parts_ask_for_few_requests_on_equal_workers():
    instance = Instance([4, 4], [3, 3], memory=9)
    workers = Workers([9, 9])
    start, proof = in_turn(instance, workers), rough(instance, workers)
    many = Instance([1] * (MOST + 1), [1] * (MOST + 1), memory=9)
    with pytest.raises(OptschedError, match="at most 20 without"):
        solve_parts(in_turn(many, workers), proof)
    with pytest.raises(OptschedError, match="workers that differ"):
        solve_parts(in_turn(instance, Workers([9, 8])), proof)
    with pytest.raises(OptschedError, match="another instance or other workers"):
        solve_parts(in_turn(instance, Workers([9])), proof)
    assert solve_parts(start, proof).lower == 6
