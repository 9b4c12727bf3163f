"""The plots of the HTML report as plain data for plotly.js."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.report import data
from optsched.report.style import LIMIT, UNAVOIDABLE, LineStyle, line_styles

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from optsched._internal.arrays import FloatArray
    from optsched.comparison.steps import Comparison
    from optsched.instance import Instance
    from optsched.report.data import Bars
    from optsched.schedule import Schedule

Figure = dict[str, Any]  # what plotly.js draws: "data", a list of traces, and "layout"

ROWS = 100  # requests drawn where they are too many to be stacked

_BINS = 2000
_LONGEST_LABEL = 60


def make_figures(comparison: Comparison) -> dict[str, Figure]:
    """Make the plots of the report as plain data for plotly.js.

    Under "meta" a trace names its policy (a list: of each bar), and a layout what the page is to
    link: plots with the same "link" zoom together, one with "only" shows that policy or the one
    that is picked.

    Parameters
    ----------
    comparison
        Schedules and the bound.

    Returns
    -------
    dict
        The figures "latency", "memory", "distribution" and "schedule"; of the last one, every trace
        names its policy under "meta" and only the best policy is visible.

    Examples
    --------
    >>> from optsched import Instance, compare
    >>> list(make_figures(compare(Instance([1], [2], memory=3))))
    ['latency', 'memory', 'distribution', 'schedule']
    """
    return {
        "latency": _latency(comparison),
        "memory": _memory(comparison),
        "distribution": _distribution(comparison),
        "schedule": _schedule(comparison),
    }


def _latency(comparison: Comparison) -> Figure:
    # Looks are chosen before sorting: the other figures have the order of the comparison.
    ranked = sorted(_styled(comparison.schedules), key=lambda pair: pair[0].total_latency)
    schedules = [schedule for schedule, _ in ranked]
    names = [escaped(schedule.policy) for schedule in schedules]
    places = list(range(len(names)))  # long names may look the same
    totals = np.array([schedule.total_latency for schedule in schedules])
    unavoidable = comparison.bound.value
    gaps = [data.percent(comparison.gap(schedule)) for schedule in schedules]
    bound = {
        "name": "unavoidable (proven bound)",
        "x": [unavoidable] * len(names),
        "marker": {"color": UNAVOIDABLE},
        "hovertemplate": f"no schedule is below {data.at_least(unavoidable)}<extra></extra>",
    }
    rest = {
        "name": "gap",
        "x": np.maximum(totals - unavoidable, 0).tolist(),
        "marker": {"color": [style.colour for _, style in ranked]},
        "text": gaps,
        "textposition": "outside",
        "cliponaxis": False,
        "showlegend": False,
        "customdata": totals.tolist(),
        "hovertemplate": "total %{customdata:,}, gap %{text}<extra></extra>",
    }
    policies = [schedule.policy for schedule in schedules]
    bar = {"type": "bar", "orientation": "h", "y": places, "meta": policies}
    layout = {
        "barmode": "stack",
        "bargap": 0.35,
        "height": 130 + 38 * len(names),
        "xaxis": {
            "title": {"text": f"total latency ({data.step_unit(comparison.instance)})"},
            "range": [0, int(totals.max()) * 1.2],
            "nticks": 6,
        },
        "yaxis": {"autorange": "reversed", "tickvals": places, "ticktext": names},
    }
    return {"data": [bar | bound, bar | rest], "layout": layout}


def _memory(comparison: Comparison) -> Figure:
    traces, widest = [], 1
    for schedule, style in _styled(comparison.schedules):
        edges, peaks = data.memory_curve(schedule, _BINS)
        widest = max(widest, int(np.diff(edges).max()))
        curve = {"x": edges.tolist(), "y": [*peaks.tolist(), 0]}
        shown = True if schedule is comparison.best else "legendonly"
        traces.append(_line(schedule, style) | curve | {"visible": shown})
    memory = comparison.instance.memory
    latest = max(schedule.makespan for schedule in comparison.schedules)
    limit = {
        "type": "scatter",
        "mode": "lines",
        "name": "memory limit",
        "x": [min(trace["x"][0] for trace in traces), latest + latest // 50],
        "y": [memory, memory],
        "line": {"color": LIMIT, "width": 1.5},
        "hoverinfo": "skip",
    }
    title = "tokens held" + (f" (most of each {widest:,} steps)" if widest > 1 else "")
    layout = {
        "meta": {"link": "time"},
        "xaxis": _time(comparison.instance),
        "yaxis": {"title": {"text": title}, "rangemode": "tozero"},
    }
    return {"data": [*traces, limit], "layout": layout}


def _distribution(comparison: Comparison) -> Figure:
    traces, lowest, highest = [], np.inf, 1
    for schedule, style in _styled(comparison.schedules):
        latencies, shares = data.latency_cdf(schedule)
        curve = {
            "x": [int(latencies[0]), *latencies.tolist()],
            "y": [0, *shares.round(6).tolist()],
        }
        traces.append(_line(schedule, style) | curve)
        lowest, highest = min(lowest, latencies[0]), max(highest, latencies[-1])
    layout = {
        "xaxis": {
            "type": "log",
            "title": {"text": f"latency ({data.step_unit(comparison.instance)})"},
            **({"dtick": 1} if highest > 30 * lowest else {}),
        },
        "yaxis": {
            "title": {"text": "requests completed"},
            "tickformat": ".0%",
            "range": [0, 1.02],
        },
    }
    return {"data": traces, "layout": layout}


def _schedule(comparison: Comparison) -> Figure:
    stacked = len(comparison.instance) <= data.MOST_STACKED
    traces = []
    for schedule, style in _styled(comparison.schedules):
        bars = data.growing_bars(schedule, ROWS)
        outline = "white" if stacked else None
        drawn = [
            _filled("prompt tokens", bars.prompts, style.colour, outline),
            _filled("output tokens", bars.outputs, style.tint, outline),
            _details(schedule, bars),
        ]
        if bars.waits:
            drawn.insert(0, _waiting(bars.waits))
        shown = {"meta": schedule.policy, "visible": schedule is comparison.best}
        traces += [trace | shown for trace in drawn]
    stack = {"title": {"text": "tokens held, stacked by request"}, "rangemode": "tozero"}
    rows = {"title": {"text": "requests in the order of their starts"}, "autorange": "reversed"}
    layout = {
        "meta": {"link": "time", "only": comparison.best.policy},
        "height": 520,
        "hovermode": "closest",
        "xaxis": _time(comparison.instance),
        "yaxis": stack if stacked else rows,
    }
    return {"data": traces, "layout": layout}


def _filled(name: str, areas: list[FloatArray], colour: str, outline: str | None) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "fill": "toself",
        "fillcolor": colour,
        "line": {"color": outline or colour, "width": 0.5 if outline else 2},
        "hoverinfo": "skip",
        **_joined(areas),
    }


def _waiting(lines: list[FloatArray]) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "waiting",
        "line": {"color": UNAVOIDABLE, "width": 1},
        "hoverinfo": "skip",
        **_joined(lines),
    }


def _details(schedule: Schedule, bars: Bars) -> Figure:
    """Make invisible points that tell about each request."""
    instance = schedule.instance
    columns = (instance.prompts, instance.outputs, instance.arrivals, schedule.starts)
    labels = [escaped(instance.label(request)) for request in bars.requests.tolist()]
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


def _joined(shapes: list[FloatArray]) -> Figure:
    """Join shapes to one line with gaps."""
    gap: list[list[float | None]] = [[None, None]]
    points = [point for shape in shapes for point in shape.round(3).tolist() + gap]
    return {"x": [point[0] for point in points], "y": [point[1] for point in points]}


def _styled(schedules: Sequence[Schedule]) -> Iterable[tuple[Schedule, LineStyle]]:
    return zip(schedules, line_styles(schedule.policy for schedule in schedules), strict=True)


def _line(schedule: Schedule, style: LineStyle) -> Figure:
    dash = ",".join(f"{2 * length:g}px" for length in style.dash) or "solid"
    return {
        "type": "scatter",
        "mode": "lines",
        "name": escaped(schedule.policy),
        "meta": schedule.policy,
        "line": {"color": style.colour, "dash": dash, "width": 1.7, "shape": "hv"},
    }


def _time(instance: Instance) -> Figure:
    return {"title": {"text": f"time ({data.step_unit(instance)})"}, "nticks": 7}


def escaped(name: str) -> str:
    """Keep plotly.js from reading a user's text as markup, and the file from growing with it."""
    shown = name if len(name) <= _LONGEST_LABEL else name[: _LONGEST_LABEL - 1] + "…"
    return html.escape(shown)
