"""The page on regret: one file with intervals, ratios and a table that needs no network."""

from __future__ import annotations

import math
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from optsched._version import __version__
from optsched.report.figures import Figure, escaped
from optsched.report.html import page_template
from optsched.report.regret import COLUMNS, cells
from optsched.report.style import LineStyle, line_styles

if TYPE_CHECKING:
    from optsched.experiments.regrets import Regret
    from optsched.experiments.regrets.result import Band


def write_regret_report(result: Regret, path: str | Path) -> None:
    """Write regret as one self-contained HTML file.

    Parameters
    ----------
    result
        What was found.
    path
        Where to write it.
    """
    Path(path).write_text(render_regret_report(result), encoding="utf-8")


def render_regret_report(result: Regret) -> str:
    """Render regret as the text of an HTML file.

    Parameters
    ----------
    result
        What was found.

    Returns
    -------
    str
        The page, with plotly.js and all data in it.

    Examples
    --------
    >>> import optsched
    >>> result = optsched.regret("family:equal-prompts", ["area"], [0.5], [50, 100], seeds=2)
    >>> page = render_regret_report(result)
    >>> page.count("<table"), "bounded" in page
    (1, True)
    """
    from plotly.offline import get_plotlyjs

    figures: dict[str, Figure] = {}
    for place, load in enumerate(result.loads):
        figures[f"regret-{place}"] = _intervals(
            result, load, "regret (steps per request)", ("low", "high"), ("floor", "ceiling")
        )
        figures[f"ratio-{place}"] = _intervals(
            result, load, "latency over the least possible", ("ratio_low", "ratio_high")
        )
    return page_template("regret.html.j2").render(
        result=result,
        content=result.to_dict(),
        policies=result.policies,
        loads=result.loads,
        growths=[(policy, f"{load:g}", growth) for policy, load, growth in result.growths()],
        columns=COLUMNS,
        rows=[(band, cells(band)) for band in result.bands()],
        seeds=max(band.seeds for band in result.bands()),
        figures=figures,
        plotly=get_plotlyjs(),
        version=__version__,
        python=platform.python_version(),
    )


def _intervals(
    result: Regret,
    load: float,
    title: str,
    ends: tuple[str, str],
    limits: tuple[str, str] | None = None,
) -> Figure:
    horizons = result.horizons(load)
    traces = []
    for policy, style in zip(result.policies, line_styles(result.policies), strict=True):
        bands = [result.band(policy, load, horizon) for horizon in horizons]
        for end, filled in zip(ends, (False, True), strict=True):
            limit = limits[filled] if limits else None
            traces.append(_line(policy, style, bands, end, limit, filled=filled))
    layout = {
        "meta": {"link": "horizon"},
        "xaxis": {
            "title": {"text": "horizon (steps)"},
            "type": "log",
            "tickvals": horizons,
            "ticktext": [f"{horizon:,}" for horizon in horizons],
        },
        "yaxis": {"title": {"text": title}, "rangemode": "tozero" if limits else "normal"},
    }
    return {"data": traces, "layout": layout}


def _line(
    policy: str,
    style: LineStyle,
    bands: list[Band],
    end: str,
    limit: str | None,
    *,
    filled: bool,
) -> Figure:
    trace: Figure = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escaped(policy),
        "meta": policy,
        "showlegend": filled,
        "x": [band.horizon for band in bands],
        "y": [getattr(band, end) for band in bands],
        "line": {
            "color": style.colour,
            "width": 1.6,
            "dash": ",".join(f"{2 * length:g}px" for length in style.dash) or "solid",
        },
        "marker": {"symbol": "circle" if filled else "circle-open", "size": 8},
        "hovertemplate": f"{'at most' if filled else 'at least'} %{{y:.4g}} at T = %{{x:,}}",
    }
    if filled:  # the interval, down to the line before
        trace |= {"fill": "tonexty", "fillcolor": style.colour + "30"}
    if limit is not None:
        beyond = [abs(getattr(band, limit) - getattr(band, end)) for band in bands]
        spread = [length if math.isfinite(length) else 0 for length in beyond]
        nothing = [0] * len(bands)
        trace["error_y"] = {
            "type": "data",
            "array": spread if filled else nothing,
            "arrayminus": nothing if filled else spread,
            "symmetric": False,
            "thickness": 1,
            "width": 3,
            "color": style.colour,
        }
    return trace
