"""What routing is worth on a cluster, part by part: `python benchmarks/cluster.py [PART ...]`.

Everything is paired by trace. `--quick` takes fewer traces and shorter runs.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from rich.console import Console
from rich.table import Table
from timing import fastest

from optsched import Cluster, Instance, compare, family, run
from optsched.simulate.cluster import BalanceRouting, NoInformation, Predictor

CONSOLE = Console(width=150)
QUICK = "--quick" in sys.argv
SEEDS = 3 if QUICK else 10
WARM_UP, STEPS = 300, 1200 if QUICK else 4800
PAPER = {  # Table 1: ms, 1e4 tokens/s, 1e-2 s, kJ
    "fcfs": (27.9, 8.00, 1.42, 396),
    "jsq": (28.2, 7.99, 1.42, 396),
    "bf-io H=0": (2.92, 9.03, 1.26, 386),
    "bf-io H=20": (1.65, 9.13, 1.25, 383),
}


def bf_io(lookahead, **options):
    """BF-IO under the name of its window."""
    name = options.pop("name", f"bf-io H={lookahead}")
    return BalanceRouting(lookahead=lookahead, name=name, **options)


def traces(seeds=SEEDS, n=24_000, **parameters):
    return [family("lognormal", n=n, seed=seed, **parameters) for seed in range(seeds)]


def compared(instances, policies, workers=16, slots=72, steps=WARM_UP + STEPS, **settings):
    """Compare on a cluster, without the steps of the warm-up."""
    settings = {"warm_up": WARM_UP} | settings
    return compare(instances, policies, cluster=Cluster(workers, slots), steps=steps, **settings)


def show(title, comparison, baseline="fcfs"):
    table = Table(title=title, title_justify="left")
    for column in (
        *("policy", "ms idle", "tokens/s", "TPOT, ms", "kJ", "max wait", "stuck"),
        *(f"{baseline} / policy", "throughput", "TPOT", "energy"),
    ):
        table.add_column(column, justify="right")
    for policy in comparison.policies:
        mean = {m: comparison.mean(m, policy).mean for m in comparison.runs[policy][0].metrics()}
        ratio = comparison.ratio("imbalance_tokens", baseline, policy)
        changes = [
            f"{comparison.ratio(metric, policy, baseline).mean - 1:+.2%}"
            for metric in ("throughput", "tpot", "energy_joule")
        ]
        table.add_row(
            policy,
            f"{mean['imbalance_ms']:.2f}",
            f"{mean['throughput']:,.0f}",
            f"{mean['tpot'] * 1e3:.2f}",
            f"{mean['energy_joule'] / 1e3:.1f}",
            f"{comparison.values('max_wait_steps', policy).max():,.0f}",
            f"{comparison.values('stuck', policy).max():.0f}",
            f"{ratio.mean:.2f} ({ratio.low:.2f}, {ratio.high:.2f})",
            *changes,
        )
    CONSOLE.print(table)


def table_1():
    """Table 1 in the calibrated setting, with a fixed number of steps, and drained."""
    cluster = Cluster(16, 72)
    policies = ["fcfs", "jsq", "round-robin", "power-of-d", "lpt", bf_io(0), bf_io(20)]
    comparison = compare(
        traces(), policies, cluster=cluster, steps=WARM_UP + STEPS, warm_up=WARM_UP
    )
    show(f"Table 1: G = 16, B = 72, {SEEDS} traces, {STEPS:,} steps", comparison)
    for policy, (ms, throughput, tpot, kilojoule) in PAPER.items():
        mean = {
            metric: comparison.mean(metric, policy).mean
            for metric in ("imbalance_ms", "throughput", "tpot", "energy_joule")
        }
        CONSOLE.print(
            f"{policy:>10}: paper {ms} ms, {throughput}e4 tokens/s "
            f"({mean['throughput'] / throughput / 1e4 - 1:+.1%}), {tpot}e-2 s "
            f"({mean['tpot'] * 100 / tpot - 1:+.1%}), {kilojoule} kJ "
            f"({mean['energy_joule'] / 1e3 / kilojoule * 4800 / STEPS - 1:+.1%})"
        )
    drained = compare(traces(n=19_000), policies, cluster=cluster, warm_up=0)
    show("the same, 19,000 requests to the last token", drained)


def large():
    """G = 64, with the windows around the best and more requests in view."""
    policies = ["fcfs", "lpt", *(bf_io(h) for h in (0, 20, 25, 30, 35))]
    for reveal in (128, 256, 512):
        comparison = compared(traces(min(SEEDS, 5), n=90_000), policies, workers=64, reveal=reveal)
        show(f"G = 64, B = 72, R = {reveal}", comparison)


def lookahead():
    """Figure 4: imbalance against H."""
    policies = ["fcfs", *(bf_io(h) for h in (0, 1, 2, 5, 10, 15, 20, 30, 40, 60, 80, 160))]
    comparison = compared(traces(min(SEEDS, 5)), policies)
    show("imbalance against H, G = 16, B = 72", comparison)


def fair():
    """The price of patience."""
    policies = [
        "fcfs",
        "lpt",
        bf_io(20),
        *(bf_io(20, patience=p, name=f"patience {p}") for p in (100, 200, 300, 400, 500)),
    ]
    comparison = compared(traces(), policies)
    show("fairness, G = 16, B = 72, H = 20", comparison)


def classes():
    """Two classes of service: one request in four should start within 50 steps."""
    policies = {"one class, patience 300": 300, "50 and 300": (50, 300), "50 and 600": (50, 600)}
    table = Table(title="classes of service, G = 16, H = 20", title_justify="left")
    for column in ("patience", "imbalance, fcfs / policy", "urgent p99, max", "others p99, max"):
        table.add_column(column, justify="right")
    for name, patience in policies.items():
        waits, ratios = [[], []], []
        for trace in traces(min(SEEDS, 5)):
            urgent = np.random.default_rng(1).random(len(trace)) < 0.25
            given = patience if isinstance(patience, int) else np.where(urgent, *patience)
            comparison = compared(trace, ["fcfs", bf_io(20, patience=given)])
            ratios.append(comparison.ratio("imbalance_tokens", "fcfs", "bf-io H=20").mean)
            run = comparison.runs["bf-io H=20"][0]
            for place, mask in enumerate((urgent, ~urgent)):
                waits[place].append(run.waits[mask & (run.revealed >= WARM_UP)])
        texts = [
            f"{np.percentile(np.concatenate(w), 99):.0f}, {np.concatenate(w).max():.0f}"
            for w in waits
        ]
        table.add_row(name, f"{np.exp(np.mean(np.log(ratios))):.2f}", *texts)
    CONSOLE.print(table)


WORKLOADS = {
    "lognormal, o 300": ({}, 72),
    "lognormal, o 126": ({"output_mean": 126}, 72),
    "lognormal, o 600": ({"output_mean": 600}, 72),
    "o 300, B 24": ({}, 24),
    "s 300, o 200, B 144": ({"prompt_mean": 300, "output_mean": 200}, 144),
    # Not looked at when the scale was chosen:
    "s 2000, o 200, B 48": ({"prompt_mean": 2000, "output_mean": 200}, 48),
    "s 400, o 400, B 96": ({"prompt_mean": 400, "output_mean": 400}, 96),
}


def adaptive():
    """The window that follows outputs, against every fixed one."""
    windows = (0, 2, 3, 5, 8, 10, 12, 15, 20, 30, 40, 60, 80)
    scales = (1.0, 1.2, 1.4)
    table = Table(title="adaptive H: imbalance over that of the best fixed H", title_justify="left")
    for column in (
        "workload", "mean o / B", "best H", "its ms", "H = 0", "H = 20", *(f"{c:g}" for c in scales)
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for name, (parameters, slots) in WORKLOADS.items():
        steps = WARM_UP + STEPS
        mean = parameters.get("output_mean", 300)
        n = int(1.15 * 16 * slots * (1 + steps / mean)) + 500
        policies = [bf_io(h) for h in windows]
        policies += [bf_io("adaptive", window_scale=c, name=f"{c:g}") for c in scales]
        comparison = compared(
            traces(min(SEEDS, 3), n=n, **parameters), policies, slots=slots, steps=steps
        )
        ms = {p: comparison.mean("imbalance_ms", p).mean for p in comparison.policies}
        best = min(windows, key=lambda h: ms[f"bf-io H={h}"])
        least = ms[f"bf-io H={best}"]
        shown = ["bf-io H=0", "bf-io H=20", *(f"{c:g}" for c in scales)]
        table.add_row(
            name,
            f"{mean / slots:.2f}",
            str(best),
            f"{least:.3f}",
            *(f"{ms[p] / least:.2f}" for p in shown),
        )
    CONSOLE.print(table)


def signal():
    """How good the signal must be."""
    policies = [
        "fcfs",
        bf_io(0),
        bf_io(20),
        bf_io(20, information=NoInformation(), name="H=20, no information"),
    ]
    for misses in (0.1, 0.3, 0.5):
        policies.append(
            bf_io(20, information=Predictor(20, misses=misses), name=f"misses {misses:.0%}")
        )
    for false_alarms in (0.1, 0.5, 1.0):
        policies.append(
            bf_io(
                20,
                information=Predictor(20, false_alarms=false_alarms),
                name=f"false alarms {false_alarms:.0%}",
            )
        )
    for noise in (2, 5, 10):
        policies.append(
            bf_io(20, information=Predictor(20, noise=noise), name=f"noise {noise} steps")
        )
    policies.append(bf_io(20, information=Predictor(20, 0.3, 0.3, 5), name="30 %, 30 %, 5 steps"))
    comparison = compared(traces(min(SEEDS, 5)), policies)
    show("how good the signal must be, G = 16, H = 20", comparison)


def dispatch():
    """Binding requests on arrival (Section 7.3)."""
    policies = ["fcfs", "jsq", "lpt", bf_io(0), bf_io(20)]
    for dispatch in ("pool", "instant"):
        comparison = compared(traces(min(SEEDS, 5)), policies, dispatch=dispatch)
        show(f"dispatch: {dispatch}", comparison)


def speed():
    """Steps per second of CPU time: one thread, warm, best of several."""
    table = Table(title="simulator, warm, best of 5, CPU time", title_justify="left")
    for column in ("G", "B", "R", "policy", "steps/s"):
        table.add_column(column, justify="right")
    cases = [
        (16, 72, 128, 24_000, 5000),
        (128, 72, 256, 40_000, 800),
        (1000, 128, 1024, 250_000, 300),
    ]
    for workers, slots, reveal, n, steps in cases:
        trace = family("lognormal", n=n, seed=1)
        for policy in ("fcfs", "lpt", bf_io(0), bf_io(20), bf_io(20, patience=300, name="patient")):
            cluster = Cluster(workers, slots)
            least = fastest(
                lambda t=trace, c=cluster, p=policy, s=steps, r=reveal: run(
                    t, p, cluster=c, steps=s, reveal=r
                ),
                1 if workers == 1000 else 5,
            )
            name = policy if isinstance(policy, str) else policy.name
            table.add_row(str(workers), str(slots), str(reveal), name, f"{steps / least:,.0f}")
    CONSOLE.print(table)


def drawn(rng, n, outputs, homogeneous):
    """Requests of the theorems: prompts uniform, outputs geometric or all the same."""
    prompts = rng.integers(1, 1001, n)
    made = np.full(n, outputs) if homogeneous else rng.geometric(1 / outputs, n)
    return Instance(prompts, made, 10**9)


def theory():
    """Theorems 1 to 3: FCFS against B and G, and the ratio against sqrt(B ln G)."""
    outputs = 40
    settings = {
        "drift 0": (0, False),
        "drift 1": (1, False),
        "drift 2": (2, False),
        "same outputs": (1, True),
    }
    grid = [(g, b) for g in (4, 8, 16, 32, 64) for b in (16, 32, 64, 128)]
    found = {}
    for name, (drift, homogeneous) in settings.items():
        rows = []
        for workers, slots in grid:
            levels = {"fcfs": [], "bf-io H=0": []}
            for seed in range(2):
                rng = np.random.default_rng(seed)
                steps = outputs * (10 if QUICK else 20)
                n = int(workers * slots * (steps / outputs + 3) * 1.1)
                # Overloaded (Definition 1): even where all end together, there are enough.
                reveal = 2 * workers * slots if homogeneous else max(128, workers * slots // 8)
                comparison = compared(
                    drawn(rng, n, outputs, homogeneous),
                    ["fcfs", bf_io(0)],
                    workers,
                    slots,
                    steps,
                    warm_up=4 * outputs,
                    drift=drift,
                    reveal=reveal,
                )
                for policy, values in levels.items():
                    values.append(comparison.mean("imbalance_tokens", policy).mean)
            fcfs, ours = (float(np.mean(values)) for values in levels.values())
            # Balanced to the token: the ratio is only as large as what one token allows.
            rows.append((workers, slots, fcfs / workers, fcfs / max(ours, 1.0)))
        found[name] = np.array(rows)
    table = Table(title="fitted exponents", title_justify="left")
    for column in (
        "setting", "fcfs per worker: B", "ln G", "ratio: B", "ln G", "least ratio / sqrt(B ln G)"
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for name, rows in found.items():
        design = np.stack([np.log(rows[:, 1]), np.log(np.log(rows[:, 0])), np.ones(len(rows))], 1)
        level = np.linalg.lstsq(design, np.log(rows[:, 2]), rcond=None)[0]
        ratio = np.linalg.lstsq(design, np.log(rows[:, 3]), rcond=None)[0]
        scale = np.sqrt(rows[:, 1] * np.log(rows[:, 0]))
        table.add_row(
            name,
            *(f"{value:.2f}" for value in (*level[:2], *ratio[:2])),
            f"{(rows[:, 3] / scale).min():.2f} (most {(rows[:, 3] / scale).max():.2f})",
        )
    CONSOLE.print(table)


PARTS = (table_1, large, lookahead, fair, classes, adaptive, signal, dispatch, speed, theory)

if __name__ == "__main__":
    wanted = [name for name in sys.argv[1:] if not name.startswith("-")]
    for part in PARTS:
        if not wanted or part.__name__ in wanted:
            began = time.perf_counter()
            part()
            CONSOLE.print(f"{part.__name__}: {time.perf_counter() - began:.0f} s\n")
