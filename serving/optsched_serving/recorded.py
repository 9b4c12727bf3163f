"""A folder that the plugin recorded: batches and requests, a file of each per engine and start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from optsched.errors import OptschedError

if TYPE_CHECKING:
    import pandas as pd


def is_recorded(source: str | Path) -> bool:
    """Whether it is such a folder."""
    return any(Path(source).glob("batches-*.csv"))


def recorded_batches(folder: Path) -> pd.DataFrame:
    """Return the batches of all runs."""
    import pandas as pd

    return pd.concat(map(pd.read_csv, folder.glob("batches-*.csv")), ignore_index=True)


def recorded_requests(folder: Path) -> Path:
    """Return the file of requests; refuse those of several runs, which are a log each."""
    files = sorted(folder.glob("requests-*.jsonl"))
    if not files:
        raise OptschedError(f"{folder} has no requests: none was complete; record for longer")
    if len(files) > 1:
        raise OptschedError(
            f"{folder} has the requests of {len(files)} engines or starts of one; name a file of "
            f"it, such as {files[-1]}"
        )
    return files[0]
