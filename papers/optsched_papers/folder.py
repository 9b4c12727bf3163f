"""`reproduce_into`: a folder of reproductions, with a page of all of them."""

from __future__ import annotations

import base64
import io
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optsched._internal.children import cores
from optsched._internal.files import write_whole
from optsched._internal.fingerprints import fingerprint
from optsched._version import __version__
from optsched.experiments.cells import (
    INTERRUPTED,
    Places,
    Store,
    finish,
    open_folder,
    sealed,
    unsealed,
)
from optsched_papers.claims import IN_SHAPE, LABELS, REPRODUCED
from optsched_papers.driver import Reproduction, get_target, reproduce
from optsched_papers.stored import NOT_RUN, last_verdicts
from optsched_papers.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from optsched.experiments.cells import CellProgress
    from optsched.report.pages import Figure

_FORMAT = "optsched-reproduction-4"  # 3 did not seal its results
_CELLS = "_cells"
_PLOTS = "plots.json"  # beside the cells of a target: its plots for the page


def reproduce_into(
    names: str | Sequence[str],
    out: str | Path,
    *,
    quick: bool = False,
    seed: int = 0,
    jobs: int | None = None,
    overwrite: bool = False,
    on_progress: Callable[[CellProgress], object] | None = None,
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
    path = Path(out).absolute()  # processes that were started before may stand elsewhere
    options = {"quick": quick, "seed": seed}
    settings = {**options, "version": __version__, "format": _FORMAT}
    open_folder(path, "reproduction", settings, overwrite=overwrite, option="--overwrite")
    there = [name for name in TARGETS if name in names or (path / f"{name}.json").exists()]
    keys = {name: fingerprint([settings, name, TARGETS[name]]) for name in there}
    results: dict[str, dict[str, Any]] = {}
    missing = {}

    def tell(name: str) -> None:
        results[name] = _write_page(path, keys)[name]
        if on_result is not None:
            on_result(results[name])

    for name in names:
        if overwrite:
            _forget(path, name)
        if _kept(path, name, keys[name]) is None:
            missing[name] = {"name": name, "path": path, "key": keys[name]} | options
        elif name not in results:
            tell(name)
    if ordered := _largest_first(list(missing), jobs):
        told = _Told(tell)
        cells = {name: missing[name] for name in ordered}
        whole = finish(
            _reproduce_into, cells, told, Places(jobs), title="targets", on_progress=on_progress
        )
        if whole == INTERRUPTED:
            raise KeyboardInterrupt
    else:
        for name, each in missing.items():
            _reproduce_into(each | {"jobs": jobs, "on_progress": on_progress})
            tell(name)
    return [results[name] for name in names]


class _Told(Store[None]):
    """Says of each target that it is finished; what is found lies in the folder."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def add(self, key: str, result: None) -> None:
        super().add(key, result)
        self._tell(key)


def _largest_first(names: Sequence[str], jobs: int | None) -> list[str]:
    """Order targets by their seconds in the last full run; none if they do not fill processes.

    A process that takes whole targets is never idle between their cells, nor while one is drawn.
    """
    jobs, last = cores() if jobs is None else jobs, last_verdicts()
    seconds = {name: last.get(name, NOT_RUN)["seconds"] for name in names}
    if jobs == 1 or not names or None in seconds.values():
        return []
    if max(seconds.values()) > sum(seconds.values()) / jobs:
        return []
    return sorted(names, key=lambda name: -seconds[name])


def _reproduce_into(call: dict[str, Any]) -> None:
    """Reproduce one target into the folder, with its cells in a folder of their own."""
    name, path, key = (call.pop(each) for each in ("name", "path", "key"))
    cells = path / _CELLS / name
    cells.mkdir(parents=True, exist_ok=True)
    _write(reproduce(name, cells=cells, **call), path, key)


def _forget(path: Path, target: str) -> None:
    """Remove what the folder holds of a target."""
    shutil.rmtree(path / _CELLS / target, ignore_errors=True)
    for suffix in ("csv", "png", "json"):
        (path / f"{target}.{suffix}").unlink(missing_ok=True)


def _write(found: Reproduction, path: Path, key: str) -> None:
    """Write table and plots, and the JSON last: it says that the target is finished."""
    from matplotlib import pyplot
    from PIL import Image

    from optsched.report.pages import interactive

    name = found.target.name
    found.table.to_csv(path / f"{name}.csv", index=False)
    figure, drawn = found.plot(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=160)
    # A palette takes a third of the room of full colours; this method leaves thin lines theirs.
    palette = Image.open(drawn).convert("RGB").quantize(128, Image.Quantize.FASTOCTREE)
    palette.save(path / f"{name}.png", "PNG", optimize=True)
    write_whole(path / _CELLS / name / _PLOTS, sealed(key, {"plots": interactive(figure)}))
    pyplot.close(figure)
    write_whole(path / f"{name}.json", sealed(key, found.to_dict(), indent=1))


def _kept(path: Path, name: str, key: str) -> dict[str, Any] | None:
    """Return the JSON of a target that is finished, with its table and its plot; None of others."""
    whole = all((path / f"{name}.{suffix}").is_file() for suffix in ("csv", "png"))
    return unsealed(path / f"{name}.json", key) if whole else None


def _write_page(path: Path, keys: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Write the page of all targets that the folder holds, and return their JSON."""
    found = {name: _kept(path, name, key) for name, key in keys.items()}
    done = {name: result for name, result in found.items() if result is not None}
    images = {name: (path / f"{name}.png").read_bytes() for name in done}
    kept = {name: unsealed(path / _CELLS / name / _PLOTS, keys[name]) for name in done}
    plots = {name: each["plots"] for name, each in kept.items() if each is not None}
    page = render_reproductions(list(done.values()), images, plots)
    write_whole(path / "index.html", page.encode())
    return done


def render_reproductions(
    results: Sequence[dict[str, Any]],
    images: Mapping[str, bytes],
    plots: Mapping[str, list[Figure]],
) -> str:
    """Return the page of reproductions, from their JSON, PNG images and plots by target."""
    from optsched.report.pages import render_page

    counts = Counter(result["verdict"] for result in results)
    panels: dict[str, list[tuple[str, str]]] = {result["target"]: [] for result in results}
    figures: dict[str, Figure] = {}
    for target, drawn in plots.items():
        named = {f"{target}-{number}": panel for number, panel in enumerate(drawn)}
        panels[target] = [(name, each["layout"]["meta"]["caption"]) for name, each in named.items()]
        figures |= named
    return render_page(
        "page.html.j2",
        "optsched_papers",
        results=[result | _count(result["rows"]) for result in results],
        images={name: base64.b64encode(image).decode() for name, image in images.items()},
        panels=panels,
        figures=figures,
        policies=_recurring(plots),
        counts={label: counts[label] for label in LABELS if counts[label]},
        ranks={label: rank for rank, label in enumerate(LABELS)},
        quick=any(result["quick"] for result in results),
        seed=results[0]["seed"],
    )


def _count(claims: list[dict[str, Any]]) -> dict[str, int]:
    """Count the paper's own claims, and those of them that hold."""
    statements: dict[str | int, bool] = {}  # one that has readings holds if one of them does
    for place, claim in enumerate(claims):
        if claim["counts"]:
            key, holds = claim["statement"] or place, claim["verdict"] in (REPRODUCED, IN_SHAPE)
            statements[key] = statements.get(key, False) or holds
    return {"counted": len(statements), "holding": sum(statements.values())}


def _recurring(plots: Mapping[str, list[Figure]]) -> list[str]:
    """Return the policies that are plotted, in the order of their names."""
    from optsched.policies import POLICIES
    from optsched.simulate.cluster.routing import ROUTINGS

    known = {*POLICIES, *ROUTINGS}
    traces = [trace for panels in plots.values() for panel in panels for trace in panel["data"]]
    drawn = {trace["meta"] for trace in traces if "meta" in trace}
    return sorted(name for name in drawn if re.split("[,: ]", name)[0] in known)
