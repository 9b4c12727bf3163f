"""What the proofs of Sorted-F Theorem 1 and EC.1 add up, compared with simulated schedules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opposite_orders import opposite_orders

from optsched import Instance, family, run
from optsched.errors import InstanceError


@given(data=st.data())
def test_the_prefix_rule_is_never_worse_than_batches_one_after_another(data):
    counts = data.draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    types = data.draw(
        st.lists(
            st.tuples(st.integers(0, 6), st.integers(1, 6)), min_size=2, max_size=2, unique=True
        )
    )
    prompts, outputs = np.repeat(types, counts, axis=0).T
    instance = Instance(prompts, outputs, data.draw(st.integers(12, 40)))
    in_order = run(instance, "fcfs").total_latency
    assert in_order <= opposite_orders(instance)[0]
    swapped = instance.take(np.arange(len(instance))[::-1])
    assert opposite_orders(swapped) == opposite_orders(instance)[::-1]
    assert run(swapped, "fcfs").total_latency <= opposite_orders(instance)[1]


@pytest.mark.parametrize("memory", [64, 1024])
def test_they_are_the_printed_sums(memory):
    """Theorem 1: sqrt(M) sum i + X Y / sqrt(M) + 2 M / 3 sum j, and 6 X Y / M in the middle.

    With M divisible by 3 the numbers of batches are whole; 576 and 2304 are.
    """
    root, memory = 3 * int(memory**0.5), 9 * memory
    x, y = memory, memory * root
    ones = np.arange(1, x // root + 1).sum() * root
    twos = np.arange(1, 3 * root + 1).sum() * 2 * memory // 3
    found = opposite_orders(family("sorted-f-theorem-1", memory=memory))
    assert found == (ones + x * y // root + twos, ones + 6 * x * y // memory + twos)


def test_they_are_exact_where_nothing_fits_beside_a_full_batch():
    for theorem, policy in (("1", "mc-sf"), ("ec-1", "mc-sf-total")):
        instance = family(f"sorted-f-theorem-{theorem}-long", memory=900)
        worse, better = opposite_orders(instance)
        assert run(instance, policy).total_latency == worse
        assert run(instance, "area").total_latency == better


def test_other_than_two_types_are_refused():
    with pytest.raises(InstanceError, match="the instance has 3 types of requests, but 2 are need"):
        opposite_orders(Instance([1, 2, 3], [1, 1, 1], 9))
