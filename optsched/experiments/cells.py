"""Cells that are run anywhere and kept: executors, own code, the store."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pickle
import shutil
import signal
import sys
import time
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from optsched._internal.arguments import as_count
from optsched._internal.aside import untimed, watched
from optsched._internal.files import JSON, is_draft, write_whole
from optsched._internal.fingerprints import Identity, fingerprint
from optsched._internal.imports import need
from optsched._version import __version__
from optsched.clock import get_clock
from optsched.errors import OptschedError, PolicyError, is_interrupt, shown
from optsched.policies import get_policy, is_shipped
from optsched.problem.workers import Workers, get_router
from optsched.problem.workers import is_shipped as is_shipped_router
from optsched.simulate import run

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Mapping
    from pathlib import Path
    from types import ModuleType

    import distributed

    from optsched.policies import Policy
    from optsched.problem.instance import Instance


_REHEARSED = 8  # requests that a policy is tried on
PLAIN = (str, int, float, list, dict, type(None))


@dataclass(frozen=True)
class Own:
    """An object of the user's, as it is sent to other processes."""

    name: str
    fingerprint: str  # of its code and its data: the same in every process
    content: bytes = field(repr=False, compare=False)

    def load(self) -> Any:
        """Return a copy of the object, so that no run sees what another has left in it."""
        return pickle.loads(self.content)

    def __str__(self) -> str:
        return self.name


def carried(policy: Policy) -> str | Own:
    """Return a policy as it is sent: by its name where that means the same in every process."""
    with suppress(PolicyError, ValueError):  # ValueError: arrays are compared
        if is_shipped(policy.name) and get_policy(policy.name) == policy:
            return policy.name
    return portable(policy)


def carried_option(name: str, value: Any) -> Any:
    """Return a setting of a run as it is sent: plain data as it is, memories as text, no files."""
    if name == "clock" and isinstance(value, str | list | tuple) and ".json" in str(value):
        clocks = get_clock(value) if isinstance(value, str) else [get_clock(each) for each in value]
        return replace(portable(clocks), name=str(value))
    if name == "workers" and not isinstance(value, int | str | None):
        several = value if isinstance(value, Workers) else Workers(value)
        if several.eligible is None:
            return str(several) if len(several) > 1 else f"{several.total}x1"
    if name == "router" and value is not None:
        if is_shipped_router(value):
            return value
        value = get_router(value)
    return value if isinstance(value, PLAIN) else portable(value)


def loaded(value: object) -> Any:
    """Return what was carried."""
    return value.load() if isinstance(value, Own) else value


def rehearse(policy: str | Own, instance: Instance, **options: object) -> None:
    """Run a policy of one's own on a few requests, so that what it cannot do is said at once."""
    few = instance.take(range(min(_REHEARSED, len(instance))))
    try:
        run(few, loaded(policy), **{name: loaded(value) for name, value in options.items()})
    except Exception as error:  # whatever code of the user's raises becomes a sentence
        kind = "" if isinstance(error, OptschedError) else f"{type(error).__name__}: "
        reason = " ".join(f"{kind}{error}".split())
        raise PolicyError(
            f"policy {str(policy)!r} fails on the first {len(few)} requests of {instance.name}: "
            f"{reason}; correct it"
        ) from error


def name_of(value: object) -> str:
    """Return what an object is called."""
    return str(getattr(value, "name", None) or getattr(value, "__name__", type(value).__name__))


def portable(value: object) -> Own:
    """Make an object ready for other processes, with all code that is not installed there."""
    import cloudpickle

    name, identity = name_of(value), Identity(ordered=True)
    registered: list[ModuleType] = []
    try:
        fingerprint = identity.of(value)
        for module in identity.modules:
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
        content = cloudpickle.dumps(value)
        pickle.loads(content)
    except Exception as error:  # a pickler raises anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise PolicyError(
            f"{name!r} cannot be sent to other processes or told from others: {reason}; make it of "
            "functions and plain data"
        ) from None
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)
    return Own(name, fingerprint, content)


Result = TypeVar("Result")

LOCK = "_lock"


class Store(JSON, Generic[Result]):
    """What is kept of results, by the keys of their cells; this one is in memory alone."""

    failed = 0  # results that say that their cell failed

    def add(self, key: str, result: Result) -> None:
        """Keep a result."""
        self[key] = result


def changed(old: JSON, new: JSON) -> list[str]:
    """Name the settings that differ."""
    return [
        f"{name} ({old.get(name)!r}, not {value!r})"
        for name, value in new.items()
        if old.get(name) != value
    ]


class JsonFolder(Store[JSON]):
    """Results that are plain data, each also in a file of its own that is whole or not there."""

    kind, title = "experiment", "cells"  # what the folder holds, and of what each result is
    differing = staticmethod(changed)

    def __init__(self, path: Path, keys: Collection[str]) -> None:
        super().__init__()
        self.path = path
        self._read(keys)

    @classmethod
    @contextmanager
    def opened(
        cls, path: Path, settings: JSON, keys: Collection[str], *, resume: bool
    ) -> Iterator[Self]:
        """Open a folder that only this process then adds to, until it ends, killed or not."""
        open_folder(path, cls.kind, settings, cls.differing, resume=resume)
        with writing(path):
            lock = (path / LOCK).open("a")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OptschedError(
                    f"another process is writing results into {path}; let it finish, or take "
                    "another folder"
                ) from None
            if (store := cls(path, keys)) and not resume:
                raise OptschedError(
                    f"{path} holds {len(store):,} of the {len(keys):,} {cls.title} of this "
                    f"{cls.kind} already; resume it (--resume), or take another folder"
                )
            try:
                yield store
            finally:
                store.close()

    def _read(self, keys: Collection[str]) -> None:
        for key in keys:
            if (found := unsealed(self._file(key), key)) is not None:
                self[key] = found

    def add(self, key: str, result: JSON) -> None:
        """Keep a result."""
        super().add(key, result)
        with writing(self.path):
            write_whole(self._file(key), sealed(key, result))

    def close(self) -> None:
        """Write what is not on disk yet."""

    def _file(self, key: str) -> Path:
        return self.path / f"{key}.json"


def sealed(key: str, content: JSON, indent: int | None = None) -> str:
    """Return JSON with a seal, which breaks where the file is damaged or answers another key."""
    return json.dumps(content | {"seal": fingerprint([key, json.dumps(content)])}, indent=indent)


def unsealed(path: Path, key: str) -> JSON | None:
    """Read sealed JSON; None where there is none, or its seal is broken."""
    try:
        content: JSON = json.loads(path.read_text(encoding="utf-8"))
        seal = content.pop("seal")
        return content if seal == fingerprint([key, json.dumps(content)]) else None
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return None


def open_folder(
    path: Path,
    kind: str,
    settings: JSON,
    differing: Callable[[JSON, JSON], list[str]] = changed,
    *,
    resume: bool = False,
    overwrite: bool = False,
    option: str = "--resume",
) -> None:
    """Make a folder for results of one kind with these settings, or check that it is one."""
    with writing(path):
        if path.exists() and not path.is_dir():
            raise OptschedError(f"cannot write results into {path}: it is not a folder")
        manifest = f"_{kind}.json"
        settings, old = json.loads(json.dumps(settings)), unsealed(path / manifest, manifest)
        entries = list(path.iterdir()) if path.is_dir() else []
        ours = {LOCK, manifest} & {entry.name for entry in entries}
        old = {} if old is None and ours and overwrite else old
        # The lock, and a draft of the manifest, are what a process killed at once has left.
        used = not all(each.name == LOCK or is_draft(each) for each in entries)
        if old is None and used and not ours:
            raise OptschedError(f"{path} holds other files, but no {kind}; take an empty folder")
        if old is None and used and not resume:
            raise OptschedError(
                f"{path / manifest} is missing, damaged or of an earlier version; use {option} to "
                f"do again what is not of this {kind}, or take another folder"
            )
        differences = [] if old is None else differing(old, settings)
        if differences and not overwrite:
            raise OptschedError(
                f"{path} holds results of another {kind}, which differs in "
                f"{' and '.join(differences)}; take another folder"
            )
        for entry in entries if differences else ():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        path.mkdir(parents=True, exist_ok=True)
        write_whole(path / manifest, sealed(manifest, settings, indent=1))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the refusal of a disk or a system into a sentence."""
    try:
        yield
    except OSError as error:
        raise OptschedError(
            f"cannot write results into {path}: {error.strerror or error}; take another folder"
        ) from None


Cell = TypeVar("Cell")

#: Seconds within which a scheduler must answer, and then a worker be there.
CONNECT_WITHIN = 3.0

_IDLE_SECONDS = 20.0  # after which a process ends, also if the one that started it was killed
_TASK_SECONDS = 0.3  # of a Dask task, so that its cost of about a millisecond does not show


_LEFT_BEHIND = "ignore:resource_tracker"


def on_local_cores(
    function: Callable[[Cell], Result],
    cells: Mapping[str, Cell],
    jobs: int | None,
    killed: Callable[[Cell], Result],
) -> Generator[tuple[str, Result], None, None]:
    """Carry cells out in processes of this machine; with one job in this process itself."""
    with _held():
        import joblib
        from joblib.externals.loky.process_executor import TerminatedWorkerError

    jobs = joblib.cpu_count() if jobs is None else jobs
    if jobs == 1:
        for key, cell in cells.items():
            yield key, function(cell)
        return
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


def _end_processes(queue: Any) -> None:
    """End the processes that would wait for more cells."""
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor(reuse=True, kill_workers=True).shutdown(kill_workers=True)
    with suppress(AttributeError, OSError):  # a thread would wait for ever for who reads the cells
        queue._reader.close()  # noqa: SLF001


def _parallel(
    function: Callable[[Cell], Result], cells: Mapping[str, Cell], jobs: int
) -> Generator[tuple[str, Result], None, None]:
    results = queue = None
    try:
        with _held():
            results, queue = _started(function, cells, jobs)
        # "yield from" would close the results before warnings are caught.
        for result in results:  # noqa: UP028
            yield result
    except BaseException:
        _end_processes(queue)
        raise
    finally:
        with warnings.catch_warnings():  # ended in the middle, joblib advises its caller
            warnings.simplefilter("ignore", UserWarning)
            if results is not None:
                results.close()


def _end_idle() -> None:
    """End processes that have nothing to do: after Ctrl-C in the last moment none may be left."""
    loky = sys.modules.get("joblib.externals.loky.reusable_executor")
    if (idle := getattr(loky, "_executor", None)) is not None:
        with _held():
            idle.shutdown(kill_workers=True)


@contextmanager
def _held() -> Iterator[None]:
    """Hold Ctrl-C back while modules come in and processes start."""
    with untimed():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _started(
    function: Callable[[Cell], Result], cells: Mapping[str, Cell], jobs: int
) -> tuple[Generator[tuple[str, Result], None, None], Any]:
    """Return results to come, and the queue on which their cells go to processes."""
    from multiprocessing.resource_tracker import ensure_running

    import joblib
    from joblib.externals.loky import get_reusable_executor

    # What Ctrl-C leaves loky's tracker takes away; it would warn of that beside our own line.
    given = os.environ.get("PYTHONWARNINGS", "").split(",")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, dict.fromkeys([*given, _LEFT_BEHIND])))
    ensure_running()  # which would undo the mask
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # of processes: the caller ends them
    # A process that ends idle is replaced; joblib would warn of it in a thread of its own.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
    with joblib.parallel_config("loky", idle_worker_timeout=_IDLE_SECONDS):
        # Arguments travel with their calls: joblib's memory maps would outlive a killed process.
        pool = joblib.Parallel(jobs, return_as="generator_unordered", max_nbytes=None)
    calls = (joblib.delayed(_keyed)(function, key, cell) for key, cell in cells.items())
    results: Generator[tuple[str, Result], None, None] = pool(calls)
    return results, getattr(get_reusable_executor(reuse=True), "_call_queue", None)


def _keyed(function: Callable[[Cell], Result], key: str, cell: Cell) -> tuple[str, Result]:
    return key, function(cell)


def on_dask(
    function: Callable[[Cell], Result],
    cells: Mapping[str, Cell],
    address: object,
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
    began = time.perf_counter()
    return [function(cell) for cell in cells], time.perf_counter() - began


def check_scheduler(address: object) -> None:
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


COMPLETE, INTERRUPTED = "complete", "interrupted"


@dataclass(frozen=True)
class CellProgress:
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
    address: object = None  # text, or a client or cluster of Dask

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
    on_progress: Callable[[CellProgress], object] | None = None,
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
                    tell(CellProgress(title, done + number, len(cells), store.failed, left))
    except (KeyboardInterrupt, SystemError) as stop:
        if not is_interrupt(stop):
            raise
        return INTERRUPTED
    finally:
        _end_idle()
    return COMPLETE
