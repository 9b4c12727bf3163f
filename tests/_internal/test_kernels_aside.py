"""Ctrl-C while machine code runs."""

import sys
import threading
import time

import numpy as np
import pytest
from installed import SERVING
from interrupts import ctrl_c
from numba import types
from numba.extending import is_jitted
from tabled import tabled, tables

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
        with pytest.raises(KeyboardInterrupt), ctrl_c(0.2, noted=True) as struck:
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


def _from_python():
    """Return what kernels that Python has called so far return, by the names of the kernels."""
    modules = [module for name, module in sys.modules.items() if name.startswith("optsched")]
    kernels = {each for module in modules for each in vars(module).values() if is_jitted(each)}
    return {
        each.py_func.__name__: [signature.return_type for signature in each.nopython_signatures]
        for each in kernels
    }


def _parts(kind):
    """Return a type with all that it consists of."""
    inner = list(kind) if isinstance(kind, types.BaseTuple) else []
    return [kind, *(part for each in inner for part in _parts(each))]


def test_no_kernel_makes_a_named_tuple_for_python():
    """Numba makes it by calls into Python: Ctrl-C before that was a segmentation fault."""
    _, *rows = tables(__file__)["test_kernels_of_every_kind_can_be_interrupted"]
    for policy, options in rows:
        if SERVING or policy != "vllm":
            run(REQUESTS, policy, **options)
    returned = _from_python()
    assert all(returned[name] for name in ("run_planned", "run_by_chance", "run_to_threshold"))
    for name, kinds in returned.items():
        made = [part for kind in kinds for part in _parts(kind)]
        assert not any(isinstance(part, types.BaseNamedTuple) for part in made), name
