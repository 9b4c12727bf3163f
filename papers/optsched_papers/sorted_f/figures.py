"""Sorted-F Fig. 5 to 8 and EC.2, Table EC.1 and Example 1: lengths, total and mean latencies."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from optsched.bounds.bound import bound
from optsched.simulate import run
from optsched.workloads import family
from optsched_papers.claims import (
    CONTRADICTS,
    Claim,
    Estimate,
    beside,
    estimate,
    means,
    number,
    ratio,
    refutable,
    shape,
)
from optsched_papers.target import Outcome, Study, grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched._internal.arrays import IntArray


def _example_1(study: Study) -> Outcome:
    instance = family("sorted-f-example-1", seed=study.seed)
    printed = {"mc-sf": 64, "sorted-f": 45}
    latency = {name: run(instance, name).total_latency for name in printed}
    claims = [number(name, paper, latency[name], "exact") for name, paper in printed.items()]
    saved = 1 - latency["sorted-f"] / latency["mc-sf"]
    claims.append(number("saved by Sorted-F", 0.297, saved, "digits"))
    table = pd.DataFrame({"policy": list(latency), "total_latency": list(latency.values())})
    return Outcome(table, claims, {"requests": len(instance), "memory": instance.memory})


WORKLOAD = "chat-and-summaries"
# Figures 8 and EC.2: mean latency on chats mixed with summaries, by number of requests

CLOCK = "llama-2-70b-2xa100"
PAPER = ("fcfs", "mc-sf", "sorted-f-quantile", "sorted-lp", "sorted-f", "lp-swap")
# The figure prints no numbers. What the text calls lower must be so by a tenth, about what a
# reader can tell in the figure; what it calls nearly identical must be within a twentieth.
LOWER, NEARLY = 1.1, 0.05


@cache
def _mean_latency(policy: str, requests: int, of: int, seed: int) -> float:
    """Serve the first of `of` requests that are drawn; both figures have some policies."""
    instance = family(WORKLOAD, n=of, seed=seed).take(np.arange(requests))
    return run(instance, policy, clock=CLOCK).mean_latency


def mean_latencies(requests: int, of: int, seed: int, policies: list[str]) -> list[dict[str, Any]]:
    """Return mean latencies in seconds."""
    return [
        {"policy": name, "latency": _mean_latency(name, requests, of, seed)} for name in policies
    ]


def _latencies(study: Study, policies: Sequence[str]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return one row per number of requests, seed and policy."""
    counts = study.choose((250, 500, 1000), range(200, 2001, 200))
    seeds = study.seeds(2, 5)
    most = [study.choose(1000, 2000)]
    calls = grid(requests=counts, seed=seeds, of=most, policies=[list(policies)])
    settings: dict[str, Any] = {"workload": WORKLOAD, "requests": list(counts), "seeds": seeds}
    settings |= {"memory": 16_492, "clock": CLOCK}
    return study.table(mean_latencies, calls), settings


def _ratio(runs: pd.DataFrame, over: str, under: str, count: int) -> Estimate:
    """Compare two policies at a number of requests, seed by seed."""
    last = runs[runs["requests"] == count]
    at = last.pivot_table(index="seed", columns="policy", values="latency")
    return ratio(at[over].to_list(), at[under].to_list())


def _figure_8(study: Study) -> Outcome:
    runs, settings = _latencies(study, [*PAPER, "area"])
    pairs = (
        ("fcfs", "sorted-f"),
        ("mc-sf", "sorted-f"),
        ("mc-sf", "sorted-lp"),
        ("sorted-f-quantile", "sorted-f"),
        ("sorted-lp", "lp-swap"),
    )
    most = runs.requests.max()
    claims = [
        shape(f"{over} over {under}", _ratio(runs, over, under, most), at_least=LOWER)
        for over, under in pairs
    ]
    claims.append(_nearly(runs, most))
    # Of FCFS the text only says that Sorted-F is better.
    claims += beside(shape("fcfs over mc-sf", _ratio(runs, "fcfs", "mc-sf", most), at_least=LOWER))
    return Outcome(means(runs, ["policy", "requests"], "latency"), claims, settings)


def _figure_ec_2(study: Study) -> Outcome:
    runs, settings = _latencies(study, ["sorted-f", "lp-swap"])
    table = means(runs, ["policy", "requests"], "latency")
    curves = table.pivot_table("latency", "requests", "policy")
    apart = (curves["lp-swap"] - curves["sorted-f"]).abs().max() / curves.to_numpy().max()
    # What overlaps in a figure is less than a twentieth of its height apart.
    claims = [shape("largest distance of the curves over the figure", apart, at_most=NEARLY)]
    claims += beside(_nearly(runs, count) for count in settings["requests"])
    return Outcome(table, claims, settings)


def _nearly(runs: pd.DataFrame, count: int) -> Claim:
    ours = _ratio(runs, "lp-swap", "sorted-f", count)
    label = f"lp-swap over sorted-f, {count} requests"
    return shape(label, ours, at_least=1 - NEARLY, at_most=1 + NEARLY)


# Table EC.1: total latency on five distributions with a memory of 100 tokens

POLICIES = ("sorted-lp", "sorted-f", "lp-swap")
#: Sorted-LP, Sorted-F (Swap), LP-Swap, and the number of requests.
PRINTED = {
    "uniform": (9763.0, 9748.3, 9771.4, 100),
    "normal": (9397.3, 9416.9, 9385.3, 100),
    "binomial": (10943.0, 10696.7, 10665.7, 100),
    "exponential": (6015.7, 6016.9, 6016.0, 100),
    "mixed": (22133.2, 22100.1, 22128.2, 200),
}
# The printed policies differ by at most 2.6 % within a row (binomial).
SPREAD = 0.026
_MAX_REQUESTS = 512  # requests tried for a printed total


def totals(distribution: str, seed: int) -> dict[str, float]:
    """Return the total latency of each policy on one draw, and a proven bound as "bound"."""
    instance = family(distribution, seed=seed)
    found = {policy: float(run(instance, policy).total_latency) for policy in POLICIES}
    return {**found, "bound": bound(instance).value}


def guess(distribution: str, prompts: bool, seed: int) -> float:
    """Return the total of Sorted-F with outputs exponential of mean 10, perhaps prompts as well."""
    drawn = family(distribution, seed=seed)
    rng = np.random.default_rng([seed, 10])

    def lengths() -> IntArray:
        return np.clip(rng.exponential(10, len(drawn)), 1, 50).astype(np.int64)

    changed = drawn.replace(outputs=lengths())
    changed = changed.replace(prompts=lengths()) if prompts else changed
    return float(run(changed, "sorted-f").total_latency)


def _guesses(study: Study) -> dict[str, Estimate]:
    """Estimate what one guess, the same for all rows, would give in place of the stated outputs."""
    rows = {name: {"distribution": name, "prompts": False} for name in PRINTED}
    rows["exponential, with such prompts"] = {"distribution": "exponential", "prompts": True}
    return {
        name: estimate(found)
        for name, found in study.by_seed(guess, rows, study.seeds(20, 20)).items()
    }


def requests_for(distribution: str, seeds: list[int], total: float) -> int:
    """Return the fewest requests, by bisection, with this mean total of Sorted-F or more."""

    def mean(n: int) -> float:
        draws = [family(distribution, n=n, seed=seed) for seed in seeds]
        return float(np.mean([run(draw, "sorted-f").total_latency for draw in draws]))

    few, many = 1, _MAX_REQUESTS
    while many - few > 1:
        half = (few + many) // 2
        few, many = (few, half) if mean(half) >= total else (half, many)
    return many


def _table_ec_1(study: Study) -> Outcome:
    seeds = study.seeds(3, 20)
    runs = study.table(totals, grid(distribution=PRINTED, seed=seeds))
    calls = [{"distribution": k, "seeds": seeds, "total": row[1]} for k, row in PRINTED.items()]
    fitting = study.map(requests_for, calls)
    rows, claims = [], []
    for (name, printed), fits in zip(PRINTED.items(), fitting, strict=True):
        drawn = runs[runs.distribution == name]
        paper = dict(zip(POLICIES, printed, strict=False))
        ours = {policy: estimate(drawn[policy].to_list()) for policy in (*POLICIES, "bound")}
        means = [ours[policy].mean for policy in POLICIES]
        least = min(paper.values()) / ours["bound"].mean
        least_possible = f"{name}, printed total over the least possible"
        claims += [
            *refutable(shape(least_possible, least, at_least=1), proves=CONTRADICTS),
            *(
                number(f"{name}, {policy}", paper[policy], ours[policy], "level")
                for policy in POLICIES
            ),
            shape(f"{name}, spread of policies", max(means) / min(means) - 1, at_most=SPREAD),
        ]
        label = f"{name}, requests with the printed total"
        claims += beside(number(label, printed[3], fits, "level"))
        series = {
            **{policy: ours[policy] for policy in POLICIES},
            "proven bound": ours["bound"],
            "printed, sorted-f": (paper["sorted-f"], None, None),
        }
        rows += [(name, what, *values, printed[3], fits) for what, values in series.items()]
    guesses = _guesses(study)
    rows += [
        (k, "guess, sorted-f", *guesses[k], row[3], fitting[at])
        for at, (k, row) in enumerate(PRINTED.items())
    ]
    claims += beside(
        number(f"{name}: a guess, outputs exponential of mean 10", paper, ours, "level")
        for name, ours in guesses.items()
        for paper in [PRINTED[name.partition(",")[0]][1]]
    )
    columns = ["distribution", "policy", "total", "low", "high", "requests", "fitting_requests"]
    requests = {name: row[3] for name, row in PRINTED.items()}
    settings = {"memory": 100, "seeds": seeds, "requests": requests}
    return Outcome(pd.DataFrame(rows, columns=columns), claims, settings)
