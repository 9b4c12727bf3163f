"""Windows that slide: what plans cost and hold is what the definition says, in every window."""

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances

from optsched import Schedule, family, run
from optsched.search import beam_kernels as sliding
from optsched.search.beam import Beam, background_of


def _price(prices, step):
    return prices[step - 1] if step <= len(prices) else 0.0


def _cost(large, prices, request, start, paid):
    """Latency, and the price of what is held after a step, by the definition."""
    prompt, output = int(large.prompts[request]), int(large.outputs[request])
    latency = large.weights[request] * (start + output - int(large.arrivals[request]))
    held = ((start + u, prompt + u) for u in range(1, output + 1))
    return latency + sum(tokens * _price(prices, step) for step, tokens in held if step > paid)


def _held(large, starts, step):
    running = (i for i, s in enumerate(starts) if 0 <= s < step <= s + large.outputs[i])
    return sum(int(large.prompts[i]) + step - int(starts[i]) for i in running)


def _check(large, prices, plans, children, row):
    length = int(large.begins[1])
    begin, end = row * length, (row + sliding.PARTS) * length
    last = max(len(prices), int(large.begins[-1]), end) + 1
    for child in range(children):
        starts, value = plans.starts[child], 0.0
        for request in np.flatnonzero(large.arrivals < end):
            start = int(starts[request])
            if start >= 0:
                assert large.arrivals[request] <= start < end
                value += _cost(large, prices, request, start, end)
            else:
                value += min(_cost(large, prices, request, k, 0) for k in range(end, last + 1))
        assert plans.values[child] == pytest.approx(value, rel=1e-5)
        for step in range(begin + 1, begin + plans.usage.shape[1]):
            beside = large.background[step] if step < len(large.background) else 0
            held = beside + _held(large, starts, step)
            assert plans.usage[child, step - begin] == held <= large.memory


@given(
    instances(max_requests=7, max_memory=30, max_arrival=12),
    st.lists(st.sampled_from([0.0, 0.1, 0.25, 1.0]), min_size=1, max_size=30),
    st.sampled_from([0.0, 0.4]),
    st.integers(1, 4),
)
@examples(30)
def test_plans_cost_and_hold_what_the_definition_says(instance, prices, quantile, width):
    schedule = run(instance, "area").schedule
    small, background = background_of(schedule, quantile)
    begins = sliding.parts_of_windows(schedule, ~small)
    weights = np.linspace(0.5, 2.0, len(instance))
    beam = Beam(instance, weights, np.array(prices), ~small, background, begins, 1)
    plan_window, rows = sliding.plan_window, []

    def checked(large, kept, made, number, row, *rest):
        work = plan_window(large, kept, made, number, row, *rest)
        _check(large, prices, made, number * len(made.values) // len(kept.values), row)
        rows.append(row)
        return work

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sliding, "plan_window", checked)
        starts, _ = sliding.slide(beam.large, width, 0, lambda: False, np.inf)
    assert rows == list(range(len(rows)))
    assert starts is not None
    found = np.where(small, background.starts, 0)
    found[~small] = starts
    assert Schedule(instance, found).check() == []


def test_parts_are_longer_where_there_would_be_too_many():
    instance = family("chat-and-summaries", n=300, seed=0, load=1.1)
    starts = instance.arrivals * 100_000
    far = Schedule(instance.replace(arrivals=starts), starts)
    large = np.ones(300, dtype=bool)
    assert len(sliding.parts_of_windows(far, large)) * 300 < 2**26
    assert len(sliding.parts_of_windows(run(instance, "area").schedule, large)) > 20
