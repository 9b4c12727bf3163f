"""A rule of the user's own, asked in Python at every step of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.routing import ClusterState
from optsched.errors import PolicyError
from optsched.simulate.cluster.state import (
    DONE,
    NONE,
    REVEALED,
    STEP,
    WAITING,
    admit,
    advance,
    reveal,
    seen_loads,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.cluster.routing import PythonRouting
    from optsched.simulate.cluster.state import Requests, Settings, State


def run_steps_in_python(
    requests: Requests,
    state: State,
    settings: Settings,
    routing: PythonRouting,
    loads: IntArray,
    active: IntArray,
    waiting: IntArray,
    revealing: bool,
) -> int:
    """Do what `run_steps` does, for a rule in Python."""
    counters = state.counters
    for row in range(len(loads)):
        if counters[DONE] == (len(requests.sizes) if revealing else counters[REVEALED]):
            return row
        if revealing:
            reveal(requests, state, settings.reveal)
        count = int(counters[WAITING])
        if count:
            chosen = _ask(requests, state, settings, routing, count)
            stalled = not state.active.any() and (chosen < 0).all()
            all_seen = counters[REVEALED] == len(requests.sizes)
            if stalled and (not revealing or all_seen or count == settings.reveal):
                raise PolicyError(
                    f"{routing.name} admits nothing at step {counters[STEP]} although all "
                    "workers are empty, and sees nothing more until it does"
                )
            admit(requests, state, settings, chosen)
        waiting[row] = counters[WAITING]
        advance(requests, state, loads, active, row)
    return len(loads)


def _ask(
    requests: Requests,
    state: State,
    settings: Settings,
    routing: PythonRouting,
    count: int,
) -> IntArray:
    step = int(state.counters[STEP])
    indices = state.waiting[:count].copy()
    seen = ClusterState(
        step=step,
        loads=seen_loads(state, settings.lookahead),
        free=state.slots - state.active,
        active=state.active.copy(),
        memory=state.memory.copy(),
        waiting=indices,
        sizes=requests.sizes[indices],
        waited=step - state.revealed[indices],
    )
    chosen = np.asarray(routing.route(seen))
    workers = len(state.slots)
    if chosen.shape != (count,) or chosen.dtype.kind not in "iu":
        raise PolicyError(
            f"{routing.name} must return one whole number for each of {count} waiting requests"
        )
    chosen = chosen.astype(np.int64)
    if ((chosen < NONE) | (chosen >= workers)).any():
        wrong = int(chosen[(chosen < NONE) | (chosen >= workers)][0])
        raise PolicyError(f"{routing.name} chose worker {wrong}, but there are {workers}")
    taken = chosen >= 0
    given = np.bincount(chosen[taken], minlength=workers)
    tokens = np.bincount(
        chosen[taken], weights=requests.reserved[indices][taken], minlength=workers
    )
    over = (given > state.slots - state.active) | (tokens > state.memory)
    if over.any():
        worker = int(np.argmax(over))
        raise PolicyError(
            f"{routing.name} sends {given[worker]} requests to worker {worker} at step {step}, "
            "more than it has slots or memory for"
        )
    return chosen
