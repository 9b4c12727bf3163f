"""A hundred cells of the net; the campaign has all of them."""

import numpy as np
import pytest
from worlds import TIMES, Cell, cells, drawn, examine, some_cells

from optsched import POLICIES, RollingPolicy, get_clock, run


@pytest.mark.parametrize("cell", some_cells(100), ids=lambda cell: " ".join(map(str, cell)))
def test_a_run_holds_in_its_own_world_or_is_refused(cell):
    for seed in range(3):
        _, wrong = examine(cell, np.random.default_rng(seed))
        assert wrong == []


@pytest.mark.slow
def test_a_router_sees_the_attempts_of_a_rolling_horizon_that_preempts():
    """Attempts were taken for requests, in their order."""
    cell, preempted = Cell("rolling", "steps", "three workers", True, "intervals"), 0
    for seed in range(40):
        instance, _, options = drawn(cell, np.random.default_rng(seed))
        planned = RollingPolicy(budget=0)  # by its fallback alone, so that runs repeat themselves
        found = run(instance, planned, **options | {"router": "least-kv"})
        assert found.check() == []
        preempted += found.preemptions
    assert preempted


def test_every_policy_and_every_shipped_clock_is_in_the_net():
    known = {cell.policy.partition(":")[0].partition("+")[0] for cell in cells()}
    assert known >= set(POLICIES)
    assert {cell.policy for cell in some_cells(100)} == {cell.policy for cell in cells()}
    for name in TIMES[1:-1]:
        assert get_clock(name).name == name
