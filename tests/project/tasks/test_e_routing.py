"""Task E, as a stranger: BF-IO's program by both solvers, and a router with forecasts 30 % off."""

import numpy as np
import pytest

from optsched import Cluster, compare, family, run, solve
from optsched.models import BalanceProgram, BalanceState
from optsched.simulate.cluster import Predictor


def step(remaining, waiting):
    """Return a step of three workers whose requests are forecast to go on for so long."""
    return BalanceState.from_requests(
        slots=[3, 3, 3],
        worker=[0, 0, 1, 1, 2],
        tokens=[30, 12, 41, 8, 37],
        remaining=remaining,
        waiting=waiting,
        lookahead=5,
    )


@pytest.mark.slow
def test_both_solvers_agree_and_wrong_forecasts_cost_what_they_cost():
    rng = np.random.default_rng(3)
    for _ in range(5):
        remaining, waiting = rng.integers(1, 9, 5), np.sort(rng.integers(1, 40, 4))
        forecast = np.maximum(np.rint(remaining * (1 + rng.uniform(-0.3, 0.3, 5))), 1).astype(int)
        truth = BalanceProgram(step(remaining, waiting))
        known = BalanceProgram(step(forecast, waiting))
        best = [solve(truth, method=name).require(optimal=True) for name in ("highs", "cp-sat")]
        assert best[0].objective == best[1].objective == truth.cost(best[1].answer.worker)
        blind = solve(known, method="cp-sat").answer.worker
        assert truth.cost(blind) >= best[0].objective

        # A row of one's own: the first worker takes one request at most.
        model = truth.to_linear()
        mine = model.columns_of("assign", worker=0)
        row = np.isin(np.arange(len(model.cost)), mine)
        ruled = [
            solve(model.with_rows("one", row, upper=1), method=name) for name in ("highs", "cp-sat")
        ]
        chosen = truth.read(ruled[0].values)
        assert ruled[0].objective == ruled[1].objective == truth.cost(chosen)
        assert (chosen == 0).sum() <= 1


class Foreseeing:
    """Sends each request to the worker that will be lightest, by outputs that are 30 % off."""

    name, lookahead = "foreseeing", 8
    information = Predictor(horizon=8, relative_error=0.3)

    def __init__(self, outputs, seed=0):
        off = np.random.default_rng(seed).uniform(0.7, 1.3, len(outputs))
        self.outputs = outputs * off

    def route(self, state):
        loads = state.loads.mean(axis=1)
        free, chosen = state.free.copy(), np.full(len(state.waiting), -1)
        oldest = np.arange(min(free.sum(), len(chosen)))
        for at in oldest[np.argsort(-state.sizes[oldest], kind="stable")]:
            worker = np.argmin(np.where(free > 0, loads, np.inf))
            chosen[at], free[worker] = worker, free[worker] - 1
            loads[worker] += state.sizes[at] * min(self.outputs[state.waiting[at]] / 8, 1)
        return chosen


@pytest.mark.slow
def test_an_own_router_with_forecasts_runs_and_is_compared():
    trace, cluster = family("lognormal", n=150, seed=1), Cluster(workers=4, slots=8)
    own = Foreseeing(trace.outputs)
    served = run(trace, own, cluster=cluster)
    assert served.completed.all()
    assert served.check() == []
    comparison = compare(trace, ["fcfs", "bf-io", own], cluster=cluster)
    table = comparison.to_pandas()
    assert table.loc["foreseeing", "imbalance_tokens"] < table.loc["fcfs", "imbalance_tokens"]
