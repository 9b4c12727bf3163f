"""Workloads in which one client says anything of its requests, and what that does to the others.

Each is served twice: as it is, and with the same requests at the same times, of which that client,
too, says what is true, roughly. So both runs have the same work, and the latency of the others
differs by what was said alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

BLOCK, BLOCKS, LONGEST, SEATS, BATCH = 4, 100, 300, 12, 256  # of the engine, in its words below
SECONDS = 0.02  # of a batch
_REQUESTS, _LOAD, _HOSTILE = 90, 1.4, 0.3  # per workload; of memory by time; share of requests
_ROUGH = 0.3  # log-error of what is true
_ODD = (
    0,
    -7,
    float("nan"),
    float("inf"),
    10**400,
    "many",
    "nan",
    None,
    [5],
    {"a": 1},
    True,
    1e-300,
)
#: What is said of a request, by the tokens that it will make and its number among the hostile ones.
HABITS = {
    "always 1": lambda output, number: {"client": "x", "expected_output": 1},
    "always 1e9": lambda output, number: {"client": "x", "expected_output": 1e9},
    "right, then 1": lambda output, number: {
        "client": "x",
        "expected_output": (output, 1)[number % 2],
    },
    "right, then 1e9": lambda output, number: {
        "client": "x",
        "expected_output": (output, 1e9)[number % 2],
    },
    "limits of 1": lambda output, number: {"client": "x", "expected_output": 1e9},
    "new names, 1": lambda output, number: {"client": f"x{number}", "expected_output": 1},
    "new names, 1e9": lambda output, number: {"client": f"x{number}", "expected_output": 1e9},
    "anything": lambda output, number: {
        name: _ODD[(number + place) % len(_ODD)]
        for place, name in enumerate(("client", "expected_output", "turn", "objective"))
    },
}


class Workload(NamedTuple):
    """Requests, by arrival."""

    rows: list[tuple[int, int, float, int]]  # prompt, output, arrival in seconds, priority
    limits: list[int]  # tokens of each output at most
    truth: list[dict[str, object]]
    said: list[dict[str, object]]
    honest: np.ndarray


def drawn(rng: np.random.Generator, habit: str) -> Workload:
    """Draw a workload with a client of some habit."""
    honest = rng.random(_REQUESTS) >= _HOSTILE
    clients = rng.integers(3, size=_REQUESTS)
    prompts = np.clip(rng.lognormal(3.2, 0.7, _REQUESTS), 1, 120).astype(int)
    means = np.log([10, 20, 40])[np.where(honest, clients, 1)]
    outputs = np.clip(rng.lognormal(means, 0.6), 2, 150).astype(int)
    limits = np.full(_REQUESTS, LONGEST)
    if habit == "limits of 1":
        outputs[~honest] = limits[~honest] = 1
    work = (prompts * outputs + outputs * (outputs + 1) / 2).sum() / (BLOCK * (BLOCKS - 1))
    arrivals = np.sort(rng.random(_REQUESTS)) * work * SECONDS / _LOAD
    roughly = outputs * np.exp(rng.normal(0, _ROUGH, _REQUESTS))
    truth = [
        {"client": f"client {client}" if good else "x", "expected_output": max(1.0, float(output))}
        for good, client, output in zip(honest, clients, roughly, strict=True)
    ]
    numbers = np.cumsum(~honest)
    said = [
        known if good else HABITS[habit](int(output), int(number))
        for known, good, output, number in zip(truth, honest, outputs, numbers, strict=True)
    ]
    columns = (prompts, outputs, arrivals, np.zeros(_REQUESTS, dtype=int))
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    return Workload(rows, limits.tolist(), truth, said, honest)


def compared(serve, numbers, seed):
    """Return the mean latencies of the honest by habit: beside what is true, beside what is said.

    `serve` returns the latencies of a workload's requests, of which clients say this.
    """
    means = {}
    for number in numbers:
        habit = [*HABITS][number % len(HABITS)]
        work = drawn(np.random.default_rng([seed, number]), habit)
        both = [np.mean(serve(work, said)[work.honest]) for said in (work.truth, work.said)]
        means.setdefault(habit, []).append(both)
    return {habit: np.mean(rows, axis=0) for habit, rows in means.items()}
