"""Files that are whole or not there, whenever the program is stopped."""

from __future__ import annotations

import csv
import io
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from optsched.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa


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
        draft.replace(target)
    except BaseException as error:  # such as a full disk, or Ctrl-C
        with suppress(OSError):
            draft.unlink()
        if not isinstance(error, OSError) or isinstance(error, BrokenPipeError):
            raise
        wrong = FileError(f"cannot write {path}: {error.strerror}; name another place")
        wrong.strerror = error.strerror  # for whoever says more of the place
        raise wrong from error


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
