"""How everything here is timed: CPU time, median of several runs with their range, warmed up.

CPU time hardly depends on other work on the machine, wall time does. It counts all threads and the
processes that were started, those of solvers for instance.
"""

from __future__ import annotations

import gc
import os
import resource
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = TypeVar("Answer")

#: Seconds that a single measurement should take at least; shorter calls are repeated in a loop.
LEAST = 0.02


@dataclass(frozen=True)
class Timing:
    """Seconds per call, one entry per run."""

    cpu: tuple[float, ...]
    wall: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle of the CPU times."""
        return statistics.median(self.cpu)


@dataclass(frozen=True)
class Row:
    """Ours against what a user would write otherwise.

    Attributes
    ----------
    task, size
        What is done, and how large it is.
    alternative
        What does it otherwise.
    ours, theirs
        What both take.
    agreement
        What was checked: in which sense both give the same.
    stopped
        Whether the alternative hit its time limit; its time, and the ratio, are then lower bounds.
    """

    task: str
    size: str
    alternative: str
    ours: Timing
    theirs: Timing
    agreement: str
    stopped: bool = False

    @property
    def ratio(self) -> float:
        """How many times as long the alternative takes, in CPU time."""
        return self.theirs.median / self.ours.median

    @property
    def ratio_range(self) -> tuple[float, float]:
        """The ratio between the fastest and slowest runs of both."""
        ours, theirs = self.ours.cpu, self.theirs.cpu
        return min(theirs) / max(ours), max(theirs) / min(ours)


def cpu_seconds() -> float:
    """CPU time of this process and of all it started."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = time.process_time() + children.ru_utime + children.ru_stime
    return used + sum(_cpu_of_process(child) for child in _children_of(os.getpid()))


def _children_of(process: int) -> list[int]:
    """Processes that are still there."""
    found: list[int] = []
    for listing in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, listing.read_text().split())
    return found


def _cpu_of_process(process: int) -> float:
    """CPU time of a running process and of those it has waited for."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    ticks = sum(map(int, fields[11:15]))  # user and system, its own and of ended children
    running = sum(_cpu_of_process(child) for child in _children_of(process))
    return ticks / os.sysconf("SC_CLK_TCK") + running


def measure(
    call: Callable[[], Answer], repeats: int = 5, *, warm_up: bool = True
) -> tuple[Timing, Answer]:
    """Time a call.

    Parameters
    ----------
    call
        What to time.
    repeats
        Number of runs.
    warm_up
        Call once before, which loads kernels and imports.

    Returns
    -------
    Timing
        Seconds per call.
    Answer
        What the last call returned.
    """
    if warm_up:
        call()
    loops = 1
    cpu: list[float] = []
    wall: list[float] = []
    while len(cpu) < repeats:
        gc.collect()
        wall_began, cpu_began = time.perf_counter(), cpu_seconds()
        for _ in range(loops):
            answer = call()
        cpu_took, wall_took = cpu_seconds() - cpu_began, time.perf_counter() - wall_began
        if not cpu and loops == 1 and wall_took < LEAST / 2:
            loops = round(LEAST / wall_took)  # too short to be timed alone: again
            continue
        cpu.append(cpu_took / loops)
        wall.append(wall_took / loops)
    return Timing(tuple(cpu), tuple(wall)), answer


def seconds(call: Callable[[], object], repeats: int = 5) -> float:
    """Median CPU time of a call."""
    return measure(call, repeats)[0].median


def fastest(
    call: Callable[[], object],
    repeats: int = 3,
    clock: Callable[[], float] = time.process_time,
) -> float:
    """Shortest time of several runs, without a warm-up."""
    times = []
    for _ in range(repeats):
        began = clock()
        call()
        times.append(clock() - began)
    return min(times)
