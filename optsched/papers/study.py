"""What a target's computation is given: how much to do, and cells that are computed only once."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from optsched._internal.files import write_whole
from optsched._internal.jobs import map_unordered
from optsched.errors import OptschedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


@dataclass
class Study:
    """How much to compute, where finished cells are kept, and on how many processes.

    Attributes
    ----------
    target
        Name of the target.
    quick
        Whether seconds are to suffice in place of minutes.
    seed
        Of all randomness.
    workers
        Processes; None takes as many as there are cores, 1 this process itself.
    cells
        Folder of finished cells; None keeps nothing.
    on_progress
        Called with a line of text after each cell.
    seconds
        Time spent in cells so far, earlier runs included.
    """

    target: str
    quick: bool = False
    seed: int = 0
    workers: int | None = 1
    cells: Path | None = None
    on_progress: Callable[[str], object] | None = None
    seconds: float = field(default=0.0, init=False)

    def choose(self, quick: Any, full: Any) -> Any:
        """Give the first in a quick study, the second otherwise."""
        return quick if self.quick else full

    def map(self, function: Callable[..., Any], arguments: Iterable[dict[str, Any]]) -> list[Any]:
        """Call a function once per cell, in parallel; what was done before is not done again.

        Parameters
        ----------
        function
            Defined at the top of a module. Its results are plain data, as JSON keeps it.
        arguments
            Keyword arguments of each call, plain data too.

        Returns
        -------
        list
            The results in the order of the arguments.
        """
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        calls = list(arguments)
        paths = [self._path(function, call) for call in calls]
        results: dict[int, Any] = {}
        for index, path in enumerate(paths):
            if path is not None and path.exists():
                kept = json.loads(path.read_text(encoding="utf-8"))
                results[index] = kept["result"]
                self.seconds += kept["seconds"]
        missing = [(function, calls[index]) for index in range(len(calls)) if index not in results]
        places = [index for index in range(len(calls)) if index not in results]
        try:
            with closing(map_unordered(_timed, missing, self.workers)) as finished:
                for number, (result, seconds) in finished:
                    index = places[number]
                    self._keep(paths[index], calls[index], result, seconds)
                    results[index] = result
                    if self.on_progress is not None:
                        name = function.__name__.strip("_").replace("_", " ")
                        done = f"{len(results)} of {len(calls)}"
                        self.on_progress(f"{self.target}: {name}, {done}")
        except TerminatedWorkerError:
            raise OptschedError(
                f"a process that worked on {self.target} was killed, perhaps for want of memory; "
                "run it again to go on, with fewer workers"
            ) from None
        return [results[index] for index in range(len(calls))]

    def _keep(self, path: Path | None, call: dict[str, Any], result: Any, seconds: float) -> None:
        self.seconds += seconds
        if path is not None:
            content = {"arguments": call, "result": result, "seconds": seconds}
            write_whole(path, json.dumps(content).encode())

    def _path(self, function: Callable[..., Any], call: dict[str, Any]) -> Path | None:
        if self.cells is None:
            return None
        what = json.dumps([function.__module__, function.__qualname__, call], sort_keys=True)
        return self.cells / f"{hashlib.sha256(what.encode()).hexdigest()[:24]}.json"


def _timed(function: Callable[..., Any], arguments: dict[str, Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    result = json.loads(json.dumps(function(**arguments)))  # the same from memory as from disk
    return result, time.perf_counter() - began
