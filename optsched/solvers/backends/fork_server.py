"""The process that child processes are forked from, so that they begin with all imports done.

It is no fork of the user's process, which may have threads, but a fresh interpreter that imports
a back end once and never solves anything itself; and it never imports the user's script, as
`multiprocessing` would. Per job it gets two file descriptors: the job's connection, and a pipe on
which it writes the child's number and, when the child has ended, how.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import socket
from typing import NoReturn

from optsched.solvers.backends.child import ENDED, NAME, serve


def main(control_fd: int) -> NoReturn:
    """Serve jobs until the user's process closes the control socket."""
    control = socket.socket(fileno=control_fd)
    wakeup, rouse = os.pipe()
    for fd in (wakeup, rouse):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the user's process decides what Ctrl-C means
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(rouse, warn_on_full_buffer=False)
    children: dict[int, int] = {}  # process number -> where to write how it ended
    import optsched.models.events  # what jobs consist of, which children would import each
    import optsched.models.linear.model  # noqa: F401

    while True:
        ready, _, _ = select.select([control_fd, wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 4096)
            _reap(children)
        if control_fd in ready:
            message, fds, _, _ = socket.recv_fds(control, NAME, 2)
            if not message:
                break
            _begin(message.decode().strip(), fds, children, [control_fd, wakeup, rouse])
    for pid in children:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    os._exit(0)


def _begin(module: str, fds: list[int], children: dict[int, int], own: list[int]) -> None:
    """Import a back end and fork a child that does one job with it."""
    connection, status = fds
    with contextlib.suppress(Exception):  # the child will meet the same error and report it
        importlib.import_module(module).load()
    pid = os.fork()
    if pid:
        os.close(connection)
        children[pid] = status
        _tell(status, pid, 0, 0)
        return
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()  # whatever it starts can be ended with it
        for fd in (*own, status, *children.values()):
            os.close(fd)
        serve(connection)
        code = 0
    finally:
        os._exit(code)


def _reap(children: dict[int, int]) -> None:
    for pid in list(children):
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            fd = children.pop(pid)
            _tell(fd, pid, status, usage.ru_maxrss)
            os.close(fd)


def _tell(fd: int, pid: int, status: int, kilobytes: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # no reader is left
        os.write(fd, ENDED.pack(pid, status, kilobytes))
