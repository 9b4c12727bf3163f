"""The setting that the numbers of BF-IO Section 6 were decoded to, runs in it, and estimates."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from optsched.cluster import BalanceRouting, Cluster
from optsched.papers.estimates import Estimate, estimate
from optsched.simulate import run
from optsched.simulate.cluster.run import REVEAL
from optsched.workloads import family

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster import ClusterRun
    from optsched.papers.study import Study

PAPER = "BF-IO (Chen et al.)"
#: 16 workers, as in Fig. 6: with the 32 of Section 6.2 throughput and TPOT of Table 1 disagree.
CLUSTER = Cluster(workers=16, slots=72)
WARM_UP, STEPS = 300, 4800
REQUESTS = 24_000  # more than any run here admits
SETTINGS = {
    "workload": "family:lognormal",
    "cluster": {name: value for name, value in asdict(CLUSTER).items() if value is not None},
    "reveal": REVEAL,
    "warm_up": WARM_UP,
}
NO_TRACE = (
    "The paper draws from BurstGPT, which is not part of optsched; the family 'lognormal' was "
    "fitted to its step times, imbalances and energies."
)


def routing(policy: str) -> str | BalanceRouting:
    """Return the policy of a name; "bf-io H=5" is BF-IO with that window."""
    name, _, window = policy.partition(" H=")
    return BalanceRouting(lookahead=int(window), name=policy) if window else name


def run_calibrated(policy: str, seed: int, steps: int, **options: Any) -> ClusterRun:
    """Run a policy for so many steps, warm-up included, on the trace of a seed."""
    trace = family("lognormal", n=REQUESTS, seed=seed)
    return run(trace, routing(policy), cluster=CLUSTER, steps=steps, seed=seed, **options)


def traces(study: Study, quick: int, full: int) -> list[int]:
    """Return seeds of traces, different ones for each seed of a study."""
    return [1000 * study.seed + place for place in range(study.choose(quick, full))]


def values(runs: Sequence[dict[str, float]], what: str) -> list[float]:
    """Return one value of each run."""
    return [run[what] for run in runs]


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Estimate the geometric mean of ratios, paired by trace."""
    mean, *ends = estimate([math.log(a / b) for a, b in zip(above, below, strict=True)])
    low, high = (None if end is None else math.exp(end) for end in ends)
    return Estimate(math.exp(mean), low, high)
