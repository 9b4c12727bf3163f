"""Kernels of the exact search: what it knows of an instance, and how a layer of nodes grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled
from optsched._internal.small_kernels import copy
from optsched.errors import OptschedError
from optsched.solvers.bounds.configurations import Problem, largest_sets, start_costs

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import IntArray
    from optsched.certificates.configurations import ConfigurationCertificate
    from optsched.instance import Instance

_EXACT = 2**61
_DEPTHS = 24  # grid on the numbers of steps since a start for which room is tabulated


class Search(NamedTuple):
    """An instance and a certificate, as the search needs them; all costs are integers."""

    limit: int
    unit: int  # what one step of latency costs
    prompts: IntArray  # of each kind
    outputs: IntArray
    begin: IntArray
    requests: IntArray  # of each slot
    arrivals: IntArray
    regret: IntArray  # (slots, starts): cost of a start beyond that of the cheapest
    least: IntArray  # (slots, starts): least regret from this start on
    sold: IntArray  # (T,): what could be paid at each step at most
    prices: IntArray  # (T,)
    phase: IntArray
    sizes: IntArray  # (phases, tokens of all kinds)
    first: IntArray  # where the tokens of each kind begin in `sizes`
    room: IntArray  # (phases, depths, limit + 1): largest size of young requests in so many tokens
    depth: IntArray  # index of a number of steps into `room`
    marks: IntArray  # one random number for each slot
    total: int  # the bound of the certificate, in units

    @classmethod
    def of(cls, instance: Instance, certificate: ConfigurationCertificate) -> Search:
        """Tabulate regrets and room."""
        problem = Problem.of(instance)
        unit = certificate.price_denominator * certificate.size_denominator
        reach = len(certificate.prices) + int(instance.arrivals[-1]) + int(instance.outputs.sum())
        spent = sum(certificate.prices) * max(map(max, certificate.sizes), default=0)
        if (len(instance) + problem.width) * (unit * reach + spent) >= _EXACT:
            raise OptschedError("the numbers of the certificate are too large for 64-bit integers")
        prices = np.array(certificate.prices, dtype=np.int64)
        ends = np.array(certificate.ends, dtype=np.int64)
        shape = len(ends), len(problem.tokens)
        item_sizes = np.array(certificate.sizes, dtype=np.int64).reshape(shape)
        phase = np.searchsorted(ends, np.arange(1, len(prices) + 1))
        order = np.lexsort((instance.arrivals, instance.outputs, instance.prompts))
        kinds, begin = np.unique(
            np.column_stack([instance.prompts, instance.outputs])[order], axis=0, return_index=True
        )
        costs = start_costs(problem, prices, phase, item_sizes, unit)
        rows = np.column_stack([instance.prompts, instance.outputs, instance.arrivals])
        group = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
        costs = costs[group[order]]
        cheapest = costs.min(axis=1)
        regret = costs - cheapest[:, None]
        least = np.minimum.accumulate(regret[:, ::-1], axis=1)[:, ::-1].copy()
        capacities = largest_sets(problem, item_sizes, problem.copies(ends))
        # The tokens of a kind lie where those of its first group do.
        prompts, outputs = kinds.T.copy()
        heads = problem.first[group[order[begin]]]
        place = np.concatenate(
            [problem.place[head : head + o] for head, o in zip(heads, outputs, strict=True)]
        )
        longest = int(outputs.max())
        grid = np.ceil(np.geomspace(1, longest, min(_DEPTHS, longest)))
        depths = np.unique(np.minimum(grid, longest).astype(np.int64))
        token = problem.token
        room = np.zeros((len(ends), len(depths), instance.memory + 1), dtype=np.int64)
        for index, steps in enumerate(depths.tolist()):
            young = problem.available(token, np.array([steps]))[0]
            for number, row in enumerate(item_sizes):
                room[number, index] = _room(problem, row, young)
        random = np.random.default_rng(0)
        return cls(
            limit=instance.memory,
            unit=unit,
            prompts=prompts,
            outputs=outputs,
            begin=np.append(begin, len(instance)),
            requests=order,
            arrivals=instance.arrivals[order],
            regret=regret,
            least=least,
            sold=prices * capacities[phase],
            prices=prices,
            phase=phase,
            sizes=np.ascontiguousarray(item_sizes[:, place]),
            first=np.cumsum(outputs) - outputs,
            room=room,
            depth=np.searchsorted(depths, np.arange(longest + 1)),
            marks=random.integers(-(2**62), 2**62, len(instance)),
            total=int(cheapest.sum()) - int(prices @ capacities[phase]),
        )


class Layer(NamedTuple):
    """Nodes with the same clock: no request starts before it any more."""

    starts: npt.NDArray[np.int32]  # (nodes, slots); -1 where a slot has not started
    profile: npt.NDArray[np.int32]  # (nodes, longest output): tokens held after the clock
    key: IntArray  # sum of the marks of the slots started
    cost: IntArray  # sum of the starts
    fixed: IntArray  # regret and waste so far
    bound: IntArray  # below the cost of all schedules of the node, minus the certificate's bound

    @classmethod
    def empty(cls, nodes: int, slots: int, longest: int) -> Layer:
        """Reserve memory."""
        return cls(
            np.empty((nodes, slots), dtype=np.int32),
            np.empty((nodes, longest), dtype=np.int32),
            *(np.empty(nodes, dtype=np.int64) for _ in range(4)),
        )

    def take(self, index: IntArray) -> Layer:
        """Copy some of the nodes."""
        return Layer._make(array[index] for array in self)


@compiled
def _room(problem: Problem, sizes: IntArray, copies: IntArray) -> IntArray:
    """Return the largest total size of items that can run together, by the tokens they may hold."""
    limit, width = problem.limit, problem.width
    best = np.full((width + 1, limit + 1), -1)
    best[0, 0] = 0
    for item in range(len(sizes)):
        tokens, left = problem.tokens[item], problem.left[item]
        if sizes[item] > 0:
            for _ in range(copies[item]):
                for count in range(width - 1, -1, -1):
                    for held in range(limit - tokens - (count + 1) * left, -1, -1):
                        if best[count, held] >= 0:
                            value = best[count, held] + sizes[item]
                            if value > best[count + 1, held + tokens]:
                                best[count + 1, held + tokens] = value
    room = np.zeros(limit + 1, dtype=np.int64)
    for held in range(limit + 1):
        room[held] = max(best[:, held].max(), room[max(held - 1, 0)])
    return room


@compiled
def _at(table: IntArray, slot: int, start: int, unit: int) -> int:
    # Beyond the table nothing is paid, and every step costs one unit more.
    last = table.shape[1] - 1
    cost: int = table[slot, min(start, last)] + unit * max(0, start - last)
    return cost


@compiled
def grow(
    search: Search,
    layer: Layer,
    begin: int,
    end: int,
    clock: int,
    slack: int,
    best_cost: int,
    best_starts: IntArray,
    after: Layer,
    filled: int,
) -> tuple[int, int, int]:
    """Append the children of nodes to `after`; return its size, the least bound lost, best cost."""
    slots, kinds = len(search.requests), len(search.outputs)
    longest, horizon, unit = layer.profile.shape[1], len(search.prices), search.unit
    lost = np.iinfo(np.int64).max
    pointer = np.zeros(slots + 1, dtype=np.int64)
    profile = np.zeros((slots + 1, longest), dtype=np.int64)
    paid = np.zeros((slots + 1, longest), dtype=np.int64)  # by running requests, at each step
    fixed = np.zeros(slots + 1, dtype=np.int64)
    now = np.zeros(slots + 1, dtype=np.int64)  # least regret of the rest, if they may start now
    later = np.zeros(slots + 1, dtype=np.int64)  # ... from the next step on
    following = np.zeros(kinds, dtype=np.int64)  # next slot of each kind
    for node in range(begin, end):
        starts = layer.starts[node].copy()
        key, cost = layer.key[node], layer.cost[node]
        waiting = 0
        copy(layer.profile[node], profile[0], 0, longest)
        paid[0] = 0
        fixed[0], now[0], later[0] = layer.fixed[node], 0, 0
        for kind in range(kinds):
            following[kind] = search.begin[kind + 1]
            for slot in range(search.begin[kind + 1] - 1, search.begin[kind] - 1, -1):
                start = starts[slot]
                if start < 0:
                    following[kind] = slot
                    waiting += 1
                    arrival = search.arrivals[slot]
                    now[0] += _at(search.least, slot, max(clock, arrival), unit)
                    later[0] += _at(search.least, slot, max(clock + 1, arrival), unit)
                else:
                    for step in range(clock + 1, min(start + search.outputs[kind], horizon) + 1):
                        token = search.first[kind] + step - start - 1
                        size = search.sizes[search.phase[step - 1], token]
                        paid[0, step - clock - 1] += search.prices[step - 1] * size
        level = 0
        pointer[0] = 0
        fresh = True
        while level >= 0:
            if fresh:
                fresh = False
                if waiting == 0:
                    if cost < best_cost:
                        best_cost = cost
                        copy(starts, best_starts, 0, len(starts))
                else:
                    value = fixed[level]
                    if clock < horizon:
                        value += search.sold[clock] - paid[level, 0]
                    spent = value
                    value += later[level]
                    for ahead in range(1, min(longest, horizon - clock)):
                        step = clock + ahead
                        free = search.limit - profile[level, ahead]
                        young = search.room[search.phase[step], search.depth[ahead], free]
                        gap = search.sold[step] - paid[level, ahead] - search.prices[step] * young
                        if gap > 0:
                            value += gap
                    if value <= slack:
                        if filled == len(after.key):
                            lost = min(lost, value)
                        else:
                            copy(starts, after.starts[filled], 0, len(starts))
                            copy(profile[level, 1:], after.profile[filled], 0, longest - 1)
                            after.profile[filled, longest - 1] = 0
                            after.key[filled], after.cost[filled] = key, cost
                            after.fixed[filled], after.bound[filled] = spent, value
                            filled += 1
            kind = pointer[level]
            if kind == kinds:
                level -= 1
                if level >= 0:
                    kind = pointer[level]
                    following[kind] -= 1
                    slot = following[kind]
                    starts[slot] = -1
                    key -= search.marks[slot]
                    cost -= clock
                    waiting += 1
                    pointer[level] += 1
                continue
            slot = following[kind]
            fits = slot < search.begin[kind + 1] and search.arrivals[slot] <= clock
            output, prompt = search.outputs[kind], search.prompts[kind]
            if fits:
                regret = _at(search.regret, slot, clock, unit)
                fixed[level + 1] = fixed[level] + regret
                now[level + 1] = now[level] - _at(search.least, slot, clock, unit)
                fits = fixed[level + 1] + now[level + 1] <= slack
            if fits:
                for token in range(output):
                    if profile[level, token] + prompt + token + 1 > search.limit:
                        fits = False
                        break
            if not fits:
                pointer[level] += 1
                continue
            later[level + 1] = later[level] - _at(search.least, slot, clock + 1, unit)
            copy(profile[level], profile[level + 1], 0, longest)
            copy(paid[level], paid[level + 1], 0, longest)
            for token in range(output):
                profile[level + 1, token] += prompt + token + 1
                step = clock + token
                if step < horizon:
                    size = search.sizes[search.phase[step], search.first[kind] + token]
                    paid[level + 1, token] += search.prices[step] * size
            starts[slot] = clock
            following[kind] += 1
            key += search.marks[slot]
            cost += clock
            waiting -= 1
            pointer[level + 1] = kind
            level += 1
            fresh = True
    return filled, lost, best_cost


@compiled
def undominated(layer: Layer, order: IntArray) -> npt.NDArray[np.bool_]:
    """Mark the nodes, ordered by key and cost, that no other of the same set makes needless."""
    count, longest = len(order), layer.profile.shape[1]
    keep = np.ones(count, dtype=np.bool_)
    # What is compared often lies together: the nodes kept so far of the group at hand.
    nodes = np.empty(count, dtype=np.int64)
    totals = np.empty(count, dtype=np.int64)
    profiles = np.empty((count, longest), dtype=np.int32)
    kept = 0
    for place in range(count):
        node = order[place]
        if place and layer.key[node] != layer.key[order[place - 1]]:
            kept = 0
        profile = layer.profile[node]
        total = profile.sum()
        for other in range(kept):
            if totals[other] > total:
                continue
            better = True
            for ahead in range(longest):
                if profiles[other, ahead] > profile[ahead]:
                    better = False
                    break
            if better and _same_set(layer.starts[nodes[other]], layer.starts[node]):
                keep[place] = False
                break
        if keep[place]:
            nodes[kept], totals[kept] = node, total
            copy(profile, profiles[kept], 0, longest)
            kept += 1
    return keep


@compiled
def _same_set(some: npt.NDArray[np.int32], other: npt.NDArray[np.int32]) -> bool:
    return bool(np.all((some < 0) == (other < 0)))
