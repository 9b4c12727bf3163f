"""Ctrl-C on the command line: what is finished is kept, and the exit code is 130."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from effort import share

import optsched.cli


def test_interrupt_keeps_what_is_there(optsched_command, monkeypatch):
    from optsched.experiments import comparison as comparing

    original = comparing.run

    def interrupted(instance, policy, settings, **options):
        if policy.name == "mc-sf" and len(instance) == 22:
            raise KeyboardInterrupt
        return original(instance, policy, settings, **options)

    monkeypatch.setattr(comparing, "run", interrupted)
    code, out, err = optsched_command("compare", "family:uniform,n=22", "--json", "-")
    assert code == 130
    assert [entry["policy"] for entry in json.loads(out)["policies"]] == ["fcfs"]
    assert "interrupted after 1 of 7 policies" in err


def test_a_kernel_that_an_interrupt_left_half_compiled_is_an_interrupt(monkeypatch, capsys):
    def half_compiled(*arguments, **options):
        raise RuntimeError("no compiled object yet for <Library 'kernel' at 0x7ff51a825d90>")

    monkeypatch.setattr(optsched.cli.cli, "main", half_compiled)
    with pytest.raises(SystemExit) as stop:
        optsched.cli.main()
    assert stop.value.code == 130
    assert capsys.readouterr().err == "optsched: interrupted\n"


@pytest.mark.slow
def test_interrupt_of_the_process_ends_with_130(tmp_path):
    """A real Ctrl-C while a trace streams in through a pipe."""
    fifo = tmp_path / "endless.csv"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [sys.executable, "-m", "optsched", "bound", str(fifo), "--memory", "9"],
        stderr=subprocess.PIPE,
    )
    pipe = None
    while pipe is None:
        assert process.poll() is None, process.stderr.read()
        try:  # fails until there is a reader at the other end
            pipe = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.02)
    os.write(pipe, b"prompt_tokens,output_tokens\n1,1\n")
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    os.close(pipe)  # a stalled pipe holds the interrupt back until its next bytes or its end
    _, err = process.communicate(timeout=30)
    assert (process.returncode, b"Traceback" in err) == (130, False)


@pytest.mark.slow
@pytest.mark.parametrize("after", np.linspace(0.02, 3, share(40)).tolist())
def test_whenever_the_process_is_interrupted_it_says_an_answer_or_one_line(after):
    """While it imported, it printed a traceback."""
    code = "from optsched.__main__ import main; print('there', flush=True); main()"
    command = [sys.executable, "-c", code, "solve", "family:uniform,n=60", "--time-limit", "9"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "there\n"
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in err) in ((0, False), (130, False)), err
    lines = [line for line in err.splitlines() if line and "compiling kernels" not in line]
    assert out or lines == ["optsched: interrupted"]


def test_as_a_command_ends_nothing_is_searched_for_garbage():
    """After Ctrl-C Python searched for most of a second, in a process with many kernels."""
    code = (
        "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 0)); "
        "from optsched.__main__ import main; main()"
    )
    command = [sys.executable, "-c", code, "--version"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "True"


DEAF = """
import gc, os, random, signal, threading, weakref
from optsched._internal.aside import raise_soon

signal.signal(signal.SIGINT, raise_soon)

class Each:
    pass

heard = 0
for number in range(100):
    thread = threading.Timer(random.Random(number).uniform(0.001, 0.02), os.kill, (os.getpid(), 2))
    kept = weakref.WeakSet()
    try:
        thread.start()
        while True:
            kept.add(Each())
    except KeyboardInterrupt:
        heard += 1
    thread.join()
print(heard)
"""


DROPPED = """
import os, signal, time
from optsched._internal.aside import raise_soon

signal.signal(signal.SIGINT, raise_soon)
try:
    try:  # whose caller, in C, drops what is raised there, or says something else
        exec(compile("import os; os.kill(os.getpid(), 2)", "{}", "exec"))
    except BaseException:
        pass
    time.sleep(9)
except KeyboardInterrupt:
    print("heard")
"""


@pytest.mark.parametrize("file", ["<frozen abc>", "/numpy/_core/_internal.py"])
def test_ctrl_c_is_not_dropped_by_compiled_modules(file):
    """Modules register classes as they are imported: a solve went on for its 60 seconds.

    And a comparison of structured arrays said that their types cannot be compared.
    """
    command = [sys.executable, "-c", DROPPED.replace("{}", file)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == ("heard\n", "")


@pytest.mark.slow
def test_ctrl_c_in_a_callback_of_a_weak_reference_is_not_lost():
    """Python said that it ignored an exception, and the command line went on."""
    run = subprocess.run([sys.executable, "-c", DEAF], capture_output=True, text=True, timeout=60)
    assert (run.stdout.strip(), run.stderr) == ("100", "")
