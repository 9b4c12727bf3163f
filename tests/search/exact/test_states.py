"""Running sets against all sets, all paths and brute force; stopped early, the interval holds."""

import itertools
import math
import threading
from functools import cache

import brute_force
import numpy as np
import pytest
from effort import examples, share
from hypothesis import given
from hypothesis import strategies as st
from literal import optimum
from priced_instances import certificates, loose_certificate, one_by_one
from strategies import tiny_instance

from optsched import Instance, OptschedError, SolveParams, family, solve
from optsched.bounds.configurations import configuration_bound
from optsched.models.program import Stopped
from optsched.search.exact import states
from optsched.search.exact.search import solve_exact
from optsched.search.exact.states import NONE, Graph, solve_by_states

TOGETHER = {"max_requests": 4, "max_memory": 12, "max_arrival": 0, "max_output": 4}


def _fits(left, instance):
    """Whether requests with so many steps left can all run to their ends."""
    running = [
        (int(peak), steps) for peak, steps in zip(instance.peaks, left, strict=True) if steps
    ]
    return all(
        sum(peak - steps + end for peak, steps in running if steps >= end) <= instance.memory
        for _, end in running
    )


def _literal_bound(instance, multipliers, unit, tracked=()):
    """The cheapest path over all running sets, with the sum of the multipliers."""

    @cache
    def to_go(left, waiting, started):
        if waiting == 0:
            return 0 if len(started) == len(tracked) else np.inf
        costs = [np.inf]
        if any(left):
            later = tuple(max(steps - 1, 0) for steps in left)
            costs.append(waiting * unit + to_go(later, waiting, started))
        for i, steps in enumerate(left):
            more = (*left[:i], int(instance.outputs[i]), *left[i + 1 :])
            if steps == 0 and i not in started and _fits(more, instance):
                then = started | ({i} & set(tracked))
                costs.append(to_go(more, waiting - 1, then) - int(multipliers[i]))
        return min(costs)

    count = len(instance)
    return to_go((0,) * count, count, frozenset()) + int(multipliers.sum())


def _whole(instance, most=10_000, unit=4):
    return Graph.whole(instance.outputs, instance.peaks, instance.memory, unit, most)


def _multipliers(instance, rng, unit=4):
    reach = unit * int(instance.outputs.sum())
    return rng.integers(-reach // 4, reach + 1, len(instance)).astype(np.int32)


def test_graphs_have_all_sets_that_run_to_their_ends_and_room_to_start_another():
    rng = np.random.default_rng(0)
    for _ in range(share(60)):
        instance = tiny_instance(rng, arrivals=False)
        lengths = [range(output + 1) for output in instance.outputs.tolist()]
        sets = [left for left in itertools.product(*lengths) if _fits(left, instance)]
        assert _whole(instance, len(sets)).size == len(instance) * sum(
            any(
                _fits((*left[:i], output, *left[i + 1 :]), instance)
                for i, output in enumerate(instance.outputs.tolist())
                if not left[i] and i > _last_fresh(left, instance)
            )
            for left in sets
        )
        with pytest.raises(OptschedError, match="sets of requests can run together"):
            _whole(instance, len(sets) - 1)


def _last_fresh(left, instance):
    """The last request that starts just now; those beside it come after it."""
    return int(np.flatnonzero(np.array(left) == instance.outputs).max(initial=-1))


def test_the_bound_is_the_cheapest_path_for_any_multipliers():
    rng = np.random.default_rng(1)
    for _ in range(share(100)):
        instance = tiny_instance(rng, arrivals=False)
        multipliers = _multipliers(instance, rng)
        graph = _whole(instance)
        bound = graph.bound(multipliers)
        assert bound == _literal_bound(instance, multipliers, 4), instance
        path = graph.path(multipliers)
        paid = sum(4 * step - int(multipliers[request]) for request, step in path)
        assert bound == paid + int(multipliers.sum())
        least = optimum(instance) - int(instance.outputs.sum())
        assert bound <= 4 * least


def test_restricted_graphs_keep_all_paths_of_interest_and_only_what_is_tracked():
    rng = np.random.default_rng(2)
    smaller = raised = 0
    for _ in range(share(60)):
        instance = tiny_instance(rng, arrivals=False)
        schedules = brute_force.feasible_starts(instance)
        least = int(schedules.sum(axis=1).min())
        graph, tracked = _whole(instance), []
        bound = graph.bound(multipliers := _multipliers(instance, rng))
        for request in [NONE, *rng.permutation(len(instance)).tolist()]:
            slack = 4 * least + int(rng.integers(0, 12))
            fewer = graph.restricted(multipliers, slack, request, math.inf)
            tracked += [request] * (request != NONE)
            multipliers = _multipliers(instance, rng)
            now = fewer.bound(multipliers)
            literal = _literal_bound(instance, multipliers, 4, tuple(tracked))
            # Paths that cost more than the slack may be gone, and no schedule of interest is.
            assert literal <= now <= 4 * least, instance
            smaller += fewer.size < graph.size
            raised += now > bound
            graph, bound = fewer, now
        assert now == 4 * least  # with all requests tracked, paths are schedules
    assert min(smaller, raised) > share(60)


@pytest.mark.few
@given(certificates(**TOGETHER), st.data())
@examples(300)
def test_any_certificate_and_any_schedule_to_start_from_will_do(case, data):
    instance, certificate = case
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    found = solve_by_states(instance, one_by_one(instance, rng), certificate)
    assert found.stopped is Stopped.OPTIMAL
    assert found.schedule.check() == []
    assert found.schedule.total_latency == found.lower == optimum(instance)


@pytest.mark.no_cover
def test_both_exact_searches_find_the_same_optimum():
    rng = np.random.default_rng(3)
    for _ in range(share(60)):
        instance = tiny_instance(rng, arrivals=False, most=7)
        late = instance.replace(arrivals=np.full(len(instance), 5))
        certificate = loose_certificate(late, rng) if rng.random() < 0.5 else None
        found = solve_by_states(late, one_by_one(late, rng), certificate)
        assert found.schedule.check() == []
        assert found.schedule.total_latency == found.lower == solve_exact(instance).lower


@pytest.fixture(scope="module")
def some():
    """Ten requests with a certificate, a bad schedule, and the optimum."""
    instance = family("normal", n=10, seed=1)
    certificate = configuration_bound(instance, iterations=50).certificate
    return instance, one_by_one(instance, np.random.default_rng(0)), certificate, 650


@pytest.mark.slow
def test_from_a_bad_schedule_the_optimum_of_ten_requests_is_proven(some):
    *case, least = some
    found = solve_by_states(*case)
    assert (found.lower, found.schedule.total_latency) == (least, least)
    assert solve_exact(case[0], certificate=case[2], upper=found.schedule).lower == least


@pytest.mark.parametrize("calls", [1, 5, 12])
def test_stopped_after_any_climb_the_interval_holds(some, calls):
    *case, least = some
    stop, seen = threading.Event(), []

    def watch(_, lower, best):
        seen.append((lower, best))
        if len(seen) == calls:
            stop.set()

    found = solve_by_states(*case, on_progress=watch, stop=stop)
    assert found.stopped is Stopped.INTERRUPTED
    assert 0 < found.lower <= least <= found.schedule.total_latency
    assert [lower for lower, _ in seen] == sorted(lower for lower, _ in seen)


def test_limits_are_named_and_leave_a_valid_interval(some, monkeypatch):
    *case, least = some
    monkeypatch.setattr(states, "_STATE_BYTES", 10**9)
    found = solve_by_states(*case)
    assert found.stopped is Stopped.MEMORY_LIMIT
    assert 0 < found.lower <= least
    monkeypatch.setattr(states, "_SETS_PER_SECOND", 1e12)
    found = solve_by_states(*case, time_limit=1e-6)
    assert found.stopped is Stopped.TIME_LIMIT
    assert 0 < found.lower <= least
    for limit in ({"memory_limit": 1000}, {"time_limit": 0.0}):
        monkeypatch.undo()
        with pytest.raises(OptschedError, match="sets of requests can run together"):
            solve_by_states(*case, **limit)


def test_what_running_sets_cannot_do_is_refused(some):
    instance, upper, certificate, _ = some
    for other in ({"arrivals": [0] * 9 + [1]}, {"deadlines": [9999] * 10}):
        with pytest.raises(OptschedError, match="only where all requests arrive together"):
            solve_by_states(instance.replace(**other), upper, certificate)
    long = Instance([1, 1], [2**26, 2**26], memory=2**27)
    with pytest.raises(OptschedError, match="too long for 32-bit integers"):
        solve_by_states(long, upper, certificate)


def test_solve_proves_instances_without_arrivals_by_running_sets():
    found = solve(family("normal", n=12, seed=1), time_limit=None, params=SolveParams(seed=1))
    assert (found.objective, found.proof) == (946, "running sets")
    assert found.proven_optimal
