"""Where real traces and recordings of engines are: the one place that decides it."""

import os
from pathlib import Path

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


def data_folder(beside: Path = _BESIDE) -> Path | None:
    """Return the folder that OPTSCHED_DATA names, else the one beside the repository, if any."""
    if named := os.environ.get("OPTSCHED_DATA"):
        if not Path(named).is_dir():
            raise FileNotFoundError(f"OPTSCHED_DATA is {named}, but there is no such folder")
        return Path(named)
    return beside if beside.is_dir() else None
