"""MC-SF beside hindsight on synthetic requests: what is drawn, what is solved, and the target."""

import matplotlib as mpl
import numpy as np
from effort import share
from plots_of_targets import drawn
from quick_targets import quick

from optsched import SolveParams, run, solve
from optsched_papers.jaillet import synthetic

mpl.use("Agg")


def held(instance, starts, step):
    """Tokens at a step as the hindsight program of v5 counts them, literally."""
    rows = zip(instance.prompts.tolist(), instance.outputs.tolist(), starts.tolist(), strict=True)
    return sum(s + step - k for s, o, k in rows if max(0, step - o) <= k <= step - 1)


def test_requests_are_drawn_as_the_notes_say():
    for arrivals in synthetic.PRINTED:
        memories, counts = set(), set()
        for seed in range(share(200)):
            instance = synthetic.draw_requests(arrivals, seed)
            memories.add(instance.memory)
            counts.add(len(instance))
            assert set(instance.prompts.tolist()) <= {1, 2, 3, 4, 5}
            assert (instance.peaks <= instance.memory).all()
            assert instance.outputs.min() >= 1
        assert memories <= set(range(30, 51))
        if arrivals == synthetic.AT_ONCE:
            assert counts <= set(range(40, 61))
            assert not instance.arrivals.any()
        else:
            assert 10 < min(counts) < 60 < max(counts)
    assert len(synthetic.draw_requests(synthetic.AT_ONCE, 1, 8)) == 8


def test_a_schedule_below_mc_sf_keeps_the_memory_literally():
    for arrivals in synthetic.PRINTED:
        instance = synthetic.draw_requests(arrivals, 0)
        best = solve(instance, method="search", params=SolveParams(work=0.02)).schedule
        served = run(instance, "mc-sf").schedule
        assert best.total_latency < served.total_latency
        for schedule in (best, served):
            starts = schedule.starts
            assert (starts >= instance.arrivals).all()
            latency = (starts + instance.outputs - instance.arrivals).sum()
            assert schedule.total_latency == latency
            steps = range(1, int((starts + instance.outputs).max()) + 1)
            assert max(held(instance, starts, step) for step in steps) <= instance.memory


def test_the_target_in_quick_form():
    found = quick("jaillet-synthetic")
    assert found.verdict.label == "cannot be decided"
    assert found.verdict.reason.startswith("read at second hand")
    claims = {claim.label: claim for claim in found.claims}
    at_once = f"{synthetic.AT_ONCE}: mean over"
    least, most = (claims[f"{at_once} our {end}"] for end in ("best schedule", "bound"))
    assert 1.0251 < least.ours < most.ours
    assert claims[f"{at_once} the optimum, 6 requests"].ours >= 1
    for _, rows in found.table.groupby(["arrivals", "kind"], sort=False):
        assert (np.diff(rows["share"]) > 0).all() or rows["kind"].iloc[0].startswith("printed")
    drawn(found)
