"""A back end that misbehaves in the way its model is called."""

import os
import signal
import subprocess
import threading
import time

import numpy as np

from optsched.errors import SolverError
from optsched.models.program import Stopped
from optsched.solvers.backends.base import Answer
from optsched.solvers.backends.driver import GRACE


def load():
    """There is nothing to import."""


def solve(model, options, start, reporter):
    """Report an answer worth 5 and a bound of 8, then follow the script."""
    reporter.report(5.0, 8.0, np.array([1.0, 0.0, 0.0]))
    if model.name == "deaf":
        time.sleep(60)
    if model.name == "struck":  # a program that Ctrl-C ends at once
        time.sleep(0.02)  # what was reported is heard, and the main thread waits again
        os.kill(os.getpid(), signal.SIGINT)
        raise SolverError("did not exit normally")
    if model.name == "writing":  # what it hands to a program that it starts then, deaf meanwhile
        time.sleep(2 * GRACE)
        subprocess.run(["sleep", "60"], check=False)
    if model.name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if model.name == "greedy":
        blocks = []
        while True:
            blocks.append(np.ones(2**22))
    if model.name == "aborting":
        np.ones(2**24).sum()
        os.abort()
    if model.name == "refusing":
        raise SolverError("not with me")
    if model.name == "raising":
        raise UnpicklableError
    if model.name == "threading":
        raise RuntimeError("can't start new thread")  # as Python says where its stack has no room
    if model.name == "leaving":
        os._exit(3)
    if model.name == "babbling":
        threading.Thread(target=_babble, args=(reporter,), daemon=True).start()
    if model.name == "patient":
        ends = time.perf_counter() + 0.2
        while time.perf_counter() < ends and not reporter.stopping:
            time.sleep(0.01)
        said = "stopped" if reporter.stopping else "not stopped"
        return Answer(Stopped.UNKNOWN, "Fake", said, np.array([0.0, 1.0, 1.0]), 7.0)
    if model.name == "lying":
        return Answer(Stopped.OPTIMAL, "Fake", "", np.array([1.0, 1.0, 1.0]), 12.0)
    if model.name == "contradicting":
        return Answer(Stopped.OPTIMAL, "Fake", "", np.array([1.0, 0.0, 0.0]), 3.0)
    if model.name == "denying":
        return Answer(Stopped.INFEASIBLE, "Fake", "", None, None)
    return Answer(Stopped.OPTIMAL, "Fake", "fine", np.array([0.0, 1.0, 1.0]), 7.0)


def _babble(reporter):
    for _ in range(200):
        time.sleep(0.005)
        reporter.report(5.0, 3.0, np.array([1.0, 0.0, 0.0]))


class UnpicklableError(Exception):
    """Cannot cross a process boundary."""

    def __reduce__(self):
        raise TypeError
