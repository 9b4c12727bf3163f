"""Ctrl-C in a while."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager


@contextmanager
def ctrl_c(after, handler=None, *, noted=False):
    """Send SIGINT to this process in so many seconds, if its block is not left before.

    The seconds begin where the block does, or where what it calls notes Ctrl-C: a collection of
    garbage just before takes longer than a tenth of a second, and a Ctrl-C then is Python's own.
    """

    def strike():
        begun.wait()
        while noted and signal.getsignal(signal.SIGINT) is usual and not left.wait(0.001):
            pass
        if not left.wait(after):
            struck.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)

    begun, left, struck = threading.Event(), threading.Event(), []
    thread = threading.Thread(target=strike)
    before = signal.getsignal(signal.SIGINT)
    usual = handler or before
    signal.signal(signal.SIGINT, usual)
    thread.start()  # on a busy machine this may take longer than what is to be interrupted
    begun.set()
    try:
        yield struck
    finally:
        left.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
