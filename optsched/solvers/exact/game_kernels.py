r"""Values of all states of a game with unknown outputs, by dynamic programming.

Let :math:`v_0 < v_1 < \dots` be the outputs that a request may have. It is complete, or in a state
:math:`(j, k)`: its output is :math:`v_j` or more, and the present attempt has made
:math:`k < v_j` tokens, none where it waits. With the token :math:`k + 1 = v_j` it turns out whether
it is complete: the request ends, or :math:`j` rises. Where no request comes to that, nothing is
learned, and the next state is certain.

So states fall into layers of equal :math:`j`. A step that teaches something leads to later layers,
which are known already; the others stay within the layer and cost the same each, which is a
shortest path. Before the last arrival the step is part of the state, and every step leads to the
next one. States that differ only in the order of equal requests have one value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched._internal.compiled import ZERO, compiled, compiled_apart

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray

# What a request may do in a step, and last what it becomes if it ends.
WAIT, RUN, AGAIN, END = range(4)
# Which steps are looked at: those that teach nothing, those that teach something, or all.
_BLIND, _TEACHING, _ALL = range(3)
NEVER = 2**62  # later than any arrival


class Table(NamedTuple):
    """A game; places of states are sums of the states of all requests, each times its stride."""

    moves: IntArray  # (4, n, states): the state after WAIT, RUN, AGAIN or END, or -1
    held: IntArray  # (4, n, states): tokens at the next step after an action; with END those now
    chance: FloatArray  # (2, n, states): that it ends, where it may, and that it goes on
    layers: IntArray  # (n, layers + 1): the first state of each; in the last one it is complete
    layer_counts: IntArray
    stride: IntArray
    alike: IntArray  # whether a request is equal to the one before
    arrivals: IntArray  # the first one at 0
    memory: int
    worst: int  # whether a value is that of the worst case, not the mean
    cost: float  # of a step, for each request that is there


class Room(NamedTuple):
    """Where a kernel writes down what it is at."""

    state: IntArray  # of each request
    action: IntArray
    best: IntArray  # the best action
    layer: IntArray
    ordered: IntArray  # states, ascending among equal requests
    held: IntArray  # by the actions of the requests before
    taught: IntArray  # whether these teach something
    place: IntArray  # next states of a step, one for each thing that may turn out
    share: FloatArray  # and their chances


@compiled
def _value_after(table: Table, values: FloatArray, room: Room) -> float:
    """Return the value of what an action leads to: the mean, or at worst."""
    moves, place, share = table.moves, room.place, room.share
    count, sure = 1, 0
    place[0], share[0] = 0, 1.0
    for request in range(len(table.stride)):
        state, action, stride = room.state[request], room.action[request], table.stride[request]
        after = moves[action, request, state]
        end = moves[END, request, state] if action == RUN else -1
        if end < 0:
            sure += stride * after
            continue
        if after < 0:
            sure += stride * end
            continue
        ends, goes_on = table.chance[0, request, state], table.chance[1, request, state]
        for branch in range(count):
            place[count + branch] = place[branch] + stride * after
            share[count + branch] = share[branch] * goes_on
            place[branch] += stride * end
            share[branch] *= ends
        count *= 2
    value = 0.0
    for branch in range(count):
        there = values[sure + place[branch]]
        if table.worst == 0:
            value += share[branch] * there
        elif branch == 0 or there > value:
            value = there
    return value


@compiled_apart
def _best_value(
    table: Table, values: FloatArray, room: Room, clock: int, kind: int, least: float
) -> float:
    """Return the value after the best action of a kind, or `least` if none is below it."""
    moves, held, taught, action = table.moves, room.held, room.taught, room.action
    last, depth = len(action) - 1, 0
    action[0], held[0], taught[0] = -1, 0, 0
    while depth >= 0:
        action[depth] += 1
        chosen, state = action[depth], room.state[depth]
        if chosen == END:
            depth -= 1
            continue
        teaches = taught[depth]
        if chosen == RUN and moves[END, depth, state] >= 0:
            teaches = 1
        elif moves[chosen, depth, state] < 0:
            continue
        tokens = held[depth] + table.held[chosen, depth, state]
        if tokens > table.memory or (kind == _BLIND and teaches == 1):
            continue
        if chosen != WAIT and table.arrivals[depth] > clock:
            continue
        if depth < last:
            depth += 1
            held[depth], taught[depth], action[depth] = tokens, teaches, -1
            continue
        if kind == _TEACHING and teaches == 0:
            continue
        value = _value_after(table, values, room)
        if value < least:
            least = value
            for request in range(last + 1):
                room.best[request] = action[request]
    return least


@compiled
def fill_layers(table: Table, values: FloatArray, room: Room, first: int, end: int) -> None:
    """Set the values of layers from the last arrival on, those that are reached last first."""
    count = len(table.stride)
    for number in range(end - 1, first - 1, -1):
        size, there, rest = 1, 0, number
        for request in range(count):
            layer = rest % table.layer_counts[request]
            rest //= table.layer_counts[request]
            room.layer[request] = layer
            size *= table.layers[request, layer + 1] - table.layers[request, layer]
            there += layer + 1 < table.layer_counts[request]
        if there == 0:
            continue  # these are given
        cost = table.cost * there
        for at in range(size):
            place = _set_state(table, room, at)
            if place >= 0 and _first_alike(table, room) == place:
                values[place] = cost + _best_value(table, values, room, NEVER, _TEACHING, np.inf)
        # Paths within the layer; those of more tokens come first, so that few rounds are enough.
        shorter = True
        while shorter:
            shorter = False
            for at in range(size - 1, -1, -1):
                place = _set_state(table, room, at)
                if place < 0:
                    continue
                first_alike = _first_alike(table, room)
                value = values[first_alike]
                if first_alike == place:
                    value = cost + _best_value(table, values, room, NEVER, _BLIND, np.inf)
                if value < values[place]:
                    values[place] = value
                    shorter = True


@compiled
def _set_state(table: Table, room: Room, number: int) -> int:
    """Go to a state of the layer; return its place, or -1 if it does not fit the memory."""
    place = held = ZERO
    for request in range(len(table.stride)):
        first = table.layers[request, room.layer[request]]
        count = table.layers[request, room.layer[request] + 1] - first
        room.state[request] = first + number % count
        place += table.stride[request] * room.state[request]
        held += table.held[END, request, room.state[request]]
        number //= count
    return place if held <= table.memory else -1


@compiled
def _first_alike(table: Table, room: Room) -> int:
    """Return the place of the state that is set first of those that differ by order only."""
    place, ordered = ZERO, room.ordered
    for request in range(len(ordered)):
        state, at = room.state[request], request
        while at > 0 and table.alike[at] == 1 and ordered[at - 1] > state:
            ordered[at] = ordered[at - 1]
            at -= 1
        ordered[at] = state
    for request in range(len(ordered)):
        place += table.stride[request] * ordered[request]
    return place


@compiled
def fill_step(
    table: Table, values: FloatArray, later: FloatArray, room: Room, clock: int, count: int
) -> None:
    """Set the values of so many states before the last arrival, from those of the next step."""
    for number in range(count):
        place, cost, rest = ZERO, 0.0, number
        for request in range(len(table.stride)):
            room.state[request] = 0
            if table.arrivals[request] > clock:
                continue
            complete = table.layers[request, table.layer_counts[request] - 1]
            states = table.layers[request, table.layer_counts[request]]
            room.state[request] = rest % states
            rest //= states
            place += table.stride[request] * room.state[request]
            if room.state[request] < complete:
                cost += table.cost
        values[place] = cost + _best_value(table, later, room, clock, _ALL, np.inf)


@compiled
def decide(table: Table, values: FloatArray, room: Room, clock: int) -> None:
    """Set the best action in a state; `values` has a row for each step."""
    last = len(values) - 1
    if clock < last:
        _best_value(table, values[clock + 1], room, clock, _ALL, np.inf)
        return
    least = _best_value(table, values[last], room, NEVER, _TEACHING, np.inf)
    _best_value(table, values[last], room, NEVER, _BLIND, least)


@compiled
def move(table: Table, room: Room, chosen: IntArray) -> int:
    """Take the best action where these layers hold the outputs; return how many requests end."""
    ended = ZERO
    for request in range(len(chosen)):
        state, action = room.state[request], room.best[request]
        end = table.moves[END, request, state] if action == RUN else -1
        if end >= 0 and state >= table.layers[request, chosen[request]]:
            room.state[request] = end
            ended += 1
        else:
            room.state[request] = table.moves[action, request, state]
    return ended


@compiled
def latencies(table: Table, values: FloatArray, room: Room, chosen: IntArray) -> IntArray:
    """Return the total latency of the best policy for each outcome, a row of layers."""
    totals = np.empty(len(chosen), dtype=np.int64)
    for outcome in range(len(chosen)):
        total = left = clock = ZERO
        for request in range(len(table.stride)):
            room.state[request] = 0
            total -= table.arrivals[request]
            left += 1
        while left > 0:
            decide(table, values, room, clock)
            clock += 1
            ended = move(table, room, chosen[outcome])
            total += ended * clock
            left -= ended
        totals[outcome] = total
    return totals
