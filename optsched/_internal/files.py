"""Files that are whole or not there, whenever the program is stopped."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


def write_whole(path: Path, content: bytes | pa.Buffer) -> None:
    """Write a file so that it is whole or not there, even if the machine fails."""
    draft = path.with_name(f".{path.name}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:  # such as a full disk
        draft.unlink(missing_ok=True)
        raise


def is_draft(path: Path) -> bool:
    """Whether a file is what `write_whole` leaves where the process is killed."""
    return path.name.startswith(".") and path.name.endswith(".tmp")
