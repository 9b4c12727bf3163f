"""Plots of matplotlib as plain data for plotly.js, so that a page and a PNG show the same."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.container import BarContainer
    from matplotlib.figure import Figure as Drawing
    from matplotlib.lines import Line2D

    from optsched._internal.arrays import FloatArray

Figure = dict[str, Any]  # what plotly.js draws: "data", a list of traces, and "layout"

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
    """Return the points of a line, and whether it spans the whole plot."""
    x = np.asarray(line.get_xdata(orig=False), dtype=np.float64)
    y = np.asarray(line.get_ydata(orig=False), dtype=np.float64)
    of_x, of_y = line.get_transform().contains_branch_seperately(ax.transData)
    x, y = (x if of_x else np.asarray(ax.get_xlim())), (y if of_y else np.asarray(ax.get_ylim()))
    return x, y, not (of_x and of_y)


def _area(area: Any, ax: Axes) -> Figure:
    """Turn polygons of one look into a trace."""
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
    """Turn lines of one look into a trace."""
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
    """Join shapes to one line with gaps between them."""
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
    """Place texts that are given in coordinates of the data or of the axes."""
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
    from matplotlib.ticker import PercentFormatter

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
    if scale == "symlog" or _has_names(axis):
        places, names = _ticks(axis)
        at = _place(np.array(places, dtype=np.float64), axis)
        found |= {"tickvals": _numbers(at), "ticktext": names}
    return found


def _has_names(axis: Axis) -> bool:
    from matplotlib.category import StrCategoryLocator
    from matplotlib.ticker import FixedLocator

    return isinstance(axis.get_major_locator(), FixedLocator | StrCategoryLocator)


def _ticks(axis: Axis) -> tuple[list[float], list[str]]:
    """Return places and names of the ticks within the limits."""
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


def _named(artist: Any) -> Figure:
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
    """Return text without its marks of mathematics."""
    marks = {r"$\delta$": "δ", r"\$": "$", "\N{MINUS SIGN}": "-"}
    plain = str(text)
    for mark, sign in marks.items():
        plain = plain.replace(mark, sign)
    return plain


def _colour(colour: Any) -> str:
    from matplotlib.colors import to_hex

    full = to_hex(colour, keep_alpha=True).upper()
    return full[:7] if full.endswith("FF") else full


def _numbers(values: npt.ArrayLike) -> list[float | None]:
    numbers = np.asarray(values, dtype=np.float64).tolist()
    return [_short(value) if math.isfinite(value) else None for value in numbers]


def _short(value: float) -> float:
    """Round a number that is not whole to the digits that a screen can show."""
    return int(value) if value.is_integer() else float(f"{value:.{_DIGITS}g}")
