"""Runs a router and a policy on several workers, each on its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.errors import PolicyError
from optsched.simulate.replicas.result import RoutedRun
from optsched.simulate.replicas.routing import ask, choices_of, in_turn
from optsched.simulate.runners import runner_of
from optsched.simulate.seconds.execution import ClockedRun, requests_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem.execution import Execution
    from optsched.problem.workers import Router, Workers
    from optsched.simulate.task import Task


def run_routed(task: Task, workers: Workers, router: Router, timed: bool) -> RoutedRun:
    """Send requests to workers as they arrive, and run each worker on what it got."""
    clocks = task.settings.clocks(len(workers))
    placement, seen = _placed(task, workers, router, timed)
    runs: list[Execution | ClockedRun | None] = []
    for worker in range(len(workers)):
        requests = np.flatnonzero(placement == worker)
        if not len(requests):
            runs.append(None)
            continue
        own = _task_of(task, workers, worker, requests)
        runner = runner_of(task.policy)
        if timed:
            runs.append(runner.on_clock(own))
        else:
            assert runner.in_steps is not None
            runs.append(runner.in_steps(own))
        if seen is not None:
            _check(runs[-1], seen(worker, requests))
    return RoutedRun(
        task.instance,
        workers,
        router.name,
        task.policy.name,
        placement,
        tuple(runs),
        task.clock if timed else None,
        clocks if isinstance(task.settings.clock, tuple) else (),
    )


def _placed(
    task: Task, workers: Workers, router: Router, timed: bool
) -> tuple[IntArray, Callable[[int, IntArray], FloatArray] | None]:
    """Return where requests go, and what was seen of each worker meanwhile, to be compared."""
    instance = task.instance
    choices = choices_of(instance, workers, router, task.seed)
    if not router.looks:
        if choices.drawn.shape[1] == 1:
            return choices.drawn[choices.which, 0], None
        return in_turn(choices), None
    requests = requests_of(instance, task.clock)
    policy, paused = task.policy, runner_of(task.policy).paused
    if paused is not None:
        with paused(task, workers) as engines:
            placement = ask(router, engines, instance, workers, requests.arrivals, choices)
        return placement, lambda worker, _: engines.spans(worker)
    whole_runs = policy.needs.kind != "order" or policy.rule == "backfill"
    # Rows of coefficients are all that the kernel for orders knows of different clocks.
    clocks = task.settings.clocks(len(workers))
    functions = len(set(clocks)) > 1 and any(each.coefficients is None for each in clocks)
    if whole_runs or functions:
        from optsched.simulate.replicas.trajectories import Trajectories

        replicas = Trajectories(
            len(workers), lambda index, some: _task_of(task, workers, index, some), timed
        )
        return ask(router, replicas, instance, workers, requests.arrivals, choices), None
    from optsched.simulate.replicas.orders import OrderedWorkers

    memories = np.array(workers.memories)
    ordered = OrderedWorkers(task, memories, clocks)
    if router.function is None:
        placement = ordered.route(choices.drawn, choices.which, router.coefficients(memories))
    else:
        placement = ask(router, ordered, instance, workers, requests.arrivals, choices)
    begun = ordered.begun(placement)
    return placement, lambda _, some: begun[some]


def _task_of(task: Task, workers: Workers, worker: int, requests: IntArray) -> Task:
    """Return what one worker has to do; each draws from a seed of its own."""
    own = task.instance.take(requests)
    if own.memory != workers.memories[worker]:
        own = own.replace(memory=workers.memories[worker])
    seed = task.seed + worker
    task = task.on(task.settings.clocks(len(workers))[worker])
    settings = replace(task.settings, seed=seed, patience=task.patience)
    return task._replace(instance=own, policy=task.policy.seeded(seed), settings=settings)


def _check(run: Execution | ClockedRun | None, seen: FloatArray) -> None:
    """Refuse an order that depends on requests of other workers, by what was seen of the worker."""
    if seen.ndim == 2:  # the spans of its first batches, not when requests began
        assert isinstance(run, ClockedRun)
        times = run.log.spans[: len(seen)]
    elif isinstance(run, ClockedRun):
        times = np.append(run.log.spans[:, 0], np.nan)[run.first_batch]
    else:
        assert run is not None
        times = run.schedule.starts.astype(np.float64)
    there = ~np.isnan(seen)
    if times.shape != seen.shape or not np.array_equal(times[there], seen[there]):
        raise PolicyError(
            f"policy {run.policy!r} orders requests by what is in the instance as a whole, so a "
            "router cannot see what it will do on each worker; use the router round-robin or "
            "random, which look at no worker"
        )
