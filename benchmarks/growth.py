"""How CPU time grows with requests, memory and workers: exponents and the plot of docs.

    python benchmarks/growth.py [--write] [REQUESTS ...]

prints CPU seconds and the memory that a request takes at its peak beyond what the instance does,
every case in a process of its own, and with `--write` puts them into docs/evidence.md.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from alternatives.plain_python import admit
from by_cost import table_of, write_between
from timing import measure, seconds

from optsched import Cluster, Instance, bound, family, run
from optsched.policies import BASIC
from optsched.simulate.cluster import BalanceRouting
from optsched.solvers import select_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FAMILY = "chat-and-summaries"
TITLES = {
    "n": "requests n",
    "M": "memory M (tokens)",
    "G": "workers G",
}


@dataclass(frozen=True)
class Curve:
    """CPU seconds by size.

    Attributes
    ----------
    task
        What was timed.
    axis
        "n", "M" or "G".
    sizes, times
        Values on the axis, and median CPU seconds.
    """

    task: str
    axis: str
    sizes: tuple[int, ...]
    times: tuple[float, ...]

    def fit(self) -> tuple[float, float, float]:
        """Exponent, its standard error, and factor of c x^e, by least squares of logarithms."""
        from scipy.stats import linregress

        line = linregress(np.log(self.sizes), np.log(self.times))
        return line.slope, line.stderr, float(np.exp(line.intercept))


def curves(quick: bool) -> Iterator[Curve]:
    """Measure all curves."""
    repeats = 1 if quick else 3
    yield from by_requests(quick, repeats)
    yield from by_memory(quick, repeats)
    yield from by_workers(quick, repeats)


def _curve(task: str, axis: str, sizes: Sequence[int], make: Callable[[int], Any], repeats: int):
    """Time `make(size)()` for every size; making is not timed."""
    times = tuple(seconds(make(size), repeats) for size in sizes)
    return Curve(task, axis, tuple(sizes), times)


def by_requests(quick: bool, repeats: int) -> Iterator[Curve]:
    """M = 16,492."""
    many = (200, 400, 800) if quick else (2_000, 5_000, 12_500, 30_000, 80_000, 200_000)
    few = (50, 100, 200) if quick else (250, 500, 1_000, 2_000, 4_000)

    def policy(name: str, load: float | None, size: int) -> Callable[[], Any]:
        return partial(run, family(FAMILY, n=size, seed=0, load=load), name)

    def plain(size: int) -> Callable[[], Any]:
        instance = family(FAMILY, n=size, seed=0)
        order = BASIC["area"].order(instance).tolist()
        lists = instance.prompts.tolist(), instance.outputs.tolist()
        return partial(admit, *lists, instance.memory, order)

    def proof(load: float | None, size: int) -> Callable[[], Any]:
        return partial(bound, family(FAMILY, n=size, seed=0, load=load), method="lagrangian")

    slow = tuple(measure(plain(size), 1, warm_up=False)[0].median for size in few)
    yield Curve("area in plain Python", "n", few, slow)
    yield _curve("certified bound, load 0.9", "n", many, partial(proof, 0.9), repeats)
    yield _curve("certified bound, offline", "n", many, partial(proof, None), repeats)
    yield _curve("sorted-f, offline", "n", many, partial(policy, "sorted-f", None), repeats)
    yield _curve("area, load 0.9", "n", many, partial(policy, "area", 0.9), repeats)
    yield _curve("area, offline", "n", many, partial(policy, "area", None), repeats)


def by_memory(quick: bool, repeats: int) -> Iterator[Curve]:
    """The same requests in more and more memory."""
    memories = (16_000, 32_000, 64_000)
    if not quick:
        memories = (16_000, 32_000, 64_000, 128_000, 256_000, 512_000)
    requests = family(FAMILY, n=500 if quick else 20_000, seed=0)
    few = family(FAMILY, n=20 if quick else 100, seed=0)

    def within(memory: int, instance: Instance = requests) -> Instance:
        return Instance(instance.prompts, instance.outputs, memory)

    def bounded(memory: int) -> Callable[[], Any]:
        return partial(bound, within(memory), method="lagrangian")

    def served(name: str, memory: int) -> Callable[[], Any]:
        return partial(run, within(memory), name)

    def selected(memory: int) -> Callable[[], Any]:
        return partial(select_batch, within(memory, few), "dp")

    yield _curve(
        f"best batch of {len(few)} by dynamic program",
        "M",
        (16_000, 24_000, 36_000, 54_000),
        selected,
        repeats,
    )
    count = f"n = {len(requests):,}"
    yield _curve(f"certified bound, {count}", "M", memories, bounded, repeats)
    yield _curve(f"sorted-f, {count}", "M", memories, partial(served, "sorted-f"), repeats)
    yield _curve(f"area, {count}", "M", memories, partial(served, "area"), repeats)


def by_workers(quick: bool, repeats: int) -> Iterator[Curve]:
    """Steps of a full cluster, 72 slots per worker, 512 requests in view."""
    workers = (4, 8, 16) if quick else (8, 16, 32, 64, 128, 256)
    first, last, reveal = (40, 80, 64) if quick else (200, 400, 512)
    rules = {
        "bf-io, H = 20": BalanceRouting(lookahead=20),
        "bf-io, H = 0": BalanceRouting(lookahead=0),
        "lpt": "lpt",
        "fcfs": "fcfs",
    }
    for name, rule in rules.items():
        times = []
        for count in workers:
            trace = family("lognormal", n=int(72 * count * (1 + last / 100)) + reveal, seed=1)

            def simulate(steps: int, trace=trace, count=count, rule=rule) -> Any:
                return run(trace, rule, cluster=Cluster(count, 72), steps=steps, reveal=reveal)

            whole, filling = (seconds(partial(simulate, steps), repeats) for steps in (last, first))
            times.append(max(whole - filling, 1e-9) / (last - first))
        yield Curve(f"a step, {name}", "G", tuple(workers), tuple(times))


PAGE = Path(__file__).parents[1] / "docs/evidence.md"
BEGIN = "<!-- benchmarks/growth.py -->\n"
CLOCK = "llama-2-70b-2xa100"
#: What is asked of how many requests at most, at which load.
CASES = {
    "`area`, load 0.9": (10_000_000, 0.9, partial(run, policy="area")),
    "`area`, offline": (1_000_000, None, partial(run, policy="area")),
    "certified bound, load 0.9": (1_000_000, 0.9, partial(bound, method="lagrangian")),
    "certified bound, offline": (100_000, None, partial(bound, method="lagrangian")),
    "sawtooth, load 0.9": (100_000, 0.9, partial(bound, method="sawtooth")),
    "`work` on a clock": (100_000, 0.9, partial(run, policy="work", clock=CLOCK)),
    "`a-min` on a clock": (
        *(100_000, 0.9),
        partial(run, policy="a-min", clock=CLOCK, intervals="common:1,6000"),
    ),
    "bound on a clock": (100_000, 0.9, partial(bound, clock=CLOCK)),
}


def case(name: str, size: int) -> None:
    """Print CPU seconds and megabytes of a case, beyond those of a small one."""
    _, load, ask = CASES[name]
    instances = [family(FAMILY, n=n, seed=0, load=load) for n in (200, size)]
    instances = [each.replace(seconds_per_step=0.05) for each in instances]
    ask(instances[0])
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    kept = ask(instances[1])
    took = time.process_time() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    del kept
    print(f"{took:.2g} s, {(after - before) * 1.024 / size:.2g} kB")


def table(sizes: Sequence[int]) -> str:
    """Return the table of all cases, each in a process of its own."""
    rows = []
    for name, (most, *_) in CASES.items():
        row = [name]
        for size in sizes:
            call = [sys.executable, __file__, name, str(size)]
            done = size <= most and subprocess.run(call, capture_output=True, text=True, check=True)
            row.append(done.stdout.strip() if done else "")
        print("|", " | ".join(row), "|", flush=True)
        rows.append(row)
    return table_of(["", *(f"n = {size:,}" for size in sizes)], rows)


def draw(found: list[Curve], axes: Any = None) -> Any:
    """Plot times and fitted lines, one panel per axis.

    Parameters
    ----------
    found
        What was measured.
    axes
        One of matplotlib's Axes per panel; None makes a figure.

    Returns
    -------
    sequence of matplotlib.axes.Axes
        The panels.
    """
    from matplotlib import pyplot

    from optsched.report.style import count_axis, line_styles, prepare

    shown = [axis for axis in TITLES if any(curve.axis == axis for curve in found)]
    if axes is None:
        axes = pyplot.subplots(1, len(shown), figsize=(4.6 * len(shown), 5), layout="constrained")[
            1
        ]
    axes = np.atleast_1d(axes)
    for ax, axis in zip(axes, shown, strict=True):
        prepare(ax)
        panel = [curve for curve in found if curve.axis == axis]
        looks = line_styles([curve.task for curve in panel])
        for curve, look in zip(panel, looks, strict=True):
            exponent, error, factor = curve.fit()
            sizes = np.array(curve.sizes)
            dash = (0, look.dash) if look.dash else "-"
            look_of = {"color": look.colour, "linestyle": dash, "marker": look.marker}
            ax.plot(sizes, factor * sizes**exponent, **(look_of | {"marker": ""}))
            ax.plot(sizes, curve.times, **(look_of | {"linestyle": ""}))
            ax.plot([], [], label=f"{curve.task}: {exponent:.2f} ± {error:.2f}", **look_of)
        ax.set_xscale("log")
        ax.set_yscale("log")
        count_axis(ax.xaxis)
        times = np.concatenate([curve.times for curve in panel])
        ax.set_ylim(
            0.8 * 10 ** np.floor(np.log10(times.min())), 1.2 * 10 ** np.ceil(np.log10(times.max()))
        )
        ax.set_xlabel(TITLES[axis])
        ax.set_ylabel("CPU time (s)" if axis != "G" else "CPU time per step (s)")
        ax.legend(
            loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=8, handlelength=3
        )
    return axes


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in CASES:
        case(sys.argv[1], int(sys.argv[2]))
    else:
        sizes = [int(each) for each in sys.argv[1:] if each != "--write"]
        measured = table(sizes or [10_000, 100_000, 1_000_000, 10_000_000])
        if "--write" in sys.argv:
            write_between(PAGE, BEGIN, measured)
