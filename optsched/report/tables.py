"""Tables of results, for the terminal, notebooks and pages; bounds rounded down, gaps up."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

from optsched._internal.numbers import ConfidenceInterval, down, interval, number, proven
from optsched._internal.numbers import at_least as at_least
from optsched._internal.numbers import percent as percent
from optsched.policies import POLICIES
from optsched.problem.forecasts import described

if TYPE_CHECKING:
    from optsched.experiments.comparison import Replications
    from optsched.experiments.regret import Band, Regret
    from optsched.experiments.results import ClockComparison, ClusterComparison, StepComparison
    from optsched.experiments.sweep import Sweep
    from optsched.optimum.gap import GapExplanation
    from optsched.optimum.routing import RoutingLoss


REFERENCE = "reference"
_MOST_BLAMED = 100  # requests


Cell = tuple[object, str]  # a value, and how it is written


class Row(NamedTuple):
    """A row: its name, and the value and the text of each of its cells."""

    name: str
    cells: list[Cell]
    mark: str = ""  # of the best, and of references
    note: str = ""  # below the name on a page

    @property
    def best(self) -> bool:
        """Whether the row is marked as the best one."""
        return self.mark not in ("", REFERENCE)

    @property
    def title(self) -> str:
        """The name with its mark."""
        return f"{self.name} ({self.mark})" if self.mark else self.name


@dataclass(frozen=True)
class Table:
    """Rows under the titles of their columns, the first of which holds their names."""

    columns: Sequence[str]  # empty where there are no titles
    rows: list[Row]
    caption: str = ""
    footer: Sequence[str] = ()
    width: int = 110  # of the terminal, in characters
    words: Sequence[int] = (0,)  # columns that are not numbers


# Title, key in the entry of a policy, and how a value is written.
_Columns = Sequence[tuple[str, str, Callable[[Any], str]]]
_RUN_TIME = ("run time, s", "seconds", "{:.3f}".format)  # of this machine, no latency
_DEADLINES = ("deadlines met", "met_deadlines", "{:,}".format)
_ATTAINED = ("within SLO", "attained", lambda share: f"{proven(100 * share, decimals=1)}%")
_KNOWS = ("knows", "knows", str)
_STEPS: _Columns = (
    _KNOWS,
    ("total latency", "total_latency", "{:,}".format),
    ("gap", "gap", percent),
    ("mean", "mean_latency", "{:,.1f}".format),
    *((tail, f"{tail}_latency", "{:,.0f}".format) for tail in ("p50", "p90", "p99")),
    ("mean TTFT", "mean_ttft", "{:,.1f}".format),
    ("makespan", "makespan", "{:,}".format),
    ("waited", "waited", "{:,}".format),
    ("peak memory", "peak_memory", "{:,}".format),
    ("utilisation", "utilisation", "{:.1%}".format),
    ("preempted", "preemptions", "{:,}".format),
    _DEADLINES,
    _ATTAINED,
    _RUN_TIME,
)


# Shown where some policy has some.
_WHERE_ANY = {"preemptions", "unfinished", "hinge_time", "running", "waiting", "tokens_waiting"}
_PARTS = ("prefill_time", "decode_time", "constant_time", "hinge_time")
_CLOCK: _Columns = (
    _KNOWS,
    ("mean", "mean_latency", number),
    ("gap", "gap", percent),
    ("p50", "p50_latency", number),
    ("p99", "p99_latency", number),
    ("TTFT", "mean_ttft", number),
    ("TPOT", "mean_tpot", number),
    ("tokens/{unit}", "throughput", number),
    *((part.removesuffix("_time"), part, number) for part in _PARTS),
    ("peak memory", "peak_memory", "{:,}".format),
    ("preempted", "preemptions", "{:,}".format),
    ("unfinished", "unfinished", "{:,}".format),
    _DEADLINES,
    _ATTAINED,
    _RUN_TIME,
)
_CLUSTER: _Columns = (
    _KNOWS,
    ("imbalance, tokens", "imbalance_tokens", "{:,.0f}".format),
    ("imbalance, ms", "imbalance_ms", "{:,.2f}".format),
    ("idle", "idle_share", "{:.1%}".format),
    ("tokens/s", "throughput", "{:,.0f}".format),
    ("TPOT, ms", "tpot", lambda seconds: f"{1e3 * seconds:,.2f}"),
    ("energy, kJ", "energy_joule", lambda joule: f"{1e-3 * joule:,.1f}"),
    *((count, count, "{:,.0f}".format) for count in ("completed", "running", "waiting")),
    ("tokens waiting", "tokens_waiting", "{:,.0f}".format),
    ("max wait", "max_wait_steps", "{:,.0f}".format),
    *((count, count, "{:,.0f}".format) for count in ("stuck", "missed")),
)
_ROUTED: _Columns = (
    *((tail, f"{tail}_latency", number) for tail in ("p50", "p90", "p99")),
    *((time, f"mean_{time.lower()}", number) for time in ("TTFT", "TPOT")),
)
_BLAMED: _Columns = (
    *((number, number, "{:,}".format) for number in ("prompt", "output", "arrival", "start")),
    ("order regret", "regret", "{:,.1f}".format),
    ("share of the gap", "share", "{:.1%}".format),
)


def _cells(entry: Mapping[str, Any], columns: _Columns) -> list[Cell]:
    return [
        (entry[key], "-" if entry[key] is None else write(entry[key])) for _, key, write in columns
    ]


def _policies(
    comparison: StepComparison | ClockComparison | ClusterComparison,
    columns: _Columns,
    caption: str,
    *,
    hidden: Iterable[str] = (),
    footer: Mapping[str, str] | None = None,
    best: str = "best",
    width: int = 160,
) -> Table:
    """Return a row per policy, the best first: on a cluster that of least imbalance."""
    entries = {entry["policy"]: entry for entry in comparison.to_dict()["policies"]}
    names, references = [run.policy for run in comparison.ranked()], comparison.references
    marked = [run.policy for run in comparison.tied] if comparison.comparable else []
    if best != "best":
        names.sort(key=lambda name: entries[name][best])
        marked = [name for name in names if entries[name][best] == entries[names[0]][best]]
        best = f"least {best.split('_')[0]}"
    elif len(marked) > 1:
        best = "tied"
    empty = {key for key in _WHERE_ANY if not any(entry.get(key) for entry in entries.values())}
    left_out = {*hidden, *empty}
    shown = [each for each in columns if each[1] in entries[names[0]] and each[1] not in left_out]
    told = {name for name in names if entries[name]["knows"] == "outputs"}
    able = [name for name in names if name not in told] if marked and told else []
    rows = []
    for name in names:
        mark = REFERENCE if name in references else best if name in marked else ""
        if able and mark == "best" and name in told:
            mark = "best, told outputs"
        elif name in able[:1] and not mark:
            mark = "best deployable"
        note = POLICIES[name].description if name in POLICIES else ""
        rows.append(Row(name, _cells(entries[name], shown), mark, note))
    if footer and (most := comparison.attained_bound[0]) is not None:
        footer = {**footer, "attained": percent(most)}
    bounds = ["proven bound", *(footer.get(key, "") for _, key, _ in shown)] if footer else ()
    titles = ["policy", *(title for title, *_ in shown)]
    return Table(titles, rows, caption, bounds, width, words=(0, 1))


def _remarks(comparison: StepComparison | ClockComparison) -> str:
    intervals = comparison.intervals
    known = f"; outputs known as {described(comparison.instance, intervals)}" if intervals else ""
    reference = "; a reference knows the outputs" if comparison.references else ""
    count = f"; deadlines met of {len(comparison.instance):,}"
    lost = "".join(f"; {run.policy}: {run.fell_back}" for run in comparison if run.fell_back)
    due = "" if comparison.instance.deadlines is None else count
    knows = "; knows: what a policy is told of the output of a request before it completes"
    return known + knows + reference + due + lost


def _by_objective(comparison: StepComparison | ClockComparison, columns: _Columns) -> _Columns:
    """Begin with the objective and its gap, where it is not the total latency."""
    if comparison.objective == "total-latency":
        return columns
    metric, (gap,) = comparison.metric, [each for each in columns if each[1] == "gap"]
    rest = [each for each in columns[1:] if each[1] not in (metric, "gap")]
    return [columns[0], (metric.replace("_", " "), metric, number), gap, *rest]


def comparison_table(comparison: StepComparison, *, page: bool = False) -> Table:
    """Return a row per policy, and the bound; a page has room for more columns."""
    bound, total = comparison.bounds[0], comparison.objective == "total-latency"
    what = "total" if total else comparison.metric.replace("_", " ")
    caption = f"latency in steps; gap = ({what} - bound) / {what}; bound: {bound.method}"
    footer = {comparison.metric: at_least(bound.value), "seconds": f"{bound.seconds:.3f}"}
    if total:
        footer["mean_latency"] = at_least(Fraction(bound.value) / len(comparison.instance))
        footer["total_latency"] = at_least(bound.value)
    return _policies(
        comparison,
        _by_objective(comparison, _STEPS),
        caption + _remarks(comparison),
        hidden=() if page else ("p90_latency", "mean_ttft", "waited", "utilisation"),
        footer=footer,
        width=150,
    )


def clock_table(comparison: ClockComparison) -> Table:
    """Return a row per policy on a clock."""
    clock, bound = comparison.clock, comparison.bound
    hidden = [*(() if bound else ("gap",)), *(_PARTS if clock.coefficients is None else ())]
    footer, proof = {}, ""
    if clock.coefficients is None:
        proof = (
            "; no bound, as the clock is a function: a LinearClock never above it would have one"
        )
    if bound is not None:
        total = comparison.objective == "total-latency"
        least = Fraction(bound.value) / (len(comparison.instance) if total else 1)
        footer = {comparison.metric: proven(least, digits=4)}
        what = "mean" if total else comparison.measure
        alone = ", of latency alone" if total else ""
        proof = f"; gap = ({what} - bound) / {what}{alone}; bound: {bound.method}"
    unit = clock.unit.removesuffix("s") or "s"
    columns = [(title.format(unit=unit), key, write) for title, key, write in _CLOCK]
    return _policies(
        comparison,
        _by_objective(comparison, columns),
        f"latency, TTFT and TPOT in {clock.unit} on the clock {clock.name}{proof}; TTFT and TPOT "
        f"are measured and have no bound; prefill, decode, constant: {clock.unit} of all batches; "
        f"run time: to simulate{_remarks(comparison)}",
        hidden=hidden,
        footer=footer,
    )


def cluster_table(comparison: ClusterComparison) -> Table:
    """Return a row per policy on a cluster, that of least imbalance first."""
    count = len(next(iter(comparison.runs.values())))
    traces = "" if count == 1 else f"; means over {count} traces, largest wait and stuck"
    return _policies(comparison, _CLUSTER, f"{comparison.cluster}{traces}", best="imbalance_tokens")


def means_table(result: Replications | Sweep) -> Table:
    """Return the means of several instances or of a sweep, with their intervals."""
    entries = result.means
    shown = [key for key in entries[0] if any(entry[key] not in (None, 0) for entry in entries)]
    rows = []
    for entry in entries:
        name = str(entry["policy"])
        mark = "best" if getattr(result, "best", None) == name else ""
        rows.append(Row(name, [_mean(key, entry[key]) for key in shown if key != "policy"], mark))
    titles = [key.replace("_", " ") for key in shown if key != "policy"]
    return Table(["policy", *titles], rows, result.caption, width=130)


def _mean(key: str, value: Any) -> Cell:
    if value is None:
        return None, "-"
    if isinstance(value, Mapping):
        ends = [math.inf if value[end] is None else value[end] for end in ("low", "high")]
        return value["mean"], str(ConfidenceInterval(value["mean"], *ends))
    if key in ("gap", "largest_gap"):
        return value, percent(value)
    return value, f"{value:,}" if isinstance(value, int) else str(value)


def regret_table(result: Regret) -> Table:
    """Return the intervals of all policies, loads and horizons, rounded outwards."""
    bands = result.bands()
    least, seeds = min(band.seeds for band in bands), max(band.seeds for band in bands)
    of = f"{least} to {seeds}" if least < seeds else f"{seeds}"
    numbers = [regret_cells(band) for band in bands]
    return Table(
        ["policy", *numbers[0]],
        [Row(band.policy, list(row.values())) for band, row in zip(bands, numbers, strict=True)],
        f"regret: mean latency minus the least possible, in {result.unit} per request, from the "
        f"best schedule known to the proven bound; mean over {of} instance{'s' * (seeds > 1)}; "
        f"confidence {result.confidence:.0%}; knows: what is told of an output before it ends",
        width=140,
    )


def routing_table(result: RoutingLoss) -> Table:
    """Return the losses of all routers and policies, the least first."""
    entries, timed = sorted(result.losses, key=lambda each: each.cost), result.unit == "s"
    rows = []
    for each in entries:
        told, mean = each.run.knows, each.run.mean_latency
        cells: list[Cell] = [(told, str(told)), (mean, number(mean))]
        for part in (each.loss,) if timed else (each.loss, each.placement, each.order):
            cells.append((None, "") if part is None else (part.high, str(part)))
        cells += _cells(each.run.metrics(), _ROUTED) if timed else []
        least = math.isclose(each.cost, entries[0].cost, rel_tol=1e-9)
        rows.append(Row(f"{each.run.router}, {each.run.policy}", cells, "least" if least else ""))
    rest = [title for title, *_ in _ROUTED] if timed else ["placement", "order"]
    said = "" if timed else "; loss = placement + order, placement first"
    return Table(
        ["router, policy", "knows", "mean latency", "loss", *rest],
        rows,
        f"latency in {result.unit}; loss against the best placement and order, as a share of the "
        f"own latency: from the best schedule known to the proven bound{said}",
        width=130,
        words=(0, 1),
    )


def regret_cells(band: Band) -> dict[str, Cell]:
    """Return the value and text of each number of a band, by column title."""
    return {
        "knows": (band.knows, band.knows or "-"),
        "load": (band.load, f"{band.load:g}"),
        "horizon": (band.horizon, f"{band.horizon:,}"),
        "requests": (band.requests, f"{band.requests:,.0f}"),
        "mean latency": (band.mean_latency, f"{band.mean_latency:,.2f}"),
        "regret": (band.high, interval(band.low, band.high)),
        "confidence": (band.ceiling, interval(band.floor, band.ceiling)),
        "ratio": (band.ratio_high, interval(band.ratio_low, band.ratio_high)),
        "worst ratio": (band.worst_ratio, down(band.worst_ratio)),
    }


def blame_table(explanation: GapExplanation) -> Table:
    """Return the requests whose starts carry most of a gap."""
    rows = [Row(row["request"], _cells(row, _BLAMED)) for row in explanation.rows(_MOST_BLAMED)]
    return Table(("request", *(title for title, *_ in _BLAMED)), rows)


def facts_table(result: Any) -> Table:
    """Return the numbers and words of a result's `to_dict()`, or of a mapping, as two columns."""
    facts = result if isinstance(result, Mapping) else result.to_dict()
    rows = [
        Row(name.replace("_", " "), [(value, _fact(name, value, facts))])
        for name, value in facts.items()
        if isinstance(value, str | Real)
    ]
    return Table((), rows)


def lines_table(lines: Sequence[Sequence[str]]) -> Table:
    """Return words line by line as a table without titles."""
    rows = [Row(name, [(None, cell) for cell in cells]) for name, *cells in lines]
    return Table((), rows, words=range(max(map(len, lines))))


def _fact(name: str, value: Any, facts: Mapping[str, Any]) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    amount = float(value)
    if name == "gap" and math.isfinite(amount):
        return percent(amount)
    if isinstance(value, Integral) or not math.isfinite(amount):
        return f"{value:,}"
    if name == "bound":
        objective = facts.get("objective")
        above = isinstance(objective, Real) and amount > objective  # of what is maximised
        return proven(amount, up=above)
    return number(amount, 6)


def to_text(table: Table) -> str:
    """Return a table as plain text, without colours or trailing blanks."""
    from rich import box, console, text
    from rich.table import Table as Drawing

    drawing = Drawing(
        box=box.SIMPLE_HEAD,
        caption=table.caption or None,
        caption_justify="left",
        collapse_padding=True,
        show_header=bool(table.columns),
        show_footer=bool(table.footer),
    )
    for column in range(1 + len(table.rows[0].cells)):
        # Long names and titles take a second line, so that no number is cut.
        drawing.add_column(
            table.columns[column] if table.columns else "",
            table.footer[column] if table.footer else "",
            justify="left" if column in table.words else "right",
            overflow="fold",
            min_width=0 if column else 10,
        )
    for row in table.rows:  # a name of the user's is not markup
        if row.mark == REFERENCE and drawing.rows:
            drawing.rows[-1].end_section = True
        drawing.add_row(text.Text(row.title), *(text.Text(each) for _, each in row.cells))
    screen = console.Console(
        file=io.StringIO(), width=table.width, color_system=None, force_jupyter=False
    )
    with screen.capture() as capture:
        screen.print(drawing)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def to_html(table: Table) -> str:
    """Return a table as HTML, for a page with a look of its own, such as a notebook."""

    def line(texts: Sequence[str], tag: str, look: str = "") -> str:
        cells = (
            f'<{tag} style="text-align: {"left" if column in table.words else "right"}{look}">'
            f"{html.escape(text)}</{tag}>"
            for column, text in enumerate(texts)
        )
        return f"<tr>{''.join(cells)}</tr>"

    parts = ["<table>"]
    if table.caption:
        look = "caption-side: bottom; text-align: left"
        parts.append(f'<caption style="{look}">{html.escape(table.caption)}</caption>')
    if table.columns:
        parts.append(f"<thead>{line(table.columns, 'th')}</thead>")
    parts.append("<tbody>")
    for row in table.rows:
        texts = [row.title, *(text for _, text in row.cells)]
        parts.append(line(texts, "td", "; font-weight: bold" if row.best else ""))
    parts.append("</tbody>")
    if table.footer:
        parts.append(f"<tfoot>{line(table.footer, 'td')}</tfoot>")
    return "".join([*parts, "</table>"])
