"""What each policy that knows the outputs costs, and under which rule of admission.

Every time is CPU time: the median of several runs in this process, after one that loads the
kernels.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from timing import seconds

from optsched import family, run
from optsched.errors import SolverError
from optsched.policies import BASIC, POLICIES, RULES

FAMILY = "chat-and-summaries"
ORDERS = [name for name in BASIC if "+" not in name]


def time_of(instance, name, rule="prefix"):
    """Milliseconds in print, or that the policy refuses."""
    try:
        run(instance, name, rule=rule)
    except SolverError:
        return "refused"
    return f"{1e3 * seconds(lambda: run(instance, name, rule=rule).schedule, 3):,.2f}"


def orders(console):
    few, many = family(FAMILY, n=100, seed=1), family(FAMILY, n=2000, seed=1)
    table = Table(title="M = 16,492, offline, ms", title_justify="left")
    for column in ("policy", "n = 100", "n = 2,000", "total latency, n = 100"):
        table.add_column(column, justify="right")
    for name, policy in POLICIES.items():
        if policy.needs.rules:
            large = "-" if "mip" in name else time_of(many, name)
            total = run(few, name).total_latency
            table.add_row(name, time_of(few, name), large, f"{total:,}")
    console.print(table)


def rules(console):
    table = Table(title="n = 2,000, M = 16,492, ms", title_justify="left")
    loads = {"offline": None, "load 0.9": 0.9}
    instances = {where: family(FAMILY, n=2000, seed=1, load=load) for where, load in loads.items()}
    columns = [f"{rule}, {where}" for where in instances for rule in RULES]
    for column in ("policy", *columns):
        table.add_column(column, justify="right")
    for name in ORDERS:
        figures = [time_of(there, name, rule) for there in instances.values() for rule in RULES]
        table.add_row(name, *figures)
    console.print(table)


def many_arrivals(console):
    instance = family(FAMILY, n=100_000, seed=1, load=0.9)
    table = Table(title="n = 100,000, load 0.9, ms", title_justify="left")
    for column in ("policy", "prefix", "skip", "window"):
        table.add_column(column, justify="right")
    for name in ("fcfs", "mc-sf", "mc-sf-total", "area"):
        figures = [time_of(instance, name, rule) for rule in ("prefix", "skip", "window")]
        table.add_row(name, *figures)
    table.add_row("sorted-f", time_of(instance, "sorted-f"), "", "")
    console.print(table)


if __name__ == "__main__":
    console = Console(width=140)
    orders(console)
    rules(console)
    many_arrivals(console)
