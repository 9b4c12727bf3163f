"""Pages of results: one file with a table and interactive plots that needs no network.

A trace names its policy under "meta" (a list: of each bar), and a layout what the page links: plots
with the same "link" zoom together, one with "only" shows that policy or the one that is picked.
"""

from __future__ import annotations

import json
import math
import platform
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.numbers import at_least, percent
from optsched._version import __version__
from optsched.cluster.results import ClusterRun
from optsched.errors import OptschedError
from optsched.report.curves import MAX_STACKED, growing_bars
from optsched.report.interactive import Figure, plot_of, short
from optsched.report.regrets import plot_regret, plot_regret_ratio
from optsched.report.runs import (
    MAX_WORKERS,
    plot_batches,
    plot_clock_comparison,
    plot_clocked_usage,
    plot_loads,
    plot_lookahead,
    plot_mean_latency,
    plot_power,
    plot_waiting,
)
from optsched.report.schedules import (
    plot_comparison,
    plot_decision_times,
    plot_gap,
    plot_history,
    plot_latency,
    plot_memory,
    plot_schedule,
)
from optsched.report.style import step_unit
from optsched.report.tables import (
    blame_table,
    clock_table,
    cluster_table,
    comparison_table,
    facts_table,
    regret_table,
)
from optsched.workloads.clock_load import load_on_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from jinja2 import Template
    from markupsafe import Markup

    from optsched.comparison import ClockComparison, ClusterComparison, StepComparison
    from optsched.execution import Execution
    from optsched.experiments.regrets import Regret
    from optsched.optimum.result import Optimum
    from optsched.schedule import Schedule
    from optsched.simulate.seconds.execution import ClockedRun

_ROWS = 100  # requests drawn where they are too many to be stacked
_BINS = 2000


def comparison_page(comparison: StepComparison) -> str:
    """Return the page of a comparison in steps."""
    instance = comparison.instance
    return render_page(
        "comparison.html.j2",
        comparison=comparison,
        content=comparison.to_dict(),
        instance=instance,
        bound=comparison.bound,
        policies=comparison.policies,
        best=comparison.best,
        optimal=proven_optimal(comparison),
        table=comparison_table(comparison, page=True),
        unit=step_unit(instance),
        rows=0 if len(instance) <= MAX_STACKED else min(len(instance), _ROWS),
        figures=make_figures(comparison),
    )


def proven_optimal(comparison: StepComparison) -> bool:
    """Say whether the bound leaves no room below the best schedule: latencies are whole numbers."""
    return math.ceil(comparison.bound.value) >= comparison.best.total_latency


def cluster_page(comparison: ClusterComparison, lookaheads: ClusterComparison | None = None) -> str:
    """Return the page of runs on a cluster; loads are drawn of those that recorded them."""
    content = comparison.to_dict()
    entries = content["policies"]
    policies = list(comparison.runs)
    first_runs = [runs[0] for runs in comparison.runs.values()]
    recorded = [run for run in first_runs if run.loads is not None]
    top = 1.03 * max((int(run.loads.max()) for run in recorded if run.loads is not None), default=0)
    figures = {}
    for number, run in enumerate(recorded):
        figure = _drawn([run.policy], plot_loads, run, workers=MAX_WORKERS, link="steps")
        figure["layout"] |= {"height": 300, "showlegend": False}
        figure["layout"]["yaxis"]["range"] = [0, top]
        figures[f"loads-{number}"] = _owned(figure, run.policy)
    figures["power"] = _drawn(policies, plot_power, first_runs)
    if lookaheads is not None:
        figures["lookahead"] = _drawn(policies, plot_lookahead, lookaheads)
    return render_page(
        "cluster.html.j2",
        content=content,
        cluster=str(comparison.cluster),
        title=first_runs[0].instance.name,
        best=min(entries, key=lambda entry: entry["imbalance_tokens"]),
        first=entries[0],
        table=cluster_table(comparison),
        policies=policies,
        recorded=[run.policy for run in recorded],
        runs=next(iter(comparison.runs.values())),
        figures=figures,
    )


def clock_page(comparison: ClockComparison) -> str:
    """Return the page of a comparison on a clock."""
    names = comparison.policies
    figures = {"latency": _drawn(names, plot_clock_comparison, comparison)}
    figures["latency"]["layout"]["height"] = 130 + 38 * len(names)
    for bars in figures["latency"]["data"]:
        if bars["type"] == "bar":
            bars["meta"] = [run.policy for run in comparison.ranked() if run.completed.any()]
    return render_page(
        "clock.html.j2",
        comparison=comparison,
        content=comparison.to_dict(),
        instance=comparison.instance,
        policies=names,
        best=comparison.best,
        load=load_on_clock(comparison.instance, comparison.clock),
        table=clock_table(comparison),
        figures=figures | _over_time(comparison.runs),
    )


def _over_time(runs: Sequence[ClockedRun]) -> dict[str, Figure]:
    """Draw what runs on a clock do over time."""
    names = [run.policy for run in runs]
    return {
        "waiting": _drawn(names, plot_waiting, runs, link="time"),
        "memory": _drawn(names, plot_clocked_usage, runs, link="time"),
        "arrivals": _drawn(names, plot_mean_latency, runs),
    }


def _of_schedule(schedule: Schedule) -> dict[str, Figure]:
    """Draw a schedule."""
    return {
        "schedule": _drawn([], plot_schedule, schedule, sample=_ROWS, link="time"),
        "memory": _drawn([], plot_memory, schedule, bins=_BINS, link="time"),
        "distribution": _drawn([], plot_latency, schedule),
    }


def run_page(run: Execution | ClockedRun | ClusterRun) -> str:
    """Return the page of one run."""
    figures: dict[str, Figure] = {}
    if run.clock is not None:
        figures = _over_time([run]) | {"batches": _drawn([], plot_batches, run, link="time")}
    elif isinstance(run, ClusterRun):
        figures["power"] = _drawn([], plot_power, run)
        if run.loads is not None:
            figures["loads"] = _drawn([], plot_loads, run, workers=MAX_WORKERS)
    elif not run.unfinished:
        figures = _of_schedule(run.schedule)
    decisions = getattr(run, "decisions", None)
    if decisions is not None and decisions.counts.seconds:
        figures["decisions"] = _drawn([], plot_decision_times, decisions)
    return render_page(
        "run.html.j2",
        run=run,
        content=run.to_dict(),
        instance=run.instance,
        policies=[],
        table=facts_table(run),
        decisions=decisions,
        figures=figures,
    )


def optimum_page(result: Optimum) -> str:
    """Return the page of an interval around the optimum: how it closed, and where the gap is."""
    figures = {"history": _drawn([], plot_history, result)}
    try:
        explanation = result.explain()
    except OptschedError as reason:
        said, table = str(reason), None
    else:
        said, table = str(explanation), blame_table(explanation)
        figures["gap"] = _drawn([], plot_gap, explanation)
    return render_page(
        "optimum.html.j2",
        result=result,
        content=result.to_dict(),
        instance=result.schedule.instance,
        policies=[],
        said=[line[:1].upper() + line[1:] for line in said.splitlines()],
        table=table,
        figures=figures | _of_schedule(result.schedule),
    )


def regret_page(result: Regret) -> str:
    """Return the page of regret."""
    figures = {}
    for place, load in enumerate(result.loads):
        for name, plot in (("regret", plot_regret), ("ratio", plot_regret_ratio)):
            figure = _drawn(result.policies, plot, result, load, link="horizon")
            figures[f"{name}-{place}"] = figure
    return render_page(
        "regret.html.j2",
        result=result,
        content=result.to_dict(),
        policies=result.policies,
        loads=result.loads,
        growths=[(policy, f"{load:g}", growth) for policy, load, growth in result.growths()],
        table=regret_table(result),
        seeds=max(band.seeds for band in result.bands()),
        figures=figures,
    )


def make_figures(comparison: StepComparison) -> dict[str, Figure]:
    """Draw the plots of a comparison; of the schedules only the best one is visible."""
    schedules, best = comparison.schedules, comparison.best.schedule
    names = [schedule.policy for schedule in schedules]
    latency = _drawn(names, plot_comparison, comparison)
    latency["layout"]["height"] = 130 + 38 * len(names)
    for bars in latency["data"]:
        if bars["type"] == "bar":
            bars["meta"] = [run.policy for run in comparison.ranked()]
    for note in latency["layout"]["annotations"]:
        note["text"] = note["text"].removeprefix("gap ")  # a phone has no room for it
    memory = _drawn(names, plot_memory, schedules, bins=_BINS, link="time")
    for line in memory["data"]:
        line["visible"] = True if line.get("meta") in (None, best.policy) else "legendonly"
    return {
        "latency": latency,
        "memory": memory,
        "distribution": _drawn(names, plot_latency, schedules),
        "schedule": _schedules(schedules, best),
    }


def _schedules(schedules: Iterable[Schedule], best: Schedule) -> Figure:
    """Draw schedules into one plot, of which one is visible at a time."""
    found: Figure = {}
    for schedule in schedules:
        figure = _drawn([], plot_schedule, schedule, sample=_ROWS, link="time")
        figure["data"].append(_details(schedule))
        for trace in _owned(figure, schedule.policy)["data"]:
            trace["visible"] = schedule is best
        found.setdefault("data", []).extend(figure["data"])
        if schedule is best:
            found["layout"] = figure["layout"]
    layout = found["layout"] | {"height": 520, "hovermode": "closest"}
    layout["meta"]["only"] = best.policy
    for axis in ("xaxis", "yaxis"):  # to fit the one that is shown
        low, high = layout[axis].pop("range")
        layout[axis] |= {"autorange": "reversed"} if low > high else {"rangemode": "tozero"}
    return found | {"layout": layout}


def _details(schedule: Schedule) -> Figure:
    """Return points that are not seen, at which the page describes each request."""
    instance, bars = schedule.instance, growing_bars(schedule, _ROWS)
    columns = (instance.prompts, instance.outputs, instance.arrivals, schedule.starts)
    labels = [short(instance.label(request)) for request in bars.requests.tolist()]
    numbers = np.stack(columns, axis=1)[bars.requests].tolist()
    return {
        "type": "scatter",
        "mode": "markers",
        "marker": {"opacity": 0, "size": 9},
        "showlegend": False,
        "x": bars.ends[:, 0].tolist(),
        "y": bars.ends[:, 1].round(3).tolist(),
        "customdata": [[label, *row] for label, row in zip(labels, numbers, strict=True)],
        "hovertemplate": "request %{customdata[0]}<br>%{customdata[1]:,} prompt and "
        "%{customdata[2]:,} output tokens<br>arrives %{customdata[3]:,}, starts "
        "%{customdata[4]:,}, completes %{x:,}<extra></extra>",
    }


def _drawn(
    policies: Iterable[str], plot: Callable[..., Any], *content: Any, link: str = "", **look: Any
) -> Figure:
    """Draw a plot for the page; what belongs to none of the policies is never faded."""
    from matplotlib.figure import Figure as Drawing

    figure = plot_of(plot(*content, ax=Drawing().subplots(), **look))
    names = set(policies)
    for trace in figure["data"]:
        if trace.get("meta") not in names:
            trace.pop("meta", None)
    if link:
        figure["layout"]["meta"]["link"] = link
    return figure


def _owned(figure: Figure, policy: str) -> Figure:
    """Let all of a plot belong to one policy."""
    for trace in figure["data"]:
        trace["meta"] = policy
    return figure


def render_page(template: str, folder: str = "", **content: Any) -> str:
    """Return a page from a template of this room, or of a folder of the package."""
    from plotly.offline import get_plotlyjs

    return _template(template, folder).render(
        plotly=get_plotlyjs(), version=__version__, python=platform.python_version(), **content
    )


@cache
def _template(name: str, folder: str) -> Template:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    folders = ["report/templates", *([folder] if folder else [])]
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("optsched", each) for each in folders]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[[Any], str]] = {
        "percent": percent,
        "at_least": at_least,
        "mean": lambda value: f"{value:,.0f}" if value >= 1e4 else f"{value:,.1f}",
        "short": lambda value: "" if value is None else f"{value:,.5g}",
        "json": _json,
        "code": _code,
    }
    environment.filters.update(filters)
    return environment.get_template(name)


def _json(content: object) -> Markup:
    """Write JSON for a script element, which no text in it can close."""
    from markupsafe import Markup

    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def _code(text: str) -> Markup:
    """Mark what stands between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))
