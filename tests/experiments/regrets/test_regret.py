"""Regret: the interval holds the truth, policies share instances, interrupted runs keep cells."""

import json
import math
import os
import signal
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from brute_force import cost, schedules
from tabled import tabled

import optsched
from optsched import Instance, OptschedError, bound, family, get_clock, regret, run, verify
from optsched.bounds import bound as bounds
from optsched.clock import FunctionClock
from optsched.experiments import regret_cells as regret_room
from optsched.experiments.regret import Growth, Regret
from optsched.experiments.regret_cells import Cell, RegretTask, enclose, perform, read_source
from optsched.optimum import plan
from optsched.policies import Decision, DecisionPolicy, PriorityPolicy, get_policies
from optsched.problem.work import load_on_clock


@pytest.mark.slow("1")
@pytest.mark.parametrize("seed", range(6))
def test_the_interval_holds_the_true_regret(seed):
    rng = np.random.default_rng(seed)
    instance = Instance([1] * 4, rng.integers(1, 4, 4), 6, np.sort(rng.integers(0, 3, 4)))
    # With all there, a step at which none runs only costs; so this is late enough.
    horizon = int(instance.arrivals[-1] + instance.outputs.sum())
    optimum = min(cost(each, instance) for each in schedules(instance, horizon))
    known = [run(instance, policy).schedule for policy in ("mc-sf", "fcfs")]
    for time_limit in (0, 120):  # it ends when it has the proof
        best, proven = enclose(instance, known, time_limit)
        assert best.check() == []
        assert proven.value <= optimum <= best.total_latency
        assert best.total_latency <= min(each.total_latency for each in known)
    # With time, instances as small as these are solved.
    assert proven.value == best.total_latency == optimum


@pytest.mark.parametrize("load", [0.8, 1.3])
def test_the_certificate_behind_a_bound_holds_in_exact_integers(load):
    instance = family("equal-prompts", n=5000, seed=2, load=load)
    best, proven = enclose(instance, [run(instance, "mc-sf").schedule])
    assert verify(proven.certificate, instance) >= Fraction(proven.value)
    assert proven.value <= best.total_latency
    first = bounds.bound(instance).value
    assert proven.value >= first


@pytest.mark.slow
def test_the_certificate_belongs_to_the_bound_that_is_shown():
    """The bound of a solver stood beside the certificate of a weaker one by prices."""
    instance = family("uniform", n=6, seed=1)
    _, weaker = enclose(instance, [])
    best, proven = enclose(instance, [], time_limit=60)
    assert (proven.method, proven.value) == ("branch and bound", best.total_latency)
    assert weaker.value < proven.value
    assert proven.certificate is None


def test_unit_outputs_leave_no_regret_at_any_load():
    result = regret(
        "family:equal-prompts,output_most=1",
        ["mc-sf", "fcfs"],
        [0.8, 1.5],
        [50, 100, 200, 500],
        5,
        memory=40,
    )
    for band in result.bands():
        assert (band.low, band.high, band.worst_ratio) == (0, 0, 1)
    assert {growth.verdict for _, _, growth in result.growths()} == {"bounded"}


def test_waves_of_equal_outputs_contradict_constant_regret():
    # Outputs of 9 and prompts of 1 in a memory of 1000: waves of 100 every 9 steps, 11.1 per step,
    # or 18 per step for ever, which hold 18 * (2 + 3 + ... + 10) = 972 tokens.
    rng = np.random.default_rng(1)
    counts = rng.permutation(np.repeat([100, 0], [300, 1700]))  # 15 per step, at most 100
    counts[0] = 100
    arrivals = np.repeat(np.arange(len(counts)), counts)
    instance = Instance([1] * len(arrivals), [9] * len(arrivals), 1000, arrivals)
    waves = run(instance, "mc-sf").schedule
    order = np.arange(len(arrivals))
    steady = np.zeros(len(arrivals), dtype=int)
    for request in order:  # at most 18 starts per step
        before = steady[request - 18] + 1 if request >= 18 else 0
        steady[request] = max(arrivals[request], before)
    paced = optsched.Schedule(instance, steady)
    assert paced.check() == []
    starts_per_wave = np.unique(waves.starts, return_counts=True)[1]
    assert np.mean(starts_per_wave == 100) > 0.95
    half = arrivals < 1000
    regrets = [
        (waves.latencies[of] - paced.latencies[of]).mean() for of in (half, np.ones_like(half))
    ]
    assert regrets[1] > 1.6 * regrets[0] > 100
    best, _ = enclose(instance, [waves])
    assert best.total_latency < 0.5 * waves.total_latency


@pytest.mark.slow
def test_policies_see_the_same_instances():
    longest = PriorityPolicy("longest", "", lambda i: -i.outputs)
    again = PriorityPolicy("mc-sf again", "", lambda i: i.outputs)
    result = regret(
        "family:equal-prompts", ["mc-sf", longest, again], [1.1], [60, 240], seeds=range(7, 11)
    )
    frame = result.difference("mc-sf", "mc-sf again")
    assert (frame[["difference", "floor", "ceiling"]] == 0).to_numpy().all()
    frame = result.difference("longest", "mc-sf")
    assert (frame["floor"] <= frame["difference"]).all()
    cells = [cell for cell in result.cells if cell.horizon == 240]
    expected = np.mean(
        [(c.latencies["longest"] - c.latencies["mc-sf"]) / c.requests for c in cells]
    )
    assert frame.loc[(1.1, 240), "difference"] == pytest.approx(expected)
    paired = [(c.latencies["longest"] - c.latencies["mc-sf"]) / c.requests for c in cells]
    # t quantile of 97.5 % with three degrees of freedom: 3.1824.
    ceiling = expected + 3.1824 * np.std(paired, ddof=1) / 2
    assert frame.loc[(1.1, 240), "ceiling"] == pytest.approx(ceiling, rel=1e-4)
    drawn = read_source("family:equal-prompts")
    instance = drawn.draw(drawn.rate(1.1), 240, seed=7)
    assert cells[0].latencies["mc-sf"] == run(instance, "mc-sf").total_latency
    assert instance.arrivals[-1] < 240


def test_bands_are_those_of_student():
    cells = tuple(
        Cell(1.0, 1.0, 9, seed, 1, {"p": 10}, int(10 - low), "x", int(10 - high), "x", 0.0)
        for seed, (low, high) in enumerate([(1, 2), (2, 3), (6, 9)])
    )
    band = Regret("x", 1, ("p",), cells, 0.1).band("p", 1.0, 9)
    assert (band.low, band.high) == pytest.approx((3, 14 / 3))
    # t quantile of 97.5 % with two degrees of freedom: 4.3027.
    deviation = np.std([2, 3, 9], ddof=1)
    assert band.ceiling == pytest.approx(14 / 3 + 4.3027 * deviation / 3**0.5, rel=1e-4)
    assert band.floor == 0  # regret is not negative
    assert band.worst_ratio == pytest.approx(10 / 4)


def shortest_remaining(state):
    return Decision.most_urgent(state, state.forecast.upper - state.made)


@pytest.mark.slow
@pytest.mark.parametrize("preemption", ["recomputed", "resumed"])
def test_where_preempted_requests_go_on_regret_is_to_what_bounds_that(preemption):
    policy = DecisionPolicy("srpt", "", shortest_remaining, preemption=preemption)
    found = regret("family:equal-prompts", [policy, "mc-sf"], [1.2], [60], seeds=2)
    for cell in found.cells:
        instance = read_source("family:equal-prompts").draw(cell.rate, 60, cell.seed)
        own, whole = run(instance, policy), run(instance, "mc-sf").total_latency
        assert own.preemptions
        total, least = own.total_latency, math.ceil(bound(instance, "closed-form").value)
        assert least < cell.bound  # which says nothing of preempted requests that go on
        ends = total - min(total, cell.best), total - least
        assert cell.regret("srpt") == tuple(end / len(instance) for end in ends)
        assert cell.regret("mc-sf")[1] == (whole - cell.bound) / len(instance)
        assert Cell(**json.loads(json.dumps(cell.to_dict()))) == cell


def test_a_trace_is_drawn_from_with_replacement():
    trace = Instance([5, 9], [2, 7], memory=40, name="two")
    drawn = read_source(trace)
    instance = drawn.draw(1.5, 400, seed=0)
    assert {(5, 2), (9, 7)} == set(
        zip(instance.prompts.tolist(), instance.outputs.tolist(), strict=True)
    )
    assert len(instance) == pytest.approx(600, abs=120)
    assert drawn.rate(1.0) == pytest.approx(40 / ((5 * 2 + 3 + 9 * 7 + 28) / 2))


def test_drawing_ends_where_a_horizon_brings_hardly_any_request(monkeypatch):
    """Two requests that both came before it were drawn again and again."""
    monkeypatch.setattr(regret_room, "_FEWEST", 0)
    source = read_source(Instance([1], [2], memory=4, name="one"))
    assert len(source.draw(0.07, 3, seed=1)) == 2


def test_ctrl_c_while_an_optimum_is_proven_ends_all(monkeypatch):
    """The next seed began."""
    work = vars(plan)["_work"]

    def struck(state):
        work(state)
        assert state.proven
        os.kill(os.getpid(), signal.SIGINT)  # and all ends before somebody looks

    monkeypatch.setattr(plan, "_work", struck)
    instance = family("uniform", n=6, seed=1)
    with pytest.raises(KeyboardInterrupt):
        enclose(instance, [run(instance, "fcfs").schedule], time_limit=60)


def test_an_interrupted_run_keeps_its_cells(monkeypatch):
    def stop(progress):
        assert progress.count == 8
        if progress.done == 3:
            raise KeyboardInterrupt

    arguments = ("family:equal-prompts", ["mc-sf"], [0.5, 0.9], [50, 100], 2)
    result = regret(*arguments, on_progress=stop)
    assert result.status == "interrupted"
    assert len(result.cells) == 3
    assert {cell.horizon for cell in result.cells} == {50}
    assert result.growths() == []
    assert "interrupted" in str(result)
    assert "mean over 1 to 2 instances" in str(result)
    content = json.loads(json.dumps(result.to_dict()))
    assert content["status"] == "interrupted"
    assert [entry["ceiling"] for entry in content["intervals"] if entry["seeds"] == 1] == [None]

    def at_once(task):
        raise SystemError("while loading a kernel") from KeyboardInterrupt()

    monkeypatch.setattr(regret_room, "perform", at_once)
    with pytest.raises(KeyboardInterrupt):
        regret("family:equal-prompts", ["mc-sf"], [0.5], [50], seeds=1)

    def broken(task):
        raise SystemError("of another kind")

    monkeypatch.setattr(regret_room, "perform", broken)
    with pytest.raises(SystemError):
        regret("family:equal-prompts", ["mc-sf"], [0.5], [50], seeds=1)


@pytest.mark.slow
def test_processes_give_the_same_cells():
    arguments = ("family:equal-prompts", ["mc-sf"], [0.9], [60, 120], 2)
    one, two = regret(*arguments, jobs=1), regret(*arguments, jobs=2)
    for first, second in zip(one.cells, two.cells, strict=True):
        assert first.to_dict() | {"seconds": 0} == second.to_dict() | {"seconds": 0}


@pytest.mark.slow
def test_hindsight_narrows_an_interval():
    drawn = read_source("family:chat-and-summaries")
    policies = tuple(get_policies(["area"]))
    task = RegretTask(drawn, policies, 1.1, drawn.rate(1.1), 1500, 0, 0.0)
    quick = perform(task)
    searched = perform(RegretTask(drawn, policies, 1.1, drawn.rate(1.1), 1500, 0, 3.0))
    assert quick.requests < 200
    assert quick.bound <= searched.bound <= searched.best <= quick.best
    assert searched.best - searched.bound < 0.9 * (quick.best - quick.bound)


@tabled(
    ({"time_limit": None}, "time_limit is None, but must be a number"),
)
def test_bad_input_gets_one_sentence(arguments, message):
    with pytest.raises(OptschedError, match=message):
        regret(**{"loads": [0.8], "horizons": [50], "seeds": 1, **arguments})


@pytest.mark.slow
def test_one_policy_load_horizon_and_named_seeds_need_no_lists():
    short = regret("family:equal-prompts", "mc-sf", 0.8, 50, [2, 5])
    long = regret("family:equal-prompts", ["mc-sf"], [0.8], [50], 6)
    assert [cell.seed for cell in short.cells] == [2, 5]
    assert repr(short) == "<Regret 'equal-prompts': mc-sf; 2 instances, complete>"
    assert "mc-sf" in short._repr_html_()
    for cell in short.cells:
        (same,) = (each for each in long.cells if each.seed == cell.seed)
        assert cell.to_dict() | {"seconds": 0} == same.to_dict() | {"seconds": 0}


def test_results_refuse_what_was_not_run():
    result = regret("family:equal-prompts", ["mc-sf"], [0.5], [50, 100], seeds=2)
    with pytest.raises(OptschedError, match="policy 'area' was not run"):
        result.band("area", 0.5, 50)
    with pytest.raises(OptschedError, match=r"no instance of load 0\.6"):
        result.band("mc-sf", 0.6, 50)
    with pytest.raises(OptschedError, match=r"there is no load 0\.7"):
        result.plot(load=0.7)
    single = regret("family:equal-prompts", ["mc-sf"], [0.5], [50], seeds=2)
    with pytest.raises(OptschedError, match="at least two horizons"):
        single.growth("mc-sf", 0.5)


@pytest.mark.slow
def test_where_age_makes_no_difference_regret_is_bounded_at_any_load():
    # floor(1272 / 51) = floor(1272 / 53) = 24 requests fit together, of whatever age.
    source = "family:equal-prompts,prompt=50,output_most=3"
    result = regret(
        source, ["mc-sf", "fcfs"], [0.8, 1.5], [100, 300, 1000, 2000], 5, memory=1272, tolerance=0.4
    )
    for load in result.loads:
        assert result.growth("mc-sf", load).verdict == "bounded"
        assert result.band("mc-sf", load, 2000).high < 1.5
    assert result.growth("fcfs", 1.5).verdict == "grows"
    assert {"identical machines", "lagrangian"} >= {cell.proof for cell in result.cells}
    assert "identical machines" in {cell.proof for cell in result.cells}


@pytest.fixture(scope="module")
def on_clock():
    return regret(
        "family:chat-and-summaries",
        ["mc-sf", "work"],
        [0.6, 1.5],
        [60, 120],
        seeds=2,
        clock="llama-2-70b-2xa100",
    )


@pytest.mark.slow
def test_on_a_clock_each_instance_has_runs_a_best_one_and_a_bound(on_clock):
    clock = get_clock("llama-2-70b-2xa100")
    source = read_source("family:chat-and-summaries", clock=clock)
    for cell in on_clock.cells:
        drawn = source.draw(cell.rate, cell.horizon, cell.seed)
        assert len(drawn) == cell.requests
        for policy, latency in cell.latencies.items():
            assert latency == run(drawn, policy, clock=clock).total_latency
        assert cell.bound == bound(drawn, clock=clock).value
        assert 0 < cell.bound <= cell.best == min(cell.latencies.values())
        assert (drawn.arrivals * drawn.seconds_per_step).max() < cell.horizon
    assert (on_clock.unit, on_clock.clock) == ("s", clock.name)
    assert "in s per request" in str(on_clock)
    assert on_clock.to_dict()["clock"] == clock.name


def test_the_load_on_a_clock_is_work_over_time():
    clock = get_clock("llama-2-7b-a100")
    source = read_source("family:chat-and-summaries", clock=clock)
    drawn = source.draw(source.rate(0.9), 20_000, seed=1)
    assert load_on_clock(drawn, clock).load == pytest.approx(0.9, rel=0.05)


def test_on_the_unit_clock_arrivals_are_those_in_steps():
    plain, timed = (read_source("family:uniform", clock=clock) for clock in (None, "unit"))
    assert timed.rate(0.8) == pytest.approx(plain.rate(0.8))
    rate = plain.rate(0.8)
    arrivals = [source.draw(rate, 500, 0).arrivals.tolist() for source in (plain, timed)]
    assert arrivals[0] == arrivals[1]


def test_what_has_no_regret_on_a_clock_is_refused():
    for options, message in (
        (
            {"clock": FunctionClock(lambda _: 1.0)},
            "is a function, for which no bound is known, and so no reg",
        ),
        ({"clock": "unit", "time_limit": 1.0}, "time_limit is for the search in steps"),
    ):
        with pytest.raises(OptschedError, match=message):
            regret("family:uniform", "area", [0.8], [100], seeds=1, **options)


@pytest.mark.parametrize("clock", [None, "llama-2-70b-2xa100"])
def test_a_list_of_instances_is_run_as_it_is(clock, tmp_path):
    made = [
        optsched.family("uniform", n=12, seed=seed, load=1, seconds_per_step=0.05)
        for seed in range(2)
    ]
    how = {"clock": clock, "keep_instances": tmp_path / "kept"}
    found = optsched.regret(made, ["area", "fcfs"], **how)
    assert found.source == "2 instances"
    for instance, cell in zip(made, found.cells, strict=True):
        for policy in ("area", "fcfs"):
            alone = optsched.run(instance, policy, clock=clock).total_latency
            assert cell.latencies[policy] == alone
        bound = optsched.bound(instance, clock=clock)
        assert cell.bound >= bound.value - 1e-9
        assert cell.bound <= cell.best <= cell.latencies["area"]
    (band, _) = found.bands()
    low = np.mean([cell.regret("area")[0] for cell in found.cells])
    assert band.low == pytest.approx(low)
    again = optsched.regret(made, ["area", "fcfs"], **how, resume=True)
    assert again.cells == found.cells
    (cell,) = optsched.regret(made[0], ["area", "fcfs"], clock=clock).cells
    assert cell.latencies == found.cells[0].latencies
    with pytest.raises(OptschedError, match="instances are run as they are; leave loads"):
        optsched.regret(made, "area", loads=0.5)
    with pytest.raises(OptschedError, match="a list of sources has instances and traces"):
        optsched.regret(["family:uniform"], "area")


def test_policies_that_do_the_same_are_said_to():
    same = regret("family:equal-prompts", ["mc-sf", "area"], 0.8, [100], seeds=2)
    assert "mc-sf and area do the same here." in same.notes
    differ = regret("family:uniform", ["mc-sf", "area"], 1.2, [300], seeds=2)
    assert not [note for note in differ.notes if "do the same" in note]


def test_what_falls_is_not_said_to_grow_by_less_than_nothing():
    """Bounded regret was "growth above -0.00269 is excluded"."""
    found = Growth("bounded", -1, -1, -2, -0.5, 0.2, 1, 1.0, None, (1, 10), 5, 0.95)
    assert str(found) == "bounded: falls by at least 0.5 steps per tenfold horizon (tolerance 0.2)"
    slow = replace(found, high_ceiling=0.125, power=0.9)
    assert str(slow).startswith("bounded: grows by at most 0.125 steps per tenfold horizon (")
    assert str(slow).endswith("tolerance 0.2, power 0.90)")
