"""`sweep`: what is missing is carried out, and kept as it comes."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from optsched._internal.arguments import checked
from optsched._internal.views import draw, html, text, write
from optsched.errors import OptschedError, require_known
from optsched.experiments.cells import Places, finish
from optsched.experiments.sweeps.folder import opened, read_sweep
from optsched.experiments.sweeps.plan import read_plan
from optsched.experiments.sweeps.run import OK, killed, perform
from optsched.experiments.sweeps.summary import summarised

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import pandas as pd
    from matplotlib.axes import Axes

    from optsched.experiments.cells import Progress

Executor = Literal["local", "dask"]
EXECUTORS: tuple[Executor, ...] = get_args(Executor)

_LISTED = 3  # reasons of failure that are printed


@dataclass(frozen=True, repr=False)
class Sweep:
    """What a sweep did; the results themselves are in its folder."""

    folder: Path
    runs: int
    done: int  # earlier calls included
    carried_out: int  # by this call
    failures: dict[str, int]  # runs of each status that is not "ok"
    status: str  # "complete", or "interrupted" by Ctrl-C: resume it
    seconds: float  # of this call

    @property
    def failed(self) -> int:
        """Runs that are done whose status is not "ok"."""
        return sum(self.failures.values())

    def to_pandas(self) -> pd.DataFrame:
        """Return the results, one row per run: see `read_sweep`."""
        return read_sweep(self.folder)

    @cached_property
    def _summary(self) -> tuple[list[dict[str, Any]], list[str]]:
        return summarised(self.folder)

    @property
    def means(self) -> list[dict[str, Any]]:
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

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the runs as plain data, ready for JSON; "means" is the table."""
        facts = {each.name: getattr(self, each.name) for each in fields(self)[1:]}
        return {"out": str(self.folder), **facts, "failed": self.failed, "means": self.means}

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the mean latencies with their intervals."""
        return draw("plot_means", self, ax)

    def to_html(self, path: str | Path) -> None:
        """Write table and plot as one HTML file that needs no network."""
        write("summary_page", path, self)

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
    address: Any = None,
    jobs: int | None = None,
    resume: bool = False,
    *,
    seed: int = 0,
    on_progress: Callable[[Progress], object] | None = None,
) -> Sweep:
    """Run policies on instances with seeds, on all cores or a cluster, into a folder of Parquet.

    A run that fails is a row whose status says why. A run whose process is killed is done again.
    After Ctrl-C, or after this process was killed, `resume` does only what is missing.

    Parameters
    ----------
    config
        A TOML file, or a mapping of the same form: docs/sweeps.md explains it. Policies may be
        objects, functions or "module:name"; their code is sent to all processes.
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
        Called when a run is done, with `done`, `count`, `failed` and `seconds_left`; printed, it
        is one line.

    Returns
    -------
    Sweep
        What was done: `runs`, `done`, `carried_out`, `failed` and `failures`, `status` ("complete"
        or "interrupted"), `seconds`, the results by `to_pandas()`, and their `means` over the seeds
        with 95 % confidence intervals by Student's t and differences that are paired by seed, and
        the best of each setting among `notes`; printing, `plot` and `to_html` show them.

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
    >>> result.done, result.failed
    (8, 0)
    >>> sorted(set(frame.policy)), sorted(set(frame.n))
    (['area', 'area+backfill'], [10, 20])
    """
    places = _places(executor, address, jobs)
    began = time.perf_counter()
    plan = read_plan(config, seed)
    cells = {run.key: run for run in plan.runs}
    with opened(out, plan, resume=resume) as folder:
        before = len(folder)
        status = finish(
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


def _places(executor: str, address: Any, jobs: int | None) -> Places:
    """Check where a sweep is to run."""
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
    return Places(jobs, address)
