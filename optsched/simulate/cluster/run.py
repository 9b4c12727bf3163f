"""Runs a routing policy on a cluster whose workers wait for each other (BF-IO Section 6.2)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arrays import IntArray, records
from optsched._internal.aside import stopwatch
from optsched._internal.compiled import allocating, compiled
from optsched.errors import InstanceError, PolicyError
from optsched.simulate.cluster import kernels
from optsched.simulate.cluster.results import ClusterRun, Gains, Profiles, gains_of, longest_outputs
from optsched.simulate.cluster.routing import (
    NEVER,
    SOLVERS,
    BalanceRouting,
    ClusterState,
    Oracle,
    Predictor,
    RoutingRule,
    get_routing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched._internal.files import JSON
    from optsched.problem.instance import Instance
    from optsched.problem.workers import Cluster
    from optsched.simulate.cluster.routing import Information, PythonRouting, Routing
    from optsched.simulate.settings import RunSettings

    Kernel = Callable[[kernels.KernelState, IntArray | None, kernels.Columns, bool], int]

LAST_ARRIVAL = 10**8  # steps; every step is run, an empty one too
_CELLS = 1 << 18  # loads recorded, or looked at, at a time

# Kernels of one step, for choices that are made in Python.
_reveal, _seen_loads = compiled(kernels.reveal), allocating(kernels.seen_loads)
_admit, _advance = compiled(kernels.admit), compiled(kernels.advance)


def run_cluster(
    instance: Instance,
    policy: str | Routing,
    options: RunSettings,
    on_progress: Callable[[int, int], None] | None = None,
) -> ClusterRun:
    r"""Run a routing policy on a cluster, step by step, in exact integers."""
    began = stopwatch()
    routing = get_routing(policy)
    cluster, kernel, state, believed = prepared(instance, routing, options)
    parts = []
    for steps, revealing in ((options.steps, True), (None, False)):
        if revealing or (options.drain and options.steps is not None):
            for part in _run(kernel, state, believed, steps, revealing):
                parts.append(_summed(cluster, part, options.record_loads))
                if on_progress is not None:
                    on_progress(int(state.now[0].done), len(instance))
    columns: dict[str, Any] = {
        name: np.concatenate([part[name] for part in parts]) for name in parts[0]
    }
    return ClusterRun(
        instance=instance,
        cluster=cluster,
        policy=routing.name,
        revealed=state.requests["revealed"].copy(),
        starts=state.requests["start"].copy(),
        workers=state.requests["worker"].copy(),
        lookahead=state.settings.lookahead if isinstance(routing, BalanceRouting) else None,
        seconds=stopwatch() - began,
        **({"loads": None} | columns),
    )


def prepared(
    instance: Instance, routing: Routing, options: RunSettings
) -> tuple[Cluster, Kernel, kernels.KernelState, IntArray | None]:
    """Return what runs the steps, and on what; what cannot be run is refused."""
    cluster = options.cluster
    assert cluster is not None
    _check(instance, routing, options)
    lookahead = _window(routing)
    gains = gains_of(instance, options.drift, lookahead)
    # Another source of randomness than that of a workload of the same seed.
    rng = np.random.default_rng(np.random.SeedSequence(options.seed, spawn_key=(1,)))
    settings = kernels.ClusterSettings(
        lookahead=lookahead,
        instant=options.dispatch == "instant",
        timed=instance.seconds_per_step is not None,
        overhead_s=cluster.overhead_s,
        seconds_per_token=cluster.seconds_per_token,
    )
    kernel, settings = _kernel(routing, cluster, settings)
    state = _state(instance, cluster, routing, gains, rng, options, settings)
    knows = isinstance(_information(routing), Oracle)
    return cluster, kernel, state, None if knows else np.zeros_like(state.loads)


def _check(instance: Instance, routing: Routing, options: RunSettings) -> None:
    instant = options.dispatch == "instant"
    if instance.seconds_per_step is None and instance.arrivals[-1] > LAST_ARRIVAL:
        raise InstanceError(
            f"the last request arrives at step {instance.arrivals[-1]:,}, but at most "
            f"{LAST_ARRIVAL:,} are run; make the steps longer or cut the trace"
        )
    if instant and not isinstance(routing, RoutingRule | BalanceRouting):
        raise PolicyError("a rule of your own routes from the pool; take the dispatch 'pool'")
    if instant and (patience := getattr(routing, "patience", None)) is not None:
        raise PolicyError(
            f"patience is {patience}, but is for requests that wait until they are routed; "
            "take the dispatch 'pool', or leave it out"
        )


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
    return getattr(routing, "information", Oracle())


def _check_memory(
    instance: Instance, cluster: Cluster, reserved: IntArray, options: RunSettings
) -> None:
    """Refuse requests that may come to hold more than they reserve, or than a worker has."""
    memory, instant = cluster.per_worker("memory"), options.dispatch == "instant"
    missed = instance.outputs > longest_outputs(instance)
    if missed.any() and cluster.memory is not None and not isinstance(options.drift, Profiles):
        request = int(np.argmax(missed))
        raise InstanceError(
            f"request {request}: its output {instance.outputs[request]} is above its output_upper, "
            "for which it reserves memory on a cluster, where nothing is preempted; leave out the "
            "column output_upper, or the memory of the cluster",
            request=request,
        )
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


def _state(
    instance: Instance,
    cluster: Cluster,
    routing: Routing,
    gains: Gains,
    rng: np.random.Generator,
    options: RunSettings,
    settings: kernels.ClusterSettings,
) -> kernels.KernelState:
    n, workers = len(instance), cluster.workers
    memory, reserved = cluster.per_worker("memory"), gains.reserved
    _check_memory(instance, cluster, reserved, options)
    information = _information(routing)
    alarms = np.full((n, 4), NEVER)
    if isinstance(information, Predictor):
        alarms = information.alarms(instance.outputs, rng)
    choices = routing.choices if isinstance(routing, RoutingRule) else 1
    span = int(instance.outputs.max()) + len(gains.growth) + 1
    loads = np.zeros((workers, span), dtype=np.int64)
    return kernels.KernelState(
        settings=settings,
        now=records(1, kernels.NOW),
        time=np.zeros(1),
        arrivals=instance.arrivals.astype(np.float64) * (instance.seconds_per_step or 1.0),
        requests=records(
            n,
            kernels.REQUEST,
            size=gains.sizes,
            output=instance.outputs,
            reserved=reserved,
            patience=_patience(routing, n),
            first=gains.first,
            last=gains.last,
            **dict(zip(("alarm", "end", "false_alarm", "false_end"), alarms.T, strict=True)),
            **dict.fromkeys(("revealed", "start", "worker", "next_queued"), kernels.NONE),
        ),
        workers=records(
            workers,
            kernels.WORKER,
            slots=cluster.per_worker("slots"),
            memory=memory,
            queue_head=kernels.NONE,
        ),
        slowness=cluster.per_worker("slowness"),
        draws=rng.random((n, choices)),
        gains=gains.gains,
        growth=gains.growth,
        loads=loads,
        waiting=np.zeros(n if options.reveal is None else min(options.reveal, n), dtype=np.int64),
        lists=records(span, kernels.LISTS, leaving=kernels.NONE, telling=kernels.NONE),
    )


def _patience(routing: Routing, n: int) -> IntArray | int:
    if not isinstance(routing, BalanceRouting) or routing.patience is None:
        return 0
    patience = np.asarray(routing.patience)
    if patience.ndim and len(patience) != n:
        raise PolicyError(f"patience has {len(patience)} entries for {n} requests")
    if patience.dtype.kind not in "iu" or patience.min() < 0:
        raise PolicyError("patience must be whole numbers of steps from 0; 0 waits forever")
    return patience


def _kernel(
    routing: Routing, cluster: Cluster, settings: kernels.ClusterSettings
) -> tuple[Kernel, kernels.ClusterSettings]:
    """Return what runs the steps, and its settings."""
    limited = cluster.memory is not None and not settings.instant
    if isinstance(routing, RoutingRule):
        return kernels.run_steps, settings._replace(rule=kernels.RULES.index(routing.name))
    if not isinstance(routing, BalanceRouting):
        return partial(_run_choosing, partial(_ask, routing)), settings
    kernel = kernels.run_steps
    if routing.method in SOLVERS:
        kernel = partial(_run_choosing, partial(kernels.choose_solved, routing))
    return kernel, settings._replace(
        rule=kernels.BALANCED,
        limited=limited,
        adaptive=routing.window_scale if routing.lookahead == "adaptive" else 0.0,
        rounds=routing.rounds if routing.method == "swap" else 0,
        patient=routing.patience is None,
    )


def _run(
    kernel: Kernel,
    state: kernels.KernelState,
    believed: IntArray | None,
    steps: int | None,
    revealing: bool,
) -> Iterator[kernels.Columns]:
    """Run part by part, so that memory stays bounded and Ctrl-C is heard."""
    workers = len(state.workers)
    looked_at = max(workers * (1 + state.settings.lookahead), len(state.waiting))  # at a step
    left = np.inf if steps is None else steps
    while left > 0:
        size = int(min(left, max(1, min(4096, _CELLS // looked_at))))
        loads, active = np.empty((2, size, workers), dtype=np.int64)
        waiting, seconds = np.empty(size, dtype=np.int64), np.empty(size)
        columns = kernels.Columns(loads, active, waiting, seconds)
        ran = kernel(state, believed, columns, revealing)
        yield kernels.Columns(loads[:ran], active[:ran], waiting[:ran], seconds[:ran])
        left = left - ran if ran == size else 0


def _summed(cluster: Cluster, columns: kernels.Columns, keep_loads: bool) -> JSON:
    """Return what a run keeps of its steps."""
    work = columns.loads * cluster.per_worker("slowness")
    return {
        "step_seconds": columns.seconds,
        "max_work": work.max(axis=1),
        "total_work": work.sum(axis=1),
        "total_load": columns.loads.sum(axis=1),
        "active": columns.active.sum(axis=1),
        "waiting": columns.waiting,
        "watt": cluster.power.watt(work, columns.active, columns.seconds),
        **({"loads": columns.loads} if keep_loads else {}),
    }


def _run_choosing(
    choose: Callable[[kernels.KernelState, IntArray | None, bool], IntArray],
    state: kernels.KernelState,
    believed: IntArray | None,
    columns: kernels.Columns,
    revealing: bool,
) -> int:
    """Do what `kernels.run_steps` does, with a choice that is made in Python at every step."""
    for row in range(len(columns.waiting)):
        count = _reveal(state, revealing)
        if count == kernels.NONE:
            return row
        if count:
            chosen = choose(state, believed, revealing)
            _admit(state, believed, chosen)
        _advance(state, believed, columns, row)
    return len(columns.waiting)


def _ask(
    routing: PythonRouting, state: kernels.KernelState, believed: IntArray | None, revealing: bool
) -> IntArray:
    """Ask a rule of the user's own where the waiting requests go."""
    count = int(state.now[0].waiting)
    step, workers = int(state.now[0].step), len(state.workers)
    waiting = state.waiting[:count].copy()
    requests = state.requests[waiting]
    seen = ClusterState(
        step=step,
        loads=_seen_loads(state, believed, state.settings.lookahead),
        free=state.workers["slots"] - state.workers["active"],
        active=state.workers["active"].copy(),
        memory=state.workers["memory"].copy(),
        waiting=waiting,
        sizes=requests["size"].copy(),
        waited=step - requests["revealed"],
    )
    chosen = np.asarray(routing.route(seen))
    if chosen.shape != (count,) or chosen.dtype.kind not in "iu":
        raise PolicyError(
            f"{routing.name} must return one whole number for each of {count} waiting requests"
        )
    chosen = chosen.astype(np.int64)
    if (wrong := (chosen < kernels.NONE) | (chosen >= workers)).any():
        raise PolicyError(
            f"{routing.name} chose worker {chosen[wrong][0]}, but there are {workers}"
        )
    taken = chosen >= 0
    given = np.bincount(chosen[taken], minlength=workers)
    tokens = np.bincount(chosen[taken], weights=requests["reserved"][taken], minlength=workers)
    free = state.workers["slots"] - state.workers["active"]
    over = (given > free) | (tokens > state.workers["memory"])
    if over.any():
        worker = int(np.argmax(over))
        raise PolicyError(
            f"{routing.name} sends {given[worker]} requests to worker {worker} at step {step}, "
            "more than it has slots or memory for"
        )
    stalled = not state.workers["active"].any() and not taken.any()
    all_seen = state.now[0].revealed == len(state.requests)
    if stalled and (not revealing or all_seen or count == len(state.waiting)):
        raise PolicyError(
            f"{routing.name} admits nothing at step {step} although all workers are empty, and "
            "sees nothing more until it does"
        )
    return chosen
