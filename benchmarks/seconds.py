"""Policies on a clock beside the proven bound, on traces at several loads.

`seconds.py REQUESTS TRACE ...` takes the first requests of each trace, with its arrivals stretched
to each load or, where it has none, Poisson arrivals (seed 0). Latencies are means in seconds;
`machine` is the first bound, `bound` the better of both, with all effort for prices up to load 1.2.
The gaps are those of `work`, which is marked where another order is quicker.

`seconds.py --write` takes Azure conversations (in OPTSCHED_DATA) on the 70B clock and writes how
far `work` is from each bound into docs/bounds.md.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from by_cost import DATA, TRACES, table_of, write_between
from rich.console import Console
from rich.table import Table

from optsched import bound, read_trace, run
from optsched._internal.numbers import percent, proven
from optsched.clock import get_clock
from optsched.problem.work import load_on_clock

CLOCKS = {"llama-2-70b-2xa100": 103_287, "llama-2-7b-a100": 61_035}  # with the tokens that fit
LOADS = (0.5, 0.8, 1.2, 2.0, 4.0)
ORDERS = ("work", "area", "mc-sf", "mc-sf-total")
ENGINES = ("vllm-v0", "sarathi")
_TICK = 1e-3  # seconds, in which arrivals are counted where a trace has none
_QUIET = 1.2
PAGE = Path(__file__).parents[1] / "docs/bounds.md"
BEGIN = "<!-- benchmarks/seconds.py -->\n"
METHODS = "closed-form", "lagrangian", "path", "auto"


def at_load(instance, clock, load):
    """Return the requests with their arrivals stretched to a load on the clock."""
    if not instance.arrivals.any():
        gaps = np.random.default_rng(0).exponential(1.0, len(instance))
        steps = np.floor(np.cumsum(gaps) / gaps.mean() * 2**20).astype(np.int64)
        instance = instance.replace(arrivals=steps, seconds_per_step=_TICK)
    now = load_on_clock(instance, clock).load
    return instance.replace(seconds_per_step=instance.seconds_per_step * now / load)


def rows(path, requests, name, loads=LOADS):
    """Yield a row of texts for each load."""
    clock = get_clock(name)
    trace = read_trace(path, memory=CLOCKS[name], limit=requests)
    for load in loads:
        instance = at_load(trace, clock, load)
        means = {
            policy: run(instance, policy, clock=clock).mean_latency
            for policy in (*ORDERS, *ENGINES)
        }
        machine = bound(instance, "closed-form", clock=clock).value / len(instance)
        method = "lagrangian" if load <= _QUIET else "auto"
        best = max(machine, bound(instance, method, clock=clock).value / len(instance))
        work = means["work"]
        beaten = work > min(means[policy] for policy in ORDERS)
        yield (
            trace.name,
            name.split("-a100")[0].split("-2x")[0],
            f"{load:g}",
            f"{work:.4g}" + " (*)" * beaten,
            *(f"{means[policy]:.4g}" for policy in (*ORDERS[1:], *ENGINES)),
            proven(machine, digits=4),
            proven(best, digits=4),
            percent((work - machine) / work),
            percent((work - best) / work),
        )


def main(requests, paths):
    """Print one table of all traces, clocks and loads."""
    began = time.process_time()
    titles = ("trace", "clock", "load", *ORDERS, *ENGINES, "machine", "bound", "gap of it", "gap")
    table = Table(title="mean latency, s", title_justify="left")
    for title in titles:
        table.add_column(title, justify="right")
    for path in paths:
        for name in CLOCKS:
            for row in rows(path, requests, name):
                table.add_row(*row)
                print("|", " | ".join(row), "|", file=sys.stderr, flush=True)
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table)
    console.print(f"{time.process_time() - began:.0f} s of CPU; * another order is quicker")


def by_method(name="llama-2-70b-2xa100", loads=(0.1, 0.2, 0.4, 0.6, 0.8)):
    """Yield a row of texts for each number of requests and load: the gap to each bound."""
    clock = get_clock(name)
    trace = read_trace(DATA / f"{TRACES['Azure']}.csv.gz", memory=CLOCKS[name])
    for method in METHODS:  # load the kernels
        bound(trace.take(np.arange(50)), method, clock=clock)
    for count in (2_000, 15_000):
        for load in loads:
            instance = at_load(trace.take(np.arange(count)), clock, load)
            work, gaps = run(instance, "work", clock=clock).total_latency, []
            for method in METHODS:
                began = time.process_time()
                value = bound(instance, method, clock=clock).value
                took = time.process_time() - began
                gaps.append(percent((work - value) / work))
            yield f"{count:,}", f"{load:g}", *gaps[:-1], f"{took:.2g} s"


if __name__ == "__main__":
    if "--write" in sys.argv:
        heads = "requests", "load", *(f"`{method}`" for method in METHODS[:-1]), 'CPU, "auto"'
        write_between(PAGE, BEGIN, table_of(heads, by_method()))
    else:
        main(int(sys.argv[1]), sys.argv[2:])
