"""`capacity`: how many workers a trace needs for its service level objectives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from optsched._internal.arguments import as_count, as_number, checked
from optsched._internal.loading import stopwatch
from optsched.clock import UNIT, LinearClock
from optsched.errors import OptschedError, PolicyError, is_interrupt
from optsched.instance import Instance
from optsched.policies import get_policies
from optsched.simulate.settings import settings_of
from optsched.sizing.fleet import least_cost
from optsched.sizing.lower import Bounded, at_least, late_alone
from optsched.sizing.result import Capacity
from optsched.sizing.slo import as_slos
from optsched.sizing.upper import Attempt, Mix, Plan, attempt, cheapest, fewest
from optsched.workers import Router, get_routers
from optsched.workers.memories import MAX_WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.certificates.fleet import FleetCertificate
    from optsched.policies import Policy
    from optsched.simulate import RunSettings
    from optsched.sizing.slo import Slo
    from optsched.workers import RouterState

ON_CLOCK = ("vllm", "vllm:work+plan", "work")
IN_STEPS = ("fcfs", "area")
ROUTERS = ("least-tokens",)
_POSITIVE = "a number above 0"
_FAR = 16  # times the proven number of workers, and more, up to which plans are tried


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
    routers = [routers] if isinstance(routers, Router) else routers
    chosen = [_limited(policy, limit) for policy in get_policies(names)]
    world = _world(instances[0], settings, chosen, limit)
    price = (
        None if cost is None else as_number("cost", cost, lambda c: c >= 0, "a number from 0 on")
    )
    others = _kinds(kinds, price, settings)
    asked = _asked(workers, len(others))
    number = None if asked else cast("int | None", workers)
    found = Capacity(instances[0], slos, None, (), (), True, world, 0.0, price)
    tell = on_progress or (lambda _: None)
    tell("proving how many workers anyone needs")
    if isinstance(settings.batch_clock, LinearClock):
        found = max(
            (_proven(replace(found, instance=each)) for each in instances),
            key=lambda one: math.inf if one.at_least is None else one.at_least,
        )
    if not found.possible and not others:
        return replace(found, seconds=stopwatch() - began)
    plans: list[Plan] = []
    interrupted = False
    scaled: dict[float, Capacity] = {}
    alone: list[Capacity] = []
    fleet: FleetCertificate | None = None
    mixed: _Mixes | None = None

    def same(some: list[Instance], about: str, **other: Any) -> Capacity:
        return capacity(
            some,
            slos,
            chosen,
            routers,
            workers=number,
            at_least_only=at_least_only or asked is not None,
            on_progress=lambda news: tell(f"{about}: {news}"),
            **options | other | ({} if limit is None else {"max_num_seqs": limit}),
        )

    try:
        if found.possible and not at_least_only and not asked:
            for policy in chosen:
                for router in get_routers(routers):
                    _plan(instances, found, (policy, router), settings, plans, number, tell)
        for load in loads if found.possible else ():
            faster = [_faster(each, load) for each in instances]
            scaled[load] = same(faster, f"load x {load:g}")
            if interrupted := scaled[load].interrupted:
                break
        for memory, clock, each_cost in () if interrupted else others:
            some = [each.replace(memory=memory) for each in instances]
            alone.append(same(some, f"{memory:,} tokens", clock=clock, cost=each_cost))
            if interrupted := alone[-1].interrupted:
                break
        if others and not interrupted:
            tell("proving what a fleet of all kinds costs")
            fleet = _fleet([found, *alone])
            if not at_least_only:
                every = [replace(found, plans=tuple(plans)), *alone]
                clocks = [settings.clock, *(clock for _, clock, _ in others)]
                mixed = _Mixes(instances, every, settings, clocks, tell)
                for policy, router in itertools.product(chosen, get_routers(routers)):
                    if asked:
                        mixed.add(policy, router, {asked: mixed.tried(policy, router, asked)})
                    else:
                        low = Fraction(0) if fleet is None else fleet.cost
                        mixed.search(policy, router, low)
    except (KeyboardInterrupt, SystemError) as stop:
        if not is_interrupt(stop):
            raise
        interrupted = True
    return replace(
        found,
        plans=tuple(plans),
        loads=scaled,
        kinds=tuple(alone),
        fleet=fleet,
        mixes=() if mixed is None else tuple(mixed.found),
        seconds=stopwatch() - began,
        interrupted=interrupted,
    )


def _kinds(
    kinds: Iterable[tuple[int, Any, float]], cost: float | None, settings: RunSettings
) -> list[tuple[int, Any, float]]:
    """Return other kinds of workers that can be compared with the first."""
    found = [
        (as_count("memory", memory), clock, as_number("cost", each, lambda c: c > 0, _POSITIVE))
        for memory, clock, each in kinds
    ]
    if found and not cost:
        raise PolicyError("kinds of workers are compared by cost; give that of the first, too")
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


def _plan(
    instances: Sequence[Instance],
    found: Capacity,
    pair: tuple[Policy, Router],
    settings: RunSettings,
    plans: list[Plan],
    workers: int | None,
    tell: Callable[[str], object],
) -> None:
    """Find the fewest workers of a policy and a router; what is known when Ctrl-C comes is kept."""
    policy, router = pair

    def tried(count: int) -> Attempt:
        tell(f"{router.name} with {policy.name} on {count:,} workers")
        return attempt(instances, found.slos, policy, router, settings, count)

    least = found.at_least or 1
    most = min(MAX_WORKERS, len(found.instance), _FAR * (least + 3))
    guess = max((plan.workers for plan in plans if plan.workers), default=least + least // 8)
    if workers is not None:
        least = most = guess = as_count("workers", workers, 1, MAX_WORKERS)
    attempts: dict[int, Attempt] = {}
    try:
        fewest(tried, least, max(least, most), guess, attempts)
    finally:
        if attempts:
            number = min((count for count, each in attempts.items() if each.met), default=None)
            below = attempts.get((number or max(attempts) + 1) - 1)
            binds = below.binds if below else ""
            plans.append(
                Plan(policy.name, router.name, number, binds, dict(sorted(attempts.items())))
            )


def _asked(workers: object, others: int) -> tuple[int, ...] | None:
    """Return the fleet that a caller asks for; None where it is a number of workers, or open."""
    if not isinstance(workers, list | tuple):
        return None
    found = tuple(as_count("workers", count, 0, MAX_WORKERS) for count in workers)
    if len(found) != others + 1 or not sum(found):
        raise PolicyError(
            f"workers are {list(found)}, but must be one number for each of {others + 1} kinds, "
            "not all of them zero"
        )
    return found


class _Mixes:
    """Fleets of several kinds of workers, tried one after another."""

    def __init__(
        self,
        instances: Sequence[Instance],
        kinds: Sequence[Capacity],
        settings: RunSettings,
        clocks: Sequence[Any],
        tell: Callable[[str], object],
    ) -> None:
        self._instances, self._kinds, self._settings = instances, kinds, settings
        self._clocks, self._tell = clocks, tell
        self._costs = [Fraction(each.cost or 0.0) for each in kinds]
        bought = zip(self._costs, (each.at_most for each in kinds), strict=True)
        self._high = min((cost * count for cost, count in bought if count), default=None)
        self.found: list[Mix] = []

    def price(self, fleet: Sequence[int]) -> Fraction:
        """Return what a fleet costs."""
        return sum((n * cost for n, cost in zip(fleet, self._costs, strict=True)), Fraction())

    def tried(self, policy: Policy, router: Router, fleet: Sequence[int]) -> Attempt:
        """Run a policy and a router with a fleet."""
        self._tell(f"{router.name} with {policy.name} on {' + '.join(map(str, fleet))} workers")
        every = [kind for kind, count in enumerate(fleet) for _ in range(count)]
        memories = [self._kinds[kind].instance.memory for kind in every]
        own = self._settings
        if own.clock is not None:
            own = replace(own, workers=memories, clock=[self._clocks[kind] for kind in every])
        return attempt(self._instances, self._kinds[0].slos, policy, router, own, memories)

    def add(self, policy: Policy, router: Router, known: dict[tuple[int, ...], Attempt]) -> None:
        """Keep the cheapest fleet that is enough, or the only one that was asked for."""
        enough = [fleet for fleet, each in known.items() if each.met]
        if enough or len(known) == 1:
            best = min(enough or known, key=self.price)
            price = float(self.price(best))
            self.found.append(Mix(policy.name, router.name, best, price, known))

    def search(self, policy: Policy, router: Router, low: Fraction) -> None:
        """Find fleets of two kinds that cost less than all before, but not less than is proven."""
        for pair in itertools.combinations(range(len(self._kinds)), 2):
            if self._high is None:
                return
            known: dict[tuple[int, ...], Attempt] = {}

            def enough(
                two: tuple[int, int], pair: tuple[int, ...] = pair, known: Any = known
            ) -> bool:
                counts = dict(zip(pair, two, strict=True))
                fleet = tuple(counts.get(kind, 0) for kind in range(len(self._kinds)))
                if fleet not in known:
                    known[fleet] = self.tried(policy, router, fleet)
                return bool(known[fleet].met)

            try:
                cheapest(enough, (self._costs[pair[0]], self._costs[pair[1]]), low, self._high)
            finally:
                if any(each.met for each in known.values()):
                    self.add(policy, router, known)
                    self._high = min(self._high, Fraction(self.found[-1].cost))


def _faster(instance: Instance, load: float) -> Instance:
    """Return the requests that arrive so many times as fast."""
    times = as_number("loads", load, lambda x: x > 0, "numbers above 0")
    arrivals = np.ceil(instance.arrivals / times).astype(np.int64)
    return instance.replace(arrivals=arrivals, name=f"{instance.name} x {times:g}")
