"""Cells that are run anywhere and kept: executors, own code, the store."""

from __future__ import annotations

import asyncio
import fcntl
import json
import pickle
import shutil
import signal
import time
import traceback
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar, cast

from optsched._internal.arguments import as_count
from optsched._internal.aside import untimed, watched
from optsched._internal.children import Child, cores, listen
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

_TASK_SECONDS = 0.3  # of what is sent at once, so that its cost of about a millisecond is hidden
_PAYS = 4.0  # seconds of work left from which all cores pay, as a process takes about one to start


def serve_cells(fd: int) -> NoReturn:
    """Carry out cells until the user's process closes the connection: what a child runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller ends us
    connection, messages = Connection(fd), SimpleQueue[bytes]()
    listen(connection, messages.put)
    key = function = None
    while True:
        try:
            function = function or pickle.loads(messages.get())
            key, cell = pickle.loads(messages.get())
            content = pickle.dumps((key, function(cell), None))
        except Exception as error:
            if not isinstance(error, OptschedError):
                error.add_note(traceback.format_exc())  # which does not travel
            content = pickle.dumps((key, None, _that_travels(error)))
        connection.send_bytes(content)


def _that_travels(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # picklers raise anything
        return OptschedError(f"{type(error).__name__}: {error}")
    return error


class _Pool(Generic[Cell, Result]):
    """Processes of this machine, each with the keys of the cells that it was given."""

    def __init__(self, function: Callable[[Cell], Result], cells: Mapping[str, Cell]) -> None:
        import cloudpickle

        self.waiting, self._cells, self._dumps = deque(cells), cells, cloudpickle.dumps
        self._function = self._dumps(function)
        self._children: dict[Connection, tuple[Child, deque[str]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with untimed():
            for child, _keys in self._children.values():
                child.ended(kill=True)

    @property
    def busy(self) -> bool:
        """Whether any process has a cell."""
        return any(keys for _, keys in self._children.values())

    def hand_out(self, number: int, most: int) -> None:
        """Hand cells that follow one another, as they may share an instance, to processes."""
        while self.waiting and len(self._children) < number:
            with untimed():
                child = Child(serve_cells)
                self._children[child.connection] = child, deque()
            self._send(child.connection, self._function)
        for connection, (_, keys) in self._children.items():
            count = min(most, len(self.waiting) // (2 * number) + 1, len(self.waiting))
            for _ in range(count if len(keys) <= 1 else 0):  # the one that it is at
                keys.append(self.waiting.popleft())
                self._send(connection, self._dumps((keys[-1], self._cells[keys[-1]])))

    @staticmethod
    def _send(connection: Connection, content: bytes) -> None:
        with suppress(OSError):  # of a process that has died, which shows where it does not answer
            connection.send_bytes(content)

    def answers(self, seconds: float | None) -> Iterator[tuple[str, Result | None, bool]]:
        """Wait for cells that are done, and for those at which a process has died."""
        for ready in wait(list(self._children), seconds):
            connection = cast("Connection", ready)
            child, keys = self._children[connection]
            try:
                key, result, error = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                with untimed():
                    del self._children[connection]
                    child.ended(kill=True)
                if keys:
                    fatal, *others = keys
                    self.waiting.extendleft(reversed(others))
                    yield fatal, None, False
                continue
            if error is not None:
                raise error
            keys.remove(key)
            yield key, result, True


def on_local_cores(
    function: Callable[[Cell], Result],
    cells: Mapping[str, Cell],
    jobs: int | None,
    killed: Callable[[Cell], Result],
) -> Generator[tuple[str, Result], None, None]:
    """Carry cells out in processes of this machine; with one job in this process itself.

    Where nobody says in how many, one begins, and takes the others in where that pays.
    """
    if jobs == 1:
        for key, cell in cells.items():
            yield key, function(cell)
        return
    suspects, alone, done, number, pace = deque[str](), None, 0, jobs or 1, _PAYS
    first = time.perf_counter()  # then of the first answer, which kernels are loaded for
    with _Pool(function, cells) as pool:
        while pool.waiting or pool.busy or suspects:
            if not pool.waiting and not pool.busy:
                pool.waiting.append(alone := suspects.popleft())
            pool.hand_out(number, max(1, int(_TASK_SECONDS / (pace * number))))
            for key, result, answered in pool.answers(None if jobs else _PAYS / 4):
                if answered:
                    done, first = done + 1, first if done else time.perf_counter()
                    yield key, cast("Result", result)
                elif key == alone:
                    yield key, killed(cells[key])
                else:  # perhaps its process was ended from outside
                    suspects.append(key)
            seconds = time.perf_counter() - first
            pace = seconds / (done - 1) if done > 1 else max(seconds, _TASK_SECONDS)
            told = done > 1 or seconds > _PAYS / 2
            if jobs is None and told and pace * len(pool.waiting) > _PAYS:
                number = min(cores(), len(cells))


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
    return COMPLETE
