"""The cluster step by step, compiled: reveal, route, admit, wait for the slowest, free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched._internal.compiled import compiled
from optsched.simulate.cluster.routing import route
from optsched.simulate.cluster.state import (
    DONE,
    QUEUED,
    REVEALED,
    WAITING,
    admit,
    advance,
    reveal,
)

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray
    from optsched.simulate.cluster.state import Requests, Settings, State


@compiled
def run_steps(
    requests: Requests,
    state: State,
    settings: Settings,
    loads: IntArray,
    active: IntArray,
    waiting: IntArray,
    steps: int,
    revealing: bool,
) -> int:
    """Run so many steps, or until all requests are done; give the number of steps that ran."""
    counters = state.counters
    for row in range(steps):
        if counters[DONE] == (len(requests.sizes) if revealing else counters[REVEALED]):
            return row
        if revealing:
            reveal(requests, state, settings.reveal)
        if counters[WAITING] > 0 or counters[QUEUED] > 0:
            admit(requests, state, settings, route(requests, state, settings))
        waiting[row] = counters[WAITING] + counters[QUEUED]
        advance(requests, state, loads, active, row)
    return steps
