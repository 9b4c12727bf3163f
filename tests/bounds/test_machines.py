"""The bound by machines for equal prompts against brute force and shortest remaining first."""

from __future__ import annotations

import literal
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optsched import Instance, run
from optsched.bounds.bound import machines_bound
from optsched.errors import InstanceError


@given(
    prompt=st.integers(0, 6),
    requests=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=4),
    more=st.integers(0, 9),
)
def test_no_schedule_is_below_it(prompt, requests, more):
    arrivals, outputs = zip(*sorted(requests), strict=True)
    memory = prompt + max(outputs) + more
    instance = Instance([prompt] * len(requests), outputs, memory, arrivals)
    assert machines_bound(instance) <= literal.optimum(instance)


@given(requests=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=9))
def test_one_at_a_time_it_is_shortest_remaining_first(requests):
    arrivals, outputs = map(list, zip(*sorted(requests), strict=True))
    instance = Instance([9] * len(requests), outputs, 9 + max(outputs), arrivals)
    left, now, total = dict(enumerate(outputs)), 0, 0
    while left:  # one step after the other
        here = [request for request in left if arrivals[request] <= now]
        now += 1
        if here:
            least = min(here, key=left.__getitem__)
            left[least] -= 1
            if not left[least]:
                del left[least]
                total += now - arrivals[least]
    assert machines_bound(instance) == total


def test_it_is_met_where_outputs_are_equal_and_age_makes_no_difference():
    instance = Instance([20] * 60, [5] * 60, 75, [3 * (i // 4) for i in range(60)])
    assert run(instance, "mc-sf").total_latency >= machines_bound(instance) > 0.8 * 60 * 5


def test_different_prompts_are_refused():
    with pytest.raises(InstanceError, match="between 1 and 2"):
        machines_bound(Instance([1, 2], [1, 1], 9))
