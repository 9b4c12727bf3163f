"""Where runs are carried out: processes of joblib on this machine, or a Dask cluster.

Each executor is a generator of rows, one per run, in no particular order. Runs whose process was
killed are done again; closing the generator ends the work.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from optsched._internal.jobs import map_unordered
from optsched._version import __version__
from optsched.errors import OptschedError
from optsched.experiments.sweeps.run import killed, perform, perform_all

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    import distributed

    from optsched.experiments.sweeps.run import Run

    Rows = Generator[dict[str, Any], None, None]

#: Seconds within which a scheduler must answer, and then a worker be there.
CONNECT_WITHIN = 3.0

_TASK_SECONDS = 0.3  # of a Dask task, so that its cost of about a millisecond does not show


def on_local_cores(runs: Sequence[Run], workers: int | None = None) -> Rows:
    """Carry runs out in processes of this machine.

    Parameters
    ----------
    runs
        What to do.
    workers
        Number of processes; None takes as many as there are cores, 1 this process itself.

    Yields
    ------
    dict
        A row per run.
    """
    import joblib
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    workers = joblib.cpu_count() if workers is None else workers
    left = {run.key: run for run in runs}
    while left:
        before = len(left)
        some = [(run,) for run in left.values()]
        try:
            with closing(map_unordered(perform, some, workers)) as rows:
                for _, row in rows:
                    del left[row["key"]]
                    yield row
        except TerminatedWorkerError:
            if len(left) < before:
                continue
            # Some run kills its process before any other is done: the first ones each by itself.
            for run in list(left.values())[: 2 * workers]:
                try:
                    _, row = next(map_unordered(perform, [(run,)], workers))
                except TerminatedWorkerError:
                    row = killed(run)
                del left[run.key]
                yield row


def on_dask(runs: Sequence[Run], address: str) -> Rows:
    """Carry runs out on a Dask cluster, which may grow and shrink meanwhile.

    Parameters
    ----------
    runs
        What to do.
    address
        Of the scheduler, such as "tcp://10.0.0.1:8786".

    Yields
    ------
    dict
        A row per run.

    Raises
    ------
    OptschedError
        If there is no worker or another version of optsched, or the scheduler is lost.
    """
    import distributed

    with _connected(address) as client:
        waiting = deque(runs)
        suspects: deque[Run] = deque()
        tasks: dict[distributed.Future, list[Run]] = {}
        done = distributed.as_completed(loop=client.loop, raise_errors=False)
        runs_per_task = 1.0

        alone = None

        def submit(some: list[Run]) -> distributed.Future:
            future = client.submit(perform_all, some, pure=False)
            tasks[future] = some
            done.add(future)
            return future

        try:
            while waiting or tasks or suspects:
                slots = 2 * sum(client.nthreads().values())
                while waiting and (len(tasks) < slots or not tasks):
                    fair = min(runs_per_task, len(waiting) / slots if slots else 1)
                    submit([waiting.popleft() for _ in range(max(1, int(fair)))])
                if not tasks:
                    alone = submit([suspects.popleft()])
                future = next(done)
                if future.status == "pending":  # its worker was killed before it gave the rows
                    done.add(future)
                    continue
                some = tasks.pop(future)
                try:
                    rows, seconds = future.result()
                except distributed.scheduler.KilledWorker:
                    # Worker after worker died with this task, or with one beside it. When all else
                    # is done, its runs one by one tell which it was.
                    if future is alone:
                        yield killed(some[0])
                    else:
                        suspects.extend(some)
                else:
                    runs_per_task = len(rows) / max(seconds, 1e-9) * _TASK_SECONDS
                    yield from rows
        except (OSError, distributed.CancelledError):
            raise OptschedError(
                f"lost the Dask scheduler at {address}; the finished runs are kept: resume when it "
                "is there again"
            ) from None


def check_scheduler(address: str) -> None:
    """Refuse an address where no Dask scheduler answers.

    Parameters
    ----------
    address
        Such as "tcp://10.0.0.1:8786".

    Raises
    ------
    OptschedError
        If distributed is not installed, or there is no answer within seconds.
    """
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise OptschedError(
            "the executor dask needs the package distributed; install optsched[dask]"
        ) from None
    # A client that meets no scheduler hangs or fails only after several times its timeout.
    with ThreadPoolExecutor(1) as thread:  # notebooks have an event loop of their own in this one
        reason = thread.submit(lambda: asyncio.run(_no_answer(address))).result()
    if reason is not None:
        raise OptschedError(
            f"no Dask scheduler answers at {address} ({reason}); correct the address or start one"
        )


@contextmanager
def _connected(address: str) -> Iterator[distributed.Client]:
    """Connect to a scheduler that has workers with this version of optsched."""
    import distributed

    client = distributed.Client(address, timeout=CONNECT_WITHIN, set_as_default=False)
    with client:
        deadline = time.monotonic() + CONNECT_WITHIN
        while not client.nthreads():
            if time.monotonic() > deadline:
                raise OptschedError(
                    f"the Dask scheduler at {address} has no workers; start some and try again"
                )
            time.sleep(0.1)
        versions = set(client.run(_version, on_error="return").values())
        if versions != {__version__}:
            other = next(version for version in versions if version != __version__)
            raise OptschedError(
                f"a Dask worker at {address} answers {other!r} where optsched {__version__} should "
                "be; install this version on all of them"
            )
        yield client


async def _no_answer(address: str) -> str | None:
    """Shake hands with a scheduler, and say what went wrong if that fails."""
    import distributed

    try:
        security = distributed.Security().get_connection_args("client")
        connecting = distributed.comm.connect(address, CONNECT_WITHIN, **security)
        comm = await asyncio.wait_for(connecting, CONNECT_WITHIN)
    except TimeoutError:
        return f"nothing within {CONNECT_WITHIN:g} s"
    except (OSError, ValueError) as error:
        return " ".join(str(error).split())
    except Exception:  # whatever another server says is no message of Dask's
        return "what answers there is something else"
    comm.abort()
    return None


def _version() -> str:
    import optsched

    return optsched.__version__
