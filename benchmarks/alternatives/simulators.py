"""Simulators in plain Python: the literal ones that the tests compare with, sharing no code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).parents[2] / "tests"))
from literal_clocked import engine, requests_of
from literal_clocked import run as run_literal
from literal_cluster import LiteralCluster, fcfs, profile

from optsched import get_clock

if TYPE_CHECKING:
    from optsched import Instance


def latencies_of_mixed(instance: Instance, clock: str) -> list[float]:
    """First come, first served on a clock, prompts and decodes in one batch, evicting the last."""
    seconds = instance.arrivals * (instance.seconds_per_step or 1.0)
    rows = requests_of(instance.prompts, instance.outputs, seconds)
    decide = engine(rows, instance.memory, "mixed", 256, 2048)
    return [r.last - r.arrival for r in run_literal(rows, get_clock(clock), decide).requests]


def workers_of_fcfs(instance: Instance, workers: int, slots: int, steps: int) -> list[int]:
    """First come, first served on a cluster: the worker of each request, -1 where none yet."""
    requests = [
        {"profile": profile(prompt, output, 1), "arrival": arrival, "reserved": 0}
        for prompt, output, arrival in zip(
            instance.prompts.tolist(),
            instance.outputs.tolist(),
            instance.arrivals.tolist(),
            strict=True,
        )
    ]
    LiteralCluster(requests, [slots] * workers, [1] * workers, 128, fcfs).run(steps)
    return [request.get("worker", -1) for request in requests]
