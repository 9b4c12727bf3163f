"""What a router and the policies of its workers lose, as proven intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from optsched._internal.arguments import checked
from optsched._internal.aside import stopwatch
from optsched._internal.numbers import number, percent, proven
from optsched._internal.views import draw, html, text, write
from optsched.bounds.bound import bound
from optsched.clock import Clock, get_clock
from optsched.errors import PolicyError
from optsched.optimum.solving import solve
from optsched.optimum.state import Optimum, SolveParams
from optsched.policies import Policy, get_policies
from optsched.problem.premises import STORAGES, Storage, deployable, strongest
from optsched.problem.schedule import Schedule
from optsched.problem.workers import Router, Workers, as_workers, get_routers
from optsched.simulate import run
from optsched.solvers.backends.base import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from optsched.problem.execution import Run
    from optsched.problem.instance import Instance
    from optsched.simulate.dispatch import RoutedRun

_WORKERS_SHARE = 0.6  # of the time, for the optima of workers


class Interval(NamedTuple):
    """Both ends of a number that is known so far."""

    low: float
    high: float

    def of(self, whole: float) -> Interval:
        """Return it as a share."""
        return Interval(self.low / whole, self.high / whole)

    def __str__(self) -> str:
        """Write a share, rounded outwards."""
        return f"{proven(100 * self.low, decimals=1)} to {percent(self.high)}"


@dataclass(frozen=True, eq=False, repr=False)
class RouterLoss:
    """What one router and policy lose.

    Attributes
    ----------
    best
        Between what the best schedule of all workers costs; for engines that store tokens one
        batch later, with that storage.
    given_placement
        Between what the best schedules of the workers cost together, given where requests went;
        None on a clock, and where the run did not complete.
    """

    run: RoutedRun
    best: Interval
    given_placement: Interval | None = None

    @property
    def cost(self) -> float:
        """Total latency of the run."""
        return self.run.total_latency

    @property
    def name(self) -> str:
        """Router and policy."""
        return f"{self.run.router} with {self.run.policy}"

    @property
    def loss(self) -> Interval:
        """All that is lost, as a share of the cost."""
        return Interval(self.cost - self.best.high, self.cost - self.best.low).of(self.cost)

    @property
    def order(self) -> Interval | None:
        """What the orders on the workers lose, given the placement, as a share of the cost."""
        if self.given_placement is None:
            return None
        low, high = self.given_placement
        return Interval(self.cost - high, self.cost - low).of(self.cost)

    @property
    def placement(self) -> Interval | None:
        """What the placement loses even under the best orders, as a share of the cost."""
        if self.given_placement is None:
            return None
        low, high = self.given_placement
        return Interval(max(0.0, low - self.best.high), high - self.best.low).of(self.cost)

    def to_dict(self) -> dict[str, object]:
        """Return names, latencies and intervals as plain data."""
        content: dict[str, object] = {
            "router": self.run.router,
            "policy": self.run.policy,
            "total_latency": self.cost,
            "mean_latency": self.run.mean_latency,
            "knows": self.run.knows,
            "loss": list(self.loss),
            "placement": None if self.placement is None else list(self.placement),
            "order": None if self.order is None else list(self.order),
        }
        if self.run.clock is not None:
            metrics = self.run.metrics()
            content |= {key: metrics[key] for key in metrics if key not in content}
        return content


@dataclass(frozen=True, eq=False, repr=False)
class RoutingLoss:
    """What routers and policies lose against the best placement and order together.

    Attributes
    ----------
    losses
        One entry per router and policy, in the order in which they were asked for.
    best
        Least total latency that a schedule was found for, and what was proven that none beats; of
        the papers' model, unless only engines ran that store tokens one batch later.
    method
        What proves it.

    Examples
    --------
    >>> from optsched import Instance, routing_loss
    >>> instance = Instance([5, 1, 1, 1], [4, 1, 1, 1], memory=9)
    >>> found = routing_loss(instance, 2, ["round-robin"], ["fcfs"], time_limit=5)
    >>> found.losses[0].cost, found.best
    (7, Interval(low=7.0, high=7.0))
    """

    instance: Instance
    workers: Workers
    losses: tuple[RouterLoss, ...]
    best: Interval
    method: str
    seconds: float

    @property
    def gap(self) -> float:
        """Share of the best known total latency that the bound does not account for."""
        return max(0.0, 1 - self.best.low / self.best.high)

    @property
    def unit(self) -> str:
        """Unit of all times: "steps" or "s"."""
        return self.losses[0].run.unit

    @property
    def take(self) -> RouterLoss:
        """The first of `least`."""
        return self.least[0]

    @property
    def least(self) -> list[RouterLoss]:
        """The pairs of least cost, of those that are told no outputs where there are such."""
        able = [each for each in self.losses if each.run.knows != "outputs"] or self.losses
        least = min(each.cost for each in able)
        return [each for each in able if math.isclose(each.cost, least, rel_tol=1e-9)]

    @property
    def alone(self) -> dict[str, float]:
        """Share of the first cost saved by the "router" of `take`, its "policy", or "both"."""
        first, best = self.losses[0], self.take.run
        pairs = {
            "router": (best.router, first.run.policy),
            "policy": (first.run.router, best.policy),
            "both": (best.router, best.policy),
        }
        return {name: 1 - self[pair].cost / first.cost for name, pair in pairs.items()}

    @property
    def advice(self) -> str:
        """Say what to take, and what changing the router or the policy alone would gain."""
        first, best, tied = self.losses[0].run, self.take.run, self.least
        ranked = sorted(self.losses, key=lambda each: (each not in tied, each.cost))
        rows = [(each.name, each.run.knows, each.run.mean_latency) for each in ranked]
        told = deployable(rows, lambda value: f"{number(value)} {self.unit}", "pairs")
        verb = "Least latency:" if best.knows == "outputs" else "Take"
        said = f"{verb} {' or '.join(each.name for each in tied)}."
        said = " ".join([f"{said[:-1]}, which cost the same." if tied[1:] else said, *told])
        router, policy, both = (
            f"{'saves' if gain >= 0 else 'costs'} {abs(gain):.1%}" for gain in self.alone.values()
        )
        if best is first or tied[1:]:
            return said
        against = f"{said} Against {self.losses[0].name}, changing"
        if best.router == first.router or best.policy == first.policy:
            what = "policy" if best.router == first.router else "router"
            return f"{against} the {what} {both} of the latency."
        return (
            f"{against} the router alone {router} of the latency, the policy alone {policy}, and "
            f"both {both}."
        )

    def __iter__(self) -> Iterator[RouterLoss]:
        return iter(self.losses)

    def __getitem__(self, pair: tuple[str, str]) -> RouterLoss:
        """Return the loss of a router and a policy by their names."""
        for each in self.losses:
            if (each.run.router, each.run.policy) == pair:
                return each
        there = ", ".join(each.name for each in self.losses)
        raise PolicyError(f"router and policy {pair!r} did not run: {there}")

    def to_dict(self) -> dict[str, object]:
        """Return everything but the runs as plain data, ready for JSON."""
        pairs = [{"router": each.run.router, "policy": each.run.policy} for each in self.least]
        joint = {"objective": self.best.high, "bound": self.best.low, "gap": self.gap}
        return {
            "workers": list(self.workers.memories),
            "unit": self.unit,
            "joint": joint | {"method": self.method},
            "take": pairs[0],
            "tied": pairs,
            "best_deployable": None if self.take.run.knows == "outputs" else pairs[0],
            "alone": self.alone,
            "routers": [each.to_dict() for each in self.losses],
            "seconds": self.seconds,
        }

    def to_html(self, path: str | Path) -> None:
        """Write table and plot as one HTML file that needs no network."""
        write("routing_page", path, self)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot what is lost: placement and order on top of each other, with their intervals."""
        return draw("plot_losses", self, ax)

    def _repr_html_(self) -> str:
        return html("routing_table", self)

    def __repr__(self) -> str:
        names = ", ".join(f"{each.run.router} + {each.run.policy}" for each in self.losses)
        return f"<RoutingLoss of {names}>"

    def __str__(self) -> str:
        low = proven(self.best.low)
        return (
            f"{self.instance}\n{len(self.workers):,} workers: best total latency known "
            f"{number(self.best.high, 10)} {self.unit}, at least {low} by {self.method}, gap "
            f"{percent(self.gap, 2)}\n\n{text('routing_table', self)}\n{self.advice}"
        )


@checked(PolicyError)
def routing_loss(
    instance: Instance,
    workers: int | str | Sequence[int] | Workers,
    routers: Iterable[str | Router] = ("round-robin", "jsq", "least-tokens"),
    policies: Iterable[str | Policy] = ("fcfs", "area"),
    *,
    clock: str | Clock | None = None,
    intervals: str | None = None,
    time_limit: float = 60.0,
    seed: int = 0,
    on_result: Callable[[RoutedRun], None] | None = None,
) -> RoutingLoss:
    r"""Prove how much routers and policies lose against the best placement and order together.

    A run that costs :math:`C` loses :math:`C - \sum_g \mathrm{OPT}_g` by the order on the workers,
    and :math:`\sum_g \mathrm{OPT}_g - \mathrm{OPT}` by the placement, which the split takes first.
    With the interval :math:`[L, U]` of the best joint schedule, and :math:`[\sum_g L_g, \sum_g
    U_g]` of the best schedules of the workers given the placement, the loss lies in :math:`[C - U,
    C - L]`, that of the order in :math:`[C - \sum_g U_g, C - \sum_g L_g]`, and that of the
    placement in :math:`[\max(0, \sum_g L_g - U), \sum_g U_g - L]`.

    Parameters
    ----------
    instance, workers
        As for `run`.
    routers, policies
        Every router is run with every policy, as for `run`.
    clock
        How long batches take. None counts in steps. On a clock everything is compared with the
        bound in seconds, and the loss is not split.
    intervals
        What policies know of outputs, as for `run`, such as "relative:0.5"; None: all. The best
        schedules know all outputs in any case, so losses include the cost of not knowing.
    time_limit
        Seconds for all optima together, shared equally; in steps, since a clock has only a bound.
    seed
        Of all randomness.
    on_result
        Called after each run.

    Raises
    ------
    PolicyError
        If a router or policy is unknown, or a run does not complete all requests.

    Examples
    --------
    >>> from optsched import family, routing_loss
    >>> trace = family("chat-and-summaries", n=200, seed=1)
    >>> found = routing_loss(trace, 4, ["round-robin"], ["fcfs", "area"], time_limit=4)
    >>> fcfs, area = found
    >>> fcfs.loss.high > area.loss.high
    True
    """
    began = stopwatch()
    Options(time_limit)
    several = as_workers(workers, instance)
    timed = None if clock is None else get_clock(clock)
    runs: list[RoutedRun] = []
    for router in get_routers(routers):
        for policy in get_policies(policies):
            made = run(
                instance,
                policy,
                intervals=intervals,
                clock=timed,
                workers=several,
                router=router,
                seed=seed,
            )
            if made.unfinished:
                raise PolicyError(
                    f"router {made.router!r} with policy {made.policy!r} does not complete "
                    f"{made.unfinished} requests; leave the pair out"
                )
            runs.append(made)
            if on_result is not None:
                on_result(made)
    if timed is not None:
        found = [_on_clock(instance, several, timed, runs, storage) for storage in STORAGES]
        losses = tuple(
            RouterLoss(made, found[STORAGES.index(made.facts.storage)][0]) for made in runs
        )
        best, method = next(each for each in found if each[0].high < math.inf)
        seconds = stopwatch() - began
        return RoutingLoss(instance, several, losses, best, method, seconds)
    apart = _given_placement(runs, several, _WORKERS_SHARE * time_limit)
    joint = _jointly(instance, several, runs, (1 - _WORKERS_SHARE) * time_limit)
    known = min(joint.objective, *(part.high for part in apart))
    best = Interval(float(min(math.ceil(joint.bound), known)), float(known))
    losses = tuple(RouterLoss(made, best, part) for made, part in zip(runs, apart, strict=True))
    seconds = stopwatch() - began
    return RoutingLoss(instance, several, losses, best, joint.proof, seconds)


def _on_clock(
    instance: Instance, workers: Workers, clock: Clock, runs: list[RoutedRun], storage: Storage
) -> tuple[Interval, str]:
    """Enclose the least cost where tokens are stored so; infinite where no run stores them so."""
    index = STORAGES.index(storage)
    stored = [STORAGES.index(made.facts.storage) for made in runs]
    if index not in stored:
        return Interval(0.0, math.inf), ""
    proof = bound(instance, clock=clock, workers=workers, storage=storage)
    allowed = [made for made, each in zip(runs, stored, strict=True) if each <= index]
    for made in allowed:
        if why := strongest([proof], made.facts)[1]:
            raise PolicyError(f"{made.router} with {made.policy} has no loss: {why}; leave it out")
    return Interval(proof.value, min(made.total_latency for made in allowed)), proof.method


def _given_placement(runs: list[RoutedRun], workers: Workers, time_limit: float) -> list[Interval]:
    """Return what the best schedules of the workers cost together, given where requests went."""
    placements = {made.placement.tobytes(): made for made in runs}
    share = time_limit / (len(placements) * len(workers))
    found: dict[bytes, list[Interval | None]] = {}
    for key, made in placements.items():
        found[key] = [None if each is None else _best(each, share) for each in made.runs]
    intervals = []
    for made in runs:
        low = high = 0.0
        for part, each in zip(found[made.placement.tobytes()], made.runs, strict=True):
            if part is not None and each is not None:
                low += part.low
                high += min(part.high, each.total_latency)
        intervals.append(Interval(low, high))
    return intervals


def _jointly(
    instance: Instance, workers: Workers, runs: list[RoutedRun], time_limit: float
) -> Optimum:
    """Return the interval of the best schedule of all workers, from the best run on."""
    least = min(runs, key=lambda made: made.total_latency).schedule
    plain = instance.replace(deadlines=None)
    start = Schedule(plain, least.starts, workers=workers, placement=least.placement)
    return solve(plain, workers=workers, time_limit=time_limit, params=SolveParams(start=start))


def _best(own: Run, time_limit: float) -> Interval:
    """Return the interval of the best schedule of one worker; no policy knows of deadlines."""
    found = solve(own.instance.replace(deadlines=None), time_limit=time_limit)
    return Interval(float(math.ceil(found.bound)), float(found.objective))
