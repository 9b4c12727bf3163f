"""Child processes: whatever happens to them, nothing that was found is lost."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import fake_back_end
import numpy as np
import pytest
from interrupts import ctrl_c
from tiny_models import knapsack, market_split

from optsched import HindsightProgram, SolveParams, family, solve
from optsched.errors import SolverError
from optsched.models.program import Stopped
from optsched.solvers import Options, prepare
from optsched.solvers.backends import driver as child
from optsched.solvers.backends.driver import GRACE, Job, run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _warm():
    """Let the first child's imports not count."""
    prepare()
    assert solve(knapsack(), params=SolveParams(in_child=True)).objective == 7


def run_fake(behaviour, *, in_child=True, on_progress=None, start=None, **options):
    model = dataclasses.replace(knapsack(), name=behaviour)
    job = Job(fake_back_end.__name__, "Fake", model, Options(**options), start)
    return run(job, model, on_progress, in_child=in_child)


def assert_nothing_is_lost(solution):
    assert solution.values.tolist() == [1, 0, 0]
    assert solution.objective == 5
    assert solution.bound == 8
    assert not solution.proven_optimal


@pytest.mark.parametrize("in_child", [False, True])
def test_a_good_back_end(in_child):
    solution = run_fake("good", in_child=in_child)
    assert solution.status is Stopped.OPTIMAL
    assert solution.proven_optimal
    assert solution.raw_status == "fine"


def pids_of(monkeypatch):
    """Return a list that the process numbers of children are added to."""
    pids, begin = [], child.ChildChannel.__init__

    def note(self, *arguments):
        begin(self, *arguments)
        pids.append(self.pid)

    monkeypatch.setattr(child.ChildChannel, "__init__", note)
    return pids


def test_a_child_that_answered_does_the_next_job(monkeypatch):
    pids = pids_of(monkeypatch)
    assert run_fake("good").objective == run_fake("good").objective == 7
    assert pids[0] == pids[1]
    run_fake("good", memory_limit=2**30)
    assert run_fake("deaf", time_limit=0.1).status is Stopped.TIME_LIMIT
    run_fake("good")
    assert pids[2] != pids[1]  # what others held before would count against its limit
    assert len({pids[2], pids[3], pids[4]}) == 3


def none_idle():
    """End the children that wait, so that the next job has to start one."""
    for idle in child._idle:  # noqa: SLF001
        idle.ended(kill=True)
    child._idle.clear()  # noqa: SLF001


def test_a_child_that_starts_takes_none_of_the_time(monkeypatch):
    """On a busy machine a solver would come to an end before it has begun."""

    def started(**options):
        none_idle()
        began = time.perf_counter()
        found = run_fake("good", **options)
        return found, time.perf_counter() - began

    _, whole = started()  # nearly all of it to start
    monkeypatch.setattr(child, "GRACE", 0.0)
    found, seconds = started(time_limit=whole / 3)
    assert found.status is Stopped.OPTIMAL
    assert found.seconds < seconds / 2


def test_a_child_that_never_starts_is_ended(monkeypatch):
    none_idle()
    pids = pids_of(monkeypatch)
    with monkeypatch.context() as hurried:
        hurried.setattr(child, "GRACE", 0.0)
        hurried.setattr(child, "_STARTS", 0.0)
        assert run_fake("good", time_limit=1e-3).status is Stopped.TIME_LIMIT
    assert run_fake("good").objective == 7
    assert pids[0] != pids[1]


def test_a_child_that_is_stopped_while_it_starts_does_the_next_job(monkeypatch):
    none_idle()
    pids, asked = pids_of(monkeypatch), threading.Event()
    asked.set()
    job = Job(fake_back_end.__name__, "Fake", knapsack(), Options())
    with monkeypatch.context() as hurried:
        hurried.setattr(child, "GRACE", 0.0)
        found = run(job, knapsack(), stop=asked, in_child=True)
    assert found.status is Stopped.INTERRUPTED
    assert run_fake("good").objective == 7  # and not the answer that nobody waits for
    assert pids[0] == pids[1]


def test_a_request_to_stop_does_not_stop_the_next_job(monkeypatch):
    pids, asked = pids_of(monkeypatch), threading.Event()
    asked.set()
    model = dataclasses.replace(knapsack(), name="patient")
    job = Job(fake_back_end.__name__, "Fake", model, Options(time_limit=5))
    assert run(job, model, stop=asked, in_child=True).raw_status == "stopped"
    asked.clear()
    began = time.perf_counter()
    done = run(dataclasses.replace(job, options=Options(time_limit=0.5)), model, in_child=True)
    assert done.raw_status == "not stopped"
    assert time.perf_counter() - began >= 0.2
    assert pids[0] == pids[1]


def test_late_news_of_a_job_are_not_those_of_the_next():
    """A false bound of another question would be believed."""
    assert run_fake("babbling").objective == 7
    for _ in range(20):
        solution = run_fake("good")
        assert (solution.objective, solution.bound) == (7, 7)


def test_a_job_that_cannot_be_read_there_is_an_error_here():
    job = Job("nowhere", "Fake", knapsack(), Options())
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        run(job, knapsack(), in_child=True)
    job = Job(fake_back_end.__name__, "Fake", lambda: 0, Options())
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        run(job, knapsack(), in_child=True)


def test_a_deaf_solver_is_ended_at_the_time_limit():
    solution = run_fake("deaf", time_limit=0.2)
    assert solution.status is Stopped.TIME_LIMIT
    assert 0.2 <= solution.seconds < 0.2 + GRACE + 1
    assert "did not stop when asked" in solution.raw_status
    assert_nothing_is_lost(solution)


def test_a_killed_child_is_a_reported_event():
    solution = run_fake("killed")
    assert solution.status is Stopped.ERROR
    assert "signal 9 (SIGKILL)" in solution.raw_status
    assert_nothing_is_lost(solution)


def test_a_child_killed_from_outside_in_the_middle_of_a_solve(monkeypatch):
    lines = []
    begin = child.ChildChannel.__init__

    def note(self, *arguments):
        lines.append(self)
        begin(self, *arguments)

    monkeypatch.setattr(child.ChildChannel, "__init__", note)
    pids = []

    def kill(progress):
        if progress.values is not None and not pids:
            pids.append(lines[0].pid)
            os.kill(pids[0], signal.SIGKILL)

    for solver in ("highs", "cp-sat"):
        lines.clear()
        pids.clear()
        solution = solve(
            market_split(), method=solver, params=SolveParams(in_child=True, on_progress=kill)
        )
        assert solution.status is Stopped.ERROR
        assert "SIGKILL" in solution.raw_status
        assert solution.has_answer


def test_running_out_of_memory_is_reported():
    solution = run_fake("greedy", memory_limit=300 * 2**20)
    assert solution.status is Stopped.MEMORY_LIMIT
    assert_nothing_is_lost(solution)


def test_no_memory_for_a_thread_is_no_traceback():
    """Of 16 solves with little memory two raised RuntimeError."""
    solution = run_fake("threading")
    assert solution.status is Stopped.MEMORY_LIMIT
    assert_nothing_is_lost(solution)


def test_a_solver_that_aborts_near_its_limit_ran_out_of_memory():
    solution = run_fake("aborting", memory_limit=150 * 2**20)
    assert solution.status is Stopped.MEMORY_LIMIT
    assert "SIGABRT" in solution.raw_status
    assert run_fake("aborting").status is Stopped.ERROR


def test_other_ends_are_reported_or_raised():
    solution = run_fake("leaving")
    assert solution.status is Stopped.ERROR
    assert "exit code 3" in solution.raw_status
    with pytest.raises(SolverError, match="not with me"):
        run_fake("refusing")
    with pytest.raises(SolverError, match="Unpicklable"):
        run_fake("raising")


@pytest.mark.parametrize("in_child", [False, True])
def test_false_claims_are_found_out(in_child):
    lying = run_fake("lying", in_child=in_child)
    assert lying.status is Stopped.ERROR
    assert "its answer is infeasible: weight is 9, but must be at most 5" in lying.raw_status
    assert lying.objective == 5  # what it had reported before was right
    contradicting = run_fake("contradicting", in_child=in_child)
    assert contradicting.status is Stopped.ERROR
    assert contradicting.bound is None
    assert "its bound 3 is beyond the answer 5" in contradicting.raw_status
    denying = run_fake("denying", in_child=in_child)
    assert denying.status is Stopped.ERROR
    assert "one is known" in denying.raw_status


def test_a_time_limit_of_a_millisecond():
    for solver in ("highs", "cp-sat"):
        solution = solve(
            market_split(), method=solver, time_limit=1e-3, params=SolveParams(in_child=True)
        )
        assert solution.status is Stopped.TIME_LIMIT
        assert solution.seconds < 1e-3 + GRACE + 1


def test_a_start_survives_a_child_that_finds_nothing():
    start = np.array([0.0, 0.0, 1.0])
    model = dataclasses.replace(knapsack(), name="deaf")
    job = Job("no_such_back_end", "Fake", model, Options(time_limit=5), start)
    with pytest.raises(ModuleNotFoundError):
        run(job, model, in_child=True)
    solution = run_fake("deaf", start=np.array([0.0, 1.0, 1.0]), time_limit=0.1)
    assert solution.objective == 7
    assert solution.bound == 8


@pytest.mark.slow("highs-False", "cp-sat-False")
@pytest.mark.parametrize("in_child", [False, True])
@pytest.mark.parametrize("solver", ["highs", "cp-sat"])
def test_ctrl_c_returns_what_is_known(solver, in_child):
    params = SolveParams(in_child=in_child)
    solve(knapsack(), method=solver, params=params)  # all that is imported is there from here on
    with ctrl_c(1.0, noted=True):
        solution = solve(market_split(), method=solver, params=params)
    assert solution.status is Stopped.INTERRUPTED
    assert solution.has_answer
    assert solution.seconds < 60  # 10.3 on a machine with eight processes to two cores


@pytest.mark.slow
def test_ctrl_c_is_heard_while_highs_presolves():
    """It was not for 15 seconds: HiGHS hears nothing meanwhile."""
    program = HindsightProgram(family("uniform", n=14, seed=1))
    solve(knapsack(), params=SolveParams(in_child=True))  # which is started from here on
    with ctrl_c(1.0, noted=True):
        solution = solve(program, method="highs")
    assert solution.status is Stopped.INTERRUPTED
    assert solution.seconds < 10


def test_ctrl_c_ends_a_deaf_child():
    run_fake("good")  # whatever has to be imported is there
    with ctrl_c(0.3, noted=True):
        solution = run_fake("deaf")
    assert solution.status is Stopped.INTERRUPTED
    assert solution.seconds < 0.3 + GRACE + 1
    assert_nothing_is_lost(solution)


def test_a_program_that_is_started_after_ctrl_c_is_ended_too():
    """CBC went on for as long as it took where its model was still being written."""
    before = set(threading.enumerate())
    with ctrl_c(0.1, noted=True):
        solution = run_fake("writing", in_child=False)
    assert solution.status is Stopped.INTERRUPTED
    (left,) = (each for each in set(threading.enumerate()) - before if "(_run)" in each.name)
    left.join(20)
    assert not left.is_alive()


def test_a_program_that_ctrl_c_ends_before_us_was_interrupted():
    """It was said to have failed, with a traceback."""
    solution = run_fake("struck", in_child=False)
    assert solution.status is Stopped.INTERRUPTED
    assert_nothing_is_lost(solution)


def test_children_end_with_the_process_that_started_them(tmp_path):
    script = textwrap.dedent(
        f"""
        import os, sys, threading, time
        sys.path[:0] = {sys.path!r}
        from optsched import HindsightProgram, SolveParams, family, solve
        from tiny_models import market_split

        # A script without a main guard must not run twice.
        print("script", flush=True)
        from optsched.solvers.backends import driver as child

        made = child.ChildChannel.__init__
        def note(self, *arguments):
            made(self, *arguments)
            print(self.pid, flush=True)
        child.ChildChannel.__init__ = note
        threading.Timer(1.0, os._exit, (0,)).start()
        solve(market_split(), params=SolveParams(in_child=True))
        """
    )
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=True
    )
    lines = done.stdout.split("\n")
    assert lines[0] == "script"
    assert done.stdout.count("script") == 1
    for pid in map(int, lines[1].split()):
        for _ in range(50):
            if not alive(pid):
                break
            time.sleep(0.1)
        assert not alive(pid)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"


def test_an_idle_child_that_is_killed_is_replaced(monkeypatch):
    pids = pids_of(monkeypatch)
    assert solve(knapsack(), params=SolveParams(in_child=True)).objective == 7
    os.kill(pids[0], signal.SIGKILL)
    child._idle[-1].process.wait()  # noqa: SLF001
    for _ in range(2):
        assert solve(knapsack(), params=SolveParams(in_child=True)).objective == 7
    assert pids[0] != pids[1] == pids[2]


def test_many_children_leave_nothing_behind():
    run_fake("good")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        run_fake("good")
    threads = threading.active_count()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert threads < 20


def test_children_of_several_threads_do_not_mix():
    found = {}

    def solve(name):
        solution = run_fake("good" if name % 2 else "killed")
        found[name] = solution.objective

    threads = [threading.Thread(target=solve, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {name: 7 if name % 2 else 5 for name in range(8)}


SIGNALS = """
import signal, threading
from optsched.solvers.backends.driver import ThreadChannel

class Job:
    def solve(self, *_):
        threading.Event().wait()

channel = ThreadChannel(Job(), 0.0)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 1e-4, 1.03e-4)
print({channel.receive(1e-4) for _ in range(6000)})
signal.setitimer(signal.ITIMER_REAL, 0)  # the end of Python is no handler
"""


@pytest.mark.slow
def test_a_signal_as_time_is_up_does_not_block_for_ever():
    """Ctrl-C in that moment was heard when CBC had ended by itself: in up to a minute."""
    code = [sys.executable, "-c", SIGNALS]
    run = subprocess.run(code, capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "{None}"
