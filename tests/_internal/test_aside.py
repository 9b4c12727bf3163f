"""Calls in a thread of their own: results, errors and Ctrl-C come through."""

import os
import signal
import time

import pytest
from interrupts import ctrl_c

from optsched._internal.aside import Aside, interruptible


def test_results_and_errors_come_back():
    assert interruptible(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        interruptible(divmod, 7, 0)
    call = Aside(time.sleep, 0.3)
    assert not call.wait(0)
    assert call.wait()


def test_ctrl_c_just_before_the_end_is_heard():
    """A loop over calls that were shorter than a look at it never heard it."""

    def struck():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.04)

    with pytest.raises(KeyboardInterrupt):
        interruptible(struck)


def test_ctrl_c_is_heard_while_the_call_goes_on():
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt), ctrl_c(0.3, noted=True):
        interruptible(time.sleep, 6)
    assert time.perf_counter() - began < 3
