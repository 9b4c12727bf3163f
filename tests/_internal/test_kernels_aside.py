"""Ctrl-C while machine code runs."""

import threading
import time

import numpy as np
import pytest
from interrupts import ctrl_c
from tabled import tabled

from optsched import family, run
from optsched._internal import aside
from optsched._internal.compiled import compiled

REQUESTS = family("uniform", n=20, seed=1, load=0.9, seconds_per_step=0.1)


@compiled
def turn_until_stopped(stop):
    turns = 0
    while stop[turns % len(stop)] == 0:
        turns += 1
    return turns


def test_ctrl_c_is_heard_while_a_kernel_runs():
    stop = np.zeros(3, dtype=np.int64)
    turn_until_stopped(stop + 1)
    given_up = threading.Timer(10, stop.fill, [1])
    given_up.start()
    try:
        with pytest.raises(KeyboardInterrupt), ctrl_c(0.2) as struck:
            aside.interruptible_kernel(turn_until_stopped, 10**6)(stop)
        assert time.perf_counter() - struck[0] < 1
    finally:
        given_up.cancel()
        stop[:] = 1


def test_a_kernel_returns_and_fails_as_if_it_were_called():
    stop = np.ones(3, dtype=np.int64)
    assert aside.interruptible_kernel(turn_until_stopped, 10**6)(stop) == 0
    with pytest.raises(TypeError, match="argument"):
        aside.interruptible_kernel(turn_until_stopped, 10**6)()


@pytest.mark.serving("vllm-*")
@tabled()
def test_kernels_of_every_kind_can_be_interrupted(policy, options, monkeypatch):
    run(REQUESTS, policy, **options)

    def struck(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(aside, "_LONG", 0)
    monkeypatch.setattr(aside.Aside, "result", struck)
    with pytest.raises(KeyboardInterrupt):
        run(REQUESTS, policy, **options)
