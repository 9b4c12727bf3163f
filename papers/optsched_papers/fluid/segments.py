"""Fluid Theorem 4: Nested WAIT with fewer segments than types, and equality in (14)."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np

from optsched.clock import get_clock
from optsched.models.fluid.nested import NestedWaitThresholds
from optsched.policies import NestedWaitPolicy
from optsched.workloads import poisson_requests
from optsched_papers.claims import beside
from optsched_papers.fluid import theory
from optsched_papers.fluid.serving import types_of
from optsched_papers.target import Outcome, Study, grid

#: Ten of each arrive per second; a full batch of any segments below takes at most 0.3 s.
TYPES = types_of(10, [5, 10, 15, 20], [10, 10, 10, 10], prefill_makes_token=False)
CLOCK = "affine:0.03,5e-5"
#: Last stage of each segment, with the prefill as stage 0, thresholds, and the clock.
Segments: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], str]
SEGMENTS: dict[str, Segments] = {
    "4 segments": ((5, 10, 15, 20), (12, 10, 7, 4), CLOCK),
    "2 segments": ((10, 20), (12, 7), CLOCK),
    "1 segment": ((20,), (12,), CLOCK),
    "2 segments, equality": ((10, 20), (12, 7), "affine:0.11175,5e-5"),
}
#: One type in one segment, at equality: every batch has one request at each stage, for a second.
ONE = types_of(1, [1], [1], prefill_makes_token=False)
ALONE = "1 type, equality"
_ALONE: Segments = ((1,), (1,), "affine:0.85,0.05")


def serve(name: str, horizon: float, seed: int) -> dict[str, float]:
    """Serve requests with some segments until a horizon."""
    types, (lasts, thresholds, clock) = ONE, _ALONE
    if name in SEGMENTS:
        types, (lasts, thresholds, clock) = TYPES, SEGMENTS[name]
    borders = tuple(last + 1 for last in lasts)  # batches, of which the prefill is one
    policy = NestedWaitPolicy(name, borders=borders, thresholds=thresholds)
    requests = poisson_requests(types, horizon, 10**9, seed=seed)
    return theory.serve_until(requests, policy, clock, horizon)


def full_batch_seconds(name: str) -> float:
    """Return what a full batch takes; (14) asks that no more than the first threshold arrive."""
    lasts, thresholds, clock = SEGMENTS[name]
    firsts = [0, *(last + 1 for last in lasts[:-1])]
    segments = zip(thresholds, firsts, lasts, strict=True)
    tokens = sum(n * (10 + stage) for n, a, b in segments for stage in range(a, b + 1))
    overhead, per_token = (float(value) for value in clock.removeprefix("affine:").split(","))
    return overhead + per_token * tokens


def memory_bound(name: str) -> int:
    """Return the memory (15), which does not depend on the clock."""
    lasts, thresholds, _ = SEGMENTS[name]
    program = NestedWaitThresholds(TYPES, get_clock(CLOCK), np.array(lasts))
    return program.plan(thresholds, delta=theory.DELTA, iterations=theory.ITERATIONS).memory_bound


def _theorem_4(study: Study) -> Outcome:
    horizons = study.choose((50, 100, 200, 400), (50, 100, 200, 400, 800, 1600, 3200))
    seeds = study.seeds(8, 16)
    runs = study.table(serve, grid(name=[*SEGMENTS, ALONE], horizon=horizons, seed=seeds))
    # Iterations last as 12 arrivals do, 0.3 s: a fifth more time has enough of them.
    short = 1.2 * theory.ITERATIONS * 12 / float(TYPES.rates.sum())
    checks, settings = theory.first_iterations(study, serve, short, name=SEGMENTS)
    claims = []
    for name, rows in runs.groupby("name", sort=False):
        label = f"{name}: exponent of {{}}"
        found = theory.constants(label, rows, study.seed, 100, ("gap", "latency", "ttft"))
        if name == ALONE:
            claims += beside(found)
            continue
        own = checks[checks["name"] == name]
        kept = theory.within_bound(" (15)", own, memory_bound(str(name)))
        claims += [*found, replace(kept, label=f"{name}: {kept.label}")]
    settings |= {
        "types": "prompt 10, outputs 5, 10, 15 and 20, ten of each per second",
        "segments": {
            name: {"last_stages": lasts, "thresholds": thresholds, "clock": clock}
            for name, (lasts, thresholds, clock) in SEGMENTS.items()
        },
        "full_batch_s": {name: full_batch_seconds(name) for name in SEGMENTS},
        "bounds": {name: memory_bound(name) for name in SEGMENTS},
        "delta": theory.DELTA,
        "iterations": theory.ITERATIONS,
        "seeds": len(seeds),
        "horizons": list(horizons),
    }
    return Outcome(theory.curves(runs, "name", ("gap", "latency", "ttft")), claims, settings)
