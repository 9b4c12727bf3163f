"""One look for all plots. Step t is drawn from t - 1 to t; more keywords go to `Axes.set`."""

from __future__ import annotations

import platform
import re
import shlex
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np

from optsched._internal.imports import data_frame
from optsched._internal.numbers import ConfidenceInterval, number
from optsched._version import __version__
from optsched.errors import InstanceError, OptschedError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.container import Container
    from matplotlib.figure import Figure

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.experiments.comparison import Replications
    from optsched.experiments.results import ClusterComparison
    from optsched.experiments.side_by_side import Comparison
    from optsched.experiments.sweep import Sweep
    from optsched.optimum.gap import GapExplanation
    from optsched.problem.instance import Instance
    from optsched.problem.schedule import Schedule
    from optsched.simulate.seconds.execution import ClockedRun


class _OfPolicy(Protocol):
    @property
    def policy(self) -> str: ...


Run = TypeVar("Run", bound=_OfPolicy)

# Each has 3:1 against white and against the dark background of pages. To normal eyes and to those
# without red, green or blue cones, any two are further apart than Okabe and Ito's are.
BLUE, ORANGE, GREEN, VERMILLION = "#1C68A8", "#E06C08", "#7C9870", "#C4380C"
PURPLE, SKY, WINE, VIOLET = "#B478B8", "#0098F8", "#985064", "#8838EC"
COLOURS = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, WINE, VIOLET)

UNAVOIDABLE = "#8C8C8C"  # what the bound proves that no schedule can save
LIMIT = "#5C5C5C"  # the memory limit

DASHED = (0, (4, 2))

#: Looks of a line that others are compared with.
REFERENCE: dict[str, Any] = {"color": LIMIT, "linewidth": 1, "linestyle": DASHED}

_NAMED = 3  # traces in a foot
TEXT_SIZE = 9  # points
_LEGEND: dict[str, Any] = {
    "frameon": False,
    "fontsize": TEXT_SIZE,
    "handlelength": 2.8,
    "title_fontsize": TEXT_SIZE + 1,
    "alignment": "left",
}
_MILLIONS = 2e6  # from which on counts are written in millions


@dataclass(frozen=True)
class LineStyle:
    """How a policy looks in every plot; dash and marker tell policies apart in grey print."""

    colour: str  # "#rrggbb"
    dash: tuple[float, ...]  # lengths of dashes and gaps in points; empty for a solid line
    marker: str

    @property
    def tint(self) -> str:
        """The colour mixed with white, for what stands next to the full colour."""
        parts = (int(self.colour[at : at + 2], 16) for at in (1, 3, 5))
        return "#" + "".join(f"{round(part + 0.55 * (255 - part)):02x}" for part in parts)


# A row for policies that meet, a column for each colour: in a column shades are alike, but dashes
# and markers differ.
_POLICIES = (
    "area mc-sf mc-sf-total fcfs sorted-f rolling work area+window",
    "sorted-f-mip sorted-f-scaled-dp sorted-f-dp sorted-f-mip-profile - sorted-f-quantile "
    "sorted-lp lp-swap",
    "- largest sarathi vllm-v0 vllm mixed wait nested-wait",
    "work-posterior - a-switch - a-l a-random a-double a-min-overcommit",
    "a-max-random a-min h-sf a-max area-lower area-posterior area-chance work-chance",
    "bf-io round-robin lpt - jsq power-of-d alpha-greedy alpha-beta-clearing",
    "- - - - - edf least-slack tardiness",
)
_SHADES = (
    COLOURS,
    ("#307098", "#FC5430", "#848478", "#CC0424", "#B484B0", "#708CFC", "#7C6068", "#7C54DC"),
    ("#007894", "#E0600C", "#6C8C7C", "#B83820", "#C468C4", "#6490F0", "#A04C70", "#7C34F0"),
    ("#006C9C", "#D47400", "#808C70", "#B44000", "#B870C4", "#388CFC", "#786058", "#8448E4"),
    ("#4864A8", "#EC6414", "#689470", "#C82410", "#C474BC", "#4494F8", "#8C5864", "#8C10FC"),
    ("#38689C", "#FC601C", "#749C64", "#C04800", "#C07CB4", "#588CFC", "#88605C", "#8830FC"),
    (*COLOURS[:5], "#688CF8", "#646850", "#945460"),
)
#: Of all others: shades that no policy of ours has, each with the column that it is like.
_OWN = {
    **{"#C00CC0": 7, "#B484B0": 4, "#B44000": 3, "#D47400": 1},
    **{"#0C98F0": 5, "#945468": 6, "#78986C": 2, "#007894": 0},
}
_PLACES = {
    name: (row, column)
    for row, names in enumerate(_POLICIES)
    for column, name in enumerate(names.split())
}
_DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (3.5, 1.5),
    (7, 2, 1.5, 2),
    (1.5, 1.5),
    (7, 2),
    (9, 2, 2, 2, 2, 2),
    (2, 3.5),
    (10, 2, 4, 2),
)
_MARKERS = "oD^vsPX*"


def line_styles(policies: Iterable[str]) -> list[LineStyle]:
    """Choose looks for policies that appear together; new ones avoid the looks of known ones."""
    names = list(policies)
    places = {name: _PLACES[name] for name in names if name in _PLACES}
    for name in names:  # a policy with parameters looks like itself, unless that is there too
        place = _PLACES.get(re.split("[+:, ]", name)[0])
        if name not in places and place is not None and place not in places.values():
            places[name] = place
    looks = {name: _look(_SHADES[row][at], row + at) for name, (row, at) in places.items()}
    taken = {column for _, column in places.values()}
    shades = [shade for shade, column in _OWN.items() if column not in taken] or list(_OWN)
    used = {sum(place) % len(_DASHES) for place in places.values()}
    marks = [mark for mark in range(len(_DASHES)) if mark not in used] or range(len(_DASHES))
    for index, name in enumerate(dict.fromkeys(name for name in names if name not in places)):
        turn, at = divmod(index, len(shades))
        looks[name] = _look(shades[at], marks[(index + turn) % len(marks)])
    return [looks[name] for name in names]


def _look(colour: str, mark: int) -> LineStyle:
    mark %= len(_DASHES)
    return LineStyle(colour, _DASHES[mark], _MARKERS[mark])


def styled(runs: Run | Iterable[Run]) -> list[tuple[Run, LineStyle]]:
    """Pair a schedule or run, or several, with the looks of their policies."""
    listed = cast("list[Run]", list(runs) if isinstance(runs, Iterable) else [runs])
    return list(zip(listed, line_styles(run.policy for run in listed), strict=True))


def prepare(ax: Axes | None, width: float | None = None, height: float = 3.6) -> Axes:
    """Return axes with the look of all plots: those passed, or those of a new figure in inches."""
    if ax is None:
        from matplotlib import pyplot

        size = (width or pyplot.rcParams["figure.figsize"][0], height)
        ax = pyplot.subplots(figsize=size, layout="constrained")[1]
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(visible=True, color="#E3E3E3", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=TEXT_SIZE)
    return ax


def line_of(style: LineStyle) -> dict[str, Any]:
    """Return colour and dashes as matplotlib takes them."""
    return {"color": style.colour, "linestyle": (0, style.dash) if style.dash else "-"}


def memory_limit(ax: Axes, memory: int) -> None:
    """Draw the memory limit."""
    ax.axhline(memory, color=LIMIT, linewidth=1, label=f"memory limit, {memory:,}")


def name_bars(ax: Axes, names: Sequence[str]) -> None:
    """Name the horizontal bars at 0, 1, ..., the first of which goes to the top."""
    ax.set_yticks(range(len(names)), [plain(name) for name in names])
    ax.set_ylim(len(names) - 0.45, -0.55)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)


def name_ranked(ax: Axes, comparison: Comparison) -> list[str]:
    """Name bars after the policies, the best at the top and references apart; return colours."""
    looks = dict(zip(comparison.policies, line_styles(comparison.policies), strict=True))
    names = [run.policy for run in comparison.ranked()]
    apart = len(names) - len(comparison.references)
    name_bars(ax, [*names[:apart], *(f"{name} (reference)" for name in names[apart:])])
    if apart < len(names):
        ax.axhline(apart - 0.5, **REFERENCE)
    return [looks[name].colour for name in names[:apart]] + [looks[n].tint for n in names[apart:]]


def note_bar(ax: Axes, note: str, end: float, row: int) -> None:
    """Write beside the end of a horizontal bar."""
    ax.annotate(
        note, (end, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=TEXT_SIZE
    )


def count_axis(*axes: Axis) -> None:
    """Write the numbers of axes, which are counts, in full or in millions.

    On a logarithmic axis these are powers of ten, and numbers between where there are few.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    for axis in axes:
        if axis.get_scale() == "log":
            low, high = axis.get_view_interval()
            subs = (1,) if high > 300 * low else (1, 3) if high > 30 * low else (1, 2, 3, 5)
            axis.set_major_locator(LogLocator(subs=subs))
            axis.set_major_formatter("{x:,.10g}")
            axis.set_minor_formatter(NullFormatter())
            continue
        axis.set_major_locator(MaxNLocator(6, integer=True))
        axis.set_major_formatter(FuncFormatter(partial(_count, axis)))


def _count(axis: Axis, value: float, _: int) -> str:
    if max(map(abs, axis.get_view_interval())) < _MILLIONS or not value:
        return f"{value:,.10g}"
    return f"{value / 1e6:,.10g}M"


def hover(artist: Artist | Container, shown: str | Sequence[str]) -> None:
    """Set what a page shows on hover: a template of plotly.js, or a text for each point."""
    vars(artist)["hover"] = shown


def step_unit(instance: Instance) -> str:
    """Say what a step is, for the label of an axis."""
    seconds = instance.seconds_per_step
    return "steps" if seconds is None else f"steps of {seconds:g} s"


def in_steps(instance: Instance) -> str:
    """Return the label of an axis of time in steps."""
    return f"time ({step_unit(instance)})"


def in_seconds(run: ClockedRun) -> str:
    """Return the label of an axis of time on a clock."""
    return f"time ({clock_unit(run)})"


def clock_unit(run: ClockedRun) -> str:
    """Return the unit of a run's times, for the label of an axis."""
    return "seconds" if run.clock.unit == "s" else run.clock.unit


def legend_above(ax: Axes, title: str | None = None) -> None:
    """Put the legend above the axes, where it hides nothing, under their title."""
    from matplotlib.figure import Figure

    title = title or ax.get_title()
    ax.set_title("")

    labels = ax.get_legend_handles_labels()[1]
    longest = max(len(label) for label in labels)
    # Two columns of longer names only where one would take the place of the plot.
    columns = 3 if longest < 24 else 2 if longest < 34 and len(labels) > 4 else 1
    if isinstance(ax.figure, Figure):
        room = 1.15 * 72 * ax.get_position().width * ax.figure.get_figwidth()
        columns = _columns(labels, columns, room)
    ax.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderpad=0, title=title, **_LEGEND
    )


def set_title(drawn: Axes | Figure, title: str) -> None:
    """Write the title of a plot above its legend, or that of a figure above all of its plots."""
    from matplotlib.figure import Figure

    if isinstance(drawn, Figure):
        legend = next(iter(drawn.legends), None)
        write = partial(drawn.suptitle, x=0.01, ha="left", fontsize=TEXT_SIZE + 1)
    else:
        legend = drawn.get_legend()
        write = partial(drawn.set_title, loc="left", fontsize=TEXT_SIZE + 1)
    (legend.set_title if legend else write)(title)


def share_legend(figure: Figure) -> None:
    """Put one legend above all plots of a figure in place of legends that say the same."""
    legends = [legend for ax in figure.axes if (legend := ax.get_legend())]
    said = {tuple(text.get_text() for text in legend.texts) for legend in legends}
    if len(said) != 1 or len(legends) < max(2, len(figure.axes)):
        return
    for ax, legend in zip(figure.axes, legends, strict=True):
        title = legend.get_title().get_text()
        legend.remove()
        set_title(ax, title)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    columns = _columns(labels, len(labels), 72 * figure.get_figwidth())
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, **_LEGEND)


def made_by(result: object) -> dict[str, str]:
    """Return what makes a result again: version, command or call, and instances."""
    made = {"Made by": f"optsched {__version__}, Python {platform.python_version()}"}
    click: Any = sys.modules.get("click")
    if click is not None and click.get_current_context(silent=True) is not None:
        made["Command"] = shlex.join(["optsched", *sys.argv[1:]])
    elif (called := getattr(result, "called", None)) is not None:
        made["Call"] = called
    several = getattr(result, "runs_by_policy", None)
    one = result if hasattr(result, "instance") else getattr(result, "schedule", None)
    of = next(iter(several.values())) if several else getattr(result, "parts", [one])
    named = dict.fromkeys(each.instance for each in of if hasattr(each, "instance"))
    if names := [f"{each.name}, SHA-256 {each.fingerprint}" for each in named]:
        more = f"; and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        made["Requests"] = "; ".join(names[:_NAMED]) + more
    if (settings := getattr(result, "settings", None)) is not None:
        made["Seed"] = str(settings.seed)
    return made


_FOOT_PER_INCH = 24  # characters of the foot of a figure, so that no line leaves it
_METADATA = {"png": ("Software", "Description"), "pdf": ("Creator", "Subject")}
_METADATA["svg"] = ("Creator", "Description")


def save_figure(
    drawn: Axes | Figure, path: str | Path, dpi: int = 300, *, foot: bool = False
) -> None:
    """Write a figure in the format that the path ends with, its fonts as publishers ask for.

    Parameters
    ----------
    drawn
        What `plot` of a result returned, or its figure.
    path
        A png, pdf or svg says in its metadata what made it: version, command or call, requests.
    dpi
        Dots per inch.
    foot
        Also say that below the figure.
    """
    from matplotlib import rc_context

    figure = drawn.figure.figure  # the whole, of axes in a part of it too
    made = made_by(getattr(figure, "shows", None))
    lines = [f"{what}: {said}" for what, said in made.items()]
    keys = _METADATA.get(str(path).rpartition(".")[2].lower(), ())
    metadata = dict(zip(keys, (made["Made by"], "\n".join(lines)), strict=False)) or None
    if foot:
        wide = int(_FOOT_PER_INCH * figure.get_figwidth())
        said = "\n".join(textwrap.fill(line, wide, subsequent_indent="  ") for line in lines)
        figure.supxlabel(plain(said), x=0.01, ha="left", fontsize=5, color=LIMIT)
    with rc_context({"pdf.fonttype": 42, "ps.fonttype": 42}):
        figure.savefig(path, dpi=dpi, metadata=metadata)


def finish(
    ax: Axes,
    xlabel: str,
    ylabel: str = "",
    *,
    counts: str = "",
    title: str | None = None,
    **axes: Any,
) -> Axes:
    """Label axes, write those named in `counts` in full, and put the legend above."""
    ax.set(xlabel=xlabel, ylabel=ylabel, **axes)
    count_axis(*(getattr(ax, f"{name}axis") for name in counts))
    legend_above(ax, title)
    return ax


def _columns(labels: list[str], most: int, room: float) -> int:
    """Return how many columns of a legend fit a width in points, by an estimate of theirs."""
    for columns in range(most, 1, -1):
        parts = np.array_split(labels, columns)  # the first ones have one entry more
        ems = sum((5.7 + 0.55 * max(map(len, part), default=0) for part in parts), -2.0)
        if TEXT_SIZE * ems <= room:
            return columns
    return 1


def plain(name: str) -> str:
    """Keep a user's dollar signs from being read as mathematics."""
    return name.replace("$", r"\$")


MAX_STACKED = 60  # of more requests the bars are drawn one below the other


def tokens_held(schedule: Schedule, steps: Sequence[int] | IntArray) -> IntArray:
    """Return the tokens held at the given steps without walking over all steps."""
    at = np.asarray(steps, dtype=np.int64)
    # An active request holds offset + t tokens at step t: sum over started less over completed.
    offsets = schedule.instance.prompts - schedule.starts
    held = np.zeros(len(at), dtype=np.int64)
    for sign, events in ((1, schedule.starts), (-1, schedule.completions)):
        order = np.argsort(events, kind="stable")
        before = np.searchsorted(events[order], at)
        sums = np.concatenate([[0], np.cumsum(offsets[order])])
        held += sign * (sums[before] + before * at)
    return held


def memory_curve(schedule: Schedule, bins: int = 2000) -> tuple[IntArray, IntArray]:
    """Return the edges of up to `bins` bins of steps, and the most tokens held in each."""
    first, span = int(schedule.starts.min()), schedule.makespan - int(schedule.starts.min())
    bins = min(bins, span)
    edges = first + np.arange(bins + 1) * span // bins
    # Usage falls only after a completion, so that within a bin it is largest at one or at the end.
    peaks = tokens_held(schedule, edges[1:])
    inside = np.searchsorted(edges, schedule.completions) - 1
    np.maximum.at(peaks, inside, tokens_held(schedule, schedule.completions))
    return edges, peaks


def latency_cdf(schedule: Schedule, points: int = 500) -> tuple[IntArray, FloatArray]:
    """Return latencies, ascending, and the share of requests with at most each of them."""
    latencies, counts = np.unique(schedule.latencies, return_counts=True)
    shares = np.cumsum(counts) / counts.sum()
    if len(latencies) > points:
        kept = np.searchsorted(shares, np.linspace(shares[0], 1, points))
        kept = np.unique(np.minimum(kept, len(shares) - 1))
        latencies, shares = latencies[kept], shares[kept]
    return latencies, shares


def sample_by_start(schedule: Schedule, count: int) -> tuple[IntArray, IntArray]:
    """Sample requests evenly by start, with the last to complete; return them and their ranks."""
    order = np.argsort(schedule.starts, kind="stable")
    last = int(np.argmax(schedule.completions[order]))
    even = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(np.int64)
    ranks = np.union1d(even, last)
    return order[ranks], ranks


@dataclass(frozen=True)
class Bars:
    """Requests as bars that grow while they make tokens."""

    stacked: bool
    requests: IntArray  # that are drawn, shape (n,)
    prompts: list[FloatArray]  # corners of the part that is prompt, of each request
    outputs: list[FloatArray]  # and of the part that is output
    waits: list[FloatArray]  # line from arrival to start; none if stacked
    ends: FloatArray  # upper right corners, shape (n, 2)


def growing_bars(schedule: Schedule, rows: int) -> Bars:
    """Return requests as bars: stacked if there are few, else a sample of them in rows."""
    return _stacked(schedule) if len(schedule.starts) <= MAX_STACKED else _in_rows(schedule, rows)


def _stacked(schedule: Schedule) -> Bars:
    requests = np.argsort(schedule.starts, kind="stable")
    starts, completions = schedule.starts[requests, None], schedule.completions[requests, None]
    events = np.unique([starts, completions])
    steps, begins = np.repeat(events, 2)[1:-1], np.repeat(events[:-1], 2)
    holds = (starts <= begins) & (begins < completions)
    outputs = np.where(holds, steps - starts, 0)
    prompts = np.where(holds, schedule.instance.prompts[requests, None], 0)
    tops = np.cumsum(prompts + outputs, axis=0)
    middles = tops - outputs

    def areas(lower: IntArray, upper: IntArray) -> list[FloatArray]:
        found = []
        for at, low, high in zip(holds, lower, upper, strict=True):
            there, back = np.stack([steps, low], axis=1), np.stack([steps, high], axis=1)
            found.append(np.concatenate([there[at], back[at][::-1]], dtype=np.float64))
        return found

    last = holds.shape[1] - 1 - np.argmax(holds[:, ::-1], axis=1)
    ends = np.stack([steps[last], tops[np.arange(len(tops)), last]], axis=1, dtype=np.float64)
    return Bars(True, requests, areas(middles - prompts, middles), areas(middles, tops), [], ends)


def _in_rows(schedule: Schedule, rows: int) -> Bars:
    instance = schedule.instance
    requests, ranks = sample_by_start(schedule, rows)
    arrivals, starts = instance.arrivals[requests], schedule.starts[requests]
    ends = schedule.completions[requests]
    # The largest bar just fits between two rows.
    scale = 0.9 * len(schedule.starts) / len(requests) / int(instance.peaks[requests].max())
    middles = ranks - scale * instance.prompts[requests]
    tops = ranks - scale * instance.peaks[requests]

    def corners(*columns: IntArray | FloatArray) -> list[FloatArray]:
        return list(np.stack(columns, axis=1, dtype=np.float64).reshape(len(requests), -1, 2))

    return Bars(
        False,
        requests,
        corners(starts, ranks, ends, ranks, ends, middles, starts, middles),
        corners(starts, middles, ends, middles, ends, tops),
        corners(arrivals, ranks, starts, ranks),
        np.stack([ends, tops], axis=1),
    )


def gap_curves(
    explanation: GapExplanation, points: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return steps from 0 to the makespan, and the waste and order regret summed up to each."""
    schedule = explanation.schedule
    last = max(schedule.makespan, len(explanation.waste))
    steps = np.unique(np.linspace(0, last, points).round().astype(np.int64))
    waste = np.concatenate([[0.0], np.cumsum(explanation.waste)])
    order = np.argsort(schedule.starts, kind="stable")
    regret = np.concatenate([[0.0], np.cumsum(explanation.regrets[order])])
    begun = np.searchsorted(schedule.starts[order], steps, side="right")
    return steps.astype(np.float64), waste[np.minimum(steps, len(waste) - 1)], regret[begun]


def mean_per_bin(values: IntArray | FloatArray, bins: int) -> tuple[IntArray, FloatArray]:
    """Return the first step of each of up to `bins` bins, and the mean of each column in it."""
    width = -(-len(values) // bins)
    edges = np.arange(0, len(values), width)
    counts = np.diff(np.append(edges, len(values)))
    sums = np.add.reduceat(values, edges, axis=0).astype(np.float64)
    return edges, sums / (counts if values.ndim == 1 else counts[:, None])


def most_per_bin(times: FloatArray, values: IntArray, bins: int) -> tuple[FloatArray, IntArray]:
    """Split batches evenly into intervals; return the end and the largest value of each."""
    if len(times) <= bins:
        return times, values
    begins = np.linspace(0, len(times), bins, endpoint=False).astype(np.int64)
    ends = np.append(begins[1:], len(times)) - 1
    return times[ends], np.maximum.reduceat(values, begins)


def lookahead_curve(comparison: ClusterComparison) -> FloatArray:
    """Return rows of lookahead, mean imbalance in ms and its interval, by ascending lookahead."""
    rows = sorted(
        (runs[0].lookahead, *comparison.mean("imbalance_ms", policy))
        for policy, runs in comparison.runs.items()
        if runs[0].lookahead is not None
    )
    if not rows:
        raise InstanceError("no policy with a lookahead has run; compare_lookaheads runs some")
    return np.array(rows, dtype=np.float64)


_MEANS = ("policy", "knows", "runs", "failed", "mean_latency", "difference", "gap", "largest_gap")
_MAX_MARKED = 40  # points of a line that get markers
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++")


def plot_series(
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    by: str | None = None,
    low: str | None = None,
    high: str | None = None,
    over: str = "seed",
    legend: bool = True,
    ax: Axes | None = None,
    **axes: Any,
) -> Axes:
    """Plot one line per name in column `by`, with a band between columns `low` and `high`.

    Repeats, told apart by the column `over`, become their mean with a 95 % band by Student's t.
    """
    _require(table, x, y, by, low, high)
    keys = [x] if by is None else [by, x]
    if over in table and table[over].nunique() > 1 and table.duplicated(keys).any():
        if low is not None or high is not None or table.duplicated([*keys, over]).any():
            raise OptschedError(
                f"several rows have the same {x!r} and {by or over!r}, but cannot be averaged over "
                f"{over!r}; leave low and high out, and pass as by the column that tells them apart"
            )
        table, low, high = _averaged(table, keys, y), "low", "high"
    ax = prepare(ax)
    ax.set(**axes)
    for name, style, rows in _groups(table, by):
        marker = style.marker if len(rows) <= _MAX_MARKED else ""
        look = {"marker": marker, "markersize": 4, "linewidth": 1.6, **line_of(style)}
        ax.plot(rows[x], rows[y], label=plain(name), **look)
        if low is not None and high is not None:
            ax.fill_between(rows[x], rows[low], rows[high], color=style.colour, alpha=0.15, lw=0)
    _number(ax.xaxis, table[x].to_numpy())
    _number(ax.yaxis, table[y].to_numpy())
    if legend and by is not None:
        legend_above(ax)
    return ax


def _require(table: pd.DataFrame, *names: str | None) -> None:
    for name in names:
        if name is not None and name not in table:
            raise OptschedError(
                f"the table has no column {name!r}; {nearest(name, map(str, table))}"
            )


def _averaged(table: pd.DataFrame, keys: list[str], y: str) -> pd.DataFrame:
    """Return one row per key: the mean of y and its interval, NaN for a single value."""
    rows = []
    for key, values in table.groupby(keys, sort=False)[y]:
        mean, *ends = ConfidenceInterval.of(values.to_numpy(np.float64))
        rows.append((*key, mean, *np.where(np.isfinite(ends), ends, np.nan)))
    return data_frame(rows, columns=[*keys, y, "low", "high"])


def plot_bars(
    table: pd.DataFrame,
    *,
    x: str,
    y: str,
    by: str | None = None,
    low: str | None = None,
    high: str | None = None,
    ax: Axes | None = None,
    **axes: Any,
) -> Axes:
    """Plot a group of bars for each name in column `x`, one bar for each name in column `by`."""
    _require(table, x, y, by, low, high)
    ax = prepare(ax)
    ax.set(**axes)
    places = list(dict.fromkeys(table[x].astype(str)))
    groups = _groups(table, by)
    width = 0.8 / len(groups)
    for index, (name, style, rows) in enumerate(groups):
        at = np.array([places.index(str(place)) for place in rows[x]])
        at = at + (index - (len(groups) - 1) / 2) * width
        ends = None
        if low is not None and high is not None:
            ends = np.maximum([rows[y] - rows[low], rows[high] - rows[y]], 0)
        ax.bar(
            at,
            rows[y],
            0.92 * width,
            yerr=ends,
            error_kw={"ecolor": "#333333", "capsize": 2.5, "lw": 1},
            label=plain(name),
            color=style.colour if by is not None else BLUE,
            edgecolor="white",
            hatch=_HATCHES[index % len(_HATCHES)],
            linewidth=0.5,
        )
    ax.set_xticks(range(len(places)), [plain(place) for place in places])
    if sum(map(len, places)) > 60:  # names that would run into each other
        ax.tick_params(axis="x", rotation=30)
        for label in ax.get_xticklabels():
            label.set_horizontalalignment("right")
    ax.grid(visible=False, axis="x")
    _number(ax.yaxis, table[y].to_numpy())
    if by is not None:
        legend_above(ax)
    return ax


def plot_means(result: Replications | Sweep, ax: Axes | None = None) -> Axes:
    """Plot the mean of each policy with its interval, side by side in each setting."""
    rows, metric = [], getattr(result, "metric", "mean_latency")
    unit = getattr(result, "unit", "")  # settings of a sweep have their own
    for entry in result.means:
        mean = entry[metric] or {"mean": np.nan, "low": None, "high": None}
        ends = {end: mean["mean"] if mean[end] is None else mean[end] for end in ("low", "high")}
        rest = [f"{key} {value}" for key, value in entry.items() if key not in (*_MEANS, metric)]
        setting = ", ".join(rest) or entry["policy"]
        rows.append({"policy": entry["policy"], "setting": setting, "mean": mean["mean"], **ends})
    table = data_frame(rows)
    by = "policy" if (table.setting != table.policy).any() else None
    look: dict[str, Any] = {"low": "low", "high": "high", "ylabel": metric.replace("_", " ")}
    look["ylabel"] += f" ({unit})" * bool(unit)
    ax = plot_bars(table, x="setting", y="mean", by=by, ax=ax, **look)
    if by is None:
        for bar, style in zip(ax.patches, line_styles(table.policy), strict=True):
            bar.set_facecolor(style.colour)
        _note_differences(ax, result.means, table.high.to_list())
    return ax


def _note_differences(ax: Axes, means: Sequence[Mapping[str, Any]], tops: Sequence[float]) -> None:
    """Write what each mean is above the best, paired; intervals of means overlap more."""
    for at, (entry, top) in enumerate(zip(means, tops, strict=True)):
        if (of := entry.get("difference")) is not None and of["low"] is not None:
            low, mean, high = (number(of[end], 4) for end in ("low", "mean", "high"))
            said = f"{'+' * (of['mean'] > 0)}{mean}\n({low} to {high})"
            ax.annotate(
                said, (at, top), (0, 3), textcoords="offset points", ha="center", fontsize=7
            )
    ax.margins(y=0.16)


def plot_stack(
    table: pd.DataFrame, *, x: str, parts: Sequence[str], ax: Axes | None = None, **axes: Any
) -> Axes:
    """Plot a bar per row, made of at most six columns on top of each other, the first lowest."""
    ax = prepare(ax)
    ax.set(**axes)
    places = np.arange(len(table))
    heights = {part.replace("_", " "): table[part].to_numpy(np.float64) for part in parts}
    tops = stack_bars(ax, places, heights)
    ax.set_ylim(0, 1.05 * tops.max())  # parts of no height would take the margin away
    ax.set_xticks(places, [plain(str(place)) for place in table[x]])
    _number(ax.xaxis, tops[:0])
    _number(ax.yaxis, tops)
    legend_above(ax)
    return ax


def stack_bars(ax: Axes, places: IntArray, parts: Mapping[str, FloatArray]) -> FloatArray:
    """Draw bars made of parts on top of each other, the lowest first, and return their tops."""
    below = np.zeros(len(places))
    for (name, heights), colour, hatch in zip(parts.items(), COLOURS, _HATCHES, strict=False):
        ax.bar(
            places,
            heights,
            0.76,
            below,
            label=plain(name),
            color=colour,
            edgecolor="white",
            hatch=hatch,
            linewidth=0.3,
        )
        below = below + heights
    ax.grid(visible=False, axis="x")
    return below


def _groups(table: pd.DataFrame, by: str | None) -> list[tuple[str, LineStyle, pd.DataFrame]]:
    groups = [("", table)] if by is None else list(table.groupby(by, sort=False))
    names = [str(name) for name, _ in groups]
    return [
        (name, style, rows)
        for name, style, (_, rows) in zip(names, line_styles(names), groups, strict=True)
    ]


def _number(axis: Axis, values: np.ndarray) -> None:
    """Write counts in full; leave other numbers to matplotlib."""
    axis.label.set_fontsize(TEXT_SIZE)
    finite = values[np.isfinite(values.astype(float))] if values.dtype.kind in "if" else values[:0]
    scale = axis.get_scale()
    if len(finite) and (
        (scale == "log" and finite.min() >= 1)
        or (scale == "linear" and np.abs(finite).max() >= 1000)
    ):
        count_axis(axis)
