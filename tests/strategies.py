"""Random instances: small ones for property-based tests, and larger ones."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from optsched import Instance, Workers


@st.composite
def instances(draw, max_requests=6, max_memory=20, max_arrival=8, max_output=8):
    """Draw an instance, offline or with arrivals, prompts of zero included."""
    memory = draw(st.integers(1, max_memory))
    count = draw(st.integers(1, max_requests))
    outputs = draw(
        st.lists(st.integers(1, min(memory, max_output)), min_size=count, max_size=count)
    )
    prompts = [draw(st.integers(0, memory - output)) for output in outputs]
    last = draw(st.sampled_from([0, max_arrival]))
    arrivals = sorted(draw(st.lists(st.integers(0, last), min_size=count, max_size=count)))
    return Instance(prompts, outputs, memory, arrivals)


def drawn_instance(rng):
    """Draw up to 39 requests, offline or with arrivals."""
    count, memory = int(rng.integers(1, 40)), int(rng.integers(5, 120))
    outputs = rng.integers(1, min(memory, 30) + 1, count)
    prompts = rng.integers(0, memory - outputs + 1)
    arrivals = np.sort(rng.integers(0, 100, count)) * int(rng.integers(0, 2))
    return Instance(prompts, outputs, memory, arrivals)


def tiny_instance(rng, arrivals, most=4):
    """Draw a few requests that compete for memory, at times equal ones."""
    count, memory = int(rng.integers(2, most + 1)), int(rng.integers(4, 13))
    outputs = rng.integers(1, min(6, memory) + 1, count)
    prompts = rng.integers(0, memory - outputs + 1)
    if rng.random() < 0.2:
        twin = rng.integers(0, 2, count)
        prompts, outputs = prompts[twin], outputs[twin]
    steps = np.sort(rng.integers(0, 9, count)) * int(arrivals)
    return Instance(prompts, outputs, memory, steps)


def tiny_joint(rng, most=4):
    """Draw a few requests with weights, and workers of unequal memory or with eligibility."""
    instance = tiny_instance(rng, rng.random() < 0.6, most)
    if rng.random() < 0.3:
        instance = instance.replace(weights=rng.integers(1, 4, len(instance)))
    largest = int(instance.peaks.max())
    count = int(rng.integers(1, 4))
    memories = rng.integers(2, instance.memory + 1, count)
    memories[int(rng.integers(count))] = instance.memory
    if rng.random() < 0.4:
        memories[:] = max(largest, int(memories.min()))
    eligible = None
    if rng.random() < 0.3:
        eligible = rng.random((len(instance), count)) < 0.7
        eligible[:, int(np.argmax(memories))] = True
    return instance, Workers(memories.tolist(), eligible)
