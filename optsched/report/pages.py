"""Pages of results: one file with a table and interactive plots that needs no network.

A trace names its policy under "meta" (a list: of each bar), and a layout what the page links: plots
with the same "link" zoom together, one with "only" shows that policy or the one that is picked.
"""

from __future__ import annotations

import gzip
import json
import math
import platform
import re
from base64 import b64encode
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.numbers import at_least, number, percent, proven
from optsched._version import __version__
from optsched.errors import OptschedError, PolicyError
from optsched.problem.work import load_on_clock
from optsched.report import runs, tables
from optsched.report.interactive import Figure, plot_of, short
from optsched.report.models import plot_losses, plot_regret, plot_regret_ratio, plot_workers
from optsched.report.series import MAX_STACKED, growing_bars, plot_means
from optsched.report.style import step_unit
from optsched.simulate.cluster.results import ClusterRun
from optsched.simulate.replicas.run import RoutedRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from jinja2 import Template
    from markupsafe import Markup

    from optsched.experiments.comparison import Replications
    from optsched.experiments.regret import Regret
    from optsched.experiments.results import ClusterComparison, Comparison
    from optsched.experiments.sweep import Sweep
    from optsched.optimum.routing import RoutingLoss
    from optsched.optimum.state import Optimum
    from optsched.problem.execution import Execution
    from optsched.problem.schedule import Schedule
    from optsched.simulate.seconds.execution import ClockedRun

_ROWS = 100  # requests drawn where they are too many to be stacked
_BINS = 2000


def comparison_page(comparison: Comparison) -> str:
    """Return the page of a comparison in steps."""
    instance = comparison.instance
    return page_of(
        "comparison",
        comparison,
        tables.comparison_table(comparison, page=True),
        make_figures(comparison),
        optimal=proven_optimal(comparison),
        unit=step_unit(instance),
        rows=0 if len(instance) <= MAX_STACKED else min(len(instance), _ROWS),
    )


def proven_optimal(comparison: Comparison) -> bool:
    """Say whether the bound leaves no room below the best schedule: latencies are whole numbers."""
    best = comparison.best
    covering, _ = comparison.covering(best)
    return covering is not None and math.ceil(covering.value) >= best.total_latency


def clock_page(comparison: Comparison) -> str:
    """Return the page of a comparison on a clock."""
    figures = {"latency": _bars(runs.plot_clock_comparison, comparison)}
    figures |= _over_time(comparison.runs)
    load = load_on_clock(comparison.instance, comparison.clock)
    return page_of("clock", comparison, tables.clock_table(comparison), figures, load=load)


def cluster_page(comparison: ClusterComparison, lookaheads: ClusterComparison | None = None) -> str:
    """Return the page of runs on a cluster, with the loads of the runs that recorded them."""
    recorded = [run for run in comparison if run.loads is not None]
    top = 1.03 * max((int(run.loads.max()) for run in recorded if run.loads is not None), default=0)
    figures = {}
    for place, run in enumerate(recorded):
        figure = drawn_for([], runs.plot_loads, run, workers=runs.MAX_WORKERS, link="steps")
        figure["layout"] |= {"height": 300, "showlegend": False}
        figure["layout"]["yaxis"]["range"] = [0, top]
        figures[f"loads-{place}"] = _owned(figure, run.policy)
    figures["power"] = drawn_for(comparison.policies, runs.plot_power, comparison)
    if lookaheads is not None:
        figures["lookahead"] = drawn_for(comparison.policies, runs.plot_lookahead, lookaheads)
    table = tables.cluster_table(comparison)
    entries = {entry["policy"]: entry for entry in comparison.to_dict()["policies"]}
    return page_of(
        "cluster",
        comparison,
        table,
        figures,
        best=entries[table.rows[0].name],
        first=entries[comparison.policies[0]],
        recorded=[run.policy for run in recorded],
        runs=next(iter(comparison.runs.values())),
    )


def regret_page(result: Regret) -> str:
    """Return the page of regret."""
    figures = {
        f"{name}-{place}": drawn_for(result.policies, plot, result, load, link="horizon")
        for place, load in enumerate(result.loads)
        for name, plot in (("regret", plot_regret), ("ratio", plot_regret_ratio))
    }
    seeds = max(band.seeds for band in result.bands())
    table = tables.regret_table(result)
    return page_of("regret", result, table, figures, said=result.notes, seeds=seeds)


def summary_page(result: Replications | Sweep) -> str:
    """Return the page of means over instances or seeds."""
    shown: dict[str, Any] = {"table": tables.means_table(result), "title": result.title}
    shown |= {"said": result.notes, "policies": []}
    figures = {"means": drawn_for([], plot_means, result)}
    content = result.to_dict()
    return render_page("summary.html.j2", figures=figures, content=content, **shown)


def routing_page(result: RoutingLoss) -> str:
    """Return the page of what routers lose."""
    table = tables.routing_table(result)
    losses = drawn_for([], plot_losses, result)
    losses["layout"]["height"] = 130 + 38 * len(result.losses)
    return page_of("routing", result, table, {"losses": losses})


def run_page(run: Execution | ClockedRun | ClusterRun | RoutedRun) -> str:
    """Return the page of one run."""
    figures: dict[str, Figure] = {}
    if isinstance(run, RoutedRun):
        if run.clock is not None:
            figures["memory"] = drawn_for([], runs.plot_clocked_usage, list(filter(None, run.runs)))
        elif not run.unfinished:
            figures["memory"] = drawn_for([], plot_workers, run.schedule)
    elif run.clock is not None:
        figures = _over_time([run])
        figures["batches"] = drawn_for([], runs.plot_batches, run, link="time")
    elif isinstance(run, ClusterRun):
        figures["power"] = drawn_for([], runs.plot_power, run)
        if run.loads is not None:
            figures["loads"] = drawn_for([], runs.plot_loads, run, workers=runs.MAX_WORKERS)
    elif not run.unfinished and not run.split:
        figures = _of_schedule(run.schedule)
    decisions = getattr(run, "decisions", None)
    if decisions is not None and decisions.counts.seconds:
        figures["decisions"] = drawn_for([], runs.plot_decision_times, decisions)
    return page_of("run", run, tables.facts_table(run), figures, decisions=decisions)


def optimum_page(result: Optimum) -> str:
    """Return the page of an interval around the optimum: how it closed, and where the gap is."""
    figures, table, said = {"history": drawn_for([], runs.plot_history, result)}, None, ""
    try:
        if not result.proven_optimal:
            explanation = result.explain()
            said, table = str(explanation), tables.blame_table(explanation)
            figures["gap"] = drawn_for([], runs.plot_gap, explanation)
    except OptschedError as reason:
        said = str(reason)
    figures |= _of_schedule(result.schedule.pooled())
    lines = [line[:1].upper() + line[1:] for line in said.splitlines()]
    return page_of("optimum", result, table, figures, said=". ".join(lines))


def page_of(
    name: str, result: Any, table: tables.Table | None, figures: dict[str, Figure], **more: Any
) -> str:
    """Return the page of a result from the template of that name."""
    content, policies = result.to_dict(), getattr(result, "policies", [])
    more["tied"] = ", ".join(run.policy for run in getattr(result, "tied", []))
    shown = {"result": result, "content": content, "policies": policies, "table": table}
    return render_page(f"{name}.html.j2", figures=figures, **shown, **more)


def _bars(plot: Callable[..., Any], comparison: Comparison) -> Figure:
    """Draw bars, one per policy that has completed a request."""
    figure = drawn_for(comparison.policies, plot, comparison)
    figure["layout"]["height"] = 130 + 38 * len(comparison)
    for bars in figure["data"]:
        if bars["type"] == "bar":
            bars["meta"] = [run.policy for run in comparison.ranked() if run.completed.any()]
    return figure


def _over_time(timed: Sequence[ClockedRun]) -> dict[str, Figure]:
    """Draw what runs on a clock do over time."""
    names = [run.policy for run in timed]
    return {
        "waiting": drawn_for(names, runs.plot_waiting, timed, link="time"),
        "memory": drawn_for(names, runs.plot_clocked_usage, timed, link="time"),
        "arrivals": drawn_for(names, runs.plot_mean_latency, timed),
    }


def _of_schedule(schedule: Schedule) -> dict[str, Figure]:
    """Draw a schedule."""
    return {
        "schedule": drawn_for([], runs.plot_schedule, schedule, sample=_ROWS, link="time"),
        "memory": drawn_for([], runs.plot_memory, schedule, bins=_BINS, link="time"),
        "distribution": drawn_for([], runs.plot_latency, schedule),
    }


def make_figures(comparison: Comparison) -> dict[str, Figure]:
    """Draw the plots of a comparison, in which only the best schedule is visible at first."""
    names, drawn = comparison.policies, comparison.schedules
    if not drawn:
        raise PolicyError(
            "the page draws schedules, but every policy lets preempted requests go on, so that "
            "none has one; compare a policy such as area, too"
        )
    best = min(drawn, key=lambda schedule: schedule.total_latency)
    latency = _bars(runs.plot_comparison, comparison)
    for note in latency["layout"]["annotations"]:
        note["text"] = note["text"].removeprefix("gap ")  # a phone has no room for it
    memory = drawn_for(names, runs.plot_memory, drawn, bins=_BINS, link="time")
    for line in memory["data"]:
        line["visible"] = True if line.get("meta") in (None, best.policy) else "legendonly"
    return {
        "latency": latency,
        "memory": memory,
        "distribution": drawn_for(names, runs.plot_latency, drawn),
        "schedule": _schedules(drawn, best.policy),
    }


def _schedules(drawn: Iterable[Schedule], best: str) -> Figure:
    """Draw schedules into one plot that shows one of them at a time."""
    found: Figure = {}
    for schedule in drawn:
        figure = drawn_for([], runs.plot_schedule, schedule, sample=_ROWS, link="time")
        figure["data"].append(_details(schedule))
        for trace in _owned(figure, schedule.policy)["data"]:
            trace["visible"] = schedule.policy == best
        found.setdefault("data", []).extend(figure["data"])
        if schedule.policy == best:
            found["layout"] = figure["layout"]
    layout = found["layout"] | {"height": 520, "hovermode": "closest"}
    layout["meta"]["only"] = best
    for axis in ("xaxis", "yaxis"):  # to fit the one that is shown
        low, high = layout[axis].pop("range")
        layout[axis] |= {"autorange": "reversed"} if low > high else {"rangemode": "tozero"}
    return found | {"layout": layout}


def _details(schedule: Schedule) -> Figure:
    """Return invisible points at which the page describes each request."""
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


def drawn_for(
    policies: Iterable[str], plot: Callable[..., Any], *content: Any, link: str = "", **look: Any
) -> Figure:
    """Draw a plot for the page; traces that belong to no policy are never faded."""
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
    """Assign all traces of a plot to one policy."""
    for trace in figure["data"]:
        trace["meta"] = policy
    return figure


def render_page(template: str, package: str = "", **content: Any) -> str:
    """Return a page from a template of this room, or of another package that extends one."""
    return _template(template, package).render(
        plotly=_plotly(), version=__version__, python=platform.python_version(), **content
    )


@cache
def _plotly() -> str:
    """Return plotly.js, packed: a page has less than half the bytes, and unpacks in no time."""
    from plotly.offline import get_plotlyjs

    return b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


@cache
def _template(name: str, package: str) -> Template:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loaders = [PackageLoader("optsched", "report/templates")]
    loaders += [PackageLoader(package, "")] if package else []
    environment = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[[Any], str]] = {
        "percent": percent,
        "at_least": at_least,
        "low": partial(proven, digits=5),
        "high": partial(proven, up=True, digits=5),
        "mean": lambda value: f"{value:,.0f}" if value >= 1e4 else f"{value:,.1f}",
        "short": lambda value: "" if value is None else number(value, 5),
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
