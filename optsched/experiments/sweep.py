"""Sweeps: many settings, resumed where they stopped."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.files import JSON, write_whole
from optsched._internal.fingerprints import fingerprint
from optsched._internal.imports import data_frame, need
from optsched._internal.numbers import CONFIDENCE, ConfidenceInterval, number
from optsched._internal.views import View, html, text
from optsched._version import __version__
from optsched.errors import OptschedError, require_known
from optsched.experiments import cells as runner
from optsched.experiments.sweep_plan import OK, killed, perform, read_plan
from optsched.problem.premises import KNOWLEDGE, deployable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import pandas as pd
    import pyarrow as pa

    from optsched.experiments.cells import CellProgress


# Part files become one table in the end; readers of Parquet folders pass over names with "_".
_MANIFEST, TABLE = "_sweep.json", "results.parquet"
_SEAL = b"optsched.seal"  # of a file's rows, which breaks where one is changed

FLUSH_EVERY = 2.0  # seconds: at most so much work is done again


class SweepFolder(runner.JsonFolder):
    """The statuses of the runs that are done, whose rows are on disk or soon will be."""

    kind, title = "sweep", "runs"

    @staticmethod
    def differing(old: JSON, new: JSON) -> list[str]:
        """Name what differs: keys of the file, where it is not the version."""
        if old["key"] == new["key"] or old["version"] != new["version"]:
            return runner.changed(old, {"version": new["version"]})
        config, asked = old["config"], new["config"]
        names = [key for key in {**config, **asked} if config.get(key) != asked.get(key)]
        return names or ["the content of the files that it names"]

    def _read(self, keys: Collection[str]) -> None:
        self._keys = keys  # of the whole sweep, in its order
        self._rows: list[JSON] = []
        self._flushed, path = time.monotonic(), self.path
        with runner.writing(path):
            for left_over in path.glob(".*.tmp"):
                left_over.unlink()
            for file in sorted(each for each in path.glob("*.parquet") if each.name[0] != "_"):
                self._take(file)
            if len(self) < len(keys) and (path / TABLE).exists():  # it is not what it was
                (path / TABLE).rename(path / "part-before.parquet")
        self.failed = sum(status != OK for status in self.values())

    def _take(self, file: Path) -> None:
        """Take the rows of this sweep out of a file; what else it holds is no more read."""
        rows, wanted = None, list[int]()
        with suppress(OptschedError):  # of a damaged one, whose runs are done again
            rows = _rows(file)
            keys, statuses = (rows.column(name).to_pylist() for name in ("key", "status"))
            for at, key in enumerate(keys):
                if key in self._keys and key not in self:
                    self[key] = statuses[at]
                    wanted.append(at)
        if rows is None or len(wanted) < len(rows):
            file.rename(file.with_name(f"_other-{file.name}"))
            if rows is not None and wanted:
                name = fingerprint([keys[at] for at in wanted])[:16]
                _write(rows.take(wanted), self.path / f"part-{name}.parquet")

    def add(self, key: str, row: JSON) -> None:
        """Keep a row; it reaches the disk within seconds, with others."""
        self._rows.append(row)
        self[key] = row["status"]
        self.failed += row["status"] != OK
        if time.monotonic() - self._flushed > FLUSH_EVERY:
            self.flush()

    def close(self) -> None:
        """Write what is not on disk yet; once all runs are done, one table in their order."""
        self.flush()
        if len(self) < len(self._keys) or (self.path / TABLE).exists():
            return
        parts, found = list(self.path.glob("part-*.parquet")), _read(self.path)
        assert found is not None
        place = {key: number for number, key in enumerate(found.column("key").to_pylist())}
        with runner.writing(self.path):
            _write(found.take([place[key] for key in self._keys]), self.path / TABLE)
        for part in parts:
            part.unlink()

    def flush(self) -> None:
        """Write the rows that are not on disk yet as one part file."""
        if self._rows:
            name = f"part-{fingerprint([row['key'] for row in self._rows])[:16]}.parquet"
            with runner.writing(self.path):
                _write(_table(self._rows), self.path / name)
            self._rows = []
        self._flushed = time.monotonic()


@checked()
def read_sweep(folder: str | Path) -> pd.DataFrame:
    """Read the results of a sweep, one row per run that is done, in its order once all are.

    Whole numbers that are missing in some rows make a column of type Int64. A folder that holds no
    sweep raises an `OptschedError`.
    """
    path = Path(folder)
    need("pyarrow", "the table of a sweep")
    if not (path / _MANIFEST).is_file():
        raise OptschedError(f"{path} holds no sweep; name the folder that was given as out")
    found = _read(path)
    if found is None:
        return data_frame({}, columns=["key", "policy", "seed", "status"])
    frame: pd.DataFrame = found.to_pandas()
    gaps = [
        field.name
        for field, column in zip(found.schema, found.columns, strict=True)
        if str(field.type) == "int64" and column.null_count
    ]
    return frame.astype(dict.fromkeys(gaps, "Int64"))


def _read(path: Path) -> pa.Table | None:
    import pyarrow as pa

    whole = path / TABLE
    # Part files beside the table are what a killed process had no time to remove.
    files = [whole] if whole.exists() else sorted(path.glob("part-*.parquet"))
    tables = list(map(_rows, files))
    return pa.concat_tables(tables, promote_options="permissive") if tables else None


def _rows(file: Path) -> pa.Table:
    """Read the rows of one file, or say that it is damaged."""
    import pyarrow as pa
    from pyarrow import parquet

    with suppress(pa.ArrowException, OSError, ValueError):
        found = parquet.read_table(file, partitioning=None, page_checksum_verification=True)
        seal = (found.schema.metadata or {}).get(_SEAL)
        whole = seal is None and file.name != TABLE  # of a part, whose keys say what it holds
        whole = whole or seal == fingerprint(found.to_pydict()).encode()
        if whole and {"key", "status", "source", "policy"} <= set(found.column_names):
            return found
    raise OptschedError(
        f"{file} is damaged; resume the sweep (--resume), which does the runs in it again"
    )


def _table(rows: list[JSON]) -> pa.Table:
    import pyarrow as pa

    found = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
    return pa.table({name: [row.get(name) for row in rows] for name in found})


def _write(table: pa.Table, path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    buffer = pa.BufferOutputStream()
    table = table.replace_schema_metadata({_SEAL: fingerprint(table.to_pydict())})
    parquet.write_table(table, buffer, write_page_checksum=True)
    write_whole(path, buffer.getvalue())


_WORLD = ("clock", "workers")  # options that make another setting, and not another policy
_LISTED_SETTINGS = 3  # settings of which the best is named
Rows = list[JSON]
Group = list[tuple[JSON, dict[int, float]]]  # means, and mean latencies by seed


def summarised(path: Path) -> tuple[Rows, list[str]]:
    """Return means with what differs between the rows, and the best of each setting in words."""
    tables = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))["config"]["policies"]
    options = dict.fromkeys(key for each in tables for key in each if key not in ("name", "rule"))
    values = ("seed", "status", "knows", "mean_latency", "unit", "gap")
    groups: dict[str, Rows] = {}
    table = _read(path)
    wanted = ["source", "policy", *options, *values]
    there = [] if table is None else [name for name in wanted if name in table.column_names]
    for row in [] if table is None else table.select(there).to_pylist():
        what = json.loads(row.pop("source")) | {name: row.pop(name, None) for name in options}
        groups.setdefault(json.dumps(what | {"policy": row.pop("policy")}), []).append(row)
    found = [json.loads(each) for each in groups]
    names = dict.fromkeys(name for each in found for name in each)
    differ = [name for name in names if len({str(each.get(name)) for each in found}) > 1]
    shown = ["policy", *(name for name in differ if name != "policy")]
    means: Rows = []
    settings: dict[tuple[str, str], Group] = {}
    ours = {"policy", *options} - {*_WORLD}
    for each, rows in zip(found, groups.values(), strict=True):
        means.append({name: each.get(name) for name in shown} | _means(rows))
        if means[-1]["mean_latency"] is not None:
            world = ", ".join(f"{name} {each.get(name)}" for name in shown if name not in ours)
            of_seed = {row["seed"]: row["mean_latency"] for row in rows if row["status"] == OK}
            unit = rows[0].get("unit") or "steps"
            settings.setdefault((world, unit), []).append((means[-1], of_seed))
    said = [_best(*setting, group, ours) for setting, group in settings.items()]
    if (more := len(said) - _LISTED_SETTINGS) > 0:
        said[_LISTED_SETTINGS:] = [
            f"... and {more:,} other setting{'s' * (more > 1)}: see the table"
        ]
    return means, said


def _best(world: str, unit: str, group: Group, ours: set[str]) -> str:
    """Compare the policies of a setting by seed, and say which can be deployed and is the best."""
    (first, least), *others = sorted(group, key=lambda each: float(each[0]["mean_latency"]["mean"]))
    for entry, of_seed in others:
        paired = [mean - least[seed] for seed, mean in of_seed.items() if seed in least]
        if paired:  # intervals that hold together
            confidence = 1 - (1 - CONFIDENCE) / len(others)
            entry["difference"] = ConfidenceInterval.of(np.array(paired), confidence).to_dict()
    ranked = [
        (
            ", ".join(str(entry[name]) for name in entry if name in ours and entry[name]),
            entry["knows"],
            entry["mean_latency"]["mean"],
        )
        for entry in (first, *(entry for entry, _ in others))
    ]
    said = " ".join(deployable(ranked, lambda value: f"{number(value)} {unit}"))
    return f"{world}: {said}" if world else said


def _means(rows: Rows) -> JSON:
    done = [row for row in rows if row["status"] == OK]
    told = {row["knows"] for row in done if row.get("knows")}
    latency, gap = ([row.get(name) for row in done] for name in ("mean_latency", "gap"))
    known = bool(done) and None not in latency
    proven = bool(done) and None not in gap
    return {
        "knows": min(told, key=KNOWLEDGE.index, default=None),
        "runs": len(rows),
        "failed": len(rows) - len(done),
        "mean_latency": ConfidenceInterval.of(np.array(latency)).to_dict() if known else None,
        "difference": None,  # to the least mean of the setting, paired by seed
        "gap": float(np.array(gap).mean()) if proven else None,
    }


Executor = Literal["local", "dask"]
EXECUTORS: tuple[Executor, ...] = get_args(Executor)

_LISTED = 3  # reasons of failure that are printed


@dataclass(frozen=True, repr=False)
class Sweep(View):
    """What a sweep did; the results themselves are in its folder."""

    folder: Path
    runs: int
    done: int  # earlier calls included
    carried_out: int  # by this call
    failures: dict[str, int]  # runs of each status that is not "ok"
    status: str  # "complete", or "interrupted" by Ctrl-C: resume it
    seconds: float  # of this call
    _view = ("means_table", "plot_means", "summary_page")

    @property
    def failed(self) -> int:
        """Runs that are done whose status is not "ok"."""
        return sum(self.failures.values())

    def to_pandas(self) -> pd.DataFrame:
        """Return the results, one row per run: see `read_sweep`."""
        return read_sweep(self.folder)

    @cached_property
    def _summary(self) -> tuple[list[JSON], list[str]]:
        return summarised(self.folder)

    @property
    def means(self) -> list[JSON]:
        """One row per policy and instance: mean latency, paired difference, and mean gap."""
        return self._summary[0]

    @property
    def title(self) -> str:
        """What it is, for a page."""
        return f"Sweep in {self.folder}"

    @property
    def caption(self) -> str:
        """What the columns of the table are."""
        proven = any(entry["gap"] is not None for entry in self.means)
        gap = "; gap to the proven bound, in the mean" * proven
        return (
            "mean latency over the seeds, with the 95 % confidence interval by Student's t; "
            "difference to the least mean of the setting: paired by seed, intervals that hold "
            f"together{gap}; knows: what is told of an output before it ends"
        )

    def to_dict(self) -> JSON:
        """Return everything but the runs as plain data, ready for JSON; "means" is the table."""
        facts = {each.name: getattr(self, each.name) for each in fields(self)[1:]}
        return {"out": str(self.folder), **facts, "failed": self.failed, "means": self.means}

    def __repr__(self) -> str:
        done = f"{self.done:,} of {self.runs:,} runs, {self.failed:,} failed"
        return f"<Sweep {str(self.folder)!r}: {done}, {self.status}>"

    def _repr_html_(self) -> str:
        return html("facts_table", self) + (html("means_table", self) if self.means else "")

    def __str__(self) -> str:
        return "\n".join([*self.notes, text("means_table", self) if self.means else ""]).rstrip()

    @property
    def notes(self) -> list[str]:
        """What was found, what was done and what failed, one line each."""
        found = [
            *self._summary[1],
            f"{self.done:,} of {self.runs:,} runs in {self.folder}, {self.carried_out:,} of them "
            f"carried out now in {self.seconds:,.1f} s",
        ]
        for reason, count in list(self.failures.items())[:_LISTED]:
            found.append(f"  {count:,} failed: {reason}")
        if len(self.failures) > _LISTED:
            found.append(f"  ... and {len(self.failures) - _LISTED:,} other reasons (see status)")
        return found


@checked(OptschedError)
def sweep(
    config: str | Path | Mapping[str, Any],
    out: str | Path,
    executor: Executor = "local",
    address: object = None,
    jobs: int | None = None,
    resume: bool = False,
    *,
    seed: int = 0,
    on_progress: Callable[[CellProgress], object] | None = None,
) -> Sweep:
    """Run policies on instances with seeds, on all cores or a cluster, into a folder of Parquet.

    A run that fails is a row whose status says why. After Ctrl-C, or after this process was killed,
    `resume` does only what is missing.

    Parameters
    ----------
    config
        A TOML file, or a mapping of the same form: docs/sweeps.md explains it. Policies may be
        objects, functions or "module:name", whose code is sent to all processes; in a mapping a
        trace may be an `Instance`.
    out
        The folder of the results, which `read_sweep` reads.
    executor
        "local": processes on this machine. "dask": a cluster, which need not see any of the files.
    address
        Of the Dask scheduler, such as "tcp://10.0.0.1:8786", or a Dask `Client` or `Cluster`.
    jobs
        Processes on this machine; None: one per core; 1: this process itself.
    resume
        Whether to go on with results of this sweep that are in the folder.
    seed
        Added to all seeds; another value makes another sweep.
    on_progress
        Called when a run is done, with `done`, `count`, `failed` and `seconds_left`.

    Returns
    -------
    Sweep
        What was done, `failures`, and `status` ("complete" or "interrupted"); the results by
        `to_pandas()`, their `means` over seeds, and the best of each setting among `notes`.

    Raises
    ------
    OptschedError
        If the file is not understood, the folder holds something else, or no scheduler answers.

    Examples
    --------
    >>> import tempfile
    >>> from optsched import read_sweep, sweep
    >>> config = {
    ...     "seeds": 2,
    ...     "instances": [{"family": "uniform", "n": [10, 20]}],
    ...     "policies": [{"name": "area", "rule": ["prefix", "backfill"]}],
    ... }
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = sweep(config, folder, jobs=1)
    ...     frame = read_sweep(folder)
    >>> result.done, sorted(set(frame.policy)), sorted(set(frame.n))
    (8, ['area', 'area+backfill'], [10, 20])
    """
    places, began = _places(executor, address, jobs), time.perf_counter()
    plan = read_plan(config, seed)
    cells = {run.key: run for run in plan.runs}
    need("pyarrow", "a sweep")
    settings = {"key": plan.key, "version": __version__, "config": plan.config}
    with SweepFolder.opened(Path(out), settings, cells, resume=resume) as folder:
        before = len(folder)
        status = runner.finish(
            perform, cells, folder, places, title="runs", on_progress=on_progress, on_killed=killed
        )
    failures = Counter(each for each in folder.values() if each != OK)
    return Sweep(
        folder.path,
        len(plan.runs),
        len(folder),
        len(folder) - before,
        dict(failures.most_common()),
        status,
        time.perf_counter() - began,
    )


def _places(executor: str, address: object, jobs: int | None) -> runner.Places:
    require_known("executor", executor, EXECUTORS, OptschedError)
    if (executor == "dask") != (address is not None):
        raise OptschedError(
            "the executor dask needs the address of a scheduler, such as tcp://127.0.0.1:8786, and "
            "only that executor takes one"
        )
    if address is not None and jobs is not None:
        raise OptschedError(
            f"jobs is {jobs}, but the executor dask has workers of its own; leave jobs out"
        )
    return runner.Places(jobs, address)
