"""The runner under sweeps, regret and papers: each cell once, whatever happens on the way."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from optsched import OptschedError
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


@pytest.mark.slow
def test_nothing_is_said_of_semaphores_that_ctrl_c_left():
    """The tracker of loky warned of them, below our own line."""
    code = """
from optsched.experiments.cells import on_local_cores
from joblib.externals.loky.backend import resource_tracker
print(sorted(on_local_cores(abs, {"one": -1, "two": -2}, 2, abs)))
resource_tracker.register("/loky-nobody", "semlock")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (run.stdout.strip(), run.stderr) == ("[('one', 1), ('two', 2)]", "")


@pytest.mark.slow
def test_no_process_waits_for_cells_after_the_end():
    """Struck by Ctrl-C in its last moment, a sweep in Python had left them for twenty seconds."""
    store = Store()
    assert finish(abs, {"one": -1, "two": -2}, store, Places(2)) == COMPLETE
    assert sorted(store.items()) == [("one", 1), ("two", 2)]
    names = {type(each).__name__ for each in threading.enumerate()} - {"_MainThread"}
    assert "_ExecutorManagerThread" not in names
