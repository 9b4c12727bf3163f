"""Calls spread over processes of this machine."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

_IDLE_SECONDS = 20.0  # after which a process ends, also if the one that started it was killed

Result = TypeVar("Result")


def map_unordered(
    function: Callable[..., Result], arguments: Sequence[tuple[Any, ...]], workers: int | None
) -> Generator[tuple[int, Result], None, None]:
    """Call a function once for each tuple of arguments, and give the results as they come.

    Closing the generator ends the work.

    Parameters
    ----------
    function
        Defined at the top of a module.
    arguments
        Positional arguments of each call.
    workers
        Processes; None takes as many as there are cores, 1 this process itself.

    Yields
    ------
    tuple
        The place of the call among the arguments, and its result.

    Raises
    ------
    joblib.externals.loky.process_executor.TerminatedWorkerError
        If a process was killed from outside.

    Examples
    --------
    >>> sorted(map_unordered(pow, [(2, 3), (3, 2)], workers=1))
    [(0, 8), (1, 9)]
    """
    import joblib

    workers = joblib.cpu_count() if workers is None else workers
    if workers == 1:
        yield from (_placed(place, function, each) for place, each in enumerate(arguments))
        return
    # A process that ends idle is replaced; joblib would warn of it in a thread of its own.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
    with joblib.parallel_config("loky", idle_worker_timeout=_IDLE_SECONDS):
        # Arguments travel with their calls: joblib's memory maps would outlive a killed process.
        pool = joblib.Parallel(workers, return_as="generator_unordered", max_nbytes=None)
    results = pool(joblib.delayed(_placed)(i, function, each) for i, each in enumerate(arguments))
    try:
        # "yield from" would close the results before warnings are caught.
        for result in results:  # noqa: UP028
            yield result
    finally:
        with warnings.catch_warnings():  # ended in the middle, joblib advises its caller
            warnings.simplefilter("ignore", UserWarning)
            results.close()


def _placed(
    place: int, function: Callable[..., Result], arguments: tuple[Any, ...]
) -> tuple[int, Result]:
    return place, function(*arguments)
