"""Machine code on disk is not used when what it calls has changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from numba.core import event
from numba.core.caching import NullCache

from optsched._internal.compiled import compiled

CALLED = (
    "from optsched._internal.compiled import compiled\n\n\n"
    "@compiled\ndef inner(x):\n    return x + {}\n"
)
CALLER = (
    "from optsched._internal.compiled import compiled\nfrom {} import inner\n\n\n"
    "@compiled\ndef outer(x):\n    return inner(x)\n"
)


def test_a_change_of_a_called_kernel_in_another_file_is_seen(tmp_path):
    """With numba's own stamp the third run still answered 2."""
    (tmp_path / "calling.py").write_text(CALLER.format("called"))
    # A kernel two files away counts as well.
    (tmp_path / "further.py").write_text(
        CALLER.format("calling").replace("outer", "furthest").replace("inner", "outer")
    )

    def answers():
        command = "from calling import outer; from further import furthest; "
        command += "print(outer(1), furthest(1))"
        run = subprocess.run(
            [sys.executable, "-B", "-c", command], cwd=tmp_path, capture_output=True, text=True
        )
        return run.stdout.split()

    (tmp_path / "called.py").write_text(CALLED.format(1))
    assert answers() == answers() == ["2", "2"]
    (tmp_path / "called.py").write_text(CALLED.format(2))
    assert answers() == ["3", "3"]


def test_machine_code_for_types_that_have_moved_since_is_compiled_anew(tmp_path):
    """Its index cannot be read any more: numba unpickles the types before it looks at the stamp."""
    pair = "from typing import NamedTuple\n\n\nclass Pair(NamedTuple):\n    a: int\n    b: int\n"
    kernel = "from optsched._internal.compiled import compiled\n\n\n"
    kernel += "@compiled\ndef add(pair):\n    return pair.a + pair.b{}\n"
    for place, more in (("first", ""), ("then", " + 1")):
        (tmp_path / f"{place}.py").write_text(pair)
        (tmp_path / "kernel.py").write_text(kernel.format(more))
        code = f"from kernel import add; from {place} import Pair; print(add(Pair(2, 3)))"
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
        )
        assert run.stdout.split() == [str(5 + len(more) // 4)], run.stderr
        (tmp_path / f"{place}.py").unlink()


def test_an_interrupt_waits_until_the_kernel_is_compiled():
    """In the middle of it, it left LLVM's objects half made, and the process ended by abort."""

    @compiled
    def square(x):
        return x * x

    square._cache = NullCache()  # noqa: SLF001 - what an earlier run kept is not compiled

    class Interrupting(event.Listener):
        def on_start(self, _):
            signal.raise_signal(signal.SIGINT)

        def on_end(self, _):
            pass

    with event.install_listener("numba:compile", Interrupting()), pytest.raises(KeyboardInterrupt):
        square(3)
    assert len(square.signatures) == 1
    assert square(3) == 9


def test_a_kernel_that_only_kernels_call_gets_an_entrance_when_python_calls_it(tmp_path):
    """Without one a call ends the process; both kinds of code are kept apart on disk."""
    (tmp_path / "called.py").write_text(CALLED.format(1))
    (tmp_path / "calling.py").write_text(CALLER.format("called"))
    first = "from called import inner\nfrom calling import outer\n"
    first += "print(outer(1), len(inner.signatures))\n"
    assert runs(tmp_path, first) == ["2", "0"]
    then = first + "print(inner(1), len(inner.signatures), outer(2), outer(2.5), inner(2.5))"
    for _ in range(2):
        assert runs(tmp_path, then) == ["2", "0", "2", "1", "3", "3.5", "3.5"]
    # Where there is code with an entrance on disk, kernels call that.
    for file in (tmp_path / "__pycache__").glob("inside-*"):
        file.unlink()
    (tmp_path / "calling.py").write_text(CALLER.format("called") + "\n")
    assert runs(tmp_path, then) == ["2", "0", "2", "1", "3", "3.5", "3.5"]
    assert not list((tmp_path / "__pycache__").glob("inside-*"))


#: Leaves a cache as numba would have it: the index is there, the machine code is not written.
FAILING = """
import os
from numba.core.caching import IndexDataCacheFile

def fail(self, name, data):
    {how}

IndexDataCacheFile._save_data = fail
"""
FULL = FAILING.format(how='raise OSError(28, "No space left on device")')
KILLED = FAILING.format(how="os._exit(1)")


def runs(folder, code, **environment):
    """Run code in a fresh process, and give what it prints."""
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    assert "Traceback" not in run.stderr, run.stderr
    return run.stdout.split()


@pytest.mark.parametrize("failing", [FULL, pytest.param(KILLED, marks=pytest.mark.long)])
def test_machine_code_of_an_older_source_is_never_taken_for_that_of_a_newer_one(tmp_path, failing):
    """With numba's own files the third process answered 2 where the disk was full."""
    module = tmp_path / "called.py"
    call = "from called import inner; print(inner(1))"
    module.write_text(CALLED.format(1))
    assert runs(tmp_path, call) == ["2"]
    module.write_text(CALLED.format(22))  # of another length, so that its stamp differs
    assert runs(tmp_path, failing + call) == (["23"] if failing == FULL else [])
    assert runs(tmp_path, call) == ["23"]


def test_two_processes_that_compile_for_different_types_do_not_share_code(tmp_path):
    """With numba's own files the last process computed 2.5 + 1 with the code for whole numbers."""
    (tmp_path / "called.py").write_text(CALLED.format(1))
    other = "import subprocess, sys\nfrom numba.core.caching import IndexDataCacheFile as File\n"
    other += "save = File._save_data\n"
    other += "def first_the_other(self, name, data):\n"
    other += "    File._save_data = save\n"
    other += "    code = 'from numba.core.caching import IndexDataCacheFile as File; '\n"
    other += "    code += 'File._load_index = lambda self: {}; '\n"  # it had looked before
    other += "    code += 'from called import inner; inner(2.5)'\n"
    other += "    subprocess.run([sys.executable, '-c', code], check=True)\n"
    other += "    save(self, name, data)\n"
    other += "File._save_data = first_the_other\n"
    runs(tmp_path, other + "from called import inner; inner(1)")
    assert runs(tmp_path, "from called import inner; print(inner(2.5), inner(1))") == ["3.5", "2"]


def test_without_a_place_for_machine_code_every_process_compiles(tmp_path):
    package = tmp_path / "source"
    package.mkdir()
    (package / "called.py").write_text(CALLED.format(1))
    (package / "calling.py").write_text(CALLER.format("called"))
    nowhere = "from numba.core.caching import CacheImpl\nCacheImpl._locator_classes = []\n"
    code = nowhere + "from calling import outer; print(outer(1), outer._cache.cache_path)"
    assert runs(package, code) == ["2", "None"]


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("left", [pytest.param(0, marks=pytest.mark.long), 20])
def test_damaged_machine_code_is_compiled_anew(tmp_path, suffix, left):
    (tmp_path / "called.py").write_text(CALLED.format(1))
    call = "from called import inner; print(inner(1))"
    assert runs(tmp_path, call) == ["2"]
    (file,) = (tmp_path / "__pycache__").glob(f"*{suffix}")
    file.write_bytes(file.read_bytes()[:left])
    assert runs(tmp_path, call) == ["2"]
    assert len(file.read_bytes()) > left


def test_machine_code_for_a_type_that_has_moved_to_another_module_is_compiled_anew(tmp_path):
    """As after an update that moves a class: the old index names a module that is gone."""
    pair = "from typing import NamedTuple\n\n\nclass Pair(NamedTuple):\n    a: int\n    b: int\n"
    added = "{}\n@compiled\ndef inner(pair):\n    return pair.a + pair.b\n"
    for module in ("before", "after"):
        (tmp_path / f"{module}.py").write_text(pair)
        imports = f"from optsched._internal.compiled import compiled\nfrom {module} import Pair\n"
        (tmp_path / "called.py").write_text(added.format(imports))
        code = "from called import Pair, inner; print(inner(Pair(1, 2)))"
        assert runs(tmp_path, code) == ["3"]
        (tmp_path / f"{module}.py").unlink()


APART = """
from optsched._internal.compiled import compiled, compiled_apart


@compiled_apart
def apart(x, y):
    return x // y + {}


@compiled
def between(x, y):
    return apart(x, y)
"""
CALLERS = """
from apart import apart, between
from optsched._internal.compiled import compiled


@compiled
def one(x, y):
    return 10 * between(x, y)


@compiled
def other(x, y):
    return 100 * between(x, y)


@compiled
def square(x):
    return x * x
"""


@pytest.fixture
def apart(tmp_path):
    (tmp_path / "apart.py").write_text(APART.format(1))
    (tmp_path / "callers.py").write_text(CALLERS)
    return tmp_path


def test_kernels_find_the_machine_code_of_one_that_is_apart(apart):
    answers = {"one(9, 3)": "40", "other(9, 3)": "400", "between(9, 3)": "4", "apart(9, 3)": "4"}
    calls = tuple(answers)
    for asked in (calls[:1], calls[:2], calls, calls[::-1]):  # what came before is on disk
        code = f"from callers import *; print({', '.join(asked)})"
        assert runs(apart, code) == [answers[call] for call in asked]


def test_a_kernel_apart_is_taken_in_by_none(apart):
    code = "from callers import *; one(9, 3)\n"
    code += "(library,) = [found.library for found in one.overloads.values()]\n"
    code += "print(*(f.is_declaration for f in library._final_module.functions "
    code += "if 'apart' in f.name and 'between' not in f.name))"
    assert runs(apart, code) == ["1"]


def test_an_error_in_a_kernel_apart_is_raised(apart):
    code = "from callers import *\nfor _ in '12':\n    try:\n        one(9, 0)\n"
    code += "    except ZeroDivisionError as error:\n        print(error)"
    for _ in range(2):
        assert runs(apart, code) == ["integer", "division", "by", "zero"] * 2


def test_a_change_of_a_kernel_apart_is_seen(apart):
    code = "from callers import *; print(one(9, 3))"
    assert runs(apart, code) == ["40"]
    (apart / "apart.py").write_text(APART.format(22))
    assert runs(apart, code) == ["250"]


def test_machine_code_whose_callee_was_compiled_once_more_is_compiled_too(apart):
    """Two processes that compile at once; the linker ends a process that misses a callee."""
    code = "from callers import *; print(one(9, 3))"
    assert runs(apart, code) == ["40"]
    for file in (apart / "__pycache__").glob("inside-apart.*"):
        file.unlink()
    # Names in machine code count what a process has compiled.
    assert runs(apart, "from callers import *; print(square(3), other(9, 3))") == ["9", "400"]
    files = set((apart / "__pycache__").glob("callers.one*.nbc"))
    before = {file: file.stat().st_mtime_ns for file in files}
    assert runs(apart, code) == ["40"]
    assert all(file.stat().st_mtime_ns > before[file] for file in files)
    assert runs(apart, code + "; print(other(9, 3))") == ["40", "400"]
