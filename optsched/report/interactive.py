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
    from optsched.report.figures import Figure

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
}
_STEPS = {"steps-pre": "vh", "steps-post": "hv"}
_VERTICAL = {"top": "top", "bottom": "bottom", "center": "middle"}
_PIXELS = 4 / 3  # per point
_DIGITS = 6  # of a number that is drawn: more than a screen can show


def interactive(drawing: Drawing) -> list[Figure]:
    """Turn lines, bands, bars and annotations of a figure into plots for plotly.js.

    Parameters
    ----------
    drawing
        A figure of matplotlib.

    Returns
    -------
    list of dict
        One for each of its axes that shows anything: "data", a list of traces, and "layout", whose
        "meta" holds the title as "caption".

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> drawing = Figure()
    >>> lines = drawing.subplots().plot([1, 2], [3, 5], label="growth")
    >>> (found,) = interactive(drawing)
    >>> found["data"][0]["name"], found["data"][0]["y"]
    ('growth', [3.0, 5.0])
    """
    plots = [_plot(ax) for ax in drawing.axes if ax.has_data()]
    shown = [plot["layout"]["showlegend"] for plot in plots]
    if sum(shown) == 1 or drawing.legends:  # one legend for all stands above the first
        for place, plot in enumerate(plots):
            plot["layout"]["showlegend"] = place == 0
    return plots


def _plot(ax: Axes) -> Figure:
    from matplotlib.container import BarContainer

    lines = [_line(line, ax) for line in ax.lines]
    traces = [line for line in lines if line["mode"] != "none"]  # as the caps of error bars are
    traces += [
        _band(path.vertices, area, ax)
        for area in ax.collections
        if hasattr(area, "set_verts") and not hasattr(area, "get_segments")
        for path in area.get_paths()
    ]
    bars: list[Figure] = []
    for each in ax.containers:
        if isinstance(each, BarContainer):
            bars.append(_bar(each, ax))
        else:
            _add_errors(bars[-1], each)
    _join_by_colour(traces)
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
    x, y = _in_data(line, ax)
    dashes = vars(line)["_unscaled_dash_pattern"][1]  # there is no public name for it
    symbol = _SYMBOLS.get(str(line.get_marker()))
    drawn = line.get_linestyle() not in ("None", "none", "", " ")
    trace = {
        "type": "scatter",
        "mode": "+".join(["lines"] * drawn + ["markers"] * (symbol is not None)) or "none",
        **_named(line.get_label()),
        **_points(x, y, ax),
        "line": {
            "color": _colour(line.get_color()),
            "width": _short(_PIXELS * line.get_linewidth()),
            "dash": ",".join(f"{2 * part:g}px" for part in dashes or ()) or "solid",
            "shape": _STEPS.get(str(line.get_drawstyle()), "linear"),
        },
        "opacity": 1 if line.get_alpha() is None else line.get_alpha(),
    }
    if symbol is not None:
        trace["marker"] = {
            "symbol": symbol,
            "size": _short(1.7 * line.get_markersize()),
            "color": _colour(line.get_markeredgecolor()),
        }
        if line.get_markerfacecolor() == "none":
            trace["marker"]["symbol"] = symbol.removesuffix("-open") + "-open"
    return trace


def _in_data(line: Line2D, ax: Axes) -> tuple[FloatArray, FloatArray]:
    """Give the points of a line; one across the whole plot ends where the plot ends."""
    x = np.asarray(line.get_xdata(orig=False), dtype=np.float64)
    y = np.asarray(line.get_ydata(orig=False), dtype=np.float64)
    of_x, of_y = line.get_transform().contains_branch_seperately(ax.transData)
    return (x if of_x else np.asarray(ax.get_xlim())), (y if of_y else np.asarray(ax.get_ylim()))


def _band(corners: npt.ArrayLike, area: Any, ax: Axes) -> Figure:
    x, y = np.asarray(corners, dtype=np.float64).T
    red, green, blue, alpha = area.get_facecolor()[0]
    return {
        "type": "scatter",
        "mode": "lines",
        "fill": "toself",
        **_points(x, y, ax, told=False),
        "line": {"width": 0, "color": _colour((red, green, blue))},
        "fillcolor": _colour((red, green, blue, alpha)),
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _bar(bars: BarContainer, ax: Axes) -> Figure:
    boxes = bars.patches
    centres = np.array([box.get_x() + box.get_width() / 2 for box in boxes])
    heights = np.array([box.get_height() for box in boxes])
    ticks = dict(zip(*_ticks(ax.xaxis), strict=True))
    names = [ticks.get(round(centre), f"{centre:g}") for centre in centres.tolist()]
    return {
        "type": "bar",
        **_named(bars.get_label()),
        "x": _numbers(centres),
        "y": _numbers(heights),
        "base": _numbers([box.get_y() for box in boxes]),
        "width": _numbers([box.get_width() for box in boxes]),
        "marker": {
            "color": _colour(boxes[0].get_facecolor()),
            "pattern": {
                "shape": (boxes[0].get_hatch() or " ")[0].strip(),
                "fillmode": "overlay",
                "fgcolor": "#FFFFFF",
                "size": 7,
            },
        },
        "customdata": names,
        "hovertemplate": "%{customdata}: %{y:,}",
    }


def _add_errors(bars: Figure, errors: Any) -> None:
    """Give the bars that were drawn last their error bars."""
    heights = np.array(bars["y"], dtype=np.float64)
    segments = errors.lines[2][0].get_segments()  # empty where a bar has no ends
    ends = np.array([part[:, 1] if len(part) else (np.nan, np.nan) for part in segments])
    bars["error_y"] = {
        "type": "data",
        "symmetric": False,
        "array": _numbers(ends[:, 1] - heights),
        "arrayminus": _numbers(heights - ends[:, 0]),
        "thickness": 1.3,
        "width": 4,
        "color": "#333333",
    }


def _annotations(ax: Axes) -> list[Figure]:
    """Place texts; of the coordinates of matplotlib, those of data and axes are known."""
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
        found.append(place | align | {"text": _text(text.get_text()), "showarrow": False})
    return found


def _axis(axis: Axis, limits: tuple[float, float]) -> Figure:
    scale = axis.get_scale()
    ends = np.array(limits)
    found: Figure = {"title": {"text": _text(axis.get_label_text())}}
    if scale == "log":
        found |= {"type": "log", "range": np.log10(ends).tolist()}
        return found | ({"dtick": 1} if ends[1] > 30 * ends[0] else {"nticks": 6})
    found |= {"type": "linear", "range": _place(ends, axis).tolist()}
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
    """Give places and names of the ticks within the limits."""
    low, high = sorted(axis.get_view_interval())
    places = [float(place) for place in axis.get_majorticklocs() if low <= place <= high]
    if axis.get_scale() == "symlog":
        return places, [f"{place:,.10g}" for place in places]
    names = axis.get_major_formatter().format_ticks(places)
    return places, [_text(name) for name in names]


def _points(x: FloatArray, y: FloatArray, ax: Axes, *, told: bool = True) -> Figure:
    """Give coordinates; on an axis that plotly.js does not have, with what to tell of them."""
    found: Figure = {"x": _numbers(_place(x, ax.xaxis)), "y": _numbers(_place(y, ax.yaxis))}
    if told and "symlog" in (ax.xaxis.get_scale(), ax.yaxis.get_scale()):
        found["customdata"] = list(zip(_numbers(x), _numbers(y), strict=True))
        found["hovertemplate"] = "(%{customdata[0]:,}, %{customdata[1]:,})"
    return found


def _place(values: FloatArray, axis: Axis) -> FloatArray:
    """Give where values lie on an axis that is linear or logarithmic in plotly.js too."""
    if axis.get_scale() != "symlog":
        return values
    return np.asarray(axis.get_transform().transform(values), dtype=np.float64)


def _join_by_colour(traces: Sequence[Figure]) -> None:
    """Let bands and lines without a name belong to the named line of their colour."""
    groups = {each["line"]["color"]: each["name"] for each in traces if each.get("name")}
    for trace in traces:
        group = trace.get("name") or groups.get(trace["line"]["color"])
        if group is not None:
            trace.update(legendgroup=group, meta=html.unescape(group), name=group)


def _named(label: object) -> Figure:
    name = str(label)
    if name.startswith("_") or not name:  # as matplotlib marks what has no name
        return {"showlegend": False}
    return {"name": _text(name), "legendgroup": _text(name), "meta": html.unescape(_text(name))}


def _text(text: object) -> str:
    r"""Give plain text as plotly.js takes it; of mathematics, names of Greek letters are known."""
    plain = str(text).replace(r"$\delta$", "δ").replace(r"\$", "$").replace("\N{MINUS SIGN}", "-")
    return html.escape(plain, quote=False).replace("\n", "<br>")


def _colour(colour: Any) -> str:
    from matplotlib.colors import to_hex

    full = to_hex(colour, keep_alpha=True)
    return full.removesuffix("ff").upper()


def _numbers(values: npt.ArrayLike) -> list[float | None]:
    numbers = np.asarray(values, dtype=np.float64).tolist()
    return [_short(value) if math.isfinite(value) else None for value in numbers]


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
