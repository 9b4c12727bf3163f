"""BF-IO Figures 1, 5, 6 and 7: idle time, lengths of outputs, loads and power over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from optsched.cluster import Cluster
from optsched.papers.bf_io.setting import (
    NO_TRACE,
    PAPER,
    SETTINGS,
    STEPS,
    WARM_UP,
    ratio,
    run_calibrated,
    traces,
    values,
)
from optsched.papers.claims import number, shape
from optsched.papers.estimates import estimate
from optsched.papers.panels import BAND, lines
from optsched.papers.target import Outcome, Target
from optsched.report.curves import mean_per_bin
from optsched.report.runs import plot_trajectories
from optsched.report.series import plot_series
from optsched.report.style import REFERENCE, TEXT_SIZE
from optsched.simulate import run
from optsched.simulate.cluster.run import REVEAL
from optsched.workloads import family

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from optsched.papers.study import Study

_TRACE_STEPS, _TRACE_WORKERS = 436, 32  # of Figure 1
_DEFAULT_SLOTS = 72
_POWER = "mean power of a worker (W)"


def _idle_shares(slots: int, seed: int) -> list[float]:
    """Return the share of the slowest worker's time that others wait, by step, under FCFS."""
    n = 4 * _TRACE_WORKERS * slots + REVEAL  # outputs of 300 on average, 736 steps
    cluster = Cluster(_TRACE_WORKERS, slots)
    trace = family("lognormal", n=n, seed=seed)
    result = run(trace, "fcfs", cluster=cluster, steps=WARM_UP + _TRACE_STEPS)
    share = result.imbalance / (cluster.workers * result.max_work)
    return [float(value) for value in share[WARM_UP:]]


def _figure_1(study: Study) -> Outcome:
    slots = study.choose((12, 24, 72), (8, 12, 16, 24, 36, 48, 72, 108))
    seeds = traces(study, 6, 20)
    found = study.by_seed(_idle_shares, {count: {"slots": count} for count in slots}, seeds)
    shares = {count: np.array(runs) for count, runs in found.items()}
    rows = [
        (count, step, share, *estimate(list(shares[count].mean(axis=1))))
        for count in slots
        for step, share in enumerate(shares[count][0])
    ]
    ours = shares[_DEFAULT_SLOTS]
    mean = estimate(list(ours.mean(axis=1)))
    medians = estimate([float(np.median(run) / run.mean()) for run in ours])
    label = f"mean idle share, {_TRACE_WORKERS} workers of {_DEFAULT_SLOTS} slots"
    claims = [
        shape(label, mean, paper=0.40, at_least=0.40),
        # As persistent as printed: the median step idles as much as the mean one.
        shape("median over mean", medians, paper=0.41 / 0.40, at_least=0.9, at_most=1.1),
    ]
    table = pd.DataFrame(rows, columns=["slots", "step", "idle_share", "mean", "low", "high"])
    settings = {"workers": _TRACE_WORKERS, "slots": list(slots), "traces": len(seeds)}
    return Outcome(table, claims, SETTINGS | settings | {"steps": _TRACE_STEPS})


def _draw_figure_1(table: pd.DataFrame, axes: Sequence[Axes]) -> None:
    shown = table[table["slots"].isin([8, 12, 24, _DEFAULT_SLOTS])]
    shown = shown.assign(name=[f"{slots} slots" for slots in shown["slots"]])
    labels: dict[str, Any] = {"xlabel": "time (steps)", "ylabel": "idle share of a step"}
    plot_series(shown, x="step", y="idle_share", by="name", ax=axes[0], **labels)
    means = table.drop_duplicates("slots")
    labels = {"xlabel": "slots per worker B", "ylabel": "mean idle share"}
    plot_series(means, x="slots", y="mean", ax=axes[1], **BAND, **labels)
    axes[1].axhline(0.40, **REFERENCE)
    axes[1].annotate(
        "the paper's trace", (0.98, 0.40), xycoords=("axes fraction", "data"), va="bottom",
        ha="right", fontsize=TEXT_SIZE,
    )  # fmt: skip
    for ax in axes:
        ax.set_ylim(0, None)


def _outlasting(name: str, n: int, seed: int) -> dict[str, Any]:
    """Return the share of outputs beyond each length, and that of the geometric of their mean."""
    outputs = family(name, n=n, seed=seed).outputs
    reach = np.arange(int(np.quantile(outputs, 0.999)) + 1)
    beyond = 1 - np.searchsorted(np.sort(outputs), reach, side="right") / n
    geometric = (1 - 1 / outputs.mean()) ** reach
    places = np.unique(np.linspace(0, len(reach) - 1, 120).astype(int))
    return {
        "tokens": reach[places].tolist(),
        "family": beyond[places].tolist(),
        "geometric": geometric[places].tolist(),
        "distance": float(np.abs(beyond - geometric).max()),
        "cv": float(outputs.std() / outputs.mean()),
    }


def _figure_5(study: Study) -> Outcome:
    names = {"lognormal": "Table 1", "chat": "LMSYS-Chat-1M"}
    n = study.choose(20_000, 200_000)
    calls = [{"name": name, "n": n, "seed": study.seed} for name in names]
    found = dict(zip(names, study.map(_outlasting, calls), strict=True))
    rows = [
        (name, kind, tokens, share)
        for name, lengths in found.items()
        for kind in ("family", "geometric")
        for tokens, share in zip(lengths["tokens"], lengths[kind], strict=True)
    ]
    claims = [
        # Distribution functions a tenth apart can be distinguished at a glance.
        shape(
            f"distance to the geometric distribution, outputs of {what}",
            found[name]["distance"],
            at_most=0.1,
        )
        for name, what in names.items()
    ]
    table = pd.DataFrame(rows, columns=["family", "kind", "tokens", "share"])
    return Outcome(table, claims, {"families": list(names), "requests": n})


def _draw_figure_5(table: pd.DataFrame, axes: Sequence[Axes]) -> None:
    for ax, (name, rows) in zip(axes, table.groupby("family", sort=False), strict=True):
        shown = rows[rows["share"] > 0]
        shown = shown.assign(kind=shown["kind"].replace("family", f"family:{name}"))
        labels: dict[str, Any] = {"xlabel": "output (tokens)", "ylabel": "share of longer outputs"}
        plot_series(shown, x="tokens", y="share", by="kind", yscale="log", ax=ax, **labels)
        ax.set_ylim(5e-4, 1.2)


def _loads(policy: str, seed: int, steps: int, points: int) -> dict[str, Any]:
    """Return level and spread of the loads after the warm-up, and if asked for their course."""
    run = run_calibrated(policy, seed, WARM_UP + steps, record_loads=True)
    if run.loads is None:
        raise AssertionError
    loads = run.loads[WARM_UP:]
    low, high = np.percentile(loads, [1, 99])
    found = {
        "spread": float((loads.max(axis=1) - loads.min(axis=1)).mean()),
        "mean": float(loads.mean()),
        "low": float(low),
        "high": float(high),
    }
    if not points:
        return found
    at, course = mean_per_bin(run.loads, points)
    heaviest = mean_per_bin(run.loads.max(axis=1), points)[1]
    return {
        **found,
        "steps": at.tolist(),
        "loads": course.round().tolist(),
        "heaviest": heaviest.round().tolist(),
    }


def _figure_6(study: Study) -> Outcome:
    steps = study.choose(1500, 4000 - WARM_UP)
    seeds = traces(study, 3, 20)
    policies = ["fcfs", "jsq", "bf-io H=0", "bf-io H=20"]
    calls = [
        {"policy": policy, "seed": seed, "steps": steps, "points": 200 * (seed == seeds[0])}
        for policy in policies
        for seed in seeds
    ]
    runs = iter(study.map(_loads, calls))
    found = {policy: [next(runs) for _ in seeds] for policy in policies}
    claims = [
        # Read off the plot, as the paper's own "approximately" says; its ranges are as wide.
        number(f"{policy}, {label}", paper, estimate(values(found[policy], what)), within=within)
        for policy, label, what, paper, within in (
            ("fcfs", "lowest load (1st percentile)", "low", 60_000, 0.1),
            ("fcfs", "highest load (99th percentile)", "high", 110_000, 0.1),
            ("fcfs", "heaviest less lightest worker", "spread", 45_000, 0.2),
            ("bf-io H=0", "heaviest less lightest worker", "spread", 7_500, 1 / 3),
            ("bf-io H=0", "mean load", "mean", 80_000, 0.1),
        )
    ]
    for worse, better, paper in (("fcfs", "bf-io H=0", 6.0), ("bf-io H=0", "bf-io H=20", None)):
        ours = ratio(values(found[worse], "spread"), values(found[better], "spread"))
        claims.append(shape(f"{worse} over {better}, spread", ours, paper=paper, at_least=1.5))
    rows = []
    for policy in policies:
        first = found[policy][0]
        columns = np.column_stack([first["loads"], first["heaviest"]])
        for step, at_once in zip(first["steps"], columns.tolist(), strict=True):
            names = [*map(str, range(len(at_once) - 1)), "heaviest"]
            rows += [(policy, step, *cell) for cell in zip(names, at_once, strict=True)]
    table = pd.DataFrame(rows, columns=["policy", "step", "worker", "load"])
    return Outcome(table, claims, SETTINGS | {"steps": steps, "traces": len(seeds)})


def _draw_figure_6(table: pd.DataFrame, axes: Sequence[Axes]) -> None:
    highest = table["load"].max()
    for ax, (policy, rows) in zip(axes, table.groupby("policy", sort=False), strict=True):
        course = rows.pivot_table(index="step", columns="worker", values="load")
        heaviest = course.pop("heaviest")
        steps = course.index.to_numpy()
        plot_trajectories(steps, course.to_numpy(), heaviest.to_numpy(), str(policy), ax)
        ax.set_ylim(0, 1.05 * highest)


def _power(policy: str, seed: int, steps: int) -> dict[str, Any]:
    """Return the mean power of a worker over time, in 150 parts, and what a run takes."""
    run = run_calibrated(policy, seed, WARM_UP + steps)
    metrics = run.metrics(WARM_UP)
    at, watt = mean_per_bin(run.watt[WARM_UP:] / run.cluster.workers, 150)
    seconds = run.times[WARM_UP + at] - run.times[WARM_UP]
    return {
        "time_s": seconds.tolist(),
        "watt": watt.tolist(),
        "low": float(watt.min()),
        "high": float(watt.max()),
        "mean": metrics["power_watt"] / run.cluster.workers,
        "seconds": metrics["seconds"],
        "energy_kj": metrics["energy_joule"] / 1e3 * STEPS / steps,
    }


def _figure_7(study: Study) -> Outcome:
    steps = study.choose(2400, STEPS)
    seeds = traces(study, 3, 20)
    fcfs, balanced = policies = ["fcfs", "bf-io H=20"]
    cells = {policy: {"policy": policy, "steps": steps} for policy in policies}
    found = study.by_seed(_power, cells, seeds)
    claims = [
        number(f"{policy}, {label}", paper, estimate(values(found[policy], what)), within=within)
        for policy, label, what, paper, within in (
            (fcfs, "lowest power (W)", "low", 330, 0.03),
            (fcfs, "highest power (W)", "high", 380, 0.03),
            (balanced, "lowest power (W)", "low", 395, 0.02),
            (balanced, "highest power (W)", "high", 400, 0.02),
            (fcfs, "energy (kJ)", "energy_kj", 396, 0.02),
            (balanced, "energy (kJ)", "energy_kj", 383, 0.02),
        )
    ]
    for what, limits in (
        ("mean", {"at_least": 1.0}),
        ("seconds", {"at_most": 1.0}),
        ("energy_kj", {"at_most": 1.0}),
    ):
        ours = ratio(values(found[balanced], what), values(found[fcfs], what))
        paper = {"energy_kj": 383 / 396}.get(what)
        claims.append(shape(f"{balanced} over {fcfs}, {what}", ours, paper=paper, **limits))
    rows = [
        (policy, time_s, watt)
        for policy in policies
        for time_s, watt in zip(found[policy][0]["time_s"], found[policy][0]["watt"], strict=True)
    ]
    table = pd.DataFrame(rows, columns=["policy", "time_s", "watt"])
    return Outcome(table, claims, SETTINGS | {"steps": steps, "traces": len(seeds)})


TARGETS = (
    Target(
        "bf-io-fig-1",
        "idle time under FCFS on 32 workers",
        f"{PAPER}, Fig. 1",
        _figure_1,
        _draw_figure_1,
        (1, 2),
        "The paper's industrial trace is not public, and its slots per worker are not stated. With "
        "prompts and outputs as in Table 1, the fewer the slots, the more is idle (right panel).",
    ),
    Target(
        "bf-io-fig-5",
        "outputs are nearly geometric",
        f"{PAPER}, Fig. 5",
        _figure_5,
        _draw_figure_5,
        (1, 2),
        "The paper's traces are not part of optsched: 'lognormal' is fitted to Table 1, 'chat' has "
        "the mean and median that Jaillet prints of LMSYS-Chat-1M.",
    ),
    Target(
        "bf-io-fig-6",
        "load of every worker over time",
        f"{PAPER}, Fig. 6",
        _figure_6,
        _draw_figure_6,
        (2, 2),
        f"{NO_TRACE} FCFS and JSQ differ in ties alone where all workers have as many slots.",
    ),
    Target(
        "bf-io-fig-7",
        "mean power of a worker over time",
        f"{PAPER}, Fig. 7",
        _figure_7,
        lines(x="time_s", y="watt", by="policy", xlabel="time (s)", ylabel=_POWER),
        remark=f"{NO_TRACE} Energies are of 16 workers and 4,800 steps.",
    ),
)
