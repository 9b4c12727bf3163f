"""Fluid Prop. 1: at which rates latency grows linearly under any policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from optsched.policies import WaitPolicy
from optsched.problem.instance import Instance
from optsched.simulate import run
from optsched_papers.claims import beside, power, readings, refutable, shape
from optsched_papers.fluid.theory import until
from optsched_papers.target import Outcome, Study, grid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.policies import Policy

PROMPT, OUTPUT, MEMORY, UNLIMITED = 10, 10, 200, 10**9
OVERHEAD, PER_TOKEN = 0.0085, 1e-4  # d0 and d1
CLOCK = f"affine:{OVERHEAD},{PER_TOKEN}"
TOKENS = (OUTPUT + 1) * (PROMPT + OUTPUT / 2)  # over all stages, the prefill included
WITH_D1, WITH_D0 = "with d1, as in Appendix A.1", "with d0, as in Section 3.1"
#: Rates at which the product that shall be below 1 is 1, or 1.4.
RATES = {WITH_D1: 1 / (PER_TOKEN * TOKENS), WITH_D0: 1.0}
POLICIES: dict[str, Policy | str] = {
    "fcfs": "fcfs",
    "mixed": "mixed",
    "wait": WaitPolicy(classes=1, thresholds=(1,), borders=(OUTPUT + 1,)),
}


def serve_evenly(
    policy: str, rate: float, horizon: float, memory: int = MEMORY
) -> dict[str, float]:
    """Serve requests that arrive at equal distances; return their mean latency by a horizon."""
    n = int(rate * horizon)
    arrivals = np.rint(np.arange(n) / rate * 1e6).astype(np.int64)
    requests = Instance(
        # Batches hold from the prompt on, and the prefill, which makes no token, is one.
        np.full(n, PROMPT - 1),
        np.full(n, OUTPUT + 1),
        memory,
        arrivals=arrivals,
        seconds_per_step=1e-6,
    )
    found = run(requests, POLICIES[policy], clock=CLOCK, until=horizon)
    return {"latency": until(found.completions, found, horizon)}


def least_latency(rate: float, horizon: float) -> float:
    """Return the least mean latency that any policy can have by a horizon."""
    # A batch of at most C tokens takes at least (d_0 + d_1 C) / C seconds per token. So no more
    # than t C / (d_0 + d_1 C) tokens are processed by time t, and the rest is left.
    served = MEMORY / (OVERHEAD + PER_TOKEN * MEMORY) / TOKENS  # requests per second
    arrived = np.arange(1, int(rate * horizon) + 1)
    left = np.maximum(arrived - served * arrived / rate, 0)  # before the next arrival
    return float(left.sum() / rate / len(arrived))


def _proposition_1(study: Study) -> Outcome:
    horizons = study.choose((50, 100, 200, 400), (50, 100, 200, 400, 800, 1600))
    parts = [
        study.table(serve_evenly, grid(policy=POLICIES, rate=[rate], horizon=horizons)).assign(
            product=product
        )
        for product, rate in RATES.items()
    ]
    table = pd.concat(parts, ignore_index=True)
    bound = [least_latency(RATES[WITH_D1], horizon) for horizon in horizons]

    def exponent(product: str, policy: str) -> float:
        rows = table[(table["product"] == product) & (table["policy"] == policy)]
        return _slope(rows["horizon"], rows["latency"])

    linear: dict[str, Any] = {"at_least": 0.9, "paper": 1.0}
    claims = readings(
        "where the product is 1 or more, latency grows linearly under any policy",
        shape(f"{WITH_D1}: exponent of the least latency", _slope(horizons, bound), **linear),
        refutable(
            shape(f"{WITH_D0}: exponent of latency, fcfs", exponent(WITH_D0, "fcfs"), **linear)
        ),
    )
    claims += [
        shape(f"{WITH_D1}: exponent of latency, {name}", exponent(WITH_D1, name), **linear)
        for name in POLICIES
    ]
    claims += beside(
        shape(f"{WITH_D0}: exponent of latency, {name}", exponent(WITH_D0, name), **linear)
        for name in ("mixed", "wait")
    )
    unlimited = study.table(
        serve_evenly,
        grid(policy=["fcfs"], rate=[RATES[WITH_D1]], horizon=horizons, memory=[UNLIMITED]),
    )
    label = f"{WITH_D1}, no limit of memory: exponent of latency, fcfs"
    claims += beside(shape(label, _slope(horizons, unlimited["latency"]), **linear))
    settings: dict[str, Any] = {"prompt": PROMPT, "output": OUTPUT, "memory": MEMORY}
    settings |= {"clock": CLOCK, "rates": RATES}
    settings |= {"products": {"d1": PER_TOKEN * TOKENS * RATES[WITH_D1], "d0": OVERHEAD * TOKENS}}
    settings |= {"least_latencies": dict(zip(map(str, horizons), bound, strict=True))}
    settings |= {"horizons": list(horizons)}
    least = {"policy": "any policy, at least", "horizon": horizons, "latency": bound}
    shown = pd.concat([table, pd.DataFrame(least).assign(product=WITH_D1)])
    return Outcome(shown, claims, settings)


def _slope(horizons: Iterable[float], latencies: Iterable[float]) -> float:
    return round(power(list(horizons), list(latencies)), 9) + 0.0  # no slope is not -1e-14
