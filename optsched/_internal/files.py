"""Files and JSON."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optsched.errors import FileError, OptschedError, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa


JSON = dict[str, Any]  # an object, as it is read and written
_MOST_NOTED = 2**22  # bytes of fingerprints of what was written, about 60,000


def write_whole(path: str | Path, content: str | bytes | pa.Buffer) -> None:
    """Write a file that is whole or not there, even if the machine fails; a pipe is written to."""
    target = Path(path)
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    draft = target.with_name(f".{target.name[:200]}.{os.getpid()}.tmp")
    try:
        if not is_replaced(target):
            target.write_bytes(data)
            return
        target = Path(os.path.realpath(target))  # a link stays, and leads to the new content
        draft = target.with_name(draft.name)
        with draft.open("wb") as file:
            if target.exists():
                shutil.copymode(target, draft)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _note_written(memoryview(data))  # before it is there: a kill may come in between
        draft.replace(target)
    except BaseException as error:  # such as a full disk, or Ctrl-C
        with suppress(OSError):
            draft.unlink()
        if not isinstance(error, OSError) or isinstance(error, BrokenPipeError):
            raise
        wrong = FileError(f"cannot write {path}: {error.strerror}; name another place")
        wrong.strerror = error.strerror  # for whoever says more of the place
        raise wrong from error


def is_foreign(path: Path) -> bool:
    """Whether there is a file with content that no optsched of this user has written."""
    with suppress(OSError, RuntimeError):
        if path.exists() and is_replaced(path) and path.stat().st_size:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            with suppress(OSError):
                return found not in _record().read_text().split()
            return True
    return False


def _record() -> Path:
    """Return where fingerprints of all that was written are kept."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(caches, "optsched", "written")


def _note_written(data: bytes | memoryview) -> None:
    with suppress(OSError):
        (record := _record()).parent.mkdir(parents=True, exist_ok=True)
        with record.open("a") as file:
            # The last line may be cut off, where a disk was full.
            file.write(f"\n{hashlib.sha256(data).hexdigest()}\n")
        if record.stat().st_size > _MOST_NOTED:
            shorter = record.with_name(f"{record.name}.{os.getpid()}.tmp")
            shorter.write_text("\n".join([*record.read_text().split()[_MOST_NOTED // 130 :], ""]))
            shorter.replace(record)


def write_csv(path: str | Path, columns: Mapping[str, Iterable[object]]) -> None:
    """Write columns of one length as CSV, numbers so that reading gives the same ones."""
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator=os.linesep)
    rows.writerow(columns)
    rows.writerows(zip(*columns.values(), strict=True))
    write_whole(path, text.getvalue())


def is_replaced(path: Path) -> bool:
    """Whether a path is a file, or will be one; not so a pipe, or /dev/stdout."""
    return not path.exists() or (path.is_file() and not path.is_relative_to("/dev"))


def is_draft(path: Path) -> bool:
    """Whether a file is what `write_whole` leaves where the process is killed."""
    return path.name.startswith(".") and path.name.endswith(".tmp")


def write_object(content: JSON, path: str | Path | None) -> str:
    """Return an object as JSON text, and write it to a file if there is a path."""
    text = json.dumps(content)
    if path is not None:
        write_whole(path, text + "\n")
    return text


def read_object(source: str | Path, error: type[OptschedError], holding: str) -> tuple[JSON, str]:
    """Read an object from a file, or from text that starts with a brace."""
    inline = isinstance(source, str) and source.lstrip().startswith("{")
    where = "the JSON text" if inline else str(source)
    try:
        text = str(source) if inline else Path(source).read_text(encoding="utf-8")
        content = json.loads(text)
    except OSError as reason:
        raise error(unreadable(where, reason)) from None
    except (ValueError, RecursionError) as reason:  # numbers or nesting beyond Python's limits, too
        raise error(f"{where} is not valid JSON: {reason}; correct it, or write it anew") from None
    if not isinstance(content, dict):
        raise error(f"{where} holds no JSON object with {holding}")
    return content, where
