"""Runs a routing policy on a cluster whose workers wait for each other (BF-IO Section 6.2)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from optsched.cluster.drift import Gains, gains_of, reservations
from optsched.cluster.information import NEVER, NoInformation, Oracle, Predictor
from optsched.cluster.results import ClusterRun
from optsched.cluster.routing import (
    BalanceRouting,
    PythonRouting,
    RoutingRule,
    get_routing,
)
from optsched.errors import InstanceError, PolicyError
from optsched.simulate.cluster import routing as cluster_routing
from optsched.simulate.cluster.kernels import run_steps
from optsched.simulate.cluster.python import run_steps_in_python
from optsched.simulate.cluster.state import (
    DONE,
    NONE,
    Requests,
    Settings,
    State,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from optsched._internal.arrays import IntArray
    from optsched.cluster.drift import Profiles
    from optsched.cluster.facts import Cluster
    from optsched.cluster.information import Information
    from optsched.cluster.routing import Routing
    from optsched.instance import Instance

REVEAL = 128  # the paper's revelation target
LAST_ARRIVAL = 10**8  # steps; every step is run, an empty one too

_RULES = {
    "fcfs": cluster_routing.FCFS,
    "jsq": cluster_routing.JSQ,
    "round-robin": cluster_routing.ROUND_ROBIN,
    "power-of-d": cluster_routing.POWER_OF_D,
    "lpt": cluster_routing.LPT,
}
_METHODS = {
    "swap": cluster_routing.SWAP,
    "greedy": cluster_routing.GREEDY,
    "deficit": cluster_routing.DEFICIT,
}
_CELLS = 1 << 18  # loads recorded at a time


class ClusterOptions(NamedTuple):
    """How a cluster is run."""

    steps: int | None = None
    drain: bool = False
    reveal: int | None = REVEAL
    drift: int | npt.ArrayLike | Profiles = 1
    dispatch: Literal["pool", "instant"] = "pool"
    record_loads: bool = False


def run_cluster(
    instance: Instance,
    cluster: Cluster,
    policy: str | Routing,
    options: ClusterOptions,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> ClusterRun:
    r"""Run a routing policy on a cluster, step by step, in exact integers."""
    began = time.perf_counter()
    routing = get_routing(policy)
    steps, reveal = options.steps, options.reveal
    instant = options.dispatch == "instant"
    _check(instance, cluster, routing, options)
    lookahead = _window(routing)
    gains = gains_of(instance, options.drift, lookahead)
    requests = _requests(instance, cluster, routing, gains, _stream(seed), instant)
    in_view = len(instance) if reveal is None else min(reveal, len(instance))
    state = _empty(instance, cluster, requests, in_view)
    settings = _settings(routing, cluster, lookahead, in_view, instant)
    recorder = _Recorder(cluster, options.record_loads)
    for limit, revealing in ((steps, True), (None, False)):
        if revealing or (options.drain and steps is not None):
            for _ in _parts(requests, state, settings, routing, recorder, limit, revealing):
                if on_progress is not None:
                    on_progress(int(state.counters[DONE]), len(instance))
    return ClusterRun(
        instance=instance,
        cluster=cluster,
        policy=routing.name,
        revealed=state.revealed,
        starts=state.starts,
        workers=state.workers,
        lookahead=lookahead if isinstance(routing, BalanceRouting) else None,
        seconds=time.perf_counter() - began,
        **recorder.columns(),
    )


def _stream(seed: int) -> np.random.Generator:
    """Return the source of all randomness, another one than a workload of the same seed has."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))


def _check(instance: Instance, cluster: Cluster, routing: Routing, options: ClusterOptions) -> None:
    steps, reveal, dispatch = options.steps, options.reveal, options.dispatch
    if dispatch not in ("pool", "instant"):
        raise PolicyError(f"dispatch is {dispatch!r}, but must be 'pool' or 'instant'")
    if steps is not None and steps < 1:
        raise InstanceError(f"steps is {steps}, but a run has at least 1")
    if reveal is not None and reveal < 1:
        raise InstanceError(f"reveal is {reveal}, but the router must see at least 1 request")
    if instance.arrivals[-1] > LAST_ARRIVAL:
        raise InstanceError(
            f"the last request arrives at step {instance.arrivals[-1]:,}, but at most "
            f"{LAST_ARRIVAL:,} are run; make the steps longer or cut the trace"
        )
    if dispatch == "instant" and isinstance(routing, PythonRouting):
        raise PolicyError("a rule of your own routes from the pool; take dispatch='pool'")
    unequal = len(np.unique(cluster.per_worker("slowness"))) > 1
    if isinstance(routing, BalanceRouting) and routing.method == "deficit" and unequal:
        raise PolicyError("the method 'deficit' needs workers of one slowness; use 'swap'")


def _window(routing: Routing) -> int:
    """Return the longest window that the policy looks at."""
    if isinstance(routing, RoutingRule):
        return 0
    if isinstance(routing, BalanceRouting):
        return routing.window
    lookahead = int(getattr(routing, "lookahead", 0))
    horizon = _information(routing).horizon
    if not 0 <= lookahead <= horizon:
        raise PolicyError(
            f"lookahead of {routing.name} is {lookahead}, but must be from 0 to the {horizon} "
            "steps that the prediction reaches"
        )
    return lookahead


def _information(routing: Routing) -> Information:
    information: Information = getattr(routing, "information", Oracle())
    return information


def _parts(
    requests: Requests,
    state: State,
    settings: Settings,
    routing: Routing,
    recorder: _Recorder,
    limit: int | None,
    revealing: bool,
) -> Iterator[None]:
    """Run part by part, so that memory stays bounded and Ctrl-C is heard."""
    workers = len(state.slots)
    most = max(1, min(4096, _CELLS // workers))
    while limit is None or recorder.steps < limit:
        size = most if limit is None else min(most, limit - recorder.steps)
        loads = np.empty((size, workers), dtype=np.int64)
        active, waiting = np.empty_like(loads), np.empty(size, dtype=np.int64)
        if isinstance(routing, PythonRouting):
            ran = run_steps_in_python(
                requests, state, settings, routing, loads, active, waiting, revealing
            )
        else:
            ran = run_steps(requests, state, settings, loads, active, waiting, size, revealing)
        recorder.add(loads[:ran], active[:ran], waiting[:ran])
        yield
        if ran < size:
            return


class _Recorder:
    """Turns the loads of all workers into columns by step, part by part."""

    def __init__(self, cluster: Cluster, keep_loads: bool) -> None:
        self._cluster = cluster
        self._slowness = cluster.per_worker("slowness")
        self._keep = keep_loads
        self._loads: list[IntArray] = []
        self._parts: dict[str, list[npt.NDArray[Any]]] = {}
        self.steps = 0

    def add(self, loads: IntArray, active: IntArray, waiting: IntArray) -> None:
        work = loads * self._slowness
        most = work.max(axis=1)
        seconds = self._cluster.overhead_s + self._cluster.seconds_per_token * most
        part = {
            "max_work": most,
            "total_work": work.sum(axis=1),
            "total_load": loads.sum(axis=1),
            "active": active.sum(axis=1),
            "waiting": waiting.copy(),
            "watt": self._cluster.power.watt(work, active, seconds),
        }
        for name, column in part.items():
            self._parts.setdefault(name, []).append(column)
        if self._keep:
            self._loads.append(loads)
        self.steps += len(loads)

    def columns(self) -> dict[str, Any]:
        columns: dict[str, Any] = {
            name: np.concatenate(parts) for name, parts in self._parts.items()
        }
        return {**columns, "loads": np.concatenate(self._loads) if self._keep else None}


def _requests(
    instance: Instance,
    cluster: Cluster,
    routing: Routing,
    gains: Gains,
    rng: np.random.Generator,
    instant: bool,
) -> Requests:
    n = len(instance)
    reserved = reservations(instance, gains)
    memory = cluster.per_worker("memory")
    # Bound to a queue, a request cannot go where there is more memory.
    limit = int(memory.min() if instant else memory.max())
    if (reserved > limit).any():
        request = int(np.argmax(reserved > limit))
        raise InstanceError(
            f"request {request}: it may come to hold {reserved[request]:,} tokens, but "
            f"{'not every' if instant else 'no'} worker holds more than {limit:,}; leave it out "
            "or raise the memory",
            request=request,
        )
    patience = np.zeros(n, dtype=np.int64)
    alarms = np.zeros((0, 4), dtype=np.int64)
    if isinstance(routing, BalanceRouting):
        patience = _patience(routing, n)
    information = _information(routing)
    if isinstance(information, Predictor):
        alarms = information.alarms(instance.outputs, rng)
    elif isinstance(information, NoInformation):
        alarms = np.full((n, 4), NEVER)
    choices = routing.choices if isinstance(routing, RoutingRule) else 1
    return Requests(
        # Copies: read-only arrays are another type, for which everything would be compiled again.
        sizes=gains.sizes.copy(),
        outputs=instance.outputs.copy(),
        arrivals=instance.arrivals.copy(),
        reserved=reserved,
        gains=gains.gains,
        first=gains.first,
        last=gains.last,
        growth=gains.growth,
        patience=patience,
        alarms=alarms,
        draws=rng.random((n, choices)),
    )


def _patience(routing: BalanceRouting, n: int) -> IntArray:
    if routing.patience is None:
        return np.zeros(n, dtype=np.int64)
    patience = np.asarray(routing.patience)
    if patience.ndim and len(patience) != n:
        raise PolicyError(f"patience has {len(patience)} entries for {n} requests")
    if patience.dtype.kind not in "iu" or patience.min() < 0:
        raise PolicyError("patience must be whole numbers of steps from 0; 0 waits forever")
    return np.broadcast_to(patience.astype(np.int64), n).copy()


def _settings(
    routing: Routing, cluster: Cluster, lookahead: int, in_view: int, instant: bool
) -> Settings:
    balance = routing if isinstance(routing, BalanceRouting) else None
    adaptive = balance is not None and balance.lookahead == "adaptive"
    return Settings(
        rule=cluster_routing.BALANCE if balance else _RULES.get(routing.name, 0),
        method=_METHODS[balance.method] if balance else 0,
        lookahead=lookahead,
        adaptive=balance.window_scale if balance and adaptive else 0.0,
        rounds=balance.rounds if balance else 0,
        reveal=in_view,
        instant=int(instant),
        limited=int(cluster.memory is not None),
        patient=int(balance is None or balance.patience is None),
    )


def _empty(instance: Instance, cluster: Cluster, requests: Requests, reveal: int) -> State:
    n, workers = len(instance), cluster.workers
    span = int(instance.outputs.max()) + len(requests.growth) + 1

    def zeros(*shape: int) -> IntArray:
        return np.zeros(shape, dtype=np.int64)

    def unset(size: int) -> IntArray:
        return np.full(size, NONE, dtype=np.int64)

    return State(
        counters=zeros(9),
        slots=cluster.per_worker("slots"),
        slowness=cluster.per_worker("slowness"),
        memory=cluster.per_worker("memory"),
        active=zeros(workers),
        loads=zeros(workers, span),
        believed=zeros(workers, span if len(requests.alarms) else 0),
        waiting=zeros(reveal),
        revealed=unset(n),
        starts=unset(n),
        workers=unset(n),
        leaving=unset(span),
        next_leaving=unset(n),
        lasts=zeros(n),
        telling=unset(span),
        next_telling=unset(n),
        queue_head=unset(workers),
        queue_tail=unset(workers),
        queue_next=unset(n),
        queue_length=zeros(workers),
        queue_tokens=zeros(workers),
    )
