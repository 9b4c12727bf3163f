"""What a target's computation is given: how much to do, and cells that are computed only once."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from optsched.experiments.cells import INTERRUPTED, JsonFolder, Memory, Places, finish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from optsched.experiments.cells import Progress

Key = TypeVar("Key")


@dataclass
class Study:
    """How much to compute, where finished cells are kept, and in how many processes."""

    target: str
    quick: bool = False  # whether seconds are to suffice in place of minutes
    seed: int = 0
    places: Places = field(default_factory=Places)
    cells: Path | None = None  # folder of finished cells; None keeps nothing
    on_progress: Callable[[Progress], object] | None = None
    seconds: float = field(default=0.0, init=False)  # spent in cells, earlier calls included

    def choose(self, quick: Any, full: Any) -> Any:
        """Return the first in a quick study, the second otherwise."""
        return quick if self.quick else full

    def map(self, function: Callable[..., Any], arguments: Iterable[dict[str, Any]]) -> list[Any]:
        """Call a function once per cell, with plain data; what is done is not done again."""
        calls = list(arguments)
        keys = [_key(function, call) for call in calls]
        kept = Memory[Any]() if self.cells is None else JsonFolder(self.cells, keys)
        status = finish(
            _carry_out,
            {key: (function, call) for key, call in zip(keys, calls, strict=True)},
            kept,
            self.places,
            title=f"cells of {self.target} ({function.__name__.strip('_').replace('_', ' ')})",
            on_progress=self.on_progress,
        )
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        self.seconds += sum(kept[key]["seconds"] for key in keys)
        return [kept[key]["result"] for key in keys]

    def table(
        self, function: Callable[..., dict[str, Any]], arguments: Iterable[dict[str, Any]]
    ) -> pd.DataFrame:
        """Return a row for each call: its arguments and its results."""
        calls = list(arguments)
        found = self.map(function, calls)
        return pd.DataFrame([call | row for call, row in zip(calls, found, strict=True)])

    def by_seed(
        self,
        function: Callable[..., Any],
        cells: Mapping[Key, dict[str, Any]],
        seeds: Sequence[int],
    ) -> dict[Key, list[Any]]:
        """Call a function for each cell with each seed; return the results by cell."""
        found = iter(
            self.map(
                function, [{**cell, "seed": seed} for cell in cells.values() for seed in seeds]
            )
        )
        return {key: [next(found) for _ in seeds] for key in cells}

    def seeds(self, quick: int, full: int) -> list[int]:
        """Return so many seeds from the study's own on."""
        return [self.seed + place for place in range(self.choose(quick, full))]


def _key(function: Callable[..., Any], call: dict[str, Any]) -> str:
    what = json.dumps([function.__module__, function.__qualname__, call], sort_keys=True)
    return hashlib.sha256(what.encode()).hexdigest()[:24]


def _carry_out(cell: tuple[Callable[..., Any], dict[str, Any]]) -> dict[str, Any]:
    function, arguments = cell
    began = time.perf_counter()
    result = json.loads(json.dumps(function(**arguments)))  # the same from memory as from disk
    seconds = time.perf_counter() - began
    return {"arguments": arguments, "result": result, "seconds": seconds}
