"""Where cells are carried out: processes of joblib on this machine, or a Dask cluster.

Executors generate keys and results in any order; closing them ends the work. Cells whose process
was killed are done again.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import time
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from optsched._internal.extras import need
from optsched._version import __version__
from optsched.errors import OptschedError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    import distributed

Cell = TypeVar("Cell")
Result = TypeVar("Result")

#: Seconds within which a scheduler must answer, and then a worker be there.
CONNECT_WITHIN = 3.0

_IDLE_SECONDS = 20.0  # after which a process ends, also if the one that started it was killed
_TASK_SECONDS = 0.3  # of a Dask task, so that its cost of about a millisecond does not show
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def on_local_cores(
    function: Callable[[Cell], Result],
    cells: Mapping[str, Cell],
    jobs: int | None,
    killed: Callable[[Cell], Result],
) -> Generator[tuple[str, Result], None, None]:
    """Carry cells out in processes of this machine; with one job in this process itself."""
    import joblib

    jobs = joblib.cpu_count() if jobs is None else jobs
    if jobs == 1:
        for key, cell in cells.items():
            yield key, function(cell)
        return
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    left = dict(cells)
    while left:
        before = len(left)
        try:
            with closing(_parallel(function, left.copy(), jobs)) as results:
                for key, result in results:
                    del left[key]
                    yield key, result
        except TerminatedWorkerError:
            if len(left) < before:
                continue
            # Some cell kills its process before any other is done: the first ones each by itself.
            for key in list(left)[: 2 * jobs]:
                cell = left.pop(key)
                try:
                    yield next(_parallel(function, {key: cell}, jobs))
                except TerminatedWorkerError:
                    yield key, killed(cell)


def _parallel(
    function: Callable[[Cell], Result], cells: Mapping[str, Cell], jobs: int
) -> Generator[tuple[str, Result], None, None]:
    import joblib

    # A process that ends idle is replaced; joblib would warn of it in a thread of its own.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
    with joblib.parallel_config(
        "loky", idle_worker_timeout=_IDLE_SECONDS, initializer=_leave_interrupts
    ):
        # Arguments travel with their calls: joblib's memory maps would outlive a killed process.
        pool = joblib.Parallel(jobs, return_as="generator_unordered", max_nbytes=None)
    results = pool(joblib.delayed(_keyed)(function, key, cell) for key, cell in cells.items())
    try:
        # "yield from" would close the results before warnings are caught.
        for result in results:  # noqa: UP028
            yield result
    finally:
        with warnings.catch_warnings():  # ended in the middle, joblib advises its caller
            warnings.simplefilter("ignore", UserWarning)
            results.close()


def _leave_interrupts() -> None:
    """Leave Ctrl-C, which a terminal sends to all processes, to the one that ends the others."""
    # A handler, for processes that cells start would inherit that a signal is ignored.
    signal.signal(signal.SIGINT, lambda *_: None)


def _keyed(function: Callable[[Cell], Result], key: str, cell: Cell) -> tuple[str, Result]:
    return key, function(cell)


def on_dask(
    function: Callable[[Cell], Result],
    cells: Mapping[str, Cell],
    address: Any,
    killed: Callable[[Cell], Result],
) -> Generator[tuple[str, Result], None, None]:
    """Carry cells out on a Dask cluster, which may grow and shrink meanwhile."""
    import distributed

    with _connected(address) as client:
        waiting, suspects = deque(cells), deque[str]()
        tasks: dict[distributed.Future, list[str]] = {}
        done = distributed.as_completed(loop=client.loop, raise_errors=False)
        cells_per_task, alone = 1.0, None

        def submit(keys: list[str]) -> distributed.Future:
            future = client.submit(_timed, function, [cells[key] for key in keys], pure=False)
            tasks[future] = keys
            done.add(future)
            return future

        try:
            while waiting or tasks or suspects:
                slots = 2 * sum(client.nthreads().values())
                while waiting and (len(tasks) < slots or not tasks):
                    fair = min(cells_per_task, len(waiting) / slots if slots else 1)
                    submit([waiting.popleft() for _ in range(max(1, int(fair)))])
                if not tasks:
                    alone = submit([suspects.popleft()])
                future = next(done)
                if future.status == "pending":  # its worker was killed before it returned
                    done.add(future)
                    continue
                keys = tasks.pop(future)
                try:
                    results, seconds = future.result()
                except distributed.scheduler.KilledWorker:
                    # Worker after worker died with this task, or with one beside it. When all else
                    # is done, its cells one by one show which it was.
                    if future is alone:
                        yield keys[0], killed(cells[keys[0]])
                    else:
                        suspects.extend(keys)
                else:
                    cells_per_task = len(keys) / max(seconds, 1e-9) * _TASK_SECONDS
                    yield from zip(keys, results, strict=True)
        except (OSError, distributed.CancelledError):
            raise OptschedError(
                f"lost the Dask scheduler at {_where(address)}; the finished cells are kept: "
                "resume when it is there again"
            ) from None


def _timed(function: Callable[[Cell], Result], cells: list[Cell]) -> tuple[list[Result], float]:
    """Carry several cells out, one after another, and say how many seconds that took."""
    _keep_freed_memory()
    began = time.perf_counter()
    return [function(cell) for cell in cells], time.perf_counter() - began


@cache
def _keep_freed_memory() -> None:
    """Set glibc's limits of memory that is given back as high as glibc itself does in time."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        library = ctypes.CDLL(None)
        library.mallopt(ctypes.c_int(_M_MMAP_THRESHOLD), ctypes.c_int(32 << 20))
        library.mallopt(ctypes.c_int(_M_TRIM_THRESHOLD), ctypes.c_int(64 << 20))


def check_scheduler(address: Any) -> None:
    """Refuse an address where no Dask scheduler answers within seconds."""
    distributed = need("distributed", "the executor dask")
    if isinstance(address, distributed.Client | distributed.deploy.Cluster):
        status = getattr(address.status, "name", address.status)
        if address.asynchronous or status != "running":
            raise OptschedError(
                f"the {type(address).__name__} of Dask is "
                f"{'asynchronous' if address.asynchronous else status}; pass one that runs and was "
                "made without asynchronous=True"
            )
        return
    if not isinstance(address, str):
        raise OptschedError(
            f"address is {shown(address)}, but must be that of a Dask scheduler, such as "
            "tcp://127.0.0.1:8786, or a Client or Cluster of Dask"
        )
    # A client that meets no scheduler hangs or fails only after several times its timeout.
    with ThreadPoolExecutor(1) as thread:  # notebooks have an event loop of their own in this one
        reason = thread.submit(lambda: asyncio.run(_no_answer(address))).result()
    if reason is not None:
        raise OptschedError(
            f"no Dask scheduler answers at {address} ({reason}); correct the address or start one"
        )


def _where(address: Any) -> str:
    """Return the address of a scheduler, a cluster or a client."""
    if isinstance(address, str):
        return address
    return str(getattr(address, "scheduler_address", None) or address.scheduler.address)


@contextmanager
def _connected(address: Any) -> Iterator[distributed.Client]:
    """Connect to a scheduler that has workers with this version of optsched."""
    import distributed

    given, where = isinstance(address, distributed.Client), _where(address)
    with ExitStack() as opened:
        client = address
        if not given:
            client = distributed.Client(address, timeout=CONNECT_WITHIN, set_as_default=False)
            opened.enter_context(client)
        deadline = time.monotonic() + CONNECT_WITHIN
        while not client.nthreads():
            if time.monotonic() > deadline:
                raise OptschedError(
                    f"the Dask scheduler at {where} has no workers; start some and try again"
                )
            time.sleep(0.1)
        versions = set(client.run(_version, on_error="return").values())
        if versions != {__version__}:
            other = next(version for version in versions if version != __version__)
            raise OptschedError(
                f"a Dask worker at {where} answers {other!r} where optsched {__version__} should "
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
