"""A target: a table, a figure or a theorem of a paper, and how we make our own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd
    from matplotlib.axes import Axes

    from optsched.papers.claims import Claim
    from optsched.papers.study import Study


@dataclass(frozen=True)
class Outcome:
    """What a target's computation gives.

    Attributes
    ----------
    table
        The data of the plot, one row per point.
    claims
        What the paper states, and ours.
    settings
        What was run: sizes, policies, seeds, clocks.
    """

    table: pd.DataFrame
    claims: Sequence[Claim]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """One table, figure or theorem.

    Attributes
    ----------
    name
        PAPER-WHAT, such as "robust-fig-1".
    title
        What it shows, in a few words.
    source
        Where it stands, such as "Robust (Chen et al.), Fig. 1".
    compute
        Makes our own.
    draw
        Draws the table on as many axes as there are panels.
    panels
        Rows and columns of axes.
    remark
        What we know about it beyond the numbers: a slip of the paper, what was left out.
    """

    name: str
    title: str
    source: str
    compute: Callable[[Study], Outcome]
    draw: Callable[[pd.DataFrame, Sequence[Axes]], None]
    panels: tuple[int, int] = (1, 1)
    remark: str = ""
