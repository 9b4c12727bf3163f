"""`reproduce`: a paper's table or figure regenerated, with a verdict on each of its claims."""

from __future__ import annotations

import io
import json
import platform
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from optsched._internal.files import write_whole
from optsched._version import __version__
from optsched.errors import OptschedError, nearest
from optsched.experiments.cells import Places
from optsched.papers.claims import verdict
from optsched.papers.folder import CELLS, PLOTS, forget, open_folder
from optsched.papers.study import Study
from optsched.papers.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pandas as pd
    from matplotlib.figure import Figure

    from optsched.experiments.cells import Progress
    from optsched.papers.claims import Claim
    from optsched.papers.target import Target

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
    def verdict(self) -> str:
        """The verdict on all claims."""
        return verdict(self.claims)

    def plot(self) -> Figure:
        """Draw the table in the shape of the paper's figure."""
        from matplotlib import pyplot

        from optsched.report.style import prepare

        rows, columns = self.target.panels
        size = (6.4, 3.6) if rows * columns == 1 else (4.6 * columns, 3.3 * rows)
        figure, axes = pyplot.subplots(
            rows, columns, squeeze=False, figsize=size, layout="constrained"
        )
        self.target.draw(self.table, [prepare(ax) for ax in axes.flat])
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the table as plain data, ready for JSON."""
        return {
            "target": self.target.name,
            "title": self.target.title,
            "source": self.target.source,
            "verdict": self.verdict,
            "rows": [claim.to_dict() for claim in self.claims],
            "remark": self.target.remark,
            "settings": self.settings,
            "quick": self.quick,
            "seed": self.seed,
            "seconds": self.seconds,
            "versions": {
                "optsched": __version__,
                "python": platform.python_version(),
                **{name: version(name) for name in _PACKAGES},
            },
        }

    def __repr__(self) -> str:
        return f"<Reproduction {self.target.name!r}: {self.verdict}>"

    def _repr_html_(self) -> str:
        from optsched.report.tables import claims_table, to_html

        return to_html(claims_table(self.to_dict()))

    def __str__(self) -> str:
        return describe(self.to_dict())


def describe(result: dict[str, Any]) -> str:
    """Print a reproduction, from its JSON, as a table of claims under its verdict."""
    from optsched.report.tables import claims_table, to_text

    lines = [
        f"{result['target']}: {result['verdict']}",
        f"  {result['title']}; {result['source']}",
        to_text(claims_table(result)),
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
    on_progress: Callable[[Progress], object] | None = None,
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


def reproduce_into(
    names: str | Sequence[str],
    out: str | Path,
    *,
    quick: bool = False,
    seed: int = 0,
    jobs: int | None = None,
    overwrite: bool = False,
    on_progress: Callable[[Progress], object] | None = None,
    on_result: Callable[[dict[str, Any]], object] | None = None,
) -> list[dict[str, Any]]:
    """Reproduce targets into a folder: NAME.csv, NAME.png and NAME.json of each, and a page of all.

    What the folder holds already is not done again, so that an interrupted call goes on where it
    stopped, unless `overwrite`. `on_result` is called with the JSON of each target.
    """
    Places(jobs)
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        get_target(name)
    path = open_folder(out, quick=quick, seed=seed, overwrite=overwrite)
    results = []
    for name in names:
        kept = path / f"{name}.json"
        if overwrite:
            forget(path, name)
        if not kept.exists():
            cells = path / CELLS / name
            cells.mkdir(parents=True, exist_ok=True)
            found = reproduce(
                name, quick=quick, seed=seed, jobs=jobs, cells=cells, on_progress=on_progress
            )
            _write(found, path)
        results.append(json.loads(kept.read_text(encoding="utf-8")))
        _write_page(path)
        if on_result is not None:
            on_result(results[-1])
    return results


def _write_page(path: Path) -> None:
    """Write the page of all targets that the folder holds."""
    from optsched.papers.page import render_reproductions

    names = [name for name in TARGETS if (path / f"{name}.json").exists()]
    results = [json.loads((path / f"{name}.json").read_text(encoding="utf-8")) for name in names]
    images = {name: (path / f"{name}.png").read_bytes() for name in names}
    kept = {name: path / CELLS / name / PLOTS for name in names}
    plots = {
        name: json.loads(file.read_text(encoding="utf-8"))
        for name, file in kept.items()
        if file.exists()
    }
    write_whole(path / "index.html", render_reproductions(results, images, plots).encode())


def _write(found: Reproduction, path: Path) -> None:
    """Write table and plots, and the JSON last: it says that the target is finished."""
    from matplotlib import pyplot

    from optsched.report.interactive import interactive

    name = found.target.name
    found.table.to_csv(path / f"{name}.csv", index=False)
    figure = found.plot()
    _save(figure, path / f"{name}.png")
    plots = json.dumps(interactive(figure), separators=(",", ":"))
    write_whole(path / CELLS / name / PLOTS, plots.encode())
    pyplot.close(figure)
    write_whole(path / f"{name}.json", json.dumps(found.to_dict(), indent=1).encode())


def _save(figure: Figure, path: Path) -> None:
    """Write a plot as PNG with a palette, which takes a third of the room of full colours."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=160)
    Image.open(drawn).convert("RGB").quantize(128).save(path, "PNG", optimize=True)
