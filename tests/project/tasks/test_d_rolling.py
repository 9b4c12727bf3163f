"""Task D, as a stranger: a rolling horizon with a plan of one's own, by HiGHS and by CP-SAT."""

from __future__ import annotations

import pytest

from optsched import RollingPolicy, SolveParams, compare, family, run, solve


@pytest.mark.parametrize("method", ["highs", "cp-sat", "auto"])
def test_every_decision_is_that_of_the_own_plan(method):
    requests = family("exponential", n=20, seed=2, load=1.2, memory=60)

    def plan(window):
        params = SolveParams(start=window.schedule)
        found = solve(window.program(), method=method, time_limit=5, params=params)
        assert found.proven_optimal
        return found.answer.starts

    policy = RollingPolicy(plan, window=6, budget=30, scenarios=0, name="own")
    served = run(requests, policy)
    assert served.decisions.fallbacks == 0, str(served.decisions)
    assert served.schedule.check() == []
    comparison = compare(requests, ["area", policy])
    assert comparison["own"].total_latency == served.total_latency
