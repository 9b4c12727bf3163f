"""One look for all plots: colours, dashes and markers per policy, axes and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.container import Container
    from matplotlib.figure import Figure

    from optsched.experiments.results import Comparison
    from optsched.problem.instance import Instance
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
)
_SHADES = (
    COLOURS,
    ("#307098", "#FC5430", "#848478", "#CC0424", "#B484B0", "#708CFC", "#7C6068", "#7C54DC"),
    ("#007894", "#E0600C", "#6C8C7C", "#B83820", "#C468C4", "#6490F0", "#A04C70", "#7C34F0"),
    ("#006C9C", "#D47400", "#808C70", "#B44000", "#B870C4", "#388CFC", "#786058", "#8448E4"),
    ("#4864A8", "#EC6414", "#689470", "#C82410", "#C474BC", "#4494F8", "#8C5864", "#8C10FC"),
    ("#38689C", "#FC601C", "#749C64", "#C04800", "#C07CB4", "#588CFC", "#88605C", "#8830FC"),
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
        note,
        (end, row),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=TEXT_SIZE,
    )


def count_axis(*axes: Axis) -> None:
    """Write the numbers of axes, which are counts, in full or in millions."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for axis in axes:
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
        while columns > 1 and _legend_width(labels, columns) > room:
            columns -= 1
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        borderpad=0,
        title=title,
        **_LEGEND,
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
    columns = len(labels)
    while columns > 1 and _legend_width(labels, columns) > 72 * figure.get_figwidth():
        columns -= 1
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, **_LEGEND)


def save_figure(drawn: Axes | Figure, path: str | Path, dpi: int = 300) -> None:
    """Write a figure in the format that the path ends with, its fonts as publishers ask for."""
    from matplotlib import rc_context

    with rc_context({"pdf.fonttype": 42, "ps.fonttype": 42}):
        drawn.figure.figure.savefig(path, dpi=dpi)  # the whole, of axes in a part of it too


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
    for axis in (getattr(ax, f"{name}axis") for name in counts):
        (count_log_axis if axis.get_scale() == "log" else count_axis)(axis)
    legend_above(ax, title)
    return ax


def _legend_width(labels: list[str], columns: int) -> float:
    """Estimate the width of a legend in points; the first columns have one entry more."""
    rows, more = divmod(len(labels), columns)
    width, at = -2.0, 0
    for column in range(columns):
        last = at + rows + (column < more)
        width += 5.7 + 0.55 * max(map(len, labels[at:last]), default=0)
        at = last
    return TEXT_SIZE * width


def plain(name: str) -> str:
    """Keep a user's dollar signs from being read as mathematics."""
    return name.replace("$", r"\$")


def count_log_axis(axis: Axis) -> None:
    """Write the powers of ten of an axis in full, and numbers between where there are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    subs = (1,) if high > 300 * low else (1, 3) if high > 30 * low else (1, 2, 3, 5)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
