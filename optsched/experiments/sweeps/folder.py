"""The folder of a sweep: Parquet files that are whole or not there, whenever it is stopped.

Finished runs are added as part files, which one table replaces in the end. Names of other files
begin with ``_`` or ``.``, so that readers of Parquet folders leave them out.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optsched._internal.arguments import checked
from optsched._internal.extras import data_frame, need
from optsched._internal.files import write_whole
from optsched._internal.fingerprints import fingerprint
from optsched._version import __version__
from optsched.errors import OptschedError
from optsched.experiments.store import Store, changed, locked, open_folder, refuse_begun, writing
from optsched.experiments.sweeps.run import OK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd
    import pyarrow as pa

    from optsched.experiments.store import Settings
    from optsched.experiments.sweeps.plan import Plan

MANIFEST, TABLE = "_sweep.json", "results.parquet"

FLUSH_EVERY = 2.0  # seconds: at most so much work is done again


@contextmanager
def opened(out: str | Path, plan: Plan, *, resume: bool) -> Iterator[SweepFolder]:
    """Open the folder of a sweep, to which only this process then adds rows."""
    need("pyarrow", "a sweep")
    path, settings = Path(out), {"key": plan.key, "version": __version__, "config": plan.config}
    open_folder(path, MANIFEST, "sweep", settings, _differing, resume=resume)
    with locked(path):
        for left_over in path.glob(".*.tmp"):
            left_over.unlink()
        folder = SweepFolder(path, [run.key for run in plan.runs])
        if not resume:
            refuse_begun(path, len(folder), len(plan.runs), "runs of this sweep")
        try:
            yield folder
        finally:
            folder.close()


def _differing(old: Settings, new: Settings) -> list[str]:
    if old["key"] == new["key"] or old["version"] != new["version"]:
        return changed(old, {"version": new["version"]})
    config, asked = old["config"], new["config"]
    names = [key for key in {**config, **asked} if config.get(key) != asked.get(key)]
    return names or ["the content of the files that it names"]


class SweepFolder(Store[dict[str, Any]]):
    """The statuses of the runs that are done, whose rows are on disk or soon will be."""

    def __init__(self, path: Path, keys: Sequence[str]) -> None:
        super().__init__()
        self.path = path
        self._keys = keys  # of the whole sweep, in its order
        self._rows: list[dict[str, Any]] = []
        self._flushed = time.monotonic()
        for file in path.glob("*.parquet"):
            try:
                _rows(file)
            except OptschedError:  # whose runs are done again
                file.unlink()
        if (found := _read(path)) is not None:
            columns = (found.column(name).to_pylist() for name in ("key", "status"))
            known = set(keys)
            self.update(each for each in zip(*columns, strict=True) if each[0] in known)
        if len(self) < len(keys) and (path / TABLE).exists():  # it is not what it was
            (path / TABLE).rename(path / "part-before.parquet")
        self.failed = sum(status != OK for status in self.values())

    def add(self, key: str, row: dict[str, Any]) -> None:
        """Keep a row; it reaches the disk within seconds, with others."""
        self._rows.append(row)
        self[key] = row["status"]
        self.failed += row["status"] != OK
        if time.monotonic() - self._flushed > FLUSH_EVERY:
            self.flush()

    def close(self) -> None:
        """Write what is not on disk yet, and one table once all runs are done."""
        self.flush()
        if len(self) == len(self._keys) and not (self.path / TABLE).exists():
            self._compact()

    def flush(self) -> None:
        """Write the rows that are not on disk yet as one part file."""
        if self._rows:
            name = f"part-{fingerprint([row['key'] for row in self._rows])[:16]}.parquet"
            with writing(self.path):
                _write(_table(self._rows), self.path / name)
            self._rows = []
        self._flushed = time.monotonic()

    def _compact(self) -> None:
        """Put one table, in the order of the sweep, in the place of the part files."""
        parts = list(self.path.glob("part-*.parquet"))
        found = _read(self.path)
        assert found is not None
        place = {key: number for number, key in enumerate(found.column("key").to_pylist())}
        with writing(self.path):
            _write(found.take([place[key] for key in self._keys]), self.path / TABLE)
        for part in parts:
            part.unlink()


@checked()
def read_sweep(folder: str | Path) -> pd.DataFrame:
    """Read the results of a sweep, one row per run that is done, as in the example of `sweep`.

    Rows are in the order of the sweep once all are done. Whole numbers that are missing in some
    make a column of type Int64. A folder that holds no sweep raises an `OptschedError`.
    """
    path = Path(folder)
    need("pyarrow", "the table of a sweep")
    if not (path / MANIFEST).is_file():
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


def read_columns(path: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """Read some columns of all rows on disk, as far as there are such columns."""
    found = _read(path)
    if found is None:
        return []
    rows: list[dict[str, Any]] = found.select(
        [name for name in names if name in found.column_names]
    ).to_pylist()
    return rows


def _read(path: Path) -> pa.Table | None:
    """Read all rows on disk; None if there are none."""
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
        if {"key", "status", "source", "policy"} <= set(found.column_names):
            return found
    raise OptschedError(
        f"{file} is damaged; resume the sweep (--resume), which does the runs in it again"
    )


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    """Make a table of the columns that any row has a value in."""
    import pyarrow as pa

    found = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
    return pa.table({name: [row.get(name) for row in rows] for name in found})


def _write(table: pa.Table, path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    buffer = pa.BufferOutputStream()
    parquet.write_table(table, buffer, write_page_checksum=True)
    write_whole(path, buffer.getvalue())
