"""Table, plots and page of how many workers are needed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from optsched._internal.numbers import number, proven
from optsched.report import style as common
from optsched.report.pages import drawn_for, page_of
from optsched.report.style import finish, hover, line_of, line_styles, prepare
from optsched.report.tables import Row, Table
from optsched_serving.capacity.slo import as_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from optsched.report.style import LineStyle
    from optsched_serving.capacity.bounds import CapacityPlan
    from optsched_serving.capacity.capacity import Capacity
    from optsched_serving.capacity.slo import Slo

#: Numbers of workers that are proven to be too few; shows through to any background.
_REFUTED: dict[str, Any] = {"color": common.VERMILLION, "alpha": 0.18, "linewidth": 0}


def capacity_table(result: Capacity) -> Table:
    """Return the workers that each plan needs, the fewest first."""
    rows = []
    plans = sorted(result.plans, key=lambda plan: plan.workers or math.inf)
    runs = max((each.runs for plan in plans for each in plan.attempts.values()), default=1)
    for plan in plans:
        count, met = plan.workers, plan.reached
        short = plan.attempts.get((count or 0) - 1)
        least = plan.least(result.slos)
        cells: list[tuple[Any, str]] = [
            (None, plan.knows),
            (count, f"{count:,}" if count else "none"),
            (None, plan.binds),
            (None, as_percent(met.attained) if met else ""),
            (None, as_percent(short.attained) if short else ""),
            (None, ", ".join(_limits(slo) for slo in least)),
        ]
        if result.cost is not None:
            cells.append((plan.cost, "" if plan.cost is None else proven(plan.cost, up=True)))
        if runs > 1:
            held = f"{short.held if short else 0} of {runs}" if met else ""
            cells.append((None, held))
        fewest = "fewest" if plan is next(filter(None, result.best), None) else ""
        rows.append(Row(f"{plan.router}, {plan.policy}", cells, fewest))
    titles = ["router, policy", "knows", "workers", "binds", "attained", "with one less"]
    titles += ["least limit"] + ["cost per hour"] * (result.cost is not None)
    titles += ["runs that hold with one less"] * (runs > 1)
    anyone = "" if result.at_least is None else f"; any scheduler needs {result.at_least:,}"
    return Table(
        titles,
        rows or [Row("no plan", [(None, "")] * (len(titles) - 1))],
        f"fewest workers for {' and '.join(map(str, result.slos))}{anyone}; knows: what is told of "
        "outputs; attained: the share of requests within the limits, or the limit over the mean; "
        "least limit: the smallest that these workers meet",
        width=130,
        words=(0, 1, 3),
    )


def _limits(slo: Slo) -> str:
    return " & ".join(f"{number(limit, 6)} {slo.unit}" for limit in slo.limits.values())


def _looks(plans: Sequence[CapacityPlan]) -> list[tuple[str, LineStyle]]:
    """Return names and looks of plans: the policy's own, where it is there with one router."""
    routers = {plan.router for plan in plans}
    names = [p.policy if len(routers) == 1 else f"{p.policy}, {p.router}" for p in plans]
    return list(zip(names, line_styles(names), strict=True))


def plot_attainment(result: Capacity, ax: Axes | None = None) -> Axes:
    """Plot what plans attain with each number of workers, and how many are proven too few."""
    ax = prepare(ax)
    last = max((max(plan.attempts) for plan in result.plans if plan.attempts), default=2)
    for plan, (name, look) in zip(result.plans, _looks(result.plans), strict=True):
        counts = list(plan.attempts)
        shares = [100 * plan.attempts[count].attained for count in counts]
        (line,) = ax.plot(counts, shares, marker=look.marker, label=name, **line_of(look))
        hover(
            line, [f"{name}: {c:,} workers, {s:.2f} %" for c, s in zip(counts, shares, strict=True)]
        )
        if plan.workers is not None:
            at = 100 * plan.attempts[plan.workers].attained
            ax.plot([plan.workers], [at], "o", color=look.colour, markersize=10, fillstyle="none")
    wanted = {slo.share for slo in result.slos if slo.share is not None}
    if len(wanted) == 1:
        ax.axhline(100 * float(*wanted), label="target", **common.REFERENCE)
    low, high = ax.get_ylim()
    if result.at_least is not None and result.at_least > 1:
        few = [0.5, result.at_least - 0.5]
        ax.fill_between(few, low, high, label="proven too few", zorder=0, **_REFUTED)
    ax.set(xlim=(0.5, last + 0.5), ylim=(low, high))
    return finish(ax, "workers", "attained (%)", counts="x")


def plot_growth(result: Capacity, ax: Axes | None = None) -> Axes:
    """Plot the workers that plans need against the load, and how many are proven too few."""
    ax = prepare(ax)
    every = dict(sorted({1.0: result, **result.loads}.items()))
    loads = list(every)
    least = [each.at_least or 0 for each in every.values()]
    ax.fill_between(loads, 0, least, label="proven too few", **_REFUTED)
    ax.plot(loads, least, color=common.LIMIT, linewidth=1)
    for row, (name, look) in enumerate(_looks(result.plans)):
        pairs = [
            (load, each.plans[row].workers)
            for load, each in every.items()
            if row < len(each.plans) and each.plans[row].workers
        ]
        if pairs:
            ax.plot(*zip(*pairs, strict=True), marker=look.marker, label=name, **line_of(look))
    ax.set_ylim(bottom=0)
    return finish(ax, "load (requests per second, relative to the trace)", "workers", counts="y")


def capacity_page(result: Capacity) -> str:
    """Return the page of how many workers are needed."""
    figures = {"attainment": drawn_for([], plot_attainment, result)} if result.plans else {}
    if result.loads:
        figures["growth"] = drawn_for([], plot_growth, result)
    return page_of("capacity", result, capacity_table(result), figures)
