"""Which request goes to which worker: rules by name, BF-IO with its options, rules of your own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from optsched._internal.arguments import as_count, checked
from optsched.errors import PolicyError, require_distinct, require_known
from optsched.problem.premises import KNOWLEDGE, Knowledge
from optsched.simulate.cluster.results import Profiles

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from optsched._internal.arrays import IntArray
    from optsched.problem.instance import Instance
    from optsched.problem.workers import Cluster

LONGEST_LOOKAHEAD = 10_000
METHODS = ("swap", "greedy", "highs", "cp-sat")  # of BF-IO's step program
SOLVERS = ("highs", "cp-sat")
NEVER = np.iinfo(np.int64).max // 4


@dataclass(frozen=True)
class Oracle:
    """All completions inside the window are known."""

    exact = True
    horizon: int = NEVER


@dataclass(frozen=True)
class NoInformation:
    """Nothing is known: every request that runs is read as lasting beyond the window."""

    horizon: int = NEVER


@checked(PolicyError)
@dataclass(frozen=True)
class Predictor:
    """A signal with errors: a request announces its end, at most a given number of steps before.

    Parameters
    ----------
    horizon
        Steps ahead that the signal reaches; no lookahead can be longer.
    misses
        Share of the requests that end without any announcement.
    false_alarms
        Share of the requests that, at a random age, announce an end within the horizon that does
        not come; the router believes it until that step has passed.
    noise
        Standard deviation, in steps, of the announced end. An end announced too early is put off
        step by step until it comes.
    relative_error
        The same as a share of the output; the variances of the two add up.

    Examples
    --------
    >>> Predictor(horizon=20, misses=0.1)
    Predictor(horizon=20, misses=0.1, false_alarms=0.0, noise=0.0, relative_error=0.0)
    """

    horizon: int
    misses: float = 0.0
    false_alarms: float = 0.0
    noise: float = 0.0
    relative_error: float = 0.0

    def __post_init__(self) -> None:
        for name in ("misses", "false_alarms"):
            if not 0 <= getattr(self, name) <= 1:
                raise PolicyError(f"{name} is {getattr(self, name)}, but must be a share, 0 to 1")
        for name in ("horizon", "noise", "relative_error"):
            if not 0 <= getattr(self, name) < np.inf:
                value = getattr(self, name)
                raise PolicyError(f"{name} is {value}, but must not be negative, nor infinite")

    @property
    def exact(self) -> bool:
        """Whether it announces all ends as they are."""
        return not (self.misses or self.false_alarms or self.noise or self.relative_error)

    def alarms(self, outputs: IntArray, rng: np.random.Generator) -> IntArray:
        """Draw what requests with these outputs announce, shape (n, 4).

        By column: the age at which the end is announced, the age announced as the end, and the same
        of a false alarm; `NEVER` where there is none.
        """
        n = len(outputs)
        deviations = np.hypot(self.noise, self.relative_error * outputs)
        end = np.maximum(1, outputs + np.rint(rng.normal(0, deviations)).astype(np.int64))
        alarm = np.maximum(0, end - self.horizon)
        missed = rng.random(n) < self.misses
        # A false alarm must be false: it is over before the request is.
        latest = outputs - 1 - self.horizon
        false = (rng.random(n) < self.false_alarms) & (latest > 0) & (self.horizon > 0)
        age = rng.integers(0, np.maximum(latest, 1))
        false_end = age + rng.integers(1, max(self.horizon, 1) + 1, n)
        return np.stack(
            [
                np.where(missed, NEVER, alarm),
                np.where(missed, NEVER, end),
                np.where(false, age, NEVER),
                np.where(false, false_end, NEVER),
            ],
            axis=1,
        )


Information = Oracle | NoInformation | Predictor

_ORACLE = Oracle()


@checked(PolicyError)
@dataclass(frozen=True)
class RoutingRule:
    """A rule without parameters that looks at counts or current loads.

    Parameters
    ----------
    name
        One of "fcfs", "jsq", "round-robin", "power-of-d" and "lpt".
    choices
        Workers that "power-of-d" draws per request.

    Examples
    --------
    >>> RoutingRule("lpt").description
    'oldest requests, largest first to the lightest worker'
    """

    name: str
    choices: int = 2

    def __post_init__(self) -> None:
        require_known("routing rule", self.name, set(_DESCRIPTIONS) - {"bf-io"}, PolicyError)
        if self.choices < 1:
            raise PolicyError(f"choices is {self.choices}, but at least 1 worker must be drawn")
        if self.name != "power-of-d" and self.choices != RoutingRule.choices:
            raise PolicyError(
                f"choices is {self.choices}, but is for 'power-of-d', not {self.name!r}; leave it "
                "out"
            )

    @property
    def description(self) -> str:
        """What the rule does, in a few words."""
        return _DESCRIPTIONS[self.name]


@checked(PolicyError)
@dataclass(frozen=True, eq=False)
class BalanceRouting:
    r"""BF-IO: at every step the assignment of least accumulated imbalance (BF-IO Alg. 1).

    Requests to admit are assumed to last beyond the window; requests that run end as `information`
    says.

    Parameters
    ----------
    lookahead
        The window :math:`H` in steps, or "adaptive": `window_scale` times
        :math:`(1 + 7.5 \, \bar d / \bar s) \, \bar o / B`, at most `longest`, where
        :math:`\bar o`, :math:`\bar s` and :math:`\bar d` are the running means of outputs, prompts
        and tokens gained. The two constants were fitted (papers/docs/theorems.md).
    method
        "swap" or "greedy"; "highs" and "cp-sat" solve the program of every step, which takes
        thousands of times as long.
    patience
        Steps after which a request is admitted almost at any price: the bonus for its admission
        grows with the square of its wait, and then exceeds any cost of its admission. One
        number, or one per request, which makes classes of service; 0 means that it may wait
        forever, None that all may. Not with the dispatch "instant", where none waits.
    information
        What the router knows of running requests.
    rounds
        Maximum number of rounds of improvement by "swap".
    window_scale, longest
        Of the adaptive window.
    time_limit
        Seconds that a solver may take for a step, which then has the best assignment known; None
        for no limit.

    Raises
    ------
    PolicyError
        If a number is not possible, or would not count with this method and lookahead, or the
        lookahead is longer than the information reaches.

    Examples
    --------
    >>> from optsched.simulate.cluster import Predictor
    >>> BalanceRouting(lookahead=40, information=Predictor(horizon=20))
    Traceback (most recent call last):
        ...
    optsched.errors.PolicyError: lookahead is 40, but the prediction reaches only 20 steps; reduce
    the lookahead or use a longer prediction
    """

    lookahead: int | Literal["adaptive"] = 20
    method: Literal["swap", "greedy", "highs", "cp-sat"] = "swap"
    patience: int | npt.ArrayLike | None = None
    information: Information = _ORACLE
    name: str = "bf-io"
    rounds: int = 100
    window_scale: float = 1.2
    longest: int = 100
    time_limit: float | None = None

    def __post_init__(self) -> None:
        window = as_count("lookahead", self.window, 0, LONGEST_LOOKAHEAD, error=PolicyError)
        if window > self.information.horizon:
            raise PolicyError(
                f"lookahead is {window}, but the prediction reaches only "
                f"{self.information.horizon} steps; reduce the lookahead or use a longer prediction"
            )
        require_known("method", self.method, METHODS, PolicyError)
        if self.time_limit is not None and not self.time_limit > 0:
            raise PolicyError(f"time_limit is {self.time_limit}, but must be positive seconds")
        if not self.window_scale > 0:
            raise PolicyError(f"window_scale is {self.window_scale}, but must be positive")
        self._refuse_unused()

    def _refuse_unused(self) -> None:
        """Refuse what was changed but does not count, given method and lookahead."""
        solved, adaptive = self.method in SOLVERS, self.lookahead == "adaptive"
        for name, used, purpose in (
            ("time_limit", solved, "the methods 'highs' and 'cp-sat'"),
            ("rounds", self.method == "swap", "the method 'swap'"),
            ("window_scale", adaptive, "the lookahead 'adaptive'"),
            ("longest", adaptive, "the lookahead 'adaptive'"),
        ):
            value = getattr(self, name)
            if not used and value != getattr(BalanceRouting, name):
                raise PolicyError(f"{name} is {value}, but is for {purpose}; leave it out")

    @property
    def window(self) -> int:
        """The longest window that is looked at."""
        return self.longest if self.lookahead == "adaptive" else self.lookahead

    @property
    def description(self) -> str:
        """What the policy does, in a few words."""
        text = f"least imbalance over {self.lookahead} further steps"
        if self.lookahead == "adaptive":
            text = "least imbalance over a window that follows the outputs"
        return text if self.patience is None else f"{text}, patience bounded"


@dataclass(frozen=True)
class ClusterState:
    """What a rule of your own sees at a step."""

    step: int
    loads: IntArray  # tokens before admission, over the window asked for: (workers, lookahead + 1)
    free: IntArray  # slots, shape (workers,)
    active: IntArray  # running requests, shape (workers,)
    memory: IntArray  # tokens not reserved, shape (workers,)
    waiting: IntArray  # indices of requests, oldest first
    sizes: IntArray  # their prompts
    waited: IntArray  # steps since they were revealed


@runtime_checkable
class PythonRouting(Protocol):
    """A rule of your own; `lookahead` asks for a window, `information` says what it shows."""

    @property
    def name(self) -> str:
        """Short name for tables."""
        ...

    def route(self, state: ClusterState) -> npt.ArrayLike:
        """Return a worker for each waiting request, or -1 to let it wait."""
        ...


Routing = RoutingRule | BalanceRouting | PythonRouting

_DESCRIPTIONS = {
    "fcfs": "oldest request to the worker with most free slots",
    "jsq": "oldest request to the worker with fewest requests",
    "round-robin": "oldest request to the next worker in turn",
    "power-of-d": "oldest request to the emptier of two workers drawn at random",
    "lpt": "oldest requests, largest first to the lightest worker",
    "bf-io": "least imbalance over a window",
}

#: All routing policies by the name that the command line knows.
ROUTINGS: dict[str, RoutingRule | BalanceRouting] = {
    name: BalanceRouting() if name == "bf-io" else RoutingRule(name) for name in _DESCRIPTIONS
}


def knows(routing: Routing, cluster: Cluster, instance: Instance, drift: object = 1) -> Knowledge:
    """Return what a routing policy is told of an output before its end; limited memory counts."""
    profiles, information = isinstance(drift, Profiles), getattr(routing, "information", _ORACLE)
    bounded: Knowledge = "outputs" if profiles or instance.output_upper is None else "forecast"
    told = [bounded] if cluster.memory is not None else []
    if getattr(routing, "window", getattr(routing, "lookahead", 0)):
        told += ["forecast"] if profiles else []  # how requests grow on average
        if not isinstance(information, NoInformation):
            told.append("outputs" if information.exact else "forecast")
    return min(told, key=KNOWLEDGE.index, default="nothing")


def get_routing(routing: str | Routing, **options: Any) -> Routing:
    """Return a routing policy by name, with options of `BalanceRouting`; objects pass through."""
    if isinstance(routing, str):
        require_known("routing policy", routing, ROUTINGS, PolicyError)
        found = ROUTINGS[routing]
        if isinstance(found, BalanceRouting):
            return replace(found, **options)
        routing = found
    if not isinstance(routing, (RoutingRule, BalanceRouting, PythonRouting)):
        raise PolicyError(
            f"policy {routing.name!r} admits requests on one worker, or on several without a "
            "barrier: pass workers in place of the cluster, or a routing such as bf-io"
            if hasattr(routing, "needs")
            else f"{routing!r} is not a routing policy: it needs a name and a method route"
        )
    if options:
        raise PolicyError(
            f"{', '.join(options)}: options are for the name 'bf-io', and {routing.name!r} has "
            "none; leave them out"
        )
    return routing


def get_routings(routings: Iterable[str | Routing]) -> list[Routing]:
    """Look several routing policies up, each at most once."""
    found = [get_routing(routing) for routing in routings]
    require_distinct("routing policy", [routing.name for routing in found], ROUTINGS)
    return found
