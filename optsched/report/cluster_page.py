"""The report on a cluster: one file with a table and interactive plots that needs no network."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

from optsched._version import __version__
from optsched.report.cluster import COLUMNS, cells, lookahead_curve, thinned
from optsched.report.figures import Figure, escaped
from optsched.report.html import page_template
from optsched.report.style import LIMIT, LineStyle, line_styles

if TYPE_CHECKING:
    from optsched.cluster.results import ClusterRun
    from optsched.comparison.cluster import ClusterComparison

MOST_WORKERS = 64  # drawn one by one


def write_cluster_report(
    comparison: ClusterComparison,
    path: str | Path,
    lookaheads: ClusterComparison | None = None,
) -> None:
    """Write runs on a cluster as one self-contained HTML file.

    Parameters
    ----------
    comparison
        The runs; loads are drawn for those that recorded them.
    path
        Where to write it.
    lookaheads
        Runs of BF-IO with several lookaheads, as `compare_lookaheads` makes them.

    Examples
    --------
    >>> import tempfile
    >>> from optsched import Cluster, Instance, compare_cluster
    >>> comparison = compare_cluster(
    ...     Instance([9, 1, 8, 2], [2, 2, 2, 2], 99), Cluster(2, 2), ["fcfs"], record_loads=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_cluster_report(comparison, f"{folder}/report.html")
    ...     Path(folder, "report.html").stat().st_size < 6_000_000
    True
    """
    Path(path).write_text(render_cluster_report(comparison, lookaheads), encoding="utf-8")


def render_cluster_report(
    comparison: ClusterComparison, lookaheads: ClusterComparison | None = None
) -> str:
    """Render runs on a cluster as the text of an HTML file.

    Parameters
    ----------
    comparison, lookaheads
        As in `write_cluster_report`.

    Returns
    -------
    str
        The page, with plotly.js and all data in it.
    """
    from plotly.offline import get_plotlyjs

    content = comparison.to_dict()
    entries = content["policies"]
    first_runs = [runs[0] for runs in comparison.runs.values()]
    recorded = [run for run in first_runs if run.loads is not None]
    top = 1.03 * max((int(run.loads.max()) for run in recorded if run.loads is not None), default=0)
    figures: dict[str, Figure] = {
        f"loads-{number}": _loads(run, style, top)
        for number, (run, style) in enumerate(_styled(recorded))
    }
    figures["power"] = _power(first_runs)
    if lookaheads is not None:
        figures["lookahead"] = _lookahead(lookaheads)
    return page_template("cluster.html.j2").render(
        content=content,
        cluster=str(comparison.cluster),
        title=first_runs[0].instance.name,
        best=min(entries, key=lambda entry: entry["imbalance_tokens"]),
        first=entries[0],
        columns=[title for title, *_ in COLUMNS],
        rows=[(entry, cells(entry)) for entry in entries],
        policies=list(comparison.runs),
        recorded=[run.policy for run in recorded],
        runs=next(iter(comparison.runs.values())),
        figures=figures,
        plotly=get_plotlyjs(),
        version=__version__,
        python=platform.python_version(),
    )


def _styled(runs: list[ClusterRun]) -> list[tuple[ClusterRun, LineStyle]]:
    return list(zip(runs, line_styles(run.policy for run in runs), strict=True))


def _loads(run: ClusterRun, style: LineStyle, top: float) -> Figure:
    assert run.loads is not None
    steps, loads = thinned(run.loads[:, :MOST_WORKERS], 300)
    heaviest = thinned(run.loads.max(axis=1), 300)[1]
    line = {
        "type": "scatter",
        "mode": _mode(len(steps)),
        "x": steps.tolist(),
        "showlegend": False,
        "meta": run.policy,
    }
    traces = [
        line
        | {
            "name": f"worker {worker}",
            "y": loads[:, worker].round().tolist(),
            "line": {"color": style.colour, "width": 0.9},
            "opacity": 0.7,
            "hovertemplate": "%{y:,} tokens at step %{x:,}",
        }
        for worker in range(loads.shape[1])
    ]
    traces.append(
        line
        | {
            "name": "heaviest",
            "y": heaviest.round().tolist(),
            "line": {"color": LIMIT, "width": 1.5},
            "hovertemplate": "%{y:,} tokens at step %{x:,}",
        }
    )
    return {
        "data": traces,
        "layout": {
            "height": 300,
            "meta": {"link": "steps"},
            "xaxis": {"title": {"text": "time (steps)"}},
            "yaxis": {"title": {"text": "load (tokens)"}, "range": [0, top]},
        },
    }


def _mode(points: int) -> str:
    return "lines" if points > 1 else "markers"  # a line of one point would not be seen


def _dash(style: LineStyle) -> str:
    return ",".join(f"{2 * length:g}px" for length in style.dash) or "solid"


def _power(runs: list[ClusterRun]) -> Figure:
    traces = []
    for run, style in _styled(runs):
        steps, watt = thinned(run.watt / run.cluster.workers, 200)
        traces.append(
            {
                "type": "scatter",
                "mode": _mode(len(steps)),
                "name": escaped(run.policy),
                "meta": run.policy,
                "x": run.clock[steps].round(2).tolist(),
                "y": watt.round(1).tolist(),
                "line": {"color": style.colour, "dash": _dash(style), "width": 1.6},
                "hovertemplate": "%{y:.0f} W at %{x:.1f} s",
            }
        )
    layout = {
        "xaxis": {"title": {"text": "time (s)"}},
        "yaxis": {"title": {"text": "mean power of a worker (W)"}},
    }
    return {"data": traces, "layout": layout}


def _lookahead(comparison: ClusterComparison) -> Figure:
    windows, means, _, _ = lookahead_curve(comparison)
    names = [f"{window:g}" for window in windows]
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "bf-io",
            "meta": "bf-io",
            "x": names,
            "y": means.round(4).tolist(),
            "line": {"color": line_styles(["bf-io"])[0].colour, "width": 1.8},
            "hovertemplate": "%{y:.2f} ms at H = %{x}<extra></extra>",
        }
    ]
    others = [policy for policy, runs in comparison.runs.items() if runs[0].lookahead is None]
    for policy, style in zip(others, line_styles(others), strict=True):
        level = round(comparison.mean("imbalance_ms", policy).mean, 4)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": escaped(policy),
                "meta": policy,
                "x": names,
                "y": [level] * len(names),
                "line": {"color": style.colour, "dash": _dash(style), "width": 1.2},
                "hovertemplate": "%{y:.2f} ms<extra></extra>",
            }
        )
    layout = {
        "xaxis": {"title": {"text": "lookahead H (steps)"}, "type": "category"},
        "yaxis": {"title": {"text": "imbalance (ms idle per step)"}, "type": "log"},
    }
    return {"data": traces, "layout": layout}
