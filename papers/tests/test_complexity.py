"""How many operations a round takes: Jaillet Proposition 4.1 and Robust Theorem 4.1, counted."""

from __future__ import annotations

import heapq
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from optsched import Instance, run


def algorithm_1(instance):
    """Run Jaillet Algorithm 1 literally: starts, and the inequalities (1) evaluated per round."""
    prompts, outputs = instance.prompts.tolist(), instance.outputs.tolist()
    starts, evaluated, step = {}, [], 0
    while len(starts) < len(outputs):
        waiting = [
            i for i, a in enumerate(instance.arrivals.tolist()) if a <= step and i not in starts
        ]
        count = 0
        for candidate in sorted(waiting, key=lambda i: (outputs[i], i)):
            taken = {i: p for i, p in starts.items() if p + outputs[i] > step} | {candidate: step}
            fits = True
            for end in (p + outputs[i] for i, p in taken.items()):
                count += 1
                held = sum(
                    prompts[i] + end - p for i, p in taken.items() if p < end <= p + outputs[i]
                )
                fits = fits and held <= instance.memory
            if not fits:
                break
            starts[candidate] = step
        evaluated.append(count)
        step += 1
    return [starts[i] for i in range(len(outputs))], evaluated


@given(st.data(), st.integers(0, 3), st.integers(5, 24))
def test_proposition_4_1_a_round_checks_at_most_m_squared_inequalities(data, prompt, memory):
    longest = memory - prompt
    outputs = data.draw(st.lists(st.integers(1, longest), min_size=1, max_size=40))
    arrivals = sorted(data.draw(st.integers(0, 9)) for _ in outputs)
    instance = Instance([prompt] * len(outputs), outputs, memory, arrivals)
    starts, evaluated = algorithm_1(instance)
    assert starts == run(instance, "mc-sf").schedule.starts.tolist()
    # At most M / (s + 1) run or are admitted, and one more is tried.
    most = memory // (prompt + 1) + 1
    assert max(evaluated) <= most * most
    assert most <= memory + 1


def test_proposition_4_1_is_attained_up_to_a_constant():
    """Outputs of one token and no prompts: M admissions, each of which looks at all before it."""
    for memory in (10, 40):
        _, evaluated = algorithm_1(Instance([0] * 2 * memory, [1] * 2 * memory, memory))
        assert evaluated[0] == (memory + 1) * (memory + 2) // 2


class Compared:
    """A number that counts how often it is compared."""

    count = 0

    def __init__(self, value):
        self.value = value

    def __lt__(self, other):
        Compared.count += 1
        return self.value < other.value


def test_theorem_4_1_sorts_all_that_wait_which_the_memory_does_not_bound():
    """Its proof sorts M / s prompts; a heap that is kept makes it M log n per round."""
    memory, rng = 16, np.random.default_rng(0)
    sorts, heaps = [], []
    for n in (100, 10_000):
        bounds = [Compared(value) for value in rng.permutation(n)]
        Compared.count = 0
        chosen = sorted(bounds)[:memory]
        sorts.append(Compared.count)
        heapq.heapify(bounds)
        Compared.count = 0
        assert [heapq.heappop(bounds) for _ in range(memory)] == chosen
        for bound in chosen:  # at most as many are cancelled as run
            heapq.heappush(bounds, bound)
        heaps.append(Compared.count)
        assert heaps[-1] <= 4 * memory * math.log2(n)
    bound = 16 * memory * math.log2(memory)
    assert sorts[0] <= bound < sorts[1]
    assert max(heaps) <= bound
