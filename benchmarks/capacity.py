"""How close both numbers of workers come: four traces, three loads, a mean and a percentile.

Needs the data of OPTSCHED_DATA; takes a quarter of an hour.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np

from optsched import Instance, capacity, get_clock
from optsched.bounds.on_clock import least_work
from optsched.problem.work import load_on_clock

COUNT, MEMORY, TICK = 1500, 103_287, 1e-3
CLOCK = get_clock("llama-2-70b-2xa100")
FILES = {
    "code": "azure_code_2023",
    "conversations": "azure_conv_2023",
    "chats": "lmsys_chat",
    "mix": "mixed_2000",
}


def requests(name: str, load: float) -> Instance:
    """Return the first requests of a trace, at the times of the trace or of a Poisson process."""
    with gzip.open(Path(os.environ["OPTSCHED_DATA"]) / f"{FILES[name]}.csv.gz", "rt") as file:
        header, *lines = (next(file).strip().split(",") for _ in range(COUNT + 1))
    columns = dict(zip(header, np.array(lines, dtype=np.float64).T, strict=True))
    drawn = np.cumsum(np.random.default_rng(0).exponential(1.0, COUNT))
    times = columns.get("arrival_s", drawn)

    def at(scale: float) -> Instance:
        steps = np.round((times - times[0]) * scale / TICK).astype(np.int64)
        sizes = (columns[each].astype(np.int64) for each in ("prompt_tokens", "output_tokens"))
        return Instance(*sizes, MEMORY, steps, seconds_per_step=TICK, name=name)

    brought = load_on_clock(at(1.0), CLOCK)
    assert brought is not None
    return at(brought.load / load)


def main() -> None:
    """Print one line for each setting."""
    for name in FILES:
        for load in (3, 10, 30):
            trace = requests(name, load)
            own = least_work(trace, CLOCK).own
            for slo in (
                f"latency:mean<={2 * own.mean():.6g}s",
                f"latency:p99<={2 * np.percentile(own, 99):.6g}s",
            ):
                found = capacity(trace, slo, ["work", "vllm:work+plan"], clock=CLOCK)
                plans = ", ".join(f"{plan.policy} {plan.workers}" for plan in found.plans)
                print(
                    f"{name} {load} {slo}: {found.at_most}/{found.at_least} ({plans})", flush=True
                )


if __name__ == "__main__":
    main()
