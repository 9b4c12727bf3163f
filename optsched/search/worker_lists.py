"""Lists for several workers: the window rule of `optsched.admission`, with a choice of worker.

Each request in turn starts on the worker where it leaves the least room (best fit). The head is the
first that waits for a worker, among those that may run on the same workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.arrays import ranks_in
from optsched._internal.aside import interruptible_kernel
from optsched._internal.compiled import compiled
from optsched.admission import NEVER, let_wait, require_steps
from optsched.problem.schedule import Schedule
from optsched.search.moves import Places

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.problem.instance import Instance
    from optsched.problem.workers import Workers


def list_on_workers(
    instance: Instance,
    workers: Workers,
    key: npt.NDArray[np.float64] | IntArray,
    ratio: float,
    length: int,
    releases: IntArray | None = None,
) -> Schedule:
    """Start requests by ascending key under the window rule; `releases` may make some wait."""
    order = np.argsort(key, kind="stable")
    rank = ranks_in(order)
    from_then = instance.arrivals if releases is None else np.maximum(releases, instance.arrivals)
    arriving = rank[np.lexsort((rank, from_then))]
    places = Places.of(instance, workers)
    sorted_places = places._replace(kind=places.kind[order])
    areas = instance.areas[order].astype(np.float64)
    least = np.minimum.accumulate(areas[::-1])[::-1].copy()
    require_steps(instance.outputs, len(workers))
    ring = 1 << int(instance.outputs.max() + 1).bit_length()
    starts, placement = np.full((2, len(instance)), -1, dtype=np.int64)
    admit = interruptible_kernel(admit_on_workers, len(instance))
    admit(
        Listed(
            instance.prompts[order],
            instance.outputs[order],
            areas,
            least,
            from_then[order],
            arriving,
        ),
        sorted_places,
        float(ratio),
        length,
        np.zeros((len(workers), ring), dtype=np.int64),
        np.zeros((2, len(workers), int(instance.outputs.max()) + 1), dtype=np.int64),
        starts,
        placement,
    )
    placed = placement[rank]
    return Schedule(instance, starts[rank], "window list", workers=workers, placement=placed)


class Listed(NamedTuple):
    """Requests by urgency."""

    prompts: IntArray
    outputs: IntArray
    areas: FloatArray
    least: FloatArray  # of the areas of each and of all after it
    releases: IntArray
    arriving: IntArray  # their numbers by release


@compiled
def admit_on_workers(
    listed: Listed,
    places: Places,
    ratio: float,
    length: int,
    usage: IntArray,
    room: IntArray,
    starts: IntArray,
    placement: IntArray,
) -> None:
    """Start all; `usage` holds the steps ahead of each worker in rings, `room` the least left."""
    prompts, outputs, areas, least, releases, arriving = listed
    memories, kinds, allowed = places
    count, workers, ring = len(prompts), len(memories), usage.shape[1]
    waiting = np.empty(2 * count, dtype=np.int64)
    not_before = np.empty(count, dtype=np.int64)
    known, most = np.empty(workers, dtype=np.int64), np.empty(workers, dtype=np.float64)
    seen = np.empty(len(allowed), dtype=np.int64)
    released, begin, end = 0, count, count
    left = count
    clock = releases[arriving[0]]
    while left > 0:
        while released < count and releases[arriving[released]] <= clock:
            index = arriving[released]
            released += 1
            not_before[index] = clock
            begin, end = let_wait(waiting, begin, end, index)
        due = releases[arriving[released]] if released < count else NEVER
        for worker in range(workers):
            known[worker], most[worker] = 0, -1.0
        for kind in range(len(seen)):
            seen[kind] = 0
        place, open_kinds, open_workers, highest = begin, len(seen), workers, 0.0
        while place < end and open_kinds > 0:
            index = waiting[place]
            if open_workers == 0 and least[index] > highest:
                break
            place += 1
            kind = kinds[index]
            if seen[kind] >= length:
                continue
            area = areas[index]
            chosen, tightest, wait = -1, NEVER, NEVER
            if not_before[index] <= clock and (open_workers > 0 or area <= highest):
                prompt, output = prompts[index], outputs[index]
                for worker in range(workers):
                    if not allowed[kind, worker]:
                        continue
                    upto = known[worker]
                    if upto == 0:
                        room[0, worker, 0] = memories[worker]
                        room[1, worker, 0] = 0
                    while upto < output:  # so many steps of the least room are up to date
                        upto += 1
                        free = memories[worker] - upto - usage[worker, (clock + upto) & (ring - 1)]
                        if free < room[0, worker, upto - 1]:
                            room[0, worker, upto], room[1, worker, upto] = free, upto
                        else:
                            room[0, worker, upto] = room[0, worker, upto - 1]
                            room[1, worker, upto] = room[1, worker, upto - 1]
                    if upto > known[worker]:
                        known[worker] = upto
                    slack = room[0, worker, output] - prompt
                    if slack < 0:  # until its own part has shrunk enough, or that step is over
                        delay = min(-slack, room[1, worker, output])
                        wait = min(wait, delay)
                    elif slack < tightest and (most[worker] < 0 or area <= most[worker]):
                        chosen, tightest = worker, slack
                if chosen >= 0:
                    for token in range(1, output + 1):
                        usage[chosen, (clock + token) & (ring - 1)] += prompt + token
                    known[chosen] = 0
                    starts[index], placement[index] = clock, chosen
                    left -= 1
                    begin += 1
                    for other in range(place - 1, begin - 1, -1):
                        waiting[other] = waiting[other - 1]
                    continue
                if wait < NEVER:
                    not_before[index] = clock + wait
            seen[kind] += 1
            if seen[kind] == length:
                open_kinds -= 1
            head = False
            for worker in range(workers):
                if allowed[kind, worker] and most[worker] < 0:
                    head = True
                    most[worker] = ratio * area
                    open_workers -= 1
                    highest = max(highest, most[worker])
            if not_before[index] > clock and (head or area <= highest):
                due = min(due, not_before[index])
        if left == 0:
            break
        if due - clock >= ring:
            for worker in range(workers):
                for step in range(ring):
                    usage[worker, step] = 0
        else:
            for step in range(clock + 1, due + 1):
                for worker in range(workers):
                    usage[worker, step & (ring - 1)] = 0
        clock = due
