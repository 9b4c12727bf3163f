"""Paired comparison of routing policies."""

import json
import math

import numpy as np
import pytest

from optsched import Cluster, compare, family
from optsched.errors import InstanceError, PolicyError
from optsched.experiments.comparison import compare_lookaheads

CLUSTER = Cluster(4, 8)
TRACES = [family("uniform", n=300, seed=seed) for seed in range(4)]


@pytest.fixture(scope="module")
def comparison():
    return compare(TRACES, ["fcfs", "lpt"], cluster=CLUSTER, steps=120, warm_up=30)


def test_intervals_are_student_t_over_traces(comparison):
    values = comparison.values("throughput", "fcfs")
    mean, low, high = comparison.mean("throughput", "fcfs")
    assert mean == pytest.approx(values.mean())
    reach = 3.182446 * values.std(ddof=1) / 2  # t of 97.5 % with 3 degrees of freedom
    assert (low, high) == pytest.approx((mean - reach, mean + reach))


def test_ratios_are_paired_by_trace(comparison):
    fcfs, lpt = (comparison.values("imbalance_tokens", policy) for policy in ("fcfs", "lpt"))
    ratio = comparison.ratio("imbalance_tokens", "fcfs", "lpt")
    assert ratio.mean == pytest.approx(math.exp(np.log(fcfs / lpt).mean()))
    assert ratio.low <= ratio.mean <= ratio.high
    assert comparison.ratio("tpot", "lpt", "lpt") == (1, 1, 1)


def test_one_trace_has_no_interval():
    comparison = compare(TRACES[0], ["fcfs"], cluster=CLUSTER, steps=50)
    mean, low, high = comparison.mean("throughput", "fcfs")
    assert mean == low == high
    assert "intervals" not in comparison.to_dict()["policies"][0]


def test_everything_is_json(comparison):
    content = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert [entry["policy"] for entry in content["policies"]] == ["fcfs", "lpt"]
    assert set(content["policies"][0]["intervals"]) >= {"imbalance_tokens", "throughput"}
    assert len(content["instances"]) == 4
    assert list(comparison.to_pandas().index) == ["fcfs", "lpt"]
    assert "means over 4 traces" in str(comparison)


def test_what_did_not_run_is_said(comparison):
    with pytest.raises(PolicyError, match="policy 'jsq' did not run"):
        comparison.values("tpot", "jsq")
    with pytest.raises(PolicyError, match="no metric 'tpott'; did you mean 'tpot'"):
        comparison.values("tpott", "lpt")
    with pytest.raises(PolicyError, match="'lpt' is given twice"):
        compare(TRACES, ["lpt", "lpt"], cluster=CLUSTER)
    with pytest.raises(PolicyError, match="no routing policy given"):
        compare(TRACES, [], cluster=CLUSTER)
    with pytest.raises(InstanceError, match="no instance"):
        compare([], cluster=CLUSTER)
    with pytest.raises(
        InstanceError, match="warm_up is 99, but must be a number of steps from 0 that the run"
    ):
        compare(TRACES, ["lpt"], cluster=CLUSTER, steps=50, warm_up=99)


def test_lookaheads_run_under_names_of_their_own():
    comparison = compare_lookaheads(TRACES[:2], CLUSTER, [0, 3], ["lpt"], steps=60)
    assert comparison.policies == ["lpt", "bf-io H=0", "bf-io H=3"]
    assert [runs[0].lookahead for runs in comparison.runs.values()] == [None, 0, 3]
