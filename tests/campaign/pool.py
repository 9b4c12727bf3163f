"""Processes that carry out batches of cases; one that dies is a finding, and is replaced."""

import contextlib
import functools
import multiprocessing
import os
import resource
import signal
import tempfile
import time
from multiprocessing.connection import wait
from pathlib import Path

from campaign import case
from campaign.case import Outcome

CASES = 10**9  # of a seed
#: Workers have what the main process has imported; nothing has threads yet.
_FORK = multiprocessing.get_context("fork")


class Worker:
    """A process for batches of any part, in a session of its own."""

    def __init__(self, parts, seed):
        self.pipe, theirs = _FORK.Pipe()
        self.process = _FORK.Process(target=_serve, args=(parts, seed, theirs, os.getpid()))
        self.process.start()
        theirs.close()
        self.task, self.alive = None, True

    def begin(self, task):
        """Begin a batch of a part: its name and number."""
        self.task = task
        with contextlib.suppress(OSError):  # it has died; `ended` tells
            self.pipe.send(task)

    def kill(self):
        """End the process with all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()


def ended(workers, seconds):
    """Yield the workers whose batches end within so many seconds, with what came of them."""
    busy = [worker for worker in workers if worker.task]
    wait([each for worker in busy for each in (worker.pipe, worker.process.sentinel)], seconds)
    for worker in busy:
        if worker.pipe.poll():
            with contextlib.suppress(EOFError, OSError):
                yield worker, worker.pipe.recv()
                continue
        if not worker.process.is_alive():
            worker.alive = False
            worker.kill()
            name, batch = worker.task
            code = worker.process.exitcode
            yield worker, Outcome(findings=[f"batch {batch} of {name}: exit code {code}"])


def _serve(parts, seed, pipe, parent):
    os.setsid()  # Ctrl-C is for the main process
    while os.getppid() == parent:
        if pipe.poll(5):
            name, batch = pipe.recv()
            pipe.send(run_batch(parts[name], seed, batch))


def run_batch(part, seed, batch):
    """Carry out the cases of a batch."""
    total, began, cpu = Outcome(), time.monotonic(), _cpu_seconds()
    with tempfile.TemporaryDirectory(prefix="campaign-", ignore_cleanup_errors=True) as folder:
        for number in range(batch * part.batch, (batch + 1) * part.batch):
            place = Path(folder, str(number))
            place.mkdir()
            outcome = part.case(seed * CASES + number, place)
            outcome.findings = [f"case {number}: {finding}" for finding in outcome.findings]
            total.add(outcome)
    total.wall, total.cpu = time.monotonic() - began, _cpu_seconds() - cpu
    return total


def _cpu_seconds():
    usage = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in usage)


def warm(parts, jobs):
    """Compile what the parts need, without time limits: the machine code is kept on disk."""
    batches = [functools.partial(run_batch, part, CASES, 0) for part in parts if part.warm is None]
    waiting, running = [*(task for part in parts for task in part.warm or ()), *batches], []
    while waiting or running:
        while waiting and len(running) < jobs:
            process = _FORK.Process(target=_warm, args=(waiting.pop(0),))
            process.start()
            running.append(process)
        wait([process.sentinel for process in running])
        running = [process for process in running if process.is_alive()]
    case.COMPILED = True


def _warm(task):
    os.setsid()
    case.PATIENCE = 1000
    task()
