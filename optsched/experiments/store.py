"""Where results are kept under the keys of their cells: in memory, or in a folder of their own."""

from __future__ import annotations

import fcntl
import json
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from optsched._internal.files import is_draft, write_whole
from optsched.errors import OptschedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

Result = TypeVar("Result")
Settings = dict[str, Any]

LOCK = "_lock"


class Store(dict[str, Any], Generic[Result]):
    """What is kept of results, by the keys of their cells; this one is in memory alone."""

    failed = 0  # results that say that their cell failed

    def add(self, key: str, result: Result) -> None:
        """Keep a result."""
        self[key] = result


class JsonFolder(Store[dict[str, Any]]):
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
        write_whole(self._path(key), json.dumps(result))

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def changed(old: Settings, new: Settings) -> list[str]:
    """Name the settings that differ."""
    return [
        f"{name} ({old.get(name)!r}, not {value!r})"
        for name, value in new.items()
        if old.get(name) != value
    ]


def open_folder(
    path: Path,
    manifest: str,
    kind: str,
    settings: Settings,
    differing: Callable[[Settings, Settings], list[str]] = changed,
    *,
    overwrite: bool = False,
) -> None:
    """Make a folder for results of one kind with these settings, or check that it is one."""
    if path.exists() and not path.is_dir():
        raise OptschedError(f"cannot write results into {path}: it is not a folder")
    settings = json.loads(json.dumps(settings, default=str))
    if (path / manifest).is_file():
        old = json.loads((path / manifest).read_text(encoding="utf-8"))
        if differences := differing(old, settings):
            if not overwrite:
                raise OptschedError(
                    f"{path} holds results of another {kind}, which differs in "
                    f"{' and '.join(differences)}; take another folder"
                )
            for entry in path.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    # The lock, and a draft of the manifest, are what a process killed in its first moments left.
    elif path.is_dir() and not all(each.name == LOCK or is_draft(each) for each in path.iterdir()):
        raise OptschedError(f"{path} holds other files, but no {kind}; take an empty folder")
    path.mkdir(parents=True, exist_ok=True)
    write_whole(path / manifest, json.dumps(settings, indent=1))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from writing results into a folder; ends with this process, too."""
    with (path / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OptschedError(
                f"another process is writing results into {path}; let it finish, or take another "
                "folder"
            ) from None
        yield


def refuse_begun(path: Path, done: int, count: int, what: str) -> None:
    """Refuse a folder that holds results, where they are not to be resumed."""
    if done:
        raise OptschedError(
            f"{path} holds {done:,} of the {count:,} {what} already; resume it (--resume), or take "
            "another folder"
        )
