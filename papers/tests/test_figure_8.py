"""Sorted-F Figure 8 in small: mean latencies of the mixed data set, in steps and in seconds.

Held against ratios that were expected at 2,000 requests: FCFS to MC-SF at least 1.8, MC-SF to local
swap at least 2.2, quantile to swap 1.6 to 1.85. In steps MC-SF to swap is 2.19; all three hold in
seconds. Sorted-F and LP-Swap, whose curves nearly overlap in the paper, are within 2 % in seconds.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from optsched import read_trace, run

POLICIES = ("fcfs", "mc-sf", "sorted-f-quantile", "sorted-f", "sorted-lp", "lp-swap", "area")


@pytest.fixture(scope="module")
def schedules(shared_data):
    instance = read_trace(str(shared_data / "mixed_2000.csv.gz"), 16_492)
    return {name: run(instance, name).schedule for name in POLICIES}


def mean_seconds(schedule, clock):
    """Add up the batches until each completion; the time of a batch is linear in what is in it."""
    instance, starts = schedule.instance, schedule.starts
    steps = int(schedule.makespan) + 1
    first = starts + 1
    prefill = np.bincount(first, instance.prompts, steps)
    squares = np.bincount(first, instance.prompts.astype(float) ** 2, steps)
    decoding, resident = np.zeros(steps), np.zeros(steps)
    for s, o, k in zip(instance.prompts, instance.outputs, starts, strict=True):
        decoding[k + 2 : k + o + 1] += 1
        resident[k + 2 : k + o + 1] += s + np.arange(1, o)
    c = [clock[f"c{index}"] for index in range(5)]
    times = c[0] + c[1] * prefill + c[2] * decoding + c[3] * resident + c[4] * squares
    times[0] = 0
    return np.cumsum(times)[schedule.completions].mean()


@pytest.mark.slow
def test_in_steps(schedules):
    mean = {name: schedule.mean_latency for name, schedule in schedules.items()}
    assert all(schedule.check() == [] for schedule in schedules.values())
    assert mean["fcfs"] / mean["mc-sf"] >= 1.8
    assert mean["mc-sf"] / mean["sorted-f"] == pytest.approx(2.19, abs=0.005)
    assert 1.6 <= mean["sorted-f-quantile"] / mean["sorted-f"] <= 1.85
    assert mean["sorted-lp"] < mean["area"] < mean["lp-swap"] < mean["sorted-f"]


def test_in_seconds(schedules, shared_data):
    clock = json.loads((shared_data / "batch_time.json").read_text())["models"]
    clock = clock["llama-2-70b_2xA100-80GB_TP2"]["ols"]
    mean = {name: mean_seconds(schedule, clock) for name, schedule in schedules.items()}
    assert mean["fcfs"] / mean["mc-sf"] >= 1.8
    assert mean["mc-sf"] / mean["sorted-f"] >= 2.2
    assert 1.6 <= mean["sorted-f-quantile"] / mean["sorted-f"] <= 1.85
    assert mean["lp-swap"] == pytest.approx(mean["sorted-f"], rel=0.02)
    assert mean["sorted-lp"] < mean["area"] < mean["sorted-f"]


@pytest.mark.parametrize("count", [200, 1000])
def test_quantiles_beat_shortest_first_once_there_are_many_requests(shared_data, count):
    instance = read_trace(str(shared_data / "mixed_2000.csv.gz"), 16_492, limit=count)
    names = ("sorted-f", "sorted-f-quantile", "mc-sf", "fcfs")
    mean = {name: run(instance, name).mean_latency for name in names}
    ranking = sorted(names, key=mean.get)
    if count == 200:  # few requests: quantiles of a sample are rough
        assert ranking == ["sorted-f", "mc-sf", "sorted-f-quantile", "fcfs"]
    else:
        assert ranking == list(names)
