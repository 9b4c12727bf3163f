"""Nothing computes any more once there is an answer, however it came about."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from interrupts import ctrl_c
from tiny_models import market_split

from optsched import SolveParams, bound, family, solve
from optsched._internal.aside import heard, untimed
from optsched.bounds import lagrangian

INSTANCE = family("uniform", n=60, seed=1)
AFTER = 0.4  # seconds


class Struck(Exception):  # noqa: N818 - what a handler of SIGTERM may raise, for example
    """Neither Ctrl-C nor an error of ours."""


def strike(*_):
    raise Struck


@pytest.fixture(scope="module", autouse=True)
def _loaded():
    """Load all kernels: Ctrl-C waits until one is compiled, on a busy machine for long."""
    for workers in (None, 3):
        solve(INSTANCE, method="search", time_limit=1, workers=workers)
        solve(family("uniform", n=6, seed=1), workers=workers)


def computing():
    """Return the least CPU time of 0.3 seconds in the three in which nobody waits any more."""
    spent = []
    for _ in range(10):  # on a busy machine a thread needs a while to end
        began = time.process_time()
        time.sleep(0.3)
        spent.append(time.process_time() - began)
        if spent[-1] < 0.01:
            break
    return min(spent)


@pytest.mark.slow(
    "optimal-optimal-None", "ctrl-c is ignored-time limit-None", "ctrl-c is ignored-time limit-3"
)
@pytest.mark.parametrize("workers", [None, 3])
@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("optimal", "optimal"),
        ("ctrl-c is ignored", "time limit"),
        ("token", "interrupted"),
        ("ctrl-c", "interrupted"),
        ("handler", Struck),
        ("callback", Struck),
    ],
)
def test_no_thread_computes_after_the_end(end, status, workers):
    stop, began = threading.Event(), time.perf_counter()
    params = {"threads": 3, "stop": stop}
    options = {"method": "search", "time_limit": 2 * AFTER if status == "time limit" else 30}
    options |= {} if workers is None else {"workers": workers}
    instance, signalled = INSTANCE, nullcontext()
    if end == "optimal":
        instance, options["method"] = family("uniform", n=6, seed=1), "auto"
    elif end == "token":
        threading.Timer(AFTER, stop.set).start()
    elif end == "callback":
        params["on_progress"] = lambda _: time.perf_counter() - began < AFTER or strike()
    else:
        handlers = {"ctrl-c": signal.default_int_handler, "handler": strike}
        signalled = ctrl_c(AFTER, handlers.get(end, signal.SIG_IGN))
    options |= {"params": SolveParams(**params)}
    with pytest.raises(Struck) if status is Struck else nullcontext(), signalled:
        assert str(solve(instance, **options).status) == status
    assert time.perf_counter() - began < 15
    assert computing() < 0.03  # a machine that is busy gives little to a thread that goes on


def children():
    """Return the numbers of processes that this one has started and that are there."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            found += [stat.parent.name] * (int(parent) == os.getpid() and state != "Z")
    return found


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["instance", "several workers", "program", "in a child"])
def test_ctrl_c_while_a_thread_starts_ends_it_too(monkeypatch, what, when):
    """It escaped, and the thread worked on."""
    start, threads, struck, before = threading.Thread.start, [], [], set(children())

    def strike(thread):
        if not struck and threading.current_thread() is threading.main_thread():
            struck.append(os.kill(os.getpid(), signal.SIGINT))
        threads.append(thread)

    def struck_start(thread):
        if when == "before":
            strike(thread)
        start(thread)
        strike(thread)

    monkeypatch.setattr(threading.Thread, "start", struck_start)
    program = market_split()
    if what == "program":
        found = solve(program, time_limit=30)
    elif what == "in a child":
        found = solve(program, time_limit=30, params=SolveParams(in_child=True))
    else:
        workers = 3 if what == "several workers" else None
        found = solve(INSTANCE, method="search", time_limit=30, workers=workers)
    assert (struck, str(found.status)) == ([None], "interrupted")
    for thread in threads:
        thread.join(1)
    assert not any(thread.is_alive() for thread in threads)
    assert what != "in a child" or set(children()) <= before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_strikes_as_ever():
    with heard() as struck:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        assert struck == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt), ctrl_c(0.01):
            time.sleep(5)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_leaves_no_module_half_imported():
    """After one in the middle of Pyomo every later call failed."""
    steps = []

    def load():
        with untimed():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            steps.append("imported")

    with pytest.raises(KeyboardInterrupt):
        load()
    assert steps == ["imported"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_that_is_ignored_or_handled_by_the_caller_stays_so():
    for handler in (signal.SIG_IGN, strike):
        before = signal.signal(signal.SIGINT, handler)
        try:
            with heard() as struck:
                assert signal.getsignal(signal.SIGINT) is handler
            assert struck == []
        finally:
            signal.signal(signal.SIGINT, before)


def test_a_bound_that_is_given_up_is_not_computed_to_its_end(monkeypatch):
    """It went on for 12 seconds at 100,000 requests."""
    kernel, calls = lagrangian._cheapest_starts, []  # noqa: SLF001 - each is one piece of the work

    def struck(*arguments):
        calls.append(threading.current_thread())
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)  # the main thread looks ten times a second
        kernel(*arguments)

    monkeypatch.setattr(lagrangian, "_cheapest_starts", struck)
    instance = family("chat-and-summaries", n=30_000, seed=1)
    with pytest.raises(KeyboardInterrupt):
        bound(instance, "lagrangian")
    calls[0].join(20)
    assert len(calls) == 3
    bound(instance, "lagrangian")
    assert len(calls) > 6
