"""Every answer to a tiny problem, compiled: what the answers of optsched are compared with."""

import numba
import numpy as np


@numba.njit(cache=True)
def least_costs(prompts, outputs, earliest, latest, memory, costs):
    """Try all starts within their ranges; return the least sums of costs, and the least makespan.

    `costs` has shape (K, n, steps): a start at step k costs request i ``costs[:, i, k]``. Infinite
    where nothing fits.
    """
    kinds, count = costs.shape[0], len(prompts)
    used = np.zeros(int((latest + outputs).max()) + 2, np.int64)
    at = earliest - 1
    sums = np.zeros((count + 1, kinds))
    ends = np.zeros(count + 1, np.int64)
    best = np.full(kinds, np.inf)
    shortest = np.inf
    i = 0
    while i >= 0:
        if at[i] >= earliest[i]:
            for u in range(1, outputs[i] + 1):
                used[at[i] + u] -= prompts[i] + u
        at[i] += 1
        if at[i] > latest[i]:
            at[i] = earliest[i] - 1
            i -= 1
            continue
        fits = True
        for u in range(1, outputs[i] + 1):
            used[at[i] + u] += prompts[i] + u
            fits = fits and used[at[i] + u] <= memory
        if not fits:
            continue
        for kind in range(kinds):
            sums[i + 1, kind] = sums[i, kind] + costs[kind, i, at[i]]
        ends[i + 1] = max(ends[i], at[i] + outputs[i])
        if i + 1 < count:
            i += 1
            continue
        shortest = min(shortest, ends[count])
        for kind in range(kinds):
            best[kind] = min(best[kind], sums[count, kind])
    return best, shortest


def optima(instance):
    """Return the optimum of each objective over all schedules; deadlines are not looked at."""
    horizon = int(instance.arrivals[-1] + instance.outputs.sum())
    steps = np.arange(horizon + 1)
    latencies = steps + (instance.outputs - instance.arrivals)[:, None]
    weights = np.ones(len(instance)) if instance.weights is None else instance.weights
    costs = np.array([latencies, weights[:, None] * latencies], dtype=float)
    (total, weighted), makespan = _least(instance, np.full(len(instance), horizon), costs)
    return {"total-latency": total, "weighted-latency": weighted, "makespan": makespan}


def with_deadlines(instance, objective, lateness, penalty):
    """Return the least cost where deadlines must be met, or cost a penalty; None if they cannot."""
    horizon = int(instance.arrivals[-1] + instance.outputs.sum())
    ends = np.full(len(instance), horizon)
    completions = np.arange(horizon + 1) + instance.outputs[:, None]
    late = np.maximum(completions - instance.deadlines[:, None], 0)
    costs = (completions - instance.arrivals[:, None]).astype(float)
    if objective == "weighted-latency":
        costs = costs * instance.weights[:, None]
    if objective == "late-requests":
        weights = 1.0 if instance.weights is None else instance.weights[:, None]
        costs = weights * (late > 0)
    elif lateness == "forbidden":
        ends = np.minimum(ends, instance.deadlines)
    else:
        costs = costs + penalty * (late if lateness == "per-step" else late > 0)
    (least,), _ = _least(instance, ends, costs[None])
    return None if np.isinf(least) else least


def _least(instance, ends, costs):
    arrays = (np.array(instance.prompts), np.array(instance.outputs), np.array(instance.arrivals))
    return least_costs(*arrays, ends - instance.outputs, instance.memory, costs)


@numba.njit(cache=True)
def least_sums(prompts, outputs, memory, profile):
    """Return the least sum of outputs of a batch that fits, by its size; -1 where none does."""
    count = len(prompts)
    best = np.full(count + 1, -1)
    for chosen in range(1, 1 << count):
        size, total, peaks, longest = 0, 0, 0, 0
        for i in range(count):
            if chosen >> i & 1:
                size += 1
                total += outputs[i]
                peaks += prompts[i] + outputs[i]
                longest = max(longest, outputs[i])
        fits = peaks <= memory
        if profile:
            fits = True
            for step in range(1, longest + 1):
                held = 0
                for i in range(count):
                    if chosen >> i & 1 and outputs[i] >= step:
                        held += prompts[i] + step
                fits = fits and held <= memory
        if fits and (best[size] < 0 or total < best[size]):
            best[size] = total
    return best


_NOTHING = 2**62  # in place of an imbalance where no assignment is allowed


@numba.njit(cache=True)
def least_imbalance(alive, free, tokens, slowness, memory, bonus, admitted):
    """Try every assignment of so many requests; return the least imbalance, or a huge number."""
    workers, steps = alive.shape
    count = len(tokens)
    best = np.int64(_NOTHING)
    chosen = np.zeros(count, np.int64)  # 0 stays, g + 1 goes to worker g
    for _ in range((workers + 1) ** count):
        number, gained = 0, 0
        left = free.copy()
        for i in range(count):
            if chosen[i]:
                number += 1
                gained += bonus[i]
                left[chosen[i] - 1] -= 1
        if number == admitted and left.min() >= 0:
            fits, total = True, 0
            for h in range(steps):
                heaviest, sum_of_loads = 0, 0
                for g in range(workers):
                    held = alive[g, h]
                    for i in range(count):
                        if chosen[i] == g + 1:
                            held += tokens[i, h]
                    fits = fits and held <= memory[g]
                    heaviest = max(heaviest, held * slowness[g])
                    sum_of_loads += held * slowness[g]
                total += workers * heaviest - sum_of_loads
            if fits:
                best = min(best, total - gained)
        for i in range(count):
            chosen[i] += 1
            if chosen[i] <= workers:
                break
            chosen[i] = 0
    return best


def imbalance(state, admitted):
    """Return the least imbalance of a step with so many admissions; None if there is no room."""
    memory = np.full(len(state.free), 2**60) if state.memory is None else state.memory
    fields = (state.alive, state.free, state.tokens, state.slowness, memory, state.bonus)
    least = int(least_imbalance(*map(np.array, fields), admitted))
    return None if least == _NOTHING else least


@numba.njit(cache=True)
def keep_up(held, rates, limits, fixed_tokens):
    """Count the thresholds up to limits that keep up with arrivals, and whether the limits do.

    `rates` are per 1000 s; a batch takes (fixed_tokens + tokens) / 100,000 s.
    """
    found, last = 0, False
    chosen = np.ones(len(held), np.int64)
    while True:
        tokens = fixed_tokens + (held * chosen).sum()
        last = True
        for j in range(len(held)):
            last = last and tokens * rates[j] <= chosen[j] * 100_000_000
        found += last
        j = 0
        while j < len(held):
            chosen[j] += 1
            if chosen[j] <= limits[j]:
                break
            chosen[j] = 1
            j += 1
        if j == len(held):
            return found, last
