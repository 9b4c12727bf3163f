"""The runner under sweeps, regret and papers: each cell once, whatever happens on the way."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from optsched import OptschedError
from optsched._internal.children import cores
from optsched.experiments import cells as driver
from optsched.experiments.cells import COMPLETE, INTERRUPTED, JsonFolder, Places, Store, finish

CALLS = []


def square(x):
    CALLS.append(x)
    return {"square": x * x}


def deadly(x):
    if x == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"square": x * x}


def interrupted(x):
    os.kill(os.getpid(), signal.SIGINT)
    return {"square": x * x}


def pid_of(x):
    return os.getpid()


def divide(x):
    return 1 // x


def cells(*numbers):
    return {f"cell-{x}": x for x in numbers}


def test_what_is_kept_is_not_done_again(tmp_path):
    CALLS.clear()
    assert finish(square, cells(1, 2), JsonFolder(tmp_path, cells(1, 2)), Places()) == COMPLETE
    (tmp_path / ".cell-3.json.tmp").write_text("half a file")
    kept, seen = JsonFolder(tmp_path, cells(1, 2, 3)), []
    assert finish(square, cells(1, 2, 3), kept, Places(), on_progress=seen.append) == COMPLETE
    assert CALLS == [1, 2, 3]
    assert kept == {f"cell-{x}": {"square": x * x} for x in (1, 2, 3)}
    assert [(each.done, each.count, each.failed) for each in seen] == [(3, 3, 0)]
    assert str(seen[0]) == "3 of 3 cells, about 0:00:00 left"
    content = json.loads((tmp_path / "cell-3.json").read_text())
    assert (content.pop("seal") is not None, content) == (True, {"square": 9})


def test_an_interrupt_keeps_what_is_done():
    def stop(progress):
        raise KeyboardInterrupt

    kept = Store()
    assert finish(square, cells(1, 2, 3), kept, Places(), on_progress=stop) == INTERRUPTED
    assert kept == {"cell-1": {"square": 1}}


@pytest.mark.slow
def test_the_number_of_jobs_changes_nothing():
    found = []
    for jobs in (1, 2):
        found.append(Store())
        assert finish(square, cells(*range(7)), found[-1], Places(jobs)) == COMPLETE
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_cell_that_kills_its_process_is_an_error_and_the_others_are_kept():
    kept = Store()
    with pytest.raises(OptschedError, match="one of the squares kills every process that tries it"):
        finish(deadly, cells(1, 2, 3, 4), kept, Places(2), title="squares")
    assert "cell-3" not in kept
    assert all(kept[key] == {"square": x * x} for key, x in cells(1, 2, 4).items() if key in kept)


@pytest.mark.slow
def test_ctrl_c_is_left_to_the_process_that_started_the_others():
    kept = Store()
    assert finish(interrupted, cells(1, 2, 3), kept, Places(2)) == COMPLETE
    assert len(kept) == 3


STRUCK = """
import os, signal, threading, time
from optsched.experiments.cells import Places, Store, finish

def asleep(x):
    time.sleep(0.1)
    return {"large": len(x)}

def strike():
    time.sleep(after)
    os.killpg(0, signal.SIGINT)

for after in (0.02, 0.3, 1, 2):
    threading.Thread(target=strike).start()
    try:
        finish(asleep, {f"cell-{x}": "x" * 200_000 for x in range(900)}, Store(), Places(2))
    except KeyboardInterrupt:
        pass
    until = time.monotonic() + 10
    while threading.active_count() > 1 and time.monotonic() < until:
        time.sleep(0.02)
    print(threading.active_count())
"""


@pytest.mark.slow
def test_ctrl_c_of_a_terminal_leaves_no_thread_and_prints_nothing():
    """One waited for ever for who reads the cells; processes that just started had a traceback."""
    code = [sys.executable, "-c", STRUCK]
    run = subprocess.run(code, capture_output=True, text=True, check=True, start_new_session=True)
    assert (run.stdout.split(), run.stderr) == (["1"] * 4, "")


@pytest.mark.parametrize("jobs", [0, -1, 1.5, "2", True])
def test_jobs_are_a_whole_number_from_1(jobs):
    with pytest.raises(OptschedError, match=r"^jobs is .*, but must be a whole number from 1 to"):
        Places(jobs)


def children():
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[stat.parent.name] = stat.read_text().rpartition(")")[2].split()[1]
    return {child for child, parent in parents.items() if int(parent) == os.getpid()}


@pytest.mark.slow
def test_no_process_waits_for_cells_after_the_end():
    """Struck by Ctrl-C in its last moment, a sweep in Python had left them for twenty seconds."""
    store, before = Store(), children()
    threads = threading.active_count()
    assert finish(abs, {"one": -1, "two": -2}, store, Places(2)) == COMPLETE
    assert sorted(store.items()) == [("one", 1), ("two", 2)]
    assert (children() - before, threading.active_count()) == (set(), threads)


def slow(x):
    time.sleep(1.0)
    return os.getpid()


@pytest.mark.slow
def test_all_cores_join_only_where_that_pays(monkeypatch):
    """Forty-eight short cells took twice the CPU seconds in two processes."""
    short, long = Store(), Store()
    with monkeypatch.context() as patient:
        patient.setattr(driver, "_PAYS", 60.0)  # on a busy machine no cell is short
        assert finish(pid_of, cells(*range(48)), short, Places(None)) == COMPLETE
    assert finish(slow, cells(*range(12)), long, Places(None)) == COMPLETE
    assert len(set(short.values())) == 1
    assert len(set(long.values())) == min(cores(), 12)


@pytest.mark.slow
def test_an_error_of_a_cell_is_raised_with_where_it_came_from():
    with pytest.raises(ZeroDivisionError) as caught:
        finish(divide, cells(1, 0), Store(), Places(2))
    assert "in divide" in caught.value.__notes__[0]
