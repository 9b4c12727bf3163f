"""Machine code on disk is that of the sources, whatever the disk or other processes do."""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fresh import forked, printed
from numba.core import event

from optsched._internal import compiled as module
from optsched._internal.compiled import compiled

pytestmark = pytest.mark.slow

IMPORT = "from optsched._internal.compiled import compiled\n"
CALLED = IMPORT + "\n\n@compiled\ndef inner(x):\n    return x + {}\n"
CALLER = "from optsched.{} import inner\n" + IMPORT
CALLER += "\n\n@compiled\ndef outer(x):\n    return inner(x)\n"
SAID = "optsched: compiling kernels, which takes a while once on this machine\n"


@pytest.fixture
def package(tmp_path):
    """A small package of the name of ours, with a kernel that calls one in another file."""
    folder = tmp_path / "optsched"
    (folder / "_internal").mkdir(parents=True)
    for path in ("__init__.py", "_internal/__init__.py"):
        (folder / path).write_text("")
    for name in ("compiled.py", "parts.py", "aside.py"):
        shutil.copy(Path(module.__file__).with_name(name), folder / "_internal")
    (folder / "called.py").write_text(CALLED.format(1))
    (folder / "calling.py").write_text(CALLER.format("called"))
    return folder


def environment(package, **more):
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    return kept | {"XDG_CACHE_HOME": str(package.parent)} | more


def runs(package, code, said=None, **more):
    """Run code where nothing of ours is imported yet, and give what it prints."""
    out, err = forked(code, package.parent, environment(package, **more))
    assert err in ((said,) if said is not None else ("", SAID))
    return out.split()


def kept(package):
    """Files of machine code, one for each version of a kernel."""
    return sorted(package.glob("*.code"))


def test_a_change_of_a_called_kernel_in_another_file_is_seen(package):
    """With numba's own folders the third run still answered 2."""
    further = CALLER.format("calling").replace("outer", "furthest").replace("inner", "outer")
    (package / "further.py").write_text(further)
    code = "from optsched.calling import outer; from optsched.further import furthest; "
    code += "print(outer(1), furthest(1))"
    assert runs(package, code, SAID) == runs(package, code, "") == ["2", "2"]
    (package / "called.py").write_text(CALLED.format(2))
    assert runs(package, code, SAID) == ["3", "3"]


def test_a_change_of_a_type_in_a_file_without_kernels_is_seen(package):
    pair = "from typing import NamedTuple\n\n\nclass Pair(NamedTuple):\n    {}: int\n    {}: int\n"
    (package / "kernel.py").write_text(IMPORT + "@compiled\ndef first(pair):\n    return pair.a\n")
    code = "from optsched.kernel import first; from optsched.{} import Pair; "
    code += "print(first(Pair(2, 3)))"
    for place, names, answer in (("here", "ab", "2"), ("here", "ba", "3"), ("there", "ab", "2")):
        (package / f"{place}.py").write_text(pair.format(*names))
        assert runs(package, code.format(place), SAID) == [answer]
        (package / f"{place}.py").unlink()


USER = """import optsched.values as elsewhere
from optsched.values import LIMIT, Kind, helper
from optsched._internal.compiled import compiled

@compiled
def first(x):
    return helper(x) + LIMIT + elsewhere.OTHER + Kind.ONE

@compiled
def second(x):
    return x
"""
VALUES = """from enum import IntEnum
from optsched._internal.compiled import compiled_inside
LIMIT, OTHER = 10, 100
class Kind(IntEnum):
    ONE = 1000
@compiled_inside
def helper(x):  # which both share
    return inner(x)
@compiled_inside
def inner(x):
    total = 0
    for k in range(x):
        total += k
    return total
"""


CHANGES = [
    ("# which both share", "# which each has", None),
    ("LIMIT, OTHER = 10,", "LIMIT, OTHER = 20,", 1123),
    ("100\n", "200\n", 1213),
    ("ONE = 1000", "ONE = 2000", 2113),
    ("total += k", "total -= k", 1107),
    ("return inner(x)", "return inner(x) + 1", 1114),
]


def test_a_kernel_is_compiled_anew_where_what_it_reaches_has_changed(package):
    """Any change of a file that spoke of kernels had discarded the machine code of all."""
    (package / "user.py").write_text(USER)
    (package / "values.py").write_text(VALUES)
    code = "from optsched.user import first, second; print(first(3), second(1))"
    assert runs(package, code, SAID) == ["1113", "1"]
    for old, new, answer in CHANGES:
        before = kept(package)
        assert old in VALUES
        (package / "values.py").write_text(VALUES.replace(old, new))
        assert runs(package, code, SAID if answer else "") == [str(answer or 1113), "1"]
        anew = {file.name.split("-")[0] for file in set(kept(package)) - set(before)}
        assert anew == ({"optsched.user.first"} if answer else set())


def test_all_kernels_say_what_they_reach_alike_in_every_process():
    """Were it to name an address, its machine code would never be found again."""
    code = """
import hashlib, importlib, importlib.util, pkgutil, re
from numba.extending import is_jitted
from optsched._internal.compiled import _reached
here = filter(importlib.util.find_spec, ("optsched", "optsched_serving"))
for package in map(importlib.import_module, here):
  for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not found.name.endswith("__main__") and found.name != "optsched.vllm":
        for name, kernel in sorted(vars(importlib.import_module(found.name)).items()):
            if is_jitted(kernel):
                said = "\\n".join(_reached(kernel, set()))
                assert not re.search("0x[0-9a-f]{6}", said), (name, said)
                print(name, hashlib.sha256(said.encode()).hexdigest())
"""
    with contextlib.redirect_stdout(io.StringIO()) as here:
        exec(code, {})
    first = printed(code, env=os.environ | {"PYTHONHASHSEED": "1"})
    assert first == here.getvalue().strip()
    assert len(first.splitlines()) > 50


def test_an_interrupt_waits_until_the_kernel_is_compiled():
    """In the middle of it, it left LLVM's objects half made, and the process ended by abort."""

    @compiled
    def square(x):
        return x * x

    class Interrupting(event.Listener):
        def on_start(self, _):
            signal.raise_signal(signal.SIGINT)

        def on_end(self, _):
            pass

    before = signal.getsignal(signal.SIGINT)
    interrupting = event.install_listener("numba:compiler_lock", Interrupting())
    with interrupting, pytest.raises(KeyboardInterrupt):
        square(3)
    assert len(square.signatures) == 1
    assert square(3) == 9
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_is_heard_while_another_process_compiles(package):
    """It had to wait for up to a minute."""
    code = """
import os, signal, subprocess, sys, threading, time
from optsched.called import inner
hold = "import fcntl, os; file = os.open('optsched/turns', os.O_CREAT | os.O_RDWR); "
hold += "fcntl.lockf(file, fcntl.LOCK_EX); print(flush=True); input()"
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
other = subprocess.Popen([sys.executable, "-c", hold], **pipes)
other.stdout.readline()
threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
began = time.monotonic()
try:
    inner(1)
except KeyboardInterrupt:
    print(time.monotonic() - began < 20)
other.kill()
print(inner(1))
"""
    assert runs(package, code) == ["True", "2"]


@pytest.mark.parametrize("left", [None, 0, 20, 2000])
def test_damaged_machine_code_is_compiled_anew(package, left):
    """As after a process or a machine that was stopped while it wrote."""
    call = "from optsched.called import inner; print(inner(1))"
    assert runs(package, call) == ["2"]
    (file,) = kept(package)
    whole = file.read_bytes()
    if left is None:
        file.unlink()
    else:
        file.write_bytes(whole[:left])
    assert runs(package, call, SAID) == ["2"]
    assert len(file.read_bytes()) > len(whole) - 20
    assert runs(package, call, "") == ["2"]


def test_two_processes_never_compile_the_same_kernel(package):
    """Nor share code for different types: 2.5 + 1 had been computed by the code for integers."""
    code = """
from pathlib import Path
from numba.core import event
from optsched.called import inner

class Slow(event.Listener):
    def on_start(self, started):
        Path({0!r}, str(started.data["args"][0]) + " begun").touch()
        while not Path({0!r}, "go").exists():
            pass
        print("compiled", end=" ")

    def on_end(self, _):
        pass

event.register("numba:compile", Slow())
print(inner({1}))
"""
    asked = ("1", "1", "2.5")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code.format(str(package), number)],
            cwd=package.parent,
            env=environment(package),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for number in asked
    ]
    while not all((package / f"{kind} begun").exists() for kind in ("int64", "float64")):
        assert all(process.poll() is None for process in processes)
        time.sleep(0.01)
    time.sleep(0.5)  # in which the third comes to where it waits
    (package / "go").touch()
    said = sorted(process.communicate()[0] for process in processes)
    assert said == ["2\n", "compiled 2\n", "compiled 3.5\n"]
    assert len(kept(package)) == 2


def test_a_process_that_is_suspended_while_it_compiles_holds_up_no_other_for_ever(package):
    """It is waited for, then the kernel is compiled once more, and not kept."""
    lock = "import fcntl, os; from optsched._internal import compiled as c; "
    lock += "turns = os.open(c._root() / 'turns', os.O_CREAT | os.O_RDWR); "
    lock += "fcntl.lockf(turns, fcntl.LOCK_EX); print(flush=True); input()"
    code = "from optsched._internal import compiled as c; c._PATIENCE = 0.1; "
    code += "from optsched.called import inner; print(inner(1))"
    holder = subprocess.Popen(
        [sys.executable, "-c", lock],
        cwd=package.parent,
        env=environment(package),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    holder.stdout.readline()
    assert runs(package, code, SAID) == ["2"]
    assert kept(package) == []
    holder.communicate(b"\n")
    assert runs(package, code, SAID) == ["2"]
    assert len(kept(package)) == 1


FULL = "import shutil; shutil.disk_usage = lambda _: shutil._ntuple_diskusage(9, 9, 0); "


@pytest.mark.parametrize(
    ("how", "where"),
    [("", {"XDG_CACHE_HOME": "/dev/null"}), (FULL, {}), ("", {"HOME": "/dev/null"})],
)
def test_without_a_place_for_machine_code_every_process_compiles(package, how, where):
    if "HOME" in where:
        where = where | {"XDG_CACHE_HOME": ""}
    code = how + "from optsched.calling import outer; print(outer(1))"
    for _ in range(2):
        assert runs(package, code, SAID, **where) == ["2"]
    assert list(package.parent.rglob("*.code")) == []


def test_machine_code_lies_where_a_user_wants_it_and_the_oldest_of_a_kernel_goes(package):
    place = package.parent / "elsewhere"
    code = """
import os
from numba import int64, types
from optsched._internal import compiled as c
from optsched.called import inner
c._KEPT = 2
import numpy as np
for kind in (np.int8, np.int16, np.int32):
    inner(kind(1))
    for file in c._root().glob("*inner-*"):
        os.utime(file, (0, os.path.getmtime(file) - 100))
print(inner(np.int8(1)))
"""
    assert runs(package, code, SAID, NUMBA_CACHE_DIR=str(place)) == ["2"]
    assert len(list((place / "optsched").glob("*inner-*.code"))) == 2
    assert kept(package) == []


def test_kernels_of_others_are_compiled_as_they_were_and_without_a_word(package):
    """Neither the folder nor the word is meant for a user's own."""
    code = "import numba; before = numba.config.CACHE_DIR\n"
    code += "from optsched.called import inner\n"
    code += "print(numba.config.CACHE_DIR == before, numba.njit(lambda x: x + 1)(1))"
    assert runs(package, code, "") == ["True", "2"]
