"""The HTML report: one file with a table and interactive plots that needs no network."""

from __future__ import annotations

import json
import platform
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from optsched._version import __version__
from optsched.policies import POLICIES
from optsched.report import data
from optsched.report.figures import ROWS, make_figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2 import Template
    from markupsafe import Markup

    from optsched.comparison.steps import Comparison


def write_report(comparison: Comparison, path: str | Path) -> None:
    """Write a comparison as one self-contained HTML file.

    Parameters
    ----------
    comparison
        Schedules and the bound.
    path
        Where to write it.

    Examples
    --------
    >>> import tempfile
    >>> from optsched import Instance, compare
    >>> comparison = compare(Instance([63] + 21 * [1], [1] + 21 * [2], memory=64))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(comparison, f"{folder}/report.html")
    ...     Path(folder, "report.html").stat().st_size < 6_000_000
    True
    """
    Path(path).write_text(render_report(comparison), encoding="utf-8")


def render_report(comparison: Comparison) -> str:
    """Render a comparison as the text of an HTML file.

    Parameters
    ----------
    comparison
        Schedules and the bound.

    Returns
    -------
    str
        The page, with plotly.js and all data in it.

    Examples
    --------
    >>> from optsched import Instance, compare
    >>> page = render_report(compare(Instance([1], [2], memory=3, name="a < b")))
    >>> page.count("<table"), "a &lt; b" in page
    (1, True)
    """
    from plotly.offline import get_plotlyjs

    return page_template("report.html.j2").render(
        comparison=comparison,
        content=comparison.to_dict(),
        instance=comparison.instance,
        bound=comparison.bound,
        policies=[schedule.policy for schedule in comparison.schedules],
        best=comparison.best,
        optimal=data.proven_optimal(comparison),
        titles={name: policy.title for name, policy in POLICIES.items()},
        unit=data.step_unit(comparison.instance),
        stacked=len(comparison.instance) <= data.MOST_STACKED,
        rows=min(len(comparison.instance), ROWS),
        figures=make_figures(comparison),
        plotly=get_plotlyjs(),
        version=__version__,
        python=platform.python_version(),
    )


@cache
def page_template(name: str, folder: str = "report") -> Template:
    """Load a template of a page, which may extend those of the reports."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    places = [PackageLoader("optsched", place) for place in (folder, "report")]
    environment = Environment(
        loader=ChoiceLoader(places), autoescape=True, undefined=StrictUndefined
    )
    filters: dict[str, Callable[..., str]] = {
        "percent": data.percent,
        "at_least": data.at_least,
        "mean": lambda value: f"{value:,.0f}" if value >= 1e4 else f"{value:,.1f}",
        "short": lambda value: "" if value is None else f"{value:,.5g}",
        "json": _json,
        "code": _code,
    }
    environment.filters.update(filters)
    environment.trim_blocks = environment.lstrip_blocks = True
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
