"""Nothing computes any more once there is an answer, however it came about."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import nullcontext

import pytest
from interrupts import ctrl_c

from optsched import SolveParams, bound, family, solve

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


@pytest.mark.slow
def test_a_bound_that_is_given_up_is_not_computed_to_its_end():
    """It went on for 12 seconds at 100,000 requests."""
    long = family("chat-and-summaries", n=100_000, seed=1)
    bound(family("uniform", n=60, seed=1), "lagrangian")
    with pytest.raises(KeyboardInterrupt), ctrl_c(AFTER):
        bound(long, "lagrangian")
    assert computing() < 0.03
