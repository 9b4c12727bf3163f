"""The fewest workers for objectives over all schedules there are, for tiny instances.

For every way to let some requests miss, every placement of the others on workers and every sequence
of batches, as in `brute_force_clocked`; in steps over all starts.
"""

import heapq
import itertools

import numpy as np
from brute_force_clocked import moves

from optsched.clock import BatchContent

ROUNDING = 1e-9


def reachable(requests, clock, memory, most, storage):
    """Whether a worker serves (prompt, output, arrival, limits) requests within all limits.

    The worker forms any batches and may wait; each request must have its tokens within its limits.
    """
    begin = tuple((0, 0, None) for _ in requests)
    seen, todo = set(), [(0.0, 0, begin)]
    turns = itertools.count(1)
    while todo:
        now, _, state = heapq.heappop(todo)
        if all(
            made == output for (_, made, _), (_, output, *_) in zip(state, requests, strict=True)
        ):
            return True
        arrived = sum(arrival <= now for _, _, arrival, _ in requests)
        if (arrived, state) in seen:  # earlier is as good
            continue
        seen.add((arrived, state))
        left = [i for i, r in enumerate(requests) if state[i][1] < r[1]]
        if any(is_late(requests[i], now, state[i]) for i in left):
            continue
        here = [i for i in left if requests[i][2] <= now]
        later = [requests[i][2] for i in left if requests[i][2] > now]
        if later:
            heapq.heappush(todo, (min(later), next(turns), state))
        for choice in itertools.product(*(moves(*requests[i][:2], *state[i][:2]) for i in here)):
            if not 0 < sum(any(own) for _, own in choice) <= most:
                continue
            content = [sum(each) for each in zip(*(own for _, own in choice), strict=True)]
            held = [state[i][0] for i in range(len(requests))]
            for i, (new, _) in zip(here, choice, strict=True):
                newest = new[1] and new[0] == requests[i][0] + new[1]
                held[i] = new[0] - bool(storage == "next-batch" and newest)
            if sum(held) > memory:
                continue
            end = now + clock(BatchContent(*content))
            after, good = list(state), True
            for i, (new, _) in zip(here, choice, strict=True):
                first = state[i][2]
                if first is None and new[1]:
                    first = end
                done = new[1] == requests[i][1]
                after[i] = (0 if done else new[0], new[1], first)
                if done and state[i][1] < new[1]:
                    good = good and is_met(requests[i], first, end)
            if good:
                heapq.heappush(todo, (end, next(turns), tuple(after)))
    return False


def is_late(request, now, state):
    """Whether a request that is not complete can no longer be within its limits."""
    _, output, arrival, limits = request
    first = state[2]
    if now - arrival > limits.get("latency", np.inf) * (1 + ROUNDING):
        return True
    if first is None:
        return now - arrival > limits.get("ttft", np.inf) * (1 + ROUNDING)
    if output > 1:
        return now - first > limits.get("tpot", np.inf) * (output - 1) * (1 + ROUNDING)
    return False


def is_met(request, first, end):
    """Whether a request that had its first token and its last at these times is within limits."""
    _, output, arrival, limits = request
    spent = {"latency": end - arrival, "ttft": first - arrival}
    if output > 1:
        spent["tpot"] = (end - first) / (output - 1)
    slack = 1 + ROUNDING
    return all(spent.get(m, 0.0) <= limit * slack for m, limit in limits.items())


def fewest_workers(instance, clock, goals, most=99, storage="at-once", arrivals=None):
    """Return the fewest workers, at most one per request; None if there are never enough.

    A goal is its limits and how many requests may miss them.
    """
    arrivals = instance.arrivals.tolist() if arrivals is None else arrivals
    rows = list(zip(instance.prompts.tolist(), instance.outputs.tolist(), arrivals, strict=True))
    count = len(rows)
    alone: dict[str, bool] = {}

    def serves(group, missed):
        """Whether a worker serves a group, each with its goals."""
        kept = []
        for i in group:
            limits: dict[str, float] = {}
            for (goal, _), out in zip(goals, missed, strict=True):
                for metric, limit in goal.items() if i not in out else ():
                    limits[metric] = min(limit, limits.get(metric, limit))
            if limits:  # others may come after all
                kept.append((*rows[i], limits))
        key = repr(kept)
        if key not in alone:
            alone[key] = reachable(kept, clock, instance.memory, most, storage)
        return alone[key]

    every = range(count)
    ways = itertools.product(
        *([set(c) for c in itertools.combinations(every, misses)] for _, misses in goals)
    )
    best = None
    for missed in ways:
        for placed in itertools.product(every, repeat=count):
            used = max(placed) + 1
            if any(place > max(placed[:i], default=-1) + 1 for i, place in enumerate(placed)):
                continue  # workers are numbered as they are first used
            groups = ([i for i in every if placed[i] == g] for g in range(used))
            fewer = best is None or used < best
            if fewer and all(serves(group, missed) for group in groups):
                best = used
    return best
