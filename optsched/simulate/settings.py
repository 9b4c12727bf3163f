"""What a run is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import inf
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from optsched._internal.arguments import MAX_SEED, as_count, checked
from optsched._internal.arrays import MAX_STEP
from optsched.clock import UNIT, BatchContent, Clock, LinearClock, get_clock
from optsched.errors import InstanceError, PolicyError, nearest
from optsched.policies import Policy, Rule, get_policy
from optsched.problem.workers import Router, Workers, get_router
from optsched.simulate.cluster.routing import get_routing, knows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    import numpy.typing as npt

    from optsched.problem.forecasts import Beliefs
    from optsched.problem.instance import Instance
    from optsched.problem.premises import Knowledge
    from optsched.problem.routing import RouterState
    from optsched.simulate.cluster import Cluster, Profiles

    AnyClock: TypeAlias = str | Clock | Callable[[BatchContent], float]

REVEAL = 128  # the paper's revelation target

_WITHOUT_CLUSTER = ("clock", "intervals", "beliefs", "patience", "rule", "until")
ON_CLUSTER = ("steps", "drain", "reveal", "drift", "dispatch", "record_loads")


@checked(PolicyError)
@dataclass(frozen=True, kw_only=True)
class RunSettings:
    r"""How a policy is run: in steps, on a clock, on several workers or on a cluster.

    Parameters
    ----------
    clock
        How long batches take, as for `get_clock`: "unit", "affine:D0,D1", the name of a profiled
        model, a clock, or a function; or on several workers one such clock for each. None: one step
        each, and times are counted in steps.
    cluster
        Workers that wait for each other. At every step requests are revealed in order of arrival;
        the policy admits; the step takes :math:`C + t_\ell \max_g a_g L_g` seconds; every running
        request makes one token and gains its drift. The memory is that of the cluster.
    workers
        Workers that run independently: their number, each with the memory of the instance; their
        memories; or `Workers`. The policy runs on each of them, with the requests that the router
        sends there when they arrive, and with the seed plus the number of the worker.
    router
        Where requests go: a name out of `optsched.problem.workers.ROUTERS`, a `Router`, or a
        function of a `RouterState` that returns a worker. None: "least-tokens".
    intervals
        What the policy may know of the outputs, as for `forecast`: "exact", "common:L,U",
        "classes:W", "relative:X" or "column". None: the outputs, for policies that need them.
        Policies that look at no outputs, such as "vllm", run the same under all.
    beliefs
        Which outputs are likely, or completed requests from which that is learned, for policies
        under intervals that ask for it, as "area-chance" does and "a-min" does not. None: these
        learn a belief.
    rule
        What happens when a request does not fit: "prefix" (none passes it), "skip", "backfill" or
        "window", perhaps with a ratio and a length as in "window:1.4,64"; all but the first for
        policies that know the outputs.
    seed
        Of all randomness in the policy; the same seed gives the same run.
    patience
        Steps without a completion or an arrival after which a run that may never end is given up.
        None: a hundred times the largest output, but at least 10,000.
    until
        On a clock: form no batch at or after this time; what is unfinished then is counted.
    steps
        On a cluster: number of steps to run (None: until everything is done).
    drain
        On a cluster: after `steps` reveal nothing more and finish what was revealed.
    reveal
        On a cluster: how many waiting requests the router sees; None: all arrivals.
    drift
        On a cluster: tokens that a request gains per step, a number, a sequence by age, or
        `optsched.simulate.cluster.Profiles`.
    dispatch
        On a cluster: "pool", or "instant" into the queue of a worker.
    record_loads
        On a cluster: keep the load of every worker at every step.

    Raises
    ------
    PolicyError, ClockError
        If settings contradict each other, one is out of range, or the clock does not exist.

    Examples
    --------
    >>> from optsched import Instance, RunSettings, run
    >>> settings = RunSettings(clock="affine:0.01,0.001", until=9.0)
    >>> run(Instance([62, 62], [2, 1], memory=64), "fcfs", settings).completions
    array([0.147, 0.22 ])
    """

    clock: AnyClock | Sequence[AnyClock] | None = None
    cluster: Cluster | None = None
    workers: int | str | Sequence[int] | Workers | None = None
    router: str | Router | Callable[[RouterState], int] | None = None
    intervals: str | None = None
    beliefs: Beliefs | Instance | None = None
    rule: Rule = "prefix"
    seed: int = 0
    patience: int | None = None
    until: float = inf
    steps: int | None = None
    drain: bool = False
    reveal: int | None = REVEAL
    drift: float | npt.ArrayLike | Profiles = 1
    dispatch: Literal["pool", "instant"] = "pool"
    record_loads: bool = False

    def __post_init__(self) -> None:
        as_count("seed", self.seed, 0, MAX_SEED, error=PolicyError)
        if self.patience is not None:
            as_count("patience", self.patience, most=MAX_STEP, error=PolicyError)
        if isinstance(self.clock, list | tuple):
            object.__setattr__(self, "clock", self._clocks(self.clock))
        elif self.clock is not None:
            one: Any = self.clock
            object.__setattr__(self, "clock", get_clock(one))
        if self.cluster is not None:
            self._check_cluster()
            return
        if wrong := self._given(ON_CLUSTER):
            raise PolicyError(
                f"{wrong[0]} is for a run on a cluster; give cluster=Cluster(...) too"
            )
        if self.router is not None and self.workers is None:
            raise PolicyError("a router chooses among several workers; pass workers, such as 8")
        if self.clock is None and self.until < inf:
            raise PolicyError(
                f"until is {self.until:g}, but only runs on a clock can be stopped; pass a clock"
            )
        if self.until < 0:
            raise PolicyError(f"until is {self.until:g}, but must be a time of at least 0")
        if self.beliefs is not None and self.workers is not None:
            raise PolicyError("beliefs are about the requests of one worker; leave them out")
        if self.beliefs is not None and self.intervals is None:
            raise PolicyError(
                "beliefs or a history say which outputs in an interval are likely; pass intervals "
                "too, such as common:1,1000"
            )

    def _clocks(self, given: Sequence[Any]) -> Clock | tuple[Clock, ...]:
        """Return the clocks of workers, one where all have the same."""
        clocks = tuple(map(get_clock, given))
        if self.workers is None or not clocks:
            raise PolicyError(
                "several clocks are those of several workers; pass workers too, or one clock"
            )
        if len({clock.unit for clock in clocks}) > 1:
            raise PolicyError("of the clocks of workers some count seconds and others steps")
        return clocks[0] if all(clock == clocks[0] for clock in clocks) else clocks

    def _check_cluster(self) -> None:
        if self.workers is not None or self.router is not None:
            raise PolicyError(
                "a cluster is of workers that wait for each other and has routers of its own, "
                "passed as the policy; leave the cluster out, or workers and router"
            )
        if wrong := self._given(_WITHOUT_CLUSTER):
            raise PolicyError(f"{wrong[0]} is for one worker; leave it or the cluster out")
        if self.dispatch not in ("pool", "instant"):
            raise PolicyError(f"dispatch is {self.dispatch!r}, but must be 'pool' or 'instant'")
        if self.steps is not None and self.steps < 1:
            raise InstanceError(f"steps is {self.steps}, but a run has at least 1")
        if self.reveal is not None and self.reveal < 1:
            raise InstanceError(
                f"reveal is {self.reveal}, but the router must see at least 1 request"
            )

    def _given(self, names: Sequence[str]) -> list[str]:
        """Return the names of the settings that differ from their defaults."""
        found = []
        for each in fields(self):
            value, usual = getattr(self, each.name), each.default
            if each.name in names and not (type(value) is type(usual) and value == usual):
                found.append(each.name)
        return sorted(found, key=list(names).index)

    def of(self, policy: Policy) -> RunSettings:
        """Return the settings for one policy among several: beliefs only where it looks at them."""
        return replace(self, beliefs=policy.asks_for(self.beliefs))

    def knows(self, policy: Any, instance: Instance) -> Knowledge:
        """Return what a policy, by name too, and the router are told of outputs before they end."""
        if self.cluster is not None:
            return knows(get_routing(policy), self.cluster, instance, self.drift)
        if self.router is not None and get_router(self.router).knows == "outputs":
            return "outputs"
        return get_policy(policy).knows(instance, self.intervals)

    @property
    def batch_clock(self) -> Clock:
        """How long batches take; in steps that of the unit clock, of several that of the first."""
        timed: Any = self.clock
        return UNIT if timed is None else timed[0] if isinstance(timed, tuple) else timed

    def clocks(self, workers: int) -> tuple[Clock, ...]:
        """Return the clock of each of so many workers."""
        if not isinstance(self.clock, tuple):
            return (self.batch_clock,) * workers
        if len(self.clock) != workers:
            raise PolicyError(f"there are {len(self.clock)} clocks for {workers} workers")
        return self.clock


def settings_of(
    settings: RunSettings | None, options: Mapping[str, Any], verb: str = "run"
) -> RunSettings:
    """Return settings in which the options that a caller named replace the fields."""
    known = [each.name for each in fields(RunSettings)]
    for name in options:
        if name not in known:
            raise PolicyError(f"{verb} has no option {name!r}: {nearest(name, known)}")
    return replace(RunSettings() if settings is None else settings, **options)


class RunOptions(TypedDict, total=False):
    """Options of a run that do not decide what comes of it, as keywords."""

    on_progress: Callable[[int, int], None] | None
    router: str | Router | Callable[[RouterState], int] | None
    intervals: str | None
    beliefs: Beliefs | Instance | None
    rule: Rule
    seed: int
    patience: int | None
    until: float
    steps: int | None
    drain: bool
    reveal: int | None
    drift: float | npt.ArrayLike | Profiles
    dispatch: Literal["pool", "instant"]
    record_loads: bool


class Task(NamedTuple):
    """A policy to run on an instance, on one worker."""

    instance: Instance
    policy: Any
    settings: RunSettings
    on_progress: Callable[[int, int], None] | None = None

    @property
    def clock(self) -> Clock:
        """How long batches take; in steps that of the unit clock."""
        return self.settings.batch_clock

    @property
    def timed(self) -> bool:
        """Whether it is on a clock."""
        return self.settings.clock is not None

    @property
    def barrier(self) -> bool:
        """Whether workers share experts, and wait for each other in every batch."""
        given = self.settings.clock
        clocks = given if isinstance(given, tuple) else (self.clock,)
        return any(isinstance(each, LinearClock) and each.shared is not None for each in clocks)

    def on(self, clock: Clock) -> Task:
        """Return the same on another clock, if the settings have one at all."""
        if not self.timed or clock == self.settings.clock:
            return self
        return self._replace(settings=replace(self.settings, clock=clock))

    @property
    def patience(self) -> int:
        """Steps without a completion or an arrival after which the run is given up."""
        given = self.settings.patience
        return max(10_000, 100 * int(self.instance.outputs.max())) if given is None else given
