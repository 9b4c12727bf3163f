"""One look for all plots: colours, dashes and markers per policy, axes and numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.container import Container

    from optsched.comparison import Comparison
    from optsched.instance import Instance
    from optsched.simulate.seconds.execution import ClockedRun


class _OfPolicy(Protocol):
    @property
    def policy(self) -> str: ...


Run = TypeVar("Run", bound=_OfPolicy)

# Okabe and Ito's palette, which colour-blind readers can tell apart. Its black and its yellow are
# left out: each vanishes on one of the two backgrounds.
BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
VERMILLION, PURPLE, SKY = "#D55E00", "#CC79A7", "#56B4E9"
WINE = "#882255"  # Tol's, darker than all of them

UNAVOIDABLE = "#B3B3B3"  # what the bound proves that no schedule can save
LIMIT = "#5C5C5C"  # the memory limit

DASHED = (0, (4, 2))

#: Looks of a line that others are compared with.
REFERENCE: dict[str, Any] = {"color": LIMIT, "linewidth": 1, "linestyle": DASHED}

TEXT_SIZE = 9  # points
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


_KNOWN = {
    "area": LineStyle(BLUE, (), "o"),
    "area+window": LineStyle(WINE, (12, 3), "h"),
    "work": LineStyle(WINE, (2, 3), "*"),
    "sorted-f": LineStyle(PURPLE, (7, 2), "s"),
    "mc-sf-total": LineStyle(GREEN, (7, 2, 1.5, 2), "^"),
    "mc-sf": LineStyle(ORANGE, (3.5, 1.5), "D"),
    "fcfs": LineStyle(VERMILLION, (1.5, 1.5), "v"),
    "bf-io": LineStyle(BLUE, (), "o"),
    "lpt": LineStyle(GREEN, (7, 2, 1.5, 2), "^"),
    "jsq": LineStyle(ORANGE, (3.5, 1.5), "D"),
    "mixed": LineStyle(SKY, (5, 1), "P"),
    "vllm": LineStyle(PURPLE, (9, 2, 2, 2, 2, 2), "X"),
    "vllm-v0": LineStyle(VERMILLION, (5, 1), "X"),
    "sarathi": LineStyle(GREEN, (2, 3), "<"),
    "wait": LineStyle(BLUE, (12, 3), ">"),
    "nested-wait": LineStyle(ORANGE, (5, 1), "p"),
    "rolling": LineStyle(GREEN, (5, 1), "h"),
    "sorted-f-quantile": LineStyle(SKY, (9, 2, 2, 2, 2, 2), "X"),
    "sorted-lp": LineStyle(GREEN, (2, 3), "<"),
    "lp-swap": LineStyle(VERMILLION, (12, 3), ">"),
    "h-sf": LineStyle(GREEN, (), "*"),
    "a-max": LineStyle(VERMILLION, (5, 1), "X"),
    "a-max-random": LineStyle(PURPLE, (9, 2, 2, 2, 2, 2), ">"),
    "a-min": LineStyle(ORANGE, (2, 3), "<"),
    "area-lower": LineStyle(BLUE, (5, 1), "P"),
    "area-posterior": LineStyle(SKY, (12, 3), "p"),
    "area-chance": LineStyle(WINE, (), "D"),
    "work-chance": LineStyle(WINE, (5, 1), "s"),
}
_COLOURS = (SKY, BLUE, VERMILLION, GREEN, ORANGE, PURPLE, WINE)
_DASHES: tuple[tuple[float, ...], ...] = ((5, 1), (9, 2, 2, 2, 2, 2), (2, 3), (), (12, 3))
_MARKERS = "PX<>*ph"


def line_styles(policies: Iterable[str]) -> list[LineStyle]:
    """Choose looks for policies that appear together; new ones avoid the colours of known ones."""
    names = list(policies)
    others = list(dict.fromkeys(name for name in names if name not in _KNOWN))
    taken = {_KNOWN[name].colour for name in names if name in _KNOWN}
    colours = [colour for colour in _COLOURS if colour not in taken] or _COLOURS
    looks = _KNOWN | {
        name: LineStyle(
            colours[index % len(colours)],
            _DASHES[index % len(_DASHES)],
            _MARKERS[index % len(_MARKERS)],
        )
        for index, name in enumerate(others)
    }
    return [looks[name] for name in names]


def styled(runs: Run | Iterable[Run]) -> list[tuple[Run, LineStyle]]:
    """Pair a schedule or run, or several, with the looks of their policies."""
    listed = cast("list[Run]", list(runs) if isinstance(runs, Iterable) else [runs])
    return list(zip(listed, line_styles(run.policy for run in listed), strict=True))


def prepare(ax: Axes | None, width: float = 6.4, height: float = 3.6) -> Axes:
    """Return axes with the look of all plots: those passed, or those of a new figure in inches."""
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.subplots(figsize=(width, height), layout="constrained")[1]
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
    """Put the legend above the axes, where it hides nothing."""
    from matplotlib.figure import Figure

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
        frameon=False,
        fontsize=TEXT_SIZE,
        borderpad=0,
        handlelength=2.8,
        title=title,
        title_fontsize=TEXT_SIZE,
        alignment="left",
    )


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
