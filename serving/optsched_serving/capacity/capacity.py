"""`capacity`: the fewest workers that meet objectives."""

from __future__ import annotations

import functools
import itertools
import json
import math
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arguments import as_count, as_number, checked
from optsched._internal.arrays import MAX_STEP
from optsched._internal.aside import stopwatch
from optsched._internal.numbers import percent, proven
from optsched._internal.views import View, draw, text
from optsched.clock import UNIT, LinearClock
from optsched.errors import OptschedError, PolicyError, is_interrupt
from optsched.policies import get_policies
from optsched.policies.registry import takes_forecasts
from optsched.problem.execution import Times
from optsched.problem.forecasts import ROUGH, rough_forecasts
from optsched.problem.instance import Instance
from optsched.problem.work import going_on_from_a_cache, load_on_clock
from optsched.problem.workers import MAX_WORKERS, Router, get_routers
from optsched.simulate import ClockedRun, run
from optsched.simulate.settings import settings_of
from optsched_serving.capacity.bounds import Attempt, CapacityPlan, at_least, late_alone, least_late
from optsched_serving.capacity.slo import ROUNDING, Bounded, as_percent, as_slos, is_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from matplotlib.axes import Axes

    from optsched.certificates.capacity import CapacityCertificate
    from optsched.policies import Policy
    from optsched.problem.execution import TimedRun
    from optsched.problem.routing import RouterState
    from optsched.simulate import RunSettings
    from optsched.simulate.dispatch import RoutedRun
    from optsched_serving.capacity.bounds import AtLeast
    from optsched_serving.capacity.slo import Slo


@dataclass(frozen=True, eq=False, repr=False)
class Capacity(View):
    """How many workers the requests need for the objectives.

    Attributes
    ----------
    instance
        The requests; of several instances that which the proof is about.
    proof
        What is proven: `workers`, the certificate, and `why`; None where no number of workers is
        enough, or no bound is known on the clock.
    plans
        The fewest workers of each policy with each router, in the order asked for.
    impossible, possible
        Requests that miss a limit even alone on an idle worker, and whether any number of workers
        can meet the objectives.
    world
        The requests, batches and engines that the proof is about.
    loads
        The same where the requests arrive so many times as fast.
    with_rough_forecasts
        Where the best plan is told the outputs, what it comes to with as many workers and rough
        forecasts in their place, as plain data; None if there can be none.
    cost
        Cost of a worker per hour, where it is known.

    Examples
    --------
    >>> from optsched import Instance, capacity
    >>> found = capacity(Instance([5] * 6, [4] * 6, memory=18), "latency:max<=5steps", ["fcfs"])
    >>> found.at_least, found.at_most, found.plans[0].router
    (2, 3, 'least-tokens')
    """

    instance: Instance
    slos: tuple[Slo, ...]
    proof: AtLeast | None
    plans: tuple[CapacityPlan, ...]
    impossible: tuple[int, ...]
    possible: bool
    world: Bounded
    seconds: float
    cost: float | None = None
    interrupted: bool = False
    loads: dict[float, Capacity] = field(default_factory=dict)
    with_rough_forecasts: dict[str, Any] | None = None
    _bounds: dict[int, float | None] = field(default_factory=dict, init=False)
    _view = ("capacity_table", "plot_attainment", "capacity_page")

    @property
    def unit(self) -> str:
        """Unit of all times: "steps" or "s"."""
        return self.world.clock.unit if self._is_linear else "s"

    @property
    def _is_linear(self) -> bool:
        """Whether the clock has coefficients; of a function nothing is known."""
        return self.proof is not None or not self.possible

    @property
    def at_least(self) -> int | None:
        """Workers that any scheduler needs; None where no number is enough."""
        if not self.possible:
            return None
        return 1 if self.proof is None else self.proof.workers

    @property
    def at_most(self) -> int | None:
        """The fewest workers that any plan needs; None without one."""
        return min((plan.workers for plan in self.plans if plan.workers), default=None)

    @property
    def certificate(self) -> CapacityCertificate | None:
        """What proves `at_least`; None where nothing needs to be proven."""
        return None if self.proof is None else self.proof.certificate

    @property
    def estimate(self) -> float | None:
        """Workers whose work keeps up with the mean rate of arrivals: an estimate, no bound.

        It is the stability condition of Nie, Si and Zhou (arXiv 2605.04595) with the time of a
        batch that fills the memory; None where all arrive at once, and on functions as clocks.
        """
        load = math.inf
        if not self.world.timed:
            load = self.instance.load
        elif self._is_linear and (work := load_on_clock(self.instance, self.world.clock)):
            load = work.load
        return load if math.isfinite(load) else None

    @property
    def answer(self) -> list[str]:
        """The answer in sentences."""
        asked = " and ".join(map(str, self.slos))
        late = []
        if self.impossible:
            labels = [self.instance.label(request) for request in self.impossible[:5]]
            more = f" and {len(self.impossible) - 5:,} more" if len(self.impossible) > 5 else ""
            are = "is" if len(self.impossible) == 1 else "are"
            late.append(
                f"{len(self.impossible):,} request{'s' * (are == 'are')} {are} late even alone on "
                f"an idle worker: {', '.join(labels)}{more}."
            )
        short = [self._short(plan) for plan in self.plans if plan.workers is None]
        if not self.possible:
            return [f"No number of workers meets {asked}.", *late, *short]
        found, (blind, told) = [], self.best
        if blind is not None:
            found.append(
                f"Of the plans that can be deployed, {blind} needs the fewest workers for {asked}: "
                f"{blind.workers:,}{self._costs(blind.workers)}."
            )
        elif told is not None:
            found.append(f"Every plan that meets {asked} is told all outputs, which no server is.")
        if told is not None:
            costs = self._costs(told.workers)
            found.append(f"Told all outputs, {told} needs {told.workers:,}{costs}.")
            if (rough := self.with_rough_forecasts) is not None:
                less = f"it attains {as_percent(rough['attained'])} with {told.workers:,}"
                comes = "so many are enough, too" if rough["met"] else less
                found[-1] = f"{found[-1][:-1]}; with rough forecasts (log-error {ROUGH}) {comes}."
        if self.proof is None:
            found.append("No bound is known on a clock that is a function.")
        elif self.proof.workers == 1:
            found.append("Nothing proves that more than one worker is needed.")
        else:
            costs = self._costs(self.proof.workers, up=False)
            found.append(f"Any scheduler needs {self.at_least:,}{costs}: {self.proof.why}.")
        if self.estimate is not None:
            found.append(
                f"Estimate, no bound: on average the work of {self.estimate:,.2f} workers arrives."
            )
        found += late
        for plan in self.plans:
            if plan.workers and (relapses := ", ".join(map(str, plan.relapses))):
                found.append(f"{plan} falls short again with {relapses} workers.")
        for load, each in self.loads.items():
            most, fewest = [f"at least {each.at_least:,}"], math.inf
            for best, knowing in zip(each.best, ("", " told all outputs"), strict=True):
                if best is not None and best.workers is not None and best.workers < fewest:
                    fewest = best.workers
                    most.append(f"at most {fewest:,}{knowing}")
            pace = "as they do" if load == 1 else f"{load:g} times as fast"
            found.append(f"Arriving {pace}: {', '.join(most)}.")
        return found + short

    def _costs(self, workers: int | None, *, up: bool = True) -> str:
        """Say what workers cost, where it is known, rounded to the safe side."""
        cost = _cost_of(workers or 0, self.cost or 0.0)
        return f" ({proven(cost, up=up)} per hour)" * bool(self.cost)

    @property
    def best(self) -> tuple[CapacityPlan | None, CapacityPlan | None]:
        """The plan with the fewest workers that is not told the outputs, and that which is."""
        met = sorted((plan for plan in self.plans if plan.workers), key=lambda p: p.workers or 0)
        blind = next((plan for plan in met if plan.knows != "outputs"), None)
        return blind, next((plan for plan in met if plan.knows == "outputs"), None)

    def attained_bound(self, workers: int) -> float | None:
        """Return the most that any scheduler attains with so many workers, as plans attain it.

        None for means alone, for several instances, and where no bound is known on the clock.
        """
        if workers not in self._bounds:
            shares = [slo for slo in self.slos if slo.share is not None and self._is_linear]
            several = any(each.runs > 1 for plan in self.plans for each in plan.attempts.values())
            bounds = []
            for slo in () if several else shares:
                count = max(1, int(slo.asked(self.instance).sum()))
                bounds.append((count - least_late(self.world, [slo], workers)) / count)
            self._bounds[workers] = min(bounds, default=None)
        return self._bounds[workers]

    def _beyond(self, plan: CapacityPlan) -> float | None:
        """Return what any scheduler may attain where a plan falls short, unless it was stopped."""
        if plan.workers is not None or not plan.attempts or self.interrupted:
            return None
        return self.attained_bound(plan.used)

    def _short(self, plan: CapacityPlan) -> str:
        """Say how far a plan comes that has no number of workers."""
        about = str(plan)
        if plan.attempts:
            tried = [*plan.attempts]
            span = f"{tried[0]:,}" + f" to {tried[-1]:,}" * (len(tried) > 1)
            about += f" does not meet it with {span} worker{'s' * (tried[-1] > 1)}"
        else:
            about += " does not meet it even where each request is alone on an idle worker"
        if plan.reached is not None:
            about += f": it attains {as_percent(plan.reached.attained)}"
            most = self._beyond(plan)
            if most is not None and most < 1:
                about += f", and no scheduler more than {percent(most, 2)}"
        least = " and ".join(map(str, plan.least(self.slos)))
        return f"{about}; the least limit that it meets so is {least}." if least else f"{about}."

    @property
    def price(self) -> tuple[float, float]:
        """Cost per hour of the workers that are proven to be needed, and of those that suffice."""
        each = self.cost or 0.0
        least = math.inf if self.at_least is None else float(_cost_of(self.at_least, each))
        return least, math.inf if self.at_most is None else float(_cost_of(self.at_most, each))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, ready for JSON."""
        proof = self.certificate
        content: dict[str, Any] = {
            "answer": self.answer,
            "objectives": [str(slo) for slo in self.slos],
            "unit": self.unit,
            "requests": len(self.instance),
            "at_least": self.at_least,
            "why": None if self.proof is None else self.proof.why,
            "premises": None if proof is None else proof.premises.to_dict(),
            "certificate": None if proof is None else json.loads(proof.to_json()),
            "at_most": self.at_most,
            "estimate": self.estimate,
            "plans": [
                plan.to_dict(self.slos) | {"attained_bound": self._beyond(plan)}
                for plan in self.plans
            ],
            "with_rough_forecasts": self.with_rough_forecasts,
            "possible": self.possible,
            "impossible": list(self.impossible),
            "seconds": self.seconds,
        }
        if self.loads:
            content["loads"] = [
                {
                    "load": load,
                    "at_least": each.at_least,
                    "at_most": each.at_most,
                    "plans": [plan.to_dict(self.slos) for plan in each.plans],
                }
                for load, each in self.loads.items()
            ]
        return content

    def plot_growth(self, ax: Axes | None = None) -> Axes:
        """Plot the workers needed against the load, for a result with several loads."""
        return draw("plot_growth", self, ax)

    def __repr__(self) -> str:
        most = "" if self.at_most is None else f", at most {self.at_most}"
        return f"<Capacity: at least {self.at_least}{most} workers>"

    def __str__(self) -> str:
        about = "\n".join(
            line for line in str(self.instance).splitlines() if not line.startswith("  load")
        )
        table = text("capacity_table", self).strip("\n") + "\n\n" if self.plans else ""
        return f"{about}\n\n{table}" + "\n".join(self.answer)


def _cost_of(workers: int, each: float) -> Fraction:
    return workers * Fraction(str(each))


_FAR = 16  # times the proven number of workers, and more, up to which plans are tried
_AROUND = 2  # numbers of workers on both sides of the answer that are tried as well
_CACHING = "enable_prefix_caching"
_BURST = 0.1  # share of the time in which half of the late requests arrive: a burst
_FULL = 0.9  # share of a memory that is full
_PART = 64  # requests of a run in which they are apart, so that its times are exact enough
_TRIES = 6  # times as far apart as before, until no two requests meet


def fewest(
    tried: Callable[[int], Attempt], least: int, most: int, guess: int, known: dict[int, Attempt]
) -> None:
    """Try numbers of workers until the fewest that are enough, from `least` on, are `known`.

    More workers need not be better, so some numbers on both sides of the answer are tried as well.
    """

    def enough(count: int) -> bool:
        if count not in known:
            known[count] = tried(count)
        return known[count].met

    low, high, step = least - 1, min(max(guess, least), most), 1
    while not enough(high):
        if high == most:
            return
        low, high, step = high, min(most, high + step), 2 * step
    step = 1
    while low < least and high > least and enough(tried_next := max(least, high - step)):
        high, step = tried_next, 2 * step
    low = max((count for count in known if count < high), default=least - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    while True:
        around = [*range(high - 1 - _AROUND, high), *range(high + 1, high + 1 + _AROUND)]
        for count in around:
            if least <= count <= most and enough(count) and count < high:
                high = count
                break
        else:
            return


def times_of(found: TimedRun) -> Times:
    """Return what each request waited in a run, on a clock rounded down (`ROUNDING`)."""
    if found.clock is None and found.why is not None:  # then it has no times
        return Times(*(np.full(len(found.instance), np.nan) for _ in Times._fields))
    if is_whole(found.clock):
        return found.times
    return Times(*(each / (1 + ROUNDING) for each in found.times))


def _times_apart(some: Instance, policy: Policy, settings: RunSettings) -> Times | None:
    """Return the times of requests that run alone, one after another; None where they meet."""
    if policy.needs.kind == "wait":
        return None  # it goes by the rates of all requests
    in_seconds = settings.clock is not None and settings.batch_clock.unit == "s"
    longest = [int(some.prompts.argmax()), int(some.outputs.argmax())]
    alone = [times_of(run(some.take([at]), policy, settings)).latency for at in longest]
    gap = 1.0 + float(np.sum(alone))
    if not np.isfinite(gap):
        return None
    for _ in range(_TRIES):
        ticks = np.arange(len(some)) * (1 if in_seconds else math.ceil(gap))
        step = gap if in_seconds else some.seconds_per_step
        times = times_of(run(some.replace(arrivals=ticks, seconds_per_step=step), policy, settings))
        if bool((times.latency < gap).all()):
            return times
        gap *= 2
    return None


def _binding(found: RoutedRun, times: Times, slos: Sequence[Slo]) -> str:
    instance, late = found.instance, np.zeros(len(found.instance), dtype=np.bool_)
    for slo in slos:
        late |= slo.asked(instance) & ~slo.within(times)
    if not late.any():  # only a mean is too high: those above it count
        late = times.latency >= np.nanmean(times.latency)
    arrivals = np.sort(found.arrivals[late])
    span, half = float(found.arrivals[-1] - found.arrivals[0]), len(arrivals) // 2
    if len(arrivals) == 1:
        return "one large request"
    if span and float((arrivals[half:] - arrivals[: len(arrivals) - half]).min()) < _BURST * span:
        return "a burst"
    parts = [part for part in found.runs if part is not None]
    free = [part.instance.memory - part.peak_memory for part in parts]
    if float(np.median(free)) < int(instance.peaks.max()) or any(
        part.peak_memory > _FULL * part.instance.memory for part in parts
    ):
        return "memory"
    full = any(isinstance(part, ClockedRun) and part.full for part in parts)
    return "the limit of requests" if full else "compute"


class PlanSearch:
    """Runs with more or fewer workers, for one policy and router after another."""

    def __init__(
        self,
        instances: Sequence[Instance],
        proven: Capacity,
        settings: RunSettings,
        tell: Callable[[str], object],
    ) -> None:
        self._proven, self._settings = proven, settings
        exact = settings.clock is None or settings.until < math.inf
        self._instances = instances if exact else [_from_first(each) for each in instances]
        self._tell = tell
        self._alone: dict[str, Attempt | None] = {}
        self.found: list[CapacityPlan] = []

    def attempt(self, policy: Policy, router: Router, workers: int) -> Attempt:
        """Run so many workers."""
        self._tell(f"{router.name} with {policy.name} on {workers:,} workers")
        found, how = [], replace(self._settings, workers=workers, router=router)
        for number, instance in enumerate(self._instances):
            found.append(run(instance, policy, replace(how, seed=how.seed + number)))
        runs = [(each.instance, times_of(each)) for each in found]
        return self._judged(runs, lambda at: _binding(found[at], runs[at][1], self._proven.slos))

    def _run_alone(self, policy: Policy) -> Attempt | None:
        """Run on one worker where each request arrives once all before it are complete."""
        self._tell(f"each request alone with {policy.name}")
        own = replace(self._settings, workers=1, router="round-robin", until=np.inf)
        found = []
        for instance in self._instances:
            apart = instance.replace(
                **dict.fromkeys(("follows", "pauses", "deadlines", "hash_ids", "hash_block")),
                arrivals=np.zeros(len(instance), dtype=np.int64),
            )
            rows = np.column_stack([instance.outputs, instance.prompts])  # the short ones together
            _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
            times = []
            for begin in range(0, len(first), _PART):
                part = _times_apart(apart.take(first[begin : begin + _PART]), policy, own)
                if part is None:
                    return None
                times.append(part)
            every = (np.concatenate(each)[which.ravel()] for each in zip(*times, strict=True))
            found.append((instance, Times(*every)))
        return self._judged(found, lambda _: "one request alone")

    def _judged(self, runs: Sequence[tuple[Instance, Times]], why: Callable[[int], str]) -> Attempt:
        """Judge runs by the objectives; `why` says what the first one that falls short lacks."""
        slos = self._proven.slos
        every = [[slo.attained(times, slo.asked(some)) for slo in slos] for some, times in runs]
        shares = [Fraction(str(min(share for _, share in each))) for each in every]
        short = [at for at, each in enumerate(every) if not all(met for met, _ in each)]
        least = [[slo.reached(times, slo.asked(some)) for slo in slos] for some, times in runs]
        return Attempt(
            len(runs) - len(short),
            len(runs),
            float(sum(shares) / len(shares)),
            why(short[0]) if short else "",
            tuple(map(max, zip(*least, strict=True))),
        )

    def fewest(self, policy: Policy, router: Router, workers: int | None) -> None:
        """Find the fewest workers; what is known when Ctrl-C comes is kept."""
        least = self._proven.at_least or 1
        most = max(least, min(MAX_WORKERS, len(self._instances[0]), _FAR * (least + 3)))
        known = (plan.workers for plan in self.found if plan.workers)
        guess = max(known, default=least + least // 8)
        if workers is not None:
            least = most = guess = workers
        if policy.name not in self._alone:
            self._alone[policy.name] = self._run_alone(policy)
        alone = self._alone[policy.name]
        # Beside others a request may only find more in a prefix cache than alone.
        late = alone is not None and not (alone.met or getattr(policy, _CACHING, False))
        tried: dict[int, Attempt] = {}
        try:
            if workers is not None or (self._proven.possible and not late):
                fewest(lambda count: self.attempt(policy, router, count), least, most, guess, tried)
        finally:
            if tried or alone:
                self._keep(policy, router, tried, alone)

    def with_rough_forecasts(
        self, found: Capacity, policies: Sequence[Policy], routers: Sequence[Router]
    ) -> dict[str, Any] | None:
        """Run the best plan again with rough forecasts, where it was told outputs for no need."""
        blind, told = found.best
        if told is None or told.workers is None or (blind and blind.workers == told.workers):
            return None
        policy = next(each for each in policies if each.name == told.policy)
        router = next(each for each in routers if each.name == told.router)
        if not takes_forecasts(policy) or router.knows == "outputs":
            return None
        guessed = [rough_forecasts(each, at) for at, each in enumerate(self._instances)]
        how = replace(self._settings, intervals="column", beliefs=None)
        made = PlanSearch(guessed, found, how, self._tell).attempt(policy, router, told.workers)
        plan = {"policy": policy.name, "router": router.name, "workers": told.workers}
        return plan | {"log_error": ROUGH, "met": made.met, "attained": made.attained}

    def _keep(
        self, policy: Policy, router: Router, tried: dict[int, Attempt], alone: Attempt | None
    ) -> None:
        number = min((count for count, each in tried.items() if each.met), default=None)
        below = tried.get((number or max(tried, default=0) + 1) - 1, None if number else alone)
        cost = self._proven.cost
        self.found.append(
            CapacityPlan(
                policy.name,
                router.name,
                number,
                dict(sorted(tried.items())),
                below.binds if below else "",
                None if number is None or cost is None else float(_cost_of(number, cost)),
                replace(self._settings, workers=1, router=router).knows(policy, self._instances[0]),
                alone,
            )
        )


SHIPPED = "vllm:area,load+plan+learned"  # the default of the plugin for vLLM
ON_CLOCK = ("vllm", SHIPPED, "vllm:work+plan", "work")
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
        Every policy runs with every router, as for `run`. None: on a clock "vllm", what the plugin
        for it ships ("vllm:area,load+plan+learned"), and with all outputs known "vllm:work+plan"
        and "work"; in steps "fcfs" and "area".
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
        Fields of `RunSettings`, such as clock, intervals or seed. `max_num_seqs` limits the batches
        of all, in the proof and in engines.

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
    >>> found = capacity(family("uniform", n=60, load=2.5, seed=2), "latency:p90<=70steps", "area")
    >>> 1 < found.at_least <= found.at_most
    True
    """
    began = stopwatch()
    instances = [instance] if isinstance(instance, Instance) else list(instance)
    limit = options.pop("max_num_seqs", None)
    settings = _settings(options)
    if not instances:
        raise PolicyError("there is no instance; pass one, or several")
    slos = as_slos(slo, "steps" if settings.clock is None else settings.batch_clock.unit)
    names = (IN_STEPS if settings.clock is None else ON_CLOCK) if policies is None else policies
    chosen = [_limited(policy, limit) for policy in get_policies(names)]
    several = get_routers([routers] if isinstance(routers, Router) else routers)
    price = cost if cost is None else as_number("cost", cost, lambda c: c >= 0, "at least 0")
    faster = {load: [_faster(each, load) for each in instances] for load in loads}
    number = None if workers is None else as_count("workers", workers, 1, MAX_WORKERS)
    world = _world(instances[0], settings, chosen, limit)
    found = Capacity(instances[0], slos, None, (), (), True, world, 0.0, price)
    tell = on_progress or (lambda _: None)
    tell("proving how many workers any scheduler needs")
    if isinstance(settings.batch_clock, LinearClock):
        every = [_proven(replace(found, instance=each)) for each in instances]
        found = max(every, key=lambda one: math.inf if one.at_least is None else one.at_least)
    plans = PlanSearch(instances, found, settings, tell)
    scaled: dict[float, Capacity] = {}
    interrupted = True
    try:
        for pair in () if at_least_only else itertools.product(chosen, several):
            plans.fewest(*pair, number)
        found = replace(found, plans=tuple(plans.found))
        rough = plans.with_rough_forecasts(found, chosen, several)
        found = replace(found, with_rough_forecasts=rough)
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
    seconds = stopwatch() - began
    return replace(
        found, plans=tuple(plans.found), loads=scaled, seconds=seconds, interrupted=interrupted
    )


def _tell_of_load(tell: Callable[[str], object], load: float, news: str) -> None:
    tell(f"load x {load:g}: {news}")


def _settings(options: dict[str, Any]) -> RunSettings:
    settings = settings_of(None, options, "capacity")
    if settings.cluster is not None or settings.workers is not None or settings.router is not None:
        raise PolicyError(
            "capacity finds the number of workers itself; leave cluster and router out"
        )
    if isinstance(clock := settings.clock, LinearClock) and clock.shared is not None:
        raise PolicyError(
            f"clock {clock.name} is for one number of engines, and capacity tries others; use "
            "route --workers, or a clock without a shared part"
        )
    return settings


def _proven(found: Capacity) -> Capacity:
    world = replace(found.world, instance=found.instance)
    late = [late_alone(world, each) for each in found.slos]
    impossible = tuple(sorted({int(i) for requests, _ in late for i in requests}))
    found = replace(found, world=world, impossible=impossible)
    if any(hopeless for _, hopeless in late):
        return replace(found, possible=False)
    proof = at_least(world, found.slos)
    return replace(found, proof=proof, possible=proof is not None)


def _limited(policy: Any, limit: int | None) -> Policy:
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
    caching = any(getattr(policy, "enable_prefix_caching", None) for policy in chosen)
    timed = None if settings.clock is None else settings.batch_clock
    clock = timed if isinstance(timed, LinearClock) else UNIT
    return Bounded(
        instance,
        going_on_from_a_cache(clock) if caching else clock,
        limit or 0,
        "at-once" if timed is None else "next-batch",
        caching,
        timed is not None,
    )


def _from_first(instance: Instance) -> Instance:
    """Return the requests as of the first arrival; sums of seconds since 1970 lose digits."""
    first, due = int(instance.arrivals[0]), instance.deadlines
    if not first:
        return instance
    later = None if due is None else due - first
    return instance.replace(arrivals=instance.arrivals - first, deadlines=later)


def _faster(instance: Instance, load: float) -> Instance:
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
