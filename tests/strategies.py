"""Random small instances for property-based tests."""

from __future__ import annotations

from hypothesis import strategies as st

from optsched import Instance


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
