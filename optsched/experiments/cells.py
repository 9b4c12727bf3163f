"""Cells: calls of one function, each carried out once, and kept as they are finished."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from optsched._internal.arguments import as_count
from optsched._internal.progress import watched
from optsched.errors import OptschedError, is_interrupt
from optsched.experiments.executors import check_scheduler, on_dask, on_local_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from optsched.experiments.store import Store

Cell = TypeVar("Cell")
Result = TypeVar("Result")

COMPLETE, INTERRUPTED = "complete", "interrupted"


@dataclass(frozen=True)
class Progress:
    """How far an experiment is: cells that are done (earlier calls included), failed, and all."""

    title: str
    done: int
    count: int
    failed: int
    seconds_left: float  # if the rest takes as long per cell as those done by this call

    def __str__(self) -> str:
        failed = f", {self.failed:,} failed" if self.failed else ""
        left = timedelta(seconds=round(self.seconds_left))
        return f"{self.done:,} of {self.count:,} {self.title}{failed}, about {left} left"


@dataclass(frozen=True)
class Places:
    """Where cells are carried out: processes of this machine (None: all cores), or Dask's."""

    jobs: int | None = 1
    address: Any = None  # text, or a client or cluster of Dask

    def __post_init__(self) -> None:
        if self.address is not None:
            check_scheduler(self.address)
        elif self.jobs is not None:
            as_count("jobs", self.jobs, error=OptschedError)


def finish(
    function: Callable[[Cell], Result],
    cells: Mapping[str, Cell],
    store: Store[Result],
    places: Places,
    *,
    title: str = "cells",
    on_progress: Callable[[Progress], object] | None = None,
    on_killed: Callable[[Cell], Result] | None = None,
) -> str:
    """Carry out the cells that are not in the store, and say whether that was interrupted."""

    def killed(cell: Cell) -> Result:
        if on_killed is not None:
            return on_killed(cell)
        raise OptschedError(
            f"one of the {title} kills every process that tries it, perhaps by running out of "
            "memory; the others are kept: go on with fewer jobs"
        )

    missing = {key: cell for key, cell in cells.items() if key not in store}
    done = len(cells) - len(missing)
    began = time.perf_counter()
    if places.address is None:
        results = on_local_cores(function, missing, places.jobs, killed)
    else:
        results = on_dask(function, missing, places.address, killed)
    try:
        with watched(on_progress) as tell, closing(results):
            for number, (key, result) in enumerate(results, 1):
                store.add(key, result)
                if tell is not None:
                    left = (time.perf_counter() - began) / number * (len(missing) - number)
                    tell(Progress(title, done + number, len(cells), store.failed, left))
    except (KeyboardInterrupt, SystemError) as stop:
        if not is_interrupt(stop):
            raise
        return INTERRUPTED
    return COMPLETE
