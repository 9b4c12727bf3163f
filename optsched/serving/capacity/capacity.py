"""`capacity`: how many workers a trace needs for its service level objectives."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arguments import as_count, as_number, checked
from optsched._internal.arrays import MAX_STEP
from optsched._internal.loading import stopwatch
from optsched.clock import UNIT, LinearClock
from optsched.errors import OptschedError, PolicyError, is_interrupt
from optsched.policies import get_policies
from optsched.problem.instance import Instance
from optsched.problem.workers import Router, get_routers
from optsched.problem.workers.memories import MAX_WORKERS
from optsched.serving.capacity.lower import Bounded, at_least, late_alone
from optsched.serving.capacity.result import Capacity
from optsched.serving.capacity.search import Search
from optsched.serving.capacity.slo import as_slos
from optsched.simulate.settings import settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from optsched.policies import Policy
    from optsched.problem.workers import RouterState
    from optsched.serving.capacity.slo import Slo
    from optsched.simulate import RunSettings

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
    workers: int | None = None,
    loads: Iterable[float] = (),
    cost: float | None = None,
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
        The objectives: one or several `Slo`, or their texts, with limits in the unit of time.
    policies, routers
        Every policy runs with every router, as for `run`. None: on a clock "vllm",
        "vllm:work+plan" and "work", in steps "fcfs" and "area".
    workers
        Try only this number of workers.
    loads
        Find the same for requests that arrive so many times as fast, such as (0.5, 2).
    cost
        Cost of a worker per hour, which the table multiplies.
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
        If an objective cannot be read, or has another unit, or a policy cannot run so.

    Examples
    --------
    >>> from optsched import capacity, family
    >>> trace = family("uniform", n=60, load=2.5, seed=2)
    >>> found = capacity(trace, "latency:p90<=70steps", "area")
    >>> 1 < found.at_least <= found.at_most
    True
    """
    began = stopwatch()
    instances = [instance] if isinstance(instance, Instance) else list(instance)
    limit = options.pop("max_num_seqs", None)
    settings = settings_of(None, options, "capacity")
    if settings.cluster is not None or settings.workers is not None or settings.router is not None:
        raise PolicyError(
            "capacity finds the number of workers itself; leave cluster and router out"
        )
    if not instances:
        raise PolicyError("there is no instance; pass one, or several")
    slos = as_slos(slo, "steps" if settings.clock is None else settings.batch_clock.unit)
    names = (IN_STEPS if settings.clock is None else ON_CLOCK) if policies is None else policies
    chosen = [_limited(policy, limit) for policy in get_policies(names)]
    several = get_routers([routers] if isinstance(routers, Router) else routers)
    price = (
        None if cost is None else as_number("cost", cost, lambda c: c >= 0, "a number from 0 on")
    )
    faster = {load: [_faster(each, load) for each in instances] for load in loads}
    number = None if workers is None else as_count("workers", workers, 1, MAX_WORKERS)
    world = _world(instances[0], settings, chosen, limit)
    found = Capacity(instances[0], slos, None, (), (), True, world, 0.0, price)
    tell = on_progress or (lambda _: None)
    tell("proving how many workers anyone needs")
    if isinstance(settings.batch_clock, LinearClock):
        found = max(
            (_proven(replace(found, instance=each)) for each in instances),
            key=lambda one: math.inf if one.at_least is None else one.at_least,
        )
    plans = Search(instances, found, settings, tell)
    scaled: dict[float, Capacity] = {}
    interrupted = True
    try:
        for pair in () if at_least_only else itertools.product(chosen, several):
            plans.fewest(*pair, number)
        for load, some in faster.items() if found.possible else ():
            scaled[load] = capacity(
                some,
                slos,
                chosen,
                several,
                workers=number,
                at_least_only=at_least_only,
                on_progress=functools.partial(_tell_of_load, tell, load),
                **options | ({} if limit is None else {"max_num_seqs": limit}),
            )
            if scaled[load].interrupted:
                raise KeyboardInterrupt
        interrupted = False
    except (KeyboardInterrupt, SystemError) as stop:
        if not is_interrupt(stop):
            raise
    return replace(
        found,
        plans=tuple(plans.found),
        loads=scaled,
        seconds=stopwatch() - began,
        interrupted=interrupted,
    )


def _tell_of_load(tell: Callable[[str], object], load: float, news: str) -> None:
    """Say what is being done at another load."""
    tell(f"load x {load:g}: {news}")


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


def _faster(instance: Instance, load: float) -> Instance:
    """Return the requests that arrive so many times as fast, from the first one on."""
    times = as_number("loads", load, lambda x: x > 0, "a number above 0")
    first, last = int(instance.arrivals[0]), int(instance.arrivals[-1])
    if first == last:
        raise PolicyError(
            f"loads is {times:g}, but all requests of {instance.name!r} arrive at once, so that "
            "none can arrive faster; leave loads out"
        )
    if first + (last - first) / times > MAX_STEP:
        raise PolicyError(
            f"loads is {times:g}, with which the last request of {instance.name!r} arrives after "
            f"step {MAX_STEP:.0e}; choose a larger load"
        )
    arrivals = first + np.ceil((instance.arrivals - first) / times).astype(np.int64)
    return instance.replace(arrivals=arrivals, name=f"{instance.name} x {times:g}")
