"""Where results are kept under the keys of their cells: in memory, or in a folder of their own."""

from __future__ import annotations

import fcntl
import json
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from optsched._internal.files import is_draft, write_whole
from optsched._internal.fingerprints import fingerprint
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
            if (found := unsealed(self._path(key), key)) is not None:
                self[key] = found

    def add(self, key: str, result: dict[str, Any]) -> None:
        """Keep a result."""
        super().add(key, result)
        with writing(self._folder):
            write_whole(self._path(key), sealed(key, result))

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def sealed(key: str, content: dict[str, Any], indent: int | None = None) -> str:
    """Return JSON with a seal, which breaks where the file is damaged or answers another key."""
    return json.dumps(content | {"seal": fingerprint([key, json.dumps(content)])}, indent=indent)


def unsealed(path: Path, key: str) -> dict[str, Any] | None:
    """Read sealed JSON; None where there is none, or its seal is broken."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        seal = content.pop("seal")
        return content if seal == fingerprint([key, json.dumps(content)]) else None
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return None


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
    resume: bool = False,
    overwrite: bool = False,
    option: str = "--resume",
) -> None:
    """Make a folder for results of one kind with these settings, or check that it is one.

    One whose manifest is lost or damaged can be resumed: results say themselves where they belong.
    """
    with writing(path):
        if path.exists() and not path.is_dir():
            raise OptschedError(f"cannot write results into {path}: it is not a folder")
        settings, old = json.loads(json.dumps(settings)), unsealed(path / manifest, manifest)
        entries = list(path.iterdir()) if path.is_dir() else []
        ours = {LOCK, manifest} & {entry.name for entry in entries}
        if old is None and ours and overwrite:
            old = {}
        if old is not None and (differences := differing(old, settings)):
            if not overwrite:
                raise OptschedError(
                    f"{path} holds results of another {kind}, which differs in "
                    f"{' and '.join(differences)}; take another folder"
                )
            for entry in entries:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        # The lock, and a draft of the manifest, are what a process killed at once has left.
        elif old is None and not all(each.name == LOCK or is_draft(each) for each in entries):
            if not ours:
                raise OptschedError(
                    f"{path} holds other files, but no {kind}; take an empty folder"
                )
            if not resume:
                raise OptschedError(
                    f"{path / manifest} is missing, damaged or of an earlier version; use {option} "
                    f"to do again what is not of this {kind}, or take another folder"
                )
        path.mkdir(parents=True, exist_ok=True)
        write_whole(path / manifest, sealed(manifest, settings, indent=1))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from writing results into a folder; ends with this process, too."""
    with writing(path):
        lock = (path / LOCK).open("a")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OptschedError(
                f"another process is writing results into {path}; let it finish, or take another "
                "folder"
            ) from None
        yield


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the refusal of a disk or a system into a sentence."""
    try:
        yield
    except OSError as error:
        raise OptschedError(
            f"cannot write results into {path}: {error.strerror or error}; take another folder"
        ) from None


def refuse_begun(path: Path, done: int, count: int, what: str) -> None:
    """Refuse a folder that holds results, where they are not to be resumed."""
    if done:
        raise OptschedError(
            f"{path} holds {done:,} of the {count:,} {what} already; resume it (--resume), or take "
            "another folder"
        )
