"""Task D, as a stranger: a rolling horizon with a plan of one's own, by HiGHS and by CP-SAT."""

import re

import pytest

from optsched import RollingPolicy, SolveParams, compare, family, run, solve


@pytest.mark.parametrize("method", ["highs", "cp-sat", "auto"])
def test_every_decision_is_that_of_the_own_plan(method):
    requests = family("exponential", n=20, seed=2, load=1.2, memory=60)

    def plan(window):
        params = SolveParams(start=window.schedule)
        found = solve(window.program(), method=method, time_limit=5, params=params)
        assert found.proven_optimal
        return found.answer

    policy = RollingPolicy(plan, window=6, budget=30, scenarios=0, name="own")
    served = run(requests, policy)
    assert served.decisions.fallbacks == 0, str(served.decisions)
    assert served.schedule.check() == []
    comparison = compare(requests, ["area", policy])
    assert comparison["own"].total_latency == served.total_latency


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda window: None, "the plan is None, but must be a Schedule, or a whole start for"),
        (lambda window: [0.5] * len(window), r"the plan is \[0\.5.*, but must be a Schedule"),
        (lambda window: [-1] * len(window), "the plan overfills the memory or starts requests in"),
    ],
)
def test_a_plan_that_is_none_says_what_it_should_be(answer, reason):
    requests = family("uniform", n=4, seed=1)
    served = run(requests, RollingPolicy(answer, budget=30, scenarios=0))
    assert served.decisions.fallbacks == len(served.decisions)
    assert any(re.match(reason, said) for said in served.decisions.to_dict()["reasons"])
