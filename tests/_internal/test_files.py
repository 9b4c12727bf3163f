"""Files that are whole or not there."""

from __future__ import annotations

import os

import pytest

from optsched import OptschedError, sweep
from optsched._internal.files import write_whole
from optsched.papers.folder import open_folder

CONFIG = {"instances": [{"family": "uniform", "n": 4}], "policies": [{"name": "area"}]}


def test_a_full_disk_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch):
    def fail(number):
        raise OSError(28, "No space left on device")

    write_whole(tmp_path / "file", b"before")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "file", b"after")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"before"


def test_a_folder_left_in_its_first_moments_is_taken_up_again(tmp_path):
    """A process killed, or a disk found full, while the manifest was written blocked the folder."""
    for name in ("_sweep.json", "_reproduction.json"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f".{name}.tmp").write_text("{")
    assert sweep(CONFIG, tmp_path / "_sweep.json", jobs=1).done == 1
    open_folder(tmp_path / "_reproduction.json", quick=True, seed=0, overwrite=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".mine.tmpl").write_text("")
    for opened in (
        lambda: sweep(CONFIG, tmp_path / "other", jobs=1),
        lambda: open_folder(tmp_path / "other", quick=True, seed=0, overwrite=False),
    ):
        with pytest.raises(OptschedError, match="holds other files"):
            opened()
