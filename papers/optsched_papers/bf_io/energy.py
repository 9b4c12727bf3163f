"""BF-IO Appendix D.1: less imbalance at the same work, and whether it takes less energy."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from optsched_papers.bf_io.figures import CLUSTER, SETTINGS, STEPS, WARM_UP, loads_of
from optsched_papers.claims import beside, estimate, number, readings, refutable, shape
from optsched_papers.target import Outcome, Study, grid

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.simulate.cluster import Cluster

#: What the power of a worker follows, as the appendix can be read.
OVER_TIME = "over time"  # full power while it computes, idle power while it waits
TOKENS = "by tokens"  # the tokens per second that it makes
SHARE = "by share"  # the share of the step, waits included, for which it computes
READINGS = {
    OVER_TIME: "power over time (10)",
    TOKENS: "power by tokens per second (D45)",
    SHARE: "power by share of the step",
}

_PRINTED = {"fcfs": 396, "bf-io": 383}  # kJ
#: Two workers with 150 tokens each, or one with 100 and one with 200.
EVEN, UNEVEN = (150, 150), (100, 200)
_APART = (0.02, 0.1, 0.2, 0.5, 1.0)  # one worker has this much more, the other as much less
_SHOWN_APART = 0.2


def joules(cluster: Cluster, loads: IntArray, reading: str) -> FloatArray:
    """Return the energy of all workers in each step (D47), with all slots in use."""
    seconds = cluster.overhead_s + cluster.seconds_per_token * loads.max(axis=1)
    power = cluster.power
    if reading == OVER_TIME:
        busy = cluster.seconds_per_token * loads.sum(axis=1)
        spread = power.peak_watt - power.idle_watt
        return np.asarray(loads.shape[1] * power.idle_watt * seconds + spread * busy)
    law = replace(power, utilisation="throughput" if reading == TOKENS else "load")
    active = np.full_like(loads, cluster.slots)
    return np.asarray(law.watt(loads, active, seconds) * seconds)


def root_above(share: Fraction, power: Fraction, digits: int = 6) -> Fraction:
    """Return the least decimal of so many digits that is no less than a power of a share."""
    scale = 10**digits

    def is_enough(root: int) -> bool:
        return Fraction(root, scale) ** power.denominator >= share**power.numerator

    # A share is 1 at most, and so are its powers.
    return Fraction(bisect_left(range(scale), True, lo=1, key=is_enough), scale)


def proven_ratio(cluster: Cluster, even: tuple[int, ...], uneven: tuple[int, ...]) -> Fraction:
    """Return what even loads cost over uneven ones by share of the step, at least, in rationals."""
    power = cluster.power
    fixed, each = (
        Fraction(str(value)) for value in (cluster.overhead_s, cluster.seconds_per_token)
    )
    idle, peak, exponent = (
        Fraction(str(value)) for value in (power.idle_watt, power.peak_watt, power.exponent)
    )

    def at_most(loads: tuple[int, ...]) -> Fraction:
        shares = [root_above(Fraction(load, max(loads)), exponent) for load in loads]
        watt = sum((idle + (peak - idle) * share for share in shares), Fraction(0))
        return (fixed + each * max(loads)) * watt

    if len(set(even)) > 1:
        raise ValueError(f"loads {even} are not even, so that rounding up proves nothing")
    return at_most(even) / at_most(uneven)  # the shares of even loads are 1, and exact


def _two_workers(tokens: list[int]) -> list[dict[str, Any]]:
    """Return what two equal loads cost over two that are apart, at the same work."""
    rows = []
    for mean in tokens:
        for apart in _APART:
            more = round(apart * mean)
            both = np.array([[mean, mean], [mean + more, mean - more]])
            for reading in READINGS:
                even, uneven = joules(CLUSTER, both, reading)
                row = {"reading": reading, "tokens": mean, "apart": apart}
                rows.append({**row, "ratio": float(even / uneven)})
    return rows


def _as_served(policy: str, seed: int, steps: int) -> list[dict[str, Any]]:
    """Return the energy of a run of Table 1, and of its steps if their loads were evened out."""
    name = "bf-io H=20" if policy == "bf-io" else policy
    loads = loads_of(name, seed, steps)[WARM_UP:]
    mean = np.rint(loads.mean(axis=1)).astype(np.int64)
    evened = np.repeat(mean[:, None], loads.shape[1], axis=1)
    rows = []
    for reading in READINGS:
        spent, least = (joules(CLUSTER, each, reading).sum() for each in (loads, evened))
        kilojoules = float(spent) / 1e3 * STEPS / steps
        row = {"reading": reading, "policy": policy, "kilojoules": kilojoules}
        rows.append({**row, "evened": float(least / spent)})
    return rows


def _appendix_d_1(study: Study) -> Outcome:
    tokens = [round(value) for value in np.geomspace(100, 10**6, study.choose(17, 65))]
    pairs = pd.DataFrame(study.map(_two_workers, [{"tokens": tokens}])[0])
    policies = list(_PRINTED)
    steps, seeds = study.choose(1000, STEPS), study.seeds(2, 10, apart=1000)
    runs = study.table(_as_served, grid(policy=policies, seed=seeds, steps=[steps]))
    largest = pairs.groupby("reading")["ratio"].max()
    proven = float(proven_ratio(CLUSTER, EVEN, UNEVEN))
    label = "{}: even over uneven loads of two workers, largest energy"
    claims = readings(
        "less imbalance at the same work takes less energy",
        (
            shape(label.format(READINGS[name]), largest[name], at_most=1)
            for name in (OVER_TIME, TOKENS)
        ),
        refutable(shape(f"{READINGS[SHARE]}: 150 + 150 over 100 + 200 tokens", proven, at_most=1)),
    )
    fcfs = runs[runs["policy"] == "fcfs"].groupby("reading")["evened"]
    claims += [
        shape(f"{what}: steps of FCFS evened out over as they are", estimate(rows), at_most=1)
        for name, what in READINGS.items()
        for rows in [fcfs.get_group(name)]
    ]
    energies = {key: rows["kilojoules"] for key, rows in runs.groupby(["reading", "policy"])}
    for name in READINGS:
        mine = [energies[name, policy].to_numpy() for policy in policies]
        printed = _PRINTED["bf-io"] / _PRINTED["fcfs"]
        label = f"{READINGS[name]}: bf-io H=20 over fcfs"
        ours = estimate((mine[1] / mine[0]).tolist())
        claims += beside(number(label, printed, ours, "ratio"))
    shown = pd.concat([pairs[pairs["apart"] == _SHOWN_APART], _bars(runs)], ignore_index=True)
    cheaper = pairs[(pairs["reading"] == SHARE) & (pairs["ratio"] > 1)]
    settings = {
        "cluster": SETTINGS["cluster"],
        "apart": list(_APART),
        "most_tokens_where_uneven_is_cheaper": {
            str(apart): int(most)
            for apart, most in cheaper.groupby("apart")["tokens"].max().items()
        },
        "traces": len(seeds),
        "steps": steps,
    }
    return Outcome(shown, claims, settings)


def _bars(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the mean energies of both policies by reading, and the printed ones."""
    means = runs.groupby(["reading", "policy"], sort=False)["kilojoules"].mean().reset_index()
    printed = pd.DataFrame({"policy": list(_PRINTED), "kilojoules": list(_PRINTED.values())})
    return pd.concat([printed.assign(reading="paper"), means], ignore_index=True)
