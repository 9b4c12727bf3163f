"""Where requests go: a router asked at every arrival, and what workers it may choose among."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from optsched.errors import PolicyError
from optsched.problem.workers import Load, RouterState

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem.instance import Instance
    from optsched.problem.workers import Router, Workers


class Observable(Protocol):
    """Workers that can be looked at when a request arrives."""

    def look(self, time: float, indices: IntArray) -> FloatArray:
        """Return the load of workers, shape (workers asked for, 5)."""
        ...

    def place(self, index: int, request: int, time: float) -> None:
        """Let a request come to a worker."""
        ...


class Choices(NamedTuple):
    """The workers among which a router chooses, in rows, and the row of each request."""

    drawn: IntArray  # ascending, filled up with -1
    which: IntArray

    def of(self, request: int) -> IntArray:
        """Return the workers that a request may go to."""
        line: IntArray = self.drawn[self.which[request]]
        return line[line >= 0]


def choices_of(instance: Instance, workers: Workers, router: Router, seed: int) -> Choices:
    """Return the workers where each request may run, or those of them that the router draws."""
    allowed = workers.allowed(instance)
    count = len(workers)
    if router.choices is not None and router.choices < count:
        # Another source of randomness than that of a workload of the same seed.
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,)))
        keys = np.where(allowed, rng.random(allowed.shape), 2.0)
        drawn = np.argpartition(keys, router.choices - 1, axis=1)[:, : router.choices]
        drawn[~np.take_along_axis(allowed, drawn, axis=1)] = count
        which = np.arange(len(instance))
    else:
        lines, which = np.unique(allowed, axis=0, return_inverse=True)
        drawn = np.where(lines, np.arange(count), count)
    drawn.sort(axis=1)
    drawn[drawn == count] = -1
    return Choices(drawn.astype(np.int64), which.reshape(-1).astype(np.int64))


def in_turn(choices: Choices) -> IntArray:
    """Send each request to the next worker in turn where it may run."""
    placement = np.zeros(len(choices.which), dtype=np.int64)
    lines = [line[line >= 0] for line in choices.drawn]
    last = -1
    for request, which in enumerate(choices.which.tolist()):
        line = lines[which]
        place = int(np.searchsorted(line, last, side="right"))
        placement[request] = last = int(line[place % len(line)])
    return placement


def ask(
    router: Router,
    replicas: Observable,
    instance: Instance,
    workers: Workers,
    arrivals: FloatArray,
    choices: Choices,
) -> IntArray:
    """Ask a router at every arrival."""
    placement = np.zeros(len(instance), dtype=np.int64)
    memories = np.array(workers.memories)
    weights, every = router.coefficients(memories), np.arange(len(workers))
    for request, time in enumerate(arrivals.tolist()):
        line = choices.of(request)
        if router.function is None:
            scores = (replicas.look(time, line) * weights[line]).sum(axis=1)
            chosen = int(line[np.argmin(scores)])
        else:
            loads = Load(*replicas.look(time, every).astype(np.int64).T.copy())
            if router.knows == "nothing":
                loads = loads._replace(work=np.zeros_like(loads.work))
            prompt = int(instance.prompts[request])
            state = RouterState(time, request, prompt, line, memories, *loads)
            answer = router.function(state)
            _check(answer, router, instance, request, line, len(workers))
            chosen = int(answer)
        placement[request] = chosen
        replicas.place(chosen, request, time)
    return placement


def _check(
    answer: object, router: Router, instance: Instance, request: int, line: IntArray, count: int
) -> None:
    """Refuse a worker that is not there, or where the request may not run."""
    whole = isinstance(answer, int | np.integer) and not isinstance(answer, bool)
    if whole and answer in line:
        return
    named = f"router {router.name!r} sends request {instance.label(request)} to worker {answer!r}"
    if not whole or not 0 <= answer < count:  # type: ignore[operator]
        raise PolicyError(f"{named}, but workers are numbered from 0 to {count - 1}")
    raise PolicyError(f"{named}, where it may not run; choose one of state.workers")
