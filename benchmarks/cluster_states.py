"""States of a running cluster, to route in.

From a literal simulation of the paper's cluster (reveal, admit, drift, free), routed by swap, with
the workload of Table 1: prompts lognormal (mean 900, cv 1.4, at most 16,384), outputs lognormal
(mean 300, cv 0.9, at most 4,096).
"""

from __future__ import annotations

import numpy as np

from optsched.models import BalanceState
from optsched.solvers.balance_kernels import UNLIMITED, assign


def lognormal(generator, mean, variation, most):
    """One draw with a given mean and coefficient of variation."""
    spread = np.log(1 + variation**2)
    value = generator.lognormal(np.log(mean) - spread / 2, np.sqrt(spread))
    return int(np.clip(round(value), 1, most))


def simulated_states(workers, lookahead, reveal=128, slots=72, every=1, warm_up=500, seed=0):
    """States of a running cluster after warm-up, without end."""
    generator = np.random.default_rng(seed)
    tokens = np.zeros((workers, slots), dtype=np.int64)
    remaining = np.zeros_like(tokens)
    waiting: list[tuple[int, int]] = []
    step = 0
    while True:
        while len(waiting) < reveal:
            prompt = lognormal(generator, 900, 1.4, 16_384)
            waiting.append((prompt, lognormal(generator, 300, 0.9, 4_096)))
        active = np.nonzero(remaining)
        state = BalanceState.from_requests(
            np.full(workers, slots),
            active[0],
            tokens[active],
            remaining[active],
            [prompt for prompt, _ in waiting],
            lookahead,
        )
        if step >= warm_up and step % every == 0 and state.free.sum():
            yield state
        chosen = assign(*arrays(state), 1_000)
        for (prompt, output), worker in zip(waiting, chosen, strict=True):
            if worker >= 0:
                slot = int(np.argmin(remaining[worker]))
                tokens[worker, slot], remaining[worker, slot] = prompt, output
        waiting = [pair for pair, to in zip(waiting, chosen, strict=True) if to < 0]
        tokens += remaining > 0
        remaining -= remaining > 0
        step += 1


def arrays(state):
    """What `assign` takes, before the rounds: with 0 it is greedy, with many swap."""
    fields = (state.alive, state.free, state.waiting, state.growth, state.slowness, state.bonus)
    return [*(np.array(field) for field in fields), np.full(len(state.free), UNLIMITED)]
