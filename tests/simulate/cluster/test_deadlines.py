"""Deadlines on a cluster."""

from __future__ import annotations

import numpy as np
from clustered import with_deadlines

from optsched import Cluster, run


def test_missed_deadlines_are_counted_request_by_request():
    rng = np.random.default_rng(2)
    for timed in (False, True):
        instance = with_deadlines(rng, 40, timed=timed)
        cluster = Cluster(2, 2, overhead_s=0.7, seconds_per_token=1e-3)
        done = run(instance, "fcfs", cluster=cluster, steps=30)
        due = missed = 0
        for i, (deadline, output) in enumerate(
            zip(instance.deadlines, instance.outputs, strict=True)
        ):
            end = done.starts[i] + output if done.starts[i] >= 0 else 10**9
            at = done.times[end] if timed and end <= 30 else end
            if (done.times[4] if timed else 4) < deadline <= (done.times[30] if timed else 30):
                due += 1
                missed += at > deadline
        metrics = done.metrics(warm_up=4)
        assert (metrics["due"], metrics["missed"]) == (due, missed)
        assert missed > 0
