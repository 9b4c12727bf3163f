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
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
