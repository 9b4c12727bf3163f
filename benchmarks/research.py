"""The experiments of research.md: `research.py NAME [seconds] [seeds]`, without a name all.

Figures there that name an experiment come from here; the defaults are quick, the notes say with
which seconds.
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from optsched import PriorityPolicy, bound, explain_gap, family, run
from optsched._internal.aside import Budget, stopwatch
from optsched.bounds.ascent import improve_prices
from optsched.bounds.configurations import configuration_bound
from optsched.problem.costs import StartCosts
from optsched.search.annealing import WORK_PER_SECOND
from optsched.search.delays import delay_large
from optsched.search.search import PLANS, search

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched import Instance, Schedule

Row = tuple[str, ...]
FAMILIES = ("uniform", "normal", "binomial", "exponential", "mixed")


def baselines(instance: Instance) -> tuple[Schedule, Schedule]:
    """Return the schedule of sorted-f, and the better one of it and area."""
    sorted_f, area = run(instance, "sorted-f").schedule, run(instance, "area").schedule
    return sorted_f, min(sorted_f, area, key=lambda schedule: schedule.total_latency)


def portfolio(seconds: float, seeds: int) -> Iterator[Row]:
    """What each kind of search gains on sorted-f, offline and with arrivals."""
    yield ("set", "load", *PLANS)
    sets = [(name, n, None) for name in FAMILIES for n in (40, 100, 200)]
    sets += [("uniform", 100, 0.9), ("normal", 100, 1.5), ("exponential", 200, 0.9)]
    sets += [("mixed", 200, 1.1), ("chat-and-summaries", 300, 1.1)]
    for name, n, load in sets:
        gains: dict[str, list[float]] = {plan: [] for plan in PLANS}
        for seed in range(seeds):
            instance = family(name, n=n, seed=seed, load=load)
            sorted_f, start = baselines(instance)
            for plan, found in gains.items():
                best = search(
                    start,
                    StartCosts.plain(np.ones(n)),
                    Budget(work=seconds * WORK_PER_SECOND),
                    seed=seed,
                    plan=plan,
                )
                found.append(1 - best.schedule.total_latency / sorted_f.total_latency)
        yield (f"{name} {n}", str(load or "-"), *(f"{median(g):.1%}" for g in gains.values()))


def targets(seconds: float, seeds: int) -> Iterator[Row]:
    """What search gains on sorted-f, and how much of it a bound would allow."""
    yield ("set", "below sorted-f", "least", "seconds", "gap to memory prices")
    for name, n in (("uniform", 100), ("normal", 100), ("binomial", 40)):
        gains, took, gaps = [], [], []
        for seed in range(seeds):
            instance = family(name, n=n, seed=seed)
            sorted_f, start = baselines(instance)
            began = time.perf_counter()
            best = search(
                start,
                StartCosts.plain(np.ones(n)),
                Budget(work=seconds * WORK_PER_SECOND),
                seed=seed,
            ).schedule
            took.append(time.perf_counter() - began)
            gains.append(1 - best.total_latency / sorted_f.total_latency)
            gaps.append(1 - bound(instance).value / best.total_latency)
        yield (
            f"{name} {n}",
            f"{median(gains):.1%}",
            f"{min(gains):.1%}",
            f"{median(took):.1f}",
            f"{median(gaps):.1%}",
        )


def ascent(seconds: float, seeds: int) -> Iterator[Row]:
    """Gap of `area` before and after ascent on prices."""
    yield ("R", "load", "prices of the relaxation", "after ascent", "seconds")
    for n in (500, 2000):
        for load in (None, 0.7, 0.9, 1.1, 2.0):
            before, after, took = [], [], []
            for seed in range(seeds):
                instance = family("chat-and-summaries", n=n, seed=seed, load=load)
                schedule, first = run(instance, "area").schedule, bound(instance, "lagrangian")
                assert first.certificate is not None
                found = improve_prices(
                    schedule, first.certificate, Budget(deadline=stopwatch() + seconds)
                )
                before.append(1 - first.value / schedule.total_latency)
                after.append(1 - found.value / schedule.total_latency)
                took.append(found.seconds)
            yield (
                f"{n:,}",
                str(load or "-"),
                f"{median(before):.1%}",
                f"{median(after):.1%}",
                f"{median(took):.1f}",
            )


def delays(seconds: float, seeds: int) -> Iterator[Row]:
    """Gaps with arrivals: area, with delays, and searched from either."""
    yield ("set", "load", "area", "delays", "searched from area", "delays, then searched")
    sets = [("chat-and-summaries", n) for n in (500, 2000)] + [("exponential", 500)]
    for name, n in sets:
        for load in (0.7, 0.9, 1.1, 2.0):
            gaps: list[list[float]] = []
            for seed in range(seeds):
                instance = family(name, n=n, seed=seed, load=load)
                area, first = (
                    run(instance, "area").schedule,
                    bound(instance, "lagrangian").certificate,
                )
                assert first is not None
                proven = improve_prices(area, first, Budget(work=seconds * WORK_PER_SECOND))
                assert proven.certificate is not None
                work, ones = seconds * WORK_PER_SECOND, np.ones(n)
                delayed = delay_large(instance, ones, proven.certificate, Budget(work=work / 2))
                plain = search(area, StartCosts.plain(ones), Budget(work=work)).schedule
                both = search(delayed, StartCosts.plain(ones), Budget(work=work / 2)).schedule
                costs = [s.total_latency for s in (area, delayed, plain, both)]
                gaps.append([1 - proven.value / cost for cost in costs])
            yield (f"{name} {n:,}", str(load), *(f"{median(g):.1%}" for g in np.transpose(gaps)))


def windows(seconds: float, seeds: int) -> Iterator[Row]:
    """Gaps of area by ratio and length of the window, and of orders that prefer short requests."""
    del seconds
    rules = ["1.2", "1.4", "1.6", "2", "1.6,16", "1.6,512", "inf,64", "inf,512"]
    powers = (0.25, 0.5)
    yield ("set", "load", "prefix", *rules, *(f"output^{power}" for power in powers))
    real, small = "chat-and-summaries", ("uniform", "normal", "exponential", "mixed")
    sets: list[tuple[str, int, float | None]] = [(real, n, None) for n in (500, 2000, 20_000)]
    sets += [(name, 2000, None) for name in small]
    sets += [(real, 2000, load) for load in (0.9, 1.1, 2.0)]
    for name, n, load in sets:
        gaps = []
        for seed in range(3, 3 + seeds):
            instance = family(name, n=n, seed=seed, load=load)
            names = ["area", *(f"area+window:{rule}" for rule in rules)]
            orders = [
                PriorityPolicy("", "", lambda i, power=power: i.areas * i.outputs**power)
                for power in powers
            ]
            runs = [run(instance, policy) for policy in names]
            runs += [run(instance, order, rule="window") for order in orders]
            least = bound(instance).value
            gaps.append([1 - least / found.total_latency for found in runs])
        yield (
            f"{name} {n:,}",
            str(load or "-"),
            *(f"{100 * median(column):.2f}" for column in np.transpose(gaps)),
        )


def waste(seconds: float, seeds: int) -> Iterator[Row]:
    """Real scale: order regret and waste, and how much a full memory would still be worth."""
    yield ("n", "gap", "order regret", "waste", "waste by steps when large ones run")
    for n in (500, 2000):
        rows = []
        for seed in range(seeds):
            instance = family("chat-and-summaries", n=n, seed=seed)
            best = search(
                run(instance, "area").schedule,
                StartCosts.plain(np.ones(n)),
                Budget(work=seconds * WORK_PER_SECOND),
                seed=seed,
            ).schedule
            certificate = bound(instance, "lagrangian").certificate
            assert certificate is not None
            gap = explain_gap(best, certificate)
            large = np.flatnonzero(instance.peaks > instance.memory / 10)
            held = np.zeros(len(gap.waste) + 2)
            for request in large:
                held[best.starts[request] + 1 : best.completions[request] + 1] = 1
            rows.append(
                (
                    gap.gap / best.total_latency,
                    gap.order_regret / gap.gap,
                    gap.wasted_memory / gap.gap,
                    gap.waste[held[1 : len(gap.waste) + 1] > 0].sum() / gap.wasted_memory,
                )
            )
        yield (f"{n:,}", *(f"{median(column):.1%}" for column in np.transpose(rows)))


def arrivals_by_sizes(seconds: float, seeds: int) -> Iterator[Row]:
    """M = 100 with arrivals: sizes of configurations against prices of memory."""
    yield ("set", "load", "gap by prices", "gap by sizes")
    for name, n in (("uniform", 20), ("normal", 20), ("uniform", 40), ("exponential", 50)):
        for load in (0.7, 1.1):
            gaps = []
            for seed in range(seeds):
                instance = family(name, n=n, seed=seed, load=load)
                best = search(
                    run(instance, "area").schedule,
                    StartCosts.plain(np.ones(n)),
                    Budget(work=seconds * WORK_PER_SECOND),
                ).schedule
                first = bound(instance, "lagrangian").certificate
                assert first is not None
                prices = improve_prices(best, first, Budget(work=seconds * WORK_PER_SECOND))
                sizes = configuration_bound(instance, time_limit=seconds, start=prices.certificate)
                gaps.append([1 - b.value / best.total_latency for b in (prices, sizes)])
            yield (f"{name} {n}", str(load), *(f"{median(g):.1%}" for g in np.transpose(gaps)))


def phases(seconds: float, seeds: int) -> Iterator[Row]:
    """How the configuration bound grows with the number of phases, in the same time."""
    yield ("set", "4", "16", "64", "16 then 64")
    for name, n in (("uniform", 16), ("normal", 16), ("binomial", 16)):
        values = []
        for seed in range(seeds):
            instance = family(name, n=n, seed=seed)
            best = search(
                run(instance, "area").schedule,
                StartCosts.plain(np.ones(n)),
                Budget(work=WORK_PER_SECOND),
            ).schedule
            row = []
            for count in (4, 16, 64):
                found = configuration_bound(instance, phases=count, time_limit=seconds)
                row.append(1 - found.value / best.total_latency)
            first = configuration_bound(instance, phases=16, time_limit=seconds / 2)
            found = configuration_bound(
                instance, phases=64, start=first.certificate, time_limit=seconds / 2
            )
            values.append([*row, 1 - found.value / best.total_latency])
        yield (f"{name} {n}", *(f"{median(g):.1%}" for g in np.transpose(values)))


EXPERIMENTS = {
    function.__name__: function
    for function in (portfolio, targets, ascent, delays, windows, waste, arrivals_by_sizes, phases)
}


def main(names: list[str], seconds: float, seeds: int) -> None:
    """Run some experiments and print a table for each."""
    for name in names:
        experiment = EXPERIMENTS[name]
        table = Table(title=f"{name}: {experiment.__doc__}", title_justify="left")
        rows = experiment(seconds, seeds)
        for column in next(rows):
            table.add_column(column, justify="right")
        for row in rows:
            table.add_row(*row)
        Console(width=110).print(table)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(
        [arguments[0]] if arguments else list(EXPERIMENTS),
        float(arguments[1]) if len(arguments) > 1 else 1.0,
        int(arguments[2]) if len(arguments) > 2 else 1,
    )
