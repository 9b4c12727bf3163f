"""Which stages an instance goes through, in which order, and what ends them."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from optsched._internal.numbers import proven
from optsched.instance import Instance
from optsched.optimum.stages.exact import branch_and_bound, prove_small, solve_program
from optsched.optimum.stages.improve import (
    delay_requests,
    large_requests,
    price_configurations,
    raise_prices,
    search_schedules,
)
from optsched.policies import BASIC, PriorityPolicy
from optsched.simulate import run
from optsched.solvers.bounds.ascent import improve_prices
from optsched.solvers.bounds.bound import bound
from optsched.solvers.bounds.configurations import configuration_bound
from optsched.solvers.bounds.lagrangian import weights_of
from optsched.solvers.exact.search import solve_exact
from optsched.solvers.search.delays import delay_large
from optsched.solvers.search.search import search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched.models.objectives import ScheduleObjective
    from optsched.optimum.state import State
    from optsched.policies import Policy

_LITTLE = 1e3  # work


class Stage(NamedTuple):
    """Something that improves what is known, and when it is worth its time."""

    suits: Callable[[State], bool]
    work: Callable[[State], None]


def go_through(state: State) -> None:
    """Go through the stages until the optimum is proven, the token is set or Ctrl-C comes."""
    try:
        state.began += load_kernels(state)
        for stage in STAGES:
            if state.finished:
                break
            if stage.suits(state):
                stage.work(state)
    except KeyboardInterrupt:  # the one place where it becomes the token
        state.stop.set()
        with suppress(KeyboardInterrupt):
            if state.best is None:
                run_policies(state)


def load_kernels(state: State) -> float:
    """Load what the stages of such an instance call, and return the seconds that it took."""
    began = time.perf_counter()
    small = len(state.instance) <= state.tuning.exact and state.objective == "total-latency"
    _load(state.objective, bool(state.instance.arrivals.any()), state.plain, state.plain and small)
    return time.perf_counter() - began


@cache
def _load(objective: ScheduleObjective, arrivals: bool, plain: bool, small: bool) -> None:
    """Run every stage on four requests whose first bound is not the optimum."""
    steps = [0, 1, 1, 2] if arrivals else None
    tiny = Instance([4] * 4, [1, 1, 6, 6], memory=13, arrivals=steps)
    prices = bound(tiny, objective=objective).certificate
    schedules = [run(tiny, policy).schedule for policy in BASIC.values()]
    if not plain or prices is None:
        return
    weights = weights_of(tiny, objective)
    improve_prices(schedules[0], prices, work=_LITTLE)
    if arrivals:
        delay_large(tiny, weights, prices, work=_LITTLE)
    search(schedules[0], weights, work=_LITTLE)
    if small:
        sizes = configuration_bound(tiny, phases=1, iterations=1).certificate
        solve_exact(tiny, upper=schedules[0], certificate=sizes, node_limit=10)


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


def _exact_is_quick(state: State) -> bool:
    return len(state.instance) <= state.tuning.exact


def _plain(state: State, *methods: str) -> bool:
    return state.plain and state.method in methods


def _small(state: State) -> bool:
    latency = state.objective == "total-latency"
    return latency and _exact_is_quick(state) and _plain(state, "auto", "exact")


def _first_search(state: State) -> None:
    search_schedules(state, state.params.seed, share=1.0 if state.method == "search" else 0.1)


STAGES = (
    Stage(lambda _: True, run_policies),
    Stage(_small, prove_small),
    Stage(lambda state: _plain(state, "auto", "search", "exact"), raise_prices),
    Stage(lambda state: _plain(state, "auto", "search", "exact"), delay_requests),
    Stage(lambda state: _plain(state, "auto", "search", "exact"), _first_search),
    Stage(
        lambda state: _plain(state, "exact") or (_plain(state, "auto") and large_requests(state)),
        lambda state: price_configurations(state, state.params.seed + 2),
    ),
    # Where sizes gained on prices, a time-indexed program would not get as far.
    Stage(
        lambda state: (
            state.sizes is not None and (state.method == "exact" or _exact_is_quick(state))
        ),
        branch_and_bound,
    ),
    Stage(
        lambda state: state.sizes is None and state.method in ("auto", "highs", "cp-sat"),
        lambda state: solve_program(state, state.method),
    ),
    Stage(
        lambda state: _plain(state, "auto"),
        lambda state: search_schedules(state, state.params.seed + 1),
    ),
)
