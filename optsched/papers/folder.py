"""The folder of reproductions: finished targets, finished cells of others, and what they are of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from optsched._internal.files import is_draft, write_whole
from optsched._version import __version__
from optsched.errors import OptschedError

MANIFEST, CELLS = "_reproduction.json", "_cells"
PLOTS = "plots.json"  # beside the cells of a target: its plots for the page


def open_folder(out: str | Path, *, quick: bool, seed: int, overwrite: bool) -> Path:
    """Make the folder, or check that it holds results of the same kind, or none."""
    path = Path(out)
    if path.exists() and not path.is_dir():
        raise OptschedError(f"cannot write results into {path}: it is not a folder")
    settings = {"quick": quick, "seed": seed, "version": __version__}
    manifest = path / MANIFEST
    if manifest.is_file():
        _check_settings(path, json.loads(manifest.read_text(encoding="utf-8")), settings, overwrite)
    elif path.is_dir() and not all(map(is_draft, path.iterdir())):
        raise OptschedError(f"{path} holds other files, but no reproductions; take an empty folder")
    path.mkdir(parents=True, exist_ok=True)
    write_whole(manifest, json.dumps(settings | {"format": "optsched-reproduction"}).encode())
    return path


def _check_settings(
    path: Path, found: dict[str, Any], settings: dict[str, Any], overwrite: bool
) -> None:
    differing = [name for name, value in settings.items() if found.get(name) != value]
    if not differing:
        return
    if not overwrite:
        what = " and ".join(f"{name} {found.get(name)}" for name in differing)
        asked = " and ".join(f"{name} {settings[name]}" for name in differing)
        raise OptschedError(
            f"{path} holds results with {what}, not {asked}; take another folder, or overwrite them"
        )
    for entry in path.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def forget(path: Path, target: str) -> None:
    """Remove what the folder holds of a target."""
    shutil.rmtree(path / CELLS / target, ignore_errors=True)
    for suffix in ("csv", "png", "json"):
        (path / f"{target}.{suffix}").unlink(missing_ok=True)
