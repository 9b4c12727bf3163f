"""Runs a routing policy on a cluster whose workers wait for each other (BF-IO Section 6.2)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from optsched.cluster.drift import Gains, gains_of, reservations
from optsched.cluster.information import NEVER, NoInformation, Oracle, Predictor
from optsched.cluster.results import ClusterRun
from optsched.cluster.routing import (
    BalanceRouting,
    ClusterState,
    PythonRouting,
    RoutingRule,
    get_routing,
)
from optsched.errors import InstanceError, PolicyError
from optsched.simulate import cluster_kernels as kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from optsched.cluster.drift import Profiles
    from optsched.cluster.facts import Cluster
    from optsched.cluster.information import Information
    from optsched.cluster.routing import Routing
    from optsched.instance import Instance, IntArray

REVEAL = 128  # the paper's revelation target
LAST_ARRIVAL = 10**8  # steps; every step is run, an empty one too

_RULES = {"fcfs": 0, "jsq": 1, "round-robin": 2, "power-of-d": 3, "lpt": 4}
_METHODS = {"swap": 0, "greedy": 1, "deficit": 2}
_CELLS = 1 << 18  # loads recorded at a time


def run_cluster(
    instance: Instance,
    cluster: Cluster,
    policy: str | Routing = "bf-io",
    *,
    steps: int | None = None,
    drain: bool = False,
    reveal: int | None = REVEAL,
    drift: int | npt.ArrayLike | Profiles = 1,
    dispatch: Literal["pool", "instant"] = "pool",
    record_loads: bool = False,
    seed: int = 0,
    on_steps: Callable[[int, int], None] | None = None,
) -> ClusterRun:
    r"""Run a routing policy on a cluster, step by step, in exact integers.

    At every step requests are revealed in order of arrival until `reveal` of them wait; the policy
    admits; the step takes :math:`C + t_\ell \max_g a_g L_g` seconds; every running request makes
    one token and gains its drift; those with all tokens leave. A request admitted at step
    :math:`x` runs in steps :math:`x, \dots, x + o_i - 1` with load :math:`s_i + j - 1` in its
    j-th under drift 1.

    Parameters
    ----------
    instance
        The requests. Arrivals are steps; without them all form a backlog from step 0. The memory
        of the instance is not looked at: that of the cluster is.
    cluster
        The workers.
    policy
        A name out of `ROUTINGS`, a `BalanceRouting` with its options, or a rule of your own.
    steps
        Run so many steps, or fewer where all requests are done. None runs until they are.
    drain
        After `steps`, reveal nothing more and run until what was revealed is done.
    reveal
        How many waiting requests the router sees, :math:`R`; None means all that have arrived.
    drift
        Tokens that a request gains per step: a whole number, a sequence by age whose last entry
        repeats, or `Profiles` of each request.
    dispatch
        "pool": a request waits in common until it is admitted. "instant": it is bound to the queue
        of a worker as soon as it is revealed (BF-IO Section 7.3), and queues are served in order.
    record_loads
        Keep the load of every worker at every step.
    seed
        Of whatever is random: ties of "jsq", choices of "power-of-d", errors of a `Predictor`.
    on_steps
        Called now and then with the number of steps that ran and of requests that are done.

    Returns
    -------
    ClusterRun
        Arrays by request and step, and the metrics. Ctrl-C ends the run early and raises; what
        `on_steps` has seen is all that is kept then.

    Raises
    ------
    InstanceError
        If the cluster cannot run these requests.
    PolicyError
        If there is no such policy, or a rule of your own answers what cannot be.

    Examples
    --------
    >>> import optsched
    >>> instance = optsched.Instance([4, 1, 3, 2], [2, 3, 1, 2], memory=99)
    >>> run = run_cluster(instance, optsched.Cluster(workers=2, slots=2), "lpt")
    >>> run.workers, run.starts
    (array([0, 0, 1, 1]), array([0, 0, 0, 0]))
    >>> run.imbalance
    array([0, 4, 3])
    """
    began = time.perf_counter()
    routing = get_routing(policy)
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
    lookahead = routing.window if isinstance(routing, BalanceRouting) else 0
    if isinstance(routing, PythonRouting):
        lookahead = int(getattr(routing, "lookahead", 0))
    information = getattr(routing, "information", Oracle())
    if isinstance(routing, BalanceRouting) and routing.method == "deficit":
        _check_equal(cluster)
    gains = gains_of(instance, drift, lookahead)
    rng = np.random.default_rng(seed)
    requests = _requests(instance, cluster, routing, information, gains, rng, dispatch == "instant")
    revealed_at_most = len(instance) if reveal is None else min(reveal, len(instance))
    state = _empty(instance, cluster, requests, revealed_at_most)
    settings = _settings(routing, cluster, lookahead, revealed_at_most, dispatch == "instant")
    recorder = _Recorder(cluster, record_loads)

    def rows() -> int:
        return max(1, min(4096, _CELLS // cluster.workers))

    def go(limit: int | None, revealing: bool) -> None:
        while limit is None or recorder.steps < limit:
            size = rows() if limit is None else min(rows(), limit - recorder.steps)
            loads = np.empty((size, cluster.workers), dtype=np.int64)
            active, waiting = np.empty_like(loads), np.empty(size, dtype=np.int64)
            if isinstance(routing, PythonRouting):
                ran = _run_python(
                    requests, state, settings, routing, loads, active, waiting, revealing
                )
            else:
                ran = kernels.run_steps(
                    requests, state, settings, loads, active, waiting, size, revealing
                )
            recorder.add(loads[:ran], active[:ran], waiting[:ran])
            if on_steps is not None:
                on_steps(recorder.steps, int(state.counters[kernels.DONE]))
            if ran < size:
                return

    go(steps, revealing=True)
    if drain and steps is not None:
        go(None, revealing=False)
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
    information: Information,
    gains: Gains,
    rng: np.random.Generator,
    instant: bool,
) -> kernels.Requests:
    n = len(instance)
    reserved = reservations(instance, gains)
    memory = cluster.per_worker("memory")
    # Bound to a queue, a request cannot go where there is more memory.
    limit = int(memory.min() if instant else memory.max())
    if (reserved > limit).any():
        request = int(np.argmax(reserved > limit))
        raise InstanceError(
            f"request {request}: it can come to hold {reserved[request]:,} tokens, but "
            f"{'not every' if instant else 'no'} worker holds more than {limit:,}; leave it out "
            "or raise the memory",
            request=request,
        )
    patience = np.zeros(n, dtype=np.int64)
    alarms = np.zeros((0, 4), dtype=np.int64)
    if isinstance(routing, BalanceRouting):
        patience = _patience(routing, n)
    if isinstance(information, Predictor):
        alarms = information.alarms(instance.outputs, rng)
    elif isinstance(information, NoInformation):
        alarms = np.full((n, 4), NEVER)
    choices = routing.choices if isinstance(routing, RoutingRule) else 1
    return kernels.Requests(
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


def _check_equal(cluster: Cluster) -> None:
    if len(set(cluster.per_worker("slowness").tolist())) > 1:
        raise PolicyError("the method 'deficit' needs workers of one slowness; use 'swap'")


def _settings(
    routing: Routing, cluster: Cluster, lookahead: int, reveal: int, instant: bool
) -> kernels.Settings:
    balance = isinstance(routing, BalanceRouting)
    adaptive = isinstance(routing, BalanceRouting) and routing.lookahead == "adaptive"
    return kernels.Settings(
        rule=kernels.BALANCE if balance else _RULES.get(routing.name, 0),
        method=_METHODS[routing.method] if isinstance(routing, BalanceRouting) else 0,
        lookahead=lookahead,
        adaptive=routing.window_scale if adaptive and isinstance(routing, BalanceRouting) else 0.0,
        rounds=routing.rounds if isinstance(routing, BalanceRouting) else 0,
        reveal=reveal,
        instant=int(instant),
        limited=int(cluster.memory is not None),
    )


def _empty(
    instance: Instance, cluster: Cluster, requests: kernels.Requests, reveal: int
) -> kernels.State:
    n, workers = len(instance), cluster.workers
    span = int(instance.outputs.max()) + len(requests.growth) + 1

    def zeros(*shape: int) -> IntArray:
        return np.zeros(shape, dtype=np.int64)

    def nobody(size: int) -> IntArray:
        return np.full(size, kernels.NOBODY, dtype=np.int64)

    return kernels.State(
        counters=zeros(9),
        slots=cluster.per_worker("slots"),
        slowness=cluster.per_worker("slowness"),
        memory=cluster.per_worker("memory"),
        active=zeros(workers),
        loads=zeros(workers, span),
        believed=zeros(workers, span if len(requests.alarms) else 0),
        waiting=zeros(reveal),
        revealed=nobody(n),
        starts=nobody(n),
        workers=nobody(n),
        leaving=nobody(span),
        next_leaving=nobody(n),
        lasts=zeros(n),
        telling=nobody(span),
        next_telling=nobody(n),
        queue_head=nobody(workers),
        queue_tail=nobody(workers),
        queue_next=nobody(n),
        queue_length=zeros(workers),
        queue_tokens=zeros(workers),
    )


def _run_python(
    requests: kernels.Requests,
    state: kernels.State,
    settings: kernels.Settings,
    routing: PythonRouting,
    loads: IntArray,
    active: IntArray,
    waiting: IntArray,
    revealing: bool,
) -> int:
    """Do what `run_steps` does with a rule in Python."""
    counters = state.counters
    for row in range(len(loads)):
        if counters[kernels.DONE] == (
            len(requests.sizes) if revealing else counters[kernels.REVEALED]
        ):
            return row
        if revealing:
            kernels.reveal(requests, state, settings.reveal)
        count = int(counters[kernels.WAITING])
        if count:
            chosen = _ask(requests, state, settings, routing, count)
            stalled = not state.active.any() and (chosen < 0).all()
            all_seen = counters[kernels.REVEALED] == len(requests.sizes)
            if stalled and (not revealing or all_seen or count == settings.reveal):
                raise PolicyError(
                    f"{routing.name} admits nothing at step {counters[kernels.STEP]} although all "
                    "workers are empty, and sees nothing more until it does"
                )
            kernels.admit(requests, state, settings, chosen)
        waiting[row] = counters[kernels.WAITING]
        kernels.advance(requests, state, loads, active, row)
    return len(loads)


def _ask(
    requests: kernels.Requests,
    state: kernels.State,
    settings: kernels.Settings,
    routing: PythonRouting,
    count: int,
) -> IntArray:
    step = int(state.counters[kernels.STEP])
    indices = state.waiting[:count].copy()
    seen = ClusterState(
        step=step,
        loads=kernels.seen_loads(state, settings.lookahead),
        free=state.slots - state.active,
        active=state.active.copy(),
        memory=state.memory.copy(),
        waiting=indices,
        sizes=requests.sizes[indices],
        waited=step - state.revealed[indices],
    )
    chosen = np.asarray(routing.route(seen))
    workers = len(state.slots)
    if chosen.shape != (count,) or chosen.dtype.kind not in "iu":
        raise PolicyError(
            f"{routing.name} must give one whole number for each of {count} waiting requests"
        )
    chosen = chosen.astype(np.int64)
    if ((chosen < kernels.NOBODY) | (chosen >= workers)).any():
        wrong = int(chosen[(chosen < kernels.NOBODY) | (chosen >= workers)][0])
        raise PolicyError(f"{routing.name} chose worker {wrong}, but there are {workers}")
    taken = chosen >= 0
    given = np.bincount(chosen[taken], minlength=workers)
    tokens = np.bincount(
        chosen[taken], weights=requests.reserved[indices][taken], minlength=workers
    )
    over = (given > state.slots - state.active) | (tokens > state.memory)
    if over.any():
        worker = int(np.argmax(over))
        raise PolicyError(
            f"{routing.name} sends {given[worker]} requests to worker {worker} at step {step}, "
            "more than it has slots or memory for"
        )
    return chosen
