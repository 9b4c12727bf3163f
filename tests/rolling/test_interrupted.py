"""Ctrl-C in a rolling horizon: what was decided stays, and the fallback decides the rest."""

from __future__ import annotations

import signal

import numpy as np
import pytest

from optsched import RollingPolicy, family, run
from optsched.errors import SolverError

REQUESTS = family("uniform", n=60, seed=1, load=1.2, seconds_per_step=0.05)


def rolling(instance, *, intervals=None, seed=0, clock=None, on_progress=None, **settings):
    """Run a rolling horizon with these settings."""
    known = {"intervals": intervals, "seed": seed, "clock": clock, "on_progress": on_progress}
    return run(instance, RollingPolicy(**settings), **known)


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
