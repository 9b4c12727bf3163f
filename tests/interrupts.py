"""Ctrl-C in a while."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager


@contextmanager
def ctrl_c(after, handler=None):
    """Send SIGINT to this process in so many seconds, if its block is not left before."""

    def strike():
        begun.wait()
        if not left.wait(after):
            struck.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)

    begun, left, struck = threading.Event(), threading.Event(), []
    thread = threading.Thread(target=strike)
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, handler or before)
    thread.start()  # on a busy machine this may take longer than what is to be interrupted
    begun.set()
    try:
        yield struck
    finally:
        left.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
