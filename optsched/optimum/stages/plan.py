"""Which stages an instance goes through, in which order, and what ends them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from optsched.optimum.stages.bounds import large_requests, price_configurations, raise_prices
from optsched.optimum.stages.exact import branch_and_bound, prove_small, solve_program
from optsched.optimum.stages.kernels import load_kernels
from optsched.optimum.stages.policies import run_policies
from optsched.optimum.stages.searches import delay_requests, search_schedules

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.optimum.state import State


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
