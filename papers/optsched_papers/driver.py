"""`reproduce`: a paper's table or figure regenerated, with a verdict on each of its claims."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from optsched._internal.numbers import proven
from optsched._version import __version__
from optsched.errors import OptschedError, nearest
from optsched.experiments.cells import Places
from optsched.report.tables import Row, Table, to_html, to_text
from optsched_papers.claims import Verdict, verdict
from optsched_papers.target import Study, Target
from optsched_papers.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pandas as pd
    from matplotlib.figure import Figure

    from optsched.experiments.cells import CellProgress
    from optsched_papers.claims import Claim

_PACKAGES = ("numpy", "scipy", "numba", "highspy", "ortools")


@dataclass(frozen=True, repr=False)
class Reproduction:
    """Our own version of a paper's table or figure."""

    target: Target
    table: pd.DataFrame  # the data of the plot, one row per point
    claims: tuple[Claim, ...]  # what the paper states beside what we found
    settings: dict[str, Any]  # what was run
    quick: bool
    seed: int
    seconds: float  # of the computation, that of parallel processes added up

    @property
    def verdict(self) -> Verdict:
        """The verdict on the paper's own claims: a label and a reason."""
        return verdict(self.claims, self.target.unpublished, self.target.provided)

    def plot(self) -> Figure:
        """Draw the table in the shape of the paper's figure."""
        from matplotlib import pyplot

        from optsched.report.style import prepare, share_legend

        rows, columns = self.target.panels
        size = (pyplot.rcParams["figure.figsize"][0], 3.6)
        if rows * columns > 1:
            size = (9.2, 3.3 * rows)
        figure, axes = pyplot.subplots(
            rows, columns, squeeze=False, figsize=size, layout="constrained"
        )
        self.target.draw(self.table, [prepare(ax) for ax in axes.flat])
        share_legend(figure)
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the table as plain data, ready for JSON."""
        return {
            "target": self.target.name,
            "title": self.target.title,
            "source": self.target.source,
            "version": self.target.version,
            "verdict": self.verdict.label,
            "qualified": self.target.qualified(*self.verdict),
            "reason": self.verdict.reason,
            "holds_if": self.target.holds_if,
            "rows": [claim.to_dict() for claim in self.claims],
            "remark": self.target.remark,
            "settings": self.settings,
            "quick": self.quick,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "versions": {
                "optsched": __version__,
                "python": platform.python_version(),
                **{name: version(name) for name in _PACKAGES},
            },
        }

    def __repr__(self) -> str:
        return f"<Reproduction {self.target.name!r}: {self.verdict}>"

    def _repr_html_(self) -> str:
        return to_html(claims_table(self.to_dict()))

    def __str__(self) -> str:
        return describe(self.to_dict())


def claims_table(result: dict[str, Any]) -> Table:
    """Return the claims of a reproduction, from its JSON: the paper's value, ours, the verdict."""
    rows = []
    for row in result["rows"]:
        ends = ""
        if row["low"] is not None:
            ends = f"{proven(row['low'], digits=5)} to {proven(row['high'], up=True, digits=5)}"
        numbers = ("" if row[key] is None else f"{row[key]:,.5g}" for key in ("paper", "ours"))
        reason = row["verdict"].replace(f": {row['label']} is", ": is")
        reason = reason if row["counts"] else f"beside: {reason}"
        rows.append(Row(row["label"], [(None, text) for text in (*numbers, ends, reason)]))
    titles = ("claim", "paper", "ours", "interval", "verdict")
    return Table(titles, rows, width=150, words=(0, 4))


def describe(result: dict[str, Any]) -> str:
    """Print a reproduction, from its JSON, as a table of claims under its verdict."""
    lines = [
        f"{result['target']}: {Verdict(result['verdict'], result['reason'])}",
        f"  {result['title']}; {result['source']}; {result['version']}",
        to_text(claims_table(result)),
        *([f"  holds if {result['holds_if']}"] if result["holds_if"] else []),
    ]
    return "\n".join(lines + ([f"  {result['remark']}"] if result["remark"] else []))


def get_target(name: str) -> Target:
    """Return the target of a name such as "robust-fig-1"."""
    if name not in TARGETS:
        raise OptschedError(f"unknown target {name!r}: {nearest(name, TARGETS)}")
    return TARGETS[name]


def reproduce(
    name: str,
    *,
    quick: bool = False,
    seed: int = 0,
    jobs: int | None = 1,
    cells: Path | None = None,
    on_progress: Callable[[CellProgress], object] | None = None,
) -> Reproduction:
    """Regenerate a table, a figure or the evidence for a theorem of one of the papers.

    `quick` takes seconds in place of minutes, with fewer and smaller runs; `jobs` are processes
    (None: all cores); finished parts are kept in the folder `cells`, if there is one.
    """
    target = get_target(name)
    study = Study(name, quick, seed, Places(jobs), cells, on_progress)
    began = time.perf_counter()
    outcome = target.compute(study)
    seconds = max(study.seconds, time.perf_counter() - began)
    return Reproduction(
        target, outcome.table, tuple(outcome.claims), outcome.settings, quick, seed, seconds
    )
