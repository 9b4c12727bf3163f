"""`solve`: the best schedule and a bound that is proven, whatever happens on the way."""

import itertools
import pickle
import threading
from dataclasses import replace

import brute_force
import numpy as np
import pytest
from brute_force import feasible_starts
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from literal import optimum
from strategies import instances
from tabled import tabled

import optsched
import optsched.optimum.plan
import optsched.optimum.stages
from optsched import Instance, OptschedError, Schedule, SolveParams, family, run, solve
from optsched.bounds.lagrangian import PricedStarts
from optsched.certificates.prices import verify_configuration
from optsched.models import BatchSelection
from optsched.models.hindsight import schedule_cost
from optsched.optimum.solving import METHODS, proven_horizon
from optsched.policies import BASIC, PriorityPolicy


def random_instances(count, seed, **fields):
    """Tiny instances, half of them with arrivals."""
    rng = np.random.default_rng(seed)
    for index in range(count):
        requests = int(rng.integers(2, 5))
        outputs = rng.integers(1, 5, requests)
        prompts = rng.integers(0, 8, requests)
        arrivals = np.sort(rng.integers(0, 4, requests)) * (index % 2)
        more = {name: make(rng, requests) for name, make in fields.items()}
        yield Instance(prompts, outputs, 12, arrivals, **more)


def schedules(instance):
    """All feasible schedules that end by a step within which one optimal schedule ends."""
    return [Schedule(instance, starts) for starts in feasible_starts(instance)]


@pytest.mark.slow
def test_every_method_finds_and_proves_the_optimum():
    for instance in random_instances(24, seed=1):
        best = optimum(instance)
        for method in ("auto", "highs", "cp-sat", "exact"):
            result = solve(instance, method=method, time_limit=30)
            assert (result.objective, result.bound, result.status) == (best, best, "optimal")
            assert result.proven_optimal
            assert result.schedule.check() == []
            assert result.schedule.total_latency == best
        found = solve(instance, method="search", time_limit=0.02)
        assert found.bound <= best <= found.objective


@pytest.mark.parametrize("objective", ["weighted-latency", "makespan"])
def test_other_objectives(objective):
    weights = {"weights": lambda rng, n: rng.choice([0.5, 1, 2.25], n)}
    for instance in random_instances(10, seed=2, **weights):
        best = min(schedule_cost(schedule, objective) for schedule in schedules(instance))
        for method in ("auto", "highs"):
            result = solve(instance, objective=objective, method=method, time_limit=30)
            assert result.objective == pytest.approx(best)
            assert result.proven_optimal
            assert result.bound <= result.objective


@pytest.mark.slow
def test_deadlines_hard_and_soft():
    due = {"deadlines": lambda rng, n: rng.integers(3, 12, n)}
    infeasible = 0
    for instance in random_instances(16, seed=3, **due):
        every = schedules(instance)
        feasible = [schedule for schedule in every if not schedule.check()]
        if not feasible:
            infeasible += 1
            with pytest.raises(
                optsched.InfeasibleError, match="not all requests can complete within their"
            ):
                solve(instance, time_limit=30)
        else:
            result = solve(instance, time_limit=30)
            assert result.objective == min(schedule.total_latency for schedule in feasible)
            assert result.schedule.check() == []
        for lateness in ("per-step", "per-request"):
            soft = solve(
                instance, time_limit=30, params=SolveParams(lateness=lateness, penalty=3.0)
            )
            costs = (schedule_cost(schedule, "total-latency", lateness, 3.0) for schedule in every)
            assert soft.objective == min(costs)
            assert soft.proven_optimal
    assert 0 < infeasible < 16


def test_a_search_misses_no_deadline_for_a_price():
    late = Instance([4, 4], [1, 6], memory=13, deadlines=[1, 5])
    params = SolveParams(lateness="per-step", penalty=3.0)
    found = solve(late, method="search", time_limit=None, params=replace(params, work=0.01))
    assert found.objective == 1 + 6 + 3  # the second one is a step late at best
    assert found.bound <= found.objective


@pytest.mark.few
@pytest.mark.parametrize("method", ["auto", "search"])
@examples(40)
@given(
    instance=instances(max_requests=5, max_memory=14, max_arrival=5, max_output=5),
    slack=st.integers(0, 9),
)
def test_what_is_searched_keeps_deadlines_and_a_horizon(method, instance, slack):
    due = run(instance, "area").schedule.starts + instance.outputs + slack
    timely = instance.replace(deadlines=due)
    for asked, params in ((timely, SolveParams()), (instance, SolveParams(horizon=int(due.max())))):
        limited = (
            timely
            if asked is timely
            else instance.replace(deadlines=np.full(len(instance), int(due.max())))
        )
        for objective, least in brute_force.optima(limited).items():
            found = solve(asked, objective=objective, method=method, time_limit=0.3, params=params)
            assert found.bound <= least <= found.objective
            assert not Schedule(limited, found.schedule.starts).check()


def test_a_price_of_lateness_needs_deadlines():
    params = SolveParams(lateness="per-step", penalty=3.0)
    with pytest.raises(OptschedError, match="lateness is 'per-step', but the requests have no"):
        solve(Instance([4, 4], [1, 6], memory=13), params=params)


@pytest.mark.parametrize(
    ("method", "params"),
    [("dp", {"epsilon": 0.2}), ("auto", {"epsilon": 0.2}), ("swap", {"threads": 2})],
)
def test_what_a_selection_would_ignore_is_refused(method, params):
    selection = BatchSelection([4, 4], [1, 6], memory=13)
    with pytest.raises(OptschedError, match=r"does not apply to the method '(dp|swap)'"):
        solve(selection, method=method, params=SolveParams(**params))


def test_horizon_is_said_and_may_be_too_short():
    instance = Instance([4] * 4, [1, 1, 6, 6], memory=13)
    result = solve(instance, time_limit=30, params=SolveParams(horizon=12))
    assert (result.objective, result.status) == (21, "optimal within horizon 12")
    assert "within horizon 12" in str(result)
    with pytest.raises(optsched.InfeasibleError, match="not all requests can complete by step 8"):
        solve(instance, time_limit=30, params=SolveParams(horizon=8))
    with pytest.raises(optsched.InfeasibleError, match="by step 3"):
        solve(instance, time_limit=30, params=SolveParams(horizon=3))


@pytest.mark.few
@given(instances(max_requests=4, max_memory=12, max_arrival=5, max_output=4))
@examples(60)
def test_no_optimal_schedule_uses_a_start_that_is_ruled_out(instance):
    best = optimum(instance)
    certificate = optsched.bound(instance, "lagrangian").certificate
    priced = PricedStarts(instance, certificate)
    cost = float(run(instance, "fcfs").total_latency)
    optimal = [s for s in schedules(instance) if s.total_latency == best]
    requests = np.arange(len(instance))
    for schedule in optimal:
        assert (priced.regrets(requests, schedule.starts) <= priced.room(cost)).all()
        assert (schedule.starts <= priced.latest(cost)).all()
    assert proven_horizon(instance) >= min(schedule.makespan for schedule in optimal)


def test_a_time_limit_of_a_millisecond_gives_a_valid_interval():
    instance = family("uniform", n=12, seed=4)
    for method in METHODS:
        result = solve(instance, method=method, time_limit=0.001)
        assert result.schedule.check() == []
        assert 0 < result.bound < result.objective
        assert result.status in ("time limit", "search ended")


@pytest.mark.slow
def test_interrupts_keep_what_is_known():
    instance = family("uniform", n=14, seed=1)
    for after in range(1, 12, 3):
        calls = itertools.count(1)

        def interrupt(progress, after=after, calls=calls):
            if next(calls) == after:
                raise KeyboardInterrupt

        result = solve(instance, time_limit=3, params=SolveParams(on_progress=interrupt))
        assert result.schedule.check() == []
        assert result.bound <= result.objective


def test_an_interrupt_before_the_first_schedule_is_said(monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(optsched.optimum.plan, "run", interrupt)
    with pytest.raises(OptschedError, match="no schedule was found"):
        solve(family("uniform", n=14, seed=1))


def test_a_solver_that_crashes_costs_only_the_proof(monkeypatch):
    def crash(*arguments, **options):
        return optsched.Solution("error", "HiGHS", 0.1, raw_status="killed by signal 9")

    monkeypatch.setattr(optsched.optimum.stages, "solve_linear", crash)
    result = solve(family("exponential", n=20, seed=1), method="highs", time_limit=5)
    assert result.status == "error"
    assert "killed by signal 9" in str(result)
    assert result.bound < result.objective


def test_infeasibility_on_the_solver_s_word_needs_no_schedule(monkeypatch):
    """With a feasible schedule at hand the word of a solver is not believed."""

    def deny(*arguments, **options):
        return optsched.Solution("infeasible", "HiGHS", 0.1)

    monkeypatch.setattr(optsched.optimum.stages, "solve_linear", deny)
    result = solve(family("exponential", n=20, seed=1), method="highs", time_limit=5)
    assert not result.proven_optimal


def test_history_only_improves_and_result_survives_pickling():
    result = solve(family("uniform", n=8, seed=0), time_limit=20)
    costs = [cost for _, cost, _ in result.history if cost is not None]
    bounds = [value for _, _, value in result.history]
    assert costs == sorted(costs, reverse=True)
    assert bounds == sorted(bounds)
    assert pickle.loads(pickle.dumps(result)).objective == result.objective
    assert replace(result, status="x").status == "x"
    assert repr(result).startswith("<Optimum of 'uniform': total-latency ")
    assert "\n" not in repr(result)


@pytest.mark.slow
def test_large_instances_are_searched():
    result = solve(family("chat-and-summaries", n=2000, seed=1), time_limit=1)
    assert 0 < result.gap < 0.08
    with pytest.raises(OptschedError, match="nonzeros"):
        solve(family("chat-and-summaries", n=2000, seed=1), method="highs", time_limit=1)


PARAMS = ("lateness", "penalty", "threads", "gap_limit")


@tabled()
def test_bad_arguments(options, message):
    own = {name: value for name, value in options.items() if name in PARAMS}
    rest = {"time_limit": 1} | {name: options[name] for name in options.keys() - own.keys()}

    def attempt():
        return solve(family("uniform", n=14, seed=0), **{"params": SolveParams(**own)} | rest)

    with pytest.raises(OptschedError, match=message):
        attempt()


@pytest.mark.slow
def test_configurations_raise_the_bound_where_large_requests_do_not_pack():
    instance = family("uniform", n=30, seed=3)
    enough = 1.02 * optsched.bound(instance, "sawtooth").value

    def stop(progress):
        if progress.bound > enough:
            raise KeyboardInterrupt

    result = solve(instance, time_limit=120, params=SolveParams(on_progress=stop))
    assert result.proof == "configuration"
    assert result.bound > enough
    assert verify_configuration(result.certificate, instance) <= result.objective
    assert result.schedule.check() == []


@pytest.mark.parametrize("method", ["auto", "search", "cp-sat", "exact"])
def test_what_a_stage_refuses_costs_no_answer(method):
    """A billion steps are too many for a search, which once lost the schedules already found."""
    instance = Instance([4] * 14, [1, 1, 6, 6, 3] * 2 + [2] * 4, 13, [0] * 13 + [10**9])
    result = solve(instance, method=method, time_limit=2)
    assert result.schedule.check() == []
    assert result.bound <= result.objective


@pytest.mark.parametrize("load", [None, 1.0])
def test_same_seed_and_threads_give_the_same_interval(load):
    instance = family("uniform", n=6, seed=3, load=load)
    once, again = (
        optsched.solve(instance, time_limit=30, params=optsched.SolveParams(threads=2, seed=5))
        for _ in range(2)
    )
    assert once.proven_optimal
    assert once.schedule.starts.tolist() == again.schedule.starts.tolist()
    assert (once.objective, once.bound, once.proof) == (again.objective, again.bound, again.proof)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uniform", "chat-and-summaries"])
def test_weights_and_arrivals_have_certified_intervals_that_are_explained(name):
    instance = family(name, n=60, seed=2, load=1.1)
    instance = instance.replace(weights=1 + np.arange(60) % 3)
    result = optsched.solve(instance, objective="weighted-latency", time_limit=3)
    assert result.schedule.check() == []
    assert result.objective == pytest.approx(result.schedule.weighted_latency)
    assert result.bound <= result.objective < run(instance, "area").schedule.weighted_latency
    assert optsched.verify(result.price_certificate, instance) <= result.objective
    explained = result.explain()
    assert explained.order_regret + explained.wasted_memory == pytest.approx(explained.gap)
    assert any("delays" in step for step in result.steps)


@pytest.mark.slow
def test_small_instances_are_proven_in_this_process(monkeypatch):
    """A child process takes longer to start than most of these take to be solved."""

    def refuse(*arguments, **options):
        raise AssertionError("a solver was called")

    expected = {}
    for name, requests in (("uniform", 7), ("normal", 6), ("binomial", 6), ("exponential", 8)):
        instance = family(name, requests, seed=1)
        expected[instance] = solve(instance, method="cp-sat", time_limit=60).objective
    monkeypatch.setattr(optsched.optimum.stages, "solve_events", refuse)
    monkeypatch.setattr(optsched.optimum.stages, "solve_linear", refuse)
    for instance, cost in expected.items():
        result = solve(instance, time_limit=60)
        assert (result.objective, result.bound, result.status) == (cost, cost, "optimal")
        assert result.schedule.check() == []
        assert optsched.verify(result.price_certificate, instance) <= cost


def test_a_stop_token_ends_the_stages_and_a_start_begins_them():
    instance = family("uniform", n=30, seed=3)
    stop = threading.Event()
    best = run(instance, "area").schedule
    params = SolveParams(start=best, stop=stop, on_progress=lambda _: stop.set())
    result = solve(instance, time_limit=60, params=params)
    assert result.status == "interrupted"
    assert result.bound <= result.objective <= best.total_latency
    with pytest.raises(OptschedError, match="must be a Schedule of the instance that is solved"):
        solve(instance, params=SolveParams(start=[0] * 30))
    with pytest.raises(OptschedError, match="the start is infeasible"):
        solve(instance, params=SolveParams(start=Schedule(instance, [0] * 30)))


def test_what_cannot_be_solved_is_said():
    with pytest.raises(OptschedError, match="cannot solve a str; give an Instance, a program"):
        solve("trace.csv")
    program = optsched.HindsightProgram(Instance([1], [1], memory=2))
    with pytest.raises(OptschedError, match="objective is 'makespan', but a program has its own"):
        solve(program, objective="makespan")
    with pytest.raises(OptschedError, match="horizon is 9, but does not apply to a program"):
        solve(program, params=SolveParams(horizon=9))


@pytest.mark.slow
def test_it_starts_from_the_best_of_policies_and_of_window_lists():
    instance = family("chat-and-summaries", n=60, seed=2)
    first = solve(instance, time_limit=1).history[0][1]
    assert first <= min(run(instance, policy).total_latency for policy in BASIC)
    short = PriorityPolicy("short", "", lambda i: i.areas * i.outputs**0.5)
    assert first <= run(instance, short, rule="window:1.4").total_latency


@pytest.mark.slow
@pytest.mark.parametrize("load", [None, 1.1])
def test_a_beam_starts_large_requests_from_150_on(load):
    instance = family("chat-and-summaries", n=150, seed=0, load=load)
    weights = np.random.default_rng(0).integers(1, 5, 150)
    stages, stop = [], threading.Event()

    def watch(progress):
        stages.append(progress.solver)
        if progress.solver == "beam":
            stop.set()

    found = solve(
        instance.replace(weights=weights),
        time_limit=60,
        objective="weighted-latency",
        params=SolveParams(on_progress=watch, stop=stop),
    )
    assert "beam" in stages
    assert found.answer.check() == []
    assert found.bound <= found.objective == found.answer.weighted_latency
    costs = [cost for _, cost, _ in found.history]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.slow
def test_fewer_requests_go_without_a_beam(monkeypatch):
    monkeypatch.setattr("optsched.optimum.state.BEAM_LEAST", 61)
    instance = family("chat-and-summaries", n=60, seed=0)
    found = solve(instance, time_limit=0.5, method="search")
    assert not any("beam:" in step for step in found.steps)
