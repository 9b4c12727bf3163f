"""The driver: causal, feasible, honest about its fallback and Ctrl-C, and a policy everywhere."""

import random
import signal
import time

import numpy as np
import pytest
from effort import examples
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import instances
from tabled import tabled

import optsched
from optsched import Instance, RollingPolicy, SolveParams, compare, family, run, solve
from optsched.errors import PolicyError, SolverError
from optsched.policies.decision import ROLLING_MODELS
from optsched.rolling import driver, planners, scenarios
from optsched.search.exact.search import solve_exact
from optsched.solvers.backends import cpsat

QUICK = {"budget": 0.004}
SIZES = {"max_requests": 9, "max_memory": 30, "max_arrival": 20, "max_output": 10}


def rolling(instance, *, intervals=None, seed=0, clock=None, on_progress=None, **settings):
    """Run a rolling horizon with these settings."""
    known = {"intervals": intervals, "seed": seed, "clock": clock, "on_progress": on_progress}
    return run(instance, RollingPolicy(**settings), **known)


@pytest.mark.parametrize("model", ROLLING_MODELS)
@given(instances(**SIZES), st.integers(1, 6), st.integers(1, 3))
@example(Instance([0, 0], [1, 1], 1), 2, 1)  # a share of so little memory was none
@examples(25)
def test_every_schedule_is_feasible_and_none_is_preempted(model, instance, window, interval):
    found = rolling(instance, model=model, window=window, replan_interval=interval, budget=0.01)
    assert found.schedule.check() == []
    assert found.preemptions == 0
    assert len(found.decisions) == found.decisions.counts.planned + found.decisions.fallbacks


@pytest.mark.parametrize(
    "fallback", ["area", "mc-sf", "mc-sf-total", "fcfs", "area+window", "mc-sf+window:1.2,3"]
)
@given(instances(**SIZES))
@examples(60)
def test_without_a_budget_it_is_its_fallback(fallback, instance):
    found = rolling(instance, budget=0, fallback=fallback)
    assert np.array_equal(found.schedule.starts, run(instance, fallback).schedule.starts)
    assert (
        found.decisions.fallbacks
        == len(found.decisions)
        == found.decisions.counts.without_budget
        > 0
    )


@pytest.mark.parametrize("fallback", ["area", "area+window"])
@pytest.mark.parametrize("load", [0.8, 1.2])
def test_without_a_budget_it_is_its_fallback_at_scale(load, fallback):
    instance = family("chat-and-summaries", n=200, seed=4, load=load)
    found = rolling(instance, budget=0, fallback=fallback)
    assert np.array_equal(found.schedule.starts, run(instance, fallback).schedule.starts)
    assert "the budget is zero, so nothing was planned" in str(found.decisions)


@pytest.fixture
def unhurried(monkeypatch):
    """Let clocks jump by half a second: what goes by work does not mind."""
    clock, jump = driver.stopwatch, random.Random(0).random
    for module in (driver, planners, scenarios):
        monkeypatch.setattr(module, "stopwatch", lambda: clock() + jump())


@pytest.mark.slow("relax-lp")
@pytest.mark.parametrize("model", ROLLING_MODELS)
def test_the_future_changes_no_decision_before_it(model, unhurried):
    rng = np.random.default_rng(3)
    count, cut = (24, 12) if "exact" in model else (60, 35)
    for seed in range(1 if "exact" in model else 3):
        instance = family("exponential", n=count, seed=seed, load=1.0)
        moment = int(instance.arrivals[cut])
        while instance.arrivals[cut - 1] == moment:
            cut -= 1
        prompts, outputs = instance.prompts.copy(), instance.outputs.copy()
        prompts[cut:], outputs[cut:] = rng.permutation(prompts[cut:]), 1 + outputs[cut:] // 2
        arrivals = np.concatenate([instance.arrivals[:cut], moment + np.arange(count - cut) * 3])
        other = Instance(prompts, outputs, instance.memory, arrivals)
        options = {"model": model, "window": 4 if "exact" in model else 16, "budget": unhurried}
        one, two = rolling(instance, **options), rolling(other, **options)
        before = np.flatnonzero((one.schedule.starts < moment) | (two.schedule.starts < moment))
        assert len(before) > cut // 2
        assert np.array_equal(one.schedule.starts[before], two.schedule.starts[before])


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_another_one_another(unhurried):
    instance = family("uniform", n=60, seed=2, load=1.0)
    runs = [rolling(instance, seed=seed) for seed in (1, 1, 2)]
    assert [found.decisions.counts.cut for found in runs] == [0, 0, 0]
    assert np.array_equal(runs[0].schedule.starts, runs[1].schedule.starts)
    assert not np.array_equal(runs[0].schedule.starts, runs[2].schedule.starts)


def test_a_model_that_fails_leaves_all_to_the_fallback():
    def broken(window):
        raise SolverError("no licence")

    instance = family("uniform", n=40, seed=1, load=1.0)
    found = rolling(instance, model=broken)
    assert found.decisions.counts.failed == found.decisions.fallbacks == len(found.decisions) > 10
    assert found.decisions.counts.reasons == {"no licence": len(found.decisions)}
    assert np.array_equal(found.schedule.starts, run(instance, "area").schedule.starts)
    assert f"{len(found.decisions)} times: no licence" in str(found.decisions)


def test_a_model_that_fails_now_and_then_is_counted():
    calls = []

    def shaky(window):
        calls.append(len(window))
        if len(calls) % 3 == 0:
            raise SolverError("lost connection")
        return window.place(window.order)

    instance = family("exponential", n=60, seed=1, load=1.0)
    found = rolling(instance, model=shaky, scenarios=0, budget=5)
    assert found.decisions.counts.failed == len(calls) // 3 > 3
    assert found.decisions.counts.planned == len(calls) - len(calls) // 3
    # Plan or not, here it is the order of the fallback.
    assert np.array_equal(found.schedule.starts, run(instance, "area").schedule.starts)


def test_plans_that_do_not_fit_are_failures():
    instance = Instance([5, 5, 5], [2, 2, 2], memory=9)
    found = rolling(instance, model=lambda window: np.zeros(len(window), dtype=np.int64))
    assert found.decisions.counts.failed > 0
    assert found.schedule.check() == []


def test_a_plan_that_comes_late_is_not_followed():
    def slow(window):
        time.sleep(0.03)
        return window.place(window.order[::-1])

    instance = family("exponential", n=20, seed=3, load=1.5)
    found = rolling(instance, model=slow, budget=0.01)
    assert found.decisions.counts.late == found.decisions.fallbacks == len(found.decisions)
    assert found.decisions.over_budget == len(found.decisions)
    assert np.array_equal(found.schedule.starts, run(instance, "area").schedule.starts)


def test_a_foreign_error_is_not_swallowed():
    def wrong(window):
        return window.nothing_like_that

    with pytest.raises(AttributeError):
        rolling(Instance([1], [1], 2), model=wrong)


@pytest.mark.slow
def test_plans_pay(unhurried):
    ratios = []
    for seed in range(3):
        instance = family("uniform", n=100, seed=seed, load=0.9)
        found = rolling(instance)
        ratios.append(found.schedule.total_latency / run(instance, "area").total_latency)
    assert np.mean(ratios) < 0.9  # about 0.75


def test_deliberate_delay_pays_where_a_giant_would_block(unhurried):
    # The giant fits now, but the others that wait are served first.
    instance = Instance([30, 30, 30, 60], [4, 4, 4, 30], memory=100)
    found = rolling(instance, scenarios=0)
    assert found.schedule.total_latency == solve_exact(instance).lower


def test_windows_beyond_which_others_fit_start_these_too():
    instance = Instance([1] * 40, [5] * 40, memory=1000)
    assert rolling(instance, window=3).schedule.starts.max() == 0


def test_a_horizon_limits_what_is_planned():
    instance = family("uniform", n=60, seed=1)
    seen = []

    def planner(window):
        seen.append(int((window.outputs * (window.prompts + window.outputs)).sum()))
        return window.place(window.order)

    rolling(instance, model=planner, horizon=50, budget=5)
    near = max(seen)
    seen.clear()
    rolling(instance, model=planner, budget=5)
    assert near < max(seen) / 4


@pytest.mark.parametrize("estimate", ["lower", "upper", "posterior"])
@pytest.mark.parametrize("intervals", ["common:1,50", "classes:10", "relative:0.5", "exact"])
def test_it_runs_under_intervals(intervals, estimate):
    instance = family("exponential", n=60, seed=2, load=0.9)
    found = rolling(instance, intervals=intervals, length_estimate=estimate, **QUICK)
    assert found.check() == []
    assert found.all_complete
    if estimate == "upper" or intervals == "exact":
        assert found.preemptions == 0


@given(instances(**SIZES), st.sampled_from(["lower", "upper", "posterior"]))
@examples(60)
def test_under_intervals_all_attempts_are_feasible(instance, estimate):
    found = rolling(instance, intervals="common:1,12", length_estimate=estimate, **QUICK)
    assert found.check() == []
    assert found.all_complete
    assert (found.preemptions == 0) or estimate != "upper"


def test_exact_intervals_are_known_outputs():
    instance = family("exponential", n=60, seed=5, load=1.1)
    one = rolling(instance, model="batch", budget=5)
    two = rolling(instance, model="batch", budget=5, intervals="exact", length_estimate="lower")
    assert np.array_equal(one.schedule.starts, two.schedule.starts)


def test_rolling_is_a_policy_everywhere():
    instance = family("exponential", n=40, seed=1, load=0.9)
    assert run(instance, "rolling").schedule.check() == []
    assert run(instance, "rolling:batch", intervals="classes:5").all_complete
    compared = optsched.compare(instance, ["rolling", "area"])
    assert [schedule.policy for schedule in compared.schedules] == ["rolling", "area"]
    clocked = run(instance, "rolling", clock="unit")
    assert clocked.unfinished == 0
    timed = family("exponential", n=40, seed=1, rate=20, seconds_per_step=1e-6)
    both = optsched.compare(timed, ["rolling", "area"], clock="affine:0.01,0.0001")
    assert [entry.unfinished for entry in both.runs] == [0, 0]
    own = RollingPolicy(window=8, budget=0.0, name="mine")
    assert np.array_equal(run(instance, own).schedule.starts, run(instance, "area").schedule.starts)


def test_on_the_unit_clock_it_decides_as_in_steps():
    instance = family("exponential", n=60, seed=4, load=1.0)
    policy = RollingPolicy(model="batch", budget=5)
    steps = run(instance, policy).schedule
    batches = run(instance, policy, clock="unit")
    done = batches.log.spans[batches.last_batch, 1]
    assert np.array_equal(steps.completions, done.astype(np.int64))


def test_rolling_in_a_sweep(tmp_path):
    from optsched.experiments.sweep_plan import Source, SweepRun, perform

    source = Source((("family", "exponential"), ("n", 30), ("load", 0.9)))
    row = perform(SweepRun(source, "rolling", (), seed=2))
    assert row["status"] == "ok"
    assert row["completed"] == 30


def test_counts_as_data_and_words():
    found = rolling(family("uniform", n=40, seed=1, load=0.9))
    content = found.decisions.to_dict()
    assert content["decisions"] == len(found.decisions) == len(found.decisions.counts.seconds)
    assert content["planned"] + content["fallbacks"] == content["decisions"]
    parts = ("failed", "late", "overruled", "without_budget")
    assert sum(content[part] for part in parts) == content["fallbacks"]
    assert 0 < content["median_seconds"] <= content["p99_seconds"] <= content["max_seconds"]
    assert f"{len(found.decisions)} decisions on windows of up to 64 requests" in str(
        found.decisions
    )
    assert repr(found.decisions).startswith(f"<Decisions of 'rolling': {len(found.decisions)}, ")


def test_a_run_on_a_clock_has_no_schedule():
    found = rolling(Instance([1, 1], [1, 2], 5), clock="unit")
    assert found.unfinished == 0
    with pytest.raises(PolicyError, match="counts in steps, so it has no schedule"):
        _ = found.schedule


def test_decision_times_are_plotted():
    axes = rolling(family("uniform", n=40, seed=1, load=0.9), budget=0.02).decisions.plot()
    assert "ms" in axes.get_xlabel()
    assert [text.get_text() for text in axes.get_legend().get_texts()][1:] == [
        "budget, 20 ms",
        "twice the budget",
    ]


@tabled()
def test_bad_settings_are_named_in_one_sentence(sentence, settings):
    instance = Instance([1] * 5, [3, 2, 1, 4, 50], memory=60)
    with pytest.raises(optsched.OptschedError) as error:
        rolling(instance, **settings)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_fallbacks_with_rules_and_rules_of_admission_are_refused():
    with pytest.raises(PolicyError, match="has the rule 'skip', but must be a plain order"):
        RollingPolicy(fallback=optsched.PriorityPolicy("x", "", lambda i: i.outputs, rule="skip"))
    with pytest.raises(PolicyError, match="'rolling' has its own rules of admission"):
        run(Instance([1], [1], 2), "rolling", rule="skip")
    with pytest.raises(PolicyError, match="unknown model 'best'"):
        run(Instance([1], [1], 2), "rolling:best")


def test_a_plan_by_cp_sat_never_falls_back_for_its_prices():
    """Of 70 decisions, 52 fell back, as prices of memory had more than six decimals."""
    cpsat.load()

    def plan(window):
        params = SolveParams(start=window.schedule)
        return solve(window.program(), method="cp-sat", time_limit=5, params=params).answer.starts

    instance = family("equal-prompts", n=40, seed=2, memory=40, load=1.2)
    done = run(instance, RollingPolicy(model=plan, window=6, budget=20, scenarios=0))
    assert done.decisions.counts.planned > 10
    assert not done.decisions.fallbacks
    assert "fell back" not in repr(done) + str(done)


@pytest.mark.parametrize("clock", [None, "unit"])
def test_a_run_says_where_more_than_a_tenth_of_its_plans_were_lost(clock):
    calls = iter(range(1000))

    def plan(every):
        def starts(window):
            if next(calls) % every == 0:
                raise PolicyError("no idea")
            return window.schedule.starts

        return RollingPolicy(model=starts, budget=20, scenarios=0)

    instance = family("uniform", n=30, seed=1, load=1.0)
    done = run(instance, plan(2), clock=clock)
    lost, count = done.decisions.fallbacks, len(done.decisions)
    said = f"{lost} of {count} plans fell back on area"
    assert lost > count / 10
    assert said in repr(done)
    assert said in str(done)
    assert done.to_dict()["plans"] == said
    assert said in done._repr_html_()
    assert said in " ".join(str(compare(instance, [plan(2), "area"], clock=clock)).split())
    assert not run(instance, plan(1000), clock=clock).fell_back
    assert not run(instance, RollingPolicy(budget=0), clock=clock).fell_back


# After Ctrl-C what was decided stays, and the fallback decides the rest.
REQUESTS = family("uniform", n=60, seed=1, load=1.2, seconds_per_step=0.05)


def in_order_of_size(window):
    """Plan unlike the fallback: largest prompts first."""
    return window.place(np.argsort(-window.prompts, kind="stable"))


def planned_until(call, then):
    """Plan some windows, and do something else at all others."""
    calls = 0

    def model(window):
        nonlocal calls
        calls += 1
        if calls > call:
            then()
        return in_order_of_size(window)

    return model


def ctrl_c():
    signal.raise_signal(signal.SIGINT)


def fail():
    raise SolverError("no more plans")


OPTIONS = {"budget": 60, "window": 4, "scenarios": 0}


@pytest.mark.parametrize("clock", [None, "affine:0.01,0.001"])
@pytest.mark.parametrize("call", [0, 1, 7])
def test_from_ctrl_c_on_the_fallback_decides(clock, call):
    options = OPTIONS | {"clock": clock}
    failed = rolling(REQUESTS, model=planned_until(call, fail), **options)
    found = rolling(REQUESTS, model=planned_until(call, ctrl_c), **options)
    assert found.decisions.interrupted
    assert not failed.decisions.interrupted
    assert found.decisions.counts.planned == failed.decisions.counts.planned == call
    assert found.decisions.counts.interrupted > 0
    assert len(found.decisions) == found.decisions.counts.planned + found.decisions.fallbacks
    words = f"the fallback made the last {found.decisions.counts.interrupted} decisions"
    assert f"interrupted: no more planning; {words}" in str(found.decisions)
    if clock is None:
        assert np.array_equal(found.schedule.starts, failed.schedule.starts)
    else:
        assert found.metrics() == failed.metrics()


def test_under_intervals_too_all_are_completed():
    options = OPTIONS | {"intervals": "relative:0.5"}
    found = rolling(REQUESTS, model=planned_until(5, ctrl_c), **options)
    assert found.all_complete
    assert found.decisions.counts.planned == 5
    unplanned = rolling(REQUESTS, model=planned_until(0, ctrl_c), **options)
    alone = rolling(REQUESTS, budget=0, intervals="relative:0.5")
    assert np.array_equal(unplanned.starts, alone.starts)


def test_ctrl_c_before_any_plan_leaves_the_run_of_the_fallback():
    found = rolling(REQUESTS, model=planned_until(0, ctrl_c))
    assert found.decisions.counts.planned == 0
    assert np.array_equal(found.schedule.starts, run(REQUESTS, "area").schedule.starts)


def test_ctrl_c_outside_of_a_decision_loses_none():
    def stop(started, _):
        if started >= 10 and not stops:
            stops.append(started)
            ctrl_c()

    stops = []
    found = rolling(REQUESTS, model=in_order_of_size, budget=60, on_progress=stop)
    assert found.decisions.interrupted
    assert len(stops) == 1
    assert found.decisions.counts.planned == len(found.decisions.counts.seconds)


def test_a_second_ctrl_c_ends_all():
    with pytest.raises(KeyboardInterrupt):
        rolling(REQUESTS, model=planned_until(3, ctrl_c), on_progress=_always)


def _always(started, _):
    if started > 5:
        ctrl_c()
