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
    """What a target's computation returns."""

    table: pd.DataFrame  # the data of the plot, one row per point
    claims: Sequence[Claim]  # what the paper states, and ours
    settings: dict[str, Any] = field(default_factory=dict)  # sizes, policies, seeds, clocks


@dataclass(frozen=True)
class Target:
    """One table, figure or theorem."""

    name: str  # PAPER-WHAT, such as "robust-fig-1"
    title: str
    source: str  # where it stands, such as "Robust (Chen et al.), Fig. 1"
    compute: Callable[[Study], Outcome]
    draw: Callable[[pd.DataFrame, Sequence[Axes]], None]  # on as many axes as there are panels
    panels: tuple[int, int] = (1, 1)  # rows and columns of axes
    remark: str = ""  # what we know beyond the numbers: a slip of the paper, what was left out
