"""Time limits, Ctrl-C and effort of `solve`: whatever the machine does, and inside kernels, too."""

import signal
import threading
import time

import pytest
from fresh import warm
from interrupts import ctrl_c

import optsched.optimum.plan
import optsched.optimum.stages
from optsched import Instance, OptschedError, SolveParams, family, solve, verify
from optsched.bounds import lagrangian
from optsched.optimum import stages as exact

DEAF = 8.0  # seconds that a stage hears nothing


@pytest.fixture(scope="module")
def _loaded():
    solve(family("uniform", n=60, seed=1), time_limit=3)  # all kernels are loaded from here on


@pytest.fixture
def deafen(monkeypatch, _loaded):
    """Let the stage that raises prices be in a kernel for a while; return when it goes on."""
    improve = optsched.optimum.stages.improve_prices
    goes_on = threading.Event()

    def for_seconds(seconds):
        def deaf(*arguments, **options):
            time.sleep(seconds)
            try:
                return improve(*arguments, **options)
            finally:  # it is given up where there is an answer
                goes_on.set()

        monkeypatch.setattr(optsched.optimum.stages, "improve_prices", deaf)
        return goes_on

    return for_seconds


def timed(**options):
    began = time.perf_counter()
    result = solve(family("uniform", n=60, seed=1), **options)
    assert result.schedule.check() == []
    assert 0 < result.bound <= result.objective
    return result, time.perf_counter() - began


@pytest.mark.slow
def test_a_limit_holds_while_a_stage_is_in_a_kernel(deafen):
    deafen(DEAF)
    result, seconds = timed(time_limit=0.5)
    assert result.status == "time limit"
    assert seconds < DEAF / 2  # 0.8 s on a free machine


@pytest.mark.slow
def test_ctrl_c_is_heard_while_a_stage_is_in_a_kernel(deafen):
    deafen(DEAF)
    with ctrl_c(0.5, noted=True):
        result, seconds = timed()
    assert result.status == "interrupted"
    assert seconds < DEAF / 2


@pytest.mark.slow("0.1")
@pytest.mark.parametrize("at", [0.1, 0.5])
def test_ctrl_c_ends_a_solve_of_several_workers_with_its_interval(deafen, at):
    instance = family("uniform", n=60, seed=1)
    solve(instance, workers=[100, 60, 60], time_limit=0.1)  # its kernels are loaded from here on
    deafen(DEAF)
    began = time.perf_counter()
    with ctrl_c(at, noted=True):
        found = solve(instance, workers=[100, 100, 100])
    seconds = time.perf_counter() - began
    assert found.status == "interrupted"
    assert found.schedule.check() == []
    assert 0 < found.bound <= found.objective == found.schedule.total_latency
    assert verify(found.certificate, instance, 3) <= found.objective
    assert seconds < DEAF / 2  # 0.8 s on a free machine


@pytest.mark.slow
def test_ctrl_c_ends_the_search_over_parts_with_its_interval(monkeypatch):
    instance = family("uniform", n=8, seed=2)
    solve(instance, workers=2, time_limit=0.1)
    ordered = optsched.optimum.stages.solve_parts

    def interrupted(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.1)
        return ordered(*arguments, **options)

    monkeypatch.setattr(optsched.optimum.stages, "solve_parts", interrupted)
    found = solve(instance, workers=2, time_limit=60)
    assert found.status == "interrupted"
    assert not found.schedule.check()
    assert 0 < found.bound <= found.objective


def test_ctrl_c_is_heard_before_there_is_a_schedule(monkeypatch):
    """At a million requests the first one takes a while."""
    instance = family("uniform", n=60, seed=1)
    solve(instance, time_limit=0.1)
    monkeypatch.setattr(optsched.optimum.plan, "bound", lambda *_: time.sleep(DEAF))
    began = time.perf_counter()
    words = r"no schedule was found in .* s \(interrupted\)"
    with pytest.raises(OptschedError, match=words), ctrl_c(0.5, noted=True):
        solve(instance)
    assert time.perf_counter() - began < DEAF / 2


def test_the_token_is_heard_while_a_stage_is_in_a_kernel(deafen):
    deafen(DEAF)
    stop = threading.Event()
    timer = threading.Timer(0.5, stop.set)
    timer.start()
    result, seconds = timed(params=SolveParams(stop=stop))
    assert result.status == "interrupted"
    assert seconds < DEAF / 2


def test_nothing_is_reported_after_the_answer(deafen):
    goes_on = deafen(1.5)
    calls = []
    result, _ = timed(time_limit=0.3, params=SolveParams(on_progress=calls.append))
    known, steps = len(calls), result.steps
    assert not goes_on.is_set()
    assert goes_on.wait(30)
    time.sleep(0.2)
    assert (len(calls), result.steps) == (known, steps)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [None, 2])
def test_small_instances_go_by_work_on_a_slow_machine_too(monkeypatch, rate):
    def steps(seed):
        instance = family("uniform", n=6, seed=seed, **({} if rate is None else {"rate": rate}))
        result = solve(instance, time_limit=None)
        return [step.split(" s  ")[1] for step in result.steps]

    free = [steps(seed) for seed in range(2)]
    clock = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: 100 * clock())
    assert [steps(seed) for seed in range(2)] == free


@pytest.mark.slow
def test_a_search_on_several_workers_ends_with_its_work():
    """Requests for which no time was left counted as negative work, and it never ended."""
    instance = family("chat-and-summaries", n=100, seed=0)
    params = SolveParams(work=1)
    found = solve(instance, workers=2, method="search", time_limit=60, params=params)
    assert str(found.status) == "search ended"


@pytest.mark.slow
def test_loading_kernels_takes_no_time_of_the_limit():
    """Half a minute of compilation counted against the limit of a first solve."""
    code = """
import time
import optsched
import optsched._internal.compiled
from numba.core import event

class Slowly(event.Listener):
    depth = 0

    def on_start(self, _):
        time.sleep(0 if self.depth else 0.2)
        self.depth += 1

    def on_end(self, _):
        self.depth -= 1

event.register("numba:compiler_lock", Slowly())
instance = optsched.family("uniform", n=60, seed=1)
began = time.perf_counter()
found = optsched.solve(instance, time_limit=2)
print(found.seconds < 4 < time.perf_counter() - began)
print("search" in "".join(found.steps))
"""
    assert warm(code).split() == ["True", "True"]


def test_an_explanation_needs_no_search_for_the_cheapest_starts(monkeypatch):
    """At 100,000 requests the search took ten seconds after the time limit."""
    result = solve(family("uniform", n=60, seed=1), time_limit=0.2)
    assert verify(result.price_certificate, result.schedule.instance) <= result.bound

    def refuse(*arguments):
        raise AssertionError("the cheapest starts are known")

    expected = result.explain().regrets
    monkeypatch.setattr(lagrangian, "cheapest_starts", refuse)
    assert (result.explain().regrets == expected).all()


def test_more_time_is_not_advised_where_it_changes_nothing(monkeypatch):
    """It had been: "(too large to be solved exactly); allow more time"."""
    impossible = Instance([5, 5], [4, 4], 10, deadlines=[4, 4])
    monkeypatch.setattr(exact, "_NONZEROS", 1)
    monkeypatch.setattr(exact, "EVENTS_FIRST", 1)
    with pytest.raises(OptschedError, match=r"too large .* put a price on lateness"):
        solve(impossible)
