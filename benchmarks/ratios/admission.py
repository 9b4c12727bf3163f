"""Policies, compiled, against plain Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from alternatives import plain_python, simulators
from timing import Row, measure

from optsched import Cluster, Instance, family, run
from optsched.policies import BASIC

if TYPE_CHECKING:
    from collections.abc import Iterator

CLOCK = "llama-2-70b-2xa100"
PREFIX = [name for name in BASIC if "+" not in name]


def rows(quick: bool) -> Iterator[Row]:
    """Admission in steps, on a clock, and on a cluster."""
    repeats = 1 if quick else 3
    yield from in_steps(200 if quick else 2000, repeats)
    yield on_a_clock(100 if quick else 1000, repeats)
    yield on_a_cluster((4, 8, 100) if quick else (16, 72, 300), repeats)


def in_steps(count: int, repeats: int) -> Iterator[Row]:
    """The prefix rule, offline, memory checked at every completion."""
    instance = family("chat-and-summaries", n=count, seed=0)
    lists = instance.prompts.tolist(), instance.outputs.tolist(), instance.memory

    def plain(name: str) -> list[int]:
        if name == "sorted-f":
            return plain_python.admit(*lists, plain_python.sorted_f_order(*lists))
        return plain_python.admit(*lists, BASIC[name].order(instance).tolist())

    for name in PREFIX:
        ours, schedule = measure(lambda name=name: run(instance, name).schedule, repeats)
        theirs, starts = measure(lambda name=name: plain(name), repeats, warm_up=False)
        assert starts == schedule.starts.tolist(), name
        size = f"n = {count:,}, M = {instance.memory:,}"
        yield Row(f"run {name}", size, "plain Python", ours, theirs, "same starts")


def on_a_clock(count: int, repeats: int) -> Row:
    """First come, first served in batches that take seconds, 50 requests per second."""
    rng = np.random.default_rng(1)
    prompts, outputs = (
        np.clip(np.rint(rng.exponential(mean, count)), 1, 4000).astype(np.int64)
        for mean in (41, 86)
    )
    ticks = np.cumsum(rng.exponential(1e6 / 50, count)).astype(np.int64)
    instance = Instance(prompts, outputs, 16_492, ticks, seconds_per_step=1e-6)
    ours, run_ = measure(lambda: run(instance, "mixed", clock=CLOCK), repeats)
    theirs, latencies = measure(
        lambda: simulators.latencies_of_mixed(instance, CLOCK), repeats, warm_up=False
    )
    assert np.allclose(np.mean(latencies), run_.mean_latency, rtol=1e-9)
    size = f"n = {count:,}, M = 16,492"
    return Row("run mixed on a clock", size, "plain Python", ours, theirs, "same mean latency")


def on_a_cluster(size: tuple[int, int, int], repeats: int) -> Row:
    """First come, first served on workers that wait for each other."""
    workers, slots, steps = size
    trace = family("lognormal", n=4 * workers * slots, seed=1)
    cluster = Cluster(workers, slots)
    ours, run_ = measure(lambda: run(trace, "fcfs", cluster=cluster, steps=steps), repeats)
    theirs, chosen = measure(
        lambda: simulators.workers_of_fcfs(trace, workers, slots, steps), repeats, warm_up=False
    )
    assert chosen == run_.workers.tolist()
    text = f"G = {workers}, B = {slots}, {steps} steps"
    return Row("run fcfs on a cluster", text, "plain Python", ours, theirs, "same workers")
