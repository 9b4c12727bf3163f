"""Cells: calls of one function, each carried out once, and kept as they are finished."""

from __future__ import annotations

import json
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from optsched._internal.arguments import as_count
from optsched._internal.files import is_draft, write_whole
from optsched.errors import OptschedError, is_interrupt
from optsched.experiments.executors import on_dask, on_local_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

Cell = TypeVar("Cell")
Result = TypeVar("Result")
Kept = TypeVar("Kept", contravariant=True)

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


class Store(Protocol[Kept]):
    """Where results are kept under the keys of their cells."""

    @property
    def failed(self) -> int:
        """Count the results that say that their cell failed."""

    def __contains__(self, key: str, /) -> bool:
        """Whether there is a result."""

    def add(self, key: str, result: Kept, /) -> None:
        """Keep a result."""


class Memory(dict[str, Result], Generic[Result]):
    """Results in memory alone."""

    failed = 0

    def add(self, key: str, result: Result) -> None:
        """Keep a result."""
        self[key] = result


class JsonFolder(Memory[dict[str, Any]]):
    """Results that are plain data, each also in a file of its own that is whole or not there."""

    def __init__(self, folder: Path, keys: Iterable[str]) -> None:
        super().__init__()
        self._folder = folder
        for key in keys:
            with suppress(FileNotFoundError, ValueError):  # which is then done again
                self[key] = json.loads(self._path(key).read_text(encoding="utf-8"))

    def add(self, key: str, result: dict[str, Any]) -> None:
        """Keep a result."""
        super().add(key, result)
        write_whole(self._path(key), json.dumps(result).encode())

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def read_manifest(path: Path, name: str, kind: str) -> dict[str, Any] | None:
    """Read what a folder says of itself; refuse one that holds other files than results."""
    if path.exists() and not path.is_dir():
        raise OptschedError(f"cannot write results into {path}: it is not a folder")
    if (path / name).is_file():
        content: dict[str, Any] = json.loads((path / name).read_text(encoding="utf-8"))
        return content
    # The lock, and a draft of the manifest, are what a process killed in its first moments left.
    if path.is_dir() and any(
        entry.name != "_lock" and not is_draft(entry) for entry in path.iterdir()
    ):
        raise OptschedError(f"{path} holds other files, but no {kind}; take an empty folder")
    return None


@dataclass(frozen=True)
class Places:
    """Where cells are carried out: processes of this machine (None: all cores), or Dask's."""

    jobs: int | None = 1
    address: str | None = None

    def __post_init__(self) -> None:
        if self.jobs is not None:
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
        with closing(results):
            for number, (key, result) in enumerate(results, 1):
                store.add(key, result)
                if on_progress is not None:
                    left = (time.perf_counter() - began) / number * (len(missing) - number)
                    on_progress(Progress(title, done + number, len(cells), store.failed, left))
    except (KeyboardInterrupt, SystemError) as stop:
        if not is_interrupt(stop):
            raise
        return INTERRUPTED
    return COMPLETE
