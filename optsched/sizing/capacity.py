"""`capacity`: how many workers a trace needs for its service level objectives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arguments import as_count, as_number, checked
from optsched._internal.loading import stopwatch
from optsched.clock import UNIT, LinearClock, get_clock
from optsched.errors import OptschedError, PolicyError, is_interrupt
from optsched.instance import Instance
from optsched.policies import get_policies
from optsched.simulate.settings import settings_of
from optsched.sizing.fleet import least_cost
from optsched.sizing.lower import Bounded, at_least, late_alone
from optsched.sizing.result import Capacity
from optsched.sizing.search import Search
from optsched.sizing.slo import as_slos
from optsched.workers import Router, get_routers
from optsched.workers.memories import MAX_WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.certificates.fleet import FleetCertificate
    from optsched.clock import Clock
    from optsched.policies import Policy
    from optsched.simulate import RunSettings
    from optsched.sizing.slo import Slo
    from optsched.sizing.upper import Plan
    from optsched.workers import RouterState

ON_CLOCK = ("vllm", "vllm:work+plan", "work")
IN_STEPS = ("fcfs", "area")
ROUTERS = ("least-tokens",)


@checked(OptschedError)
def capacity(
    instance: Instance | Sequence[Instance],
    slo: str | Slo | Iterable[str | Slo],
    policies: str | Policy | Iterable[str | Policy] | None = None,
    routers: str | Router | Iterable[str | Router | Callable[[RouterState], int]] = ROUTERS,
    *,
    workers: int | Sequence[int] | None = None,
    loads: Iterable[float] = (),
    cost: float | None = None,
    kinds: Iterable[tuple[int, Any, float]] = (),
    at_least_only: bool = False,
    on_progress: Callable[[str], object] | None = None,
    **options: Any,
) -> Capacity:
    """Find how many workers requests need to meet objectives: at least (proven) and at most.

    The lower number holds for every scheduler, router and way to form batches. Each upper one is of
    a policy and a router that meet the objectives in a simulation.

    Parameters
    ----------
    instance
        The requests, with the memory of a worker; or several such instances, as of seeds, in all of
        which the objectives must be met.
    slo
        The objectives: one or several `Slo`, or their texts.
    policies, routers
        Every policy runs with every router, as for `run`. None: on a clock "vllm",
        "vllm:work+plan" and "work", in steps "fcfs" and "area".
    workers
        Try only this number of workers, or only this fleet: the number of each kind.
    loads
        Find the same for requests that arrive so many times as fast, such as (0.5, 2).
    cost
        Cost of a worker per hour, which the table multiplies.
    kinds
        Other kinds of workers: memory, clock (None in steps) and cost of each. The same is found
        for each of them alone, what any fleet of all kinds costs at least, and fleets of two kinds
        that cost less than those of one.
    at_least_only
        Simulate nothing.
    on_progress
        Called with what is being done, in a few words.
    **options
        Fields of `RunSettings`, such as clock, intervals or seed. `max_num_seqs` limits the
        batches of all, in the proof and in engines.

    Returns
    -------
    Capacity
        Ctrl-C returns what is known by then, once there is a proof.

    Raises
    ------
    OptschedError
        If an objective cannot be read, or a policy cannot run so.

    Examples
    --------
    >>> from optsched import capacity, family
    >>> trace = family("uniform", n=60, load=2.5, seed=2)
    >>> found = capacity(trace, "latency:p90<=70", "area")
    >>> 1 < found.at_least <= found.at_most
    True
    """
    began = stopwatch()
    instances = [instance] if isinstance(instance, Instance) else list(instance)
    slos = as_slos(slo)
    limit = options.pop("max_num_seqs", None)
    settings = settings_of(None, options, "capacity")
    if settings.cluster is not None or settings.workers is not None or settings.router is not None:
        raise PolicyError(
            "capacity finds the number of workers itself; leave cluster and router out"
        )
    if not instances:
        raise PolicyError("there is no instance; pass one, or several")
    names: Any = policies or (IN_STEPS if settings.clock is None else ON_CLOCK)
    names = names if isinstance(names, Iterable) and not isinstance(names, str) else [names]
    chosen = [_limited(policy, limit) for policy in get_policies(names)]
    pairs = list(
        itertools.product(
            chosen, get_routers([routers] if isinstance(routers, Router) else routers)
        )
    )
    world = _world(instances[0], settings, chosen, limit)
    price = (
        None if cost is None else as_number("cost", cost, lambda c: c >= 0, "a number from 0 on")
    )
    others = _kinds(instances, kinds, price, settings)
    faster = {load: [_faster(each, load) for each in instances] for load in loads}
    number, asked = _asked(workers, len(others))
    found = Capacity(instances[0], slos, None, (), (), True, world, 0.0, price)
    tell = on_progress or (lambda _: None)
    tell("proving how many workers anyone needs")
    if isinstance(settings.batch_clock, LinearClock):
        found = max(
            (_proven(replace(found, instance=each)) for each in instances),
            key=lambda one: math.inf if one.at_least is None else one.at_least,
        )
    clocks = [settings.clock, *(clock for _, clock, _ in others)]
    plans = Search(instances, [found], clocks[:1], settings, tell)
    scaled: dict[float, Capacity] = {}
    alone: list[Capacity] = []
    mixes: list[Plan] = []
    fleet: FleetCertificate | None = None
    interrupted = True

    def same(some: list[Instance], about: str, **other: Any) -> Capacity:
        return capacity(
            some,
            slos,
            chosen,
            [router for _, router in pairs[: len(pairs) // len(chosen)]],
            workers=number,
            at_least_only=at_least_only or asked is not None,
            on_progress=lambda news: tell(f"{about}: {news}"),
            **options | other | ({} if limit is None else {"max_num_seqs": limit}),
        )

    try:
        for pair in pairs if found.possible and not (at_least_only or asked) else ():
            plans.fewest(*pair, number)
        for load, some in faster.items() if found.possible else ():
            scaled[load] = same(some, f"load x {load:g}")
            if scaled[load].interrupted:
                raise KeyboardInterrupt
        for some, clock, each_cost in others:
            about = f"{some[0].memory:,} tokens"
            alone.append(same(some, about, clock=clock, cost=each_cost))
            if alone[-1].interrupted:
                raise KeyboardInterrupt
        if others:
            tell("proving what a fleet of all kinds costs")
            every = [replace(found, plans=tuple(plans.found)), *alone]
            fleet = _fleet(every)
            mixed = Search(instances, every, clocks, settings, tell)
            mixes = mixed.found
            for pair in () if at_least_only else pairs:
                mixed.cheapest(*pair, fleet.cost if fleet else Fraction(0), asked)
        interrupted = False
    except (KeyboardInterrupt, SystemError) as stop:
        if not is_interrupt(stop):
            raise
    return replace(
        found,
        plans=tuple(plans.found),
        loads=scaled,
        kinds=tuple(alone),
        fleet=fleet,
        mixes=tuple(mixes),
        seconds=stopwatch() - began,
        interrupted=interrupted,
    )


def _kinds(
    instances: Sequence[Instance],
    kinds: Iterable[tuple[int, Any, float]],
    cost: float | None,
    settings: RunSettings,
) -> list[tuple[list[Instance], Clock | None, float]]:
    """Return requests, clock and cost of other kinds of workers, to be compared with the first."""
    found = [
        (
            [each.replace(memory=as_count("memory of a kind", memory)) for each in instances],
            None if clock is None else get_clock(clock),
            as_number("cost of a kind", price, lambda c: c > 0, "a number above 0"),
        )
        for memory, clock, price in kinds
    ]
    if found and not cost:
        raise PolicyError("cost is missing or 0, but kinds of workers are compared by cost")
    if any((clock is None) != (settings.clock is None) for _, clock, _ in found):
        raise PolicyError("either all kinds of workers have a clock or none of them")
    return found


def _fleet(alone: Sequence[Capacity]) -> FleetCertificate | None:
    """Return what fleets of all kinds cost at least, where bounds are known on their clocks."""
    if not all(each.proof is not None or not each.possible for each in alone):
        return None
    instance = alone[0].instance
    worlds = [
        replace(each.world, instance=instance.replace(memory=each.instance.memory))
        for each in alone
    ]
    return least_cost(worlds, [each.cost or 0.0 for each in alone], alone[0].slos)


def _proven(found: Capacity) -> Capacity:
    """Return what is proven of an instance."""
    world = replace(found.world, instance=found.instance)
    late = [late_alone(world, each) for each in found.slos]
    impossible = tuple(sorted({int(i) for requests, _ in late for i in requests}))
    found = replace(found, world=world, impossible=impossible)
    if any(hopeless for _, hopeless in late):
        return replace(found, possible=False)
    return replace(found, proof=at_least(world, found.slos))


def _limited(policy: Any, limit: int | None) -> Policy:
    """Return a policy whose batches have at most so many requests."""
    if limit is None:
        return policy  # type: ignore[no-any-return]
    if "max_num_seqs" not in {each.name for each in fields(policy)}:
        raise PolicyError(
            f"max_num_seqs is {limit}, but batches of {policy.name} have no such limit; leave it "
            "out, or run engines such as vllm"
        )
    limited: Policy = replace(policy, max_num_seqs=as_count("max_num_seqs", limit))
    return limited


def _world(
    instance: Instance, settings: RunSettings, chosen: Sequence[Policy], limit: int | None
) -> Bounded:
    """Return what a proof must be about to cover all that runs."""
    caching = any(getattr(policy, "enable_prefix_caching", None) for policy in chosen)
    timed = None if settings.clock is None else settings.batch_clock
    clock = timed if isinstance(timed, LinearClock) else UNIT
    return Bounded(
        instance,
        _going_on_from_a_cache(clock) if caching else clock,
        limit or 0,
        "at-once" if timed is None else "next-batch",
        caching,
        timed is not None,
    )


def _going_on_from_a_cache(clock: LinearClock) -> LinearClock:
    """Return a clock on which no decoding takes longer than what may stand for it on the other.

    A preempted request that finds all but two or more of its n tokens computes those as a prompt,
    in 2 prefill + (n**2 - (n - 2)**2) squares at least. With all but one found, it decodes.
    """
    prefill, squares = clock.prefill_tokens, clock.squared_prompts
    resident = min(clock.resident_tokens, 2 * squares)
    decode = min(clock.decode_requests, 2 * prefill + 4 * squares - 2 * resident)
    return replace(clock, decode_requests=decode * (1 - 2**-40), resident_tokens=resident)


def _asked(workers: object, others: int) -> tuple[int | None, tuple[int, ...] | None]:
    """Return the number of workers, or the fleet, that a caller asks for, if any."""
    if not isinstance(workers, list | tuple):
        return None if workers is None else as_count("workers", workers, 1, MAX_WORKERS), None
    found = tuple(as_count("workers", count, 0, MAX_WORKERS) for count in workers)
    if len(found) != others + 1 or not sum(found):
        raise PolicyError(
            f"workers are {list(found)}, but must be one number for each of {others + 1} kinds, "
            "not all of them zero"
        )
    return None, found


def _faster(instance: Instance, load: float) -> Instance:
    """Return the requests that arrive so many times as fast."""
    times = as_number("loads", load, lambda x: x > 0, "a number above 0")
    arrivals = np.ceil(instance.arrivals / times).astype(np.int64)
    return instance.replace(arrivals=arrivals, name=f"{instance.name} x {times:g}")
