"""Files that are whole or not there."""

import os
from pathlib import Path

import pytest
from tiny_models import knapsack

from optsched import Instance, OptschedError, sweep, write_model
from optsched._internal import files
from optsched._internal.files import is_foreign, write_whole

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


def test_a_file_is_known_as_ours_as_soon_as_it_is_there(tmp_path, monkeypatch):
    """A kill just after that left a whole file that the same command would not replace."""
    replace, known = Path.replace, []

    def watched(draft, target):
        replace(draft, target)
        known.append(not is_foreign(target))

    monkeypatch.setattr(Path, "replace", watched)
    write_whole(tmp_path / "file", os.urandom(9))
    assert known == [True]


def test_a_note_that_is_cut_off_spoils_no_later_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write_whole(tmp_path / "one", "one")
    (record,) = tmp_path.glob("*/written")
    os.truncate(record, record.stat().st_size - 9)
    write_whole(tmp_path / "two", "two")
    assert [is_foreign(tmp_path / name) for name in ("one", "two")] == [True, False]


def test_what_is_noted_of_files_is_shortened_whole_or_not_at_all(tmp_path, monkeypatch):
    """A disk found full at that moment had left nothing of it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setattr(files, "_MOST_NOTED", 700)
    written = [tmp_path / str(number) for number in range(12)]
    for path in written[:10]:
        write_whole(path, path.name)
    write_text = Path.write_text

    def full(path, text):
        write_text(path, text[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    write_whole(written[10], "10")
    assert not any(map(is_foreign, written))
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setattr(files, "_MOST_NOTED", 700)
    write_whole(written[11], "11")
    assert [is_foreign(path) for path in written] == [True] * 5 + [False] * 7


@pytest.mark.parametrize("stop", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_named_file_is_whole_or_as_before(optsched_command, tmp_path, monkeypatch, stop):
    """Files named by --json, --html and --certificate, when a disk is full and on Ctrl-C."""

    def fail(number):
        raise stop

    monkeypatch.setattr(os, "fsync", fail)
    compare = ("compare", "family:uniform,n=5", "--policies", "area")
    bound = ("bound", "family:uniform,n=5")
    for line, option in ((compare, "--json"), (compare, "--html"), (bound, "--certificate")):
        path = tmp_path / "result"
        path.write_text("before")
        code, _, err = optsched_command(*line, option, path)
        expected = (130, "interrupted") if isinstance(stop, KeyboardInterrupt) else (2, str(path))
        assert (code, err.strip().count("\n")) == (expected[0], 0)
        assert expected[1] in err
        assert [each.name for each in tmp_path.iterdir()] == ["result"]
        assert path.read_text() == "before"


@pytest.mark.parametrize(
    "write",
    [
        lambda path: Instance([1], [2], memory=8).to_csv(path),
        lambda path: Instance([1], [2], memory=8).to_json(path),
        lambda path: write_model(knapsack(), path),
    ],
    ids=["instance as CSV", "instance as JSON", "model"],
)
def test_a_full_disk_leaves_instances_and_models_as_before(write, tmp_path, monkeypatch):
    def fail(number):
        raise OSError(28, "No space left on device")

    path = tmp_path / "file.lp"
    path.write_text("before")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write(path)
    assert [each.name for each in tmp_path.iterdir()] == ["file.lp"]
    assert path.read_text() == "before"


def test_links_modes_and_pipes_stay_what_they_are(tmp_path):
    target, link, pipe = (tmp_path / name for name in ("target", "link", "pipe"))
    target.write_text("before")
    target.chmod(0o640)
    link.symlink_to(target)
    write_whole(link, "after")
    assert link.is_symlink()
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("after", 0o640)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert pipe.is_fifo()


def test_a_folder_left_in_its_first_moments_is_taken_up_again(tmp_path):
    """A process killed, or a disk found full, while the manifest was written blocked the folder."""
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "._sweep.json.tmp").write_text("{")
    assert sweep(CONFIG, tmp_path / "left", jobs=1).done == 1
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".mine.tmpl").write_text("")
    with pytest.raises(OptschedError, match="holds other files"):
        sweep(CONFIG, tmp_path / "other", jobs=1)
