"""The first stage: what milliseconds give, the policies and the bound at the first prices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optsched._internal.numbers import proven
from optsched.policies import BASIC, PriorityPolicy
from optsched.simulate import run
from optsched.solvers.bounds.bound import bound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.optimum.state import State
    from optsched.policies import Policy


def run_policies(state: State) -> None:
    """Find a first interval."""
    first = bound(state.instance, objective=state.objective)
    state.prices = first.certificate
    state.raise_bound(first)
    for policy in _policies(state):
        state.offer(run(state.instance, policy).schedule)
    found = f"{state.cost:,.10g} ({state.best.policy})" if state.best is not None else "none"
    state.note(f"policies: {found}; bound {proven(state.lowest, digits=10)} ({state.bound.method})")


def _policies(state: State) -> Iterator[Policy]:
    yield from BASIC.values()
    if state.objective == "weighted-latency":
        weights = state.weights
        yield PriorityPolicy("area-weighted", "", lambda i: i.areas / weights)
    if state.objective == "makespan":
        yield PriorityPolicy("largest", "", lambda i: -i.areas)
        yield PriorityPolicy("longest", "", lambda i: -i.outputs)
    if (due := state.instance.deadlines) is not None:
        yield PriorityPolicy("earliest-deadline", "", lambda _: due)
        yield PriorityPolicy("least-slack", "", lambda i: due - i.outputs)
