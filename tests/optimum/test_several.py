"""Several workers: the interval against brute force, limits, one worker as before, bad input."""

import numpy as np
import pytest
from brute_force import OBJECTIVES, joint_optima
from effort import share
from strategies import drawn_instance, tiny_joint

import optsched
from optsched import Instance, OptschedError, Schedule, SolveParams, Workers, bound, family, solve
from optsched import verify as verify_certificate
from optsched._internal.aside import Budget
from optsched.admission import admit_in_window
from optsched.models import EventProgram
from optsched.optimum import plan
from optsched.problem.costs import StartCosts
from optsched.search.annealing import Leg, Moves, SearchRequests, SearchWorkers, new_random
from optsched.search.delays import list_on_workers
from optsched.search.search import place_orders, search


def test_lists_and_moves_are_feasible_on_any_workers():
    rng = np.random.default_rng(3)
    for _ in range(60):
        instance = drawn_instance(rng)
        memories = rng.integers(3, instance.memory + 1, int(rng.integers(1, 5)))
        memories[0] = instance.memory
        eligible = None
        if rng.random() < 0.3:
            eligible = rng.random((len(instance), len(memories))) < 0.6
            eligible[:, 0] = True
        workers = Workers(memories.tolist(), eligible)
        ratio, length = float(rng.choice([0.0, 1.0, 1.5, np.inf])), int(rng.integers(1, 50))
        releases = instance.arrivals + rng.integers(0, 30, len(instance))
        listed = list_on_workers(instance, workers, instance.areas, ratio, length, releases)
        assert not listed.check()
        assert (listed.starts >= releases).all()
        latest = listed.starts + rng.integers(0, 9, len(instance))
        for due in (None, latest):
            costs = StartCosts.plain(np.ones(len(instance)))
            moved = search(listed, costs, Budget(work=5e4), seed=1, latest=due).schedule
            assert not moved.check()
            assert moved.total_latency <= listed.total_latency
            assert due is None or (moved.starts <= due).all()


def usage_of(schedule, steps):
    """Add up what requests hold on each worker, token by token."""
    instance = schedule.instance
    held = np.zeros((len(schedule.workers), steps), dtype=np.int32)
    placed = zip(schedule.starts, schedule.placement, strict=True)
    for request, (start, worker) in enumerate(placed):
        for token in range(1, int(instance.outputs[request]) + 1):
            held[worker, start + token] += instance.prompts[request] + token
    return held


def test_orders_on_several_workers_keep_their_books_and_reach_the_optimum():
    rng = np.random.default_rng(7)
    reached = 0
    for seed in range(60):
        instance, workers = tiny_joint(rng)
        count, weights = len(instance), rng.integers(1, 5, len(instance)).astype(float)
        start = list_on_workers(instance, workers, instance.areas, 1.0, 9)
        steps = start.makespan + 20
        held = usage_of(start, steps)
        costs = StartCosts.plain(weights)
        state = Moves.of(
            start.starts,
            np.asarray(start.placement),
            held.reshape(-1),
            len(workers),
            costs.total(start.starts),
        )
        place_orders(
            SearchRequests.of(instance, costs),
            SearchWorkers.of(instance, workers),
            np.argsort(start.starts, kind="stable"),
            state,
            new_random(seed),
            Leg(2e4, 5.0, 0.5),
        )
        now, best = (
            Schedule(instance, starts, workers=workers, placement=placement)
            for starts, placement in (
                (state.starts, state.placement),
                (state.best, state.best_placement),
            )
        )
        assert now.check() == best.check() == []
        assert held.tolist() == usage_of(now, steps).tolist()
        assert state.costs.tolist() == [weights @ now.starts, weights @ best.starts]
        if count < 5:
            found = search(start, StartCosts.plain(np.ones(count)), Budget(work=1e5)).schedule
            least = joint_optima(instance, workers)["total-latency"]
            assert found.total_latency >= least
            reached += found.total_latency == least
    assert reached >= 30


def test_a_list_for_one_worker_is_the_window_rule():
    rng = np.random.default_rng(4)
    for _ in range(100):
        instance = drawn_instance(rng)
        ratio, length = float(rng.choice([1.0, 1.2, 2.0])), int(rng.integers(1, 50))
        order = np.argsort(instance.areas, kind="stable")
        alone = admit_in_window(instance, order, ratio, length)
        joint = list_on_workers(instance, Workers([instance.memory]), instance.areas, ratio, length)
        assert np.array_equal(joint.starts, alone)


@pytest.mark.slow
def test_intervals_hold_the_joint_optimum_and_certificates_prove_them():
    rng = np.random.default_rng(5)
    for _ in range(12):
        instance, workers = tiny_joint(rng)
        for objective, least in joint_optima(instance, workers).items():
            method = "auto" if objective == "makespan" else "search"
            found = solve(
                instance, workers=workers, objective=objective, method=method, time_limit=0.05
            )
            assert not found.schedule.check()
            assert found.bound <= least <= found.objective
            if found.certificate is not None:
                proven = verify_certificate(found.certificate, instance, workers)
                assert proven == found.certificate.value <= least


@pytest.mark.few
@pytest.mark.no_cover  # other tests reach every line that runs here
@pytest.mark.parametrize("batch", range(10))
def test_program_events_and_search_prove_the_optimum_of_brute_force(batch):
    rng = np.random.default_rng(100 + batch)
    for number in range(share(50)):
        instance, workers = tiny_joint(rng)
        objective = OBJECTIVES[number % 3] if number % 5 == 0 else "total-latency"
        least, where = joint_optima(instance, workers)[objective], (batch, number)
        program = optsched.HindsightProgram(instance, objective=objective, workers=workers)
        rows = solve(program, method="highs").require(optimal=True)
        events = solve(EventProgram(instance, objective, workers=workers)).require(optimal=True)
        for found in (rows, events):
            assert found.objective == least, where
            assert not found.answer.check(), where
        point = program.write_point(events.answer)
        assert not program.to_linear().violations(point), where
        proven = bound(instance, objective=objective, workers=workers)
        assert proven.value <= least, where
        found = solve(instance, workers=workers, objective=objective, time_limit=20)
        assert found.proven_optimal, where
        assert found.objective == found.bound == least, where


@pytest.mark.parametrize("method", ["highs", "cp-sat"])
def test_deadlines_hold_on_several_workers(method):
    rng = np.random.default_rng(6)
    for _ in range(2):
        instance, workers = tiny_joint(rng, most=3)
        slack = rng.integers(0, 4, len(instance))
        due = instance.replace(deadlines=instance.arrivals + instance.outputs + slack)
        for each, verdict in ((due, None), (due.replace(deadlines=due.deadlines + 20), "optimal")):
            least = joint_optima(each, workers)["total-latency"]
            if np.isinf(least):
                assert verdict is None
                with pytest.raises(optsched.InfeasibleError, match="within their deadlines"):
                    solve(each, workers=workers, method=method)
                continue
            found = solve(each, workers=workers, method=method)
            assert found.objective == found.bound == least
            assert not found.schedule.check()


@pytest.mark.parametrize("count", [5, 8])
def test_one_worker_gives_what_it_gave_before(count):
    instance = family("uniform", n=count)
    alone, joint = solve(instance), solve(instance, workers=1)
    assert alone.proven_optimal
    assert joint.objective == joint.bound == alone.objective
    assert np.array_equal(joint.schedule.starts, alone.schedule.starts)
    assert (joint.schedule.placement == 0).all()
    assert joint.proof == alone.proof
    if joint.certificate is not None:
        assert verify_certificate(joint.certificate, instance, 1) == alone.certificate.value


@pytest.mark.slow
def test_makespan_of_many_requests_is_searched_to_the_end():
    """A beam, which knows one worker, ended the search before it had begun."""
    instance = family("uniform", n=160, seed=41)
    found = solve(
        instance,
        objective="makespan",
        workers=2,
        method="search",
        time_limit=None,
        params=SolveParams(work=1),
    )
    assert "dense packing" in found.steps[-1]
    assert not any("left out" in step for step in found.steps)


def test_a_makespan_by_work_is_searched_within_the_time_limit(monkeypatch):
    """The twin knew no limit, so that all that it found later than that was lost."""
    limits = []
    first = plan.find_first
    monkeypatch.setattr(
        plan, "find_first", lambda state: (limits.append(state.time_limit), first(state))
    )
    params = SolveParams(work=0.1)
    asked = {"objective": "makespan", "method": "search", "params": params, "workers": 2}
    solve(family("uniform", n=8), time_limit=50, **asked)
    assert 40 < limits[0] < 50  # of the twin alone: the stages hold what they call


@pytest.mark.slow
def test_a_start_is_kept_and_must_fit_the_workers():
    instance = Instance([4] * 6, [3] * 6, memory=9)
    placement = [0, 0, 0, 1, 1, 1]
    start = Schedule(instance, [0, 3, 6, 0, 3, 6], workers=2, placement=placement)
    at_once = [0] * 6
    found = solve(instance, workers=2, params=SolveParams(start=start))
    assert found.objective <= start.total_latency
    for bad, message in (
        (start.pooled(), "must be a Schedule"),
        (Schedule(instance, at_once, workers=3, placement=at_once), "must be a Schedule"),
        (
            Schedule(instance, at_once, workers=2, placement=at_once),
            "the start is infeasible: worker 0, steps",
        ),
    ):
        with pytest.raises(OptschedError, match=message):
            solve(instance, workers=2, params=SolveParams(start=bad))


def test_what_several_workers_cannot_do_is_refused():
    instance = Instance([4, 4], [3, 3], memory=9)
    for call, message in (
        (lambda: solve(instance, workers=0), "workers is 0"),
        (lambda: solve(instance, workers=[9, 6]), None),
        (lambda: solve(instance, workers=[6, 6]), "more than fit on any worker"),
        (lambda: solve(instance, workers=[9, 8], method="exact"), "equal workers"),
        (lambda: solve(instance, workers=2, method="none"), "unknown method"),
        (
            lambda: solve(instance, workers=2, params=SolveParams(horizon=9)),
            "does not apply to several workers",
        ),
    ):
        if message is None:
            assert not call().schedule.check()
            continue
        with pytest.raises(OptschedError, match=message):
            call()
