"""Loading of the kernels that the stages call, with the clock of a solve stopped meanwhile."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.start_prices import PriceSums
from optsched.instance import Instance
from optsched.models.hindsight import HindsightProgram
from optsched.schedule import Schedule
from optsched.simulate import run
from optsched.solvers.bounds.ascent import improve_prices
from optsched.solvers.bounds.bound import bound
from optsched.solvers.bounds.configurations import configuration_bound
from optsched.solvers.bounds.lagrangian import PricedStarts, cheapest_by_kind
from optsched.solvers.exact.parts import solve_parts
from optsched.solvers.exact.search import solve_exact
from optsched.solvers.search.beam import start_by_beam
from optsched.solvers.search.delays import delay_large
from optsched.solvers.search.joint_list import list_jointly
from optsched.solvers.search.search import search

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray
    from optsched.certificates.prices import Certificate
    from optsched.models.objectives import ScheduleObjective

_LITTLE = 1e3  # work


class _Tiny(NamedTuple):
    """Four requests that compete for memory; a schedule to improve, weights and prices."""

    instance: Instance
    late: Schedule
    weights: FloatArray
    prices: Certificate


@cache
def _tiny() -> _Tiny:
    instance = Instance([4] * 4, [1, 1, 6, 6], memory=10, arrivals=[0, 1, 1, 2])
    late = Schedule(instance, instance.arrivals + np.cumsum(instance.outputs))
    prices = bound(instance, "lagrangian").certificate
    assert prices is not None
    return _Tiny(instance, late, np.ones(4), prices)


class First(NamedTuple):
    """What decides which kernels the first stage calls."""

    objective: ScheduleObjective
    policies: tuple[str, ...]
    arriving: bool
    many: bool


@cache
def load_first(first: First) -> None:
    """Load what the first stage calls."""
    instance = _tiny().instance
    bound(instance, objective=first.objective)
    if first.many:
        sums, requests = PriceSums.of(np.zeros(4, dtype=np.int64)), np.arange(4)
        cheapest_by_kind(instance.prompts, instance.outputs, instance.arrivals, 1, requests, sums)
    if not first.arriving:
        instance = instance.replace(arrivals=None)
    for policy in first.policies:
        run(instance, policy)


@cache
def load(stage: str) -> None:
    """Load what another stage calls."""
    _CALLS[stage](_tiny())


def _search_in_time(tiny: _Tiny) -> None:
    sizes = configuration_bound(tiny.instance, phases=1, iterations=1).certificate
    solve_exact(tiny.instance, upper=tiny.late, certificate=sizes)


def _build_program(tiny: _Tiny) -> None:
    requests = np.arange(4)
    PricedStarts(tiny.instance, tiny.prices).regrets(requests, tiny.late.starts)
    HindsightProgram(tiny.instance).to_linear()


def _choose_parts(tiny: _Tiny) -> None:
    placed = _placed(tiny)
    sizes = configuration_bound(tiny.instance, workers=placed.workers, phases=1, iterations=1)
    solve_parts(placed, sizes.certificate)


def _placed(tiny: _Tiny) -> Schedule:
    starts, memory = tiny.late.starts, tiny.instance.memory
    return Schedule(tiny.instance, starts, workers=[memory, memory], placement=[0] * 4)


_CALLS: dict[str, Callable[[_Tiny], object]] = {
    "prices": lambda tiny: improve_prices(tiny.late, tiny.prices, work=_LITTLE),
    "sizes": lambda tiny: configuration_bound(tiny.instance, phases=1, iterations=0),
    "delays": lambda tiny: delay_large(tiny.instance, tiny.weights, tiny.prices, work=_LITTLE),
    "beam": lambda tiny: start_by_beam(tiny.late, tiny.prices, work=3e6),
    "search": lambda tiny: search(tiny.late, tiny.weights, work=_LITTLE),
    "lists": lambda tiny: list_jointly(
        tiny.instance, _placed(tiny).workers, tiny.instance.areas, 1.4, 4
    ),
    "moves": lambda tiny: search(_placed(tiny), tiny.weights, work=_LITTLE),
    "parts": _choose_parts,
    "configurations": lambda tiny: configuration_bound(tiny.instance, phases=1, iterations=1),
    "branch and bound": _search_in_time,
    "program": _build_program,
}
