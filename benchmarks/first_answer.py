"""From a trace to an answer: policies and bounds, beside plain Python and beside each other.

Every figure is the median of several runs in this process, after one run that loads the kernels.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from functools import partial

import numpy as np
import plain_python
from rich.console import Console
from rich.table import Table

from optsched import bound, family, run
from optsched.policies import BASIC

CLOSED_FORM = partial(bound, method="closed-form")
CERTIFICATE = partial(bound, method="lagrangian")


def seconds(task, runs=5):
    """Median wall time of a task, which runs once more before."""
    task()
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        task()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def lengths(n, seed=0, **parameters):
    """A real-scale instance."""
    return family("chat-and-summaries", n=n, seed=seed, **parameters)


def policies_at_real_scale(console):
    instance = lengths(2000)
    total = {name: run(instance, name).total_latency for name in BASIC}
    table = Table(title="n = 2,000, M = 16,492, offline", title_justify="left")
    for column in ("policy", "ms", "plain Python, ms", "ratio", "total latency", "to sorted-f"):
        table.add_column(column, justify="right")
    plain_lists = instance.prompts.tolist(), instance.outputs.tolist(), instance.memory
    for name, policy in BASIC.items():
        fast = seconds(lambda name=name: run(instance, name), 15)
        if name == "sorted-f":
            order = plain_python.sorted_f_order(*plain_lists)
        else:
            order = policy.order(instance).tolist()
        began = time.perf_counter()
        if name == "sorted-f":
            plain_python.sorted_f_order(*plain_lists)
        starts = plain_python.admit(*plain_lists, order)
        slow = time.perf_counter() - began
        assert starts == run(instance, name).starts.tolist(), name
        table.add_row(
            name,
            f"{fast * 1e3:.2f}",
            f"{slow * 1e3:,.0f}",
            f"{slow / fast:,.0f}",
            f"{total[name]:,}",
            f"{total[name] / total['sorted-f'] - 1:+.1%}",
        )
    console.print(table)


def area_against_sorted_f(console):
    savings = []
    for seed in range(10):
        instance = lengths(2000, seed)
        area, sorted_f = (run(instance, name).total_latency for name in ("area", "sorted-f"))
        savings.append(1 - area / sorted_f)
    console.print(
        f"area below sorted-f in total latency, n = 2,000, 10 seeds: "
        f"{min(savings):.1%} .. {max(savings):.1%}, median {statistics.median(savings):.1%}\n"
    )


def growth(console):
    table = Table(title="growth with n, seconds", title_justify="left")
    sizes = (2_000, 10_000, 50_000, 100_000)
    for column in ("task", *(f"{size:,}" for size in sizes), "fitted exponent"):
        table.add_column(column, justify="right")
    rows = {
        "sorted-f, offline": lambda n: (lengths(n), lambda i: run(i, "sorted-f")),
        "area, offline": lambda n: (lengths(n), lambda i: run(i, "area")),
        "area, load 0.9": lambda n: (lengths(n, load=0.9), lambda i: run(i, "area")),
        "area, load 2": lambda n: (lengths(n, load=2.0), lambda i: run(i, "area")),
        "sorted-f, load 2": lambda n: (lengths(n, load=2.0), lambda i: run(i, "sorted-f")),
        "closed form, offline": lambda n: (lengths(n), CLOSED_FORM),
        "closed form, load 0.9": lambda n: (
            lengths(n, load=0.9),
            CLOSED_FORM,
        ),
        "certificate, offline": lambda n: (lengths(n), CERTIFICATE),
        "certificate, load 0.9": lambda n: (lengths(n, load=0.9), CERTIFICATE),
    }
    for name, make in rows.items():
        times = []
        for size in sizes:
            instance, task = make(size)
            times.append(seconds(lambda i=instance, task=task: task(i), 3))
        exponent = np.polyfit(np.log(sizes), np.log(times), 1)[0]
        table.add_row(name, *(f"{value:.4f}" for value in times), f"{exponent:.2f}")
    console.print(table)


def processes(console):
    """Whole processes with warm caches, beside an interpreter that imports numpy."""
    commands = {
        "python -c 'import numpy'": [sys.executable, "-c", "import numpy"],
        "python -c 'import optsched'": [sys.executable, "-c", "import optsched"],
        "optsched --help": [sys.executable, "-m", "optsched", "--help"],
        "optsched compare, 15,000 requests, load 2": [
            *(sys.executable, "-m", "optsched", "compare"),
            "family:chat-and-summaries,n=15000,load=2",
        ],
    }
    table = Table(title="whole processes", title_justify="left")
    for column in ("command", "seconds", "to numpy alone"):
        table.add_column(column, justify="right")
    measured = {
        name: seconds(lambda c=command: subprocess.run(c, check=True, capture_output=True))
        for name, command in commands.items()
    }
    first = next(iter(measured.values()))
    for name, value in measured.items():
        table.add_row(name, f"{value:.2f}", f"{value / first:.1f}")
    console.print(table)


if __name__ == "__main__":
    console = Console(width=110)
    policies_at_real_scale(console)
    area_against_sorted_f(console)
    growth(console)
    processes(console)
