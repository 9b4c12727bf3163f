"""Child processes that are sent work: fresh interpreters, and none outlives its caller."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # microseconds of each so many, of a container


def cores() -> int:
    """Return the cores that this process may use."""
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # none, or "max"
        quota, period = map(int, _QUOTA.read_text(encoding="ascii").split())
        count = min(count, max(1, quota // period))
    return count


class Child:
    """A fresh interpreter that calls `serve` with a connection to us, until it is killed."""

    # It never imports the user's script, as `multiprocessing` would.
    def __init__(self, serve: Callable[[int], NoReturn]) -> None:
        ours, theirs = socket.socketpair()
        code = f"import sys; sys.path[:] = {sys.path!r}; from {serve.__module__} import "
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{code}{serve.__name__} as serve; serve({theirs.fileno()})"],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # whatever it starts can be ended with it
            env=os.environ | dict.fromkeys(_THREADS, "1"),
        )
        theirs.close()
        self.connection = Connection(ours.detach())

    def ended(self, *, kill: bool) -> tuple[int, int]:
        """Wait for its end; return its wait status and the most kilobytes that it held."""
        if kill:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
        status = kilobytes = 0
        with contextlib.suppress(ChildProcessError):
            _, status, usage = os.wait4(self.process.pid, 0)
            kilobytes = usage.ru_maxrss
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.connection.close()
        return status, kilobytes


def listen(connection: Connection, take: Callable[[bytes], object]) -> None:
    """In a child: take messages in a thread, and end with the caller all that was started."""

    def listening() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                take(connection.recv_bytes())
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=listening, daemon=True).start()
