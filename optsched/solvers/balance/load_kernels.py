r"""Kernels that keep the loads of workers over a window of steps, and the largest of them.

A worker that is full cannot be changed: all full workers together are one floor per step. The three
largest loads of every step are kept, so that the largest without any two workers is known at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray

#: A memory limit that is none.
UNLIMITED = 2**40

#: In place of a worker or a request where there is none.
NONE = -1  # no row, no request


class Step(NamedTuple):
    """The workers with free slots, rows f = 0, ..., F - 1, at steps h = 0, ..., H."""

    cluster: int  # G
    worker: IntArray  # (F,)
    weight: IntArray  # (F,), slowness
    limit: IntArray  # (F,), weighted load that memory allows
    load: IntArray  # (F, H + 1), weighted, with everything admitted
    floor: IntArray  # (H + 1,), largest load of the full workers
    top: IntArray  # (3, H + 1), largest loads, descending
    rows: IntArray  # (3, H + 1), rows they belong to
    growth: IntArray  # (H + 1,), what a request weighs beyond its size; 0 if counts are fixed


@compiled
def open_step(
    alive: IntArray,
    free: IntArray,
    growth: IntArray,
    slowness: IntArray,
    memory: IntArray,
    filled: bool,
) -> Step:
    """Set up the rows; where every slot is filled, growth is part of their loads."""
    steps = alive.shape[1]
    worker = np.flatnonzero(free)
    load = np.empty((len(worker), steps), dtype=np.int64)
    floor = np.zeros(steps, dtype=np.int64)
    row = 0
    for g in range(len(free)):
        weight = slowness[g]
        if free[g]:
            count = free[g] if filled else 0
            for h in range(steps):
                load[row, h] = weight * (alive[g, h] + count * growth[h])
            row += 1
        else:
            for h in range(steps):
                floor[h] = max(floor[h], weight * alive[g, h])
    step = Step(
        len(free),
        worker,
        slowness[worker],
        slowness[worker] * memory[worker],
        load,
        floor,
        np.empty((3, steps), dtype=np.int64),
        np.empty((3, steps), dtype=np.int64),
        np.zeros(steps, dtype=np.int64) if filled else growth,
    )
    for h in range(steps):
        _rank(step, h)
    return step


@compiled
def _rank(step: Step, h: int) -> None:
    """Find the three largest loads of a step again."""
    top, rows = step.top, step.rows
    top[0, h], rows[0, h] = step.floor[h], NONE
    top[1, h] = top[2, h] = 0
    rows[1, h] = rows[2, h] = NONE
    for row in range(len(step.load)):
        if step.load[row, h] > top[2, h]:
            _insert(top, rows, h, row, step.load[row, h])


@compiled
def _insert(top: IntArray, rows: IntArray, h: int, row: int, load: int) -> None:
    """Put a load that exceeds the third largest in its place."""
    place = 2
    while place > 0 and top[place - 1, h] < load:
        top[place, h] = top[place - 1, h]
        rows[place, h] = rows[place - 1, h]
        place -= 1
    top[place, h], rows[place, h] = load, row


@compiled
def add_requests(step: Step, row: int, tokens: int, count: int) -> None:
    """Add requests of so many tokens to a worker, or take them away."""
    for h in range(step.load.shape[1]):
        change_load(step, row, h, step.weight[row] * (tokens + count * step.growth[h]))


@compiled
def change_load(step: Step, row: int, h: int, change: int) -> None:
    """Change a worker's load at one step, and keep the ranks."""
    top, rows = step.top, step.rows
    step.load[row, h] += change
    load = step.load[row, h]
    if row == rows[0, h] or row == rows[1, h] or row == rows[2, h]:
        if load < top[2, h]:
            _rank(step, h)
            return
        place = 0
        while rows[place, h] != row:
            place += 1
        for below in range(place, 2):
            top[below, h], rows[below, h] = top[below + 1, h], rows[below + 1, h]
        top[2, h] = -1
        _insert(top, rows, h, row, load)
    elif load > top[2, h]:
        _insert(top, rows, h, row, load)


@compiled
def largest_without(step: Step, row: int, other: int, h: int) -> int:
    """Return the largest load of a step among all workers but two."""
    for place in range(2):
        if step.rows[place, h] != row and step.rows[place, h] != other:
            return int(step.top[place, h])
    return int(step.top[2, h])


@compiled
def fits(step: Step, row: int, tokens: int, count: int) -> bool:
    """Tell whether memory allows the load that a worker would have."""
    for h in range(step.load.shape[1]):
        added = step.weight[row] * (tokens + count * step.growth[h])
        if step.load[row, h] + added > step.limit[row]:
            return False
    return True
