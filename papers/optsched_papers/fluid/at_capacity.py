"""Fluid Prop. 2, 3 and 5: what no policy can avoid where the memory is that of the equilibrium."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from optsched.models.fluid.equilibrium import equilibrium
from optsched.problem.instance import Instance
from optsched.simulate import run
from optsched.workloads import poisson_requests
from optsched_papers.claims import beside, estimate, means, number, power, readings, shape
from optsched_papers.fluid.theory import SMALL, SMALL_MEMORY, curves, growth, serve_small
from optsched_papers.fluid.unaware import gaps_by_batch, least_gap, safe_batches
from optsched_papers.target import Outcome, Study, grid

if TYPE_CHECKING:
    from optsched._internal.arrays import FloatArray

CLOCK = "affine:1,0"  # the appendix counts in iterations
STARTED = SMALL_MEMORY  # requests that hold cache, at most: two arrive per iteration
_OUT_OF = 1e-12  # arrivals less likely are left out, which lowers the bound

# Proposition 2: no policy has more throughput than the fluid

TOKENS = 5  # that arrive per iteration, two and three with a request of each type
ENOUGH, SHORT = "C from M* on", "C below M*"


def serve_in(policy: str, memory: int, horizon: int, seed: int) -> dict[str, float]:
    """Serve the instance of Appendix A.3 with some memory; return its share of the throughput."""
    requests = poisson_requests(SMALL, float(horizon), memory, seed=seed)
    found = run(requests, policy, clock=CLOCK, until=float(horizon))
    return {"share": float(requests.outputs[found.completed].sum()) / (TOKENS * horizon)}


def most_in(memory: int) -> float:
    """Return the share of the throughput that iterations of so many tokens can reach."""
    # Summed over the stages, a short request holds three tokens and counts two; a long one six and
    # three.
    return min(1.0, (2 + 3 * (memory - 3) / 6) / TOKENS)


def _proposition_2(study: Study) -> Outcome:
    horizon, seeds = study.choose(4000, 16_000), study.seeds(8, 32)
    memories = (4, 5, 6, 7, 8, SMALL_MEMORY, 12, 18, 36)
    policies = ["fcfs", "mixed", "mc-sf", "area"]
    runs = study.table(
        serve_in, grid(policy=policies, memory=memories, horizon=[horizon], seed=seeds)
    )
    table = means(runs, ["policy", "memory"], "share")
    table["side"] = np.where(table["memory"] < SMALL_MEMORY, SHORT, ENOUGH)
    table["most"] = table["memory"].map(most_in)
    limit = [{"policy": "any policy, at most", "memory": m, "share": most_in(m)} for m in memories]
    largest = table.groupby("side")["share"].max()
    # Tokens that arrive have a variance of 4 + 9 per iteration; three standard errors of a mean.
    noise = 3 * float(np.sqrt(13 / (horizon * len(seeds)))) / TOKENS
    label = "{}: largest throughput of a policy over the fluid's"
    claims = [
        shape(label.format(ENOUGH), largest[ENOUGH], at_most=1 + noise, paper=1),
        shape(label.format(SHORT), largest[SHORT], at_most=0.97),
    ]
    reached = float((table["share"] / table["most"]).max())
    label = "largest throughput of a policy over what iterations of C tokens reach"
    claims += beside(shape(label, reached, at_most=1 + noise))
    settings = {"clock": CLOCK, "horizon": horizon, "seeds": len(seeds)}
    table = pd.concat([table.drop(columns=["side", "most"]), pd.DataFrame(limit)])
    return Outcome(table, claims, settings)


# Proposition 3: latency grows like the root of the horizon


def least_present(horizon: int) -> FloatArray:
    """Bound from below the expected number of requests present at the start of each iteration."""
    # By then at least V_t times three tokens, summed over the stages, have arrived that no policy
    # can have processed: iterations take nine, so V_{t+1} = max(V_t + X_1 + 2 X_2 - 3, 0) with
    # Poisson arrivals X. A request has six at most. The distribution is exact, but for what is very
    # unlikely.
    counts = np.arange(40)
    poisson = np.exp(-1 - np.cumsum(np.log(np.maximum(counts, 1))))
    double = np.zeros(2 * len(counts) - 1)
    double[::2] = poisson
    arriving = np.convolve(poisson, double)
    arriving = arriving[: int(np.flatnonzero(arriving > _OUT_OF)[-1]) + 1]
    size = int(12 * np.sqrt(5 * horizon)) + 50  # of twelve standard deviations
    backlog, found, work = np.ones(1), np.empty(horizon), SMALL_MEMORY // 3
    for t in range(horizon):
        found[t] = np.arange(len(backlog)) @ backlog / 2
        later = np.convolve(backlog, arriving)
        backlog = later[work:][:size]
        backlog[0] += later[:work].sum()
        backlog = backlog[: int(np.flatnonzero(backlog > _OUT_OF**2)[-1]) + 1]
    return found


def least_latencies(horizons: list[int]) -> list[float]:
    """Return the mean latency up to each horizon, per expected arrival, of any policy at least."""
    sums = np.cumsum(least_present(max(horizons)))
    return [float(sums[horizon - 1] / (2 * horizon)) for horizon in horizons]


def _proposition_3(study: Study) -> Outcome:
    horizons = study.choose((1000, 4000, 16_000), (1000, 4000, 16_000, 64_000))
    seeds = study.seeds(16, 32)
    policies = ["wait", "mixed", "fcfs", "mc-sf"]
    runs = study.table(
        serve_small, grid(policy=policies, clock=[CLOCK], horizon=horizons, seed=seeds)
    )
    least = np.array(study.map(least_latencies, [{"horizons": list(horizons)}])[0])
    bound = pd.DataFrame({"policy": "any policy, at least", "horizon": horizons})
    bound = bound.assign(latency=least, ttft=least - STARTED / 2)
    claims = []
    for what in ("latency", "ttft"):
        label = f"exponent of the least {what} of any policy"
        claims.append(shape(label, power(horizons, bound[what]), at_least=0.45))
    for name, rows in runs.groupby("policy", sort=False):
        for what in ("latency", "ttft"):
            label = f"exponent of {what}, {name}"
            # A tenth for constant terms; only WAIT has to stay below, which makes the bound tight.
            most = 0.6 if name == "wait" else np.inf
            claims.append(growth(label, rows, what, (0.4, most), study.seed, horizons[0]))
    bounds = dict(zip(horizons, least, strict=True))
    runs["above"] = runs["latency"] / runs["horizon"].map(bounds)
    wait = runs[(runs["policy"] == "wait") & (runs["horizon"] == horizons[-1])]
    lowest = min(rows["above"].mean() for _, rows in runs.groupby(["policy", "horizon"]))
    claims += beside(
        shape("least mean latency of a policy over the bound", lowest, at_least=1),
        shape("latency of wait over the bound", estimate(wait["above"]), at_least=1),
    )
    table = pd.concat([curves(runs, "policy", ("latency", "ttft")), bound], ignore_index=True)
    settings = {"memory": SMALL_MEMORY, "clock": CLOCK, "seeds": len(seeds)}
    return Outcome(table, claims, settings)


# Proposition 5: a policy unaware of types misses a constant throughput

#: Policies that only know outputs to be two or three, and lose the tokens of what they preempt.
UNAWARE = ("a-max", "a-min", "a-l", "alpha-beta-clearing")
BY_BATCH = "only the batch counts"


def serve_unaware(policy: str, horizon: int, seed: int) -> dict[str, float]:
    """Serve the instance of Appendix A.4 in iterations; return the tokens missing in each."""
    drawn = poisson_requests(SMALL, float(horizon), SMALL_MEMORY, seed=seed)
    arrivals = -(-drawn.arrivals // 10**6)  # an arrival waits for the next iteration
    requests = Instance(drawn.prompts, drawn.outputs, SMALL_MEMORY, arrivals=arrivals)
    known: dict[str, Any] = {} if policy.startswith("alpha") else {"intervals": "common:2,3"}
    found: Any = run(requests, policy, seed=seed, **known)
    done = found.completed & (found.starts + found.tokens <= horizon)
    missing = requests.outputs.sum() - found.tokens[done].sum()
    return {"gap": float(missing) / horizon}


def _proposition_5(study: Study) -> Outcome:
    horizons = study.choose((1000, 4000, 16_000), (1000, 4000, 16_000, 64_000))
    seeds = study.seeds(8, 16)
    calls = grid(policy=UNAWARE, horizon=horizons, seed=seeds)
    runs = study.table(serve_unaware, calls)
    engine = grid(policy=["mixed"], clock=[CLOCK], horizon=horizons, seed=seeds)
    runs = pd.concat([runs, study.table(serve_small, engine)], ignore_index=True)
    calls = grid(memory=[SMALL_MEMORY], horizons=[list(horizons)], seed=seeds)
    by_batch = study.table(gaps_by_batch, calls).assign(policy=BY_BATCH)
    runs = pd.concat([runs, by_batch], ignore_index=True)
    least = float(least_gap(SMALL_MEMORY))

    def exponent(name: str, low: float) -> Any:
        rows = runs[runs["policy"] == name]
        return growth(f"exponent of the gap, {name}", rows, "gap", (low, 0.1), study.seed, 1000)

    balance = equilibrium(SMALL, "affine:0.55,0.05")
    claims = [
        *readings(
            "any policy unaware of types misses a constant throughput",
            shape("least gap where all caches count", least, at_least=0.01),
            exponent(BY_BATCH, -0.1),
        ),
        *(exponent(name, -0.1) for name in UNAWARE),
    ]
    longest = runs[runs["horizon"] == horizons[-1]].groupby("policy", sort=False)["gap"]
    claims += beside(
        (
            shape(f"gap, {name}", estimate(longest.get_group(name)), at_least=least)
            for name in (*UNAWARE, "mixed")
        ),
        # Steps of the proof.
        number("M*", 9, balance.memory, "exact"),
        number("requests of type 1", 2, balance.active_requests[0], "exact"),
        number("requests of type 2", 3, balance.active_requests[1], "exact"),
        # The same where time grows with the tokens of a batch, d0 = 1 - 9 d1.
        (
            shape(
                f"least gap where all caches count, d1 = {work}",
                float(least_gap(SMALL_MEMORY, Fraction(work))),
                at_least=0.01,
            )
            for work in ("0.05", "0.1")
        ),
        shape("full batches that surely fit on", len(safe_batches(SMALL_MEMORY)), at_most=0),
    )
    bound = {"policy": "all caches count, at least", "horizon": horizons, "gap": least}
    table = pd.concat([curves(runs, "policy", ("gap",)), pd.DataFrame(bound)], ignore_index=True)
    settings: dict[str, Any] = {"memory": SMALL_MEMORY, "seeds": len(seeds)}
    settings |= {"safe_batches": [list(batch) for batch in safe_batches(SMALL_MEMORY)]}
    return Outcome(table, claims, settings)
