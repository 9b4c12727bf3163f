"""`sweep`: what is missing is carried out, and kept as it comes."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from optsched.errors import OptschedError, nearest
from optsched.experiments.sweeps.executors import check_scheduler, on_dask, on_local_cores
from optsched.experiments.sweeps.folder import SweepFolder, read_sweep
from optsched.experiments.sweeps.plan import read_plan
from optsched.experiments.sweeps.run import OK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import pandas as pd

Executor = Literal["local", "dask"]
EXECUTORS: tuple[Executor, ...] = ("local", "dask")

_LISTED = 3  # reasons of failure that are printed


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is.

    Attributes
    ----------
    done
        Runs that are done, earlier ones included.
    runs
        All runs.
    failed
        Runs that are done whose status is not "ok".
    seconds_left
        An estimate: the rest will take as long per run as those done since the start.
    """

    done: int
    runs: int
    failed: int
    seconds_left: float

    def __str__(self) -> str:
        failed = f", {self.failed:,} failed" if self.failed else ""
        left = timedelta(seconds=round(self.seconds_left))
        return f"{self.done:,} of {self.runs:,} runs{failed}, about {left} left"


@dataclass(frozen=True)
class Sweep:
    """What came of a sweep; the results themselves are in its folder.

    Attributes
    ----------
    folder
        Where the results are.
    runs
        All runs.
    done
        Runs that are done, earlier ones included.
    carried_out
        Those done by this call.
    failures
        How many runs there are of each status that is not "ok".
    status
        "complete", or "interrupted" by Ctrl-C: resume it.
    seconds
        Wall time of this call.
    """

    folder: Path
    runs: int
    done: int
    carried_out: int
    failures: dict[str, int]
    status: str
    seconds: float

    @property
    def failed(self) -> int:
        """Runs that are done whose status is not "ok"."""
        return sum(self.failures.values())

    def to_pandas(self) -> pd.DataFrame:
        """Give the results, one row per run: see `read_sweep`."""
        return read_sweep(self.folder)

    def to_dict(self) -> dict[str, Any]:
        """Give everything but the results as plain data, ready for JSON."""
        return {
            "out": str(self.folder),
            "status": self.status,
            "runs": self.runs,
            "done": self.done,
            "carried_out": self.carried_out,
            "failed": self.failed,
            "failures": self.failures,
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        lines = [
            f"{self.done:,} of {self.runs:,} runs in {self.folder}, {self.carried_out:,} of them "
            f"carried out now in {self.seconds:,.1f} s"
        ]
        for reason, count in list(self.failures.items())[:_LISTED]:
            lines.append(f"  {count:,} failed: {reason}")
        if len(self.failures) > _LISTED:
            lines.append(f"  ... and {len(self.failures) - _LISTED:,} other reasons (see status)")
        return "\n".join(lines)


def sweep(
    config: str | Path | Mapping[str, Any],
    out: str | Path,
    executor: Executor = "local",
    address: str | None = None,
    workers: int | None = None,
    resume: bool = False,
    *,
    seed: int = 0,
    on_progress: Callable[[SweepProgress], object] | None = None,
) -> Sweep:
    """Run policies on instances with seeds, on all cores or a cluster, into a folder of Parquet.

    A run that fails is a row whose status says why. A run whose process is killed is done again.
    After Ctrl-C, or after this process was killed, `resume` does only what is missing.

    Parameters
    ----------
    config
        A TOML file, or a mapping of the same form: docs/sweeps.md explains it.
    out
        The folder of the results, which `read_sweep` reads.
    executor
        "local": processes on this machine. "dask": a cluster, which need not see any of the files.
    address
        Of the Dask scheduler, such as "tcp://10.0.0.1:8786".
    workers
        Processes on this machine; None takes as many as there are cores, 1 this process itself.
    resume
        Whether to go on with results of this sweep that are in the folder.
    seed
        By how much all seeds are moved; another seed makes another sweep.
    on_progress
        Called when a run is done.

    Returns
    -------
    Sweep
        What was done.

    Raises
    ------
    OptschedError
        If the file is not understood, the folder holds something else, or no scheduler answers.

    Examples
    --------
    >>> import tempfile
    >>> from optsched import sweep
    >>> config = {
    ...     "seeds": 2,
    ...     "instances": [{"family": "uniform", "n": [10, 20]}],
    ...     "policies": [{"name": "area", "rule": ["prefix", "backfill"]}],
    ... }
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = sweep(config, folder, workers=1)
    ...     frame = result.to_pandas()
    >>> result.done, result.failed
    (8, 0)
    >>> sorted(set(frame.policy)), sorted(set(frame.n))
    (['area', 'area+backfill'], [10, 20])
    """
    _check_executor(executor, address, workers)
    began = time.perf_counter()
    plan = read_plan(config, seed)
    status = "complete"
    with SweepFolder(out, plan, resume) as folder:
        missing = [run for run in plan.runs if run.key not in folder.statuses]
        failed = sum(each != OK for each in folder.statuses.values())
        if address is not None:
            rows = on_dask(missing, address)
        else:
            rows = on_local_cores(missing, workers)
        carried_out = 0
        started = time.perf_counter()
        try:
            with closing(rows):
                for row in rows:
                    folder.add(row)
                    carried_out += 1
                    failed += row["status"] != OK
                    if on_progress is not None:
                        per_run = (time.perf_counter() - started) / carried_out
                        left = per_run * (len(missing) - carried_out)
                        done = len(folder.statuses)
                        on_progress(SweepProgress(done, len(plan.runs), failed, left))
        except KeyboardInterrupt:
            status = "interrupted"
    failures = Counter(each for each in folder.statuses.values() if each != OK)
    return Sweep(
        folder.path,
        len(plan.runs),
        len(folder.statuses),
        carried_out,
        dict(failures.most_common()),
        status,
        time.perf_counter() - began,
    )


def _check_executor(executor: str, address: str | None, workers: int | None) -> None:
    if executor not in EXECUTORS:
        raise OptschedError(f"unknown executor {executor!r}: {nearest(executor, EXECUTORS)}")
    if (executor == "dask") != (address is not None):
        raise OptschedError(
            "the executor dask needs the address of a scheduler, such as tcp://127.0.0.1:8786, and "
            "only that executor takes one"
        )
    if address is not None:
        if workers is not None:
            raise OptschedError("workers are processes of this machine; a Dask cluster has its own")
        check_scheduler(address)
    elif workers is not None and workers < 1:
        raise OptschedError(f"workers is {workers}, but must be at least 1")
