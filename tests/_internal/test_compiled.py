"""Machine code on disk is that of the sources, whatever the disk or other processes do."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from numba import extending
from numba.core import event

import optsched
from optsched._internal import compiled as module
from optsched._internal.compiled import compiled

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
    for name in ("compiled.py", "aside.py"):
        shutil.copy(Path(module.__file__).with_name(name), folder / "_internal")
    (folder / "called.py").write_text(CALLED.format(1))
    (folder / "calling.py").write_text(CALLER.format("called"))
    return folder


def environment(package, **more):
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    return kept | {"XDG_CACHE_HOME": str(package.parent)} | more


def runs(package, code, said=None, **more):
    """Run code in a fresh process, and give what it prints."""
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=package.parent,
        capture_output=True,
        text=True,
        env=environment(package, **more),
    )
    assert run.stderr in ((said,) if said is not None else ("", SAID))
    return run.stdout.split()


def kept(package, suffix=""):
    """Files of machine code, which lie in a folder per version of the sources."""
    return sorted((package.parent / "optsched").glob(f"{16 * '[0-9a-f]'}/*/*{suffix}"))


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


def test_all_numbers_that_kernels_take_from_other_files_are_in_the_stamp():
    folder = Path(optsched.__file__).parent
    texts = {path: path.read_text() for path in folder.rglob("*.py")}
    words = "|".join(word.decode() for word in module._WORDS)  # noqa: SLF001
    stamped = "\n".join(text for text in texts.values() if re.search(words, text))
    missing = set()
    for path in (path for path, text in texts.items() if "@compiled" in text):
        name = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
        for kernel in filter(extending.is_jitted, vars(import_module(name)).values()):
            code, names = kernel.py_func.__code__, dict(kernel.py_func.__globals__)
            for other in [names[n] for n in code.co_names if isinstance(names.get(n), ModuleType)]:
                if other.__name__.startswith("optsched"):
                    names |= vars(other)
            numbers = (n for n in code.co_names if isinstance(names.get(n), (int, float, tuple)))
            missing |= {n for n in numbers if not re.search(rf"^(.*, )?{n}\b.*=", stamped, re.M)}
    assert missing == set()


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


@pytest.mark.parametrize("lefts", [(None, 20), pytest.param((0,), marks=pytest.mark.long)])
def test_damaged_machine_code_is_compiled_anew(package, lefts):
    """As after a process or a machine that was stopped while it wrote."""
    call = "from optsched.called import inner; print(inner(1))"
    assert runs(package, call) == ["2"]
    for suffix, left in itertools.product([".nbi", ".nbc"], lefts):
        (file,) = kept(package, suffix)
        whole = file.read_bytes()
        if left is None:
            file.unlink()
        else:
            file.write_bytes(whole[:left])
        assert runs(package, call, SAID) == ["2"]
        assert len(file.read_bytes()) > len(whole) - 20


def test_two_processes_that_compile_for_different_types_do_not_share_code(package):
    """They had named their files alike, and 2.5 + 1 was computed by the code for whole numbers."""
    code = f"""
from pathlib import Path
from numba.core import event

class Telling(event.Listener):
    def on_start(self, _):
        pass

    def on_end(self, _):
        Path({str(package)!r}, "{{0}}").touch()

event.register("numba:compile", Telling())
from optsched.called import inner
inner({{0}})
"""
    runs(package, "import optsched._internal.compiled as c; c._folder()")  # makes it
    (folder,) = (package.parent / "optsched").glob(16 * "[0-9a-f]")
    with open(folder / "turn", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", code.format(number)],
                cwd=package.parent,
                env=environment(package),
                stderr=subprocess.DEVNULL,
            )
            for number in ("1", "2.5")
        ]
        while not all((package / number).exists() for number in ("1", "2.5")):
            assert all(process.poll() is None for process in processes)
            time.sleep(0.01)
        assert kept(package, ".nb?") == []
    assert [process.wait() for process in processes] == [0, 0]
    assert len(kept(package, ".nbc")) == 2
    call = "from optsched.called import inner; print(inner(2.5), inner(1))"
    assert runs(package, call, "") == ["3.5", "2"]


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
    assert list(package.parent.rglob("*.nb?")) == []


def test_machine_code_lies_where_a_user_wants_it_and_that_of_the_oldest_sources_goes(package):
    place = package.parent / "elsewhere"
    code = f"""
import os
from pathlib import Path
from optsched._internal.compiled import _folder
from optsched.called import inner
folders = [_folder()]
for number in range(12):
    Path({str(package / "called.py")!r}).write_text({CALLED!r}.format(number))
    _folder.cache_clear()
    os.utime(folders[0])
    folders.append(_folder())
print(inner(1), *folders[:1], *folders[-9:])
"""
    answer, *folders = runs(package, code, SAID, NUMBA_CACHE_DIR=str(place))
    assert answer == "2"
    assert sorted(map(str, (place / "optsched").iterdir())) == sorted(folders)
    assert kept(package) == []


def test_kernels_of_others_are_compiled_as_they_were_and_without_a_word(package):
    """Neither the folder nor the word is meant for a user's own."""
    code = "import numba; before = numba.config.CACHE_DIR\n"
    code += "from optsched.called import inner\n"
    code += "print(numba.config.CACHE_DIR == before, numba.njit(lambda x: x + 1)(1))"
    assert runs(package, code, "") == ["True", "2"]
