"""The step program by enumeration, and small steps to try it on."""

import itertools

import numpy as np

from optsched.models import BalanceState


def imbalance(state, chosen):
    """Accumulated imbalance less bonus, from the paper's definitions, number by number."""
    total = 0
    for h in range(state.alive.shape[1]):
        loads = []
        for g in range(len(state.free)):
            load = state.alive[g, h]
            for request, worker in enumerate(chosen):
                if worker == g:
                    load += state.tokens[request, h]
            loads.append(int(load * state.slowness[g]))
        total += sum(max(loads) - load for load in loads)
    return total - sum(int(b) for b, g in zip(state.bonus, chosen, strict=True) if g >= 0)


def allowed(state, chosen, admitted):
    """Whether an assignment keeps to slots, memory and the number of admissions."""
    for g in range(len(state.free)):
        members = [request for request, worker in enumerate(chosen) if worker == g]
        if len(members) > state.free[g]:
            return False
        if state.memory is not None:
            loads = state.alive[g] + sum((state.tokens[i] for i in members), 0)
            if (loads > state.memory[g]).any():
                return False
    return sum(worker >= 0 for worker in chosen) == admitted


def least_imbalance(state, admitted=None):
    """The optimum over every assignment; None if there is none."""
    if admitted is None:
        admitted = min(len(state.waiting), int(state.free.sum()))
    choices = itertools.product(range(-1, len(state.free)), repeat=len(state.waiting))
    return min(
        (imbalance(state, chosen) for chosen in choices if allowed(state, chosen, admitted)),
        default=None,
    )


def draw_state(generator, *, profiles=False, memory=False, requests=4):
    """A small step with everything in it: uneven workers, drifts of any sign, bonus."""
    workers, lookahead = int(generator.integers(1, 4)), int(generator.integers(0, 4))
    alive = generator.integers(0, 30, (workers, lookahead + 1))
    waiting = generator.integers(0, 20, int(generator.integers(1, requests + 1)))
    shape = (len(waiting), lookahead) if profiles else (lookahead,)
    drift = generator.integers(-5, 8, shape)
    while np.cumsum(drift, axis=-1).min(initial=0) + waiting.min() < 0:
        drift = generator.integers(-5, 8, shape)
        waiting = waiting + 1
    kinds = generator.integers(0, 2, 2)
    state = BalanceState(
        alive,
        generator.integers(0, 3, workers),
        waiting,
        drift,
        slowness=generator.integers(1, 4, workers) if kinds[0] else None,
        bonus=generator.integers(0, 40, len(waiting)) if kinds[1] else None,
    )
    if not memory:
        return state
    room = generator.integers(0, 30, workers) + int(state.tokens.max())
    return BalanceState(
        alive,
        state.free,
        waiting,
        drift,
        state.slowness,
        alive.max(axis=1) + room // 2 + int(state.tokens.max()) // 2,
        state.bonus,
    )
