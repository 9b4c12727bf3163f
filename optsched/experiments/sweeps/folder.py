"""The folder of a sweep: Parquet files that are whole or not there, whenever it is stopped.

While a sweep runs, finished runs are added as part files, each written under another name and then
renamed. When all are there, one table takes their place. The names that are no data begin with
``_`` or ``.``, so that every reader of Parquet folders leaves them out.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optsched._internal.arguments import checked
from optsched._internal.extras import data_frame, need
from optsched._internal.files import write_whole
from optsched._version import __version__
from optsched.errors import OptschedError
from optsched.experiments.cells import read_manifest
from optsched.experiments.sweeps.run import OK

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from optsched.experiments.sweeps.plan import Plan

MANIFEST, TABLE = "_sweep.json", "results.parquet"

FLUSH_EVERY = 2.0  # seconds: at most so much work is done again


class SweepFolder:
    """The results of a sweep on disk, open for adding rows to one process at a time."""

    def __init__(self, path: str | Path, plan: Plan, resume: bool) -> None:
        self.path = Path(path)
        self._plan = plan
        self._resume = resume
        self._rows: list[dict[str, Any]] = []
        self._flushed = time.monotonic()
        #: Status of each run that is done, by its key.
        self.statuses: dict[str, str] = {}
        self._failed = 0

    def __enter__(self) -> SweepFolder:
        need("pyarrow", "a sweep")
        _check_foreign(self.path, self._plan)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = (self.path / "_lock").open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with this process
            self._begin()
        except BaseException as error:
            self._lock.close()
            if not isinstance(error, BlockingIOError):
                raise
            raise OptschedError(
                f"another process is writing results into {self.path}; let it finish, or take "
                "another folder"
            ) from None
        return self

    def _begin(self) -> None:
        for left_over in self.path.glob(".*.tmp"):
            left_over.unlink()
        found = _read(self.path)
        if found is not None:
            keys, statuses = (found.column(name).to_pylist() for name in ("key", "status"))
            self.statuses = dict(zip(keys, statuses, strict=True))
            self._failed = sum(each != OK for each in statuses)
            if not self._resume:
                raise OptschedError(
                    f"{self.path} holds {len(keys):,} of the {len(self._plan.runs):,} runs of this "
                    "sweep already; resume it (--resume), or take another folder"
                )
        manifest = {
            "format": "optsched-sweep",
            "name": self._plan.name,
            "hash": self._plan.hash,
            "runs": len(self._plan.runs),
            "version": __version__,
            "config": self._plan.config,
        }
        write_whole(self.path / MANIFEST, json.dumps(manifest, indent=1, default=str).encode())

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self.flush()
            complete = len(self.statuses) == len(self._plan.runs)
            if complete and not (self.path / TABLE).exists():
                self._compact()

    @property
    def failed(self) -> int:
        """Count the runs that are done whose status is not "ok"."""
        return self._failed

    def __contains__(self, key: str) -> bool:
        return key in self.statuses

    def add(self, key: str, row: dict[str, Any]) -> None:
        """Keep a row; it reaches the disk within seconds, with others."""
        self._rows.append(row)
        self.statuses[key] = row["status"]
        self._failed += row["status"] != OK
        if time.monotonic() - self._flushed > FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are not on disk yet as one part file."""
        if self._rows:
            keys = "".join(row["key"] for row in self._rows)
            name = f"part-{hashlib.sha256(keys.encode()).hexdigest()[:16]}.parquet"
            _write(_table(self._rows), self.path / name)
            self._rows = []
        self._flushed = time.monotonic()

    def _compact(self) -> None:
        """Put one table, in the order of the sweep, in the place of the part files."""
        import pyarrow as pa

        parts = list(self.path.glob("part-*.parquet"))
        found = _read(self.path)
        assert found is not None
        place = {run.key: number for number, run in enumerate(self._plan.runs)}
        order = pa.array([place[key] for key in found.column("key").to_pylist()])
        _write(found.take(pa.compute.sort_indices(order)), self.path / TABLE)
        for part in parts:
            part.unlink()


@checked()
def read_sweep(folder: str | Path) -> pd.DataFrame:
    """Read the results of a sweep, finished or not.

    Parameters
    ----------
    folder
        The folder that `optsched.sweep` wrote.

    Returns
    -------
    pandas.DataFrame
        One row per run that is done, in the order of the sweep once all are. Whole numbers that
        are missing in some rows make a column of type Int64.

    Raises
    ------
    OptschedError
        If the folder holds no sweep.

    Examples
    --------
    >>> import tempfile
    >>> from optsched import read_sweep, sweep
    >>> config = {
    ...     "instances": [{"family": "sorted-f-example-1"}],
    ...     "policies": [{"name": ["mc-sf", "area"]}],
    ... }
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = sweep(config, folder, jobs=1)
    ...     print(read_sweep(folder)[["policy", "status", "total_latency"]].to_string())
      policy status  total_latency
    0  mc-sf     ok             64
    1   area     ok             45
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


def _check_foreign(path: Path, plan: Plan) -> None:
    """Refuse a folder that holds anything else than results of this sweep by this version."""
    manifest = read_manifest(path, MANIFEST, "sweep")
    if manifest is None:
        return
    if manifest["hash"] != plan.hash:
        new = json.loads(json.dumps(plan.config, default=str))
        old = manifest["config"]
        differing = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        raise OptschedError(
            f"{path} holds results of another sweep, {manifest['name']!r} with "
            f"{manifest['runs']:,} runs ({manifest['hash'][:12]}), which differs from "
            f"{plan.name!r} ({plan.hash[:12]}) in {' and '.join(differing) or 'its traces'}; take "
            "another folder"
        )
    if manifest["version"] != __version__:
        raise OptschedError(
            f"{path} was begun with optsched {manifest['version']} and this is {__version__}, "
            "whose results might differ; take another folder"
        )


def _read(path: Path) -> pa.Table | None:
    """Read all rows on disk; None if there are none."""
    import pyarrow as pa
    from pyarrow import parquet

    whole = path / TABLE
    # Part files beside the table are what a killed process had no time to remove.
    files = [whole] if whole.exists() else sorted(path.glob("part-*.parquet"))
    tables = [parquet.read_table(file, partitioning=None) for file in files]
    return pa.concat_tables(tables, promote_options="permissive") if tables else None


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    """Make a table of the columns that any row has a value in."""
    import pyarrow as pa

    found = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
    return pa.table({name: [row.get(name) for row in rows] for name in found})


def _write(table: pa.Table, path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    buffer = pa.BufferOutputStream()
    parquet.write_table(table, buffer)
    write_whole(path, buffer.getvalue())
