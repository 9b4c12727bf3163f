"""Pages of results: one file with a table and interactive plots that needs no network."""

from __future__ import annotations

import gzip
import html
import json
import math
import re
from base64 import b64encode
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.files import JSON
from optsched._internal.numbers import at_least, number, percent, proven
from optsched._version import __version__
from optsched.errors import OptschedError, PolicyError
from optsched.problem.costs import cost_unit, schedule_cost
from optsched.problem.work import load_on_clock
from optsched.report import runs, tables
from optsched.report.style import MAX_STACKED, growing_bars, made_by, plot_means, step_unit
from optsched.simulate.cluster.results import ClusterRun
from optsched.simulate.dispatch import RoutedRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt
    from jinja2 import Template
    from markupsafe import Markup
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.container import BarContainer
    from matplotlib.figure import Figure as Drawing
    from matplotlib.lines import Line2D
    from matplotlib.typing import ColorType

    from optsched._internal.arrays import FloatArray
    from optsched.experiments.comparison import Replications
    from optsched.experiments.regret import Regret
    from optsched.experiments.results import ClockComparison, ClusterComparison, StepComparison
    from optsched.experiments.sweep import Sweep
    from optsched.optimum.routing import RoutingLoss
    from optsched.optimum.state import Optimum
    from optsched.problem.execution import Execution
    from optsched.problem.schedule import Schedule
    from optsched.simulate.seconds.execution import ClockedRun

Figure = JSON  # what plotly.js draws: "data", a list of traces, and "layout"

_SYMBOLS = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "v": "triangle-down",
    "<": "triangle-left",
    ">": "triangle-right",
    "D": "diamond",
    "P": "cross",
    "X": "x",
    "x": "x-thin-open",
    "*": "star",
    "p": "pentagon",
    "h": "hexagon",
    "|": "line-ns-open",
}
_STEPS = {"steps-pre": "vh", "steps-post": "hv"}
_VERTICAL = {"top": "top", "bottom": "bottom", "center": "middle"}
_PIXELS = 4 / 3  # per point
_DIGITS = 6  # of a number that is drawn
_MAX_NAME = 60  # characters
_NAMELESS = "<extra></extra>"


def interactive(drawing: Drawing) -> list[Figure]:
    """Turn lines, bands, bars and annotations of a figure into plots, one for each of its axes."""
    plots = [plot_of(ax) for ax in drawing.axes if ax.has_data()]
    shown = [plot["layout"]["showlegend"] for plot in plots]
    if sum(shown) == 1 or drawing.legends:  # one legend for all stands above the first
        for place, plot in enumerate(plots):
            plot["layout"]["showlegend"] = place == 0
    return plots


def plot_of(ax: Axes) -> Figure:
    """Turn what axes show into a plot, whose layout holds the title as "caption" under "meta"."""
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.container import BarContainer

    groups = [each for each in ax.containers if isinstance(each, BarContainer)]
    errors = {id(part) for each in groups if each.errorbar for part in each.errorbar.lines[2]}
    free = [each for each in ax.collections if id(each) not in errors]
    traces = [_area(each, ax) for each in free if isinstance(each, PolyCollection)]
    traces += [_segments(each, ax) for each in free if isinstance(each, LineCollection)]
    lines = [_line(line, ax) for line in ax.lines]
    traces += [line for line in lines if line["mode"] != "none"]  # as the caps of error bars are
    bars = [_bar(each, ax) for each in groups]
    _join_by_colour(traces)
    for trace in (*traces, *bars):
        if "name" not in trace and "hoverinfo" not in trace:  # plotly.js would make a name up
            shown = trace.get("hovertemplate", "(%{x:,}, %{y:,})")
            trace["hovertemplate"] = shown.removesuffix(_NAMELESS) + _NAMELESS
    legend = ax.get_legend()
    title = "" if legend is None else legend.get_title().get_text()
    layout = {
        "meta": {"caption": _text(ax.get_title() or title)},
        "showlegend": legend is not None,
        "xaxis": _axis(ax.xaxis, ax.get_xlim()),
        "yaxis": _axis(ax.yaxis, ax.get_ylim()),
        "barmode": "overlay",
        "annotations": _annotations(ax),
    }
    return {"data": traces + bars, "layout": layout}


def _line(line: Line2D, ax: Axes) -> Figure:
    x, y, across = _in_data(line, ax)
    dashes = vars(line)["_unscaled_dash_pattern"][1]  # there is no public name for it
    symbol = None if line.get_markevery() else _SYMBOLS.get(str(line.get_marker()))
    drawn = line.get_linestyle() not in ("None", "none", "", " ")
    point = drawn and len(x) == 1  # of which no line would be seen
    parts = ["lines"] * (drawn and not point) + ["markers"] * (point or symbol is not None)
    trace = {
        "type": "scatter",
        "mode": "+".join(parts) or "none",
        **_named(line),
        **_points(x, y, ax),
        **_hovered(line),
        "line": {
            "color": _colour(line.get_color()),
            "width": _short(_PIXELS * line.get_linewidth()),
            "dash": ",".join(f"{2 * part:g}px" for part in dashes or ()) or "solid",
            "shape": _STEPS.get(str(line.get_drawstyle()), "linear"),
        },
        "opacity": 1 if line.get_alpha() is None else line.get_alpha(),
    }
    if across and "name" not in trace:
        trace["hoverinfo"] = "skip"
    if symbol is not None:
        hollow = line.get_markerfacecolor() in ("none", "white")
        trace["marker"] = {
            "symbol": symbol.removesuffix("-open") + "-open" if hollow else symbol,
            "size": _short(1.7 * line.get_markersize()),
            "color": _colour(line.get_markeredgecolor()),
        }
    return trace


def _in_data(line: Line2D, ax: Axes) -> tuple[FloatArray, FloatArray, bool]:
    x = np.asarray(line.get_xdata(orig=False), dtype=np.float64)
    y = np.asarray(line.get_ydata(orig=False), dtype=np.float64)
    of_x, of_y = line.get_transform().contains_branch_seperately(ax.transData)
    x, y = (x if of_x else np.asarray(ax.get_xlim())), (y if of_y else np.asarray(ax.get_ylim()))
    return x, y, not (of_x and of_y)


def _area(area: Any, ax: Axes) -> Figure:
    edge = area.get_edgecolor()
    return {
        "type": "scatter",
        "mode": "lines",
        "fill": "toself",
        **_named(area),
        **_joined([path.vertices for path in area.get_paths()], ax),
        "line": {
            "width": _short(_PIXELS * area.get_linewidth()[0]),
            "color": _colour((edge if len(edge) else area.get_facecolor())[0][:3]),
        },
        "fillcolor": _colour(area.get_facecolor()[0]),
        "hoverinfo": "skip",
    }


def _segments(lines: Any, ax: Axes) -> Figure:
    *colour, alpha = lines.get_color()[0]
    return {
        "type": "scatter",
        "mode": "lines",
        **_named(lines),
        **_joined(lines.get_segments(), ax),
        "line": {"width": _short(_PIXELS * lines.get_linewidth()[0]), "color": _colour(colour)},
        "opacity": _short(alpha),
        "hoverinfo": "skip",
    }


def _joined(shapes: Sequence[npt.ArrayLike], ax: Axes) -> Figure:
    gap = np.full((1, 2), np.nan)
    parts = [part for shape in shapes for part in (np.asarray(shape, dtype=np.float64), gap)]
    x, y = np.concatenate(parts[:-1] or [gap]).T
    return {"x": _numbers(_place(x, ax.xaxis)), "y": _numbers(_place(y, ax.yaxis))}


def _bar(bars: BarContainer, ax: Axes) -> Figure:
    boxes = bars.patches
    corners = np.array([box.get_xy() for box in boxes])
    sizes = np.array([(box.get_width(), box.get_height()) for box in boxes])
    upright = bars.orientation != "horizontal"
    across, along = (0, 1) if upright else (1, 0)
    centres = corners[:, across] + sizes[:, across] / 2
    ticks = dict(zip(*_ticks(ax.xaxis if upright else ax.yaxis), strict=True))
    names = [ticks.get(round(centre), f"{centre:g}") for centre in centres.tolist()]
    colours = [_colour(box.get_facecolor()) for box in boxes]
    trace = {
        "type": "bar",
        "orientation": "v" if upright else "h",
        **_named(bars),
        "xy"[across]: _numbers(centres),
        "xy"[along]: _numbers(sizes[:, along]),
        "base": _numbers(corners[:, along]),
        "width": _numbers(sizes[:, across]),
        "marker": {
            "color": colours[0] if len(set(colours)) == 1 else colours,
            "pattern": {
                "shape": (boxes[0].get_hatch() or " ")[0].strip(),
                "fillmode": "overlay",
                "fgcolor": "#FFFFFF",
                "size": 7,
            },
        },
        "customdata": names,
        "hovertemplate": "%{customdata}: %{" + "xy"[along] + ":,}",
        **_hovered(bars),
    }
    if bars.errorbar is not None:
        trace["error_y"] = _errors(bars.errorbar, sizes[:, 1])
    return trace


def _errors(errors: Any, heights: FloatArray) -> Figure:
    segments = errors.lines[2][0].get_segments()  # empty where a bar has no ends
    ends = np.array([part[:, 1] if len(part) else (np.nan, np.nan) for part in segments])
    return {
        "type": "data",
        "symmetric": False,
        "array": _numbers(ends[:, 1] - heights),
        "arrayminus": _numbers(heights - ends[:, 0]),
        "thickness": 1.3,
        "width": 4,
        "color": "#333333",
    }


def _annotations(ax: Axes) -> list[Figure]:
    from matplotlib.text import Annotation

    found = []
    for text in ax.texts:
        coordinates = getattr(text, "xycoords", "data")
        both = coordinates if isinstance(coordinates, tuple) else (coordinates, coordinates)
        place: Figure = {}
        xy = getattr(text, "xy", text.get_position())
        for name, axis, how, at in zip("xy", (ax.xaxis, ax.yaxis), both, xy, strict=True):
            inside = how == "data"
            log = inside and axis.get_scale() == "log"
            place[name] = float(np.log10(at) if log else at)
            place[f"{name}ref"] = name if inside else "paper"
        align = {
            "xanchor": text.get_horizontalalignment(),
            "yanchor": _VERTICAL.get(text.get_verticalalignment(), "auto"),
        }
        shift: Figure = {}
        if isinstance(text, Annotation) and text.anncoords == "offset points":
            shift = {"xshift": text.xyann[0] * _PIXELS, "yshift": text.xyann[1] * _PIXELS}
        shown = {"text": _text(text.get_text()), "showarrow": False}
        found.append(place | align | shift | shown)
    return found


def _axis(axis: Axis, limits: tuple[float, float]) -> Figure:
    from matplotlib.ticker import FixedLocator, PercentFormatter

    scale = axis.get_scale()
    ends = np.array(limits)
    found: Figure = {"title": {"text": _text(axis.get_label_text())}}
    if scale == "log":
        found |= {"type": "log", "range": np.log10(ends).tolist()}
        found |= {"dtick": 1} if ends[1] > 30 * ends[0] else {"nticks": 6}
    else:
        found |= {"type": "linear", "range": _place(ends, axis).tolist(), "nticks": 7}
    if isinstance(axis.get_major_formatter(), PercentFormatter):
        found["tickformat"] = ".0%"
    if scale == "symlog" or isinstance(axis.get_major_locator(), FixedLocator):  # with names
        places, names = _ticks(axis)
        at = _place(np.array(places, dtype=np.float64), axis)
        found |= {"tickvals": _numbers(at), "ticktext": names}
    return found


def _ticks(axis: Axis) -> tuple[list[float], list[str]]:
    low, high = sorted(axis.get_view_interval())
    places = [float(place) for place in axis.get_majorticklocs() if low <= place <= high]
    if axis.get_scale() == "symlog":
        return places, [f"{place:,.10g}" for place in places]
    names = axis.get_major_formatter().format_ticks(places)
    return places, [_text(name) for name in names]


def _points(x: FloatArray, y: FloatArray, ax: Axes) -> Figure:
    """Return coordinates, with their true values where plotly.js lacks the scale of an axis."""
    found: Figure = {"x": _numbers(_place(x, ax.xaxis)), "y": _numbers(_place(y, ax.yaxis))}
    if "symlog" in (ax.xaxis.get_scale(), ax.yaxis.get_scale()):
        found["customdata"] = list(zip(_numbers(x), _numbers(y), strict=True))
        found["hovertemplate"] = "(%{customdata[0]:,}, %{customdata[1]:,})"
    return found


def _place(values: FloatArray, axis: Axis) -> FloatArray:
    """Return where values lie on an axis that is linear or logarithmic in plotly.js too."""
    if axis.get_scale() != "symlog":
        return values
    return np.asarray(axis.get_transform().transform(values), dtype=np.float64)


def _join_by_colour(traces: Sequence[Figure]) -> None:
    """Group bands and lines that have no name with the named line of their colour."""
    groups = {each["line"]["color"]: each["name"] for each in traces if each.get("name")}
    for trace in traces:
        group = trace.get("name") or groups.get(trace["line"]["color"])
        if group is not None:
            trace.update(legendgroup=group, meta=html.unescape(group), name=group)


def _named(artist: Artist | BarContainer) -> Figure:
    name = str(artist.get_label())
    if name.startswith("_") or not name:  # as matplotlib marks what has no name
        return {"showlegend": False}
    shown = short(name)
    return {"name": shown, "legendgroup": shown, "meta": _unmarked(name)}


def _hovered(artist: object) -> Figure:
    """Return what `hover` has set: a template, or a text for each point."""
    shown = vars(artist).get("hover")
    if shown is None:
        return {}
    if isinstance(shown, str):
        return {"hovertemplate": shown}
    return {"customdata": list(shown), "hovertemplate": "%{customdata}"}


def short(name: str) -> str:
    """Return a name as plotly.js takes it, no longer than a legend has room for."""
    plain = _unmarked(name)
    return _text(plain if len(plain) <= _MAX_NAME else plain[: _MAX_NAME - 1] + "…")


def _text(text: object) -> str:
    """Escape plain text, which plotly.js would read as markup."""
    return html.escape(_unmarked(text)).replace("\n", "<br>")


def _unmarked(text: object) -> str:
    marks = {r"$\delta$": "δ", r"\$": "$", "\N{MINUS SIGN}": "-"}
    plain = str(text)
    for mark, sign in marks.items():
        plain = plain.replace(mark, sign)
    return plain


def _colour(colour: ColorType) -> str:
    from matplotlib.colors import to_hex

    full = to_hex(colour, keep_alpha=True).upper()
    return full[:7] if full.endswith("FF") else full


def _numbers(values: npt.ArrayLike) -> list[float | None]:
    numbers = np.asarray(values, dtype=np.float64).tolist()
    return [_short(value) if math.isfinite(value) else None for value in numbers]


def _short(value: float) -> float:
    return int(value) if value.is_integer() else float(f"{value:.{_DIGITS}g}")


_ROWS = 100  # requests drawn where they are too many to be stacked
_BINS = 2000


def comparison_page(comparison: StepComparison) -> str:
    """Return the page of a comparison in steps."""
    instance = comparison.instance
    return page_of(
        "comparison",
        comparison,
        tables.comparison_table(comparison, page=True),
        make_figures(comparison),
        optimal=proven_optimal(comparison),
        best=f"{number(comparison.value(comparison.best))} {comparison.unit}".rstrip(),
        unit=step_unit(instance),
        rows=0 if len(instance) <= MAX_STACKED else min(len(instance), _ROWS),
    )


def proven_optimal(comparison: StepComparison) -> bool:
    """Say whether the bound leaves no room below the best: costs are whole multiples of a unit."""
    best, objective = comparison.best, comparison.objective
    covering, _ = comparison.covering(best)
    unit = cost_unit(comparison.instance, objective)
    return covering is not None and covering.value > schedule_cost(best, objective) - unit


def clock_page(comparison: ClockComparison) -> str:
    """Return the page of a comparison on a clock."""
    figures = {"latency": _bars(runs.plot_clock_comparison, comparison)}
    figures |= _over_time(comparison.runs)
    load, best = load_on_clock(comparison.instance, comparison.clock), comparison.best
    total = comparison.objective == "total-latency"
    measure, least = comparison.measure, comparison.value(best)
    if total:
        measure, least = "mean latency", best.mean_latency
    shown = {"load": load, "measure": measure, "least": least}
    return page_of("clock", comparison, tables.clock_table(comparison), figures, **shown)


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
        for name, plot in (("regret", runs.plot_regret), ("ratio", runs.plot_regret_ratio))
    }
    seeds = max(band.seeds for band in result.bands())
    table = tables.regret_table(result)
    return page_of("regret", result, table, figures, said=result.notes, seeds=seeds)


def summary_page(result: Replications | Sweep) -> str:
    """Return the page of means over instances or seeds."""
    shown: JSON = {"table": tables.means_table(result), "title": result.title}
    shown |= {"said": result.notes, "policies": []}
    figures = {"means": drawn_for([], plot_means, result)}
    content = result.to_dict()
    return render_page("summary.html.j2", result=result, figures=figures, content=content, **shown)


def routing_page(result: RoutingLoss) -> str:
    """Return the page of what routers lose."""
    table = tables.routing_table(result)
    losses = drawn_for([], runs.plot_losses, result)
    losses["layout"]["height"] = 130 + 38 * len(result.losses)
    return page_of("routing", result, table, {"losses": losses})


def run_page(run: Execution | ClockedRun | ClusterRun | RoutedRun) -> str:
    """Return the page of one run."""
    figures: dict[str, Figure] = {}
    if isinstance(run, RoutedRun):
        if run.clock is not None:
            figures["memory"] = drawn_for([], runs.plot_clocked_usage, list(filter(None, run.runs)))
        elif not run.unfinished:
            figures["memory"] = drawn_for([], runs.plot_workers, run.schedule)
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


def _bars(plot: Callable[..., Axes], comparison: StepComparison | ClockComparison) -> Figure:
    """Draw bars, one per policy that has completed a request."""
    figure = drawn_for(comparison.policies, plot, comparison)
    figure["layout"]["height"] = 130 + 38 * len(comparison)
    for bars in figure["data"]:
        if bars["type"] == "bar":
            bars["meta"] = [run.policy for run in comparison.ranked() if run.completed.any()]
    return figure


def _over_time(timed: Sequence[ClockedRun]) -> dict[str, Figure]:
    names = [run.policy for run in timed]
    return {
        "waiting": drawn_for(names, runs.plot_waiting, timed, link="time"),
        "memory": drawn_for(names, runs.plot_clocked_usage, timed, link="time"),
        "arrivals": drawn_for(names, runs.plot_mean_latency, timed),
    }


def _of_schedule(schedule: Schedule) -> dict[str, Figure]:
    return {
        "schedule": drawn_for([], runs.plot_schedule, schedule, sample=_ROWS, link="time"),
        "memory": drawn_for([], runs.plot_memory, schedule, bins=_BINS, link="time"),
        "distribution": drawn_for([], runs.plot_latency, schedule),
    }


def make_figures(comparison: StepComparison) -> dict[str, Figure]:
    """Draw the plots of a comparison, in which only the best schedule is visible at first."""
    names, drawn = comparison.policies, comparison.schedules
    if not drawn:
        raise PolicyError(
            "the page draws schedules, but every policy lets preempted requests go on, so that "
            "none has one; compare a policy such as area, too"
        )
    best = min(drawn, key=lambda schedule: (comparison.value(schedule), schedule.total_latency))
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
    policies: Iterable[str], plot: Callable[..., Any], *content: object, link: str = "", **look: Any
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
    for trace in figure["data"]:
        trace["meta"] = policy
    return figure


def render_page(template: str, package: str = "", **content: object) -> str:
    """Return a page from a template of this room, or of another package that extends one."""
    made = made_by(content.get("result"))
    return _template(template, package).render(
        plotly=_plotly(), version=__version__, made=made, **content
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
    environment.filters.update(
        percent=percent,
        at_least=at_least,
        low=partial(proven, digits=5),
        high=partial(proven, up=True, digits=5),
        mean=lambda value: f"{value:,.0f}" if value >= 1e4 else f"{value:,.1f}",
        short=lambda value: "" if value is None else number(value, 5),
        json=_json,
        code=_code,
    )
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
